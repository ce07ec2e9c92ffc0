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
from rlightning.weights import Layout, VersionBuffer
from rlightning.weights.layout import TensorSpec, copy_all
from tests.weights.hasty import Hasty


def network(value):
    return {"net": {"w": torch.full((40,), float(value)), "n": torch.tensor(value)}}


LAYOUT = Layout.of(network(0))


def write(slots, value):
    slots.write(value, network(value))


def read(slots):
    views = slots.newest().tensors["net"]
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
    front = slots.newest().tensors["net"]["w"]
    with pytest.raises(RuntimeError, match="meta tensor"):
        slots.write(2, {"net": {**network(2)["net"], "n": torch.tensor(2, device="meta")}})
    assert read(slots) == (1, 1, 1)
    write(slots, 3)
    assert front.tolist() == [1.0] * 40
    assert read(slots) == (3, 3, 3)


def test_a_version_that_is_written_twice_goes_into_the_other_slot():
    slots = VersionBuffer(LAYOUT)
    for value in (1, 2, 2, 2, 1):
        before = slots.newest().tensors["net"]["w"].data_ptr() if slots.stamp else None
        write(slots, value)
        assert slots.newest().tensors["net"]["w"].data_ptr() != before
        assert read(slots) == (value, value, value)
    assert slots.stamp == 5


def test_one_slot_has_no_front_while_it_is_written():
    slots = VersionBuffer(LAYOUT, copies=1)
    for value in (3, 4):
        write(slots, value)
        assert read(slots) == (value, value, value)
    with slots.filling(5) as place:
        with pytest.raises(ProtocolError, match="no complete weights"):
            slots.newest()
        place.copy_(flat(5))
    assert read(slots) == (5, 5, 5)


@pytest.mark.parametrize("parts", [1, 3])
def test_slots_copy_the_newest_version_of_others_in_as_many_parts_as_they_have(parts):
    source, slots = VersionBuffer(LAYOUT, copies=1), VersionBuffer(LAYOUT, parts)
    for value in (1, 2):
        write(source, value)
        for part in range(parts):
            assert slots.version == (-1 if value == 1 else 1)
            assert slots.copy_from(source, part if parts > 1 else None) == value
        assert read(slots) == (value, value, value)


def test_what_was_written_over_while_it_was_copied_is_not_complete():
    source, slots = VersionBuffer(LAYOUT, copies=1), VersionBuffer(LAYOUT)
    write(source, 1)
    slots.copy_from(source)
    hasty = Hasty(LAYOUT, copies=1)
    write(hasty, 2)
    with pytest.raises(WeightSyncError, match="version 2 was written over while it was copied"):
        slots.copy_from(hasty)
    assert read(slots) == (1, 1, 1)


def flat(value):
    buffer = torch.zeros(LAYOUT.num_bytes, dtype=torch.uint8)
    copy_all(LAYOUT.views(buffer), network(value))
    return buffer


@given(st.integers(1, 5), st.lists(st.lists(st.booleans(), min_size=5, max_size=5), max_size=6), st.randoms())
def test_parts_make_a_version_only_when_all_of_them_came(count, pushes, random):
    slots, newest = VersionBuffer(LAYOUT, count), -1
    for version, arrives in enumerate(pushes):
        parts = list(range(count))
        random.shuffle(parts)
        for part in parts:
            if arrives[part]:
                start, stop = LAYOUT.parts(count)[part]
                slots.write_bytes(version, flat(version)[start:stop], part)
            # Never anything between two versions.
            if slots.stamp:
                assert read(slots) in {(v, v, v) for v in range(version + 1)}
        if all(arrives[:count]):
            newest = version
        assert slots.version == newest


def test_bytes_of_another_size_are_refused():
    with pytest.raises(WeightSyncError, match="7 bytes of version 1 came for a place of 200"):
        VersionBuffer(LAYOUT).write_bytes(1, torch.zeros(7, dtype=torch.uint8))


def test_memory_of_one_process_cannot_be_sent_to_another():
    with pytest.raises(ProtocolError, match="memory of one process"):
        pickle.dumps(VersionBuffer(LAYOUT))


def test_another_process_reads_and_writes_the_same_memory_and_nothing_is_left_behind(tmp_path):
    slots = VersionBuffer.create_shared(LAYOUT, parts=2)
    try:
        for part, (start, stop) in enumerate(LAYOUT.parts(2)):
            slots.write_bytes(1, flat(1)[start:stop], part)
        message = tmp_path / "slots"
        message.write_bytes(pickle.dumps(slots))
        program = f"""
import pickle, torch
slots = pickle.load(open({str(message)!r}, "rb"))
assert slots is pickle.load(open({str(message)!r}, "rb"))
views = slots.newest().tensors["net"]
print(slots.version, slots.num_parts, slots.layout.key, views["n"].item(), set(views["w"].tolist()))
slots.write(2, {{"net": {{"w": torch.full((40,), 2.0), "n": torch.tensor(2)}}}})
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
        assert (done.stdout.split("\n")[0], done.stderr) == (f"1 2 {LAYOUT.key} 1 {{1.0}}", "")
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
