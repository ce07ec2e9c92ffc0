"""Many policies of both roles as one: routing of rollouts, training, and getting new weights to all who act."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rlightning.config import PolicyConfig, TrainConfig
from rlightning.distributed import ParallelMode
from rlightning.errors import CallTimeout, ProtocolError, WeightSyncError, WorkerError
from rlightning.observability.timer import Span, Timer, timing_table
from rlightning.policy.base_policy import BasePolicy, PolicyRole
from rlightning.policy.generators import Generators
from rlightning.policy.group_formation import GroupFormation
from rlightning.policy.group_routing import GroupRouting
from rlightning.policy.group_state import (
    check_numbers,
    equalise_learners,
    gather_state,
    load_learners,
    require_group,
)
from rlightning.policy.group_weights import GroupWeights, log_mismatches, weight_carrier
from rlightning.policy.members import NO_LEARNER, Members
from rlightning.policy.networks import change_role
from rlightning.policy.training_state import check_extra_training_state, load_own_state
from rlightning.runtime import Call, Future, PartHandle, WorkerHandle, collective_call, gather
from rlightning.runtime.generators import global_generators, set_global_generators
from rlightning.types import BatchedData, EnvMeta, EnvRet, PolicyResponse
from rlightning.weights.bundle import Mismatch
from rlightning.weights.topology import build_transfer_info_for_colocated as build_transfer_info_for_colocated
from rlightning.weights.topology import build_transfer_info_for_disaggregated as build_transfer_info_for_disaggregated


class PolicyGroup:
    """Coordinates train policies (learners) and eval policies (actors), local objects or Ray actors.

    Attributes:
        placement_info: Node -> ``{"train_policies": [...], "eval_policies": [...]}``; filled by
            ``init_placement_info``.
    """

    def __init__(
        self,
        train_policy_list: Sequence[Any],
        eval_policy_list: Sequence[Any],
        config: PolicyConfig,
        *,
        seed: int | None = None,
        call_timeout_s: float | None = None,
        on_shutdown: Callable[[], None] | None = None,
    ) -> None:
        """Take the policies.

        Args:
            train_policy_list: Policies or Ray actor handles of role TRAIN.
            eval_policy_list: Policies or Ray actor handles of role EVAL.
            config: The policy's part of the configuration.
            seed: Seed of the run; None leaves the policies as they are seeded.
            call_timeout_s: Seconds that one call on a policy may take; None is no limit.
            on_shutdown: Called once by ``shutdown``, to end the processes of the policies.
        """
        self._on_shutdown = on_shutdown
        self.config = config
        self.placement_info: dict[str, dict[str, list[Any]]] = {}
        self._seed = seed
        self._members = Members(train_policy_list, eval_policy_list, call_timeout_s)
        self._routing = GroupRouting(self._members, config)
        self._weights = GroupWeights(self._members, config)
        self._formation = GroupFormation(self._members)
        self._eval_config: Any | None = None
        self._start: tuple[TrainConfig, EnvMeta | None, Any | None] | None = None
        self._reports: list[Any] = []

    # Who is there

    @property
    def train_list(self) -> list[Any]:
        """The train policies, as they were given."""
        return [handle.target for handle in self._members.learners]

    @property
    def eval_list(self) -> list[Any]:
        """The eval policies, as they were given."""
        return [handle.target for handle in self._members.actors]

    def push(self, policy_worker: Any, role: PolicyRole) -> None:
        """Add a policy, an object or a Ray actor handle.

        One that had the other role takes this one, and is to be initialised for it.

        An eval policy acts after the next ``sync_weights``. A train policy goes on from the weights, optimizer state
        and version of those that are initialised, and their communication groups are formed again with it.
        """
        role, members = PolicyRole(role), self._members
        newcomer = members.add(policy_worker, role)
        self._reroute()
        self._outdate_groups(role)
        try:
            members.run(members.policies([newcomer]), change_role, role)
            if role is PolicyRole.TRAIN and self._start is not None and len(members.learners) > 1:
                self._join(newcomer, *self._start[:2])
        except BaseException:
            members.of(role).remove(newcomer)
            self._reroute()
            self._outdate_groups(role)
            raise

    def _join(self, newcomer: WorkerHandle, train_config: TrainConfig, env_meta: EnvMeta | None) -> None:
        """Let a policy train from now on, from the weights, optimizer state and version of the others."""
        members = self._members
        if len(members.policies(members.learners)) < len(members.learners):
            return  # a test double has no state
        self._set_seeds([newcomer], first=len(members.learners) - 1)
        newcomer.call(BasePolicy.init_train, train_config, env_meta).result(members.timeout_s)
        self.init_comm_group(*self._formation.options)
        members.call(members.learners, BasePolicy.envs_changed)

    def pop(self, role: PolicyRole) -> Any:
        """Remove the policy that came last and give it back.

        Communication groups are formed again, before they are used next, by those who are left.

        Raises:
            ProtocolError: If there is none.
        """
        members = self._members.of(PolicyRole(role))
        if not members:
            raise ProtocolError(f"there is no policy of role {PolicyRole(role).value!r} to remove")
        handle = members.pop()
        self._reroute()
        self._formation.dismiss(handle)
        self._outdate_groups(PolicyRole(role))
        return handle.target

    def convert_train_to_eval(self, num: int) -> None:
        """Let the last train policies act from now on; the others go on training where they are.

        Args:
            num: How many; one train policy must be left.

        Raises:
            ProtocolError: If too few are there, or the train policies were not initialised.
            WorkerError: If one cannot take the role; those who were to are in the group no more, the others go on.
        """
        self._convert(PolicyRole.EVAL, num, keep=1)

    def convert_eval_to_train(self, num: int) -> None:
        """Let the last eval policies train from now on, with the weights, optimizer state and version of the others.

        Args:
            num: How many.

        Raises:
            ProtocolError: If too few are there, or the train policies were not initialised.
            WorkerError: If one cannot take the role; those who were to are in the group no more, the others go on.
        """
        self._convert(PolicyRole.TRAIN, num, keep=0)

    def _convert(self, role: PolicyRole, num: int, keep: int) -> None:
        """Give policies another role; groups are formed again, and training goes on from where it was."""
        members, is_training = self._members, role is PolicyRole.TRAIN
        leaving, joining = (members.actors, members.learners) if is_training else (members.learners, members.actors)
        if not 0 <= num <= len(leaving) - keep:
            raise ProtocolError(
                f"{num} policies cannot become {role.value} policies: {len(leaving)} are there, and {keep} must stay"
            )
        if self._start is None:
            raise ProtocolError("roles change at run time: call init before")
        if num == 0:
            return
        learners = len(members.learners) + (num if is_training else -num)
        if self._weights.is_colocated and learners < len(members.everybody()) - learners:
            raise ProtocolError(f"colocated policies are pairs: {learners} train policies would be too few")
        self._weights.settle()
        state = self.get_training_state()
        moved, stayed = leaving[-num:], len(joining)
        _, env_meta, eval_config = self._start
        del leaving[-num:]
        try:
            members.run(moved, change_role, role)
            newcomers = [members.add(handle.target, role) for handle in moved]
            self._reroute()
            self._form_anew()
            self._set_seeds(newcomers, first=stayed)
            if not is_training:
                members.call(newcomers, BasePolicy.init_eval, eval_config, env_meta)
            self._train_anew(state)
        except Exception:
            # Who cannot take the role is in the group no more, and the others go on from where they were.
            del joining[stayed:]
            self._reroute()
            self._form_anew()
            self._train_anew(state)
            raise
        self._push_anew()

    def _form_anew(self) -> None:
        """Form the communication groups of those who are there now."""
        if len(self._members.learners) > 1 or self._formation.generation:
            self._form_groups(*self._formation.options)

    def _train_anew(self, state: dict[str, Any]) -> None:
        """Build all train policies anew, because whose gradients are averaged is another group, and let them go on."""
        assert self._start is not None
        self._members.collective_call(self._members.learners, BasePolicy.init_train, *self._start[:2])
        load_learners(self._members, state)
        self._members.call(self._members.learners, BasePolicy.envs_changed)

    def _outdate_groups(self, role: PolicyRole) -> None:
        """Have communication groups formed again before they are used next, where somebody in them came or went."""
        sends_by_groups = weight_carrier(self.config) == "collective"
        if self._formation.generation and (role is PolicyRole.TRAIN or sends_by_groups):
            self._formation.is_outdated = True

    def _renew_groups(self) -> None:
        """Form the communication groups again where they are not those of the policies that there are."""
        if self._formation.is_outdated:
            self.init_comm_group(*self._formation.options)

    # Start

    def init(self, train_config: TrainConfig, env_meta: EnvMeta | None = None, eval_config: Any | None = None) -> None:
        """Initialise all policies."""
        self.init_eval(eval_config, env_meta)
        self.init_train(train_config, env_meta)

    def init_eval(self, eval_config: Any | None = None, env_meta: EnvMeta | None = None) -> list[Any]:
        """Initialise the eval policies.

        Returns:
            What the ``init_eval`` of each one returned, in order.
        """
        self._set_seeds(self._members.actors)
        returned = self._members.call(self._members.actors, BasePolicy.init_eval, eval_config, env_meta)
        self._eval_config = eval_config
        self._weights.forget_buffers()
        return returned

    def init_train(self, train_config: TrainConfig, env_meta: EnvMeta | None = None) -> list[Any]:
        """Initialise the train policies, which start equal where they form a group.

        Returns:
            What the ``init_train`` of each one returned, in order.
        """
        self._renew_groups()
        self._set_seeds(self._members.learners)
        returned = self._members.collective_call(self._members.learners, BasePolicy.init_train, train_config, env_meta)
        self._start = (train_config, env_meta, self._eval_config)
        return returned

    def init_placement_info(self, is_colocated: bool = False) -> None:
        """Find out which policy lives on which node; fills ``placement_info``."""
        self._weights.place(is_colocated)
        self.placement_info = {
            node: {kind: [handle.target for handle in handles] for kind, handles in held.items()}
            for node, held in self._members.placement().items()
        }

    def init_weight_buffer(self) -> None:
        """Choose the way of ``policy.weight_buffer.buffer_strategy``; the buffers are made before the first transfer.

        Raises:
            ValueError: If the strategy is not known.
        """
        self._weights.choose(self.config.weight_buffer.buffer_strategy)

    def init_router(self, env_nodes: Sequence[str]) -> None:
        """Build the router of ``policy.router_type``.

        Args:
            env_nodes: Node of each env worker, by env id.
        """
        self._routing.place_envs(env_nodes)
        self._reroute()

    # Rollout

    def rollout_batch(
        self,
        batched_env_ret: BatchedData[EnvRet | Future[EnvRet]],
        *,
        evaluation: bool = False,
        deterministic: bool = False,
    ) -> BatchedData[Future[PolicyResponse]]:
        """Ask for actions: one call and one forward pass per eval policy, whatever the number of env workers.

        With async rollouts it is one call per env worker, to the policy with the fewest requests in flight.

        Args:
            batched_env_ret: One result, or future of one, per env worker.
            evaluation: Sample from the generator of evaluations, so that training repeats with and without them.
            deterministic: Act with the mode of the policy.

        Returns:
            One future of a response per env id, in order.
        """
        items = batched_env_ret.items
        options = {"evaluation": True, "deterministic": deterministic} if evaluation or deterministic else {}
        if self._routing.is_async:
            return self._rollout_each(batched_env_ret, options)
        env_ids = tuple(batched_env_ret.env_ids)
        routes = self._routing.route(env_ids)
        if len(routes) == 1:
            handle = routes[0][0]
            needed = self._up_to_date(handle, options) if self._weights.pending else options
            return BatchedData(batched_env_ret.env_ids, _ask(handle, items, needed, env_ids))
        answers: list[Any] = [None] * len(items)
        for handle, places in routes:
            asked = [items[place] for place in places]
            asking = [env_ids[place] for place in places]
            given = _ask(handle, asked, self._up_to_date(handle, options), asking)
            for place, answer in zip(places, given, strict=True):
                answers[place] = answer
        return BatchedData(batched_env_ret.env_ids, answers)

    def postprocess(
        self,
        batched_env_ret: BatchedData[Any] | None = None,
        batched_policy_resp: BatchedData[Any] | None = None,
    ) -> BatchedData[Future[Any]]:
        """Finish answers after the envs stepped, each on the policy that gave it."""
        given = batched_env_ret if batched_env_ret is not None else batched_policy_resp
        if given is None:
            raise ValueError("postprocess needs env results, policy responses, or both")
        nothing = [None] * len(given)
        env_rets = nothing if batched_env_ret is None else batched_env_ret.items
        responses = nothing if batched_policy_resp is None else batched_policy_resp.items
        results: list[Any] = list(nothing)
        if self._routing.is_async:
            handles = self._routing.who_answered(given.env_ids)
            asked = zip(handles, given.env_ids, env_rets, responses, strict=True)
            method = BasePolicy._postprocess
            channel = self._routing.channel
            answers = [handle.call_beside(channel(env_id), method, *pair) for handle, env_id, *pair in asked]
            return BatchedData(given.env_ids, answers)
        for handle, places in self._routing.route(tuple(given.env_ids)):
            for place in places:
                results[place] = handle.call(BasePolicy._postprocess, env_rets[place], responses[place])
        return BatchedData(given.env_ids, results)

    # Training

    def update_dataset(self, sample_data: Sequence[Any]) -> int:
        """Hand data to the train policies: one piece, or future of one, each.

        Returns:
            How many versions the oldest weights that acted in the data are behind the learner's.
        """
        if len(sample_data) != len(self._members.learners):
            raise ValueError(
                f"{len(sample_data)} pieces of data for {len(self._members.learners)} train policies: one each"
            )
        self._renew_groups()
        calls = [
            Call(handle, _hook(handle, BasePolicy._update_dataset, BasePolicy.update_dataset), (data,))
            for handle, data in zip(self._members.learners, sample_data, strict=True)
        ]
        return max((lag for lag in collective_call(calls, self._members.timeout_s) if lag is not None), default=0)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train all train policies at once; returns what the first one reports.

        Raises:
            ProtocolError: If there is none, or several that form no group.
        """
        self._renew_groups()
        if len(self._members.learners) > 1 and not self._formation.generation:
            require_group(self._members)
        calls = [
            Call(handle, _hook(handle, BasePolicy._train, BasePolicy.train), args, kwargs)
            for handle in self._members.learners
        ]
        if not calls:
            raise ProtocolError(NO_LEARNER)
        self._reports = collective_call(calls, self._members.timeout_s)
        return self._reports[0]

    def reset_training_state(
        self, train_config: TrainConfig, env_meta: EnvMeta | None = None, seed: int | None = None
    ) -> None:
        """Bring all train policies back to their initial state, equal on all of them; the eval policies do not wait."""
        self._renew_groups()
        self._members.collective_call(
            self._members.learners, BasePolicy.reset_training_state, train_config, env_meta, seed
        )
        if self._formation.generation:
            self._members.collective_call(
                self._members.learners, BasePolicy.dist_barrier, ParallelMode.TRAIN_DATA_PARALLEL
            )

    # Communication groups

    def init_comm_group(self, backend: str = "nccl", is_colocated: bool = False) -> None:
        """Give every policy a rank and form the groups; may be called again when the policies are others.

        Ranks go by node and device, and all meet at the node of rank 0. The groups: the policies of each node; each
        sender of weights with its receivers; the train policies. The first train policy is rank 0 among the train
        policies, and those that are initialised take its weights, optimizer state, epoch and version.

        Args:
            backend: "nccl" becomes "gloo" where policies have no GPU of their own.
            is_colocated: Leave the eval policies out: each shares the device of a train policy.

        Raises:
            WorkerError: If a policy does not come; its cause is a ``CallTimeout`` that names rank, group and phase.
        """
        self._form_groups(backend, is_colocated)
        if self._members.learners:
            equalise_learners(self._members)

    def _form_groups(self, backend: str, is_colocated: bool) -> None:
        deliveries = self._weights.deliveries() if self._members.learners else []
        self._formation.form(backend, is_colocated, [(one.sender, one.receivers) for one in deliveries])

    def mean_metrics(self) -> dict[str, float]:
        """Return the means, over the train policies that report them, of the numbers that the last ``train`` gave.

        Numbers are those of Python and numpy, and tensors with one element. What an algorithm has reduced over the
        ranks itself is the same on all, and so is its mean.

        Raises:
            ProtocolError: If ``train`` was not called yet.
        """
        if not self._reports:
            raise ProtocolError("there are no metrics yet: call train before mean_metrics")
        held: dict[str, list[float]] = {}
        for report in self._reports:
            for name, value in (report if isinstance(report, Mapping) else {}).items():
                number = _number(value)
                if number is not None:
                    held.setdefault(name, []).append(number)
        return {name: math.fsum(values) / len(values) for name, values in held.items()}

    # Weights

    def sync_weights(self) -> int:
        """Bring the learners' weights to every eval policy and announce them.

        Without a weight buffer they are in force when this returns, else after ``wait_for_eval_weight_update``.

        Returns:
            Their version; -1 without eval policies.

        Raises:
            WorkerError: If a policy failed or refused; its cause says why. The weights are not announced then.
        """
        version = self.send_weights()
        self.notify_update_weights()
        return version

    def send_weights(self) -> int:
        """Bring the learners' weights to the buffers of the eval policies, by the transfer plan.

        Returns:
            Their version; -1 without eval policies.
        """
        self._renew_groups()
        return self._weights.send()

    def notify_update_weights(self) -> None:
        """Tell the eval policies to act with the weights that were sent last."""
        self._weights.announce()

    @property
    def version(self) -> int | None:
        """The version that was announced to all eval policies; None before the first ``sync_weights``."""
        return self._weights.version

    def wait_for_eval_weight_update(self, timeout: float = 60.0) -> None:
        """Wait until announced weights are in force; without a weight buffer they are when they are sent.

        Raises:
            WorkerError: If the update of an eval policy failed; its cause says why.
            WeightSyncError: If it takes longer than ``timeout`` seconds; names the policies.
        """
        self._weights.wait(timeout)

    def verify_eval_weight_consistency(self, rtol: float = 1e-3) -> bool:
        """Compare what every eval policy acts with with the first train policy's weights.

        Args:
            rtol: Largest relative difference of the norms of a tensor; 0 compares versions and exact digests.

        Returns:
            Whether all agree. What differs is logged, up to ten tensors per policy.
        """
        self.wait_for_eval_weight_update()
        mismatches = self.compare_weights(rtol)
        log_mismatches(mismatches)
        return not mismatches

    def compare_weights(self, rtol: float = 0.0) -> list[Mismatch]:
        """List every tensor (and version) of an eval policy that is not the learner's; see the method above."""
        return self._weights.compare(rtol)

    # Memory

    def offload_eval_model(self) -> None:
        """Move what acts to host memory; weights that are synced meanwhile are in force after the reload."""
        self._members.call(self._members.actors, BasePolicy.offload_model)

    def reload_eval_model(self) -> None:
        """Move what acts to the device."""
        self._members.call(self._members.actors, BasePolicy.reload_model)

    def offload_model_optimizer(self) -> None:
        """Move the optimizer state of the train policies to host memory; ``reload_model_optimizer`` brings it back."""
        self._members.call(self._members.learners, BasePolicy.offload_optimizer)

    def reload_model_optimizer(self) -> None:
        """Move the optimizer state of the train policies to the device."""
        self._members.call(self._members.learners, BasePolicy.reload_optimizer)

    def offload_model_param_and_grad(self, offload_grad: bool = True, offload_optimizer: bool = True) -> None:
        """Move parameters and buffers of the train policies to host memory.

        Args:
            offload_grad: Move gradients too.
            offload_optimizer: Move the optimizer state too.
        """
        self._members.call(self._members.learners, BasePolicy.offload_model_param_and_grad, offload_grad)
        if offload_optimizer:
            self.offload_model_optimizer()

    def reload_model_param_and_grad(self, load_grad: bool = True, load_optimizer: bool = True) -> None:
        """Move parameters and buffers of the train policies to the device.

        Args:
            load_grad: Move gradients too.
            load_optimizer: Move the optimizer state too.
        """
        self._members.call(self._members.learners, BasePolicy.reload_model_param_and_grad, load_grad)
        if load_optimizer:
            self.reload_model_optimizer()

    # State

    def get_training_state(self) -> dict[str, Any]:
        """Give all that a resumed run needs: the learner's state and the generators of the eval policies."""
        return {**gather_state(self._members), "homes": self._routing.homes()}

    def check_extra_training_state(self) -> None:
        """Have each policy see whether a checkpoint can hold what its author wants kept; see ``BasePolicy``."""
        self._members.run(self._members.policies(self._members.everybody()), check_extra_training_state)

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Take back what ``get_training_state`` gave and bring the weights to the eval policies.

        Raises:
            ProtocolError: If the numbers of policies differ: their generators would not continue.
        """
        check_numbers(self._members, state)
        load_learners(self._members, state)
        self._push_anew()
        for handle, own in zip(self._members.actors, state["eval"], strict=True):
            handle.run(load_own_state, own).result(self._members.timeout_s)
        self._routing.restore_homes(state.get("homes", []))  # version 0.1.0 kept none

    def envs_changed(self) -> None:
        """Tell the train policies that their data come from other envs from now on."""
        self._members.call(self._members.learners, BasePolicy.envs_changed)

    def load_weights(self, state: dict[str, Any]) -> int:
        """Take just what acts from what ``get_training_state`` gave, and bring it to the eval policies."""
        loads = [
            handle.call(BasePolicy.load_training_state, state["train"], act_only=True)
            for handle in self._members.learners
        ]
        gather(loads, self._members.timeout_s)
        return self._push_anew()

    @contextmanager
    def evaluating(self, seed: int) -> Iterator[None]:
        """Let all that is drawn inside follow from a seed; no generator of training, not even a global one, moves."""
        kept = global_generators()
        parts = [handle.part("_generators") for handle in self._members.policies(self._members.actors)]
        self._members.call_each(parts, Generators.begin_evaluation, range(seed, seed + len(parts)))
        try:
            yield
            self._members.call(parts, Generators.end_evaluation)
        finally:
            set_global_generators(kept)  # at last: several policies and envs may live here

    def save_checkpoint(self, path: str | Path) -> None:
        """Write the first train policy's state into a folder."""
        self._members.learner().call(BasePolicy.save_checkpoint, str(path)).result(self._members.timeout_s)

    def print_timing_summary(self, reset: bool = False) -> None:
        """Print where the time of all policies went, as one table.

        Args:
            reset: Start counting anew.
        """
        timers = self._timers()
        timings = self._members.call(timers, Timer.summary)
        if reset:
            self._members.call(timers, Timer.reset)
        by_worker = {timer.name: timing for timer, timing in zip(timers, timings, strict=True)}
        print(timing_table(by_worker))  # noqa: T201 (it says print)

    def record_spans(self) -> None:
        """Have all policies write down, from now on, when they do what."""
        self._members.call(self._timers(), Timer.record_spans)

    def take_spans(self) -> dict[str, list[Span]]:
        """Give what the policies wrote down since the last call, by their names."""
        timers = self._timers()
        spans = self._members.call(timers, Timer.take_spans)
        return {timer.name: taken for timer, taken in zip(timers, spans, strict=True)}

    def _timers(self) -> list[PartHandle]:
        return [handle.part("_timer") for handle in self._members.policies(self._members.everybody())]

    def shutdown(self) -> None:
        """Let go of all policies and end what was started for them; may be called twice."""
        self._formation.leave()
        self._members.learners.clear()
        self._members.actors.clear()
        self._routing.forget()
        if self._on_shutdown is not None:
            on_shutdown, self._on_shutdown = self._on_shutdown, None
            on_shutdown()

    # Inside

    def _set_seeds(self, handles: Sequence[WorkerHandle], first: int = 0) -> None:
        if self._seed is not None:
            seed, timeout_s = self._seed, self._members.timeout_s
            calls = [handle.call(BasePolicy.set_seed, seed, index) for index, handle in enumerate(handles, first)]
            gather(calls, timeout_s)

    def _push_anew(self) -> int:
        """Bring weights that may have a lower version than those in force, as after going back to a checkpoint.

        What is in flight comes first: newer weights on their way would be in force after the older ones, and requests
        on their way may wait for those.
        """
        self._weights.settle()
        self._routing.settle(self._members.timeout_s)
        self._members.call(self._members.actors, BasePolicy.forget_version)
        version = self.sync_weights()
        self.wait_for_eval_weight_update()
        return version

    def _reroute(self) -> None:
        """Take note of a change of the eval policies or of the env workers."""
        with suppress(
            WorkerError, WeightSyncError, CallTimeout
        ):  # who left may be gone, and nobody sends into its buffer again
            self._weights.settle()
        self._weights.forget_buffers()
        self._routing.renew()

    def _up_to_date(self, handle: WorkerHandle, options: dict[str, Any]) -> dict[str, Any]:
        """Let a request say which version it has to wait for: new weights and requests come by different channels."""
        version = self._weights.pending.get(handle)
        if version is None or not self._members.policies([handle]):  # a test double has none
            return options
        return {**options, "at_least": version}

    def _rollout_each(self, asked: BatchedData[Any], options: dict[str, Any]) -> BatchedData[Future[PolicyResponse]]:
        """Make a request of its own for each env worker, beside all others."""
        answers: list[Future[PolicyResponse]] = []
        for (env_id, env_ret), handle in zip(asked, self._routing.spread(tuple(asked.env_ids)), strict=True):
            method = _hook(handle, BasePolicy._rollout_async, BasePolicy._rollout)
            needed = self._up_to_date(handle, options)
            if hasattr(handle.target, "_rollout_batch"):  # a bare double knows no ids
                needed = {**needed, "env_ids": (env_id,)}
            answers.append(handle.call_beside(self._routing.channel(env_id), method, env_ret, **needed))
            self._routing.started(handle, answers[-1])
        return BatchedData(asked.env_ids, answers)


def _number(value: Any) -> float | None:
    """Return a number of Python or numpy, or the element of a tensor or array with one; None where it is none."""
    try:
        plain = value.item() if hasattr(value, "item") else value
    except (RuntimeError, ValueError):
        return None
    return float(plain) if isinstance(plain, int | float) else None


def _hook(handle: WorkerHandle, own: Any, users: Any) -> Any:
    """Choose the framework's method where the policy has it; a bare double may have just the user's."""
    return own if hasattr(handle.target, own.__name__) else users


def _ask(
    handle: WorkerHandle, env_rets: Sequence[Any], options: dict[str, Any], env_ids: Sequence[Any]
) -> list[Future[PolicyResponse]]:
    knows_ids = hasattr(handle.target, "_rollout_batch")  # a bare double does not
    if len(env_rets) == 1:
        given = {**options, "env_ids": env_ids} if knows_ids else options
        return [handle.call(BasePolicy._rollout, env_rets[0], **given)]
    if knows_ids:
        return handle.call_split(len(env_rets), BasePolicy._rollout_batch, *env_rets, **options, env_ids=env_ids)
    return [handle.call(BasePolicy._rollout, env_ret, **options) for env_ret in env_rets]
