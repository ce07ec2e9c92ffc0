"""The command: quick help, exit codes that a shell can rely on, and a run from its start to its video."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

import rlightning
from rlightning.checkpoint import load_state
from rlightning.commands.cli import app
from rlightning.configuring.compose import PACKAGE_CONF
from rlightning.observability.logs import stop_logging
from rlightning.observability.run_folder import RunFolder
from rlightning.observability.sinks import read_metrics

ROOT = Path(rlightning.__file__).parents[1]
TINY = """
defaults: [ppo_cartpole]
env: {num_envs: 2}
evaluation: {episodes: 2}
train: {max_epochs: 2, max_rollout_steps: 8, batch_size: 8, eval_interval: 0, save_interval: 1}
log: {backend: [], name: tiny}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The folder that the user works in, with a task of their own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    yield tmp_path
    stop_logging()


def invoke(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "rlightning", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from rlightning.commands.cli import app\n"
        "for arguments in (['--help'], ['train', '--help'], ['--version'], ['presets', '--help']):\n"
        "    assert CliRunner().invoke(app, arguments).exit_code == 0\n"
        "heavy = ['torch', 'ray', 'gymnasium', 'hydra', 'matplotlib', 'numpy']\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment()
    )
    assert done.stdout.strip() == "[]"


def test_a_process_ends_with_2_for_a_wrong_configuration(folder: Path) -> None:
    done = subprocess.run(
        command("train", "ppo_cartpol"), capture_output=True, text=True, check=False, env=environment()
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "ppo_cartpole" in done.stderr


def test_help_names_every_command_and_gives_examples() -> None:
    text = invoke("--help").output
    for name in ("train", "resume", "eval", "check", "presets", "parity", "verify-resume", "--version"):
        assert name in text
    assert "rlightning train ppo_cartpole cluster=ray" in invoke("train", "--help").output


def test_version_and_presets() -> None:
    assert invoke("--version").output == f"rlightning {rlightning.__version__}\n"
    assert "ppo_halfcheetah" in invoke("presets").output


def test_a_wrong_configuration_ends_with_2_before_anything_starts(folder: Path) -> None:
    (folder / "wrong.yaml").write_text("defaults: [ppo_cartpole]\npolcy: {}\ntrain:\n  batch-size: 3\n")
    done = invoke("train", "wrong.yaml", "cluster=ray", "train.learning_rat=1", "env.num_workers=-1")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "4 problems" in done.stderr
    for text in (
        "wrong.yaml:2",
        "wrong.yaml:4",
        "did you mean policy?",
        "did you mean train.lr?",
        "at least 1, got -1",
    ):
        assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("name", ["train", "check", "parity", "verify-resume"])
def test_every_command_that_takes_a_configuration_refuses_a_wrong_one(name: str) -> None:
    done = invoke(name, "tiny.yaml", "train.foo=1")
    assert done.exit_code == 2
    assert "train.foo" in done.stderr


def test_an_env_that_does_not_exist_is_a_configuration_error() -> None:
    done = invoke("check", "tiny.yaml", "env.name=CartPol-v1")
    assert done.exit_code == 2
    assert "CartPole" in done.stderr


@pytest.mark.parametrize("wrong", ["env.name=CartPol-v1", "env.env_kwargs.render_mod=rgb_array"])
def test_a_run_whose_env_cannot_be_built_leaves_no_folder(folder: Path, wrong: str) -> None:
    done = invoke("train", "tiny.yaml", wrong)
    assert done.exit_code == 2
    assert re.search(r"did you mean (CartPole-v1|env\.env_kwargs\.render_mode)\?", done.stderr)
    assert list((folder / "runs").glob("*")) == []


def test_a_run_that_does_not_exist_ends_with_1_and_one_line() -> None:
    for done in (invoke("eval", "runs/nothing"), invoke("resume", "runs/nothing")):
        assert done.exit_code == 1
        assert "no run folder" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_run_that_fails_ends_with_1_and_the_users_part_of_the_traceback(folder: Path) -> None:
    (folder / "failing.py").write_text(
        "from rlightning.algorithms.ppo import PPO\n"
        "from rlightning.registry import register\n"
        "@register('policy', 'failing')\n"
        "class Failing(PPO):\n"
        "    def train(self):\n"
        "        raise ZeroDivisionError('on purpose')\n"
    )
    done = invoke("train", "tiny.yaml", "imports=[failing.py]", "policy.type=failing")
    assert done.exit_code == 1
    assert "ZeroDivisionError" in done.stderr
    assert "failing.py" in done.stderr
    assert "on purpose" in done.stderr.splitlines()[-1]
    # The call of train, train, and the message before and after an empty line.
    assert len(done.stderr.splitlines()) < 15
    assert "base_engine.py" not in done.stderr
    assert "runs/tiny/logs" in done.stdout
    log = (folder / "runs" / "tiny" / "logs" / "driver.log").read_text()
    assert "base_engine.py" in log
    assert "ZeroDivisionError: on purpose" in log


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlightning.commands import run

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "train", interrupted)
    assert invoke("train", "tiny.yaml").exit_code == 130


def test_ctrl_c_is_not_lost_in_a_module_that_swallows_it_while_it_is_loaded(folder: Path) -> None:
    swallowing = (
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept KeyboardInterrupt:\n    pass\n"
    )
    (folder / "mine.py").write_text(swallowing)
    done = subprocess.run(
        command("train", "tiny.yaml", "imports=[mine.py]"),
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        # What runs in the background of a script inherits that interrupts are ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    # A shell shows the end by signal 2 as 130.
    assert done.returncode == -signal.SIGINT, done.stdout + done.stderr
    assert not (folder / "runs").exists()


def test_a_run_from_its_start_to_its_end(folder: Path) -> None:
    done = invoke("train", "tiny.yaml")
    assert done.exit_code == 0, done.output
    run = RunFolder.open(folder / "runs" / "tiny")
    assert run.preset == "tiny"
    assert run.curve_path.read_bytes().startswith(b"\x89PNG")
    assert [row["progress/epoch"] for row in read_metrics(run.metrics_path)] == [1, 2]
    assert (run.logs / "driver.log").exists() or not list(run.logs.iterdir())
    for text in ("runs/tiny/checkpoints/last", "rlightning eval runs/tiny --video", "runs/tiny/curve.png"):
        assert text in done.output

    done = invoke("eval", "runs/tiny", "--episodes", "3", "--seed", "5")
    assert done.exit_code == 0, done.output
    assert "episodes    3" in done.output
    assert "most likely actions" in done.output
    assert invoke("eval", "runs/tiny", "--episodes", "3", "--seed", "5").output == done.output
    assert "sampled actions" in invoke("eval", "runs/tiny", "--sampled", "--checkpoint", "last").output
    missing = invoke("eval", "runs/tiny", "--checkpoint", "epoch-00000099")
    assert missing.exit_code == 1
    assert "epoch-00000099" in missing.stderr


@pytest.mark.slow
def test_a_terminal_that_lacks_characters_is_no_failure(folder: Path) -> None:
    done = subprocess.run(
        command("train", "tiny.yaml"),
        capture_output=True,
        text=True,
        env={**environment(), "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checkpoint  runs/tiny" in done.stdout


def test_training_with_the_engine_of_evaluations_says_what_came_out(folder: Path) -> None:
    done = invoke("train", "tiny.yaml", "engine=eval")
    assert done.exit_code == 0, done.output
    assert "evaluated   initial weights, in runs/tiny" in done.output
    assert "episodes    2" in done.output
    assert "epoch" not in done.output


@pytest.mark.slow
@pytest.mark.timeout(400)
# imageio leaves the pipes of its ffmpeg process to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("ending", ["mp4", "gif"])
def test_a_video_shows_one_episode(folder: Path, ending: str) -> None:
    import imageio.v2 as imageio

    # The pixel task is drawn without any graphics library; a ball falls in 20 steps.
    (folder / "catch.yaml").write_text(
        TINY.replace("ppo_cartpole", "ppo_pixels").replace("num_envs: 2", "num_envs: 2, env_kwargs: {balls: 1}")
    )
    assert invoke("train", "catch.yaml").exit_code == 0
    done = invoke("eval", "runs/tiny", "--video", f"videos/one.{ending}")
    assert done.exit_code == 0, done.output
    with imageio.get_reader(folder / "videos" / f"one.{ending}") as reader:
        # Not list(reader): a video does not know its length, and says it is endless.
        frames = list(reader.iter_data())
    (steps,) = [int(line.split()[-2]) for line in done.output.splitlines() if line.startswith("video")]
    # Catch makes 30 steps a second. An MP4 shows each; a GIF has pictures of 0.04 s, 25 a second.
    assert len(frames) == (steps if ending == "mp4" else steps * 25 // 30)


def test_what_no_checkpoint_can_hold_is_refused_before_the_first_epoch(folder: Path) -> None:
    (folder / "remembering.py").write_text(
        "from collections import deque\n"
        "from rlightning import register\n"
        "from rlightning.algorithms.ppo import PPO\n"
        "@register('policy', 'remembering')\n"
        "class Remembering(PPO):\n"
        "    def extra_training_state(self):\n"
        "        return {'returns': deque([1.0])}\n"
    )
    done = invoke("train", "tiny.yaml", "imports=[remembering.py]", "policy.type=remembering")
    assert done.exit_code == 1
    assert "extra_training_state.returns cannot be stored: a collections.deque" in " ".join(done.stderr.split())


def test_a_video_must_have_an_ending_that_is_known() -> None:
    done = invoke("eval", "runs/tiny", "--video", "policy.avi")
    assert done.exit_code == 2
    assert ".mp4" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ctrl_c_leaves_a_checkpoint_from_which_the_run_goes_on(folder: Path) -> None:
    process = subprocess.Popen(
        command("train", "tiny.yaml", "train.max_epochs=100000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
    )
    metrics = folder / "runs" / "tiny" / "metrics.jsonl"
    deadline = time.monotonic() + 200
    while not (metrics.exists() and metrics.read_text().count("\n") >= 2):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 130, output
    assert "rlightning resume runs/tiny" in output
    epochs = len(read_metrics(metrics)) + 3
    done = invoke("resume", "runs/tiny", f"train.max_epochs={epochs}")
    assert done.exit_code == 0, done.output
    assert [row["progress/epoch"] for row in read_metrics(metrics)] == list(range(1, epochs + 1))


def test_what_is_changed_in_a_resumed_run_is_used_kept_and_told(folder: Path, caplog) -> None:
    assert invoke("train", "tiny.yaml", "policy.optim_cfg.schedule=linear", "train.lr=0.002").exit_code == 0  # 2 epochs
    run = folder / "runs" / "tiny"
    done = invoke("resume", "runs/tiny", "train.max_epochs=4", "policy.optim_cfg.eps=1e-3")
    assert done.exit_code == 0, done.output
    assert "changed     train.max_epochs=4 (was 2)" in done.stdout
    # After 2 of 2 epochs the rate would be 0, after 2 of 4 it is half of 0.002.
    assert "the learning rate after epoch 2 is 0.001, where it would have been 0;" in caplog.text
    kept = RunFolder.open(run).config
    assert (kept.train.max_epochs, kept.policy.optim_cfg.eps) == (4, 1e-3)
    group = load_state(run / "checkpoints" / "last")["policy"]["train"]["optimizers"]["optimizer"]["param_groups"][0]
    assert group["eps"] == 1e-3
    changes = [json.loads(line) for line in (run / "changes.jsonl").read_text().splitlines()]
    assert [(one["command"], one["epoch"]) for one in changes] == [("resume", 2)]
    assert changes[0]["changes"] == {"train.max_epochs": [2, 4], "policy.optim_cfg.eps": [1e-5, 1e-3]}

    done = invoke("eval", "runs/tiny", "evaluation.episodes=3")
    assert done.exit_code == 0, done.output
    assert "episodes    3" in done.stdout
    assert RunFolder.open(run).config == kept
    assert json.loads((run / "changes.jsonl").read_text().splitlines()[-1])["command"] == "eval"


def test_a_change_that_cannot_be_built_leaves_the_folder_as_it_is(folder: Path) -> None:
    assert invoke("train", "tiny.yaml").exit_code == 0
    config = (folder / "runs" / "tiny" / "config.yaml").read_text()
    assert invoke("resume", "runs/tiny", "train.max_epochs=3", "policy.train_num_gpus=64").exit_code == 2
    assert (folder / "runs" / "tiny" / "config.yaml").read_text() == config
    assert not (folder / "runs" / "tiny" / "changes.jsonl").exists()


@pytest.mark.parametrize(
    ("command", "change", "message"),
    [
        ("resume", "env.num_envs=3", "env.0.num_envs"),
        ("resume", "policy.model_cfg.hidden_sizes=[3]", "policy.model_cfg.hidden_sizes"),
        ("eval", "policy.model_cfg.hidden_sizes=[3]", "policy.model_cfg.hidden_sizes"),
        ("resume", "train.learning_rat=3", "train.learning_rat"),
        ("resume", "seed=5", "seed"),
    ],
)
def test_what_a_run_was_made_with_cannot_change(folder: Path, command, change, message) -> None:
    assert invoke("train", "tiny.yaml").exit_code == 0
    config = (folder / "runs" / "tiny" / "config.yaml").read_text()
    done = invoke(command, "runs/tiny", change)
    assert done.exit_code == 2, done.output
    assert message in done.output
    assert done.output.count("cannot change") == ("learning_rat" not in change)
    assert (folder / "runs" / "tiny" / "config.yaml").read_text() == config


def test_a_resumed_run_says_where_it_stands_and_what_it_could_not_take(folder: Path, caplog) -> None:
    assert invoke("train", "tiny.yaml").exit_code == 0  # 2 epochs, with a checkpoint of each
    run = folder / "runs" / "tiny"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    done = invoke("resume", "runs/tiny")
    assert done.exit_code == 0, done.output
    assert "tiny: 2 of 2 epochs are done, epoch-00000002" in done.stdout
    assert "nothing is left to do; to train on: rlightning resume runs/tiny train.max_epochs=..." in done.stdout
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before

    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("max_epochs: 2", "max_epochs: 3"))
    (run / "checkpoints" / "epoch-00000002" / "policy.json").write_text("{}")
    done = invoke("resume", "runs/tiny")
    assert done.exit_code == 0, done.output
    assert "tiny: 1 of 3 epochs are done, epoch-00000001" in done.stdout
    assert "nothing is left" not in done.stdout
    assert [record.message for record in caplog.records if "damaged" in record.message] == [
        f"{run}/checkpoints/epoch-00000001 is taken, since what is newer is damaged: epoch-00000002"
    ]
    assert [row["progress/epoch"] for row in read_metrics(run / "metrics.jsonl")] == [1, 2, 3]

    (run / "config.yaml").write_text((run / "config.yaml").read_text() + "trian: {}\n")
    for name in ("resume", "eval"):
        done = invoke(name, "runs/tiny")
        assert done.exit_code == 2
        assert "trian: no such option" in done.stderr
        assert "pydantic" not in done.stderr


def test_two_processes_never_record_in_one_folder(folder: Path) -> None:
    assert invoke("train", "tiny.yaml", "train.max_epochs=1").exit_code == 0
    run = RunFolder.open("runs/tiny")
    before = run.metrics_path.read_text()
    with run.lock_path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as the other process does
        done = invoke("resume", "runs/tiny", "train.max_epochs=2")
    assert RunFolder.open("runs/tiny").config == run.config
    assert done.exit_code == 1
    assert f"another process is at work in {run.path}" in " ".join(done.stderr.split())
    assert run.metrics_path.read_text() == before
    assert invoke("resume", "runs/tiny").exit_code == 0


def test_check_shows_who_runs_where_and_starts_nothing(folder: Path) -> None:
    import ray

    was_running = ray.is_initialized()
    done = invoke("check", "tiny.yaml", "cluster=mixed", "env.num_workers=3", "cluster.eval_worker_num=2")
    assert done.exit_code == 0, done.output
    lines = [" ".join(line.split()) for line in done.output.splitlines()]
    assert "env[0..2] processes on a Ray of its own 1 each" in lines
    assert "train[0] this process" in lines
    assert "eval[0..1] this process" in lines
    assert any(line.startswith("weights train[0] eval[0..1] in memory") for line in lines)
    assert any(line.startswith("observations env[0..2] eval[0..1] Ray's object store") for line in lines)
    # 3 workers x 2 sub-envs x 8 steps, twice.
    assert "env steps per epoch 48 = 8 steps x 6 sub-envs" in lines
    assert "env steps of the run 96 = 2 epochs" in lines
    # Options that an algorithm declares are shown with their defaults.
    assert "value_coef: 0.5" in done.output
    assert "  batch_size: 8" in done.output or "batch_size: 8," in done.output
    assert not (folder / "runs").exists()
    assert ray.is_initialized() == was_running


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_wheel_brings_presets_and_types(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for path in PACKAGE_CONF.rglob("*.yaml"):
        assert f"rlightning/conf/{path.relative_to(PACKAGE_CONF).as_posix()}" in names
    assert "rlightning/py.typed" in names
    assert not [name for name in names if name.startswith("tests/")]
