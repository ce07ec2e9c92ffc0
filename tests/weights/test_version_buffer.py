"""A version is seen whole or not at all, in this process and in another one."""

import pickle
import subprocess
import sys
import tempfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlightning.errors import ProtocolError, WeightSyncError
from rlightning.weights import Layout, VersionBuffer, pack
from rlightning.weights.layout import TensorSpec, even_runs
from rlightning.weights.version_buffer import SharedBucket


def network(value):
    return {"net": {"w": torch.full((40,), float(value)), "n": torch.tensor(value)}}


LAYOUT = Layout.of(network(0))
RUNS = LAYOUT.buckets(160)
"""The 160 bytes of w, and the 8 of n behind them."""


def write(slots, value):
    slots.put(value, network(value))


def tensors(slots):
    return LAYOUT.views(slots.newest().flat)["net"]


def read(slots):
    views = tensors(slots)
    assert len(set(views["w"].tolist())) == 1
    return int(views["w"][0]), int(views["n"]), slots.version


def test_the_newest_complete_version_is_in_front():
    slots = VersionBuffer(LAYOUT)
    assert (slots.version, slots.stamp) == (-1, 0)
    with pytest.raises(ProtocolError, match="no complete weights"):
        slots.newest()
    for value in (3, 4, 5):
        write(slots, value)
        assert read(slots) == (value, value, value)


def test_a_write_leaves_the_front_alone_also_when_it_fails():
    slots = VersionBuffer(LAYOUT)
    write(slots, 1)
    front = tensors(slots)["w"]
    with pytest.raises(RuntimeError, match="meta tensor"):
        slots.put(2, {"net": {**network(2)["net"], "n": torch.tensor(2, device="meta")}})
    assert read(slots) == (1, 1, 1)
    write(slots, 3)
    assert front.tolist() == [1.0] * 40
    assert read(slots) == (3, 3, 3)


def test_a_version_that_is_written_twice_goes_into_the_other_slot():
    slots = VersionBuffer(LAYOUT)
    for value in (1, 2, 2, 2, 1):
        before = tensors(slots)["w"].data_ptr() if slots.stamp else None
        write(slots, value)
        assert tensors(slots)["w"].data_ptr() != before
        assert read(slots) == (value, value, value)
    assert slots.stamp == 5


@pytest.fixture
def passage():
    made = SharedBucket.create_shared(LAYOUT, RUNS)
    made.unlink()
    return made


def test_memory_for_one_bucket_holds_none_while_it_is_written(passage):
    for value in (3, 4):
        for index, run in enumerate(RUNS):
            passage.put(value, network(value), index)
            bucket = passage.bucket()
            assert (bucket.version, bucket.run) == (value, run)
            assert {int(tensor.reshape(-1)[0]) for tensor in bucket.views()["net"].values()} == {value}
    with pytest.raises(RuntimeError, match="meta tensor"):
        passage.put(5, {"net": {**network(5)["net"], "n": torch.tensor(5, device="meta")}}, 1)
    with pytest.raises(ProtocolError, match="no complete weights"):
        passage.bucket()


@pytest.mark.parametrize("shares", [1, 3])
def test_buckets_and_shares_of_them_make_a_version_when_all_have_come(passage, shares):
    runs = [(start + a, start + b) for start, stop in RUNS for a, b in even_runs(stop - start, shares)]
    slots = VersionBuffer(LAYOUT, runs)
    for value in (1, 2):
        for index in range(len(RUNS)):
            passage.put(value, network(value), index)
            for share in range(shares):
                # The last bucket is one cache line, so that its first share is all of it.
                is_complete = index == len(RUNS) - 1 and share > 0
                assert slots.version == (value if is_complete else value - 1 or -1)
                slots.write(passage.bucket().share(share, shares))
        assert read(slots) == (value, value, value)


def test_what_was_written_over_while_it_was_copied_is_not_complete(passage):
    slots = VersionBuffer(LAYOUT, RUNS)
    write(slots, 1)
    passage.put(2, network(2), 0)
    late = passage.bucket()
    passage.put(3, network(3), 0)
    with pytest.raises(WeightSyncError, match="version 2 was written over while it was copied"):
        slots.write(late)
    assert read(slots) == (1, 1, 1)


@given(st.integers(1, 5), st.lists(st.lists(st.booleans(), min_size=5, max_size=5), max_size=6), st.randoms())
def test_parts_make_a_version_only_when_all_of_them_came(count, pushes, random):
    runs = even_runs(LAYOUT.num_bytes, count)
    slots, newest = VersionBuffer(LAYOUT, runs), -1
    for version, arrives in enumerate(pushes):
        shares = list(range(count))
        random.shuffle(shares)
        for share in shares:
            if arrives[share]:
                slots.write(pack(network(version), version, LAYOUT).share(share, count))
            # Never anything between two versions.
            if slots.stamp:
                assert read(slots) in {(v, v, v) for v in range(version + 1)}
        if all(arrives[share] for share, (start, stop) in enumerate(runs) if start < stop):
            newest = version
        assert slots.version == newest


def test_bytes_that_are_no_run_of_the_buffer_are_refused():
    with pytest.raises(WeightSyncError, match=r"bytes 0 to 64 of version 1 are no runs of \[\(0, 200\)\]"):
        VersionBuffer(LAYOUT).write(pack(network(1), 1, LAYOUT).share(0, 4))


def test_memory_of_one_process_cannot_be_sent_to_another():
    with pytest.raises(ProtocolError, match="memory of one process"):
        pickle.dumps(VersionBuffer(LAYOUT))


def test_another_process_reads_and_writes_the_same_memory_and_nothing_is_left_behind(tmp_path):
    slots = VersionBuffer.create_shared(LAYOUT, RUNS)
    try:
        for run in RUNS:
            slots.write(pack(network(1), 1, LAYOUT, run))
        message = tmp_path / "slots"
        message.write_bytes(pickle.dumps(slots))
        program = f"""
import pickle, torch
slots = pickle.load(open({str(message)!r}, "rb"))
assert slots is pickle.load(open({str(message)!r}, "rb"))
views = slots.layout.views(slots.newest().flat)["net"]
print(slots.version, slots.runs, slots.layout.key, views["n"].item(), set(views["w"].tolist()))
slots.put(2, {{"net": {{"w": torch.full((40,), 2.0), "n": torch.tensor(2)}}}})
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
        assert (done.stdout.split("\n")[0], done.stderr) == (f"1 {RUNS} {LAYOUT.key} 1 {{1.0}}", "")
        assert read(slots) == (2, 2, 2)
    finally:
        slots.unlink()
    slots.unlink()
    assert pickle.loads(message.read_bytes()) is slots  # this process has it mapped
    path = slots._path
    del slots
    with pytest.raises(WeightSyncError, match=f"{path} cannot be mapped"):
        pickle.loads(message.read_bytes())


def test_weights_that_find_no_room_are_refused_and_leave_no_file_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    layout = Layout.from_specs((TensorSpec("net", "weight", "uint8", (2**50,), 0, 2**50),))
    with pytest.raises(WeightSyncError, match=rf"no room for {2**51 + 4096} bytes of weights in .*{tmp_path}"):
        VersionBuffer.create_shared(layout)
    assert list(tmp_path.iterdir()) == []
