"""What all ways to collect share: whole fragments, what the envs show, and the one way back from a fault."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlightning.buffer.data_buffer import DataBuffer
from rlightning.buffer.storage import Dropped
from rlightning.collect.rate_limiter import RateLimiter
from rlightning.env.env_group import EnvGroup
from rlightning.env.faults import FaultCounts
from rlightning.errors import ProtocolError, WorkerError
from rlightning.observability.timer import Timer
from rlightning.runtime import Future, gather, wait
from rlightning.types import EnvRet
from rlightning.types.fragment import Fragment

BESIDE = "beside"
"""Why a fragment was dropped whose own env was well: it shared a request or a call with one that was not."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What came in: the transitions of both attributes together.

    Attributes:
        transitions: Valid transitions of whole fragments, now in the buffer.
        dropped: Valid transitions of fragments that were dropped, by what broke them: a ``FaultKind``, or "beside".
    """

    transitions: int
    dropped: dict[str, int]


@dataclass(slots=True, eq=False)
class Asked:
    """One fragment of each of some env workers, on its way.

    Attributes:
        env_ids: The env workers.
        calls: Calls that must succeed before the fragments are whole.
        whole: Env id -> a future that is there when the fragment is whole; if that is broken it fails, or is False.
        fragments: Env id -> the fragment, where it does not go into the buffer.
    """

    env_ids: tuple[int, ...]
    calls: list[Future[Any]] = field(default_factory=list)
    whole: dict[int, Future[Any]] = field(default_factory=dict)
    fragments: dict[int, Future[Fragment]] = field(default_factory=dict)

    def futures(self) -> list[Future[Any]]:
        """List all that must succeed."""
        return [*self.calls, *self.whole.values()]

    def is_whole(self, env_id: int) -> bool:
        """Whether the fragment of an env worker is whole; waits until that is known."""
        try:
            return env_id in self.whole and self.whole[env_id].result() is not False
        except WorkerError:
            return False


class Collector(ABC):
    """Collects fragments of T steps with all envs of a group.

    A fragment that the fault of an env breaks is dropped whole, counted, and collected again; the env is replaced.

    Args:
        env_group: The envs.
        buffer: Where fragments go.
        timeout_s: Seconds that one call may take; None is no limit.

    Attributes:
        env_rets: What each env shows now, by env id, where the collector has to pass it on.
        dropped: Transitions of dropped fragments since the start of the run, by what broke them.
        timer: Measures "wait": the time in which there is nothing to ask for.
    """

    def __init__(self, env_group: EnvGroup, buffer: DataBuffer, timeout_s: float | None = None) -> None:
        self.env_group, self._buffer, self._timeout_s = env_group, buffer, timeout_s
        self.env_rets: dict[int, Future[EnvRet]] = {}
        self.dropped: Counter[str] = Counter()
        self.timer = Timer()
        self.is_reset = False
        # Steps that each worker had made before the oldest fragment that is on its way.
        self._begun_at = dict.fromkeys(env_group.env_ids, 0)

    def reset(self, reseed: bool = False) -> None:
        """Start new episodes everywhere; ``reseed`` plays those of the first reset again."""
        self.env_rets = dict(self.env_group.reset(reseed))
        self.is_reset = True

    def collect(self, steps: int) -> Collected:
        """Bring a whole fragment of each env worker into the buffer.

        Args:
            steps: T, the length of each fragment.

        Raises:
            ProtocolError: If the envs were not reset.
            WorkerError: If a policy or the buffer failed, or an env that was replaced as often as it may be.
        """
        self._require_reset()
        before, missing = self.dropped.copy(), self.env_group.env_ids
        while missing:
            asked = Asked(missing)
            try:
                self._ask(asked, steps)
                self._finish(asked, steps)
                missing = ()
            except WorkerError as error:
                missing = self._recover(error, [asked])
        return Collected(self._buffer.size(), dict(self.dropped - before))

    def stream(self, steps: int, limit: RateLimiter) -> Iterator[Future[Fragment]]:
        """Yield fragments as they come, without end; they go past the buffer, and their futures are unopened.

        While the caller works, the envs go on until the limit is reached. What is in flight when the caller stops is
        lost. No engine of this version reads a stream.

        Args:
            steps: T, the length of each fragment.
            limit: Bounds what is in flight.

        Raises:
            ProtocolError, WorkerError: As ``collect``.
        """
        self._require_reset()
        in_flight: list[Asked] = []  # the oldest first, so that no actor is served twice before another one
        ready: list[Future[Fragment]] = []
        while True:
            over: list[Asked] = []
            try:
                self._refill(in_flight, limit, steps)
                if not ready:
                    over = [self._first_ready(in_flight)]
                    self._finish(over[0], steps)
            except WorkerError as error:
                broken = set(self._recover(error, in_flight))
                over = [asked for asked in in_flight if broken.intersection(asked.env_ids)]
            for asked in over:
                in_flight.remove(asked)
                limit.ended(asked.env_ids)
                ready += [fragment for env_id, fragment in asked.fragments.items() if asked.is_whole(env_id)]
            if not over:
                yield from ready
                ready = []

    def _refill(self, in_flight: list[Asked], limit: RateLimiter, steps: int) -> None:
        """Ask for as many fragments as the limit admits."""
        for env_ids in self._actors():
            while limit.admits(env_ids):
                in_flight.append(Asked(env_ids))
                limit.started(env_ids)
                self._ask(in_flight[-1], steps, past_buffer=True)

    def _first_ready(self, in_flight: Sequence[Asked]) -> Asked:
        # The calls of an actor run in their order, so that its last one is ready when all are.
        last = [[*asked.whole.values()][-1] for asked in in_flight]
        with self.timer.measure("wait"):
            ready, _ = wait(last, 1, self._timeout_s)
        return in_flight[[id(future) for future in last].index(id(ready[0]))]

    def _finish(self, asked: Asked, steps: int) -> None:
        """Wait until fragments are whole."""
        with self.timer.measure("wait"):
            gather(asked.futures(), self._timeout_s)
        for env_id in asked.env_ids:
            self._begun_at[env_id] += steps

    def _require_reset(self) -> None:
        if not self.is_reset:
            raise ProtocolError("the envs were not reset: call start before collect")

    # A way to collect

    @abstractmethod
    def _ask(self, asked: Asked, steps: int, *, past_buffer: bool = False) -> None:
        """Ask for a fragment of each of some env workers, without waiting for it where nothing depends on it.

        Args:
            asked: Gets the futures.
            steps: T.
            past_buffer: Hand the fragments out; else they go into the buffer.
        """

    @abstractmethod
    def _actors(self) -> list[tuple[int, ...]]:
        """List the env workers by those that are asked together."""

    def _drop(self, env_ids: Sequence[int]) -> dict[int, Dropped]:
        """Forget what there is of fragments that are not whole, and return what that was."""
        return self._buffer.drop(env_ids)

    @abstractmethod
    def _go_on(self, env_ids: Sequence[int]) -> None:
        """Begin the next fragments of envs that are well where they are now."""

    def _step_in_flight(self, begun_at: int, rows: int) -> int | None:
        """Return the step in which a worker was, of which so many rows of a fragment have come; 0 is the reset."""
        return begun_at + rows

    # Faults

    def _recover(self, error: WorkerError, in_flight: Sequence[Asked]) -> tuple[int, ...]:
        """Drop and count the fragments that a fault broke, and replace the envs at fault.

        A failure goes on to all calls that want what an env did not give. So fragments of other envs are broken, too.

        Returns:
            The env workers whose fragments are broken.

        Raises:
            WorkerError: If something else than an env failed, or an env that was replaced as often as it may be.
        """
        futures = [future for asked in in_flight for future in asked.futures()]
        # Envs that are well finish what they were asked for, and are not disturbed in between.
        wait(futures, len(futures), self._timeout_s)
        self.env_group.raise_others(futures)
        broken = {env_id for asked in in_flight for env_id in asked.env_ids if not asked.is_whole(env_id)}
        lost = self._drop(sorted(broken))
        steps = {env_id: self._step_in_flight(self._begun_at[env_id], held.rows) for env_id, held in lost.items()}
        recovery = self.env_group.recover(error, steps)
        for env_id, held in lost.items():
            if held.transitions:
                self.dropped[recovery.faults.get(env_id, BESIDE)] += held.transitions
        self._begun_at |= recovery.steps | dict.fromkeys(recovery.replaced, 0)
        self.env_rets |= recovery.replaced
        self._go_on(sorted(broken - recovery.replaced.keys()))
        return tuple(sorted(broken))

    # State

    def get_state(self) -> dict[str, Any]:
        """Describe the envs and what happened to them, for a checkpoint."""
        faults = self.env_group.faults
        return {
            "env": self.env_group.get_state(),
            "faults": {"restarts": faults.restarts, "generations": faults.generations, "kinds": faults.kinds},
            "dropped": dict(self.dropped),
        }

    def set_state(self, state: dict[str, Any], generation: int) -> list[int]:
        """Go on from a state of ``get_state``.

        Returns:
            The env workers whose state could not be stored: they start episodes of ``generation`` or a later one.
        """
        if "faults" in state:  # earlier checkpoints had none, and nothing that was dropped
            self.env_group.faults = FaultCounts(**state["faults"])
        self.dropped = Counter(state.get("dropped", {}))
        self.env_rets = dict(self.env_group.set_state(state["env"], generation))
        gather(self.env_rets.values(), self._timeout_s)
        self.is_reset = True
        return [env_id for env_id, stored in enumerate(state["env"]) if stored is None]
