"""Many policies of both roles as one: roles, requests, training, weights and state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlightning.config import PolicyConfig, TrainConfig
from rlightning.distributed import ParallelMode
from rlightning.errors import ProtocolError
from rlightning.observability.timer import Span, Timer, timing_table
from rlightning.policy.base_policy import BasePolicy, PolicyRole
from rlightning.policy.generators import Generators
from rlightning.policy.group_formation import GroupFormation
from rlightning.policy.group_roles import GroupRoles
from rlightning.policy.group_routing import GroupRouting
from rlightning.policy.group_state import GroupState, require_group
from rlightning.policy.group_weights import GroupWeights, broadcasts_weights, log_mismatches
from rlightning.policy.learning import mean_numbers
from rlightning.policy.members import NO_LEARNER, Members
from rlightning.runtime import Call, Future, collective_call
from rlightning.runtime.generators import global_generators, set_global_generators
from rlightning.types import BatchedData, EnvMeta, EnvRet, PolicyResponse
from rlightning.weights.comparison import Mismatch
from rlightning.weights.topology import build_transfer_info_for_colocated as build_transfer_info_for_colocated
from rlightning.weights.topology import build_transfer_info_for_disaggregated as build_transfer_info_for_disaggregated


class PolicyGroup:
    """Coordinates train policies (learners) and eval policies (actors), local objects or Ray actors.

    Attributes:
        placement_info: Node -> ``{"train_policies": [...], "eval_policies": [...]}``; filled by
            ``init_placement_info``.
        routing: Sends requests; knows the nodes of the env workers.
        state: Gathers and restores what a run keeps.
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
        """Wrap the policies.

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
        self._members = Members(train_policy_list, eval_policy_list, call_timeout_s, seed)
        self._weights = GroupWeights(self._members, config)
        self.routing = GroupRouting(self._members, config, self._weights)
        self.state = GroupState(self._members, self.routing, self._weights)
        self._formation = GroupFormation(self._members, self._weights, self.state)
        sends_by_groups = broadcasts_weights(self.config)
        parts = (self._members, self.routing, self._weights, self.state, self._formation)
        self._roles = GroupRoles(*parts, sends_by_groups=sends_by_groups)
        self._eval_config: Any | None = None
        self._reports: list[Any] = []

    # Members

    @property
    def train_list(self) -> list[Any]:
        """The train policies, as they were given."""
        return [handle.target for handle in self._members.learners]

    @property
    def eval_list(self) -> list[Any]:
        """The eval policies, as they were given."""
        return [handle.target for handle in self._members.actors]

    def push(self, policy_worker: Any, role: PolicyRole) -> None:
        """Add a policy, an object or a Ray actor handle; one of the other role is to be initialised for this one.

        An eval policy acts after the next ``sync_weights``. A train policy goes on from the weights, optimizer state
        and version of those that are initialised, and their communication groups are formed again with it.
        """
        self._roles.push(policy_worker, PolicyRole(role))

    def pop(self, role: PolicyRole) -> Any:
        """Remove the policy that came last and return it.

        Communication groups are formed again, before they are used next, by those that are left.

        Raises:
            ProtocolError: If there is none.
        """
        return self._roles.pop(PolicyRole(role))

    def convert_train_to_eval(self, num: int) -> None:
        """Turn the last train policies into eval policies; the others go on training where they are.

        Args:
            num: How many; one train policy must be left.

        Raises:
            ProtocolError: If too few are there, or the train policies were not initialised.
            WorkerError: If one cannot take the role; those that were to are in the group no more, the others go on.
        """
        self._roles.convert(PolicyRole.EVAL, num, keep=1)

    def convert_eval_to_train(self, num: int) -> None:
        """Turn the last eval policies into train policies, with the weights, optimizer state and version of the others.

        Args:
            num: How many.

        Raises:
            ProtocolError: If too few are there, or the train policies were not initialised.
            WorkerError: If one cannot take the role; those that were to are in the group no more, the others go on.
        """
        self._roles.convert(PolicyRole.TRAIN, num, keep=0)

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
        self._members.set_seeds(self._members.actors)
        returned = self._members.call(self._members.actors, BasePolicy.init_eval, eval_config, env_meta)
        self._eval_config = eval_config
        self._weights.forget_buffers()
        return returned

    def init_train(self, train_config: TrainConfig, env_meta: EnvMeta | None = None) -> list[Any]:
        """Initialise the train policies, which start equal where they form a group.

        Returns:
            What the ``init_train`` of each one returned, in order.
        """
        self._formation.renew()
        self._members.set_seeds(self._members.learners)
        returned = self._members.collective_call(self._members.learners, BasePolicy.init_train, train_config, env_meta)
        self._roles.start = (train_config, env_meta, self._eval_config)
        return returned

    def init_placement_info(self, is_colocated: bool = False) -> None:
        """Find the node of each policy; fills ``placement_info``."""
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
        options = {"evaluation": True, "deterministic": deterministic} if evaluation or deterministic else {}
        return self.routing.rollout(batched_env_ret, options)

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
        return BatchedData(given.env_ids, self.routing.postprocess(given.env_ids, env_rets, responses))

    # Training

    def update_dataset(self, sample_data: Sequence[Any]) -> int:
        """Pass data to the train policies: one piece, or future of one, each.

        Returns:
            How many versions the oldest weights that acted in the data are behind the learner's.
        """
        if len(sample_data) != len(self._members.learners):
            raise ValueError(
                f"{len(sample_data)} pieces of data for {len(self._members.learners)} train policies: one each"
            )
        self._formation.renew()
        calls = [
            Call(handle, self._members.methods[handle].update_dataset, (data,))
            for handle, data in zip(self._members.learners, sample_data, strict=True)
        ]
        return max((lag for lag in collective_call(calls, self._members.timeout_s) if lag is not None), default=0)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train all train policies at once; returns what the first one reports.

        Raises:
            ProtocolError: If there is none, or several that form no group.
        """
        self._formation.renew()
        if len(self._members.learners) > 1 and not self._formation.generation:
            require_group(self._members)
        calls = [Call(handle, self._members.methods[handle].train, args, kwargs) for handle in self._members.learners]
        if not calls:
            raise ProtocolError(NO_LEARNER)
        self._reports = collective_call(calls, self._members.timeout_s)
        return self._reports[0]

    def mean_metrics(self) -> dict[str, float]:
        """Return the means, over the train policies that report them, of the numbers that the last ``train`` gave.

        What an algorithm has reduced over the ranks itself is the same on all, and so is its mean.

        Raises:
            ProtocolError: If ``train`` was not called yet.
        """
        if not self._reports:
            raise ProtocolError("there are no metrics yet: call train before mean_metrics")
        return mean_numbers(self._reports)

    def reset_training_state(
        self, train_config: TrainConfig, env_meta: EnvMeta | None = None, seed: int | None = None
    ) -> None:
        """Bring all train policies back to their initial state, equal on all of them; the eval policies do not wait."""
        self._formation.renew()
        members, learners = self._members, self._members.learners
        members.collective_call(learners, BasePolicy.reset_training_state, train_config, env_meta, seed)
        if self._formation.generation:
            members.collective_call(learners, BasePolicy.dist_barrier, ParallelMode.TRAIN_DATA_PARALLEL)

    # Communication groups

    def init_comm_group(self, backend: str = "nccl", is_colocated: bool = False) -> None:
        """Assign ranks to the policies and form their groups; may be called again when the policies are others.

        Ranks go by node and device, and all meet at the node of rank 0. The groups: the policies of each node; each
        sender of weights with its receivers; the train policies. The first train policy is rank 0 among the train
        policies, and those that are initialised take its weights, optimizer state, epoch and version.

        Args:
            backend: "nccl" becomes "gloo" where policies have no GPU of their own.
            is_colocated: Leave the eval policies out: each shares the device of a train policy.

        Raises:
            WorkerError: If a policy does not come; its cause is a ``CallTimeout`` that names rank, group and phase.
        """
        self._formation.form_equal(backend, is_colocated)

    # Weights

    def sync_weights(self) -> int:
        """Send the learners' weights to every eval policy and announce them.

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
        """Send the learners' weights to the buffers of the eval policies, by the transfer plan.

        Returns:
            Their version; -1 without eval policies.
        """
        if self._formation.is_outdated:
            self._formation.renew()
        return self._weights.send()

    def notify_update_weights(self) -> None:
        """Announce the weights that were sent last to the eval policies, which put them in force."""
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
        """Return all that a resumed run needs: the learner's state and what is each policy's own."""
        return self.state.gather()

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Restore what ``get_training_state`` returned and bring the weights to the eval policies.

        Raises:
            ProtocolError: If the numbers of policies differ: their generators would not continue.
        """
        self.state.load(state)

    @contextmanager
    def evaluating(self, seed: int) -> Iterator[None]:
        """Seed what is drawn inside; no generator of training, not even a global one, moves."""
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
        timers = self._members.timers()
        timings = self._members.call(timers, Timer.summary)
        if reset:
            self._members.call(timers, Timer.reset)
        print(timing_table({timer.name: timing for timer, timing in zip(timers, timings, strict=True)}))  # noqa: T201

    def record_spans(self) -> None:
        """Record, from now on, when the policies do what."""
        self._members.call(self._members.timers(), Timer.record_spans)

    def take_spans(self) -> dict[str, list[Span]]:
        """Return what was recorded since the last call, by the names of the policies."""
        timers = self._members.timers()
        spans = self._members.call(timers, Timer.take_spans)
        return {timer.name: taken for timer, taken in zip(timers, spans, strict=True)}

    def shutdown(self) -> None:
        """Drop all policies and end what was started for them; may be called twice."""
        self._formation.leave(self._members.handles())
        self._members.remove(self._members.handles())
        self.routing.forget()
        if self._on_shutdown is not None:
            on_shutdown, self._on_shutdown = self._on_shutdown, None
            on_shutdown()
