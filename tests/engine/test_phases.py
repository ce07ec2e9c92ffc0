"""Collect, learn, publish, evaluate, save: what happens when, and no learning from old data."""

import gc
import itertools
import os
import signal

import pytest
import torch

from rlightning.assembly.assemble import ENGINES, assemble
from rlightning.engine.base_engine import RETURN_WINDOW
from rlightning.errors import ConfigError, ProtocolError
from rlightning.observability.metrics import undescribed
from tests.engine.doubles import LazyEngine, Notebook, SpyEngine, config


@pytest.fixture
def engine(request, monkeypatch):
    """Assemble engines of a class and close them afterwards."""
    made = []

    def make(cls=None, **options):
        made_config = config(**options)
        if cls is not None:
            monkeypatch.setitem(ENGINES, made_config.engine, cls)
        made.append(assemble(made_config, recorder=Notebook()))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_an_epoch_is_collect_learn_publish(engine):
    spy = engine(SpyEngine, max_epochs=2)
    spy.run()
    assert spy.did == ["publish", *["collect", "learn", "publish"] * 2, "evaluate"]


def test_what_was_built_is_not_searched_for_garbage_until_the_run_is_closed(engine):
    run = engine()
    run.start()
    assert any(run is each for each in gc.get_objects()) is False
    run.close()
    assert any(run is each for each in gc.get_objects())


def test_what_a_run_came_to(engine):
    # 3 epochs x 5 steps x 2 sub-envs; all episodes have 4 steps of reward 1: 15 steps hold 3 whole ones per sub-env.
    run = engine()
    result = run.run()
    assert (result.epochs, result.env_steps, result.return_mean) == (3, 30, 4.0)
    assert result.evaluation is not None
    assert [row[:2] for row in run.recorder.rows] == [(1, 10), (2, 20), (3, 30)]
    assert [row[2]["episode/count"] for row in run.recorder.rows] == [2, 2, 2]


def test_the_mean_return_is_that_of_the_latest_100_episodes(engine):
    run = engine()
    run._returns.extend(itertools.chain([1000.0] * 50, [2.0] * RETURN_WINDOW))
    assert run.return_mean == 2.0


def test_data_are_made_by_the_weights_that_learn_from_them(engine):
    run = engine(max_epochs=4)
    run.run()
    assert [row[2]["policy/version_lag"] for row in run.recorder.rows] == [0, 0, 0, 0]
    assert [row[2]["policy/version"] for row in run.recorder.rows] == [1, 2, 3, 4]


def test_a_synchronous_engine_refuses_data_of_older_weights(engine):
    lazy = engine(LazyEngine)
    with pytest.raises(ProtocolError, match="data of epoch 1 were made by weights 1 versions older"):
        lazy.run()
    assert lazy.epoch == 1


# max_epochs, save_interval, eval_interval -> saved and evaluated at. An evaluation that improves is saved as the best;
# here all evaluations are equal, so that the first is the best.
INTERVALS = [
    (12, 5, 0, [5, 10, 12], [12]),
    (12, 0, 0, [12], [12]),
    (12, 5, 5, [5, 10, 12], [5, 10, 12]),
    (4, 0, 3, [3, 4], [3, 4]),
    (2, 1, 1, [1, 2], [1, 2]),
    (2, 100, 100, [2], [2]),
]


@pytest.mark.parametrize(("epochs", "save", "evaluate", "saved", "evaluated"), INTERVALS)
def test_intervals(engine, epochs, save, evaluate, saved, evaluated):
    run = engine(max_epochs=epochs, save_interval=save, eval_interval=evaluate)
    run.run()
    assert [epoch for epoch, _ in run.recorder.saves] == saved
    assert [epoch for epoch, _, metrics in run.recorder.rows if "eval/return_mean" in metrics] == evaluated
    assert [epoch for epoch, best in run.recorder.saves if best] == evaluated[:1]


def test_the_best_checkpoint_is_that_of_the_best_evaluation(engine, monkeypatch):
    run = engine(max_epochs=5, eval_interval=1)
    scores = iter([1.0, 3.0, 2.0, 3.0, float("nan")])
    monkeypatch.setattr(run, "evaluate", lambda: {"eval/return_mean": next(scores)})
    run.run()
    assert run.recorder.saves == [(1, True), (2, True), (5, False)]


def test_what_is_trained_is_logged_and_saved_before_an_evaluation_that_fails(engine, monkeypatch):
    run = engine(max_epochs=1)
    monkeypatch.setattr(run.evaluator, "run", lambda is_stopped: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run.run()
    assert run.recorder.saves == [(1, False)]
    assert [epoch for epoch, _, _ in run.recorder.rows] == [1]


def test_an_interrupt_breaks_an_evaluation_off_and_leaves_the_checkpoint(engine):
    run = engine(env={"env_kwargs": {"lengths": [10**9]}}, max_epochs=1, max_eval_rollout_steps=None)
    steps = run.evaluator._collector.collect

    def press(*arguments):
        signal.raise_signal(signal.SIGINT)
        return steps(*arguments)

    run.evaluator._collector.collect = press
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert run.recorder.saves == [(1, False)]
    assert "eval/return_mean" not in run.recorder.rows[-1][2]


def test_a_run_that_was_interrupted_goes_on_where_it_is_told_to(engine):
    run = engine(max_epochs=2)
    run.recorder.on_log = lambda epoch: signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert run.epoch == 1
    assert run.evaluate()["eval/episodes"] == 2
    run.recorder.on_log = lambda epoch: None
    assert run.run().epochs == 2


@pytest.mark.parametrize(("save_every_s", "saved"), [(600.0, [3]), (1e-9, [1, 2, 3]), (None, [3])])
def test_a_checkpoint_is_due_after_some_time(engine, save_every_s, saved):
    run = engine(max_epochs=3, save_every_s=save_every_s)
    run.run()
    assert [epoch for epoch, _ in run.recorder.saves] == saved


def test_without_an_evaluator_the_best_is_the_best_training_return(engine):
    run = engine(max_epochs=2, save_interval=1)
    run.evaluator.close()
    run.evaluator = None
    run.run()
    assert run.recorder.saves == [(1, True), (2, False)]
    with pytest.raises(ConfigError, match="no envs for evaluation"):
        run.evaluate()


@pytest.mark.parametrize("policy", [{"type": "ppo"}, {"type": "coin"}])
@pytest.mark.parametrize("name", ["syncrl", "rsl"])
def test_every_metric_is_in_the_catalogue(engine, policy, name):
    envs = [{"task": "short", "env_kwargs": {"lengths": [2]}}, {"task": "long", "env_kwargs": {"lengths": [3]}}]
    run = engine(env=envs, policy=policy, engine=name, eval_interval=1)
    run.run()
    for _, _, metrics in run.recorder.rows:
        assert undescribed(metrics) == []


def test_envs_of_several_tasks_are_told_apart(engine):
    envs = [
        {"task": "short", "num_workers": 2, "env_kwargs": {"lengths": [2]}},
        {"task": "long", "num_envs": 1, "env_kwargs": {"lengths": [5], "reward": 3.0}},
    ]
    run = engine(env=envs, max_epochs=1, evaluation={"episodes": 4, "num_envs": 4})
    result = run.run()
    metrics = run.recorder.rows[0][2]
    # Training, 5 steps: 2 workers x 2 sub-envs x 2 episodes of return 2, and one of return 15.
    assert result.env_steps == 25
    assert metrics["episode/count"] == 9
    assert metrics["episode/return_mean/short"] == 2
    assert metrics["episode/return_mean/long"] == 15
    assert metrics["episode/return_mean"] == pytest.approx((8 * 2 + 15) / 9)
    # Evaluation: 4 sub-envs for 2 kinds, an episode each.
    assert metrics["eval/return_mean/short"] == 2
    assert metrics["eval/return_mean/long"] == 15
    assert metrics["eval/return_mean"] == pytest.approx((2 + 2 + 15 + 15) / 4)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_the_epoch_with_a_checkpoint_and_no_evaluation(engine, number):
    run = engine(max_epochs=50, save_interval=20)
    handler = signal.getsignal(number)
    # Late in the epoch, when it is decided already that this one is not to be saved.
    run.recorder.on_log = lambda epoch: os.kill(os.getpid(), number) if epoch == 2 else None
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert run.recorder.saves == [(2, False)]
    assert run.epoch == 2
    assert not any("eval/return_mean" in metrics for _, _, metrics in run.recorder.rows)
    assert signal.getsignal(number) is handler


def test_a_signal_in_an_epoch_that_is_saved_anyway_saves_once(engine):
    run = engine(max_epochs=50, save_interval=2)
    run.recorder.on_log = lambda epoch: os.kill(os.getpid(), signal.SIGINT) if epoch == 2 else None
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert run.recorder.saves == [(2, False)]


def test_a_second_signal_stops_at_once(engine):
    run = engine(max_epochs=50)

    def twice(epoch):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    run.recorder.on_log = twice
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert run.recorder.saves == []
    assert run.epoch == 1


def test_collect_before_start_says_what_to_call(engine):
    with pytest.raises(ProtocolError, match="call start before collect"):
        engine().collect()


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (3, "train must return numbers by name, or None, and returned a int"),
        ({"loss": "high"}, "train returned no number as 'loss': str, could not convert"),
        ({"loss": torch.ones(2)}, "train returned no number as 'loss': Tensor"),
    ],
)
def test_metrics_that_are_no_numbers_are_refused_by_name(engine, monkeypatch, returned, message):
    run = engine()
    monkeypatch.setattr(run.policy_group, "train", lambda: returned)
    with pytest.raises(ProtocolError, match=message):
        run.run()


def test_metrics_may_be_tensors_of_one_number_or_none(engine, monkeypatch):
    run = engine(max_epochs=1)
    monkeypatch.setattr(run.policy_group, "train", lambda: {"user/height": torch.tensor(1.5), "user/up": True})
    run.run()
    metrics = run.recorder.rows[0][2]
    assert (metrics["user/height"], metrics["user/up"]) == (1.5, 1.0)
    run = engine(max_epochs=1)
    monkeypatch.setattr(run.policy_group, "train", lambda: None)
    run.run()
