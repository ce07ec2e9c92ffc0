"""Gradients averaged over the ranks of a group at the end of every backward pass, without wrapping any module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from rlightning.distributed.groups import Group


class GradientAverage:
    """Averages the gradients of parameters over the ranks of a group.

    At the end of a backward pass, before ``backward`` returns, the gradients are those of the mean over the samples of
    all ranks. So whatever comes after it, clipping for one, sees the same numbers on every rank. All ranks make the
    same number of backward passes; one that has no data in a step calls ``join`` instead.

    A parameter without a gradient counts as zero, and stays without one if no rank has any. Gradients of less than 32
    bits are averaged in float32.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], group: Group) -> None:
        """Watch parameters.

        Args:
            parameters: The same ones in the same order on all ranks; those that need no gradient are left out.
            group: Who averages.
        """
        self._group = group
        # A parameter may be listed under two names.
        self._parameters = list({id(p): p for p in parameters if p.requires_grad}.values())
        self._samples = 1.0
        self._backward = -1  # id of the backward pass that is averaged at its end
        self._buckets = [_Bucket(group, held) for held in _by_dtype(self._parameters)]
        self._hooks: list[Any] = [_on_gradient(p, self._expect) for p in self._parameters]

    @contextmanager
    def weigh(self, samples: float) -> Iterator[None]:
        """Say over how many samples the losses of the backward passes inside are means.

        Without it, all ranks count the same.
        """
        before, self._samples = self._samples, float(samples)
        try:
            yield
        finally:
            self._samples = before

    def join(self) -> None:
        """Take part in the average of a backward pass without having any sample; in place of the backward pass."""
        with self.weigh(0.0):
            self._average()

    def close(self) -> None:
        """Watch no longer."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _expect(self, _parameter: Tensor) -> None:
        """Average at the end of this backward pass; called for each parameter that gets a gradient."""
        current = torch._C._current_graph_task_id()
        if self._backward != current:
            self._backward = current
            Variable._execution_engine.queue_callback(self._average)

    @torch.no_grad()
    def _average(self) -> None:
        for bucket in self._buckets:
            bucket.average(self._samples)


class _Bucket:
    """The gradients of one dtype as one row of numbers: samples, which parameters have a gradient, the gradients."""

    def __init__(self, group: Group, parameters: list[nn.Parameter]) -> None:
        self._group, self._parameters = group, parameters
        first, count = parameters[0], len(parameters)
        dtype = first.dtype if first.dtype == torch.float64 else torch.float32
        sizes = [p.numel() for p in parameters]
        self._row = torch.zeros(1 + count + sum(sizes), dtype=dtype, device=first.device)
        self._samples, self._has, self._gradients = torch.split(self._row, [1, count, sum(sizes)])
        self._views = [view.view_as(p) for view, p in zip(torch.split(self._gradients, sizes), parameters, strict=True)]

    def average(self, samples: float) -> None:
        gradients: list[Any] = [p.grad for p in self._parameters]
        held = [place for place, gradient in enumerate(gradients) if gradient is not None]
        complete = len(held) == len(gradients)
        if samples == 0.0 or not complete:
            self._row.zero_()
        if samples > 0.0 and held:
            torch._foreach_copy_([self._views[place] for place in held], [gradients[place] for place in held])
            self._gradients.mul_(samples)
        self._samples.fill_(samples)
        self._has.copy_(torch.tensor([gradient is not None for gradient in gradients]))
        self._group.all_reduce_(self._row)
        # Without a sample anywhere the gradients are 0, and 0 / 1 leaves them so.
        self._gradients.div_(self._samples.clamp(min=1e-38))
        wanted = range(len(gradients)) if complete else self._has.nonzero().squeeze(-1).tolist()
        for place in wanted:
            if gradients[place] is None:
                gradients[place] = self._parameters[place].grad = torch.empty_like(self._parameters[place])
        if wanted:
            torch._foreach_copy_([gradients[place] for place in wanted], [self._views[place] for place in wanted])


def _on_gradient(parameter: Any, call: Callable[[Tensor], None]) -> Any:
    return parameter.register_post_accumulate_grad_hook(call)


def _by_dtype(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    held: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for parameter in parameters:
        held.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    return list(held.values())
