"""Gradients averaged over the ranks of a group at the end of every backward pass, without wrapping any module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable

from rlightning.distributed.groups import Group


class GradientAverage:
    """Averages the gradients of parameters over the ranks of a group.

    At the end of a backward pass, before ``backward`` returns, the gradients are those of the mean over the samples of
    all ranks. So whatever comes after it, clipping for one, sees the same numbers on every rank. All ranks make the
    same number of backward passes; one that has no data in a step calls ``join`` instead.

    A parameter without a gradient counts as zero, and stays without one if no rank has any. Gradients of less than 32
    bits are averaged in float32; sparse ones become dense.
    """

    def __init__(self, parameters: Callable[[], Iterable[Tensor]], group: Group) -> None:
        """Watch parameters.

        Args:
            parameters: Returns them: the same ones in the same order on all ranks. It is called for each average, since
                an author may add and replace some; those that need no gradient take part from when they need one.
            group: The ranks that average.
        """
        self._list, self._group = parameters, group
        self._samples = 1.0
        self._backward = -1  # id of the backward pass that is averaged at its end
        self._watched: dict[int, Tensor] = {}
        self._hooks: dict[int, Any] = {}
        self._averaged: list[Tensor] = []
        self._buckets: list[_Bucket] = []
        self.watch()

    def watch(self) -> None:
        """Watch the parameters that there are now; without it, new ones are seen when an old one gets a gradient."""
        # A parameter may be listed under two names, and those of whole numbers never need a gradient.
        now = {id(p): p for p in self._list() if p.is_floating_point() or p.is_complex()}
        for key in self._hooks.keys() - now.keys():
            self._hooks.pop(key).remove()
        for key in now.keys() - self._hooks.keys():
            self._hooks[key] = _on_gradient(now[key], self._expect)
        self._watched = now

    @contextmanager
    def weigh(self, samples: float) -> Iterator[None]:
        """Set the number of samples that the losses of the backward passes inside are means over.

        Without it, all ranks count the same.
        """
        before, self._samples = self._samples, float(samples)
        try:
            yield
        finally:
            self._samples = before

    def join(self) -> None:
        """Average the gradients of a backward pass to which this rank has no sample, in place of the backward pass."""
        with self.weigh(0.0):
            self._average()

    def close(self) -> None:
        """Watch no longer."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()

    def _expect(self, _parameter: Tensor) -> None:
        """Average at the end of this backward pass; called for each parameter that gets a gradient."""
        current = torch._C._current_graph_task_id()
        if self._backward != current:
            self._backward = current
            Variable._execution_engine.queue_callback(self._average)

    @torch.no_grad()
    def _average(self) -> None:
        self.watch()
        # One that is frozen for a while goes on taking part: what is averaged would change with each backward pass.
        before = set(map(id, self._averaged))
        wanted = [p for key, p in self._watched.items() if p.requires_grad or key in before]
        if list(map(id, wanted)) != list(map(id, self._averaged)):
            self._averaged, self._buckets = wanted, [_Bucket(self._group, held) for held in _by_dtype(wanted)]
        for bucket in self._buckets:
            bucket.average(self._samples)


class _Bucket:
    """The gradients of one dtype as one row of numbers: samples, which parameters have a gradient, the gradients."""

    def __init__(self, group: Group, parameters: list[Tensor]) -> None:
        self._group, self._parameters = group, parameters
        first, count = parameters[0], len(parameters)
        dtype = torch.float64 if first.dtype in (torch.float64, torch.complex128) else torch.float32
        # A complex number is two real ones.
        sizes = [p.numel() * (1 + p.is_complex()) for p in parameters]
        self._row = torch.zeros(1 + count + sum(sizes), dtype=dtype, device=first.device)
        self._samples, self._has, self._gradients = torch.split(self._row, [1, count, sum(sizes)])
        self._views = [
            _shaped(view, p) for view, p in zip(torch.split(self._gradients, sizes), parameters, strict=True)
        ]

    def average(self, samples: float) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None and parameter.grad.layout != torch.strided:
                parameter.grad = parameter.grad.to_dense()
        gradients: list[Any] = [p.grad for p in self._parameters]
        held = [i for i, gradient in enumerate(gradients) if gradient is not None]
        complete = len(held) == len(gradients)
        if samples == 0.0 or not complete:
            self._row.zero_()
        if samples > 0.0 and held:
            torch._foreach_copy_([self._views[i] for i in held], [gradients[i] for i in held])
            self._gradients.mul_(samples)
        self._samples.fill_(samples)
        self._has.copy_(torch.tensor([gradient is not None for gradient in gradients]))
        self._group.all_reduce_(self._row)
        # Without a sample anywhere the gradients are 0, and 0 / 1 leaves them so.
        self._gradients.div_(self._samples.clamp(min=1e-38))
        wanted = range(len(gradients)) if complete else self._has.nonzero().squeeze(-1).tolist()
        for i in wanted:
            if gradients[i] is None:
                gradients[i] = self._parameters[i].grad = torch.empty_like(self._parameters[i])
        if wanted:
            torch._foreach_copy_([gradients[i] for i in wanted], [self._views[i] for i in wanted])


def _shaped(numbers: Tensor, parameter: Tensor) -> Tensor:
    """View a run of real numbers as a tensor of a parameter's shape, complex where that is."""
    if parameter.is_complex():
        return torch.view_as_complex(numbers.view(*parameter.shape, 2))
    return numbers.view_as(parameter)


def _on_gradient(parameter: Any, call: Callable[[Tensor], None]) -> Any:
    """Hook a parameter; torch takes hooks only where a gradient is needed, and keeps them where it no longer is."""
    needs_gradient = parameter.requires_grad
    hook = parameter.requires_grad_().register_post_accumulate_grad_hook(call)
    parameter.requires_grad_(needs_gradient)
    return hook


def _by_dtype(parameters: list[Tensor]) -> list[list[Tensor]]:
    held: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for parameter in parameters:
        held.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    return list(held.values())
