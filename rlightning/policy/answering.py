"""What happens to a request between the framework and the author's ``rollout_step`` and ``postprocess``."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch

from rlightning.errors import ConfigError, ProtocolError
from rlightning.observability.timer import Timer
from rlightning.policy.batching import join_requests, own_response, split_response
from rlightning.policy.coroutines import CoroutineThread
from rlightning.policy.memory import Part
from rlightning.types import EnvRet, PolicyResponse
from rlightning.types.tree import to_numpy, tree_leaves
from rlightning.weights.gate import RolloutGate

if TYPE_CHECKING:
    from rlightning.policy.base_policy import BasePolicy

EVALUATES: ContextVar[bool] = ContextVar("EVALUATES", default=False)
"""Whether the request at hand belongs to an evaluation; requests that overlap each have a context of their own."""


class Answering:
    """Answers requests, each with one set of weights; it owns the thread of the author's coroutines.

    The policy is an argument of each call, so that nobody but its user keeps it.
    """

    def __init__(self, cls: type[BasePolicy], gate: RolloutGate, timer: Timer) -> None:
        """Take the class of the policy, what admits requests, and what counts their time."""
        self._gate, self._timer = gate, timer
        self._takes_deterministic = _accepts(cls.rollout_step, "deterministic")
        self._coroutines: CoroutineThread | None = None
        self._met: set[tuple[Any, bool]] = set()

    def start_coroutines(self, name: str) -> None:
        """Let requests overlap from now on, where the author awaits."""
        if self._coroutines is None:
            self._coroutines = CoroutineThread(name)

    def answer(
        self,
        policy: BasePolicy,
        env_rets: Sequence[EnvRet],
        evaluation: bool,
        deterministic: bool,
        env_ids: Sequence[Any] = (),
    ) -> list[PolicyResponse]:
        """Answer several env workers by one forward pass.

        Every vectorised step comes through here: what it costs is measured by ``benchmarks/step_overhead.py``.
        """
        options = self._options(policy) if deterministic else {}
        counts = [len(ret.reward) for ret in env_rets]
        with self._gate.request(), self._timer.measure("rollout"), torch.inference_mode():
            _require_weights(policy)
            newcomers = self._meet(env_ids, evaluation) if policy.is_stateful else ()
            request = join_requests(env_rets, policy.device, env_ids, newcomers)
            context = None
            if evaluation:
                request.evaluation, context = True, EVALUATES.set(True)
            try:
                if self._coroutines is None:
                    response = policy.rollout_step(request, **options)
                else:
                    response = self._coroutines.run(policy.rollout_step, request, **options)
            finally:
                if context is not None:
                    EVALUATES.reset(context)
            if not isinstance(response, PolicyResponse):
                raise ProtocolError(
                    f"{type(policy).__name__}.rollout_step must return a PolicyResponse, such as "
                    f"PolicyResponse(action), and returned a {type(response).__name__}"
                )
            return split_response(response, counts, policy.version)

    def _meet(self, env_ids: Sequence[Any], evaluation: bool) -> list[Any]:
        """List the env workers that ask for the first time, so that no state of their rows is here."""
        newcomers = [env_id for env_id in env_ids if (env_id, evaluation) not in self._met]
        self._met.update((env_id, evaluation) for env_id in newcomers)
        return newcomers

    @property
    def known_envs(self) -> list[int]:
        """Env workers of training whose state may be here."""
        return sorted(env_id for env_id, evaluation in self._met if not evaluation and isinstance(env_id, int))

    @known_envs.setter
    def known_envs(self, env_ids: Sequence[int]) -> None:
        self._met = {(env_id, False) for env_id in env_ids}

    def _options(self, policy: BasePolicy) -> dict[str, Any]:
        """Ask for the mode of the policy."""
        if not self._takes_deterministic:
            raise ConfigError(
                f"{type(policy).__name__}.rollout_step takes no 'deterministic': add the parameter, or set "
                f"evaluation.deterministic=false"
            )
        return {"deterministic": True}

    def finish(
        self, policy: BasePolicy, env_ret: EnvRet | None, policy_resp: PolicyResponse | None, *, is_authored: bool
    ) -> Any:
        """Run ``postprocess`` on one env worker's data, where an author wrote one; gives arrays on the host."""
        with self._gate.request(), self._timer.measure("postprocess"), torch.inference_mode():
            _require_weights(policy)
            if not is_authored:
                return policy_resp
            request = None if env_ret is None else join_requests([env_ret], policy.device)
            response = None if policy_resp is None else own_response(policy_resp, policy.device)
            if self._coroutines is None:
                result = policy.postprocess(request, response)
            else:
                result = self._coroutines.run(policy.postprocess, request, response)
            if not isinstance(result, PolicyResponse):
                return to_numpy(result)
            rows = len(tree_leaves(result.action)[0])
            # One that the author made anew was still acted by the version of the answer that it is made of.
            version = result.version if policy_resp is None or result.version >= 0 else policy_resp.version
            return split_response(result, [rows], version)[0]


def _require_weights(policy: BasePolicy) -> None:
    if policy.version < 0 or not policy.is_init:
        policy._require_init("rollout")
        raise ProtocolError("no weights have come yet: call PolicyGroup.sync_weights before the first rollout")
    if policy._weight_import.failure is not None:
        policy.wait_for_weight_update_done()
    if policy._memory.offloaded:
        policy._memory.require(Part.MODEL, to="act")


def _accepts(function: Any, parameter: str) -> bool:
    parameters = inspect.signature(function).parameters
    return parameter in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
