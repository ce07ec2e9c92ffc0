"""Files from which other programs act: ONNX, TorchScript, or the weights alone.

What is exported maps observations to the most likely actions of the env: normalisation, action mapping and clipping are
inside. Each file is compared with the policy before it is kept.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import rlightning
from rlightning.deployment.trained_policy import TrainedPolicy
from rlightning.env.arrays import Leaf, space_leaves
from rlightning.errors import ConfigError, MissingDependency, Problem, RLightningError
from rlightning.types import EnvRet, Tree
from rlightning.types.spaces import meta_to_state
from rlightning.types.tree import tree_leaves, tree_map
from rlightning.weights.layout import flatten_names

COMPARED_ROWS = 1000
"""Observations on which a file is compared with the policy."""
TOLERANCE = 1e-4
"""Largest difference of a number of an action, relative to the larger of 1 and the number."""
_CHUNKS = (1, 7, 992)
"""Rows of each comparison: a file must serve any number."""

Run = Callable[[Sequence[np.ndarray[Any, Any]]], list[np.ndarray[Any, Any]]]
"""Maps the arrays of N observations to those of N actions."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A file that was written.

    Attributes:
        path: The file.
        inputs, outputs: Name, dtype and shape of each array.
        difference: Largest difference of an action on the compared observations; None for weights alone.
        metadata: What the file says of itself.
    """

    path: Path
    inputs: dict[str, str]
    outputs: dict[str, str]
    difference: float | None
    metadata: dict[str, Any]


def export_policy(policy: TrainedPolicy, path: Path, kind: str) -> Exported:
    """Write a policy into a file.

    Args:
        policy: The policy, on the CPU.
        path: The file.
        kind: "onnx", "torchscript", or "safetensors" for the weights alone.

    Raises:
        ConfigError: If the kind is unknown, or cannot hold the policy.
        MissingDependency: If ONNX is not installed.
        RLightningError: If the file acts differently than the policy; it is removed then.
    """
    if kind not in FORMATS:
        raise ConfigError(Problem("--format", f"must be one of {', '.join(FORMATS)}, got {kind!r}"))
    write, own = FORMATS[kind].write, policy.policy
    if write is not _write_safetensors and (own.is_stateful or own.config.is_async):
        why = "keeps a state per row" if own.is_stateful else "answers by a coroutine"
        message = f"{type(own).__name__} {why}, which {kind} files of this version do not hold"
        raise ConfigError(Problem("--format", message))
    inputs = _named(policy.observation_space, "observation", lambda leaf: leaf.handed_out)
    outputs = _named(policy.action_space, "action", lambda leaf: leaf.dtype)
    metadata = {"inputs": inputs, "outputs": outputs, **_metadata(policy)}
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    try:
        with warnings.catch_warnings():
            # Of torch: about shapes that it reads while recording, which the comparison checks, and about TorchScript.
            warnings.simplefilter("ignore")
            run = write(policy, fresh, metadata)
            difference = None if run is None else compare(policy, run)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    return Exported(path, inputs, outputs, difference, metadata)


def compare(policy: TrainedPolicy, run: Run) -> float:
    """Return the largest difference between the actions of a policy and those of a file on 1,000 observations.

    Raises:
        RLightningError: If it is above the tolerance.
    """
    rows = _observations(policy.observation_space)
    expected = tree_leaves(policy.act(rows))
    leaves = [leaf.astype(np.float32) if leaf.dtype == np.float64 else leaf for leaf in tree_leaves(rows)]
    stops = np.cumsum(_CHUNKS)
    chunks = [run([leaf[stop - count : stop] for leaf in leaves]) for count, stop in zip(_CHUNKS, stops, strict=True)]
    worst = 0.0
    for index, wanted in enumerate(expected):
        got = np.concatenate([chunk[index] for chunk in chunks])
        if got.shape != wanted.shape or got.dtype != wanted.dtype:
            raise RLightningError(
                f"the file answers with {got.dtype} {list(got.shape)} where the policy answers with {wanted.dtype} "
                f"{list(wanted.shape)}: write rollout_step with operations of torch on the whole batch"
            )
        off = np.abs(got.astype(np.float64) - wanted)
        worst = max(worst, float(off.max(initial=0.0)))
        if not np.all(off <= TOLERANCE * np.maximum(1.0, np.abs(wanted))):
            raise RLightningError(
                f"the file acts differently than the policy, by up to {worst:.3g} on {COMPARED_ROWS} observations: "
                f"rollout_step must depend on the observation by operations of torch alone, since it is recorded once"
            )
    return worst


def _observations(space: gym.Space[Any]) -> Tree:
    """Draw observations; numbers beyond [-1, 1] are spread over scales from 0.01 to 10 times what the space draws."""
    space.seed(0)
    rows = tree_map(lambda *leaves: np.stack(leaves), *(space.sample() for _ in range(COMPARED_ROWS)))
    generator = np.random.default_rng(0)

    def spread(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if array.dtype.kind != "f" or np.abs(array).max(initial=0.0) <= 1.0:
            return array
        scale = 10.0 ** generator.uniform(-2, 1, (len(array), *[1] * (array.ndim - 1)))
        return (array * scale).astype(array.dtype)

    return tree_map(spread, rows)


class _Acting(nn.Module):
    """Maps the arrays of N observations to those of N actions; the policy is no part, so that its mode stays."""

    def __init__(self, policy: TrainedPolicy) -> None:
        super().__init__()
        self._answer = policy.policy.rollout_step
        self._options = policy.policy._answering.deterministic_options(policy.policy)
        self._inputs = space_leaves(policy.observation_space)
        self._outputs = space_leaves(policy.action_space)

    def forward(self, *arrays: Tensor) -> tuple[Tensor, ...]:
        each = iter(arrays)
        observation = tree_map(lambda leaf: next(each), self._inputs)
        nothing = torch.zeros(arrays[0].shape[0])
        no = nothing.bool()
        request = EnvRet(observation, nothing, no, no, is_reset=no, is_first=no, evaluation=True)
        action = self._answer(request, **self._options).action_for_env
        dtypes = tree_map(lambda leaf: torch.from_numpy(np.zeros(0, leaf.dtype)).dtype, self._outputs)
        return tuple(tree_leaves(tree_map(lambda leaf, dtype: leaf.to(dtype), action, dtypes)))


def _record(policy: TrainedPolicy) -> tuple[Any, tuple[Tensor, ...]]:
    """Return a frozen recording of the policy, and inputs of it."""
    policy.policy.requires_grad_(False)
    rows = tree_leaves(_observations(policy.observation_space))
    leaves = tree_leaves(space_leaves(policy.observation_space))
    example = tuple(
        torch.from_numpy(array[:3].astype(leaf.handed_out)) for array, leaf in zip(rows, leaves, strict=True)
    )
    with torch.no_grad():
        recorded: Any = torch.jit.trace(_Acting(policy), example, check_trace=False)  # type: ignore[no-untyped-call]
        return torch.jit.freeze(recorded.eval()), example


def _write_torchscript(policy: TrainedPolicy, path: Path, metadata: dict[str, Any]) -> Run:
    recorded, _ = _record(policy)
    torch.jit.save(recorded, str(path), _extra_files={"metadata.json": json.dumps(metadata)})
    loaded: Any = torch.jit.load(str(path))  # type: ignore[no-untyped-call]

    def run(arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        with torch.no_grad():
            return [tensor.numpy() for tensor in loaded(*map(torch.from_numpy, arrays))]

    return run


def _write_onnx(policy: TrainedPolicy, path: Path, metadata: dict[str, Any]) -> Run:
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise MissingDependency(f"{error.name} is not installed: pip install 'rlightning[export]'") from error
    recorded, example = _record(policy)
    names = [*metadata["inputs"], *metadata["outputs"]]
    # The exporter by torch.export takes some 15 s for a small network, where this one takes half a second.
    torch.onnx.export(
        recorded,
        example,
        str(path),
        dynamo=False,
        input_names=list(metadata["inputs"]),
        output_names=list(metadata["outputs"]),
        dynamic_axes={name: {0: "N"} for name in names},
    )
    model = onnx.load(str(path))
    onnx.helper.set_model_props(model, {name: _as_text(value) for name, value in metadata.items()})
    onnx.save(model, str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        found: list[np.ndarray[Any, Any]] = session.run(None, dict(zip(metadata["inputs"], arrays, strict=True)))
        return found

    return run


def _write_safetensors(policy: TrainedPolicy, path: Path, metadata: dict[str, Any]) -> None:
    tensors = _tensors(policy)
    save_file(tensors, str(path), {name: _as_text(value) for name, value in metadata.items()})
    loaded = load_file(str(path))
    if not all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items()):
        raise RLightningError(f"{path} does not hold the weights of the policy")


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file.

    Attributes:
        ending: Ending of its name.
        write: Writes a policy and what is said of it; returns how the file acts, None for weights alone.
    """

    ending: str
    write: Callable[[TrainedPolicy, Path, dict[str, Any]], Run | None]


FORMATS = {
    "onnx": Format(".onnx", _write_onnx),
    "torchscript": Format(".pt", _write_torchscript),
    "safetensors": Format(".safetensors", _write_safetensors),
}


def _tensors(policy: TrainedPolicy) -> dict[str, Tensor]:
    named = flatten_names(policy.policy.get_trainable_parameters())
    return {name: torch.as_tensor(tensor).detach().cpu().clone().contiguous() for name, tensor in named.items()}


def _named(space: gym.Space[Any], name: str, dtype: Callable[[Leaf], Any]) -> dict[str, str]:
    """Describe each array of a space: its name, such as ``observation.camera``, and its dtype and shape."""
    return {
        f"{name}{leaf.path}": f"{np.dtype(dtype(leaf)).name} [{', '.join(map(str, ('N', *leaf.shape)))}]"
        for leaf in tree_leaves(space_leaves(space))
    }


def _metadata(policy: TrainedPolicy) -> dict[str, Any]:
    meta = policy.meta
    found = {
        "env": meta.name,
        "rate_hz": meta.rate_hz,
        "action_names": list(meta.action_names),
        "algorithm": policy.policy.config.type,
        "weights_version": policy.version,
        "weights_digest": _digest(policy),
        "rlightning": rlightning.__version__,
        "checkpoint": policy.checkpoint.resolve().name,
    }
    spaces = meta_to_state(meta) or {}  # none where a space cannot be described
    return found | {name: _plain(spaces[name]) for name in ("observation_space", "action_space") if name in spaces}


def _digest(policy: TrainedPolicy) -> str:
    """Hash the weights: names, bits, dtypes and shapes, whatever their order."""
    _, digests = policy.policy.get_bundle_digest()
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Replace arrays by lists."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
