"""The requests of a group: which eval policy answers which env worker, and by which call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from operator import index
from typing import Any, SupportsIndex

from rlightning.config import PolicyConfig
from rlightning.errors import ProtocolError
from rlightning.policy.base_policy import BasePolicy
from rlightning.policy.group_weights import GroupWeights
from rlightning.policy.members import Members
from rlightning.policy.router import LoadRouter, NodeAffinityRouter, Router, SimpleRouter, stick
from rlightning.runtime import Future, WorkerHandle, wait
from rlightning.types import BatchedData, PolicyResponse

ASYNC_CHANNELS = 64
"""Most channels that a policy with async rollouts needs for requests; more env workers than that share them."""
_MOST_ROUTES = 1024
"""Choices that are kept; which env workers ask together may differ from step to step."""


def request_channel(number: int) -> str:
    """Name the channel by which the requests of an env worker come: one that is slow holds up no other one."""
    return f"rollout[{number % ASYNC_CHANNELS}]"


class GroupRouting:
    """Sends requests to the eval policies of a group.

    It owns the router, the choices that are kept, the policy that answered each env worker last, and the requests in
    flight. With async rollouts, env workers go by load, one by one, and not by a fixed choice.
    """

    def __init__(self, members: Members, config: PolicyConfig, weights: GroupWeights) -> None:
        """Choose a router.

        Args:
            members: The policies of the group.
            config: Has ``router_type`` and ``rollout_mode``.
            weights: Knows which version a request has to wait for: new weights and requests come by different channels.
        """
        self._members, self._weights = members, weights
        self._is_async = config.is_async
        self._by_node = config.prefers_own_node
        self._env_nodes: tuple[str, ...] = ()
        self._router: Router = LoadRouter() if self._is_async else SimpleRouter()
        self._is_stateful: bool | None = None  # None: not asked yet
        self._numbers: dict[Hashable, int] = {}  # of env workers whose ids are no integers
        self._routes: dict[tuple[Hashable, ...], list[tuple[WorkerHandle, list[int]]]] = {}
        self._homes: dict[Hashable, WorkerHandle] = {}  # the policy that answered each env worker last
        self._in_flight: list[tuple[WorkerHandle, Future[Any]]] = []

    # Members

    def place_envs(self, env_nodes: Sequence[str]) -> None:
        """Set the node of each env worker, by env id."""
        self._env_nodes = tuple(env_nodes)
        self.renew()

    def renew(self) -> None:
        """Choose anew, since the eval policies or the nodes are others."""
        actors = self._members.actors
        if self._by_node and self._env_nodes and actors:
            self._router = NodeAffinityRouter(self._env_nodes, [handle.info().node for handle in actors])
        self._routes.clear()
        self._is_stateful = None
        self._homes = {env_id: handle for env_id, handle in self._homes.items() if handle in actors}

    def forget(self) -> None:
        """Drop all references to policies."""
        self._routes.clear()
        self._homes.clear()
        self._in_flight.clear()

    def homes(self) -> list[list[int]]:
        """List env id and index of the policy that keeps its state; empty where policies keep none."""
        if not self._is_stateful:
            return []
        indices = {handle: i for i, handle in enumerate(self._members.actors)}
        homes = self._homes.items()
        return [[index(env_id), indices[handle]] for env_id, handle in homes if isinstance(env_id, SupportsIndex)]

    def restore_homes(self, homes: Sequence[Sequence[int]]) -> None:
        """Restore the policy of each env worker from ``homes``."""
        self._routes.clear()
        self._homes = {env_id: self._members.actors[i] for env_id, i in homes}

    # Requests

    def rollout(self, asked: BatchedData[Any], options: Mapping[str, Any]) -> BatchedData[Future[PolicyResponse]]:
        """Ask for actions; see ``PolicyGroup.rollout_batch``.

        Args:
            asked: One result, or future of one, per env worker.
            options: Further arguments of each request.
        """
        env_ids, items = tuple(asked.env_ids), asked.items
        if self._is_async:
            return BatchedData(asked.env_ids, self._ask_each(env_ids, items, options))
        routes = self._route(env_ids)
        if len(routes) == 1:
            return BatchedData(asked.env_ids, self._ask(routes[0][0], env_ids, items, options))
        answers: list[Any] = [None] * len(items)
        for handle, rows in routes:
            given = self._ask(handle, [env_ids[row] for row in rows], [items[row] for row in rows], options)
            for row, answer in zip(rows, given, strict=True):
                answers[row] = answer
        return BatchedData(asked.env_ids, answers)

    def postprocess(
        self, env_ids: Sequence[Hashable], env_rets: Sequence[Any], responses: Sequence[Any]
    ) -> list[Future[Any]]:
        """Finish answers, each on the policy that gave it; see ``PolicyGroup.postprocess``."""
        finish = BasePolicy._postprocess
        if self._is_async:
            asked = zip(self._answered(env_ids), env_ids, env_rets, responses, strict=True)
            return [handle.call_beside(self._channel(env_id), finish, *pair) for handle, env_id, *pair in asked]
        answers: list[Any] = [None] * len(env_ids)
        for handle, rows in self._route(tuple(env_ids)):
            for row in rows:
                answers[row] = handle.call(finish, env_rets[row], responses[row])
        return answers

    def settle(self) -> None:
        """Wait until no request is in flight; a failure is raised where its answer is wanted."""
        in_flight = [future for _, future in self._in_flight]
        wait(in_flight, len(in_flight), self._members.timeout_s)
        self._in_flight.clear()

    def _ask(
        self, handle: WorkerHandle, env_ids: Sequence[Hashable], env_rets: Sequence[Any], options: Mapping[str, Any]
    ) -> list[Future[PolicyResponse]]:
        """Ask one policy by one call; a test double by one for each env worker, since it knows nothing else."""
        if not self._members.methods[handle].is_policy:
            return [handle.call(BasePolicy._rollout, env_ret, **options) for env_ret in env_rets]
        named = {**options, "env_ids": env_ids}
        if self._weights.pending:
            named |= self._needed(handle)
        if len(env_rets) == 1:
            return [handle.call(BasePolicy._rollout, env_rets[0], **named)]
        return handle.call_split(len(env_rets), BasePolicy._rollout_batch, *env_rets, **named)

    def _ask_each(
        self, env_ids: Sequence[Hashable], env_rets: Sequence[Any], options: Mapping[str, Any]
    ) -> list[Future[PolicyResponse]]:
        """Make a request of its own for each env worker, beside all others."""
        answers = []
        for env_id, env_ret, i in zip(env_ids, env_rets, self._choose(env_ids, self._loads()), strict=True):
            handle = self._members.actors[i]
            methods = self._members.methods[handle]
            named = {**options, "env_ids": (env_id,)} | self._needed(handle) if methods.is_policy else options
            answers.append(handle.call_beside(self._channel(env_id), methods.rollout_async, env_ret, **named))
            self._in_flight.append((handle, answers[-1]))
        return answers

    def _needed(self, handle: WorkerHandle) -> dict[str, int]:
        """Return the version that a request to a policy waits for, as an option; nothing where it is in force."""
        version = self._weights.pending.get(handle)
        return {} if version is None else {"at_least": version}

    # Choices

    def _route(self, env_ids: tuple[Hashable, ...]) -> list[tuple[WorkerHandle, list[int]]]:
        """Return the policies that answer a batch, each with the indices of its items; kept until the group changes."""
        routes = self._routes.get(env_ids)
        if routes is None:
            rows: dict[int, list[int]] = {}
            for row, i in enumerate(self._choose(env_ids, [0] * len(self._members.actors))):
                rows.setdefault(i, []).append(row)
            if len(self._routes) >= _MOST_ROUTES:
                self._routes.clear()
            routes = self._routes[env_ids] = [(self._members.actors[i], held) for i, held in rows.items()]
        return routes

    def _answered(self, env_ids: Sequence[Hashable]) -> list[WorkerHandle]:
        """Return the policies that answered each env worker last, or others instead of those that are gone."""
        if gone := [env_id for env_id in env_ids if env_id not in self._homes]:
            self._choose(gone, self._loads())
        return [self._homes[env_id] for env_id in env_ids]

    def _choose(self, env_ids: Sequence[Hashable], loads: Sequence[int]) -> list[int]:
        """Choose a policy for each env worker, by index, and remember it."""
        actors = self._members.actors
        if not actors:
            raise ProtocolError("the group has no eval policy to roll out: give one to PolicyGroup, or push one")
        if self._is_stateful is None:
            self._is_stateful = any(self._members.run(self._members.policies(actors[:1]), _keeps_state))
        numbers = list(map(self._number, env_ids))
        if self._is_stateful:
            indices = {handle: i for i, handle in enumerate(actors)}
            homes = {self._number(env_id): indices[handle] for env_id, handle in self._homes.items()}
            chosen = stick(self._router, numbers, loads, homes)
        else:
            chosen = self._router.select(numbers, loads)
        self._homes.update((env_id, actors[i]) for env_id, i in zip(env_ids, chosen, strict=True))
        return chosen

    def _channel(self, env_id: Hashable) -> str:
        number = self._number(env_id)
        return request_channel(number if number >= 0 else ~number)

    def _number(self, env_id: Hashable) -> int:
        """Number an env worker: an integer is its own number, other ids are numbered -1, -2, ... as they come."""
        if isinstance(env_id, SupportsIndex):
            return index(env_id)
        return self._numbers.setdefault(env_id, -1 - len(self._numbers))

    def _loads(self) -> list[int]:
        """Count the requests in flight at each eval policy, by what has not come back."""
        _, pending = wait([future for _, future in self._in_flight], at_least=0)
        missing = set(map(id, pending))
        self._in_flight = [(handle, future) for handle, future in self._in_flight if id(future) in missing]
        counts = Counter(handle for handle, _ in self._in_flight)
        return [counts[handle] for handle in self._members.actors]


def _keeps_state(policy: BasePolicy) -> bool:
    return policy.is_stateful
