"""Going on from a checkpoint: what fits, what does not, and what starts anew."""

import pytest

from rlightning.assembly.assemble import assemble
from rlightning.checkpoint import load_state, save_state
from rlightning.commands.states import differences
from rlightning.errors import CheckpointError
from rlightning.runtime import gather
from tests.engine.doubles import Notebook, config


@pytest.fixture
def checkpoint(tmp_path):
    def make(**options):
        with assemble(config(**options)) as engine:
            engine.start()
            engine.run_epoch()
            return save_state(tmp_path / "checkpoint", engine.get_state())

    return make


def test_a_resumed_run_has_the_state_that_was_saved_and_goes_on(checkpoint):
    folder = checkpoint()
    with assemble(config()) as straight, assemble(config(), recorder=Notebook()) as resumed:
        straight.start()
        straight.run_epoch()
        resumed.resume(folder)
        assert (resumed.epoch, resumed.env_steps) == (1, 10)
        assert differences(straight.get_state(), resumed.get_state()) == []
        straight.run_epoch()
        straight.run_epoch()
        resumed.run()
        left_over = differences(straight.get_state(), resumed.get_state())
        # The resumed one ran on to its end, where it is evaluated.
        assert left_over == ["policy.eval.0.evaluation_generator", "engine.best"]
        assert [row[0] for row in resumed.recorder.rows] == [2, 3]


ELSEWHERE = pytest.param({"remote_env": True, "remote_eval": True}, marks=[pytest.mark.ray, pytest.mark.exhaustive])


@pytest.mark.parametrize("places", [{}, ELSEWHERE])
def test_global_generators_go_on_after_evaluations_and_a_resume(places, tmp_path, request):
    if places:
        request.getfixturevalue("ray_cluster")
    chance = config(env={"backend": "dice"}, policy={"type": "gambler"}, cluster=places, evaluation={"seed": 3})

    def epoch(engine):
        return {name: value for name, value in engine.run_epoch().items() if not name.startswith("time/")}

    with assemble(chance) as engine:
        engine.start()
        straight = [epoch(engine), epoch(engine)]
        end = engine.get_state()
    with assemble(chance) as engine:
        engine.start()
        first = epoch(engine)
        scores = [engine.evaluate()["eval/return_mean"] for _ in range(2)]
        assert scores[0] == scores[1]  # of equal weights
        folder = save_state(tmp_path / "checkpoint", engine.get_state())
    with assemble(chance) as engine:
        engine.resume(folder)
        second = epoch(engine)
        assert [first, second] == straight
        left_over = differences(end, engine.get_state())
        # Evaluations draw from one of their own.
        assert left_over == ["policy.eval.0.evaluation_generator"]


def test_envs_that_cannot_be_stored_start_new_episodes_and_the_run_says_so(checkpoint, caplog):
    env = {"num_workers": 2, "env_kwargs": {"stores": False}}
    folder = checkpoint(env=env)
    with assemble(config(env=env)) as engine:
        first = [ret.observation for ret in gather(engine.env_group.reset().items)]
    with assemble(config(env=env)) as engine:
        engine.resume(folder)
        assert "the state of env[0], env[1] could not be stored: new episodes start there" in caplog.text
        rets = gather(engine.collector.env_rets.values())
        assert all(ret.is_reset.all() for ret in rets)
        assert all((ret.observation != before).any() for ret, before in zip(rets, first, strict=True))
        engine.run()
        assert engine.epoch == 3


def test_returns_of_envs_that_are_lost_are_not_carried_on_into_others_not_even_of_another_number(tmp_path):
    def scaled(num_envs):
        env = {"num_envs": num_envs, "env_kwargs": {"stores": False}}
        return config(env=env, policy={"type": "ppo", "algo_cfg": {"scale_reward": True}})

    with assemble(scaled(2)) as engine:
        engine.start()
        engine.run_epoch()
        # 5 steps of episodes of 4: one step of reward 1 is carried on, discounted once.
        state = engine.get_state()
        assert state["policy"]["train"]["extra"]["reward_carry"].tolist() == pytest.approx([0.99, 0.99])
        folder = save_state(tmp_path / "checkpoint", state)
    with assemble(scaled(3)) as engine:
        engine.resume(folder)
        engine.run_epoch()
        carry = engine.get_state()["policy"]["train"]["extra"]["reward_carry"]
        assert carry.tolist() == pytest.approx([0.99] * 3)


def test_a_second_resume_counts_no_episode_twice(checkpoint):
    folder = checkpoint()
    with assemble(config()) as engine:
        for _ in range(2):
            engine.resume(folder)
            # 5 steps of 2 envs with episodes of 4 steps: 2 episodes are over.
            assert engine.get_state()["engine"]["returns"] == [4.0, 4.0]


def test_random_states_of_another_device_are_refused_in_words(checkpoint, tmp_path):
    state = load_state(checkpoint())
    actor = state["policy"]["eval"][0]
    actor["generator"] = actor["generator"][:16]  # as long as that of a GPU
    folder = save_state(tmp_path / "elsewhere", state)
    with assemble(config()) as engine, pytest.raises(CheckpointError, match="policies on another device"):
        engine.resume(folder)


def test_nothing_is_said_where_all_is_stored(checkpoint, caplog):
    folder = checkpoint()
    with assemble(config()) as engine:
        engine.resume(folder)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cluster": {"eval_worker_num": 2}}, "eval policies"),
        ({"env": {"num_workers": 2}}, "env workers"),
        ({"env": {"num_envs": 3}}, "sub-envs"),
        ({"policy": {"type": "ppo"}}, "does not fit"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_before_anything_runs(checkpoint, options, says):
    folder = checkpoint()
    with assemble(config(**options)) as engine, pytest.raises(CheckpointError, match=says):
        engine.resume(folder)


def test_a_folder_without_a_run_is_refused(tmp_path):
    folder = save_state(tmp_path / "other", {"policy": {"weights": 1}})
    with assemble(config()) as engine:
        with pytest.raises(CheckpointError, match="not a checkpoint of a run"):
            engine.resume(folder)
        with pytest.raises(CheckpointError, match="no checkpoint folder"):
            engine.resume(tmp_path / "nowhere")
