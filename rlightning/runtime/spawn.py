"""Start workers here, in processes of their own or in the process of another worker, and end them again."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rlightning.errors import CallTimeout, PlacementError, WorkerError
from rlightning.runtime.future import Future, gather
from rlightning.runtime.generators import seed_global_generators
from rlightning.runtime.handle import as_handle
from rlightning.runtime.in_process import InProcessWorker, rebuild_in_process, start_in_process
from rlightning.runtime.location import own_location

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker to start.

    Attributes:
        cls: Its class.
        args: Arguments of the constructor.
        name: Role and index, such as ``env[3]``.
        remote: Whether it has a process of its own.
        num_cpus: CPUs reserved for it where it is remote.
        num_gpus: GPUs reserved for it where it is remote.
        channels: Channel -> threads that run its calls where the worker is remote; see ``WorkerHandle.channel``.
        host: Name of the worker in whose process it lives; empty for a process of its own, or this one.
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
    """The settings of every process of a run.

    Attributes:
        torch_threads: Threads of torch, where the worker uses it. Sums depend on it, so that it is the same everywhere.
        seed: Seed of the run, from which the global generators follow; None leaves them alone.
        log_dir: Folder that gets one log file per process; None writes none.
        log_level: Least severe line that is written.
    """

    torch_threads: int = 1
    seed: int | None = None
    log_dir: Path | None = None
    log_level: str = "info"

    def apply(self, name: str) -> None:
        """Set up this process, after the modules of the worker were imported."""
        # Env workers do not import torch, which halves the time of their start.
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
    """Make a class whose constructor stores what it raised for ``_set_up``.

    Ray would end the process, and would keep the text of the exception only.
    """

    class Surviving(cls):  # type: ignore[misc]  # any class
        pass

    def construct(self: Any, *args: Any) -> None:
        try:
            cls.__init__(self, *args)
        except Exception as error:
            torch = sys.modules.get("torch")
            if torch is not None and isinstance(self, torch.nn.Module) and "_modules" not in vars(self):
                torch.nn.Module.__init__(self)  # Ray reads attributes of the object, which fail on half a module
            self.__dict__[_FAILURE] = error

    # Set afterwards: a base class may check the constructors that its subclasses define.
    Surviving.__init__ = construct  # type: ignore[method-assign]
    Surviving.__name__, Surviving.__qualname__, Surviving.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    return Surviving


def _set_up(worker: Any, setup: WorkerSetup, name: str) -> tuple[str, int]:
    """Set up the process of a worker, or raise what its constructor raised; return node and process id."""
    failure = vars(worker).get(_FAILURE)
    if failure is not None:
        raise failure
    setup.apply(name)
    return own_location()[0], os.getpid()


def _built(futures: Sequence[Future[T]], timeout_s: float) -> list[T]:
    """Wait for constructors; what one raises is raised as if it ran here."""
    try:
        return gather(futures, timeout_s)
    except WorkerError as error:
        cause = error.__cause__
        if cause is None:
            raise
        for note in getattr(error, "__notes__", ()):
            cause.add_note(note)
        raise cause from cause.__cause__


class Assignment(Protocol):
    """The slots of a run's workers on the cluster; several pools may share it."""

    def reserve(self) -> None:
        """Reserve what all workers of the run need, once; Ray is started or joined before.

        Raises:
            PlacementError: If there is not enough.
        """

    def options_of(self, worker: str) -> Mapping[str, Any]:
        """Return the options of ``ray_backend.spawn`` for the slot of a worker; empty where Ray decides."""


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
        assignment: Assignment | None = None,
    ) -> None:
        """Make an empty pool.

        Args:
            ray_address: The cluster of remote workers.
            setup: The settings of every process.
            start_timeout_s: Seconds that starting workers may take.
            total_cpus: CPUs that all remote workers of the run need, including those of other pools.
            total_gpus: GPUs likewise.
            assignment: The slots of the workers; None lets Ray decide.
        """
        self._address, self._start_timeout_s = ray_address, start_timeout_s
        self._setup = setup if setup is not None else WorkerSetup()
        self._total, self._assignment = (total_cpus, total_gpus), assignment
        self._actors: list[Any] = []
        self._is_joined = False

    def start(self, specs: Sequence[WorkerSpec]) -> list[Any]:
        """Start workers; those that live in the process of another one come after it.

        Returns:
            Objects, Ray actor handles and in-process workers in the order of ``specs``.

        Raises:
            PlacementError: If they do not fit the cluster or are not up in time.
            WorkerDied: If a process ended in a constructor. What a constructor raises is raised here as it is.
        """
        self._setup.apply("driver")
        hosts = [spec for spec in specs if not spec.host]
        workers = {spec.name: worker for spec, worker in zip(hosts, self._start(hosts), strict=True)}
        built = []
        for spec in specs:
            if spec.host:
                host = as_handle(workers[spec.host], spec.host)
                workers[spec.name], future = start_in_process(host, spec.cls, spec.args, spec.name)
                built.append(future)
        _built(built, self._start_timeout_s)
        return [workers[spec.name] for spec in specs]

    def _start(self, specs: Sequence[WorkerSpec]) -> list[Any]:
        """Start workers that have a process of their own or live in this one."""
        remote = [spec for spec in specs if spec.remote]
        if not remote:
            return [spec.cls(*spec.args) for spec in specs]
        from rlightning.runtime import ray_backend

        self._join(remote)
        workers = [self._spawn(spec) if spec.remote else spec.cls(*spec.args) for spec in specs]
        started = {spec.name: worker for spec, worker in zip(specs, workers, strict=True) if spec.remote}
        self._actors += started.values()
        ready = [
            as_handle(worker, name).run(_set_up, self._setup, name, method="__init__")
            for name, worker in started.items()
        ]
        try:
            processes = _built(ready, self._start_timeout_s)
        except CallTimeout as error:
            self._end(list(started.values()))
            raise PlacementError(
                f"{error}; the cluster may lack the CPUs or GPUs that were asked, or imports are slow: raise "
                f"cluster.start_timeout_s or lower the numbers of workers"
            ) from error
        except Exception:
            self._end(list(started.values()))
            raise
        for worker, process in zip(started.values(), processes, strict=True):
            ray_backend.watch(worker, process)
        return workers

    def _join(self, specs: Sequence[WorkerSpec]) -> None:
        """Start or join Ray and reserve the resources of the run, before the first remote worker starts."""
        if not self._is_joined:
            from rlightning.runtime import ray_backend

            cpus, gpus = sum(spec.num_cpus for spec in specs), sum(spec.num_gpus for spec in specs)
            ray_backend.join(self._address, max(cpus, self._total[0]), max(gpus, self._total[1]))
            self._is_joined = True
            if self._assignment is not None:
                self._assignment.reserve()

    def _spawn(self, spec: WorkerSpec) -> Any:
        from rlightning.runtime import ray_backend

        return ray_backend.spawn(
            _surviving(spec.cls),
            spec.args,
            num_cpus=spec.num_cpus,
            num_gpus=spec.num_gpus,
            channels=spec.channels,
            slot=None if self._assignment is None else self._assignment.options_of(spec.name),
        )

    def replace(self, worker: Any, spec: WorkerSpec) -> Any:
        """Start a worker in the slot of one that was started here.

        The process of the old one is ended first. A worker without a process of its own must have been closed.

        Returns:
            The new worker; for an in-process worker, the same ``InProcessWorker``.

        Raises:
            PlacementError: If it is not up in time.
            WorkerDied: If its process ended in the constructor. What the constructor raises is raised as it is; then
                this may be called again.
        """
        if isinstance(worker, InProcessWorker):
            _built([rebuild_in_process(worker, spec.cls, spec.args)], self._start_timeout_s)
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
        if self._is_joined:
            from rlightning.runtime import ray_backend

            self._is_joined = False
            ray_backend.leave()
