"""Eager: each env worker steps on as soon as its result is there, and quick ones do not wait for slow ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rlightning.collect.stepwise import StepwiseCollector
from rlightning.runtime import Future, wait
from rlightning.types import BatchedData, EnvRet, PolicyResponse

Step = tuple[Future[EnvRet], Future[PolicyResponse]]
"""What an env worker showed, and what was done there."""


class EagerCollector(StepwiseCollector):
    """Env workers step on one by one (``engine: rsl``); answers are finished on the eval side, by ``postprocess``.

    Which requests share a forward pass depends on time, so that runs with several remote env workers do not repeat bit
    for bit. A stream of it goes on only while it is read.
    """

    def _make_steps(self, env_ids: Sequence[int], steps: int, calls: list[Future[Any]]) -> None:
        left = dict.fromkeys(env_ids, steps)
        acted: dict[int, Step] = {}
        while left:
            ready = self._ready(left)
            # Only now that these envs have stepped: a worker's calls run in their order, and one that had to wait for
            # a slow env would hold up those for the quick ones.
            if done := [env_id for env_id in ready if env_id in acted]:
                calls.append(self._store(done, acted))
            going = [env_id for env_id in ready if left[env_id]]
            for env_id in ready:
                left[env_id] -= 1
                if left[env_id] < 0:
                    del left[env_id]
            if going:
                responses = self._policy_group.rollout_batch(self._latest(going), **self._options)
                stepped = self.env_group.step(responses)
                acted.update((env_id, (self.env_rets[env_id], response)) for env_id, response in responses)
                self.env_rets.update(stepped)

    def _ready(self, env_ids: Iterable[int]) -> list[int]:
        """Wait for at least one of some env workers, and list those whose latest result is there."""
        waiting = {id(self.env_rets[env_id]): env_id for env_id in env_ids}
        futures = [self.env_rets[env_id] for env_id in waiting.values()]
        with self.timer.measure("wait"):
            ready, _ = wait(futures, 1, self._timeout_s)
        return sorted(waiting[id(future)] for future in ready)

    def _store(self, env_ids: Sequence[int], acted: dict[int, Step]) -> Future[None]:
        """Finish the answers at the policies, now that the outcomes are there, and store the steps."""
        seen = [acted[env_id][0] for env_id in env_ids]
        responses = BatchedData(env_ids, [acted[env_id][1] for env_id in env_ids])
        finished = self._policy_group.postprocess(self._latest(env_ids), responses)
        return self._buffer.adder(env_ids)(*seen, *finished.items)

    def _step_in_flight(self, begun_at: int, rows: int) -> int | None:
        # A step is stored when it is over, so that a reset and the first step cannot be told apart.
        return begun_at + rows + 1 if begun_at + rows else None
