"""How programs end: with the error that ended them, quietly where there is none, and with no process left behind."""

import os
import signal
import sys
from pathlib import Path

import pytest

from rlightning.checkpoint import is_whole, load_state
from rlightning.observability.sinks import read_metrics
from tests.faults.processes import program

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]

ONE_STEP = """
from rlightning.launch import build_env_group
from rlightning.runtime import gather
from rlightning.types import BatchedData, PolicyResponse
from tests.engine.doubles import config
import numpy as np

envs = build_env_group(config(env={{"num_workers": 3}}, cluster={{"remote_env": {remote}}}))
gather(envs.reset().items)
action = PolicyResponse(np.zeros(2, np.int64))
gather(envs.step(BatchedData(envs.env_ids, [action] * 3)).items)
print("stepped", flush=True)
{then}
"""


def script(folder, text):
    (folder / "script.py").write_text(text)
    return ["script.py"]


@pytest.mark.ray
def test_a_driver_that_raises_ends_and_leaves_no_process(tmp_path):
    text = ONE_STEP.format(remote=True, then="raise RuntimeError('the driver gave up')")
    with program(script(tmp_path, text), tmp_path) as driver:
        driver.wait_for(lambda: "stepped" in driver.output)
        code, _ = driver.end(60)
        assert code == 1
        assert "RuntimeError: the driver gave up" in driver.errors
        assert driver.nothing_left()


@pytest.mark.parametrize(
    "remote",
    [pytest.param(False, id="local"), pytest.param(True, id="remote", marks=[pytest.mark.ray, pytest.mark.exhaustive])],
)
def test_a_program_that_closes_neither_envs_nor_run_ends_quietly(tmp_path, remote):
    then = f"""
from rlightning.assembly.assemble import assemble
far = {{"remote_env": True, "remote_train": True}}
engine = assemble(config(cluster=far if {remote} else {{}}))
engine.run()
print("trained", flush=True)
"""
    with program(script(tmp_path, ONE_STEP.format(remote=remote, then=then)), tmp_path) as driver:
        driver.wait_for(lambda: "trained" in driver.output or driver.process.poll() is not None, 300)
        assert driver.end(60)[0] == 0
        assert driver.errors == ""
        assert driver.nothing_left()


def command(*overrides):
    usual = ["train.save_dir=.", "log.name=run", "log.progress=false", "log.backend=[]", "train.max_epochs=100000"]
    return ["-m", "rlightning", "train", "ppo_cartpole", *usual, *overrides]


def epochs_of(folder):
    path = folder / "run" / "metrics.jsonl"
    return len(read_metrics(path)) if path.exists() else 0


@pytest.mark.parametrize(
    "remote",
    [
        pytest.param(False, id="local", marks=pytest.mark.exhaustive),
        pytest.param(True, id="remote", marks=pytest.mark.ray),
    ],
)
def test_ctrl_c_ends_after_the_epoch_with_a_checkpoint(tmp_path, remote):
    # A terminal sends the signal to all processes of the session, those of the workers among them.
    arguments = command(f"cluster.remote_env={remote}", "train.save_interval=0", "train.eval_interval=0")
    with program(arguments, tmp_path) as run:
        run.wait_for(lambda: epochs_of(tmp_path) >= 2, 300)
        signal_session(run, signal.SIGINT)
        code, _ = run.end(60)
        assert in_a_shell(code) == 130, run.errors
        last = tmp_path / "run" / "checkpoints" / "last"
        assert is_whole(last)
        assert load_state(last)["engine"]["epoch"] == epochs_of(tmp_path)
        assert "Traceback" not in run.errors
        assert "rlightning resume run" in run.output
        assert run.nothing_left()


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    # The first epoch would take hours.
    arguments = command("train.max_rollout_steps=10000000", "buffer.capacity=10000000", "env.num_envs=1")
    with program(arguments, tmp_path) as run:
        run.wait_for(lambda: _handles_interrupts(run))
        signal_session(run, signal.SIGINT)
        run.wait_for(lambda: "press Ctrl-C again" in run.errors)
        signal_session(run, signal.SIGINT)
        code, _ = run.end(60)
        assert in_a_shell(code) == 130, run.errors
        assert "Traceback" not in run.errors
        assert run.nothing_left()


@pytest.mark.ray
def test_ctrl_c_while_ray_starts_leaves_no_process(tmp_path):
    with program(command("cluster=ray"), tmp_path) as run:
        run.wait_for(lambda: any("gcs_server" in line for line in run.descendants()))
        signal_session(run, signal.SIGINT)
        code, _ = run.end(120)
        assert in_a_shell(code) == 130, run.errors
        assert "Traceback" not in run.errors
        assert "press Ctrl-C again" in run.errors
        assert run.nothing_left()


def in_a_shell(code):
    """What a shell shows. Under ``-m`` Python ends by the signal itself where an interrupt passed through ``exec``."""
    return code if code >= 0 else 128 - code


def signal_session(run, number):
    os.killpg(run.process.pid, number)


def _handles_interrupts(run):
    """Tell whether the engine has taken over SIGTERM (15), which Python leaves to the system."""
    lines = Path(f"/proc/{run.process.pid}/status").read_text().splitlines()
    caught = next(line.split()[1] for line in lines if line.startswith("SigCgt"))
    return bool(int(caught, 16) & 1 << 14)
