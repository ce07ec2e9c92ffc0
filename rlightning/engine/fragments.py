"""Collecting by fragment: env workers and their eval policy share a process, and one call makes T steps."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from rlightning.engine.sync_engine import SyncEngine
from rlightning.env.env_group import EnvGroup
from rlightning.env.env_worker import EnvWorker
from rlightning.errors import ProtocolError, WorkerError
from rlightning.policy.base_policy import BasePolicy, PolicyRole
from rlightning.runtime import Future, InProcessWorker, WorkerHandle, gather
from rlightning.runtime.in_process import in_process_worker, start_in_process
from rlightning.types import EnvRet, PolicyResponse
from rlightning.types.fragment import Fragment
from rlightning.types.tree import to_numpy


class FragmentCollector:
    """Steps the env workers of one process with the policy of that process; lives there as an in-process worker.

    Args:
        storage_class: Such as ``RolloutBlock``; what is collected lies in one until it is sent.
        num_steps: T.
        env_ids: The env workers.
        keys: Of those as in-process workers.
    """

    def __init__(self, storage_class: type[Any], num_steps: int, env_ids: Sequence[int], keys: Sequence[str]) -> None:
        self._num_steps, self._env_ids, self._keys = num_steps, tuple(env_ids), tuple(keys)
        workers: list[EnvWorker] = [in_process_worker(key) for key in keys]
        self._num_envs = tuple(worker.get_meta().num_envs for worker in workers)
        self._block = storage_class(num_steps, self._num_envs)

    def collect(self, policy: BasePolicy) -> Fragment:
        """Make T steps; requests of all env workers share a forward pass, as they do step by step.

        Raises:
            ProtocolError: If new weights came in force meanwhile, or the policy learns now and acts no more.
        """
        if policy.role_type is not PolicyRole.EVAL:
            raise ProtocolError(
                f"env workers {list(self._env_ids)} live with a policy that has become a train policy: with "
                f"process-colocate only policies without env workers may change their roles"
            )
        block = self._block
        # Asked for anew, since a worker whose env failed is replaced.
        workers: list[EnvWorker] = [in_process_worker(key) for key in self._keys]
        block.clear()
        seen: list[EnvRet] = [worker.current() for worker in workers]
        for _ in range(self._num_steps):
            responses = policy._rollout_batch(*seen, env_ids=self._env_ids)
            stepped = _step_all(workers, responses)
            for place, response in enumerate(responses):
                block.add(place, seen[place], response)
            seen = stepped
        for place, env_ret in enumerate(seen):
            block.truncate(place, env_ret)
        oldest, newest = block.versions()
        if oldest != newest:
            raise ProtocolError(f"weights of the versions {oldest} to {newest} acted in one fragment")
        # Views of the block: whoever takes the fragment copies them before the next one is collected.
        fields: dict[str, Any] = to_numpy(block.sample().to_dict())
        return Fragment(self._env_ids, self._num_envs, newest, fields)


class FragmentGroup:
    """The collectors of all processes, seen from the controller.

    Args:
        env_group: Env workers that live in the processes of eval policies.
        storage_class: See ``FragmentCollector``.
        num_steps: T.
        timeout_s: Seconds that making them may take.
    """

    def __init__(
        self, env_group: EnvGroup, storage_class: type[Any], num_steps: int, timeout_s: float | None = None
    ) -> None:
        held: dict[str, tuple[WorkerHandle, list[int], list[str]]] = {}
        for env_id, worker in zip(env_group.env_ids, env_group.workers, strict=True):
            if not isinstance(worker, InProcessWorker):
                raise ProtocolError(f"env worker {env_id} does not live in the process of an eval policy")
            _, env_ids, keys = held.setdefault(worker.host.name, (worker.host, [], []))
            env_ids.append(env_id)
            keys.append(worker.key)
        self._collectors: list[tuple[InProcessWorker, tuple[int, ...]]] = []
        started = []
        for host, env_ids, keys in held.values():
            args = (storage_class, num_steps, env_ids, keys)
            collector, built = start_in_process(host, FragmentCollector, args, f"fragments of {host.name}")
            self._collectors.append((collector, tuple(env_ids)))
            started.append(built)
        gather(started, timeout_s)

    def collect(
        self, missing: Container[tuple[int, ...]] | None = None
    ) -> list[tuple[tuple[int, ...], Future[Fragment]]]:
        """Have processes make their steps at the same time.

        Args:
            missing: Env ids of the processes that do; None means all.

        Returns:
            Env ids of each process, and the future of their fragment.
        """
        return [
            (env_ids, collector.host.run(_collect, collector.key, method="collect"))
            for collector, env_ids in self._collectors
            if missing is None or env_ids in missing
        ]


def _step_all(workers: Sequence[EnvWorker], responses: Sequence[PolicyResponse]) -> list[EnvRet]:
    """Step all workers, also those after one that fails: a policy has answered all, and may keep state of that."""
    stepped, failure = [], None
    for worker, response in zip(workers, responses, strict=True):
        try:
            stepped.append(worker.step(response))
        except WorkerError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return stepped


def _collect(policy: BasePolicy, key: str) -> Fragment:
    fragment: Fragment = in_process_worker(key).collect(policy)
    return fragment


class FragmentEngine(SyncEngine):
    """The synchronous engine where each process collects its fragment by itself; the numbers are the same.

    What the envs show now stays in their processes: ``env_rets`` just tells that they were reset.
    """

    def __init__(self, *args: Any, fragments: FragmentGroup, **kwargs: Any) -> None:
        """Take the parts, and the collectors; see ``BaseEngine``."""
        super().__init__(*args, **kwargs)
        self._fragments = fragments
        self._are_reset = False

    def collect(self) -> int:
        first = self._current()
        if not self._are_reset:
            try:
                gather(first.items, self.config.cluster.call_timeout_s)
            except WorkerError as error:
                self.env_group.raise_others(first.items)
                self._replace(error)
            self._are_reset = True
        missing: list[tuple[int, ...]] | None = None
        while missing is None or missing:
            collected = self._fragments.collect(missing)
            stored = [(env_ids, self.buffer.add_fragment_async(env_ids, fragment)) for env_ids, fragment in collected]
            with self._timer.measure("wait"):
                missing = self._lost(stored)
        return self.buffer.size()

    def _lost(self, stored: Sequence[tuple[tuple[int, ...], Future[None]]]) -> list[tuple[int, ...]]:
        """Wait for fragments; lists those in which an env failed, which is replaced by then."""
        lost, failure = [], None
        for env_ids, future in stored:
            try:
                future.result(self.config.cluster.call_timeout_s)
            except WorkerError as error:
                lost.append(env_ids)
                failure = failure or error
        if failure is not None:
            self.env_group.raise_others(future for _, future in stored)
            self._replace(failure)
        return lost

    def _replace(self, failure: WorkerError) -> None:
        """Have envs at fault replaced until all show something."""
        while True:
            recovery = self.env_group.recover(failure)
            try:
                # A new env may fail at once.
                gather(recovery.replaced.values(), self.config.cluster.call_timeout_s)
            except WorkerError as error:
                failure = error
            else:
                return
