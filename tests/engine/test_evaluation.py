"""Evaluation: whole episodes, shared out in advance, that leave no trace in training."""

import dataclasses

import pytest

from rlightning.assembly.assemble import assemble
from rlightning.commands.states import differences, tree_digest
from rlightning.errors import ProtocolError, WorkerError
from rlightning.policy.base_policy import BasePolicy
from rlightning.runtime import as_handle, gather
from tests.engine.doubles import Notebook, config


@pytest.fixture
def engine():
    made = []

    def make(**options):
        made.append(assemble(config(**options), recorder=Notebook()))
        return made[-1]

    yield make
    for each in made:
        each.close()


def evaluated(engine):
    engine.start()
    engine.evaluate()
    return engine._evaluation


def test_each_sub_env_has_its_number_of_episodes_in_advance(engine):
    # Sub-env 0 ends an episode with every step, sub-env 1 with every ninth. Were the first four episodes to end
    # counted, all would be of length 1. With two each, the mean is (1 + 1 + 9 + 9) / 4 = 5, the variance 16.
    result = evaluated(engine(env={"env_kwargs": {"lengths": [1, 9]}}, evaluation={"episodes": 4, "num_envs": 2}))
    metrics = result.metrics()
    assert metrics["eval/return_mean"] == 5
    assert metrics["eval/return_std"] == 4
    assert metrics["eval/length_mean"] == 5
    assert metrics["eval/episodes"] == 4
    assert sorted((episode.sub_env, episode.length) for episode in result.episodes) == [(0, 1), (0, 1), (1, 9), (1, 9)]


@pytest.mark.parametrize(
    ("episodes", "num_envs", "quotas"), [(5, 2, [3, 2]), (3, 10, [1, 1, 1]), (1, 1, [1]), (7, 3, [3, 2, 2])]
)
def test_exactly_as_many_episodes_as_asked(engine, episodes, num_envs, quotas):
    run = engine(evaluation={"episodes": episodes, "num_envs": num_envs}, env={"env_kwargs": {"lengths": [1, 5, 17]}})
    rows = [episode.sub_env for episode in evaluated(run).episodes]
    assert [rows.count(row) for row in range(len(quotas))] == quotas
    assert len(rows) == episodes


def cart_pole(**options):
    return config(
        env={"name": "CartPole-v1", "backend": "gymnasium"},
        policy={"type": "ppo"},
        max_rollout_steps=20,
        batch_size=20,
        **options,
    )


def run(made):
    recorder = Notebook()
    with assemble(made, recorder=recorder) as engine:
        engine.run()
        return recorder, engine.get_state()


@pytest.mark.parametrize("deterministic", [True, False])
def test_training_is_bit_for_bit_the_same_with_and_without_evaluations(deterministic):
    # More env workers than one and a policy that samples: all sources of random numbers are in use.
    options = {"evaluation": {"deterministic": deterministic, "episodes": 3}, "max_epochs": 3}
    often, with_them = run(cart_pole(eval_interval=1, **options))
    rarely, without_them = run(cart_pole(eval_interval=0, **options))
    assert ["eval/episodes" in row[2] for row in often.rows] == [True, True, True]
    assert ["eval/episodes" in row[2] for row in rarely.rows] == [False, False, True]
    # The only trace of an evaluation is that the run remembers its best, and where sampling in evaluation stands,
    # which starts anew from its seed every time.
    left_over = [
        path
        for path in differences(with_them, without_them)
        if path != "engine.best" and not path.endswith("evaluation_generator")
    ]
    assert left_over == []


def test_an_evaluation_changes_nothing_of_the_training_state():
    with assemble(cart_pole(evaluation={"deterministic": False})) as engine:
        engine.start()
        engine.run_epoch()
        before = engine.get_state()
        engine.evaluate()
        changed = differences(before, engine.get_state())
    assert {path.rpartition(".")[2] for path in changed} <= {"evaluation_generator"}


def returns_of(engine):
    return [(episode.return_, episode.length) for episode in evaluated(engine).episodes]


def test_equal_weights_give_equal_results_whatever_the_seed_of_the_run():
    with assemble(cart_pole(evaluation={"deterministic": False, "episodes": 4})) as engine:
        first, second = returns_of(engine), returns_of(engine)
    assert first == second
    assert len(set(first)) > 1


def test_evaluation_has_a_seed_of_its_own():
    found = {}
    for seed in (5, 6):
        made = cart_pole(evaluation={"seed": seed, "episodes": 4, "deterministic": False})
        with assemble(made) as engine:
            found[seed] = returns_of(engine)
            engine.run_epoch()
            found[seed, "state"] = tree_digest(engine.get_state()["policy"]["train"]["modules"])
    assert found[5] != found[6]
    assert found[5, "state"] == found[6, "state"]


def test_deterministic_and_sampled_evaluation_differ_and_the_first_needs_no_luck():
    found = {}
    for deterministic in (True, False):
        for seed in (5, 6):
            # The env's episodes depend on its seed as well: hold that still and change the policy's alone.
            made = cart_pole(evaluation={"deterministic": deterministic, "episodes": 3, "seed": 5})
            with assemble(made) as engine:
                policies = engine.policy_group
                policies.evaluating = lambda _, real=policies.evaluating, seed=seed: real(seed)
                found[deterministic, seed] = returns_of(engine)
    assert found[True, 5] == found[True, 6]
    assert found[False, 5] != found[False, 6]
    assert found[True, 5] != found[False, 5]


def normalisers(engine):
    """Digests of all that acts, and the observation statistics, of the learner and of every eval policy."""
    policies = [*engine.policy_group.train_list, *engine.policy_group.eval_list]
    handles = [as_handle(policy) for policy in policies]
    tensors = gather([handle.call(BasePolicy.get_trainable_parameters) for handle in handles])
    return [
        {name: value.detach().clone() for name, value in each["network"].items() if name.startswith("normalizer.")}
        for each in tensors
    ]


def test_all_policies_have_the_same_normaliser_when_an_evaluation_starts_and_after_it():
    # Observations N(100, 1), 20 updates of 5 steps x 2 sub-envs: 200 rows.
    made = config(
        env={"env_kwargs": {"mean": 100.0}},
        policy={"type": "ppo", "model_cfg": {"normalize_observation": True}},
        cluster={"eval_worker_num": 2},
        max_epochs=20,
        eval_interval=1,
        batch_size=10,
    )
    with assemble(made) as engine:
        seen = []
        real = engine.evaluator.run

        def check(is_stopped):
            before = normalisers(engine)
            result = real()
            after = normalisers(engine)
            seen.append((before, after))
            return result

        engine.evaluator.run = check
        engine.run()
    assert len(seen) == 20
    for epoch, (before, after) in enumerate(seen, 1):
        learner = before[0]
        assert learner["normalizer.count"] == 10 * epoch
        assert {"normalizer.mean", "normalizer.var"} <= learner.keys()
        for each in [*before[1:], *after]:
            assert each.keys() == learner.keys()
            assert all((each[name] == learner[name]).all() for name in learner)
    assert seen[-1][0][0]["normalizer.mean"] == pytest.approx([100.0] * 3, abs=0.3)


def test_an_episode_that_does_not_end_is_cut_counts_as_truncated_and_is_told(engine, caplog):
    # Row 0 ends after 3 steps, row 1 never: of its two episodes each is cut at 11, the second one after a reset.
    kinds = {"env_kwargs": {"lengths": [3, 1000]}}
    run = engine(env=kinds, evaluation={"episodes": 4, "num_envs": 2}, max_eval_rollout_steps=11)
    episodes = evaluated(run).episodes
    assert sorted((one.sub_env, one.truncated) for one in episodes if one.length > 3) == [(1, True), (1, True)]
    assert [one.length for one in episodes if one.sub_env == 0] == [3, 3]
    assert all(11 <= one.length < 11 + 16 for one in episodes if one.sub_env == 1)
    assert "2 of 4 evaluation episodes did not end within train.max_eval_rollout_steps=11 steps" in caplog.text


def test_episodes_may_take_as_many_steps_as_allowed(engine):
    run = engine(env={"env_kwargs": {"lengths": [20]}}, max_eval_rollout_steps=20)
    assert evaluated(run).metrics()["eval/length_mean"] == 20


def test_a_failing_env_ends_an_evaluation_and_is_not_waited_for(engine):
    run = engine(env={"env_kwargs": {"fail_at": 3, "lengths": [50]}})
    with pytest.raises(WorkerError, match="the motor is off") as caught:
        evaluated(run)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.worker == "eval_env[0]"


def test_a_failing_policy_ends_an_evaluation_and_is_not_waited_for(engine):
    run = engine(policy={"algo_cfg": {"fail": "rollout"}})
    with pytest.raises(WorkerError, match="no rollout today") as caught:
        evaluated(run)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_engine_that_only_evaluates_trains_nothing(engine):
    run = engine(engine="eval")
    result = run.run()
    assert result.epochs == 0
    assert result.evaluation is not None
    assert [dataclasses.asdict(episode)["length"] for episode in result.evaluation.episodes] == [4, 4]
    assert run.recorder.saves == []
    with pytest.raises(ProtocolError, match="set engine to syncrl or rsl"):
        run.run_epoch()
