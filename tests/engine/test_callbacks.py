"""Callbacks are called at the events of a run, may end it, and end it when they fail."""

from types import SimpleNamespace

import numpy as np
import pytest

from rlightning.assembly.assemble import assemble
from rlightning.checkpoint import load_state
from rlightning.commands.run import resume, train
from rlightning.commands.states import differences
from rlightning.configuring.changes import open_folder
from rlightning.configuring.load import load_config
from rlightning.engine.callbacks import Callback, StopAt
from rlightning.errors import CallbackError, ConfigError, ProtocolError
from rlightning.observability.sinks import read_metrics
from rlightning.registry import register
from tests.deployment.kinds import SHORT
from tests.engine.doubles import Notebook, config


class Diary(Callback):
    """Writes down what happens, and fails or stops at an epoch."""

    def __init__(self, fails="", stops=""):
        self.events, self.fails, self.stops = [], fails, stops

    def note(self, engine, event, *args):
        self.events.append((event, engine.epoch))
        if self.stops == f"{event} {engine.epoch}":
            engine.stop(f"seen {event} {engine.epoch}")
        if self.fails == f"{event} {engine.epoch}":
            raise ZeroDivisionError("not today")

    def on_start(self, engine):
        self.note(engine, "start")

    def on_epoch(self, engine, metrics):
        assert metrics["time/total_s"] > 0
        engine.log({"user/epochs": engine.epoch})
        self.note(engine, "epoch")

    def on_evaluation(self, engine, metrics):
        assert metrics["eval/episodes"] > 0
        self.note(engine, "evaluation")

    def on_save(self, engine, checkpoint):
        self.note(engine, "save")

    def on_end(self, engine, result):
        assert result.epochs == engine.epoch
        self.note(engine, "end")

    def get_state(self):
        return {"events": [list(event) for event in self.events]}

    def set_state(self, state):
        self.events = [tuple(event) for event in state["events"]]


register("callback", "diary")(Diary)


def run(epochs=2, **arguments):
    diary, notebook = Diary(**arguments), Notebook()
    with assemble(config(max_epochs=epochs), recorder=notebook, callbacks=[diary]) as engine:
        result = engine.run()
    return diary, notebook, result


def test_the_events_of_a_run_in_their_order():
    diary, notebook, result = run()
    assert diary.events == [
        ("start", 0),
        ("epoch", 1),
        ("epoch", 2),
        ("save", 2),
        ("evaluation", 2),
        ("save", 2),  # the evaluation is the best so far
        ("end", 2),
    ]
    assert [row["user/epochs"] for _, _, row in notebook.rows] == [1, 2]
    assert result.stopped == ""


@pytest.mark.parametrize(("stops", "epochs"), [("epoch 2", 2), ("start 0", 0), ("evaluation 3", 3)])
def test_a_callback_ends_a_run_with_an_evaluation_and_a_checkpoint(stops, epochs):
    diary, notebook, result = run(epochs=3, stops=stops)
    assert (result.epochs, result.stopped) == (epochs, f"seen {stops}")
    assert [epoch for epoch, _ in notebook.saves] == ([epochs] if epochs else [])
    assert (result.evaluation is not None) == (epochs > 0)
    assert diary.events[-1] == ("end", epochs)


@pytest.mark.parametrize("fails", ["epoch 1", "evaluation 2", "save 2", "end 2", "start 0"])
def test_a_failing_callback_ends_the_run_with_its_cause_after_a_checkpoint(fails):
    diary, notebook = Diary(fails), Notebook()
    with (
        assemble(config(max_epochs=2), recorder=notebook, callbacks=[diary]) as engine,
        pytest.raises(CallbackError, match=f"Diary.on_{fails.split()[0]} failed after epoch {fails[-1]}") as caught,
    ):
        engine.run()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert notebook.saves[-1][0] == int(fails[-1])


def test_a_loop_of_ones_own_is_written_and_calls_back():
    diary, notebook = Diary(), Notebook()
    with assemble(config(), recorder=notebook, callbacks=[diary]) as engine:
        engine.start()
        engine.run_epoch()
        engine.log({"user/note": np.float32(0.5)})
        engine.evaluate()
    (_, steps, row) = notebook.rows[0]
    assert steps == engine.env_steps > 0
    assert (row["user/note"], row["user/epochs"], row["progress/epoch"]) == (0.5, 1, 1)
    assert row["eval/episodes"] > 0
    assert [event for event, _ in diary.events] == ["start", "epoch", "evaluation"]


def test_stop_at_waits_for_a_value_several_times_in_a_row():
    reasons, callback = [], StopAt(at_least=10, metric="eval/return_mean", times=2)
    engine = SimpleNamespace(stop=reasons.append)
    for value in (11.0, 9.0, 10.0):
        callback.on_evaluation(engine, {"eval/return_mean": value})
        assert reasons == []
    again = StopAt(at_least=10, metric="eval/return_mean", times=2)
    again.set_state(callback.get_state())
    again.on_epoch(engine, {"train/loss": 1.0})
    again.on_evaluation(engine, {"eval/return_mean": 12.34})
    assert reasons == ["eval/return_mean is 12.34, at least 10"]


def test_stop_at_waits_for_no_metric_that_does_not_exist():
    with pytest.raises(ValueError, match=r"no metric is called 'eval/return_men'.*did you mean 'eval/return_mean'\?"):
        StopAt(at_least=1, metric="eval/return_men")
    for metric in ("user/slip", "env/slip", "eval/return_mean/reach"):
        StopAt(at_least=1, metric=metric)


class Unsaving(Notebook):
    def save(self, epoch, states, *, best):
        raise OSError("disk full")


def test_what_a_callback_raises_is_told_where_no_checkpoint_can_be_saved(caplog):
    with (
        assemble(config(max_epochs=2), recorder=Unsaving(), callbacks=[Diary("epoch 1")]) as engine,
        pytest.raises(CallbackError, match="with no checkpoint: ZeroDivisionError: not today"),
    ):
        engine.run()
    assert "no checkpoint could be saved: OSError: disk full" in caplog.text


def test_a_value_that_is_no_number_is_not_logged_and_named():
    with assemble(config(), recorder=Notebook()) as engine:
        engine.start()
        with pytest.raises(ProtocolError, match=r"engine.log was called with no number as 'user/x'"):
            engine.log({"user/x": "many"})


def test_a_video_leaves_the_training_as_it_would_have_been(tmp_path):
    ends = []
    for callbacks in ("[]", "[{name: video, arguments: {every: 1}}]"):
        options = [*SHORT, f"train.save_dir={tmp_path}", f"callbacks={callbacks}", "train.eval_interval=1"]
        folder = train(load_config("ppo_cartpole", options)).path
        ends.append(load_state(folder / "checkpoints" / "last"))
    assert len(list((folder / "videos").iterdir())) == 2
    for state in ends:
        state["engine"].pop("callbacks")
    assert differences(*ends) == []


def test_callbacks_of_a_configuration_run_are_restored_and_draw(tmp_path):
    entries = (
        "{name: diary}",
        "{name: stop_at, arguments: {at_least: 1, times: 3}}",
        "{name: video, arguments: {every: 2}}",
    )
    loaded = load_config("ppo_cartpole", [*SHORT, f"train.save_dir={tmp_path}", f"callbacks=[{','.join(entries)}]"])
    folder = train(loaded).path
    counters = load_state(folder / "checkpoints" / "last", ["engine"])["engine"]
    assert [name for name, _ in counters["callbacks"]] == ["Diary", "StopAt", "Video"]
    assert counters["callbacks"][1][1] == {"reached": 2}
    assert [video.name for video in (folder / "videos").iterdir()] == ["epoch-00000002.mp4"]
    resume(open_folder(folder, ["train.max_epochs=9"], trains=True))
    rows = read_metrics(folder / "metrics.jsonl")
    assert rows[-1]["progress/epoch"] == 3
    events = load_state(folder / "checkpoints" / "last", ["engine"])["engine"]["callbacks"][0][1]["events"]
    assert [event for event, _ in events].count("start") == 2
    assert sorted(video.name for video in (folder / "videos").iterdir())[-1] == "epoch-00000003.mp4"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{name: stop_att}", r"callbacks\.0\.name: no callback is called 'stop_att'.*did you mean 'stop_at'"),
        ("{name: stop_at, arguments: {at_least: 1, metric: eval/retrun_mean}}", "did you mean 'eval/return_mean'"),
        ("{name: stop_at}", r"callbacks\.0\.arguments: stop_at: .*at_least"),
        ("{name: stop_at, arguments: {at_lest: 3}}", r"arguments\.at_lest: .*did you mean 'at_least'"),
        ("{name: video, arguments: {every: 0}}", r"callbacks\.0\.arguments: video: every must be at least 1, got 0"),
    ],
)
def test_a_wrong_callback_is_refused_before_the_start(entry, message):
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        load_config("ppo_cartpole", [f"callbacks=[{entry}]"])
