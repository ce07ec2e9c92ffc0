"""By fragment: env workers and their eval policy share a process, and one call makes all steps of a fragment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rlightning.buffer.data_buffer import DataBuffer
from rlightning.buffer.storage import Dropped
from rlightning.collect.collector import Asked, Collector
from rlightning.env.env_group import EnvGroup
from rlightning.env.env_worker import EnvWorker
from rlightning.errors import ProtocolError, WorkerDied, WorkerError
from rlightning.policy.base_policy import BasePolicy, PolicyRole
from rlightning.runtime import Future, InProcessWorker, WorkerHandle, as_handle, gather
from rlightning.runtime.in_process import in_process_worker, start_in_process
from rlightning.types import EnvRet, PolicyResponse
from rlightning.types.fragment import Fragment


class FragmentWorker:
    """Steps the env workers of one process with the policy of that process, in which it lives.

    Args:
        storage_class: Such as ``RolloutBlock``; assembles the fragments.
        env_ids: The env workers.
        keys: Of those as in-process workers.
    """

    def __init__(self, storage_class: type[Any], env_ids: Sequence[int], keys: Sequence[str]) -> None:
        self._storage_class, self._env_ids, self._keys = storage_class, tuple(env_ids), tuple(keys)
        self._block: Any = None

    def collect(self, policy: BasePolicy, steps: int) -> None:
        """Make T steps; requests of all env workers share a forward pass, as they do step by step.

        Raises:
            ProtocolError: If the policy learns now and acts no more.
        """
        if policy.role_type is not PolicyRole.EVAL:
            raise ProtocolError(
                f"env workers {list(self._env_ids)} live with a policy that has become a train policy: with "
                f"process-colocate only policies without env workers may change their roles"
            )
        # Found anew, since a worker whose env failed is replaced.
        workers: list[EnvWorker] = [in_process_worker(key) for key in self._keys]
        if self._block is None or self._block.capacity != steps:
            num_envs = [worker.get_meta().num_envs for worker in workers]
            self._block = self._storage_class(steps, num_envs, self._env_ids)
        seen: list[EnvRet] = [worker.current() for worker in workers]
        for _ in range(steps):
            responses = policy._rollout_batch(*seen, env_ids=self._env_ids)
            stepped = _step_all(workers, responses)
            self._block.add_all(self._env_ids, *seen, *responses)
            seen = stepped
        for env_id, env_ret in zip(self._env_ids, seen, strict=True):
            self._block.truncate(env_id, env_ret)

    def take(self, env_id: int, collected: None) -> Fragment:
        """Return the fragment of one of the env workers, after the call that collected it."""
        fragment: Fragment = self._block.take(env_id)
        return fragment

    def drop(self) -> dict[int, Dropped]:
        """Forget what there is of fragments that are not whole, and return what that was."""
        dropped: dict[int, Dropped] = {} if self._block is None else self._block.drop(self._env_ids)
        return dropped


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


@dataclass(frozen=True, slots=True)
class _Actor:
    """The process of an eval policy, its ``FragmentWorker``, and the env workers there."""

    host: WorkerHandle
    key: str
    fragments: WorkerHandle
    env_ids: tuple[int, ...]
    last: list[Future[None]] = field(default_factory=list)
    """The call that collects the fragments in front of the next ones, where there are such."""


class FragmentCollector(Collector):
    """Each process collects its fragments by itself (``process-colocate``); the numbers are those of single steps.

    What the envs show stays in their processes.

    Args:
        env_group: Env workers that live in the processes of eval policies.
        buffer: Takes the fragments.
        storage_class: See ``FragmentWorker``.
        timeout_s: Seconds that one call may take; None is no limit.

    Raises:
        ProtocolError: If an env worker has a process of its own.
    """

    def __init__(
        self, env_group: EnvGroup, buffer: DataBuffer, storage_class: type[Any], timeout_s: float | None = None
    ) -> None:
        super().__init__(env_group, buffer, timeout_s)
        held: dict[str, list[tuple[int, InProcessWorker]]] = {}
        for env_id, worker in zip(env_group.env_ids, env_group.workers, strict=True):
            if not isinstance(worker, InProcessWorker):
                raise ProtocolError(f"env worker {env_id} does not live in the process of an eval policy")
            held.setdefault(worker.host.name, []).append((env_id, worker))
        self._processes: list[_Actor] = []
        started = []
        for name, members in held.items():
            env_ids, workers = zip(*members, strict=True)
            args = (storage_class, env_ids, [worker.key for worker in workers])
            worker, built = start_in_process(workers[0].host, FragmentWorker, args, f"fragments of {name}")
            self._processes.append(_Actor(worker.host, worker.key, as_handle(worker, name), env_ids))
            started.append(built)
        gather(started, timeout_s)

    def _ask(self, asked: Asked, steps: int, *, past_buffer: bool = False) -> None:
        for actor in self._processes:
            if actor.env_ids[0] not in asked.env_ids:  # those of a process share their fate
                continue
            # If what these fragments are to continue failed, the call fails alike.
            before = [self.env_rets.pop(env_id) for env_id in actor.env_ids if env_id in self.env_rets]
            made = actor.host.run(_collect, actor.key, steps, *before, *actor.last, method="collect")
            actor.last[:] = [made]
            asked.calls.append(made)
            for env_id in actor.env_ids:
                fragment = actor.fragments.call(FragmentWorker.take, env_id, made)
                if past_buffer:
                    asked.whole[env_id], asked.fragments[env_id] = made, fragment
                else:
                    asked.whole[env_id] = self._buffer.add_fragment_async(env_id, fragment)

    def _actors(self) -> list[tuple[int, ...]]:
        return [actor.env_ids for actor in self._processes]

    def _drop(self, env_ids: Sequence[int]) -> dict[int, Dropped]:
        actors = [actor for actor in self._processes if actor.env_ids[0] in env_ids]
        for actor in actors:
            actor.last.clear()
        dropped = [actor.fragments.call(FragmentWorker.drop) for actor in actors]
        return {env_id: lost for held in gather(dropped, self._timeout_s) for env_id, lost in held.items()}

    def _go_on(self, env_ids: Sequence[int]) -> None:
        """Nothing to do: what they show is in their process."""

    def _recover(self, error: WorkerError, in_flight: Sequence[Asked]) -> tuple[int, ...]:
        try:
            return super()._recover(error, in_flight)
        except WorkerDied as died:
            if died.worker in {actor.host.name for actor in self._processes}:
                died.add_note(
                    "env workers and their eval policy shared this process; with "
                    "cluster.placement.env_strategy=default an env that ends its process is replaced"
                )
            raise


def _collect(policy: BasePolicy, key: str, steps: int, *before: EnvRet | None) -> None:
    in_process_worker(key).collect(policy, steps)
