"""The trace of a run is JSON at any time, with a lane per worker, and the spans of a lane nest."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections import defaultdict
from contextlib import closing

import pytest

from rlightning.assembly.assemble import assemble
from rlightning.assembly.recording import open_run
from rlightning.config import ClusterConfig, Config, EnvConfig, LogConfig, TrainConfig
from rlightning.engine.recorder import FolderRecorder
from rlightning.errors import RecordError, WorkerError
from rlightning.observability.run_folder import RunFolder
from rlightning.observability.sinks import JsonlSink
from rlightning.observability.timer import Span, Timer
from rlightning.observability.trace import KINDS, TraceFile
from tests.engine.doubles import REMOTE, config

ROUNDING_US = 0.5
"""Seconds since 1970 are known to a quarter of a microsecond."""


def load(path):
    """Lane names by number, and the spans of each lane and thread: (start, end, name, kind)."""
    events = json.loads(path.read_text())
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    spans = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lane = names[event["pid"]]
            spans[lane, event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"], event["cat"]))
    return names, spans


def assert_nested(spans):
    stack = []
    for start, end, *_ in sorted(spans, key=lambda span: (span[0], -span[1])):
        while stack and stack[-1] <= start + ROUNDING_US:
            stack.pop()
        assert not stack or end <= stack[-1] + ROUNDING_US
        stack.append(end)


# The file


def test_times_are_microseconds_since_the_file_was_made(tmp_path):
    trace = TraceFile(tmp_path / "trace.json")
    made = json.loads((tmp_path / "trace.json").read_text())[0]["args"]["wall_time_s"]
    trace.append({"eval[0]": [Span("rollout", made + 1.5, made + 1.75, 77), Span("odd", made + 2, made + 2, 99)]})
    names, spans = load(tmp_path / "trace.json")
    assert names == {0: "eval[0]"}
    ((start, end, *what),) = spans["eval[0]", 0]
    assert (start, end) == pytest.approx((1.5e6, 1.75e6), abs=ROUNDING_US)
    assert what == ["rollout", "infer"]
    assert spans["eval[0]", 1][0][2:] == ("odd", "other")


def test_the_file_is_json_after_every_append_and_a_lane_is_named_once(tmp_path):
    path = tmp_path / "trace.json"
    trace = TraceFile(path)
    assert load(path) == ({}, {})
    for i in range(3):
        trace.append({"driver": [Span("learn", i, i + 1, 1)], "train[0]": [], "env[0]": []})
        names, spans = load(path)
        assert names == {0: "driver", 1: "train[0]", 2: "env[0]"}
        assert len(spans["driver", 0]) == i + 1
    # A resumed run goes on.
    made = json.loads(path.read_text())[0]["args"]["wall_time_s"]
    TraceFile(path).append({"driver": [Span("learn", made + 5, made + 6, 1)]})
    assert load(path)[1]["driver", 0][-1][0] == pytest.approx(5e6, abs=ROUNDING_US)
    assert len(load(path)[1]["driver", 0]) == 4


def test_who_goes_on_with_a_file_cuts_an_event_that_was_not_written_to_its_end(tmp_path):
    path = tmp_path / "trace.json"
    lanes = {"driver": [Span("learn", i, i + 1, 1) for i in range(2)]}
    trace = TraceFile(path)
    trace.append(lanes)
    trace.append(lanes)
    written, events = path.read_bytes(), json.loads(path.read_text())
    for size in range(len(written)):
        path.write_bytes(written[:size])
        TraceFile(path)
        left = json.loads(path.read_text())
        whole = written[:size].count(b"},\n")  # Events that another one follows.
        assert left == events[:whole] if whole else [event["name"] for event in left] == ["origin"]


def test_a_file_that_cannot_be_written_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "trace.json"
    trace = TraceFile(path)
    path.unlink()
    with pytest.raises(RecordError, match=r"trace\.json cannot be written: No such file"):
        trace.append({"driver": [Span("learn", 1.0, 2.0, 1)]})


def test_a_process_that_is_killed_loses_at_most_the_events_that_it_was_writing(tmp_path):
    code = """
        import sys
        from pathlib import Path
        from rlightning.observability.timer import Span
        from rlightning.observability.trace import TraceFile

        trace = TraceFile(Path(sys.argv[1]))
        for epoch in range(1_000_000):
            trace.append({"driver": [Span("learn", 1.0, 2.0, i) for i in range(20)]})
            print(epoch, flush=True)
    """
    path = tmp_path / "trace.json"
    command = [sys.executable, "-c", textwrap.dedent(code), str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        for line in process.stdout:
            if int(line) == 50:
                break
    finally:
        os.kill(process.pid, signal.SIGKILL)
        appended = 51 + len(process.stdout.readlines())
        process.wait(60)
        process.stdout.close()
    TraceFile(path)
    spans = [event for event in json.loads(path.read_text()) if event["ph"] == "X"]
    assert 20 * appended <= len(spans) <= 20 * (appended + 1)


# The timer


def test_a_timer_writes_spans_only_when_asked():
    timer = Timer()
    with timer.measure("train"):
        pass
    assert timer.take_spans() == []
    timer.record_spans()
    with timer.measure("train"), timer.measure("wait"):
        pass
    inner, outer = timer.take_spans()
    assert (inner.name, outer.name) == ("wait", "train")
    assert outer.start_s <= inner.start_s <= inner.end_s <= outer.end_s
    assert inner.thread == outer.thread == threading.get_ident()
    assert timer.take_spans() == []
    timer.reset()
    with timer.measure("train"):
        pass
    assert [span.name for span in timer.take_spans()] == ["train"]
    assert timer.summary()["train"]["count"] == 1


def test_spans_of_threads_that_overlap_keep_their_own_starts():
    timer = Timer()
    timer.record_spans()
    barrier = threading.Barrier(2)

    def work(first):
        if not first:
            barrier.wait(60)
        with timer.measure("rollout"):
            if first:
                barrier.wait(60)
            barrier.wait(60)
            if first:
                barrier.wait(60)
        if not first:
            barrier.wait(60)

    threads = [threading.Thread(target=work, args=(first,)) for first in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    # The first began first and ended last.
    second, first = timer.take_spans()
    assert first.thread != second.thread
    assert first.start_s < second.start_s <= second.end_s < first.end_s


# A run


def record(tmp_path, made_config):
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    recorder = FolderRecorder(sink, tmp_path, 1, trace_file=TraceFile(tmp_path / "trace.json"))
    with closing(sink), assemble(made_config, recorder=recorder) as engine:
        engine.run()


def traced(places=None, **env_kwargs):
    env = {"num_workers": 2, "max_restarts": 0, "env_kwargs": env_kwargs}
    usual = config(env=env, cluster={"eval_worker_num": 2, **(places or {})})
    return usual.model_copy(update={"log": LogConfig(trace=True)})


@pytest.mark.parametrize("remote", [False, pytest.param(True, marks=[pytest.mark.ray, pytest.mark.exhaustive])])
def test_every_worker_has_a_lane_of_what_it_did(request, tmp_path, remote):
    if remote:
        request.getfixturevalue("ray_cluster")
    record(tmp_path, traced(REMOTE if remote else None))
    names, spans = load(tmp_path / "trace.json")
    workers = ["train[0]", "eval[0]", "eval[1]", "env[0]", "env[1]", "buffer[0]", "eval_env[0]"]
    assert list(names.values()) == ["driver", *workers]
    by_lane = defaultdict(lambda: defaultdict(list))
    for (lane, _), held in spans.items():
        assert_nested(held)
        for start, end, name, kind in held:
            assert end >= start
            assert kind == KINDS.get(name, "other")
            by_lane[lane][name].append((start, end))
    counts = {lane: {name: len(held) for name, held in held.items()} for lane, held in by_lane.items()}
    # 3 epochs of 5 steps, and an evaluation whose single env worker asks eval policy 0: episodes of 4 steps, looked
    # for after 16.
    driver = {"total": 3, "collect": 3, "learn": 3, "publish": 3, "wait": 3, "evaluate": 1}
    assert counts["driver"] == driver
    assert counts["train[0]"] == {"update_dataset": 3, "train": 3, "export": 4}
    assert counts["eval[0]"] == {"rollout": 15 + 16, "import": 4}
    assert counts["eval[1]"] == {"rollout": 15, "import": 4}
    assert counts["env[0]"] == counts["env[1]"] == {"reset": 1, "step": 15}
    assert counts["eval_env[0]"] == {"reset": 1, "step": 16}
    assert counts["buffer[0]"] == {"store": 15, "sample": 3}
    # Clocks agree: each training step lies within one of the driver's, and so does every step of an env.
    for own, name, whole in (("train[0]", "train", "learn"), ("eval[1]", "rollout", "collect")):
        for start, end in by_lane[own][name]:
            assert any(a - 1e3 <= start and end <= b + 1e3 for a, b in by_lane["driver"][whole])


def test_a_run_that_dies_leaves_a_trace_of_what_it_did(tmp_path):
    with pytest.raises(WorkerError, match="the motor is off"):
        record(tmp_path, traced(fail_at=7))
    _, spans = load(tmp_path / "trace.json")
    # It fails in the second epoch: the first is whole, and the driver's lane ends with what it failed in.
    names = [name for _, _, name, _ in spans["driver", 0]]
    assert names.count("collect") == 2
    assert names.count("learn") == 1


def test_a_run_folder_holds_the_trace_with_the_option_only(tmp_path):
    for wanted in (False, True):
        made = Config(
            env=[EnvConfig(name="CartPole-v1")],
            train=TrainConfig(max_epochs=1, max_rollout_steps=4, batch_size=4, save_dir=str(tmp_path)),
            cluster=ClusterConfig(),
            log=LogConfig(backend=[], progress=False, trace=wanted, name=str(wanted)),
        )
        run = RunFolder.create(made)
        with open_run(run), assemble(made) as engine:
            engine.run()
        assert run.trace_path.exists() is wanted
