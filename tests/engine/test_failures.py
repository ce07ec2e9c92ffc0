"""What fails is raised where the run is, with its cause, and everything is closed."""

import sys

import pytest

from rlightning.assembly.assemble import assemble
from rlightning.assembly.recording import open_run
from rlightning.errors import WeightSyncError, WorkerDied, WorkerError
from rlightning.observability.run_folder import RunFolder
from rlightning.observability.sinks import JsonlSink, Sinks
from tests.engine.doubles import Notebook, config
from tests.engine.envs import OPEN


@pytest.fixture(autouse=True)
def _all_envs_are_closed():
    OPEN.clear()
    yield
    assert OPEN == []


@pytest.mark.parametrize(
    ("where", "worker", "method"),
    [
        ("rollout", "eval[0]", "_rollout"),
        ("postprocess", "eval[0]", "_postprocess"),
        ("update_dataset", "train[0]", "_update_dataset"),
        ("train", "train[0]", "_train"),
        ("load_state_dict", "eval[0]", "recv_weights"),
    ],
)
def test_a_failure_of_a_policy_in_any_phase(where, worker, method):
    made = config(policy={"algo_cfg": {"fail": where}}, engine="rsl")
    engine = assemble(made)
    with pytest.raises(WorkerError, match=f"no {where} today") as caught, engine:
        engine.run()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert (caught.value.worker, caught.value.method) == (worker, method)
    assert engine.policy_group.train_list == engine.policy_group.eval_list == []


@pytest.mark.parametrize("name", ["syncrl", "rsl"])
def test_a_failure_of_an_env_names_the_worker_and_the_step(name):
    made = config(env={"num_workers": 2, "max_restarts": 0, "env_kwargs": {"fail_at": 7}}, engine=name)
    with (
        pytest.raises(WorkerError, match=r"the motor is off \(step 7 of this worker\)") as caught,
        assemble(made) as it,
    ):
        it.run()
    assert isinstance(caught.value.__cause__, OSError)
    assert (caught.value.worker, caught.value.method) == ("env[0]", "step")


def test_a_failure_of_the_recorder_is_raised_as_it_is():
    recorder = Notebook()

    def fail(epoch):
        raise OSError("no space left")

    recorder.on_log = fail
    with pytest.raises(OSError, match="no space left"), assemble(config(), recorder=recorder) as engine:
        engine.run()


def test_a_failure_to_close_does_not_hide_why_the_run_ended(caplog):
    engine = assemble(config())
    close, engine.env_group.close = engine.env_group.close, _cannot_close
    with pytest.raises(ValueError, match="why it ended"), engine:
        raise ValueError("why it ended")
    assert "the process is gone" in caplog.text
    assert engine.policy_group.train_list == []
    close()


def test_metrics_that_cannot_be_kept_end_the_run_and_a_failure_to_close_does_not_hide_why(
    tmp_path, monkeypatch, caplog
):
    class Full(JsonlSink):
        def log(self, step, metrics):
            if step == 20:
                raise ZeroDivisionError("no metrics today")
            super().log(step, metrics)

        def close(self):
            super().close()
            raise OSError("no space left")

    monkeypatch.setattr(RunFolder, "open_sinks", lambda run, at: Sinks(Full(run.metrics_path)))
    for epochs, error in ((3, ZeroDivisionError), (1, OSError)):
        made = config(max_epochs=epochs, save_dir=str(tmp_path))
        with pytest.raises(error), open_run(RunFolder.create(made)), assemble(made) as engine:
            engine.run()
    assert "metrics may be lost, since closing failed: OSError: no space left" in caplog.text


def test_a_failure_to_close_is_raised_where_nothing_else_was_and_the_rest_is_closed():
    engine = assemble(config())
    close, engine.env_group.close = engine.env_group.close, _cannot_close
    with pytest.raises(WorkerDied), engine:
        pass
    assert engine.policy_group.train_list == []
    close()
    engine.close()


def _cannot_close():
    raise WorkerDied("the process is gone", "env[0]", "close")


@pytest.mark.parametrize("part", ["build_policy_group", "build_data_buffer", "build_eval_env_group"])
def test_what_was_started_is_closed_if_the_rest_cannot_be(monkeypatch, part):
    def fail(*args, **options):
        raise ValueError(f"no {part}")

    monkeypatch.setattr(sys.modules[assemble.__module__], part, fail)
    with pytest.raises(ValueError, match=part):
        assemble(config())


@pytest.mark.parametrize("on_mismatch", ["error", "log"])
def test_an_eval_policy_with_other_weights_ends_the_run_or_is_logged(on_mismatch, caplog):
    buffer = {"verify_interval": 2, "on_mismatch": on_mismatch}
    with assemble(config(policy={"type": "careless", "weight_buffer": buffer})) as engine:
        engine.publish()  # the first push is not compared, the second one is
        assert "weights differ" not in caplog.text
        if on_mismatch == "error":
            with pytest.raises(WeightSyncError, match=r"after the push of version 0 .* eval\[0\] net.bias"):
                engine.publish()
        else:
            engine.publish()
        assert "weights differ: eval[0] net.bias" in caplog.text
