"""Checkpoints come back as they went in, are whole or not there, and run nobody's code."""

import hashlib
import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlightning import checkpoint
from rlightning.checkpoint import is_whole, load_state, newest_whole, save_state
from rlightning.errors import CheckpointError
from rlightning.policy.base_policy import clone_checkpoint_value
from tests.policy.policies import UNUSUAL_DTYPES

FILES = ["a.json", "a.safetensors", "b.json", "b.safetensors", "manifest.json"]
STATES = {"a": {"weight": torch.arange(6.0).view(2, 3), "step": 7}, "b": {"array": np.arange(3), "name": "x"}}

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
keys = st.text(max_size=4) | st.integers(-3, 3) | st.sampled_from(["__tensor__", "__array__", "__tuple__", "__items__"])
dtypes = st.sampled_from(["float32", "float64", "int64", "uint8", "uint16", "bool"])
arrays = st.builds(
    lambda dtype, shape: np.arange(math.prod(shape)).reshape(shape).astype(dtype),
    dtypes,
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
)
tensors = st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.bool]).map(
    lambda dtype: torch.arange(3).to(dtype)
)
trees = st.recursive(
    scalars | arrays | tensors,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.one_of(keys, st.floats(allow_nan=False), st.none()), inner, max_size=4)
    ),
    max_leaves=12,
)


def same(a, b):
    """Compare types, structure and bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)
    if isinstance(a, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (math.isnan(a) and math.isnan(b))
    return a == b


class Trap:
    """Touches a file where it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def rewrite_manifest(folder):
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    del sums["manifest.json"]
    (folder / "manifest.json").write_text(json.dumps({"format": checkpoint.FORMAT, "sha256": sums}))


@pytest.fixture
def _no_disk(monkeypatch):
    """Let many small checkpoints be written without waiting for the disk each time."""
    monkeypatch.setattr(checkpoint.os, "fsync", lambda descriptor: None)


@pytest.mark.usefixtures("_no_disk")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees)
def test_any_nested_state_comes_back_equal_with_types_and_order(tmp_path, tree):
    save_state(tmp_path / "c", {"state": tree})
    assert same(load_state(tmp_path / "c"), {"state": tree})


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"inner": {}},
        {0: {"step": torch.tensor(3)}, 1: {}},
        (1, (), [()]),
        {"nan": math.nan, "inf": -math.inf, "minus zero": -0.0, "big": 2**200},
        {"a": {"b": torch.ones(1)}, "a.b": torch.zeros(1), "a.b'": torch.full((1,), 2.0)},
        {1: torch.ones(1), "1": torch.zeros(1)},
        [torch.ones(2, dtype=torch.bfloat16), torch.tensor(True), torch.empty(0, 3)],
        np.arange(6.0).reshape(2, 3)[:, ::-1],
    ],
    ids=lambda state: type(state).__name__,
)
def test_awkward_states_come_back_equal(tmp_path, state):
    save_state(tmp_path / "c", {"state": state})
    assert same(load_state(tmp_path / "c")["state"], state)


def test_what_comes_back_may_be_written_and_is_not_what_went_in(tmp_path):
    tied = torch.ones(3)
    state = load_state(save_state(tmp_path / "c", {"s": {"a": tied, "b": tied, "n": np.ones(2)}}))["s"]
    state["a"] += 1
    state["n"] += 1
    assert state["a"].tolist() == [2, 2, 2]
    assert state["b"].tolist() == tied.tolist() == [1, 1, 1]


def test_numpy_numbers_go_on_with_their_digits_and_foreign_byte_orders_come_back_as_native_arrays(tmp_path):
    rate = np.float32(0.9)
    state = {np.int64(3): rate, "flag": np.True_, "byte": np.uint8(255), "big endian": np.array([1, 256], ">i4")}
    back = load_state(save_state(tmp_path / "c", {"s": state}))["s"]
    # 0.9 is 0.89999998 in float32, and times 0.9 it is 0.80999994; a number of Python's would give 0.80999998.
    assert same(back[3] * 0.9, np.float32(0.80999994))
    assert same(~back["flag"], np.False_)
    assert same(back["byte"], np.uint8(255))
    assert same(back["big endian"], np.array([1, 256], np.int32))


@pytest.mark.parametrize(
    ("leaf", "words"),
    [
        ({1, 2}, "state.bad cannot be stored.*set"),
        (object(), "state.bad cannot be stored.*object"),
        (1j, "state.bad cannot be stored.*complex"),
        (np.longdouble(1), "state.bad cannot be stored.*more digits"),
        (np.complex64(1j), "state.bad cannot be stored.*complex"),
        (np.array([None]), "state.bad cannot be stored"),
        (np.array(["text"]), "state.bad cannot be stored"),
        ({(1, 2): 3}, r"state.bad cannot be stored: its key \(1, 2\)"),
        ({b"x": 3}, "state.bad cannot be stored: its key b'x'"),
        (torch.eye(2).to_sparse(), "state.bad cannot be stored"),
        (torch.zeros(2, dtype=torch.uint8).view(torch.uint4), "state.bad cannot be stored.*UInt4"),
        (10**5000, "state cannot be stored.*4300 digits"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_stored_is_refused_by_path_and_leaves_nothing(tmp_path, leaf, words):
    with pytest.raises(CheckpointError, match=words):
        save_state(tmp_path / "c", {"state": {"bad": leaf}})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["manifest", "a/b", "../a"])
def test_a_name_that_cannot_be_a_file_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="cannot be called"):
        save_state(tmp_path / "c", {name: {}})
    assert list(tmp_path.iterdir()) == []


def test_writing_again_replaces_the_old_checkpoint_entirely(tmp_path):
    save_state(tmp_path / "c", STATES)
    save_state(tmp_path / "c", {"a": {"step": 8}})
    assert load_state(tmp_path / "c") == {"a": {"step": 8}}
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("step", ["_write", "_replace", "second rename"])
def test_a_failure_while_writing_leaves_the_old_one_whole_and_no_litter(tmp_path, monkeypatch, step):
    save_state(tmp_path / "c", STATES)
    calls = []

    def fail(*args):
        calls.append(args)
        raise KeyboardInterrupt

    def fail_second(self, target):
        calls.append(target)
        if len(calls) == 2:
            raise OSError("disk full")
        return Path.replace(self, target)

    with monkeypatch.context() as patch:
        if step == "second rename":
            patch.setattr(Path, "rename", fail_second)
        else:
            patch.setattr(checkpoint, step, fail)
        with pytest.raises((KeyboardInterrupt, CheckpointError)) as caught:
            save_state(tmp_path / "c", {"a": {"step": 8}})
    if step == "second rename":
        assert f"{tmp_path / 'c'} cannot be written (disk full)" in str(caught.value)
    assert calls
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    assert same(load_state(tmp_path / "c"), STATES)


def end_between_the_renames(folder, states, monkeypatch):
    """Save, and be gone after the first rename: nothing that would follow it is done."""
    rename, done = Path.rename, []

    def first_only(self, target):
        if done:
            raise KeyboardInterrupt
        done.append(rename(self, target))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", first_only)
        with pytest.raises(KeyboardInterrupt):
            save_state(folder, states)


def test_who_is_killed_while_replacing_a_checkpoint_leaves_the_old_one_to_be_found(tmp_path, monkeypatch):
    for epoch in (1, 2):
        save_state(tmp_path / f"epoch-{epoch}", {"a": {"epoch": epoch}})
    (tmp_path / "last").symlink_to("epoch-2")
    end_between_the_renames(tmp_path / "epoch-2", {"a": {"epoch": 2, "again": True}}, monkeypatch)
    assert not (tmp_path / "epoch-2").exists()
    assert newest_whole(tmp_path) == tmp_path / "epoch-2"
    for place in ("epoch-2", "last"):
        assert is_whole(tmp_path / place)
        assert load_state(tmp_path / place) == {"a": {"epoch": 2}}
    # The next save of that epoch is in its place, and the old one is gone.
    save_state(tmp_path / "epoch-2", {"a": {"epoch": 2, "again": True}})
    assert load_state(tmp_path / "last") == {"a": {"epoch": 2, "again": True}}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-1", "epoch-2", "last"]


def test_a_checkpoint_in_its_place_is_the_one_that_counts(tmp_path, monkeypatch):
    # Killed after the second rename, before the old one was removed.
    save_state(tmp_path / "c", {"a": {"step": 1}})
    end_between_the_renames(tmp_path / "c", {}, monkeypatch)
    save_state(tmp_path / "new", {"a": {"step": 2}}).rename(tmp_path / "c")
    assert load_state(tmp_path / "c") == {"a": {"step": 2}}
    assert newest_whole(tmp_path) == tmp_path / "c"
    save_state(tmp_path / "c", {"a": {"step": 3}})
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_only_the_states_asked_for_are_read(tmp_path):
    save_state(tmp_path / "c", STATES)
    (tmp_path / "c" / "a.json").unlink()
    assert load_state(tmp_path / "c", ["b"])["b"]["name"] == "x"
    with pytest.raises(CheckpointError, match=r"holds no 'z'; it holds a\.json"):
        load_state(tmp_path / "c", ["z"])


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"no checkpoint folder .*nowhere"):
        load_state(tmp_path / "nowhere")


@pytest.mark.parametrize("manifest", ["as it was", "made to match"])
@pytest.mark.parametrize("file", FILES)
def test_a_pickle_in_place_of_a_file_is_refused_by_name_and_never_run(tmp_path, file, manifest):
    folder, marker = save_state(tmp_path / "c", STATES), tmp_path / "marker"
    (folder / file).write_bytes(pickle.dumps(Trap(marker)))
    if manifest == "made to match" and file != "manifest.json":
        rewrite_manifest(folder)
    with pytest.raises(CheckpointError, match=file):
        load_state(folder)
    assert not marker.exists()


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("harm", ["truncated", "one bit off", "missing"])
def test_a_damaged_file_is_refused_by_name(tmp_path, file, harm):
    path = save_state(tmp_path / "c", STATES) / file
    content = path.read_bytes()
    path.unlink()
    if harm != "missing":
        # Bit 7 of a byte in the middle: JSON is ASCII here, so that no other file could be meant.
        middle = len(content) // 2
        path.write_bytes(
            content[:middle] + bytes([content[middle] ^ 128]) * (harm != "truncated") + content[middle + 1 :]
        )
        if harm == "truncated":
            path.write_bytes(content[:middle])
    with pytest.raises(CheckpointError, match=file):
        load_state(tmp_path / "c")
    assert not is_whole(tmp_path / "c")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 900 + "]" * 900,
        "[" * 10**5,
        '{"__tensor__": "not there"}',
        '{"__tensor__": [1]}',
        '{"__items__": 5}',
        '{"__items__": [[[1], 2]]}',
        '{"__tuple__": null}',
        '{"__scalar__": ["object", 1]}',
        '{"__scalar__": ["int8", 300]}',
        '{"__scalar__": ["float32"]}',
    ],
    ids=range(10),
)
def test_a_structure_that_does_not_describe_the_arrays_is_refused_by_name(tmp_path, text):
    folder = save_state(tmp_path / "c", {"a": {}})
    (folder / "a.json").write_text(text)
    rewrite_manifest(folder)
    with pytest.raises(CheckpointError, match=r"a\.json"):
        load_state(folder)


def test_a_tensor_file_that_claims_a_header_of_ten_gigabytes_is_refused_by_name(tmp_path):
    folder = save_state(tmp_path / "c", STATES)
    (folder / "a.safetensors").write_bytes((10 * 2**30).to_bytes(8, "little") + b"{}")
    rewrite_manifest(folder)
    with pytest.raises(CheckpointError, match=r"a\.safetensors"):
        load_state(folder)


@pytest.mark.parametrize(
    "manifest",
    [
        [],
        {"format": 99, "sha256": {}},
        {"format": checkpoint.FORMAT},
        {"format": 1, "sha256": {"../x.json": "0"}},
        {"format": 1, "sha256": {"x\0.json": "0"}},
    ],
    ids=["list", "other format", "no sums", "path outside", "no path"],
)
def test_a_manifest_of_another_kind_is_refused_by_name(tmp_path, manifest):
    folder = save_state(tmp_path / "c", STATES)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        load_state(folder)


def test_the_newest_whole_checkpoint_is_found_past_damaged_and_unfinished_ones(tmp_path, caplog):
    for epoch in (8, 9, 10, 11):
        save_state(tmp_path / f"epoch-{epoch:08d}", {"a": {"epoch": epoch}})
    (tmp_path / "epoch-00000011" / "a.json").write_text("{}")
    (tmp_path / "epoch-00000012").mkdir()
    (tmp_path / ".epoch-00000013.new-1").mkdir()
    (tmp_path / "last").symlink_to("epoch-00000008")
    (tmp_path / "zzz.txt").write_text("no folder")
    assert newest_whole(tmp_path).name == "epoch-00000010"
    assert [record.message for record in caplog.records] == [
        f"{tmp_path / 'epoch-00000010'} is taken, since what is newer is damaged: epoch-00000012, epoch-00000011"
    ]


def test_without_a_whole_checkpoint_the_damaged_ones_are_named(tmp_path):
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        newest_whole(tmp_path)
    (tmp_path / "epoch-1").mkdir()
    with pytest.raises(CheckpointError, match="damaged: epoch-1"):
        newest_whole(tmp_path)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", [*UNUSUAL_DTYPES, torch.complex32])
@pytest.mark.parametrize("shape", [(2, 8), (0, 4), ()])
def test_tensors_that_torch_cannot_pickle_or_safetensors_cannot_write_come_back_and_can_be_sent(tmp_path, dtype, shape):
    count = math.prod(shape) * dtype.itemsize
    tensor = torch.arange(count, dtype=torch.uint8).view(dtype).view(shape)
    save_state(tmp_path / "c", {"a": {"x": clone_checkpoint_value(tensor)}})
    loaded = load_state(tmp_path / "c")["a"]["x"]
    for there in (loaded, clone_checkpoint_value(tensor)):
        for _ in range(2):
            assert (there.dtype, there.shape) == (dtype, shape)
            assert there.reshape(-1).view(torch.uint8).tolist() == list(range(count))
            there = pickle.loads(pickle.dumps(there))
    assert type(loaded.reshape(-1)) is torch.Tensor


def test_arrays_of_such_dtypes_come_back_as_arrays(tmp_path):
    arrays = [np.arange(3, dtype=np.uint16), np.array([1 + 2j]), np.arange(2, dtype=np.uint64)]
    save_state(tmp_path / "c", {"a": arrays})
    assert [(a.dtype, a.tolist()) for a in load_state(tmp_path / "c")["a"]] == [(a.dtype, a.tolist()) for a in arrays]


@pytest.mark.parametrize("described", ['"dtype": "nn"', '"dtype": "float7"', '"dtype": "uint16", "shape": [7]'])
def test_bytes_that_are_described_wrongly_are_refused_by_name(tmp_path, described):
    folder = save_state(tmp_path / "c", {"a": {"x": torch.arange(4)}})
    (folder / "a.json").write_text(f'{{"x": {{"__tensor__": "a.x", "shape": [16], {described}}}}}')
    rewrite_manifest(folder)
    with pytest.raises(CheckpointError, match=r"a\.json does not describe"):
        load_state(folder)
