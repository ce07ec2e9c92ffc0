"""Which checkpoints are kept, and which one is the last and the best."""

import errno
import os
from pathlib import Path

import pytest

from rlightning.checkpoint import load_state
from rlightning.engine.recorder import CheckpointFolder, FolderRecorder, SilentRecorder
from rlightning.errors import CheckpointError
from rlightning.observability.sinks import JsonlSink, read_metrics


def kept(folder):
    return sorted(int(path.name.removeprefix("epoch-")) for path in folder.path.glob("epoch-*"))


def save(folder, *epochs, best=()):
    for epoch in epochs:
        folder.save(epoch, {"engine": {"epoch": epoch}}, best=epoch in best)


def epoch_of(path):
    return load_state(path)["engine"]["epoch"]


def test_the_newest_and_the_best_are_kept(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    save(folder, 1, 2, 3, 4, 5, best=[1, 2])
    assert kept(folder) == [2, 4, 5]
    assert epoch_of(folder.last()) == epoch_of(tmp_path / "last") == 5
    assert epoch_of(folder.best()) == epoch_of(tmp_path / "best") == 2


def test_a_new_best_frees_the_old_one(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=1)
    save(folder, 1, 2, 3, best=[1, 3])
    assert kept(folder) == [3]
    assert epoch_of(folder.best()) == 3


def test_without_a_best_there_is_none(tmp_path):
    folder = CheckpointFolder(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        folder.last()
    save(folder, 1)
    assert folder.best() is None


def test_the_best_is_kept_where_the_folder_is_reached_by_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to("disk")
    folder = CheckpointFolder(tmp_path / "runs", keep=1)
    save(folder, 1, 2, 3, best=[1])
    assert kept(folder) == [1, 3]


def test_the_last_and_the_best_are_found_where_no_links_can_be_made(tmp_path, monkeypatch):
    def refuse(self, target, target_is_directory=False):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    folder = CheckpointFolder(tmp_path, keep=1)
    save(folder, 1, 2, 3, best=[1])
    assert kept(folder) == [1, 3]
    assert epoch_of(folder.last()) == epoch_of(tmp_path / "last") == 3
    assert epoch_of(folder.best()) == epoch_of(tmp_path / "best") == 1


def test_a_mark_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / ".last.new").mkdir()  # in the way of the mark
    folder = CheckpointFolder(tmp_path)
    save(folder, 1)
    assert epoch_of(folder.last()) == 1
    assert "cannot be marked" in caplog.text


def test_a_checkpoint_that_was_left_unfinished_long_ago_is_removed(tmp_path):
    old, fresh = tmp_path / ".epoch-00000001.new-1", tmp_path / ".epoch-00000003.new-1"
    for path in (old, fresh):
        path.mkdir()
        (path / "policy.json").write_text("{")
    os.utime(old, (0, 0))
    save(CheckpointFolder(tmp_path), 2)
    assert [path.exists() for path in (old, fresh)] == [False, True]


def test_links_are_relative_so_that_a_run_can_be_moved(tmp_path):
    folder = CheckpointFolder(tmp_path / "here")
    save(folder, 1, best=[1])
    (tmp_path / "here").rename(tmp_path / "there")
    assert epoch_of(tmp_path / "there" / "last") == epoch_of(tmp_path / "there" / "best") == 1


def test_a_resumed_run_keeps_what_it_saves_although_damaged_later_ones_lie_there(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=1)
    save(CheckpointFolder(tmp_path, keep=9), 5, 10)
    next((tmp_path / "epoch-00000010").glob("*.json")).unlink()
    assert epoch_of(folder.last()) == 5
    save(folder, 6)
    assert epoch_of(folder.last()) == epoch_of(tmp_path / "last") == 6


def test_the_best_is_found_although_it_was_being_replaced(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=1)
    folder.save(5, {"engine": {"epoch": 5}}, best=True)
    # As if the process was killed while it saved epoch 5 once more.
    (tmp_path / "epoch-00000005").rename(tmp_path / ".epoch-00000005.old")
    assert epoch_of(folder.best()) == epoch_of(folder.last()) == 5


def test_a_folder_recorder_writes_metrics_by_env_steps_and_tells_the_display(tmp_path):
    told = []
    recorder = FolderRecorder(
        JsonlSink(tmp_path / "metrics.jsonl"), tmp_path, 1, lambda epoch, metrics: told.append(epoch)
    )
    recorder.log(1, 64, {"train/lr": 0.5})
    recorder.log(2, 128, {"train/lr": 0.25})
    recorder._sink.close()
    assert [(row["step"], row["train/lr"]) for row in read_metrics(tmp_path / "metrics.jsonl")] == [
        (64, 0.5),
        (128, 0.25),
    ]
    assert told == [1, 2]
    assert recorder.save(2, {"engine": {"epoch": 2}}, best=False) == tmp_path / "epoch-00000002"


def test_a_silent_recorder_keeps_nothing():
    recorder = SilentRecorder()
    recorder.log(1, 2, {"a": 1.0})
    assert recorder.latest == {"a": 1.0}
    assert recorder.save(1, {}, best=True) is None
