"""Many policies of both roles as one: routing of rollouts, training, and getting new weights to all who act."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlightning.config import PolicyConfig, TrainConfig
from rlightning.distributed import Member, ParallelMode, plan_groups
from rlightning.errors import CallTimeout, ConfigError, PlacementError, ProtocolError, WeightSyncError, WorkerError
from rlightning.observability.timer import Span, timing_table
from rlightning.policy.base_policy import BasePolicy, PolicyRole
from rlightning.policy.router import LoadRouter, NodeAffinityRouter, Router, SimpleRouter, stick
from rlightning.runtime import Call, Future, WorkerHandle, as_handle, gather, together, wait
from rlightning.types import BatchedData, EnvMeta, EnvRet, PolicyResponse
from rlightning.weights.bundle import Mismatch
from rlightning.weights.sync import CARRIERS, WEIGHT_SYNCS, ColocatedSync, Delivery, WeightSync
from rlightning.weights.topology import build_transfer_info_for_colocated, build_transfer_info_for_disaggregated

logger = logging.getLogger(__name__)

_SETTLE_S = 60.0
"""Seconds to wait for weights that were announced before others are sent."""
ASYNC_CHANNELS = 64
"""Most channels that a policy with async rollouts needs for requests; more env workers than that share them."""

_MOST_ROUTES = 1024
"""Choices that are kept; which env workers ask together may differ from step to step."""
_NO_LEARNER = "the group has no train policy: give one to PolicyGroup, or push one"


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
        self._learners = [as_handle(policy, f"train[{i}]") for i, policy in enumerate(train_policy_list)]
        self._actors = [as_handle(policy, f"eval[{i}]") for i, policy in enumerate(eval_policy_list)]
        self._seed = seed
        self._timeout_s = call_timeout_s
        self._env_nodes: tuple[str, ...] = ()
        self._is_async = config.rollout_mode == "async"
        self._router: Router = LoadRouter() if self._is_async else SimpleRouter()
        self._is_stateful: bool | None = None
        self._homes: dict[int, WorkerHandle] = {}  # who answered each env worker last
        self._in_flight: list[tuple[WorkerHandle, Future[Any]]] = []  # with async rollouts
        self._announced: dict[WorkerHandle, int] = {}  # the version that each eval policy was last sent
        self._routes: dict[tuple[int, ...], list[tuple[WorkerHandle, list[int]]]] = {}
        self._is_colocated = False
        self._strategy = "None"
        self._weight_sync: WeightSync | None = None
        self._is_settled = True  # whether announced weights are known to be in force
        self._is_unannounced = False  # whether weights were sent and nobody was told
        self._sent_version = -1
        self._announced_version: int | None = None
        self._transfer_sets: list[tuple[Any, list[Any]]] | None = None  # None: by the transfer plan
        self._generation = 0
        self._comm_options: tuple[str, bool] = ("nccl", False)
        self._eval_config: Any | None = None
        self._start: tuple[TrainConfig, EnvMeta | None, Any | None] | None = None
        self._reports: list[Any] = []

    # Who is there

    @property
    def train_list(self) -> list[Any]:
        """The train policies, as they were given."""
        return [handle.target for handle in self._learners]

    @property
    def eval_list(self) -> list[Any]:
        """The eval policies, as they were given."""
        return [handle.target for handle in self._actors]

    def push(self, worker: Any, role: PolicyRole) -> None:
        """Add a policy; an eval policy acts after the next ``sync_weights``."""
        role = PolicyRole(role)
        members = self._members(role)
        members.append(as_handle(worker, f"{role.value}[{len(members)}]"))
        self._reroute()

    def pop(self, role: PolicyRole) -> Any:
        """Remove the policy that came last and give it back.

        Raises:
            ProtocolError: If there is none.
        """
        members = self._members(PolicyRole(role))
        if not members:
            raise ProtocolError(f"there is no policy of role {PolicyRole(role).value!r} to remove")
        worker = members.pop().target
        self._reroute()
        return worker

    def convert_train_to_eval(self, num: int) -> None:
        """Let the last train policies act from now on; the others go on training where they are.

        Args:
            num: How many; one train policy must be left.

        Raises:
            ProtocolError: If too few are there, or the train policies were not initialised.
        """
        self._convert(self._learners, self._actors, PolicyRole.EVAL, num, keep=1)

    def convert_eval_to_train(self, num: int) -> None:
        """Let the last eval policies train from now on, with the weights, optimizer state and version of the others.

        Args:
            num: How many.

        Raises:
            ProtocolError: If too few are there, or the train policies were not initialised.
        """
        self._convert(self._actors, self._learners, PolicyRole.TRAIN, num, keep=0)

    def _convert(
        self, leaving: list[WorkerHandle], joining: list[WorkerHandle], role: PolicyRole, num: int, keep: int
    ) -> None:
        """Give policies another role; groups are formed again, and training goes on from where it was."""
        if not 0 <= num <= len(leaving) - keep:
            raise ProtocolError(
                f"{num} policies cannot become {role.value} policies: {len(leaving)} are there, and {keep} must stay"
            )
        if self._start is None:
            raise ProtocolError("roles change at run time: call init before")
        if num == 0:
            return
        learners = len(self._learners) + (num if role is PolicyRole.TRAIN else -num)
        if self._is_colocated and learners < len(self._learners) + len(self._actors) - learners:
            raise ProtocolError(f"colocated policies are pairs: {learners} train policies would be too few")
        self._settle()
        state = self.get_training_state()
        moved = leaving[-num:]
        gather([handle.call(BasePolicy.change_role, role) for handle in moved], self._timeout_s)
        del leaving[-num:]
        for handle in moved:
            joining.append(as_handle(handle.target, f"{role.value}[{len(joining)}]"))
        self._reroute()
        train_config, env_meta, eval_config = self._start
        if len(self._learners) > 1 or self._generation:
            self.init_comm_group(*self._comm_options)
        newcomers = joining[-num:]
        self._set_seeds(newcomers, first=len(joining) - num)
        if role is PolicyRole.EVAL:
            self._all(newcomers, BasePolicy.init_eval, eval_config, env_meta)
        # All train policies are built anew, because whose gradients are averaged is another group; then all go on.
        self._together(self._learners, BasePolicy.init_train, train_config, env_meta)
        own = [{}, *state["train_peers"]][: len(self._learners)]
        own += self._all(self._learners[len(own) :], BasePolicy.get_own_state)
        loads = [
            handle.call(BasePolicy.load_training_state, {**state["train"], **peer})
            for handle, peer in zip(self._learners, own, strict=True)
        ]
        gather(loads, self._timeout_s)
        self._all(self._learners, BasePolicy.envs_changed)
        self._push_anew()

    # Start

    def init(self, train_config: TrainConfig, env_meta: EnvMeta | None = None, eval_config: Any | None = None) -> None:
        """Initialise all policies."""
        self.init_eval(eval_config, env_meta)
        self.init_train(train_config, env_meta)

    def init_eval(self, eval_config: Any | None = None, env_meta: EnvMeta | None = None) -> None:
        """Initialise the eval policies."""
        self._set_seeds(self._actors)
        self._all(self._actors, BasePolicy.init_eval, eval_config, env_meta)
        self._eval_config = eval_config
        self._forget_buffers()

    def init_train(self, train_config: TrainConfig, env_meta: EnvMeta | None = None) -> None:
        """Initialise the train policies, which start equal where they form a group."""
        self._set_seeds(self._learners)
        self._together(self._learners, BasePolicy.init_train, train_config, env_meta)
        self._start = (train_config, env_meta, self._eval_config)

    def init_placement_info(self, is_colocated: bool = False) -> None:
        """Find out which policy lives on which node; fills ``placement_info``."""
        self._is_colocated, self._weight_sync = is_colocated, None
        self.placement_info = {
            node: {kind: [handle.target for handle in handles] for kind, handles in held.items()}
            for node, held in self._placement().items()
        }

    def init_weight_buffer(self) -> None:
        """Choose the way of ``policy.weight_buffer.buffer_strategy``; the buffers are made before the first transfer.

        Raises:
            ValueError: If the strategy is not known.
        """
        strategy = self.config.weight_buffer.buffer_strategy
        if strategy not in WEIGHT_SYNCS:
            raise ConfigError(
                f"policy.weight_buffer.buffer_strategy: {strategy!r} is none of {', '.join(WEIGHT_SYNCS)}"
            )
        self._strategy, self._weight_sync = strategy, None

    def init_router(self, env_nodes: Sequence[str]) -> None:
        """Build the router of ``policy.router_type``.

        Args:
            env_nodes: Node of each env worker, by env id.
        """
        self._env_nodes = tuple(env_nodes)
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
        if self._is_async:
            return self._rollout_each(batched_env_ret, options)
        routes = self._route(tuple(batched_env_ret.env_ids))
        if len(routes) == 1:
            return BatchedData(batched_env_ret.env_ids, _ask(routes[0][0], items, options))
        answers: list[Any] = [None] * len(items)
        for handle, places in routes:
            asked = [items[place] for place in places]
            for place, answer in zip(places, _ask(handle, asked, options), strict=True):
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
        if self._is_async:
            return self._postprocess_each(given.env_ids, env_rets, responses)
        for handle, places in self._route(tuple(given.env_ids)):
            for place in places:
                results[place] = handle.call(BasePolicy._postprocess, env_rets[place], responses[place])
        return BatchedData(given.env_ids, results)

    # Training

    def update_dataset(self, sample_data: Sequence[Any]) -> int:
        """Hand data to the train policies: one piece, or future of one, each.

        Returns:
            How many versions the oldest weights that acted in the data are behind the learner's.
        """
        if len(sample_data) != len(self._learners):
            raise ValueError(f"{len(sample_data)} pieces of data for {len(self._learners)} train policies: one each")
        calls = [
            Call(handle, _hook(handle, BasePolicy._update_dataset, BasePolicy.update_dataset), (data,))
            for handle, data in zip(self._learners, sample_data, strict=True)
        ]
        return max((lag for lag in together(calls, self._timeout_s) if lag is not None), default=0)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train all train policies at once; returns what the first one reports."""
        calls = [
            Call(handle, _hook(handle, BasePolicy._train, BasePolicy.train), args, kwargs) for handle in self._learners
        ]
        if not calls:
            raise ProtocolError(_NO_LEARNER)
        self._reports = together(calls, self._timeout_s)
        return self._reports[0]

    def reset_training_state(
        self, train_config: TrainConfig, env_meta: EnvMeta | None = None, seed: int | None = None
    ) -> None:
        """Bring all train policies back to their initial state, equal on all of them; the eval policies do not wait."""
        self._together(self._learners, BasePolicy.reset_training_state, train_config, env_meta, seed)
        if self._generation:
            self._together(self._learners, BasePolicy.dist_barrier, ParallelMode.TRAIN_DATA_PARALLEL)

    # Communication groups

    def init_comm_group(self, backend: str = "nccl", is_colocated: bool = False) -> None:
        """Give every policy a rank and form the groups; may be called again when the policies are others.

        Ranks go by node and device, and all meet at the node of rank 0. The groups: the policies of each node; each
        sender of weights with its receivers (``_transfer_sets``); the train policies. The first train policy is rank 0
        among the train policies.

        Args:
            backend: "nccl" becomes "gloo" where policies have no GPU of their own.
            is_colocated: Leave the eval policies out: each shares the device of a train policy.

        Raises:
            WorkerError: If a policy does not come; its cause is a ``CallTimeout`` that names rank, group and phase.
        """
        self._comm_options = (backend, is_colocated)
        handles = [*self._learners] if is_colocated else [*self._learners, *self._actors]
        if not handles:
            return
        nodes = self._all(handles, BasePolicy._get_node_id)
        devices = self._all(handles, BasePolicy._get_gpu_ids)
        members = [
            Member(place, nodes[place], tuple(devices[place]), trains=place < len(self._learners))
            for place in range(len(handles))
        ]
        plan = plan_groups(members, self._transfers(handles), backend)
        by_rank = [handles[seat.member.key] for seat in plan.seats]
        address, port = by_rank[0].call(BasePolicy._get_addr_and_port).result(self._timeout_s)
        self._generation += 1
        # Whoever waits in vain shall say so before the call itself is given up.
        patience = {} if self._timeout_s is None else {"timeout_s": 0.9 * self._timeout_s}
        options = {"generation": self._generation, **patience}
        together(
            [
                Call(
                    handle,
                    BasePolicy.init_distributed_env,
                    (seat.rank, len(handles), seat.local_rank, seat.local_size, address, port, plan.backend),
                    options,
                )
                for handle, seat in zip(by_rank, plan.seats, strict=True)
            ],
            self._timeout_s,
        )
        # Torch's default group can only hold one rank per process.
        alone = all(handle.info().remote for handle in self._learners)
        together(
            [
                Call(
                    by_rank[rank],
                    BasePolicy.init_single_comm_group,
                    (group.ranks, group.mode, group.backend),
                    {"as_default": True} if alone and group.mode is ParallelMode.TRAIN_DATA_PARALLEL else {},
                )
                for group in plan.groups
                for rank in group.ranks
            ],
            self._timeout_s,
        )

    def mean_metrics(self) -> dict[str, float]:
        """Give the means, over the train policies that report them, of the numbers that the last ``train`` gave.

        What an algorithm has reduced over the ranks itself is the same on all, and so is its mean.
        """
        held: dict[str, list[float]] = {}
        for report in self._reports:
            for name, value in (report if isinstance(report, Mapping) else {}).items():
                if isinstance(value, int | float):
                    held.setdefault(name, []).append(float(value))
        return {name: math.fsum(values) / len(values) for name, values in held.items()}

    def _transfers(self, handles: Sequence[WorkerHandle]) -> list[tuple[int, list[int]]]:
        """Say by places in ``handles`` who sends weights to whom; pairs with somebody else are left out."""
        if self._transfer_sets is None:
            sets: dict[int, tuple[Any, list[Any]]] = {}
            for delivery in self._deliveries() if self._learners else []:
                held = sets.setdefault(id(delivery.sender), (delivery.sender.target, []))
                held[1].extend(receiver.target for receiver in delivery.receivers)
            transfers = list(sets.values())
        else:
            transfers = self._transfer_sets
        places = {id(handle.target): place for place, handle in enumerate(handles)}
        found = [
            (places.get(id(sender)), [places[id(one)] for one in receivers if id(one) in places])
            for sender, receivers in transfers
        ]
        return [(sender, receivers) for sender, receivers in found if sender is not None and receivers]

    def _together(self, handles: Sequence[WorkerHandle], method: Any, *args: Any) -> list[Any]:
        """Call a method of several policies, each of which may wait for the others."""
        return together([Call(handle, method, args) for handle in handles], self._timeout_s)

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
        self._learner()
        if not self._actors:
            return -1
        self._settle()
        if self._is_unannounced:
            # Weights that nobody was told of may lie complete in some buffers, whose next place to write is then what
            # their policies act with.
            self._weight_sync = None
        if self._weight_sync is None:
            weight_sync = self._make_weight_sync()
            weight_sync.prepare(self._timeout_s)
            self._weight_sync = weight_sync
        self._is_unannounced = True
        self._sent_version = self._weight_sync.send(self._timeout_s)
        return self._sent_version

    def notify_update_weights(self) -> None:
        """Tell the eval policies to act with the weights that were sent last."""
        if self._weight_sync is not None:
            self._is_settled = False
            self._weight_sync.announce(self._timeout_s)
            self._is_unannounced = False
            self._announced_version = self._sent_version
            self._announced = dict.fromkeys(self._actors, self._sent_version)

    @property
    def version(self) -> int | None:
        """The version that was announced to all eval policies; None before the first ``sync_weights``."""
        return self._announced_version

    def wait_for_eval_weight_update(self, timeout: float = 60.0) -> None:
        """Wait until announced weights are in force; without a weight buffer they are when they are sent.

        Raises:
            WorkerError: If the update of an eval policy failed; its cause says why.
            WeightSyncError: If it takes longer than ``timeout`` seconds; names the policies.
        """
        if self._weight_sync is None:
            return
        late = self._weight_sync.wait(timeout)
        if late:
            raise WeightSyncError(f"new weights are not in force after {timeout} s at {', '.join(late)}")
        self._is_settled = True

    def verify_eval_weight_consistency(self, rtol: float = 1e-3) -> bool:
        """Compare what every eval policy acts with with the first train policy's weights.

        Args:
            rtol: Largest relative difference of the norms of a tensor; 0 compares versions and exact digests.

        Returns:
            Whether all agree. What differs is logged, up to ten tensors per policy.
        """
        self.wait_for_eval_weight_update()
        mismatches = self.compare_weights(rtol)
        for handle_index in range(len(self._actors)):
            own = [mismatch for mismatch in mismatches if mismatch.policy == handle_index]
            for mismatch in own[:10]:
                logger.error("weights differ: %s", mismatch)
            if len(own) > 10:
                logger.error("weights differ: eval[%d] has %d more", handle_index, len(own) - 10)
        return not mismatches

    def compare_weights(self, rtol: float = 0.0) -> list[Mismatch]:
        """List every tensor (and version) of an eval policy that is not the learner's; see the method above."""
        if rtol > 0:
            expected_norms = self._learner().call(BasePolicy.get_param_fingerprint).result(self._timeout_s)
            found_norms = self._all(self._actors, BasePolicy.get_param_fingerprint)
            return [
                mismatch
                for index, norms in enumerate(found_norms)
                for mismatch in _differences(index, expected_norms, norms, rtol)
            ]
        version, expected = self._learner().call(BasePolicy.get_bundle_digest).result(self._timeout_s)
        mismatches: list[Mismatch] = []
        for index, (found_version, found) in enumerate(self._all(self._actors, BasePolicy.get_bundle_digest)):
            if found_version != version:
                mismatches.append(Mismatch(index, "version", version, found_version))
            mismatches += _differences(index, expected, found, 0.0)
        return mismatches

    # Memory

    def offload_eval_model(self) -> None:
        """Move what acts to host memory; weights that are synced meanwhile are in force after the reload."""
        self._all(self._actors, BasePolicy.offload_model)

    def reload_eval_model(self) -> None:
        """Move what acts to the device."""
        self._all(self._actors, BasePolicy.reload_model)

    def offload_model_optimizer(self) -> None:
        """Move all that the train policies hold to host memory: parameters, buffers, gradients, optimizer state."""
        self.offload_model_param_and_grad(offload_grad=True, offload_optimizer=True)

    def offload_model_param_and_grad(self, offload_grad: bool = True, offload_optimizer: bool = True) -> None:
        """Move parameters and buffers of the train policies to host memory.

        Args:
            offload_grad: Move gradients too.
            offload_optimizer: Move the optimizer state too.
        """
        self._all(self._learners, BasePolicy.offload_model_param_and_grad, offload_grad)
        if offload_optimizer:
            self._all(self._learners, BasePolicy.offload_optimizer)

    def reload_model_param_and_grad(self, load_grad: bool = True, load_optimizer: bool = True) -> None:
        """Move parameters and buffers of the train policies to the device.

        Args:
            load_grad: Move gradients too.
            load_optimizer: Move the optimizer state too.
        """
        self._all(self._learners, BasePolicy.reload_model_param_and_grad, load_grad)
        if load_optimizer:
            self._all(self._learners, BasePolicy.reload_optimizer)

    # State

    def get_training_state(self) -> dict[str, Any]:
        """Give all that a resumed run needs: the learner's state and the generators of the eval policies."""
        train = self._learner().call(BasePolicy.get_training_state)
        peers = [handle.call(BasePolicy.get_own_state) for handle in self._learners[1:]]
        actors = [handle.call(BasePolicy.get_training_state) for handle in self._actors]
        states = gather([train, *peers, *actors], self._timeout_s)
        # What the eval policies act with is the learner's: keep only what is their own.
        own = ("role", "generator", "evaluation_generator")
        count = len(self._learners)
        return {
            "train": states[0],
            "train_peers": states[1:count],
            "eval": [{name: state[name] for name in own} for state in states[count:]],
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Take back what ``get_training_state`` gave and bring the weights to the eval policies.

        Raises:
            ProtocolError: If the numbers of policies differ: their generators would not continue.
        """
        if len(state["train_peers"]) + 1 != len(self._learners):
            raise ProtocolError(
                f"the checkpoint is of a run with {len(state['train_peers']) + 1} train policies, this one has "
                f"{len(self._learners)}: set cluster.train_worker_num={len(state['train_peers']) + 1}"
            )
        if len(state["eval"]) != len(self._actors):
            raise ProtocolError(
                f"the checkpoint is of a run with {len(state['eval'])} eval policies, this one has "
                f"{len(self._actors)}: set cluster.eval_worker_num={len(state['eval'])}"
            )
        loads = [
            handle.call(BasePolicy.load_training_state, {**state["train"], **own})
            for handle, own in zip(self._learners, [{}, *state["train_peers"]], strict=True)
        ]
        gather(loads, self._timeout_s)
        self._push_anew()
        calls = [
            handle.call(BasePolicy.load_generators, own)
            for handle, own in zip(self._actors, state["eval"], strict=True)
        ]
        gather(calls, self._timeout_s)

    def load_weights(self, state: dict[str, Any]) -> int:
        """Take just what acts from what ``get_training_state`` gave, and bring it to the eval policies."""
        loads = [
            handle.call(BasePolicy.load_training_state, state["train"], act_only=True) for handle in self._learners
        ]
        gather(loads, self._timeout_s)
        return self._push_anew()

    def seed_evaluation(self, seed: int) -> None:
        """Let the sampling of the next evaluation follow from a seed; each eval policy draws differently."""
        gather(
            [handle.call(BasePolicy.seed_evaluation, seed + index) for index, handle in enumerate(self._actors)],
            self._timeout_s,
        )

    def save_checkpoint(self, path: str | Path) -> None:
        """Write the first train policy's state into a folder."""
        self._learner().call(BasePolicy.save_checkpoint, str(path)).result(self._timeout_s)

    def print_timing_summary(self, reset: bool = False) -> None:
        """Print where the time of all policies went, as one table.

        Args:
            reset: Start counting anew.
        """
        handles = [*self._learners, *self._actors]
        timings = self._all(handles, BasePolicy.take_timing, reset)
        by_worker = {handle.name: timing for handle, timing in zip(handles, timings, strict=True)}
        print(timing_table(by_worker))  # noqa: T201 (it says print)

    def record_spans(self) -> None:
        """Have all policies write down, from now on, when they do what."""
        self._all([*self._learners, *self._actors], BasePolicy.record_spans)

    def take_spans(self) -> dict[str, list[Span]]:
        """Give what the policies wrote down since the last call, by their names."""
        handles = [*self._learners, *self._actors]
        spans = self._all(handles, BasePolicy.take_spans)
        return {handle.name: taken for handle, taken in zip(handles, spans, strict=True)}

    def shutdown(self) -> None:
        """Let go of all policies and end what was started for them; may be called twice."""
        if self._generation:
            # Nobody waits for it: a policy whose process is gone has left its groups already.
            for handle in [*self._learners, *self._actors]:
                handle.call(BasePolicy.close_comm_groups)
            self._generation = 0
        self._learners.clear()
        self._actors.clear()
        self._routes.clear()
        self._homes.clear()
        self._in_flight.clear()
        if self._on_shutdown is not None:
            on_shutdown, self._on_shutdown = self._on_shutdown, None
            on_shutdown()

    # Inside

    def _members(self, role: PolicyRole) -> list[WorkerHandle]:
        return self._learners if role is PolicyRole.TRAIN else self._actors

    def _learner(self) -> WorkerHandle:
        if not self._learners:
            raise ProtocolError(_NO_LEARNER)
        return self._learners[0]

    def _set_seeds(self, handles: Sequence[WorkerHandle], first: int = 0) -> None:
        if self._seed is not None:
            gather(
                [handle.call(BasePolicy.set_seed, self._seed, index) for index, handle in enumerate(handles, first)],
                self._timeout_s,
            )

    def _all(self, handles: Sequence[WorkerHandle], method: Any, *args: Any) -> list[Any]:
        return gather([handle.call(method, *args) for handle in handles], self._timeout_s)

    def _placement(self) -> dict[str, dict[str, list[WorkerHandle]]]:
        """List the policies by node."""
        placement: dict[str, dict[str, list[WorkerHandle]]] = {}
        for kind, handles in (("train_policies", self._learners), ("eval_policies", self._actors)):
            for handle in handles:
                entry = placement.setdefault(handle.info().node, {"train_policies": [], "eval_policies": []})
                entry[kind].append(handle)
        return placement

    def _make_weight_sync(self) -> WeightSync:
        """Turn the strategy and the placement into an object that knows who sends what to whom."""
        if self._is_colocated:
            pairs = build_transfer_info_for_colocated(self._learners, self._actors)["all"]
            for pair in pairs:
                sender, receiver = pair["sender"].info(), pair["receiver"].info()
                if sender.remote and receiver.remote and sender.node != receiver.node:
                    raise PlacementError(
                        f"{sender.name} is on node {sender.node} and {receiver.name} on {receiver.node}: colocated "
                        f"policies share a node; set cluster.is_colocated to false, or place them together"
                    )
            return ColocatedSync(
                [Delivery(pair["sender"], (pair["receiver"],), (pair["receiver"],), True) for pair in pairs],
                CARRIERS["object_store"],
            )
        carry = CARRIERS[weight_carrier(self.config)]
        return WEIGHT_SYNCS[self._strategy](self._deliveries(), carry)

    def _deliveries(self) -> list[Delivery]:
        """Apply the transfer plan to the policies where they are now."""
        placement = self._placement()
        router_map, transfer_info = build_transfer_info_for_disaggregated(placement, self._strategy)
        return [
            Delivery(
                item["sender"],
                tuple(item["receiver"]),
                tuple(placement[target]["eval_policies"]),
                item["intra_node"],
            )
            for node, targets in router_map.items()
            for target, item in zip(targets, transfer_info[node], strict=True)
        ]

    def _settle(self) -> None:
        """Wait until nobody acts with the slots that come next; who failed to update acts with nothing."""
        if self._is_settled:
            return
        try:
            self.wait_for_eval_weight_update(self._timeout_s or _SETTLE_S)
        except WorkerError as error:
            if not isinstance(error.__cause__, WeightSyncError):
                raise

    def _forget_buffers(self) -> None:
        """Make new buffers before the next transfer."""
        self._weight_sync, self._is_settled, self._is_unannounced = None, True, False
        self._announced = {}

    def _push_anew(self) -> int:
        """Bring weights that may have a lower version than those in force, as after going back to a checkpoint."""
        self._all(self._actors, BasePolicy.forget_version)
        version = self.sync_weights()
        self.wait_for_eval_weight_update()
        return version

    def _reroute(self) -> None:
        """Take note of a change of the eval policies or of the env workers."""
        with suppress(
            WorkerError, WeightSyncError, CallTimeout
        ):  # who left may be gone, and nobody sends into its buffer again
            self._settle()
        self._forget_buffers()
        if self.config.router_type == "node_affinity" and self._env_nodes and self._actors and not self._is_async:
            self._router = NodeAffinityRouter(self._env_nodes, [handle.info().node for handle in self._actors])
        self._routes.clear()
        self._is_stateful = None
        self._homes = {env_id: handle for env_id, handle in self._homes.items() if handle in self._actors}

    def _route(self, env_ids: tuple[int, ...]) -> list[tuple[WorkerHandle, list[int]]]:
        """Say which policy answers which places of a batch; a choice is kept until the group changes."""
        routes = self._routes.get(env_ids)
        if routes is None:
            chosen = self._choose(env_ids, [0] * len(self._actors))
            places: dict[int, list[int]] = {}
            for place, index in enumerate(chosen):
                places.setdefault(index, []).append(place)
            if len(self._routes) >= _MOST_ROUTES:
                self._routes.clear()
            routes = self._routes[env_ids] = [(self._actors[index], held) for index, held in places.items()]
        return routes

    def _choose(self, env_ids: Sequence[int], loads: Sequence[int]) -> list[int]:
        """Say which policy answers each env worker, by index, and remember it."""
        if not self._actors:
            raise ProtocolError("the group has no eval policy to roll out: give one to PolicyGroup, or push one")
        if self._is_stateful is None:
            first = self._actors[0]
            asks = hasattr(first.target, BasePolicy._keeps_state.__name__)
            self._is_stateful = asks and first.call(BasePolicy._keeps_state).result(self._timeout_s)
        if self._is_stateful:
            indices = {handle: index for index, handle in enumerate(self._actors)}
            homes = {env_id: indices[handle] for env_id, handle in self._homes.items()}
            chosen = stick(self._router, env_ids, loads, homes)
        else:
            chosen = self._router.select(env_ids, loads)
        self._homes.update((env_id, self._actors[index]) for env_id, index in zip(env_ids, chosen, strict=True))
        return chosen

    def _rollout_each(self, asked: BatchedData[Any], options: dict[str, Any]) -> BatchedData[Future[PolicyResponse]]:
        """Make a request of its own for each env worker, beside all others."""
        chosen = self._choose(tuple(asked.env_ids), self._loads())
        answers: list[Future[PolicyResponse]] = []
        for (env_id, env_ret), index in zip(asked, chosen, strict=True):
            handle = self._actors[index]
            method = _hook(handle, BasePolicy._rollout_async, BasePolicy._rollout)
            # New weights and requests come by different channels: the request says which version it has to wait for.
            known = {"at_least": self._announced[handle]} if handle in self._announced else {}
            answers.append(handle.call_beside(request_channel(env_id), method, env_ret, **options, **known))
            self._in_flight.append((handle, answers[-1]))
        return BatchedData(asked.env_ids, answers)

    def _postprocess_each(
        self, env_ids: Sequence[int], env_rets: Sequence[Any], responses: Sequence[Any]
    ) -> BatchedData[Future[Any]]:
        """Finish each answer on the policy that gave it, or on any where that one is gone."""
        gone = [env_id for env_id in env_ids if env_id not in self._homes]
        if gone:
            self._choose(gone, self._loads())
        return BatchedData(
            env_ids,
            [
                self._homes[env_id].call_beside(request_channel(env_id), BasePolicy._postprocess, env_ret, response)
                for env_id, env_ret, response in zip(env_ids, env_rets, responses, strict=True)
            ],
        )

    def _loads(self) -> list[int]:
        """Count the requests in flight at each eval policy, by what has not come back."""
        _, pending = wait([future for _, future in self._in_flight], at_least=0)
        missing = set(map(id, pending))
        self._in_flight = [(handle, future) for handle, future in self._in_flight if id(future) in missing]
        counts = Counter(handle for handle, _ in self._in_flight)
        return [counts[handle] for handle in self._actors]


def request_channel(env_id: int) -> str:
    """Name the channel by which the requests of an env worker come: one that is slow holds up no other one."""
    return f"rollout[{env_id % ASYNC_CHANNELS}]"


def weight_carrier(config: PolicyConfig) -> str:
    """Choose how weights travel between processes: by broadcast between accelerators, else by the object store.

    Parts of "Sharded" go to one receiver each, which is no broadcast.
    """
    chosen = config.weight_buffer.transport
    if chosen == "auto":
        on_accelerators = config.train_num_gpus > 0 and config.eval_num_gpus > 0
        is_whole = config.weight_buffer.buffer_strategy != "Sharded"
        chosen = "collective" if on_accelerators and is_whole else "object_store"
    return chosen


def _hook(handle: WorkerHandle, own: Any, users: Any) -> Any:
    """Choose the framework's method where the policy has it; a bare double may have just the user's."""
    return own if hasattr(handle.target, own.__name__) else users


def _ask(handle: WorkerHandle, env_rets: Sequence[Any], options: dict[str, Any]) -> list[Future[PolicyResponse]]:
    if len(env_rets) == 1:
        return [handle.call(BasePolicy._rollout, env_rets[0], **options)]
    if hasattr(handle.target, "_rollout_batch"):
        return handle.call_split(len(env_rets), BasePolicy._rollout_batch, *env_rets, **options)
    return [handle.call(BasePolicy._rollout, env_ret, **options) for env_ret in env_rets]


def _differences(policy: int, expected: dict[str, Any], found: dict[str, Any], rtol: float) -> list[Mismatch]:
    mismatches = []
    for name in {**expected, **found}:
        wanted, got = expected.get(name), found.get(name)
        if wanted is None or got is None:
            same = False
        elif rtol > 0:
            same = abs(wanted - got) / max(abs(wanted), 1e-8) <= rtol
        else:
            same = wanted == got
        if not same:
            mismatches.append(Mismatch(policy, name, wanted, got))
    return mismatches
