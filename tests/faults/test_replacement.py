"""Bad simulators (C13): whoever is at fault is replaced, and nothing of the broken stretch is trained on."""

import os
import re
import signal

import pytest
import torch

from rlightning.assembly.assemble import ENGINES, assemble, build_data_buffer, build_env_group, build_policy_group
from rlightning.checkpoint import save_state
from rlightning.env.env_worker import EnvWorker
from rlightning.errors import WorkerDied, WorkerError
from rlightning.runtime import as_handle, gather
from tests.engine.doubles import Notebook, config
from tests.engine.envs import OPEN
from tests.faults.envs import TroubledEnv, pid
from tests.runtime.test_replacement import _lives, _soon

FAR = {"remote_env": True, "start_timeout_s": 250.0}


@pytest.fixture(autouse=True)
def _all_envs_are_closed():
    OPEN.clear()
    yield
    assert OPEN == []


def kind(fault="", at=-1, once="", **options):
    kwargs = {"fault": fault, "at": at, "once": str(once), "lengths": [50], **options.pop("env_kwargs", {})}
    return {"backend": "troubled", "env_kwargs": kwargs, **options}


def assemble_without_evaluation(made, recorder=None):
    """Build a run without envs for evaluation, which would have the same faults."""
    envs = build_env_group(made)
    parts = envs, build_policy_group(made, envs.env_meta), build_data_buffer(made)
    return ENGINES[made.engine](made, *parts, recorder=recorder)


def block(engine):
    (future,) = engine.buffer.sample()
    return future.result()


def ask_all(engine, function):
    workers = enumerate(engine.env_group.workers)
    return gather([as_handle(worker, f"env[{i}]").run(function) for i, worker in workers], 250)


def gaps(data):
    """Rows that do not end where the next one starts: [t, n] pairs."""
    follows = (data["next_observation"][:-1] == data["observation"][1:]).all(-1)
    return (~follows).nonzero().tolist()


@pytest.mark.ray
@pytest.mark.timeout(400)
def test_a_run_with_bad_simulators_ends_well(ray_cluster, tmp_path, caplog):
    kinds = [
        kind("raise", 7, tmp_path / "0"),
        kind("hang", 0, tmp_path / "1", step_timeout_s=4.0),
        kind("exit", 3, tmp_path / "2"),
        kind("nan", 50, tmp_path / "3"),
        *[kind()] * 4,
    ]
    made = config(env=kinds, cluster=FAR, max_epochs=11, max_rollout_steps=8)
    pids = []
    with assemble_without_evaluation(made) as engine:
        pids += ask_all(engine, pid)
        engine.start()
        blocks = []
        for epoch in range(11):
            if epoch == 10:
                # One more, at a time when nobody asks anything of it.
                os.kill(pids[5], signal.SIGKILL)
            engine.make_room_to_act()
            assert engine.collect() == 8 * 8 * 2
            blocks.append(block(engine).clone())
            engine.learn()
            engine.publish()
            engine.epoch += 1
        counts = engine._count_faults()
        assert counts == {"faults/raised": 1, "faults/timed_out": 1, "faults/died": 2, "faults/not_finite": 1}
        assert engine.env_group.faults.restarts == [1, 1, 1, 1, 0, 1, 0, 0]
        reports = ask_all(engine, EnvWorker.report)
        # 88 steps in all; the broken ones are made again by the new workers. 7 is lost with 6 made, and so on.
        assert [report.steps for report in reports[:4]] == [82, 88, 86, 39]
        assert [report.steps for report in reports[4:]] == [88, 8, 88, 88]
        successors = ask_all(engine, pid)
        assert [a != b for a, b in zip(pids, successors, strict=True)] == [True] * 4 + [False, True, False, False]
        pids += successors
        (learner,) = engine.policy_group.train_list
        assert all(parameter.isfinite().all() for parameter in learner.parameters())
    for data in blocks:
        assert torch.isfinite(data["reward"]).all()
        assert data["valid"].all()
        assert not data["terminated"].any()
        # What is truncated ends in an observation of its own, everything else where the next row starts.
        assert all(data["truncated"][t, n] for t, n in gaps(data))
    # Step 7, 3 and 50 are lost; the rows before are 6 (of the first epoch), 2, and 49 (row 1 of the seventh epoch).
    cuts = [(epoch, t, n // 2) for epoch, data in enumerate(blocks) for t, n in data["truncated"].nonzero().tolist()]
    ends = {(0, 5, 0), (0, 1, 2), (6, 0, 3)}
    assert ends <= set(cuts)
    told = caplog.text
    for line in (
        r"env[0]: uneven: OSError: the motor is off (step 7 of this worker); it is replaced, with episodes of "
        r"generation 1 and 2 restarts left",
        r"env[1]: uneven: a call took longer than env.step_timeout_s = 4 s in reset; it is replaced",
        "env[2]: uneven: its process died in step 3 of this worker; it is replaced",
        r"env[3]: uneven: reward of sub-env 1 is nan, which is not finite (step 50 of this worker); it is replaced",
        "env[5]: uneven: its process died in step 81 of this worker; it is replaced",
    ):
        assert line in told
    assert len(re.findall("it is replaced", told)) == 5
    assert _soon(lambda: not any(_lives(pid) for pid in pids))


def broken(once, fault="raise", at=8, **options):
    """Two env workers with two sub-envs, of which the first fails once; 5 steps per epoch."""
    return config(env=[kind(fault, at, once), kind()], **options)


@pytest.mark.parametrize(
    ("fault", "counter", "told"),
    [("raise", "faults/raised", "the motor is off"), ("nan", "faults/not_finite", "reward of sub-env 1 is nan")],
)
@pytest.mark.parametrize("name", ["syncrl", "rsl"])
@pytest.mark.parametrize("actors", [1, 2])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_env_of_this_process_is_built_anew(tmp_path, caplog, fault, counter, told, name, actors, mode):
    parts = {"cluster": {"eval_worker_num": actors}, "policy": {"rollout_mode": mode}}
    made = broken(tmp_path / "mark", fault, engine=name, **parts)
    recorder = Notebook()
    with assemble_without_evaluation(made, recorder) as engine:
        result = engine.run()
        # All rows of 3 epochs of 5 steps in 4 sub-envs are whole, whatever was lost on the way.
        assert (result.epochs, result.env_steps) == (3, 60)
        assert engine.env_group.faults.restarts == [1, 0]
    counted = [metrics.get(counter) for _, _, metrics in recorder.rows]
    assert counted == [None, 1.0, 1.0]
    assert f"env[0]: uneven: {told}" in caplog.text.replace("OSError: ", "")
    assert "(step 8 of this worker)" in caplog.text


@pytest.mark.parametrize("name", ["syncrl", "rsl"])
def test_rows_on_both_sides_of_a_fault_are_whole_and_never_joined(tmp_path, name):
    made = broken(tmp_path / "mark", engine=name)
    with assemble_without_evaluation(made) as engine:
        engine.start()
        engine.run_epoch()
        engine.collect()
        data = block(engine)
        # A worker that takes the place of another one plays episodes that nobody played.
        new = EnvWorker(TroubledEnv, made.env[1], 0, made.seed, "train", 1)
        first = torch.from_numpy(new.reset().observation)
        new.close()
    assert data.batch_size == (5, 4)
    assert data["valid"].all()
    for t, n in gaps(data):
        assert data["truncated"][t, n]
    # The first step of this epoch is the 6th. The 8th fails: rows 0 and 1 are there, and row 2 is a new episode.
    # With "rsl" a row is stored when its step is over, and the failure takes another one with it.
    end = 1 if name == "syncrl" else 0
    assert data["truncated"][:, :2].nonzero().tolist() == [[end, 0], [end, 1]]
    assert torch.equal(data["observation"][end + 1, :2], first)
    # The other env was well: with "syncrl" it loses nothing.
    if name == "syncrl":
        assert not data["truncated"][:, 2:].any()
        assert all(n < 2 for _, n in gaps(data))


def test_a_fault_in_the_first_step_and_in_the_last_step_of_a_rollout(tmp_path):
    for at in (6, 10):
        with assemble_without_evaluation(broken(tmp_path / str(at), at=at)) as engine:
            engine.start()
            engine.run_epoch()
            assert engine.collect() == 20
            data = block(engine)
            # The lost row is row 0 in one case, so that nothing is left of the old episode, and row 4 in the other.
            ends = data["truncated"][:, :2].nonzero()[:, 0].unique().tolist()
            assert ends == ([] if at == 6 else [3])
            assert data["valid"].all()
            assert engine.env_group.faults.restarts == [1, 0]


def test_envs_that_fail_one_after_the_other_in_one_rollout(tmp_path):
    kinds = [kind("raise", 2, tmp_path / "0"), kind("nan", 4, tmp_path / "1"), kind("raise", 0, tmp_path / "2")]
    with assemble_without_evaluation(config(env=kinds)) as engine:
        engine.start()
        assert engine.collect() == 30
        data = block(engine)
    assert engine.env_group.faults.kinds == {"raised": 2, "not_finite": 1}
    # Worker 0 lost its 2nd step (row 1), worker 1 its 4th (row 3), and worker 2 did not come to a step.
    assert data["truncated"].nonzero().tolist() == [[0, 0], [0, 1], [2, 2], [2, 3]]
    assert all(data["truncated"][t, n] for t, n in gaps(data))


def test_an_env_that_fails_every_time_ends_the_run_with_what_it_raised():
    made = config(env=[kind("raise", 3, max_restarts=2), kind()])
    with (
        pytest.raises(WorkerError, match=r"the motor is off \(step 3 of this worker\)") as caught,
        assemble_without_evaluation(made) as engine,
    ):
        engine.run()
    assert isinstance(caught.value.__cause__, OSError)
    assert (caught.value.worker, caught.value.method) == ("env[0]", "step")
    assert caught.value.__notes__ == ["env[0] was replaced 2 times before (env.max_restarts)"]
    assert engine.env_group.faults.restarts == [2, 0]


def test_without_restarts_a_fault_ends_the_run_as_it_is():
    made = config(env=[kind("raise", 3, max_restarts=0)])
    with pytest.raises(WorkerError, match=r"the motor is off") as caught, assemble_without_evaluation(made) as engine:
        engine.run()
    assert not hasattr(caught.value, "__notes__")


def test_a_policy_that_fails_is_not_taken_for_an_env(tmp_path):
    # Its second answer is that to the first step's result, with which the first env comes down, too.
    made = broken(tmp_path / "mark", at=2, policy={"algo_cfg": {"fail": "rollout"}})
    with (
        pytest.raises(WorkerError, match="no rollout today") as caught,
        assemble_without_evaluation(made) as engine,
    ):
        engine.run()
    assert caught.value.worker == "eval[0]"


def test_a_run_without_faults_is_what_it_was():
    rows = []
    for restarts in (0, 3):
        recorder = Notebook()
        with assemble(config(env={"max_restarts": restarts}), recorder=recorder) as engine:
            engine.run()
        rows.append([{k: v for k, v in each.items() if not k.startswith("time/")} for _, _, each in recorder.rows])
    assert rows[0] == rows[1]
    assert not any("fault" in name for name in rows[0][-1])


def test_a_fragment_in_which_an_env_failed_is_collected_again(tmp_path):
    near = {"placement": {"env_strategy": "process-colocate"}, "eval_worker_num": 2}
    kinds = [kind("raise", 8, tmp_path / "0"), kind("raise", 0, tmp_path / "1"), kind()]
    made = config(env=kinds, cluster=near, evaluation={"episodes": 2, "num_envs": 2}, max_eval_rollout_steps=60)
    with assemble(made) as engine:
        engine.start()
        engine.run_epoch()
        assert engine.collect() == 30
        data = block(engine)
        assert engine.env_group.faults.restarts == [1, 1, 0]
    # No row of the broken fragment is there: the new episodes begin with the fragment, and end nowhere in it.
    assert not data["truncated"].any()
    assert gaps(data) == []


def test_an_evaluation_meets_its_quota_with_whole_episodes_only(tmp_path, caplog):
    # 2 sub-envs, episodes of 20 steps; the 31st step fails once, when each has one whole episode and 10 steps.
    env = kind("raise", 31, tmp_path / "mark", env_kwargs={"lengths": [20]})
    with assemble(config(env=env, evaluation={"episodes": 5, "num_envs": 2}, max_eval_rollout_steps=80)) as engine:
        engine.start()
        metrics = engine.evaluate()
        episodes = engine.evaluator.run().episodes
    assert metrics["eval/episodes"] == 5
    assert metrics["eval/length_mean"] == 20
    assert metrics["eval/return_mean"] == 20
    assert metrics["faults/raised"] == 1
    assert [episode.length for episode in episodes] == [20] * 5
    assert "eval_env[0]: uneven: OSError: the motor is off (step 31 of this worker); it is replaced" in caplog.text


def test_counts_of_faults_go_on_in_a_resumed_run(tmp_path):
    made = broken(tmp_path / "mark")
    with assemble_without_evaluation(made) as engine:
        engine.run()
        save_state(tmp_path / "checkpoint", engine.get_state())
    with assemble_without_evaluation(made) as engine:
        engine.resume(tmp_path / "checkpoint")
        faults = engine.env_group.faults
        assert (faults.restarts, faults.generations, faults.kinds) == ([1, 0], [1, 0], {"raised": 1})
        assert [state["generation"] for state in engine.env_group.get_state()] == [1, 0]


@pytest.mark.ray
@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine_name", ["syncrl", pytest.param("rsl", marks=pytest.mark.exhaustive)])
def test_remote_policies_pass_on_a_failure_and_nobody_else_is_blamed(ray_cluster, tmp_path, caplog, engine_name):
    env = kind("exit", 8, tmp_path / "mark", num_workers=2)
    made = config(env=env, engine=engine_name, cluster=FAR | {"remote_eval": True, "remote_storage": True})
    with assemble_without_evaluation(made) as engine:
        assert engine.run().env_steps == 60
        assert engine.env_group.faults.kinds == {"died": 1}
        assert sum(engine.env_group.faults.restarts) == 1
    assert "in step 8 of this worker; it is replaced" in caplog.text


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_an_env_for_evaluation_that_dies_is_replaced(ray_cluster, tmp_path):
    env = kind("exit", 31, tmp_path / "mark", env_kwargs={"lengths": [20]})
    made = config(env=env, cluster=FAR, evaluation={"episodes": 4, "num_envs": 2})
    with assemble(made) as engine:
        engine.start()
        metrics = engine.evaluate()
    assert (metrics["eval/episodes"], metrics["eval/length_mean"], metrics["faults/died"]) == (4, 20, 1)


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_an_env_that_dies_every_time_ends_the_run_with_its_cause(ray_cluster):
    made = config(env=kind("exit", 2, max_restarts=1), cluster=FAR)
    with pytest.raises(WorkerDied) as caught, assemble_without_evaluation(made) as engine:
        engine.run()
    assert caught.value.worker == "env[0]"
    assert caught.value.__notes__ == ["env[0] was replaced 1 times before (env.max_restarts)"]


@pytest.mark.ray
@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_a_process_that_env_and_policy_share_ends_the_run_with_its_cause(ray_cluster, tmp_path):
    far = {"placement": {"env_strategy": "process-colocate"}, "remote_env": True, "remote_eval": True}
    made = config(env=kind("exit", 8, tmp_path / "mark"), cluster=far)
    with pytest.raises(WorkerDied) as caught, assemble(made) as engine:
        engine.run()
    assert caught.value.worker == "eval[0]"
