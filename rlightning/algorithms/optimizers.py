"""Optimizers and gradient clipping.

With the small networks of control tasks a gradient step takes less than a millisecond. A sixth of that is bookkeeping
of torch's optimizers and clipping. The versions here make a few calls over all parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlightning.config import OptimConfig


def _unguarded(method: Any) -> Any:
    """Return a method of torch without its guard against compilation.

    The first call of a guarded method loads torch's compiler, which takes about as long as loading torch. Building,
    saving and loading an optimizer is never compiled.
    """
    return getattr(method, "__wrapped__", method)


class LeanAdam(torch.optim.Adam):
    """Adam (Kingma & Ba 2015) and AdamW (Loshchilov & Hutter 2019) with less bookkeeping than torch's.

    Kernel and state are those of torch's fused implementation, so that states can be exchanged with it.

    Args:
        parameters: Parameters to update, all on one device.
        decoupled: Subtract the weight decay from the weights instead of adding it to the gradient (AdamW).
        **options: Options of ``torch.optim.Adam``, except its variants (amsgrad, maximize and the like).
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, decoupled: bool = False, **options: Any) -> None:
        super().__init__(parameters, fused=True, **options)
        self._kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_

    add_param_group = _unguarded(torch.optim.Adam.add_param_group)
    state_dict = _unguarded(torch.optim.Adam.state_dict)
    load_state_dict = _unguarded(torch.optim.Adam.load_state_dict)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient.

        Raises:
            ValueError: If there is a closure; Adam does not evaluate the loss again.
        """
        if closure is not None:
            raise ValueError("LeanAdam takes no closure: compute the gradients, then call step()")
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            self._start([parameter for parameter in parameters if not self.state[parameter]])
            states = [self.state[parameter] for parameter in parameters]
            if len(parameters) < len(group["params"]):
                for state in states:  # parameters without a gradient keep their count
                    state["step"] = state["step"].clone()
            steps = [state["step"] for state in states]
            torch._foreach_add_(list({id(step): step for step in steps}.values()), 1.0)
            self._kernel(
                parameters,
                [parameter.grad for parameter in parameters],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                steps,
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        if not set_to_none:
            super().zero_grad(set_to_none=False)
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def _start(self, parameters: Sequence[nn.Parameter]) -> None:
        """Create the states of parameters; parameters that start together share one step count."""
        if parameters:
            step = torch.zeros((), device=parameters[0].device)
        for parameter in parameters:
            state: dict[str, Tensor] = self.state[parameter]
            state["step"] = step
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)


def make_optimizer(parameters: Iterable[nn.Parameter], config: OptimConfig, lr: float) -> torch.optim.Optimizer:
    """Build an optimizer.

    Args:
        parameters: Parameters to update.
        config: Name and options of the optimizer.
        lr: Initial learning rate.
    """
    if config.name == "sgd":
        decay = config.weight_decay
        return torch.optim.SGD(parameters, lr=lr, momentum=config.momentum, weight_decay=decay, fused=True)
    return LeanAdam(
        parameters,
        decoupled=config.name == "adamw",
        lr=lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
    )


@torch.no_grad()
def clip_grad_norm(parameters: Sequence[nn.Parameter], max_norm: float) -> Tensor:
    """Scale all gradients by one factor so that their joint L2 norm is at most ``max_norm``.

    Equal to ``torch.nn.utils.clip_grad_norm_`` for parameters on one device.

    Args:
        parameters: Parameters; those without a gradient are ignored.
        max_norm: Largest norm; may be infinite.

    Returns:
        The norm before clipping, a scalar.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm: Tensor = torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in gradients]))
    torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm
