"""Which eval policy of a group answers which env worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from operator import index
from typing import Any, SupportsIndex

from rlightning.config import PolicyConfig
from rlightning.errors import ProtocolError
from rlightning.policy.base_policy import BasePolicy
from rlightning.policy.members import Members
from rlightning.policy.router import LoadRouter, NodeAffinityRouter, Router, SimpleRouter, stick
from rlightning.runtime import Future, WorkerHandle, wait

ASYNC_CHANNELS = 64
"""Most channels that a policy with async rollouts needs for requests; more env workers than that share them."""
_MOST_ROUTES = 1024
"""Choices that are kept; which env workers ask together may differ from step to step."""


def request_channel(number: int) -> str:
    """Name the channel by which the requests of an env worker come: one that is slow holds up no other one."""
    return f"rollout[{number % ASYNC_CHANNELS}]"


def _keeps_state(policy: BasePolicy) -> bool:
    return policy.is_stateful


class GroupRouting:
    """Applies a router to the eval policies of a group.

    It owns the router, the choices that are kept, who answered each env worker last, and the requests in flight.

    Attributes:
        is_async: Whether env workers go by load, one by one, and not by a fixed choice.
    """

    def __init__(self, members: Members, config: PolicyConfig) -> None:
        self._members = members
        self.is_async = config.rollout_mode == "async"
        self._by_node = config.router_type == "node_affinity" and not self.is_async
        self._env_nodes: tuple[str, ...] = ()
        self._router: Router = LoadRouter() if self.is_async else SimpleRouter()
        self._is_stateful: bool | None = None  # None: not asked yet
        self._numbers: dict[Hashable, int] = {}  # of env workers whose ids are no integers
        self._routes: dict[tuple[Hashable, ...], list[tuple[WorkerHandle, list[int]]]] = {}
        self._homes: dict[Hashable, WorkerHandle] = {}  # the policy that answered each env worker last
        self._in_flight: list[tuple[WorkerHandle, Future[Any]]] = []

    def place_envs(self, env_nodes: Sequence[str]) -> None:
        """Take note of the node of each env worker, by env id; ``renew`` comes next."""
        self._env_nodes = tuple(env_nodes)

    def renew(self) -> None:
        """Take note that the eval policies or the nodes are others."""
        actors = self._members.actors
        if self._by_node and self._env_nodes and actors:
            self._router = NodeAffinityRouter(self._env_nodes, [handle.info().node for handle in actors])
        self._routes.clear()
        self._is_stateful = None
        self._homes = {env_id: handle for env_id, handle in self._homes.items() if handle in actors}

    def forget(self) -> None:
        """Let go of all policies."""
        self._routes.clear()
        self._homes.clear()
        self._in_flight.clear()

    def route(self, env_ids: tuple[Hashable, ...]) -> list[tuple[WorkerHandle, list[int]]]:
        """Say which policy answers which places of a batch; a choice is kept until the group changes."""
        routes = self._routes.get(env_ids)
        if routes is None:
            chosen = self._choose(env_ids, [0] * len(self._members.actors))
            places: dict[int, list[int]] = {}
            for place, index in enumerate(chosen):
                places.setdefault(index, []).append(place)
            if len(self._routes) >= _MOST_ROUTES:
                self._routes.clear()
            routes = self._routes[env_ids] = [(self._members.actors[index], held) for index, held in places.items()]
        return routes

    def spread(self, env_ids: Sequence[Hashable]) -> list[WorkerHandle]:
        """Say which policy answers each env worker, by the requests in flight; ``started`` is told of them."""
        return [self._members.actors[index] for index in self._choose(env_ids, self._loads())]

    def channel(self, env_id: Hashable) -> str:
        """Name the channel by which the requests of an env worker come."""
        number = self._number(env_id)
        return request_channel(number if number >= 0 else ~number)

    def settle(self, timeout_s: float | None) -> None:
        """Wait until no request is in flight; what one of them failed of is raised where its answer is wanted."""
        in_flight = [future for _, future in self._in_flight]
        wait(in_flight, len(in_flight), timeout_s)
        self._in_flight.clear()

    def started(self, handle: WorkerHandle, answer: Future[Any]) -> None:
        """Take note of a request in flight."""
        self._in_flight.append((handle, answer))

    def who_answered(self, env_ids: Sequence[Hashable]) -> list[WorkerHandle]:
        """Say who answered each env worker last, or whom to take instead of one that is gone."""
        gone = [env_id for env_id in env_ids if env_id not in self._homes]
        if gone:
            self._choose(gone, self._loads())
        return [self._homes[env_id] for env_id in env_ids]

    def homes(self) -> list[list[int]]:
        """List env id and index of the policy that keeps its state; empty where policies keep none."""
        if not self._is_stateful:
            return []
        indices = {handle: place for place, handle in enumerate(self._members.actors)}
        homes = self._homes.items()
        return [[index(env_id), indices[handle]] for env_id, handle in homes if isinstance(env_id, SupportsIndex)]

    def restore_homes(self, homes: Sequence[Sequence[int]]) -> None:
        """Let env workers go on with the policies of ``homes``."""
        self._routes.clear()
        self._homes = {env_id: self._members.actors[place] for env_id, place in homes}

    def _choose(self, env_ids: Sequence[Hashable], loads: Sequence[int]) -> list[int]:
        """Say which policy answers each env worker, by index, and remember it."""
        actors = self._members.actors
        if not actors:
            raise ProtocolError("the group has no eval policy to roll out: give one to PolicyGroup, or push one")
        if self._is_stateful is None:
            self._is_stateful = any(self._members.run(self._members.policies(actors[:1]), _keeps_state))
        numbers = list(map(self._number, env_ids))
        if self._is_stateful:
            indices = {handle: place for place, handle in enumerate(actors)}
            homes = {self._number(env_id): indices[handle] for env_id, handle in self._homes.items()}
            chosen = stick(self._router, numbers, loads, homes)
        else:
            chosen = self._router.select(numbers, loads)
        self._homes.update((env_id, actors[index]) for env_id, index in zip(env_ids, chosen, strict=True))
        return chosen

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
