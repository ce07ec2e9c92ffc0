"""Requests on their way to the author's ``rollout_step`` and ``postprocess``, and back.

Requests of several env workers become one forward pass, and its answer becomes theirs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

import numpy as np
import torch

from rlightning.errors import ConfigError, ProtocolError, ShapeError
from rlightning.observability.timer import Timer
from rlightning.policy.coroutines import CoroutineThread
from rlightning.policy.memory import Part
from rlightning.types import EnvRet, PolicyResponse, Tree
from rlightning.types.tree import split_rows, to_numpy, tree_leaves, tree_map
from rlightning.weights.gate import RolloutGate

if TYPE_CHECKING:
    from rlightning.policy.base_policy import BasePolicy

EVALUATES: ContextVar[bool] = ContextVar("EVALUATES", default=False)
"""Whether the request at hand belongs to an evaluation; requests that overlap each have a context of their own."""


class Answering:
    """Answers requests, each with one set of weights; it owns the thread of the author's coroutines.

    The policy is an argument of each call, so that only its users keep it.
    """

    def __init__(self, cls: type[BasePolicy], gate: RolloutGate, timer: Timer, *, postprocesses: bool) -> None:
        """Begin without a thread for coroutines.

        Args:
            cls: The class of the policy.
            gate: Admits requests.
            timer: Counts their time.
            postprocesses: Whether its author wrote a ``postprocess``.
        """
        self._gate, self._timer, self._postprocesses = gate, timer, postprocesses
        self._takes_deterministic = _accepts(cls.rollout_step, "deterministic")
        self._coroutines: CoroutineThread | None = None
        self._met: set[tuple[Any, bool]] = set()

    def start_coroutines(self, name: str) -> None:
        """Allow requests to overlap from now on, where the author awaits."""
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
        options = self.deterministic_options(policy) if deterministic else {}
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

    def deterministic_options(self, policy: BasePolicy) -> dict[str, Any]:
        """Return the arguments of ``rollout_step`` that ask for the mode of the policy.

        Raises:
            ConfigError: If it takes none.
        """
        if not self._takes_deterministic:
            raise ConfigError(
                f"{type(policy).__name__}.rollout_step takes no 'deterministic': add the parameter, or set "
                f"evaluation.deterministic=false"
            )
        return {"deterministic": True}

    def finish(self, policy: BasePolicy, env_ret: EnvRet | None, policy_resp: PolicyResponse | None) -> Any:
        """Run ``postprocess`` on one env worker's data, where an author wrote one; returns arrays on the host."""
        with self._gate.request(), self._timer.measure("postprocess"), torch.inference_mode():
            _require_weights(policy)
            if not self._postprocesses:
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
        policy._tensors.require_init("rollout")
        raise ProtocolError("no weights have come yet: call PolicyGroup.sync_weights before the first rollout")
    if policy._weight_port.failure is not None:
        policy.wait_for_weight_update_done()
    if policy._memory.offloaded:
        policy._memory.require(Part.MODEL, to="act")


def _accepts(function: Any, parameter: str) -> bool:
    parameters = inspect.signature(function).parameters
    return parameter in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


class _Request(EnvRet):
    """Results of env workers, joined along the rows; what is not the observation is copied when it is first read.

    Most policies read the observation alone, and a copy of what is not read would be made at every step.
    """

    __slots__ = ("_device", "_env_ids", "_env_rets", "_newcomers")

    def __init__(
        self, env_rets: Sequence[EnvRet], device: str, env_ids: Sequence[Any], newcomers: Collection[Any]
    ) -> None:
        self._env_rets, self._device, self._env_ids, self._newcomers = env_rets, device, env_ids, newcomers
        self.observation = self._join("observation", [ret.observation for ret in env_rets])

    def __getattr__(self, name: str) -> Any:
        # Only called for a field that was not set yet.
        if name not in EnvRet.__slots__:
            raise AttributeError(f"EnvRet has no attribute {name!r}")
        if name in _JOINS:
            value = _JOINS[name](self, self._env_rets)
        else:
            value = self._join(name, [getattr(ret, name) for ret in self._env_rets])
        setattr(self, name, value)
        return value

    def _join(self, field: str, trees: Sequence[Tree]) -> Tree:
        try:
            return concat_rows(trees, self._device)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            if misfit := _first_misfit(field, trees, self._env_ids or range(len(trees))):
                raise ShapeError(misfit) from error
            raise

    @property
    def num_envs(self) -> int:
        return sum(ret.num_envs for ret in self._env_rets)


def join_requests(
    env_rets: Sequence[EnvRet], device: str, env_ids: Sequence[Any] = (), newcomers: Collection[Any] = ()
) -> EnvRet:
    """Join results of env workers along the rows, as owned tensors on ``device``.

    The policy may write into them, since nothing else holds them.

    Args:
        env_rets: One result per env worker.
        device: Where the tensors are to be.
        env_ids: Ids of the env workers, for messages; empty means 0, 1, and so on.
        newcomers: Ids of those whose rows ``is_first`` marks in any case, since no state of them is here.

    Raises:
        ShapeError: If results differ in keys, shape of a row or dtype; names env worker and field. A field that is not
            the observation is looked at when it is first read.
    """
    return _Request(env_rets, device, env_ids, newcomers)


def _first_misfit(field: str, trees: Sequence[Tree], env_ids: Sequence[Any]) -> str:
    """Describe the first field that differs between env workers, and where it does; empty where none does."""
    first, *others = (_rows_of(field, tree) for tree in trees)
    for env_id, other in zip(env_ids[1:], others, strict=True):
        for part in [*first, *other]:
            got, expected = other.get(part, "missing"), first.get(part, "missing")
            if got != expected:
                return (
                    f"{part} of env worker {env_id} is {got}, and that of env worker {env_ids[0]} is {expected}: "
                    f"env workers whose requests go to one policy need equal spaces"
                )
    return ""


def _rows_of(path: str, tree: Tree) -> dict[str, str]:
    """Describe each leaf of a tree: its path -> shape of a row and dtype."""
    if isinstance(tree, dict | list | tuple):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return {part: text for key, item in items for part, text in _rows_of(f"{path}[{key!r}]", item).items()}
    if not hasattr(tree, "shape"):
        return {path: f"a {type(tree).__name__}"}
    return {path: f"[N{''.join(f', {size}' for size in tree.shape[1:])}] {str(tree.dtype).removeprefix('torch.')}"}


def split_response(response: PolicyResponse, counts: Sequence[int], version: int) -> list[PolicyResponse]:
    """Cut an answer into those of the env workers, as owned arrays on the host, stamped with the version that acted.

    Raises:
        ShapeError: If a field has another number of rows than the requests together.
    """
    rows = sum(counts)

    def host(leaf: Any) -> Any:
        # Copied, since the policy may keep what it answers, and write into it at the next request.
        if isinstance(leaf, torch.Tensor):
            # numpy knows no bfloat16; float32 holds each of its values.
            array = (leaf.float() if leaf.dtype is torch.bfloat16 else leaf).numpy(force=True)
            array = array.copy() if leaf.is_cpu else array
        else:
            array = np.array(leaf)
        if not array.ndim or len(array) != rows:
            raise ShapeError(_misfit(response, leaf, rows))
        return array

    action = tree_map(host, response.action)
    env_action = response.env_action
    if env_action is not None:
        # Where the env receives what the buffer keeps, one array goes to both.
        env_action = None if env_action is response.action else tree_map(host, env_action)
    extras = {
        name: host(value) if type(value) is torch.Tensor or _is_numbers(value) else tree_map(host, value)
        for name, value in response.extras.items()
    }
    if len(counts) == 1:
        return [PolicyResponse(action, env_action, extras, version)]
    actions = split_rows(action, counts)
    env_actions = [None] * len(counts) if env_action is None else split_rows(env_action, counts)
    pieces = split_rows(extras, counts)
    return [PolicyResponse(*fields, version) for fields in zip(actions, env_actions, pieces, strict=True)]


def _is_numbers(value: Any) -> bool:
    """Whether something is a list of numbers, nested or not, and no structure of arrays."""
    return isinstance(value, list | tuple) and not any(hasattr(leaf, "shape") for leaf in tree_leaves(value))


def _misfit(response: PolicyResponse, leaf: Any, rows: int) -> str:
    """Describe the field of an answer that has other rows than the request, or none."""
    fields = {"action": response.action}
    if response.env_action is not None:
        fields["env_action"] = response.env_action
    fields |= {f"extras[{name!r}]": value for name, value in response.extras.items()}
    name = next(name for name, tree in fields.items() if any(part is leaf for part in tree_leaves(tree)))
    got = f"shape {list(leaf.shape)}" if hasattr(leaf, "shape") else f"a {type(leaf).__name__} and not a tensor"
    return f"rollout_step was asked for {rows} rows, [{rows}, ...], and {name} of its answer has {got}"


def own_response(response: PolicyResponse, device: str) -> PolicyResponse:
    """Copy an answer into tensors on ``device`` that nothing else holds."""

    def own(tree: Tree) -> Tree:
        return None if tree is None else concat_rows([tree], device)

    return PolicyResponse(own(response.action), own(response.env_action), own(response.extras), response.version)


def _join_final(request: _Request, env_rets: Sequence[EnvRet]) -> Tree | None:
    if all(ret.final_observation is None for ret in env_rets):
        return None
    finals = [ret.observation if ret.final_observation is None else ret.final_observation for ret in env_rets]
    return request._join("final_observation", finals)


def _join_info(request: _Request, env_rets: Sequence[EnvRet]) -> dict[str, Tree]:
    # Envs of different kinds may report different things: what only some report is not for a batch.
    common = set(env_rets[0].info).intersection(*(ret.info for ret in env_rets[1:]))
    arrays = {key for key in common if isinstance(env_rets[0].info[key], np.ndarray)}
    return {key: request._join(f"info[{key!r}]", [ret.info[key] for ret in env_rets]) for key in sorted(arrays)}


def _join_first(request: _Request, env_rets: Sequence[EnvRet]) -> torch.Tensor:
    firsts = [np.zeros(ret.num_envs, np.bool_) if ret.is_first is None else ret.is_first for ret in env_rets]
    if request._newcomers:
        pairs = zip(request._env_ids, firsts, strict=True)
        firsts = [np.ones_like(first) if env_id in request._newcomers else first for env_id, first in pairs]
    return cast("torch.Tensor", request._join("is_first", firsts))


def _join_ids(request: _Request, env_rets: Sequence[EnvRet]) -> torch.Tensor:
    ids = request._env_ids
    if not ids:
        raise ProtocolError("env_ret.env_id is for rollout_step: this request does not say whose rows it holds")
    if not all(isinstance(env_id, SupportsIndex) for env_id in ids):
        raise ProtocolError(f"env_ret.env_id is for env workers with numbers as ids, and these have {list(ids)}")
    counts = torch.tensor([ret.num_envs for ret in env_rets])
    return torch.tensor([index(env_id) for env_id in ids]).repeat_interleave(counts).to(request._device)


def _join_row_numbers(request: _Request, env_rets: Sequence[EnvRet]) -> torch.Tensor:
    return torch.cat([torch.arange(ret.num_envs) for ret in env_rets]).to(request._device)


def owned_tensor(leaf: Any, device: str = "cpu") -> torch.Tensor:
    """Copy an array or tensor into a tensor on ``device`` that shares no memory."""
    if type(leaf) is np.ndarray:
        tensor = torch.from_numpy(leaf.copy())
        return tensor if device == "cpu" else tensor.to(device)
    return leaf.to(device, copy=True) if isinstance(leaf, torch.Tensor) else torch.tensor(leaf, device=device)


def concat_rows(trees: Sequence[Tree], device: str = "cpu") -> Tree:
    """Join trees of arrays along axis 0 into owned tensors on ``device``.

    Raises:
        ValueError, TypeError, KeyError, RuntimeError: If they differ in anything but the number of rows. Two dtypes
            would be promoted to a third one otherwise.
    """
    first = trees[0]
    if len(trees) == 1:
        if type(first) is np.ndarray:
            return owned_tensor(first, device)
        return tree_map(lambda leaf: owned_tensor(leaf, device), first)

    def join(*leaves: Any) -> torch.Tensor:
        if isinstance(leaves[0], torch.Tensor):
            if len({leaf.dtype for leaf in leaves}) > 1:
                raise TypeError("tensors of different dtypes")
            return torch.cat(leaves).to(device)
        return torch.from_numpy(np.concatenate(leaves, dtype=leaves[0].dtype, casting="no")).to(device)

    return tree_map(join, first, *trees[1:])


_JOINS: dict[str, Callable[[_Request, Sequence[EnvRet]], Any]] = {
    "final_observation": _join_final,
    "info": _join_info,
    "is_first": _join_first,
    "env_id": _join_ids,
    "row": _join_row_numbers,
    "evaluation": lambda request, env_rets: False,
}
