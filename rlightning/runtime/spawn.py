"""Start a worker here or in a process of its own, and end it again."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

from rlightning.errors import CallTimeout, PlacementError, WorkerError
from rlightning.runtime.future import gather
from rlightning.runtime.generators import seed_global_generators
from rlightning.runtime.handle import as_handle
from rlightning.runtime.in_process import InProcessWorker, rebuild_in_process, start_in_process
from rlightning.runtime.location import own_location


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker to start.

    Attributes:
        cls: Its class.
        args: Arguments of the constructor.
        name: Role and index, such as ``env[3]``.
        remote: Whether it is a process of its own.
        num_cpus: CPUs reserved for it where it is remote.
        num_gpus: GPUs reserved for it where it is remote.
        channels: Channel -> threads that work on the calls made by it where it is remote; see
            ``WorkerHandle.channel``.
        host: Name of the worker whose process it lives in; empty for a process of its own, or this one.
    """

    cls: type[Any]
    args: tuple[Any, ...]
    name: str
    remote: bool = False
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    channels: Mapping[str, int] = field(default_factory=dict)
    host: str = ""


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What every process of a run does before it works.

    Attributes:
        torch_threads: Threads of torch, where the worker uses it. Sums depend on it, so that it is the same everywhere.
        seed: Seed of the run, from which the global generators follow, for code that has none of its own; None leaves
            them alone.
        log_dir: Folder that gets one log file per process; None writes none.
        log_level: Least severe line that is written.
    """

    torch_threads: int = 1
    seed: int | None = None
    log_dir: Path | None = None
    log_level: str = "info"

    def apply(self, name: str) -> None:
        """Set up this process; call it when the worker's own modules are there."""
        # Only the workers that need torch have imported it: env workers start in half the time without.
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(self.torch_threads)
        if self.seed is not None:
            seed_global_generators([self.seed, *name.encode()])
        if self.log_dir is not None:
            from rlightning.observability.logs import log_to_file

            log_to_file(self.log_dir / f"{name}.log", self.log_level)


_FAILURE = "_failure_of_constructor"


def _surviving(cls: type[Any]) -> type[Any]:
    """Make a class whose constructor keeps what it raised for ``_set_up``.

    Ray would end the process, and the exception would be lost but for its text.
    """

    class Surviving(cls):  # type: ignore[misc]  # any class
        pass

    def construct(self: Any, *args: Any) -> None:
        try:
            cls.__init__(self, *args)
        except Exception as error:
            torch = sys.modules.get("torch")
            if torch is not None and isinstance(self, torch.nn.Module) and "_modules" not in vars(self):
                torch.nn.Module.__init__(self)  # Ray looks at the object, and half a module cannot be looked at
            self.__dict__[_FAILURE] = error

    # Only now: what a base class makes of its subclasses' constructors is not for this one.
    Surviving.__init__ = construct  # type: ignore[method-assign]
    Surviving.__name__, Surviving.__qualname__, Surviving.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    return Surviving


def _set_up(worker: Any, setup: WorkerSetup, name: str) -> tuple[str, int]:
    failure = vars(worker).get(_FAILURE)
    if failure is not None:
        raise failure
    setup.apply(name)
    return own_location()[0], os.getpid()


def _raise_as_here(error: WorkerError) -> NoReturn:
    """Raise what a constructor elsewhere raised, as one of this process does."""
    cause = error.__cause__
    if cause is None:
        raise error
    for note in getattr(error, "__notes__", ()):
        cause.add_note(note)
    raise cause from cause.__cause__


class Seats(Protocol):
    """Knows where each worker of a run goes; several pools may share it."""

    def take(self) -> None:
        """Hold what all workers of the run need; a Ray is there by now. Each ``take`` wants a ``leave``.

        Raises:
            PlacementError: If there is not enough.
        """

    def place_of(self, worker: str) -> Mapping[str, Any]:
        """Give the options of ``ray_backend.spawn`` for a worker's place; empty where Ray decides."""

    def leave(self) -> None:
        """Let go; with the last one it is free for others."""


class WorkerPool:
    """Starts workers of a run and ends them again."""

    def __init__(
        self,
        ray_address: str = "local",
        setup: WorkerSetup | None = None,
        *,
        start_timeout_s: float = 120.0,
        total_cpus: float = 0.0,
        total_gpus: float = 0.0,
        seats: Seats | None = None,
    ) -> None:
        """Make an empty pool.

        Args:
            ray_address: Where remote workers live.
            setup: What every process does first.
            start_timeout_s: Seconds that starting workers may take.
            total_cpus: CPUs that all remote workers of the run need, those of other pools among them.
            total_gpus: GPUs likewise.
            seats: Where the workers go; None lets Ray decide.
        """
        self._address = ray_address
        self._setup = setup if setup is not None else WorkerSetup()
        self._start_timeout_s = start_timeout_s
        self._total = (total_cpus, total_gpus)
        self._seats = seats
        self._actors: list[Any] = []
        self._in_ray = self._has_seats = False

    def start(self, specs: Sequence[WorkerSpec]) -> list[Any]:
        """Start workers; those that live with another one come after it.

        Returns:
            Objects, Ray actor handles and in-process workers in the order of ``specs``.

        Raises:
            PlacementError: If they do not fit the cluster or are not up in time.
            WorkerDied: If a process ended in a constructor. What a constructor raises comes as it is, wherever it runs.
        """
        self._setup.apply("driver")
        hosts = [spec for spec in specs if not spec.host]
        workers = self._start(hosts)
        by_name = {spec.name: as_handle(worker, spec.name) for spec, worker in zip(hosts, workers, strict=True)}
        inner = [start_in_process(by_name[spec.host], spec.cls, spec.args, spec.name) for spec in specs if spec.host]
        try:
            gather([built for _, built in inner], self._start_timeout_s)
        except WorkerError as error:
            _raise_as_here(error)
        started, housed = iter(workers), iter(worker for worker, _ in inner)
        return [next(housed) if spec.host else next(started) for spec in specs]

    def _start(self, specs: Sequence[WorkerSpec]) -> list[Any]:
        """Start workers that have a process of their own or live in this one."""
        remote = [spec for spec in specs if spec.remote]
        if not remote:
            return [spec.cls(*spec.args) for spec in specs]
        from rlightning.runtime import ray_backend

        if not self._in_ray:
            cpus, gpus = sum(spec.num_cpus for spec in remote), sum(spec.num_gpus for spec in remote)
            ray_backend.join(self._address, max(cpus, self._total[0]), max(gpus, self._total[1]))
            self._in_ray = True
        if self._seats is not None and not self._has_seats:
            self._seats.take()
            self._has_seats = True
        workers = [
            ray_backend.spawn(
                _surviving(spec.cls),
                spec.args,
                num_cpus=spec.num_cpus,
                num_gpus=spec.num_gpus,
                channels=spec.channels,
                place=None if self._seats is None else self._seats.place_of(spec.name),
            )
            if spec.remote
            else spec.cls(*spec.args)
            for spec in specs
        ]
        started = [(spec.name, worker) for spec, worker in zip(specs, workers, strict=True) if spec.remote]
        self._actors += [worker for _, worker in started]
        ready = [as_handle(worker, name).run(_set_up, self._setup, name, method="__init__") for name, worker in started]
        try:
            processes = gather(ready, self._start_timeout_s)
        except WorkerError as error:
            self._end([worker for _, worker in started])
            _raise_as_here(error)
        except CallTimeout as error:
            self._end([worker for _, worker in started])
            raise PlacementError(
                f"{error}; the cluster may lack the CPUs or GPUs that were asked, or imports are slow: raise "
                f"cluster.start_timeout_s or lower the numbers of workers"
            ) from error
        for (_, worker), process in zip(started, processes, strict=True):
            ray_backend.watch(worker, process)
        return workers

    def replace(self, worker: Any, spec: WorkerSpec) -> Any:
        """Start a worker in the place of one that was started here.

        A process is ended for certain first, and the new one is where it was: its seat has the worker's name. A worker
        without a process of its own must have been closed.

        Returns:
            The new worker; an in-process worker stays the same ``InProcessWorker``.

        Raises:
            PlacementError: If it is not up in time.
            WorkerDied: If its process ended in the constructor. What the constructor raises comes as it is; then this
                may be called again.
        """
        if isinstance(worker, InProcessWorker):
            try:
                gather([rebuild_in_process(worker, spec.cls, spec.args)], self._start_timeout_s)
            except WorkerError as error:
                _raise_as_here(error)
            return worker
        if spec.remote:
            self._end([worker], see_end=True)
        return self._start([spec])[0]

    def _end(self, workers: Sequence[Any], *, see_end: bool = False) -> None:
        """End the processes of some workers."""
        from rlightning.runtime import ray_backend

        for worker in workers:
            ray_backend.end(worker, see_end=see_end)
        self._actors = [actor for actor in self._actors if not any(actor is worker for worker in workers)]

    def stop(self) -> None:
        """End every process that was started here; may be called twice."""
        if self._actors:
            self._end(self._actors)
        if self._seats is not None and self._has_seats:
            self._seats.leave()
            self._has_seats = False
        if self._in_ray:
            from rlightning.runtime import ray_backend

            ray_backend.leave()
            self._in_ray = False
