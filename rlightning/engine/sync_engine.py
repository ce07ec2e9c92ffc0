"""Engines whose learner waits for the data, and whose actors wait for the weights."""

from __future__ import annotations

from rlightning.engine.base_engine import BaseEngine
from rlightning.errors import ProtocolError
from rlightning.runtime import Future, gather, wait
from rlightning.types import BatchedData, EnvRet


class SyncEngine(BaseEngine):
    """All envs step together (``engine: syncrl``); the numbers do not depend on where the workers live."""

    def collect(self) -> int:
        env_rets = self._current()
        stored: list[Future[None]] = []
        # Nothing waits in this loop: results and responses go from worker to worker as futures.
        for _ in range(self.config.train.max_rollout_steps):
            responses = self.policy_group.rollout_batch(env_rets)
            stepped = self.env_group.step(responses)
            stored.append(self.buffer.add_batched_data_async(env_rets, responses))
            env_rets = stepped
        gather(stored, self.config.cluster.call_timeout_s)
        self.buffer.truncate_episodes(env_rets)
        self.env_rets = env_rets
        return self.buffer.size()

    def _current(self) -> BatchedData[Future[EnvRet]]:
        if self.env_rets is None:
            raise ProtocolError("the envs were not reset: call start before collect")
        return self.env_rets


class RslEngine(SyncEngine):
    """Each env worker steps on as soon as it is ready (``engine: rsl``); answers are finished on the eval side.

    Fast envs do not wait for slow ones within an epoch. Which requests share a forward pass depends on time, so that
    runs with several remote env workers do not repeat bit for bit.
    """

    def collect(self) -> int:
        steps = self.config.train.max_rollout_steps
        latest: dict[int, Future[EnvRet]] = dict(self._current())
        left = dict.fromkeys(latest, steps)
        stored: list[Future[None]] = []
        while any(left.values()):
            waiting = {id(latest[env_id]): env_id for env_id, count in left.items() if count}
            ready, _ = wait([latest[env_id] for env_id in waiting.values()], 1, self.config.cluster.call_timeout_s)
            env_ids = sorted(waiting[id(future)] for future in ready)
            env_rets = BatchedData(env_ids, [latest[env_id] for env_id in env_ids])
            responses = self.policy_group.rollout_batch(env_rets)
            stepped = self.env_group.step(responses)
            finished = self.policy_group.postprocess(stepped, responses)
            stored.append(self.buffer.add_batched_data_async(env_rets, finished))
            for env_id, future in stepped:
                latest[env_id] = future
                left[env_id] -= 1
        gather(stored, self.config.cluster.call_timeout_s)
        self.env_rets = BatchedData(list(latest), list(latest.values()))
        self.buffer.truncate_episodes(self.env_rets)
        return self.buffer.size()
