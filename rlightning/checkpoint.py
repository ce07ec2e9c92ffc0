"""Folders of safetensors and JSON that are complete or missing: no pickle, a checksum per file, an atomic rename.

Replacing a folder takes two renames. If the process ends between them, the old folder has a hidden name, under which
``locate`` finds it; the next checkpoint of that name removes it.

A state is a nested structure of dicts, lists and tuples with tensors, numpy arrays, numbers, strings, booleans and
None as leaves. Each named state becomes ``NAME.json`` (the structure) and ``NAME.safetensors`` (the arrays).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from rlightning.errors import CheckpointError

logger = logging.getLogger(__name__)

FORMAT = 1
"""Version of the layout, written into every manifest."""

_MANIFEST = "manifest.json"
_ABANDONED_AFTER_S = 6 * 3600.0
"""Seconds after the last file of an unfinished folder was begun, after which the folder is removed."""
_ASIDE = ".old"
_ASIDE_NAME = re.compile(rf"\..+{re.escape(_ASIDE)}")
_MARKS = ("__tensor__", "__array__", "__scalar__", "__tuple__", "__items__")
_BASIC = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_BASIC |= {torch.float16, torch.bfloat16, torch.float32, torch.float64}
"""Dtypes that any version of safetensors writes; tensors of other dtypes are written as bytes."""


class _ByBytes(torch.Tensor):
    """A tensor that is pickled as its bytes; results of operations on it are ordinary tensors."""

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _from_bytes, (_as_bytes(self), str(self.dtype).removeprefix("torch."), tuple(self.shape))


def as_picklable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a tensor that can be sent to other processes; torch cannot pickle all dtypes."""
    return tensor if tensor.dtype in _BASIC or tensor.is_quantized else tensor.detach().as_subclass(_ByBytes)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.numel():  # the strides of an empty tensor may not allow a view
        return torch.empty(0, dtype=torch.uint8)
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _from_bytes(flat: torch.Tensor, dtype: str, shape: Iterable[int]) -> torch.Tensor:
    kind = getattr(torch, dtype)
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"{dtype} is not a dtype")
    return as_picklable(flat.clone().view(kind).view(tuple(shape)))


def save_state(folder: Path | str, states: Mapping[str, Any]) -> Path:
    """Write named states into ``folder``, which appears complete or not at all and replaces an existing one.

    Args:
        folder: Folder to write.
        states: Nested state by name; the names become file names.

    Raises:
        CheckpointError: If a key or a leaf cannot be stored; the message has its path. Also if the disk is full.
        ValueError: If a name cannot be that of a file.
    """
    folder = Path(folder)
    for name in states:
        if Path(name).name != name or f"{name}.json" == _MANIFEST:
            raise ValueError(f"a state cannot be called {name!r}: its name becomes that of a file")
    fresh = folder.parent / f".{folder.name}.new-{os.getpid()}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(folder.parent)
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        sums: dict[str, str] = {}
        for name, state in states.items():
            structure, tensors = _serialise(name, state)
            _write(fresh / f"{name}.json", structure, sums)
            _write(fresh / f"{name}.safetensors", tensors, sums)
        _write(fresh / _MANIFEST, json.dumps({"format": FORMAT, "sha256": sums}, indent=1).encode(), {})
        _replace(fresh, folder)
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be written ({error.strerror or error}); earlier checkpoints are complete"
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def _remove_unfinished(parent: Path) -> None:
    """Remove folders that a process began to write long ago and did not finish."""
    for path in parent.glob(".*.new-*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_AFTER_S:
                shutil.rmtree(path, ignore_errors=True)


def load_state(folder: Path | str, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Read named states; all that is read is checked first, and no code of the files runs.

    Args:
        folder: Folder that ``save_state`` wrote.
        names: States to read; None reads all.

    Raises:
        CheckpointError: If a file is missing, damaged or of another format; the message names it.
    """
    folder = locate(folder)
    sums = _read_manifest(folder)
    wanted = list(names) if names is not None else [Path(file).stem for file in sums if file.endswith(".json")]
    states = {}
    for name in wanted:
        if f"{name}.json" not in sums:
            raise CheckpointError(f"{folder} holds no {name!r}; it holds {', '.join(sorted(sums))}")
        structure = _parse_json(folder / f"{name}.json", _read(folder / f"{name}.json", sums))
        file = folder / f"{name}.safetensors"
        try:
            tensors = load_tensors(_read(file, sums))
        except SafetensorError as error:
            raise CheckpointError(f"{file} is not a safetensors file: {error}") from error
        try:
            states[name] = _decode(structure, tensors)
        except Exception as error:  # of damaged files, anything
            raise CheckpointError(f"{folder / name}.json does not describe {file.name}: {error!r}") from error
    return states


def state_names(folder: Path | str) -> set[str]:
    """Return the names of the states that a checkpoint holds.

    Raises:
        CheckpointError: If it has no manifest.
    """
    return {Path(file).stem for file in _read_manifest(locate(folder)) if file.endswith(".json")}


def is_whole(folder: Path | str) -> bool:
    """Whether every file of a checkpoint is there and undamaged."""
    folder = locate(folder)
    try:
        sums = _read_manifest(folder)
        for file in sums:
            _read(folder / file, sums)
    except CheckpointError:
        return False
    return True


def locate(folder: Path | str) -> Path:
    """Return the folder of a checkpoint: ``folder``, or its hidden name if a process ended while replacing it."""
    folder = Path(folder)
    if folder.is_file():
        folder = named_in(folder)
    aside = _aside(folder.resolve())  # of the target of a link
    return aside if aside.is_dir() and not folder.exists() else folder


def named_in(mark: Path) -> Path:
    """Return the folder that a file beside it names; such files replace symbolic links where there are none."""
    return mark.parent / Path(mark.read_text(encoding="utf-8").strip()).name


def newest_whole(parent: Path | str) -> Path:
    """Find the newest complete checkpoint in a folder of checkpoints; newer names sort later.

    Returns:
        Its folder, for ``locate`` and ``load_state``.

    Raises:
        CheckpointError: If there is none; the message names the damaged ones.
    """
    parent = Path(parent)
    found = [path for path in parent.glob("*") if path.is_dir() and not path.is_symlink()]
    named = {path for path in found if not path.name.startswith(".")}
    named |= {path.with_name(path.name[1 : -len(_ASIDE)]) for path in found if _ASIDE_NAME.fullmatch(path.name)}
    folders = sorted(named, reverse=True)
    for index, folder in enumerate(folders):
        if is_whole(folder):
            if index:
                damaged = ", ".join(path.name for path in folders[:index])
                logger.warning("%s is taken, since what is newer is damaged: %s", folder, damaged)
            return folder
    if not folders:
        raise CheckpointError(f"there is no checkpoint in {parent}")
    raise CheckpointError(f"no checkpoint in {parent} is whole; damaged: {', '.join(path.name for path in folders)}")


def check_storable(name: str, state: Any) -> None:
    """Check, without writing anything, that ``save_state`` can store a state.

    Raises:
        CheckpointError: If it cannot; the message has the path of the part that cannot be stored.
    """
    _serialise(name, state)


def _serialise(name: str, state: Any) -> tuple[bytes, bytes]:
    tensors: dict[str, torch.Tensor] = {}
    try:
        structure = json.dumps(_encode(state, name, tensors), indent=1).encode()
        return structure, save_tensors(tensors)
    except (KeyError, ValueError, RecursionError, SafetensorError) as error:
        # A dtype that safetensors does not have, an integer of more than 4300 digits, or too deep nesting.
        raise CheckpointError(f"{name} cannot be stored: {error}") from error


def _encode(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        # A Python number would continue with other digits: 0.9 times float32 is float32.
        plain = value.item()
        if not isinstance(plain, bool | int | float):  # the item of a longdouble is a longdouble
            raise CheckpointError(f"{path} cannot be stored: a {value.dtype} has more digits than JSON keeps")
        return {"__scalar__": [value.dtype.name, plain]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        return {"__tensor__": _add(value, path, tensors)} | _described(value)
    if isinstance(value, np.ndarray):
        try:
            tensor = torch.from_numpy(np.array(value, value.dtype.newbyteorder("="), order="C"))
        except TypeError as error:
            raise CheckpointError(f"{path} cannot be stored: {error}") from error
        return {"__array__": _add(tensor, path, tensors)} | _described(tensor)
    if isinstance(value, tuple):
        return {"__tuple__": [_encode(item, f"{path}.{i}", tensors) for i, item in enumerate(value)]}
    if isinstance(value, list):
        return [_encode(item, f"{path}.{i}", tensors) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        items = [(_encode_key(key, path), _encode(item, f"{path}.{key}", tensors)) for key, item in value.items()]
        plain = all(isinstance(key, str) and key not in _MARKS for key, _ in items)
        return dict(items) if plain else {"__items__": items}
    raise CheckpointError(
        f"{path} cannot be stored: a {type(value).__module__}.{type(value).__qualname__} is neither a tensor, an "
        f"array, a number, a string, a boolean, None, nor a dict, list or tuple of these"
    )


def _encode_key(key: Any, path: str) -> Any:
    plain = key.item() if isinstance(key, np.generic) else key
    if plain is None or isinstance(plain, bool | int | float | str):
        return plain
    raise CheckpointError(f"{path} cannot be stored: its key {key!r} is neither a string, a number, a boolean nor None")


def _add(tensor: torch.Tensor, path: str, tensors: dict[str, torch.Tensor]) -> str:
    """Add a tensor under a new name: keys with dots, or 1 beside "1", have equal paths."""
    name = path
    while name in tensors:
        name += "'"
    try:
        copied = tensor.detach().to("cpu", copy=True).contiguous()
        tensors[name] = copied if tensor.dtype in _BASIC else _as_bytes(copied)
    except RuntimeError as error:
        raise CheckpointError(f"{path} cannot be stored: {error}") from error
    return name


def _described(tensor: torch.Tensor) -> dict[str, Any]:
    """Describe a tensor that is written as its bytes."""
    if tensor.dtype in _BASIC:
        return {}
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}


def _decode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    for mark in ("__tensor__", "__array__"):
        if mark in value:
            tensor = tensors[value[mark]]
            tensor = _from_bytes(tensor, value["dtype"], value["shape"]) if "dtype" in value else tensor
            return tensor if mark == "__tensor__" else tensor.numpy()
    if "__scalar__" in value:
        name, plain = value["__scalar__"]
        dtype = np.dtype(name)
        if dtype.kind not in "biuf":
            raise ValueError(f"{name} is not a dtype of numbers")
        return dtype.type(plain)
    if "__tuple__" in value:
        return tuple(_decode(item, tensors) for item in value["__tuple__"])
    if "__items__" in value:
        return {key: _decode(item, tensors) for key, item in value["__items__"]}
    return {key: _decode(item, tensors) for key, item in value.items()}


def _write(path: Path, content: bytes, sums: dict[str, str]) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sums[path.name] = hashlib.sha256(content).hexdigest()


def _replace(fresh: Path, folder: Path) -> None:
    old = _aside(folder)
    if folder.exists():
        # A folder with files cannot be renamed over. It is renamed first, so that one of the two is always complete.
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    try:
        fresh.rename(folder)
    except BaseException:
        if old.exists():
            old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _aside(folder: Path) -> Path:
    return folder.parent / f".{folder.name}{_ASIDE}"


def _read_manifest(folder: Path) -> dict[str, str]:
    path = folder / _MANIFEST
    if not folder.is_dir():
        raise CheckpointError(f"there is no checkpoint folder {folder}")
    try:
        manifest = _parse_json(path, path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}): the checkpoint is not whole") from error
    sums = manifest.get("sha256") if isinstance(manifest, dict) else None
    if not isinstance(sums, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a manifest of format {FORMAT}")
    if any(Path(name).name != name or "\0" in name for name in sums):
        raise CheckpointError(f"{path} names files outside of its folder")
    return sums


def _read(path: Path, sums: Mapping[str, str]) -> bytes:
    if path.name not in sums:
        raise CheckpointError(f"{path} is not listed in {_MANIFEST}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}): the checkpoint is not whole") from error
    if hashlib.sha256(content).hexdigest() != sums[path.name]:
        raise CheckpointError(f"{path} was changed or damaged: its checksum is not the one in {_MANIFEST}")
    return content


def _parse_json(path: Path, content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a JSON file: {error}") from error
