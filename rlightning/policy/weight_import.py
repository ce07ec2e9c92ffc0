"""How weights come into a policy, and into force."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, cast

import torch

from rlightning.distributed import ParallelMode
from rlightning.errors import ProtocolError, WeightSyncError
from rlightning.observability.timer import Timer
from rlightning.policy.acting import Acting
from rlightning.policy.memory import Part
from rlightning.policy.tensors import plain_names, with_buffers
from rlightning.policy.weight_export import NOTHING_COMES
from rlightning.weights.bundle import Bundle, BundlePart, check_same_layout, flatten_names
from rlightning.weights.gate import RolloutGate
from rlightning.weights.home import Home, is_alone, uses_of
from rlightning.weights.layout import Layout, NamedTensors, as_bytes, check_key, copy_all, each, point_all
from rlightning.weights.updater import Updater
from rlightning.weights.version_buffer import VersionBuffer

if TYPE_CHECKING:
    from rlightning.policy.base_policy import BasePolicy


class _Outcome:
    """A context in which an update is made: one that failed lets nobody act until another has succeeded.

    Attributes:
        failure: Why the last one failed; None where it did not.
    """

    def __init__(self, gate: RolloutGate) -> None:
        self._gate = gate
        self.failure: BaseException | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.failure = error
        if error is not None:
            self._gate.changed()


class WeightImport:
    """Takes weights in, and puts them in force between two requests.

    Without a buffer they are copied in at once. With one they wait there until they are announced; then the policy acts
    with the buffer's memory itself. It owns the buffer, the thread that follows announcements, and what the last update
    failed of.
    """

    def __init__(
        self, policy: BasePolicy, acting: Acting, gate: RolloutGate, timer: Timer, *, loads_plainly: bool
    ) -> None:
        """Begin without a buffer.

        Args:
            policy: Whose weights these are.
            acting: Knows what of it acts.
            gate: Admits its requests.
            timer: Counts its time.
            loads_plainly: Whether its tensors may be exchanged by pointer, since no author loads in a way of their own.
        """
        # Weakly: a policy and its tensors end with their last user, and so does the thread that follows announcements.
        self._policy = cast("BasePolicy", weakref.proxy(policy))
        self._acting, self._gate, self._timer, self._loads_plainly = acting, gate, timer, loads_plainly
        self._outcome = _Outcome(gate)
        self._slots: VersionBuffer | None = None
        # The buffer whose memory acts, and the stamp of what lies there.
        self._adopted: tuple[VersionBuffer, int] | None = None
        # Of memory that no other policy acts with: its bytes, and how many tensors had a hold on them at first.
        self._memory: tuple[torch.Tensor, int] | None = None
        self._is_own = False  # whether no other policy acts with the buffer
        self._made: VersionBuffer | None = None  # the buffer that this policy made for its node
        self._mapped: VersionBuffer | None = None  # what a sender of this node writes into, to be copied out
        self._updater: Updater | None = None

    def forget(self) -> None:
        """Take note that the networks are built anew; a buffer is no longer in use."""
        self._slots = self._adopted = self._memory = None

    @property
    def failure(self) -> BaseException | None:
        """Why the last update failed; while there is one, nobody is to act."""
        return self._outcome.failure

    def forgive(self) -> None:
        """Take note that the policy begins anew, whatever the last update failed of."""
        self._outcome.failure = None

    # The buffer

    def use_buffer(self, buffer: VersionBuffer | None) -> None:
        """Let weights go into a buffer first; None makes one."""
        layout, is_own = self._policy.weight_layout(), buffer is None
        if buffer is None:
            is_near = self._policy.config.weight_buffer.type == "WeightBuffer"
            buffer = VersionBuffer(layout, device=self._policy.device if is_near else "cpu")
        check_key(layout, buffer.layout.key, self._policy._who)
        with self._gate.update():
            self.take_own_memory()
            self._slots, self._is_own = buffer, is_own
        if self._updater is None:
            self._updater = Updater(self._follow)
            threading.Thread(target=self._updater.run, name="weight updater", daemon=True).start()

    def end_buffer(self) -> None:
        """Let weights go straight in from now on."""
        if self._slots is not None:
            with self._gate.update():
                self.take_own_memory()
                self._slots = None

    def make_buffer(self, parts: int, copies: int) -> VersionBuffer:
        """Make a buffer that the policies of this node can map."""
        self._made = VersionBuffer.create_shared(self._policy.weight_layout(), parts, copies)
        return self._made

    def map(self, buffer: VersionBuffer) -> None:
        """Take a buffer of this node to copy out of whenever a sender has written into it."""
        check_key(self._policy.weight_layout(), buffer.layout.key, self._policy._who)
        self._mapped = buffer

    def unlink_buffer(self) -> None:
        """Remove the names of buffers that were made or mapped, since all have mapped them."""
        for slots in (self._made, self._mapped, self._slots):
            if slots is not None:
                slots.unlink()

    def copy_in(
        self,
        own: Mapping[str, torch.Tensor],
        given: Mapping[str, torch.Tensor],
        receiver: str,
        version: int | None = None,
    ) -> None:
        """Copy tensors into those of the policy, never into a buffer that others act with.

        Raises:
            WeightSyncError: If names, shapes or dtypes differ; nothing is changed then.
        """
        check_same_layout(own, given, receiver, version)
        self.take_own_memory()
        copy_all({"": own}, {"": {name: given[name] for name in own}})

    def take_own_memory(self) -> None:
        """Copy the tensors out of a buffer that others may act with, before anything is written into them."""
        if self._adopted is not None and self._memory is not None and self._is_viewed():
            self._adopted[0].let_go(self._memory[0])  # the view goes on showing what acts
        elif self._adopted is not None:
            held = [tensor for _, _, tensor in each(self._policy.get_trainable_parameters())]
            places = [(tensor.data_ptr(), tensor.shape, tensor.dtype) for tensor in held]
            # What is tied stays tied.
            owned = {place: tensor.data.clone() for place, tensor in zip(places, held, strict=True)}
            for place, tensor in zip(places, held, strict=True):
                tensor.data = owned[place]
        self._adopted = self._memory = None

    def _is_viewed(self) -> bool:
        """Tell whether an author has begun to look at the weights in force by an array, or by a view."""
        return self._memory is not None and uses_of(self._memory[0]) > self._memory[1]

    # What comes

    def receive(self, payload: Bundle | BundlePart | None) -> int:
        """Take weights into the buffer, or without one into force; see ``BasePolicy.recv_weights``."""
        if payload is None:
            return self._receive_broadcast()
        if isinstance(payload, BundlePart):
            if self._slots is None:
                raise ProtocolError("parts of weights come together in a buffer: call init_weight_buffer first")
            with self._timer.measure("receive"):
                check_key(self._slots.layout, payload.key, self._policy._who)
                self._slots.write_bytes(payload.version, as_bytes(payload.flat), payload.index)
        elif self._slots is None:
            self._policy.import_bundle(payload)
        else:
            with self._timer.measure("receive"):
                self._check_bundle(payload, self._slots.layout)
                self._slots.write_bytes(payload.version, as_bytes(payload.flat))
        return payload.version

    def receive_memory(self, memory: VersionBuffer | None, part: int | None) -> int:
        """Copy weights out of memory that a sender of this node writes into; see ``BasePolicy.recv_weights_ipc``."""
        if memory is None:
            memory = self._mapped
        if memory is None:
            raise ProtocolError("there is no memory to receive from: call map_weight_buffer first")
        self._mapped, slots = memory, self._slots
        if slots is not None:
            with self._timer.measure("receive"):
                check_key(slots.layout, memory.layout.key, self._policy._who)
                return slots.copy_from(memory, part)
        sent = memory.newest()
        return self._put_in_force(
            memory.layout, sent.flat, lambda: sent.tensors, sent.version, lambda: memory.check_unchanged(sent)
        )

    def _receive_broadcast(self) -> int:
        policy, group = self._policy, self._policy._communicator.group(ParallelMode.WEIGHT_TRANSFER)
        if group.size < 2:
            raise ProtocolError("there is no sender to receive from: call PolicyGroup.init_comm_group first")
        with self._timer.measure("receive"):
            head = group.broadcast_(torch.zeros(3, dtype=torch.int64, device=policy.device))
            version, number, num_bytes = map(int, head.tolist())
            if version == NOTHING_COMES:
                raise WeightSyncError("the sender failed before it sent anything")
            layout = policy.weight_layout()
            fits = number == layout.number
            if fits and self._slots is not None and self._slots.device == torch.device(policy.device):
                with self._slots.filling(version) as place:
                    group.broadcast_(place)
                return version
            # What does not fit is received all the same, so that the others get theirs.
            flat = group.broadcast_(torch.zeros(num_bytes, dtype=torch.uint8, device=policy.device))
        if not fits:
            check_key(layout, "", policy._who)
        if self._slots is None:
            return self._put_in_force(layout, flat, lambda: layout.views(flat), version)
        self._slots.write_bytes(version, flat)
        return version

    def _check_bundle(self, bundle: Bundle, layout: Layout) -> None:
        """Compare layouts; where they differ, name the tensors that do."""
        if layout.key != bundle.layout.key:
            named = flatten_names(self._policy._tensors.acting())
            check_same_layout(named, flatten_names(bundle.views()), self._policy.__class__.__name__, bundle.version)
            check_key(layout, bundle.layout.key, self._policy._who)

    # Into force

    def put_in_force(self, bundle: Bundle) -> int:
        """Copy weights in between two requests; gives their version.

        Raises:
            WeightSyncError: If they do not fit or are older than those in force, which stay in force; the next request
                and the next ``wait`` raise the error too.
        """
        return self._put_in_force(bundle.layout, as_bytes(bundle.flat), bundle.views, bundle.version)

    def _put_in_force(
        self,
        layout: Layout,
        flat: torch.Tensor,
        views: Callable[[], NamedTensors],
        version: int,
        check_source: Callable[[], None] | None = None,
    ) -> int:
        # A failure is noted before the gate opens: nobody shall act with what was loaded half.
        with self._timer.measure("import"), self._gate.update(), self._outcome:
            self._check_newer(version)  # in here, since another thread may have put newer ones in force meanwhile
            if not self._load_at_once(layout, flat):
                self.load(views(), version)
            if check_source is not None:
                check_source()
            self._policy.version = version
        return version

    def update_from_buffer(self) -> None:
        """Put the newest complete weights of the buffer in force; errors as in ``put_in_force``."""
        if self._slots is None:
            raise ProtocolError("there is no weight buffer: call init_weight_buffer first")
        with self._outcome:
            slots = self._slots
            if self._adopted == (slots, slots.stamp):
                return
            # A failure is noted before the gate opens: nobody shall act with what was loaded half.
            with self._timer.measure("import"), self._gate.update(), self._outcome:
                if slots is not self._slots:
                    return  # another buffer took its place while requests were in flight
                # Read in here, since another thread may have put newer ones in force meanwhile.
                newest = slots.newest()
                self._check_newer(newest.version)
                if self._load_at_once(slots.layout, newest.flat):
                    pass
                elif self._may_adopt():
                    own = self._acting.look()
                    check_key(own.layout, slots.layout.key, self._policy._who)
                    if self._is_viewed():
                        self.take_own_memory()
                    if self._adopted is None and not all(is_alone(tensor) for _, _, tensor in each(own.tensors)):
                        # An author looks at them by an array, or by a view: that has to see the new values.
                        self.load(newest.tensors, newest.version)
                    else:
                        point_all(own.tensors, newest.tensors)
                        self._adopted = slots, newest.stamp
                        self._memory = (newest.flat, uses_of(newest.flat)) if self._is_own else None
                else:
                    self.load(newest.tensors, newest.version)
                self._policy.version = newest.version

    def _load_at_once(self, layout: Layout, flat: torch.Tensor) -> bool:
        """Copy the bytes of many small tensors into the home of the policy's own; gives whether that can be done."""
        if not (Home.pays(layout) and self._loads_plainly) or Part.MODEL in self._policy._memory.offloaded:
            return False
        home = self._acting.look(may_move=True).home
        if home is None or home.layout.key != layout.key:
            return False
        home.flat.copy_(flat)
        return True

    def load(self, tensors: NamedTensors, version: int) -> None:
        """Load by ``load_state_dict`` what the policy lists itself, and copy the buffers that an author left out."""
        policy = self._policy
        if self._loads_plainly:
            self.copy_in(flatten_names(policy._tensors.acting()), flatten_names(tensors), policy._who, version)
            return
        if policy._tensors.lists_plainly:
            policy.load_state_dict(tensors)
            return
        listed = policy.get_trainable_parameters()
        acting, plain = with_buffers(listed, policy._tensors.models()), plain_names(listed)
        given = {module: tensors.get(module, {}) for module in listed} if not all(listed.values()) else tensors
        left_out = flatten_names(acting).keys() - flatten_names(plain).keys()
        if left_out or flatten_names(plain).keys() != flatten_names(listed).keys():
            check_same_layout(flatten_names(acting), flatten_names(tensors), policy._who, version)
            # Under the names that the author gives them, with those of wrappers.
            given = {
                module: {name: tensors[module][key] for name, key in zip(named, plain[module], strict=True)}
                for module, named in listed.items()
            }
        policy.load_state_dict(given)
        with torch.no_grad():
            for module, name, tensor in each(acting):
                if f"{module}.{name}" in left_out:
                    tensor.copy_(tensors[module][name])

    def announce(self) -> None:
        """Update from the buffer, where there is one: at once where no request is in flight, else by the thread."""
        if self._updater is not None:
            self._updater.announce(at_once=not self._gate.num_requests)

    def wait_for_version(self, version: int) -> None:
        """Wait until weights of a version, or newer ones, are in force, or an update has failed."""
        self._gate.wait_for(lambda: self._policy.version >= version or self.failure is not None)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the latest announced weights are in force; gives whether they are.

        Raises:
            WeightSyncError: If the last update failed.
        """
        done = self._updater is None or self._updater.wait(timeout)
        if self.failure is not None:
            raise WeightSyncError(f"the last weight update failed: {self.failure}") from self.failure
        return done

    def run_updater(self) -> None:
        """Follow announcements until the policy is gone."""
        if self._updater is None:
            raise ProtocolError("there is no weight buffer: call init_weight_buffer first")
        self._updater.run()

    def _follow(self) -> None:
        # Whoever waits, and the next request, is told of a failure; the updater goes on.
        with suppress(Exception), self._outcome:
            self._policy.update_weights_from_buffer()

    def _check_newer(self, version: int) -> None:
        if version < self._policy.version:
            raise WeightSyncError(
                f"weights of version {version} came after those of version {self._policy.version}: a group goes back "
                f"to an older state by PolicyGroup.load_training_state"
            )

    def _may_adopt(self) -> bool:
        """Tell whether tensors can be exchanged by pointer: nobody loads in a way of their own, all on one device."""
        is_there = Part.MODEL not in self._policy._memory.offloaded
        # By its name: to make a torch device takes longer here than all the rest.
        same_device = self._slots is not None and self._slots.device.type == self._policy.device.partition(":")[0]
        return self._loads_plainly and is_there and same_device
