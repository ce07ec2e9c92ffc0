"""Engines whose learner waits for the data, and whose actors wait for the weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rlightning.engine.base_engine import BaseEngine
from rlightning.errors import ProtocolError, WorkerError
from rlightning.runtime import Future, gather, wait
from rlightning.types import BatchedData, EnvRet, PolicyResponse


class SyncEngine(BaseEngine):
    """All envs step together (``engine: syncrl``); the numbers do not depend on where the workers live."""

    def collect(self) -> int:
        latest: dict[int, Future[EnvRet]] = dict(self._current())
        left = dict.fromkeys(latest, self.config.train.max_rollout_steps)
        asked = self.env_group.steps_asked
        while True:
            stored: list[Future[None]] = []
            try:
                self._make_steps(latest, left, stored)
                with self._timer.measure("wait"):
                    gather(stored, self.config.cluster.call_timeout_s)
                self.buffer.truncate_episodes(_pick(latest, list(latest)))
            except WorkerError as error:
                latest, left = self._go_on(error, stored, asked)
            else:
                break
        self.env_rets = _pick(latest, list(latest))
        return self.buffer.size()

    def _make_steps(self, latest: dict[int, Future[EnvRet]], left: dict[int, int], stored: list[Future[None]]) -> None:
        """Step every env worker as often as its steps are left.

        Args:
            latest: What each env worker shows; changed to what it shows then.
            left: Steps by env id; may be changed.
            stored: Gets the futures of what goes to the buffer.
        """
        # Nothing waits in this loop: results and responses go from worker to worker as futures.
        for env_ids, steps in stretches(left):
            env_rets = _pick(latest, env_ids)
            for _ in range(steps):
                responses = self.policy_group.rollout_batch(env_rets)
                stepped = self.env_group.step(responses)
                stored.append(self.buffer.add_batched_data_async(env_rets, responses))
                env_rets = stepped
            latest.update(env_rets)

    def _go_on(
        self, error: WorkerError, stored: Sequence[Future[None]], asked: list[int]
    ) -> tuple[dict[int, Future[EnvRet]], dict[int, int]]:
        """Have envs at fault replaced, and cut out of the buffer what would join two episodes.

        The failure went on to all calls that wanted what the env did not give, so that others may have lost steps, too.

        Args:
            error: The failure that was met.
            stored: What was sent to the buffer.
            asked: Steps that each env worker had been asked for before the first row of this rollout; changed to what
                is so of those that go on.

        Returns:
            What each env worker shows now, and the steps that are left.

        Raises:
            WorkerError: If somebody else failed, or an env worker was replaced as often as it may be.
        """
        # Who was well finishes what it was asked for, and is not disturbed in between.
        wait(stored, len(stored), self.config.cluster.call_timeout_s)
        self.env_group.raise_others(stored)
        rows = self.buffer.rows()
        recovery = self.env_group.recover(error, self._steps_in_flight(asked, rows))
        cut = list(recovery.replaced)
        # The open row of the others goes on with what they show now, if that is what came of it.
        cut += [env_id for env_id, steps in recovery.steps.items() if steps - asked[env_id] != rows[env_id]]
        self.buffer.cut(cut)
        kept = self.buffer.rows()
        for env_id, count in kept.items():
            asked[env_id] = recovery.steps.get(env_id, 0) - count
        latest = {**recovery.replaced, **dict(self.env_group.current(list(recovery.steps)))}
        total = self.config.train.max_rollout_steps
        return {env_id: latest[env_id] for env_id in sorted(latest)}, {env_id: total - kept[env_id] for env_id in kept}

    def _steps_in_flight(self, asked: Sequence[int], rows: Mapping[int, int]) -> dict[int, int]:
        """Say in which step each env worker was when the chain of calls broke: that of its open row; 0 is the reset."""
        return {env_id: asked[env_id] + count for env_id, count in rows.items()}

    def _current(self) -> BatchedData[Future[EnvRet]]:
        if self.env_rets is None:
            raise ProtocolError("the envs were not reset: call start before collect")
        return self.env_rets


class RslEngine(SyncEngine):
    """Each env worker steps on as soon as it is ready (``engine: rsl``); answers are finished on the eval side.

    Fast envs do not wait for slow ones within an epoch. Which requests share a forward pass depends on time, so that
    runs with several remote env workers do not repeat bit for bit.
    """

    def _make_steps(self, latest: dict[int, Future[EnvRet]], left: dict[int, int], stored: list[Future[None]]) -> None:
        acted: dict[int, tuple[Future[EnvRet], Future[PolicyResponse]]] = {}
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

    def _steps_in_flight(self, asked: Sequence[int], rows: Mapping[int, int]) -> dict[int, int]:
        # A step is added when it is over, so that there is no telling between a reset and the first step.
        return {env_id: asked[env_id] + count + 1 for env_id, count in rows.items() if asked[env_id] + count}

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


def stretches(left: Mapping[int, int]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Say who steps together, and how often, until everybody has made the steps that are left.

    >>> list(stretches({0: 5, 1: 5, 2: 8}))
    [((0, 1, 2), 5), ((2,), 3)]
    """
    made = 0
    for steps in sorted(set(left.values())):
        if steps > made:
            yield tuple(env_id for env_id, wanted in left.items() if wanted >= steps), steps - made
            made = steps


def _pick(latest: dict[int, Future[EnvRet]], env_ids: Sequence[int]) -> BatchedData[Future[EnvRet]]:
    return BatchedData(env_ids, [latest[env_id] for env_id in env_ids])
