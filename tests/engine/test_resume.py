"""Going on from a checkpoint: what fits, what does not, and what starts anew."""

import pytest

from rlightning.checkpoint import save_state
from rlightning.errors import CheckpointError
from rlightning.launch.assemble import assemble
from rlightning.launch.states import differences
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


def test_envs_that_cannot_be_stored_start_new_episodes_and_the_run_says_so(checkpoint, caplog):
    env = {"num_workers": 2, "env_kwargs": {"stores": False}}
    folder = checkpoint(env=env)
    with assemble(config(env=env)) as engine:
        first = [ret.observation for ret in gather(engine.env_group.reset().items)]
    with assemble(config(env=env)) as engine:
        engine.resume(folder)
        assert "the state of env[0], env[1] could not be stored: new episodes start there" in caplog.text
        rets = gather(engine.env_rets.items)
        assert all(ret.is_reset.all() for ret in rets)
        assert all((ret.observation != before).any() for ret, before in zip(rets, first, strict=True))
        engine.run()
        assert engine.epoch == 3


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
