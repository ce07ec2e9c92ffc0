"""Whether two policies have the same tensors: names, shapes, norms, and digests of all bits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import xxhash

_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.")


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A tensor of an eval policy that is not the learner's.

    Attributes:
        policy: Index of the eval policy.
        name: ``module.tensor``, or ``version``.
        expected, actual: What the learner has and what the eval policy has; None where it is missing.
    """

    policy: int
    name: str
    expected: Any
    actual: Any

    def __str__(self) -> str:
        return f"eval[{self.policy}] {self.name}: {self.actual}, the learner has {self.expected}"


def differences(
    policy: int, expected: Mapping[str, Any], found: Mapping[str, Any], rtol: float = 0.0
) -> list[Mismatch]:
    """List the tensors that differ.

    Args:
        policy: Index of the eval policy that something was found at.
        expected: Norm or digest of each of the learner's tensors, by name.
        found: Those of the eval policy.
        rtol: Largest relative difference of norms; 0 wants equal values.

    >>> [str(one) for one in differences(1, {"w": 2.0, "b": 1.0}, {"w": 2.1}, rtol=0.1)]
    ['eval[1] b: None, the learner has 1.0']
    """
    mismatches = []
    for name in {**expected, **found}:
        wanted, got = expected.get(name), found.get(name)
        if wanted is None or got is None:
            same = False
        elif rtol > 0 and math.isfinite(wanted):
            same = abs(wanted - got) / max(abs(wanted), 1e-8) <= rtol
        else:
            same = wanted == got or (wanted != wanted and got != got)  # NaN is the norm of what has one
        if not same:
            mismatches.append(Mismatch(policy, name, wanted, got))
    return mismatches


@lru_cache(maxsize=100_000)
def strip_wrappers(name: str) -> str:
    """Remove what DDP, ``torch.compile`` and the like put into the names of parameters.

    >>> strip_wrappers("module._orig_mod.0.weight")
    '0.weight'
    """
    for prefix in _WRAPPERS:
        name = name.replace(prefix, "") if name.startswith(prefix) else name.replace(f".{prefix}", ".")
    return name


def norms(tensors: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Compute the L2 norm of each tensor."""

    def norm(tensor: torch.Tensor) -> float:
        wide = torch.complex128 if tensor.is_complex() else torch.float64
        return float(torch.linalg.vector_norm(tensor.detach().to(wide)))

    return {name: norm(tensor) for name, tensor in tensors.items()}


def digests(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Hash each tensor: its bits, its dtype and its shape.

    XXH3 with 128 bits takes less time than a copy. It finds accidents, not forgeries.
    """
    result = {}
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest = xxhash.xxh3_128(flat.numpy().data)
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        result[name] = digest.hexdigest()
    return result
