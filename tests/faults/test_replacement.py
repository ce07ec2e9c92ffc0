"""Bad simulators: envs at fault are replaced, and nothing of a broken fragment is trained on."""

import os
import re
import signal
from collections import Counter

import pytest
import torch

from rlightning.assembly.assemble import (
    ENGINES,
    assemble,
    build_collector,
    build_data_buffer,
    build_env_group,
    build_policy_group,
)
from rlightning.buffer.storage import RolloutBlock
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
    parts = build_policy_group(made, envs.env_meta), build_data_buffer(made)
    return ENGINES[made.engine](made, build_collector(made, envs, *parts, by_fragment=False), *parts, recorder=recorder)


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
                # One more, at a time when nothing is asked of it.
                steps_of_five = ask_all(engine, EnvWorker.report)[5].steps
                os.kill(pids[5], signal.SIGKILL)
            engine.load_to_act()
            assert engine.collect() == 8 * 8 * 2
            blocks.append(block(engine).clone())
            engine.learn()
            engine.publish()
            engine.epoch += 1
        counts = {name: count for name, count in engine._count_faults().items() if name.startswith("faults/")}
        assert counts == {"faults/raised": 1, "faults/timed_out": 1, "faults/died": 2, "faults/not_finite": 1}
        assert engine.env_group.faults.restarts == [1, 1, 1, 1, 0, 1, 0, 0]
        reports = ask_all(engine, EnvWorker.report)
        # 11 whole fragments of 8 steps each; the new workers made no others, and those that were well made more, which
        # were dropped with the fragments that shared requests with a broken one.
        assert all(report.steps >= 88 for report in (reports[4], reports[6], reports[7]))
        assert reports[5].steps == 8
        # Env 0 had made 3 steps of a fragment that env 2 broke, then 3 whole ones of 2 sub-envs; env 3 likewise made
        # 2, and env 2 died in its third step. Nothing came of the reset that hung.
        dropped = engine.collector.dropped
        assert {kind: count for kind, count in dropped.items() if kind != "beside"} == {
            "raised": 6,
            "not_finite": 4,
            "died": 4,
        }
        successors = ask_all(engine, pid)
        assert [a != b for a, b in zip(pids, successors, strict=True)] == [True] * 4 + [False, True, False, False]
        pids += successors
        (learner,) = engine.policy_group.train_list
        assert all(parameter.isfinite().all() for parameter in learner.parameters())
    for data in blocks:
        assert torch.isfinite(data["reward"]).all()
        assert data["valid"].all()
        assert not data["terminated"].any()
        # Every row starts where the one before it ended, but after the 50 steps of an episode: no fragment is put
        # together from two.
        assert all(data["truncated"][t, n] for t, n in gaps(data))
    told = caplog.text
    for line in (
        r"env[0]: uneven: OSError: the motor is off (step 7 of this worker); it is replaced, with episodes of "
        r"generation 1 and 2 restarts left",
        r"env[1]: uneven: a call took longer than env.step_timeout_s = 4 s in reset; it is replaced",
        "env[2]: uneven: its process died in step 3 of this worker; it is replaced",
        r"env[3]: uneven: reward of sub-env 1 is nan, which is not finite (step 50 of this worker); it is replaced",
        f"env[5]: uneven: its process died in step {steps_of_five + 1} of this worker; it is replaced",
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


@pytest.mark.parametrize(("name", "whole"), [("syncrl", 2), ("rsl", 1)])
@pytest.mark.parametrize("actors", [1, 2])
def test_a_broken_fragment_is_dropped_whole_and_counted(tmp_path, name, whole, actors):
    made = broken(tmp_path / "mark", engine=name, cluster={"eval_worker_num": actors})
    with assemble_without_evaluation(made) as engine:
        engine.start()
        engine.run_epoch()
        collected = engine.collector.collect(5)
        data = block(engine)
        steps = [worker.report().steps for worker in engine.env_group.workers]
        # A worker that takes the place of another one plays episodes that were not played before.
        new = EnvWorker(TroubledEnv, made.env[1], 0, made.seed, "train", 1)
        first = torch.from_numpy(new.reset().observation)
        new.close()
    # 5 steps of 2 sub-envs of 2 workers, each as one episode or the continuation of one.
    assert collected.transitions == 20
    assert data.batch_size == (5, 4)
    assert data["valid"].all()
    assert not data["truncated"].any()
    assert gaps(data) == []
    assert torch.equal(data["observation"][0, :2], first)
    # The first step of this epoch is the 8th less 2. With "syncrl" the outcomes of the 6th and the 7th had come in, and
    # with "rsl", where a step is stored when it is over and closed by the next one, that of the 6th.
    assert collected.dropped == {"raised": 2 * whole, "beside": 2 * whole}
    # The new worker made the whole fragment; the other one 5 steps before, 3 up to the fault, and 5 again.
    assert steps[0] == 5
    assert steps[1] >= 12


def test_all_that_came_in_is_used_or_dropped(tmp_path):
    # Two faults in three epochs, in steps 4 and 9 of the first worker; "nan" comes after the step of the second worker.
    kinds = [kind("raise", 4, tmp_path / "0"), kind("nan", 9, tmp_path / "1"), kind()]
    recorder = Notebook()
    with assemble_without_evaluation(config(env=kinds), recorder) as engine:
        came, add = Counter(), RolloutBlock._close

        def count(block, index, row, env_ret):
            came[index] += int((~env_ret.is_reset).sum())
            add(block, index, row, env_ret)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RolloutBlock, "_close", count)
            result = engine.run()
        dropped = engine.collector.dropped
    assert result.env_steps == 3 * 5 * 6
    assert sum(came.values()) == result.env_steps + dropped.total()
    assert set(dropped) == {"raised", "not_finite", "beside"}
    last = recorder.rows[-1][2]
    assert {name: last[f"dropped/{name}"] for name in dropped} == dropped


def test_a_fault_in_the_first_step_and_in_the_last_step_of_a_fragment(tmp_path):
    for at in (6, 10):
        with assemble_without_evaluation(broken(tmp_path / str(at), at=at)) as engine:
            engine.start()
            engine.run_epoch()
            assert engine.collect() == 20
            data = block(engine)
            assert not data["truncated"].any()
            assert data["valid"].all()
            assert gaps(data) == []
            # No outcome had come in, or those of four steps of two sub-envs; then the fragment of the other worker is
            # whole.
            assert engine.collector.dropped == ({} if at == 6 else {"raised": 8})
            assert engine.env_group.faults.restarts == [1, 0]


def test_envs_that_fail_one_after_the_other_in_one_rollout(tmp_path):
    kinds = [kind("raise", 2, tmp_path / "0"), kind("nan", 4, tmp_path / "1"), kind("raise", 0, tmp_path / "2")]
    with assemble_without_evaluation(config(env=kinds)) as engine:
        engine.start()
        assert engine.collect() == 30
        data = block(engine)
    assert engine.env_group.faults.kinds == {"raised": 2, "not_finite": 1}
    assert engine.env_group.faults.restarts == [1, 1, 1]
    assert not data["truncated"].any()
    assert gaps(data) == []


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
        # Step 8 is the third of the second epoch. Steps are stored after the envs stepped, and closed by the next one:
        # one step of the two workers of that process, two sub-envs each.
        assert engine.collector.dropped == {"raised": 2, "beside": 2}
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
        assert engine.collector.dropped == {"raised": 4, "beside": 4}
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
    assert "with cluster.placement.env_strategy=default an env" in caught.value.__notes__[-1]
