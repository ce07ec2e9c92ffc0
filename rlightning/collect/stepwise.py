"""Step by step: env workers and eval policies are workers of their own, and every step goes from one to the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlightning.buffer.data_buffer import DataBuffer
from rlightning.collect.collector import Asked, Collector
from rlightning.env.env_group import EnvGroup
from rlightning.policy.policy_group import PolicyGroup
from rlightning.runtime import Future
from rlightning.types import BatchedData, EnvRet


class StepwiseCollector(Collector):
    """All envs step together (``engine: syncrl``); the numbers do not depend on where the workers live.

    Results and responses go from worker to worker as futures, and shards of the buffer assemble the fragments from
    them.

    Args:
        env_group: The envs.
        policy_group: Its eval policies act.
        buffer: Takes the steps.
        timeout_s: Seconds that one call may take; None is no limit.
        options: Passed to ``rollout_batch`` with each request.
    """

    def __init__(
        self,
        env_group: EnvGroup,
        policy_group: PolicyGroup,
        buffer: DataBuffer,
        timeout_s: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(env_group, buffer, timeout_s)
        self._policy_group, self._options = policy_group, options
        self._added = env_group.env_ids, buffer.adder(env_group.env_ids)

    def _ask(self, asked: Asked, steps: int, *, past_buffer: bool = False) -> None:
        self._make_steps(asked.env_ids, steps, asked.calls)
        for env_id in asked.env_ids:
            asked.whole[env_id] = self._buffer.truncate_async(env_id, self.env_rets[env_id], steps)
            if past_buffer:
                asked.fragments[env_id] = self._buffer.take_async(env_id)

    def _make_steps(self, env_ids: Sequence[int], steps: int, calls: list[Future[Any]]) -> None:
        """Step some env workers, without waiting where nothing depends on it.

        Args:
            env_ids: The env workers; ``env_rets`` is what they show afterwards.
            steps: How often.
            calls: Gets the futures of what goes to the buffer.
        """
        rollout_batch, step, add = self._policy_group.rollout_batch, self.env_group.step, self._adder(env_ids)
        env_rets = self._latest(env_ids)
        for _ in range(steps):
            responses = rollout_batch(env_rets, **self._options)
            stepped = step(responses)
            calls.append(add(*env_rets.items, *responses.items))
            env_rets = stepped
        self.env_rets.update(env_rets)

    def _adder(self, env_ids: Sequence[int]) -> Callable[..., Future[None]]:
        """Return what adds a step of some env workers; mostly it is all of them."""
        if env_ids != self._added[0]:
            self._added = tuple(env_ids), self._buffer.adder(env_ids)
        return self._added[1]

    def _latest(self, env_ids: Sequence[int]) -> BatchedData[Future[EnvRet]]:
        return BatchedData(tuple(env_ids), [self.env_rets[env_id] for env_id in env_ids])

    def _actors(self) -> list[tuple[int, ...]]:
        return [self.env_group.env_ids]

    def _go_on(self, env_ids: Sequence[int]) -> None:
        self.env_rets.update(self.env_group.current(env_ids))
