"""The script of a handful of lines and the command give the same run; the examples do what they say."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rlightning
from rlightning.checkpoint import load_state
from rlightning.commands.states import differences
from rlightning.observability.metrics import undescribed
from rlightning.observability.sinks import read_metrics
from tests.faults.processes import program

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["seed=3", "train.max_epochs=3", "train.save_dir=.", "log.progress=false", "log.backend=[]"]


def finish(arguments, folder, timeout_s=500):
    with program([str(argument) for argument in arguments], folder) as run:
        code, _ = run.end(timeout_s)
        assert code == 0, run.errors
        return run.output


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_script_gives_the_run_of_the_command(tmp_path):
    finish([EXAMPLES / "train_ppo.py", *SMALL, "log.name=script"], tmp_path)
    finish(["-m", "rlightning", "train", "ppo_cartpole", *SMALL, "log.name=command"], tmp_path)
    states = [load_state(tmp_path / name / "checkpoints" / "last") for name in ("script", "command")]
    assert differences(*states) == []
    rows = [without_times(tmp_path / name / "metrics.jsonl") for name in ("script", "command")]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 3


def without_times(path):
    rows = [{k: v for k, v in row.items() if not k.startswith("time")} for row in read_metrics(path)]
    assert all(undescribed(set(row) - {"step"}) == [] for row in rows)
    return rows


def test_a_script_is_a_handful_of_lines():
    lines = (EXAMPLES / "train_ppo.py").read_text().split('"""')[-1]
    body = re.search(r'def main.*?"""\n(.*?)\n\n\nif __name__', (EXAMPLES / "train_ppo.py").read_text(), re.DOTALL)
    assert len(body[1].splitlines()) <= 6
    assert "launch(main" in lines


@pytest.mark.parametrize("first", ["import rlightning.launch", "from rlightning import build_engine", "pass"])
def test_launch_can_be_called_whatever_was_imported_before(first):
    # rlightning.launch is a module and a function.
    text = f"{first}\nfrom rlightning import launch\nimport rlightning.commands.run as module\nprint(callable(launch))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "True\n"
    assert callable(rlightning.launch)


def test_an_algorithm_of_ones_own_is_one_short_file():
    assert len((EXAMPLES / "own_algorithm.py").read_text().splitlines()) < 150


def reaches(goal, script, folder, score, *options):
    """Train by a script with up to three seeds, until one reaches the goal; returns the name of its run.

    Processors round differently, and with that the luck of each seed differs.
    """
    scores = {}
    for seed in (1, 2, 3):
        name = f"seed{seed}"
        finish([EXAMPLES / script, *SMALL[2:], *options, f"seed={seed}", f"log.name={name}"], folder, 800)
        scores[name] = score(read_metrics(folder / name / "metrics.jsonl"))
        if scores[name] >= goal:
            return name
    pytest.fail(f"no seed reaches {goal}: {scores}")


def last_evaluation(rows):
    return rows[-1]["eval/return_mean"]


@pytest.mark.slow
@pytest.mark.timeout(2500)
def test_an_algorithm_of_ones_own_learns_and_is_found_again(tmp_path):
    name = reaches(450, "own_algorithm.py", tmp_path, last_evaluation)
    output = finish(["-m", "rlightning", "eval", name, "--episodes", "3"], tmp_path)
    assert "episodes    3" in output


@pytest.mark.slow
@pytest.mark.timeout(2500)
def test_an_env_of_ones_own_is_learned(tmp_path):
    # Standing still costs 40 steps x the mean distance of 0.77 to a target in [-1, 1]^2: about -31. Going straight to
    # it at 0.1 per step takes less than 10 of the steps: about -3.
    reaches(-4, "own_env.py", tmp_path, last_evaluation)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_robot_of_ones_own_learns_to_walk(tmp_path):
    # At the start it sways where it stands, for a speed reward of about 0.16; 15 short epochs make it half of 1.
    def growth(rows):
        speeds = [row["env/reward_speed"] for row in rows]
        assert len(speeds) == 15
        return min(speeds[-3:]) / speeds[0]

    short = ["env.num_envs=32", "train.batch_size=512", "train.max_epochs=15", "evaluation.episodes=2"]
    reaches(2, "own_robot.py", tmp_path, growth, *short)


@pytest.mark.slow
def test_a_robot_with_commands_of_its_own_is_trained_and_found_again(tmp_path):
    short = ["env.num_envs=8", "train.batch_size=128", "train.max_epochs=2", "evaluation.episodes=2", "log.name=follow"]
    finish([EXAMPLES / "commanded_robot.py", *SMALL[2:], *short], tmp_path)
    rows = read_metrics(tmp_path / "follow" / "metrics.jsonl")
    assert all(0 < row["env/reward_speed"] <= 1 for row in rows)
    output = finish(["-m", "rlightning", "eval", "follow", "--episodes", "3"], tmp_path)
    assert "episodes    3" in output


@pytest.mark.slow
@pytest.mark.timeout(2500)
def test_cart_pole_is_learned_by_its_preset(tmp_path):
    def best_of_100_episodes(rows):
        return max(row.get("episode/return_mean_100", 0.0) for row in rows)

    name = reaches(475, "train_ppo.py", tmp_path, best_of_100_episodes)
    assert json.loads((tmp_path / name / "seeds.json").read_text())["seed"] == int(name[-1])
