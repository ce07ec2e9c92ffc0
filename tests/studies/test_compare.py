"""Runs side by side."""

import json

import pytest
from PIL import Image
from typer.testing import CliRunner

from rlightning.commands.cli import app
from rlightning.configuring.load import load_config
from rlightning.errors import CheckpointError
from rlightning.observability.run_folder import RunFolder
from rlightning.studies.compare import compare, draw_comparison


def make_run(folder, name, returns, *overrides, evaluations=()):
    """Write the folder of a run of one epoch of 100 steps per return."""
    loaded = load_config("ppo_cartpole", [f"train.save_dir={folder}", f"log.name={name}", *overrides])
    run = RunFolder.create(loaded.config, loaded.preset)
    rows = [
        {
            "step": 100 * (i + 1),
            "episode/return_mean": value,
            "episode/return_mean_100": value,
            "time/env_steps_per_s": 50.0 * (i + 1),
            "time/total_s": 2.0,
        }
        for i, value in enumerate(returns)
    ]
    for row, value in zip(rows[-len(evaluations) :], evaluations, strict=False):
        row["eval/return_mean"] = value
    run.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run.path


def test_runs_that_differ_in_the_seed_are_one_group(tmp_path):
    for rate, level in (("1e-3", 10.0), ("3e-4", 100.0)):
        for seed in range(5):
            returns = [0.0] * 19 + [level + seed]
            make_run(tmp_path, f"{rate}-{seed}", returns, f"train.lr={rate}", f"seed={seed}")
    comparison = compare([tmp_path])
    assert [group.name for group in comparison.groups] == ["train.lr=0.001", "train.lr=0.0003"]
    assert comparison.metric == "training, last 10 % of the epochs"
    # A tenth of 20 epochs are the last two: (0 + 10 + seed) / 2.
    assert comparison.final(comparison.groups[0]) == [5.0, 5.5, 6.0, 6.5, 7.0]
    name, seeds, iqm, interval, spread, speed = comparison.table()[0]
    # Of five values one goes on each side: (5.5 + 6.0 + 6.5) / 3. The median speed is that of epochs 10 and 11.
    assert (name, seeds, iqm, spread, speed) == ("train.lr=0.001", "5", "6.0", "5.0 to 7.0", "525")
    low, high = map(float, interval.split(" to "))
    assert 5.0 <= low < 6.0 < high <= 7.0
    (verdict,) = comparison.statement()
    assert verdict.startswith("train.lr=0.0003 is better than train.lr=0.001, by 4")


def test_evaluations_count_if_all_runs_have_them(tmp_path):
    one = make_run(tmp_path, "one", [1.0, 2.0], evaluations=[7.0])
    two = make_run(tmp_path, "two", [1.0, 3.0], "seed=1", evaluations=[5.0, 9.0])
    assert compare([one, two]).metric == "last evaluation"
    assert compare([one, two]).final(compare([one, two]).groups[0]) == [7.0, 9.0]
    three = make_run(tmp_path, "three", [4.0], "seed=2")
    assert compare([one, two, three]).metric == "training, last 10 % of the epochs"


def test_one_seed_and_no_difference_are_said(tmp_path):
    one = make_run(tmp_path, "one", [1.0])
    two = make_run(tmp_path, "two", [2.0], "train.lr=1e-5")
    assert "one seed has no interval; run more seeds" in compare([one, two]).statement()[0]
    more = [make_run(tmp_path, f"more{seed}", [value], f"seed={seed}") for seed, value in ((1, 3.0), (2, 0.5))]
    others = [make_run(tmp_path, f"other{i}", [1.0 + i], "train.lr=1e-5", f"seed={i}") for i in (1, 2)]
    # Of two equal distributions, three seeds each would show a difference in one of five comparisons.
    few = compare([one, two, *more, *others]).statement()
    assert "too few seeds to say more" in few[0]
    assert few[1].startswith("fewer than 5 seeds")
    more += [make_run(tmp_path, f"even{i}", [1.5], f"seed={i}") for i in (5, 6)]
    others += [make_run(tmp_path, f"odd{i}", [1.5], "train.lr=1e-5", f"seed={i}") for i in (5, 6)]
    assert "no difference is shown" in compare([one, two, *more, *others]).statement()[0]


@pytest.mark.parametrize("axis", ["steps", "time"])
def test_the_command_prints_a_table_and_draws_a_picture(axis, tmp_path):
    for seed in (0, 1):
        make_run(tmp_path / "runs", f"s{seed}", [1.0, 2.0 + seed, 3.0], f"seed={seed}")
    picture = tmp_path / "picture.png"
    done = CliRunner().invoke(app, ["compare", str(tmp_path / "runs"), "-o", str(picture), "--x", axis])
    assert done.exit_code == 0, done.output
    assert "ppo_cartpole" in done.output
    with Image.open(picture) as image:
        assert image.size == (960, 540)


def test_nonsense_is_refused_by_name(tmp_path):
    with pytest.raises(CheckpointError, match="there is no run folder"):
        compare([tmp_path / "nowhere"])
    with pytest.raises(CheckpointError, match="has no returns yet"):
        compare([make_run(tmp_path, "empty", [])])
    done = CliRunner().invoke(app, ["compare", str(tmp_path), "--x", "epochs"])
    assert (done.exit_code, "--x: must be steps or time, got 'epochs'" in done.stderr) == (2, True)


def test_equal_seeds_and_runs_without_a_final_return_do_not_count(tmp_path):
    folder = tmp_path / "runs"
    for name, seed, returns in (("a", 0, [1.0]), ("b", 1, [3.0]), ("again", 0, [9.0])):
        make_run(folder, name, returns, f"seed={seed}")
    make_run(folder, "empty", [], "seed=5")
    diverged = make_run(folder, "lost", [1.0, float("nan")], "seed=6")
    comparison = compare([folder])
    assert comparison.final(comparison.groups[0]) == [1.0, 3.0]
    said = "\n".join(comparison.statement())
    for reason in ("has the seed 0 again", "empty has no returns yet", "lost ended with a return that is no number"):
        assert f"{reason}" in said
    with pytest.raises(CheckpointError, match="ended with a return that is no number"):
        compare([diverged])
    make_run(tmp_path / "none", "empty", [])
    with pytest.raises(CheckpointError, match=r"no run can be compared: .*empty has no returns yet"):
        compare([tmp_path / "none"])


def test_curves_without_a_common_step_are_drawn_one_by_one(tmp_path):
    short = make_run(tmp_path, "short", [1.0, 2.0])
    late = make_run(tmp_path, "late", [1.0, 2.0], "seed=1")
    rows = [json.loads(line) for line in (late / "metrics.jsonl").read_text().splitlines()]
    (late / "metrics.jsonl").write_text("".join(json.dumps({**row, "step": row["step"] + 1000}) + "\n" for row in rows))
    draw_comparison(compare([short, late]), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 0
