"""What surrounds the training step of an author: the data, the counters, the threads and the other learners."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from rlightning.errors import ProtocolError
from rlightning.policy.data_parallel import DataParallel
from rlightning.policy.memory import Part

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from rlightning.policy.base_policy import BasePolicy


class Learning:
    """Runs an author's ``update_dataset`` and ``train``, alone or together with other learners.

    The policy is an argument of each call, so that only its users keep it.
    """

    def __init__(self, data_parallel: DataParallel) -> None:
        self._data_parallel = data_parallel
        self._has_data = False

    def update_dataset(self, policy: BasePolicy, data: TensorDictBase) -> int:
        """Pass data to the author, on the policy's device; see ``BasePolicy._update_dataset``."""
        policy._memory.require(Part.MODEL, to="take data")
        with self._phase(policy, "update_dataset"):
            self._has_data = True
            lag = versions_behind(data, policy.version)
            policy.update_dataset(data.to(policy.device) if policy.device != "cpu" and hasattr(data, "to") else data)
        return lag

    def train(self, policy: BasePolicy, *args: Any, **kwargs: Any) -> Any:
        """Run the training step and count it; see ``BasePolicy._train``."""
        policy._memory.require(Part.MODEL, Part.OPTIMIZER, to="train")
        with self._phase(policy, "train"):
            try:
                metrics = policy.train(*args, **kwargs)
            except (AttributeError, IndexError, KeyError, TypeError) as error:
                if policy.dataset is not None or self._has_data:
                    raise
                raise ProtocolError(
                    f"{type(policy).__name__}.train failed, and self.dataset is None: call update_dataset, which has "
                    f"to set it, before train ({type(error).__name__}: {error})"
                ) from error
            self._data_parallel.share_buffers(policy)
        policy.epoch += 1
        policy.version += 1
        interval = policy.train_config.check_ranks_interval
        if interval and policy.epoch % interval == 0:
            self._data_parallel.check_ranks(policy)
        return _detached(metrics)

    @contextmanager
    def _phase(self, policy: BasePolicy, phase: str) -> Iterator[None]:
        """Run the author's code in a phase of learning: with its threads, timed, and leaving the groups on failure."""
        self._data_parallel.require_current(policy)
        before, wanted = torch.get_num_threads(), policy.train_config.learn_threads
        if wanted is not None and wanted != before:
            torch.set_num_threads(wanted)
        try:
            with self._data_parallel.leaving_on_failure(), policy._steady, policy._timer.measure(phase):
                self._data_parallel.look_anew(policy)
                yield
        finally:
            if torch.get_num_threads() != before:
                torch.set_num_threads(before)


def versions_behind(data: Any, version: int) -> int:
    """Count how many versions the oldest weights that acted in data are behind; 0 where none are known.

    Args:
        data: What came from a buffer, or anything else where a policy is fed without one.
        version: The version of the learner's weights.
    """
    # A TensorDict is no mapping, and what it holds may be of any kind.
    versions = data["version"] if hasattr(data, "keys") and "version" in data.keys() else None  # noqa: SIM118
    if not isinstance(versions, torch.Tensor):
        return 0
    known = versions[versions >= 0]
    return version - int(known.min()) if known.numel() else 0


def _detached(metrics: Any) -> Any:
    """Detach metrics from the graphs that they were computed by."""
    if not isinstance(metrics, Mapping):
        return metrics
    return {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in metrics.items()}


def mean_numbers(reports: Sequence[Any]) -> dict[str, float]:
    """Return the mean of each number over the reports that have it.

    Numbers are those of Python and numpy, and tensors with one element; anything else is left out.
    """
    held: dict[str, list[float]] = {}
    for report in reports:
        for name, value in (report if isinstance(report, Mapping) else {}).items():
            number = _number(value)
            if number is not None:
                held.setdefault(name, []).append(number)
    return {name: math.fsum(values) / len(values) for name, values in held.items()}


def _number(value: Any) -> float | None:
    """Return a number of Python or numpy, or the element of a tensor or array with one; None where it is none."""
    try:
        plain = value.item() if hasattr(value, "item") else value
    except (RuntimeError, ValueError):
        return None
    return float(plain) if isinstance(plain, int | float) else None
