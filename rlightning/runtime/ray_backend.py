"""Workers that are Ray actors. The only file that imports ray."""

from __future__ import annotations

import logging
import math
import os
import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlightning.errors import PlacementError, WorkerDied, WorkerError, call_failure
from rlightning.runtime.future import Future, no_answer
from rlightning.runtime.handle import WorkerHandle, WorkerInfo
from rlightning.runtime.interrupts import interrupts_held_back

logger = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T")

_NAMES: dict[str, str] = {}
"""Actor id -> role and index, to name the worker in errors that another worker passed on."""
_CHANNELS: dict[str, frozenset[str]] = {}
"""Actor id -> the channels that it was spawned with."""
_PROCESSES: dict[str, int] = {}
"""Actor id -> its process id, for actors of this node."""
_END_S = 10.0
"""Seconds to wait for the end of a process; Ray kills one that does not end by itself after 5 s."""
_INLINE_BYTES = 100_000
"""Smaller values are sent with the call itself, which takes less time than storing and reading them."""
_STARTS = 3
"""Attempts to start Ray here."""
_joined = 0
"""Calls of ``join`` without one of ``leave``."""
_owned = False
"""Whether Ray was started here; only then is it ended here."""
_HOST_AND_PORT = re.compile(r"([\w.-]+):(\d+)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FAILED_ARGUMENT = "At least one of the input arguments for this task could not be computed:"
"""Ray's text between a call and the failed call of its argument."""
_ADDRESS = re.compile(r"^\s*ip: (\S+)", re.MULTILINE)
_EXIT_CODE = re.compile(r"with an exit code (\d+)")
_CALL = re.compile(r"ray::\S*?\.?(\w+)\(\) \(pid=\d+, ip=([^,]+), actor_id=(\w+)")


class RayFuture(Future[T]):
    """The result of a call on an actor; passing it on passes the reference."""

    __slots__ = ("method", "ref", "worker")

    def __init__(self, ref: ray.ObjectRef[T], worker: str, method: str) -> None:
        self.ref, self.worker, self.method = ref, worker, method

    @classmethod
    def _fetch(cls, futures: Sequence[Any], timeout: float | None) -> list[Any]:
        try:
            return ray.get([future.ref for future in futures], timeout=timeout)
        except GetTimeoutError:
            raise no_answer(futures, timeout) from None
        except RayError as error:
            # A batched fetch does not say which one failed.
            for future in cls._ready(futures) if len(futures) > 1 else ():
                future.result()
            raise _failure(error, futures[0])  # noqa: B904 (its cause is that of the worker)

    @classmethod
    def _ready(cls, futures: Sequence[Any]) -> list[Any]:
        refs = cls._references(futures)
        ready = set(ray.wait(refs, num_returns=len(refs), timeout=0.0, fetch_local=False)[0])
        return [future for future in futures if future.ref in ready]

    @classmethod
    def _block(cls, pending: Sequence[Any], count: int, timeout: float | None) -> None:
        refs = cls._references(pending)
        ray.wait(refs, num_returns=min(count, len(refs)), timeout=timeout, fetch_local=False)

    @staticmethod
    def _references(futures: Sequence[Any]) -> list[ray.ObjectRef[Any]]:
        """List the references once each: ray.wait takes none twice."""
        return list({future.ref: None for future in futures})


class RayHandle(WorkerHandle):
    """Calls methods of an actor; calls of one caller by one channel run in the order in which they were made.

    A call that waits for its arguments delays the later calls of its own channel only.
    """

    def __init__(self, target: Any, name: str, channel: str = "") -> None:
        self.target, self.name, self._channel = target, name, channel
        self._methods: dict[tuple[str, int], Any] = {}
        self._channels: dict[str, RayHandle] = {}
        _NAMES[target._actor_id.hex()] = name

    def call(self, method: Callable[..., R], *args: Any, **kwargs: Any) -> Future[R]:
        ref = self._method(method.__name__, 1).remote(*map(_unwrap, args), **_unwrap_named(kwargs))
        return RayFuture(ref, self.name, method.__name__)

    def call_split(self, count: int, method: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Future[Any]]:
        if count < 2:
            raise ValueError("one item needs no splitting: use call")
        refs = self._method(method.__name__, count).remote(*map(_unwrap, args), **_unwrap_named(kwargs))
        return [RayFuture(ref, self.name, method.__name__) for ref in refs]

    def run(self, function: Callable[..., R], *args: Any, on: str = "", method: str = "") -> Future[R]:
        ref = self._method("__ray_call__", 1).remote(function, *map(_unwrap, args))
        return RayFuture(ref, on or self.name, method or function.__name__)

    def channel(self, name: str) -> RayHandle:
        if name not in _CHANNELS.get(self.target._actor_id.hex(), ()):
            return self
        if name not in self._channels:
            self._channels[name] = RayHandle(self.target, self.name, name)
        return self._channels[name]

    def keep(self, value: Future[R]) -> Future[R]:
        if isinstance(value, RayFuture) or getattr(value.result(), "num_bytes", _INLINE_BYTES) < _INLINE_BYTES:
            return value
        return RayFuture(ray.put(value.result()), self.name, "keep")

    def info(self) -> WorkerInfo:
        return WorkerInfo(self.name, self.run(_node_id, method="info").result(), remote=True)

    def stop(self) -> None:
        ray.kill(self.target)

    def _method(self, name: str, count: int) -> Any:
        method = self._methods.get((name, count))
        if method is None:
            options: dict[str, Any] = {"num_returns": count} if count > 1 else {}
            options |= {"concurrency_group": self._channel} if self._channel else {}
            method = getattr(self.target, name)
            method = self._methods[name, count] = method.options(**options) if options else method
        return method


def _node_id(_actor: Any) -> str:
    return str(ray.get_runtime_context().get_node_id())


def actor_location() -> tuple[str, tuple[int, ...]] | None:
    """Return the node and the GPUs of this process if it is an actor's."""
    if not ray.is_initialized() or ray.get_runtime_context().worker.mode != ray.WORKER_MODE:
        return None
    return _node_id(None), tuple(sorted(int(gpu) for gpu in ray.get_gpu_ids()))


def _unwrap(argument: Any) -> Any:
    if isinstance(argument, RayFuture):
        return argument.ref
    return argument.result() if isinstance(argument, Future) else argument


def _unwrap_named(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: _unwrap(argument) for name, argument in arguments.items()}


def _failure(error: RayError, future: RayFuture[Any]) -> WorkerError:
    """Return the error that names worker and method; the exception that user code raised becomes the cause.

    A failed argument fails every call that it is passed to. Ray's text lists those calls, the first failure last.
    """
    if isinstance(error, RayActorError):
        worker = _NAMES.get(error.actor_id or "", future.worker)
        method = future.method if worker == future.worker else ""
        address, code = _ADDRESS.search(str(error)), _EXIT_CODE.search(str(error))
        node = address[1] if address else "ray"
        died = WorkerDied(f"the process of the worker is gone: {error}", worker, method, node)
        died.exit_code = int(code[1]) if code else None
        return died
    origin: BaseException = error
    while isinstance(origin, RayTaskError) and isinstance(origin.cause, BaseException):
        origin = origin.cause
    text = _COLOUR.sub("", str(error))
    calls = _CALL.findall(text)
    method, node, actor_id = calls[-1] if calls else (future.method, "ray", "")
    worker = _NAMES.get(actor_id, future.worker)
    if isinstance(origin, RayError):  # the exception cannot be pickled, or not be built again from its arguments
        origin = WorkerError(_last_message(text), worker, method)
    note = f"The worker's own traceback:\n{text.rpartition(_FAILED_ARGUMENT)[2].strip()}"
    return call_failure(origin, worker, method, node, note)


def _last_message(text: str) -> str:
    """Return the last message of a traceback, as ``Class: message``."""
    _, _, after = text.rpartition('\n  File "')
    message = re.sub(r"^(?: {4}.*\n)*", "", after.partition("\n")[2])  # without the line of code and its underline
    return re.sub(r"^(?:\w+\.)+(?=\w+(?::|$))", "", message.strip())


def join(address: str, num_cpus: float, num_gpus: float) -> None:
    """Start Ray here ("local") or join a running cluster ("auto" or its address); ``leave`` undoes it.

    A Ray that is started here has at least ``num_cpus`` CPUs: they are slots for workers, and more workers than cores
    are slow but not wrong. A cluster that this process had joined before is not left.

    Raises:
        PlacementError: If there is no cluster to join, or fewer GPUs here than the workers need.
    """
    global _joined, _owned
    if not _joined:
        _owned = not ray.is_initialized()
        if _owned:
            try:
                with interrupts_held_back():
                    _start(address, num_cpus, num_gpus)
            except BaseException:
                _stop()
                raise
    _joined += 1


def leave() -> None:
    """Undo one ``join``; the last one ends a Ray that was started here, with all its processes."""
    global _joined
    _joined -= 1
    if not _joined and _owned:
        _stop()


def _stop() -> None:
    with interrupts_held_back():
        ray.shutdown()


def _start(address: str, num_cpus: float, num_gpus: float) -> None:
    # Ray's processes read these when they start; settings of the user have precedence.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # A failure fails all calls that use its value; the first one is raised here, and Ray would print the others.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    if address == "local":
        if num_gpus:
            from rlightning.device import available_gpus  # imports torch, which env workers do not need

            _require("GPU", num_gpus, float(available_gpus()), "this machine")
        _start_own(max(os.cpu_count() or 1, math.ceil(num_cpus)))
    else:
        try:
            ray.init(address=address, logging_level=logging.ERROR)
        except ConnectionError as error:
            raise PlacementError(_not_joined(address, error)) from error
    have = ray.cluster_resources()
    for kind, need in (("CPU", num_cpus), ("GPU", num_gpus)):
        _require(kind, need, have.get(kind, 0.0), "the cluster")


def _not_joined(address: str, error: ConnectionError) -> str:
    """Return why a cluster was not joined; Ray has one text for a missing cluster and for a refused token."""
    found = _HOST_AND_PORT.search(str(error)) or _HOST_AND_PORT.search(address)
    if found is not None:
        with suppress(OSError), socket.create_connection((found[1], int(found[2])), timeout=_END_S):
            return (
                f"what listens at {found[0]} (cluster.ray_address={address!r}) does not let this process in: if the "
                f"cluster wants a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to that of "
                f"its nodes; else see that it is a Ray of version {ray.__version__}"
            )
    return (
        f"no Ray cluster answers at cluster.ray_address={address!r} ({error}): start one with 'ray start --head', or "
        f"set cluster.ray_address=local"
    )


def _require(kind: str, need: float, have: float, where: str) -> None:
    if need > have:
        raise PlacementError(
            f"the workers need {need:g} {kind}s and {where} has {have:g}: lower the numbers of workers under cluster "
            f"and env, or their num_{kind.lower()}s"
        )


def _start_own(num_cpus: int) -> None:
    """Start Ray on this machine.

    Its processes inherit the environment of this one, and so the path on which modules of the user are found. On a busy
    machine they may need longer than the 30 s that ``ray.init`` waits, so that several attempts are made.
    """
    # A node ends itself if its own agent is not up within half that time.
    os.environ.setdefault("RAY_agent_register_timeout_ms", "120000")
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        for attempt in range(_STARTS):
            try:
                ray.init(address="local", num_cpus=num_cpus, include_dashboard=False, logging_level=logging.ERROR)
                return
            except Exception as error:
                # Ray has no class for this exception.
                if type(error) is not Exception or attempt == _STARTS - 1:
                    raise PlacementError(f"Ray did not start here: {error}") from error
                logger.warning("Ray did not start in time; trying again (%d of %d)", attempt + 2, _STARTS)
                ray.shutdown()
    finally:
        if path is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = path


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node of a cluster.

    Attributes:
        node_id: Ray's id of it.
        address: Its address; nodes of a simulated cluster share one.
        resources: All its resources by Ray's names: CPU, GPU, memory (bytes), and custom ones.
    """

    node_id: str
    address: str
    resources: Mapping[str, float]


def list_nodes() -> list[RayNode]:
    """List the nodes that are alive: that of this process first, the others by address and id."""
    own = ray.get_runtime_context().get_node_id()
    found = [
        RayNode(node["NodeID"], node["NodeManagerAddress"], dict(node["Resources"]))
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(found, key=lambda node: (node.node_id != own, node.address, node.node_id))


class Reservation:
    """Resources of certain nodes for the workers of a run."""

    def __init__(self, group: PlacementGroup) -> None:
        self._group = group

    def options(self, bundle: int) -> dict[str, Any]:
        """Return Ray's options of an actor in a bundle."""
        return {"scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, bundle)}

    def release(self) -> None:
        """Release the resources; the workers in them end."""
        if ray.is_initialized():
            remove_placement_group(self._group)


def reserve(bundles: Sequence[tuple[str, Mapping[str, float]]], timeout_s: float) -> Reservation:
    """Reserve resources of certain nodes, all or none.

    Args:
        bundles: Id of the node of each bundle, and its resources by Ray's names.
        timeout_s: Seconds to wait until all are free.

    Raises:
        PlacementError: If they are not free in time; the message has per node what was asked and what is free.
    """
    group = placement_group(
        [dict(resources) for _, resources in bundles],
        strategy="PACK",
        bundle_label_selector=[{"ray.io/node-id": node} for node, _ in bundles],
    )
    if not group.wait(timeout_s):
        remove_placement_group(group)
        raise PlacementError(_not_free(bundles, timeout_s))
    return Reservation(group)


def _not_free(bundles: Sequence[tuple[str, Mapping[str, float]]], timeout_s: float) -> str:
    asked: dict[str, Counter[str]] = {}
    for node, resources in bundles:
        asked.setdefault(node, Counter()).update(resources)
    free = _free_by_node()
    addresses = {node.node_id: node.address for node in list_nodes()}
    lines = [
        f"on node {addresses.get(node, 'that is gone')} ({node[:8]}): {_amounts(wanted)} asked, "
        f"{_amounts({name: free.get(node, {}).get(name, 0.0) for name in wanted})} free"
        for node, wanted in asked.items()
    ]
    return (
        f"what the plan holds is not free after {timeout_s:g} s; does another job of the cluster use it?\n"
        + "\n".join(lines)
        + "\nWait for it, lower the numbers of workers under cluster and env, or raise cluster.start_timeout_s"
    )


def _free_by_node() -> dict[str, dict[str, float]]:
    """Return the free resources of each node; Ray has no public function for it."""
    try:
        from ray._private.state import available_resources_per_node
    except ImportError:
        return {}
    return dict(available_resources_per_node())


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(resources.items()))


def spawn(
    cls: type[Any],
    args: Sequence[Any],
    *,
    num_cpus: float,
    num_gpus: float,
    channels: Mapping[str, int] | None = None,
    slot: Mapping[str, Any] | None = None,
) -> Any:
    """Start an actor of ``cls``; returns its handle at once, before the process is up.

    Args:
        cls: The class.
        args: Arguments of the constructor.
        num_cpus: CPUs reserved for it.
        num_gpus: GPUs reserved for it.
        channels: Channel -> threads that run its calls; see ``WorkerHandle.channel``.
        slot: Further options of Ray's that say where, such as ``Reservation.options``.
    """
    # Ray accepts groups with the class only, and adds its own groups to the dict.
    groups: dict[str, Any] = {"concurrency_groups": dict(channels)} if channels else {}
    options = {"num_cpus": num_cpus, "num_gpus": num_gpus, **(slot or {})}
    actor = ray.remote(max_restarts=0, **groups)(cls).options(**options).remote(*args)
    _CHANNELS[actor._actor_id.hex()] = frozenset(channels or ())
    return actor


def watch(actor: Any, process: tuple[str, int]) -> None:
    """Store node and process id of an actor's process, so that ``end`` can wait for its end."""
    node, process_id = process
    if node == _node_id(None):
        _PROCESSES[actor._actor_id.hex()] = process_id


def end(actor: Any, *, see_end: bool = False) -> None:
    """End the process of an actor; may be called twice.

    Args:
        actor: The actor.
        see_end: Whether to wait for its end, where it is a process of this node.
    """
    ray.kill(actor)
    process_id = _PROCESSES.pop(actor._actor_id.hex(), None)
    until = time.monotonic() + _END_S
    while see_end and process_id is not None and _is_running(process_id) and time.monotonic() < until:
        time.sleep(0.01)


def _is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def pickle_by_value(module: ModuleType) -> None:
    """Send a module of the user to workers as code, since they cannot import it by name."""
    ray.cloudpickle.register_pickle_by_value(module)
