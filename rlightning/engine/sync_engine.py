"""Engines whose learner waits for the data, and whose actors wait for the weights."""

from __future__ import annotations

from collections.abc import Iterable

from rlightning.engine.base_engine import BaseEngine
from rlightning.errors import ProtocolError
from rlightning.runtime import Future, gather, wait
from rlightning.types import BatchedData, EnvRet, PolicyResponse


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
        with self._timer.measure("wait"):
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
        latest: dict[int, Future[EnvRet]] = dict(self._current())
        left = dict.fromkeys(latest, self.config.train.max_rollout_steps)
        acted: dict[int, tuple[Future[EnvRet], Future[PolicyResponse]]] = {}
        stored: list[Future[None]] = []
        while left:
            ready = self._ready(latest, left)
            # Only now that these envs have stepped: a worker's calls run in their order, and one that had to wait for
            # a slow env would hold up those for the quick ones.
            done = [env_id for env_id in ready if env_id in acted]
            if done:
                stored.append(self._finish(done, latest, acted))
            going = [env_id for env_id in ready if left[env_id]]
            for env_id in ready:
                left[env_id] -= 1
                if left[env_id] < 0:
                    del left[env_id]
            if going:
                responses = self.policy_group.rollout_batch(_pick(latest, going))
                stepped = self.env_group.step(responses)
                for env_id, response in responses:
                    acted[env_id] = latest[env_id], response
                latest.update(stepped)
        with self._timer.measure("wait"):
            gather(stored, self.config.cluster.call_timeout_s)
        self.env_rets = _pick(latest, list(latest))
        self.buffer.truncate_episodes(self.env_rets)
        return self.buffer.size()

    def _ready(self, latest: dict[int, Future[EnvRet]], env_ids: Iterable[int]) -> list[int]:
        """Wait for at least one of some env workers; lists those whose latest result is there."""
        waiting = {id(latest[env_id]): env_id for env_id in env_ids}
        futures = [latest[env_id] for env_id in waiting.values()]
        with self._timer.measure("wait"):
            ready, _ = wait(futures, 1, self.config.cluster.call_timeout_s)
        return sorted(waiting[id(future)] for future in ready)

    def _finish(
        self,
        env_ids: list[int],
        latest: dict[int, Future[EnvRet]],
        acted: dict[int, tuple[Future[EnvRet], Future[PolicyResponse]]],
    ) -> Future[None]:
        """Let the policies finish their answers now that the outcomes are there, and store the steps."""
        seen = BatchedData(env_ids, [acted[env_id][0] for env_id in env_ids])
        responses = BatchedData(env_ids, [acted[env_id][1] for env_id in env_ids])
        finished = self.policy_group.postprocess(_pick(latest, env_ids), responses)
        return self.buffer.add_batched_data_async(seen, finished)


def _pick(latest: dict[int, Future[EnvRet]], env_ids: list[int]) -> BatchedData[Future[EnvRet]]:
    return BatchedData(env_ids, [latest[env_id] for env_id in env_ids])
