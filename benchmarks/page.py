"""Make the page of benchmarks in the documentation from the results that the scripts printed.

    python benchmarks/page.py            # writes docs/benchmarks.md and its plots
    python benchmarks/page.py --check    # ends with 1 where the page is not that of the results

The results are files of JSON lines in ``benchmarks/results``, one per script, as ``make bench`` writes them. Where a
file is not what one run printed, a line of the kind "note" says so, and the page shows it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tables
from tables import Records, of_kind

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "benchmarks.md"
PLOTS = HERE.parent / "docs" / "_static" / "benchmarks"

INTRO = """# Benchmarks

The speed of this package, beside other systems on the same machine. Each figure comes from one script in `benchmarks/`.
`make bench` runs all of them again and writes this page. The systems take turns within one run, each in a process of
its own, so that a slow spell of the machine affects all of them. A cell is the median, with the smallest and the
largest value in brackets. All figures were measured on one machine with {cores} cores and no GPU ({cpu}, {system}).
Other programs use it too, so that ratios are more reliable than times.
"""


@dataclass(frozen=True)
class Section:
    """One figure of the page.

    Attributes:
        title: Its heading.
        text: What is measured, and what to see in it.
        command: How to run it again.
        results: Name of the file of results, without its suffix.
        body: Makes tables from the results.
        plot: Draws them, None without a plot; called with the results and a figure of matplotlib.
    """

    title: str
    text: str
    command: str
    results: str
    body: Callable[[Records], str]
    plot: Callable[[Records, Any], None] | None = None


SECTIONS = [
    Section(
        "PPO, everything included",
        "PPO with 8 envs x 128 steps, 4 passes x 4 minibatches, 64x64 tanh networks, one thread of torch. The time has "
        "collecting, learning, metrics and their log. The hand-written loop is one file without layers, written to be "
        "fast. It steps Gymnasium's envs, as stable-baselines3 does.",
        "python benchmarks/ppo_throughput.py",
        "ppo_throughput",
        tables.throughput,
        tables.plot_throughput,
    ),
    Section(
        "CartPole to a mean of 475",
        "Env steps and time until the last 100 training episodes of CartPole-v1 have a mean return of 475: the preset "
        "beside stable-baselines3 with the settings that rl-baselines3-zoo publishes.",
        "python benchmarks/cartpole_to_475.py",
        "cartpole_to_475",
        tables.cartpole,
    ),
    Section(
        "Presets over many seeds",
        "How many seeds reach a mean return over 100 training episodes before the run of the preset is over, and after "
        "how many env steps. The spreads are over the seeds that reach it. Each run has one thread of torch.",
        "OMP_NUM_THREADS=1 python benchmarks/preset_seeds.py",
        "preset_seeds",
        tables.presets,
    ),
    Section(
        "HalfCheetah over a million steps",
        "All systems have the same settings: those of the first figure, with normalised observations and scaled "
        "rewards. Every line is one seed.",
        "python benchmarks/learning_curves.py",
        "learning_curves",
        tables.curves,
        tables.plot_curves,
    ),
    Section(
        "More envs in one process",
        "The same PPO with more envs and larger minibatches.",
        "python benchmarks/scaling.py",
        "scaling",
        tables.scaling,
        tables.plot_scaling,
    ),
    Section(
        "MuJoCo in native batches",
        "Env steps per second of the simulator alone, with observation, reward, flags and new episodes. Beside it are "
        "MuJoCo's own loop over the bare physics, and Gymnasium's vector of Python envs.",
        "python benchmarks/mujoco_batch.py",
        "mujoco_batch",
        tables.mujoco,
    ),
    Section(
        "Collecting on Ray",
        "HalfCheetah-v5 with the same PPO: in one process, and on Ray with two processes that collect, beside RLlib "
        "with as many. [Two ways to collect](guide/concepts.md#two-ways-to-collect) explains the choice, which "
        "`cluster=ray` makes by itself.",
        "python benchmarks/ppo_throughput.py --envs HalfCheetah-v5 --arms rlightning ray-fragments ray-steps rllib",
        "ray_collection",
        tables.throughput,
        tables.plot_throughput,
    ),
    Section(
        "New weights",
        "A push to the eval policies of one node on Ray by each strategy, until it is in force everywhere. A *copy* is "
        "one `memcpy` of the same bytes in one process; *by hand* is `ray.put`, `ray.get` and `load_state_dict`. "
        "[Weights](guide/weights.md) explains the strategies.",
        "python benchmarks/weight_push.py",
        "weight_push",
        tables.push,
    ),
    Section(
        "What the framework costs per step",
        "One vectorised step with an env and a policy that do nothing. The budget is 30 µs.",
        "python benchmarks/step_overhead.py",
        "step_overhead",
        tables.overhead,
    ),
    Section(
        "Starting",
        "Time from an empty process. Most of it is the import of torch. Torch's own optimizers load its compiler; this "
        "package loads the compiler only with `policy.compile`.",
        "python benchmarks/startup.py",
        "startup",
        tables.startup,
    ),
    Section(
        "Costs as the work grows",
        "The cost of the framework around envs and policies that do nothing. One number grows at a time; an epoch has "
        "128 steps. The exponent is the slope between the two largest points on logarithmic axes: 1 if the cost is "
        "proportional, 0 if it is constant.",
        "python benchmarks/growth.py",
        "growth",
        tables.growth,
        tables.plot_growth,
    ),
]


def load(name: str) -> Records:
    """Read a file of results; empty where there is none."""
    path = RESULTS / f"{name}.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("{")]


def page() -> str:
    """Write the page from the results that are there; sections without any are left out."""
    parts: list[str] = []
    for section in SECTIONS:
        records = load(section.results)
        if not records:
            continue
        if not parts:
            parts.append(INTRO.format(**of_kind(records, "machine")[0]))
        parts.append(f"## {section.title}\n\n{section.text}\n\n{section.body(records)}")
        parts += [f"*{record['text']}*\n" for record in of_kind(records, "note")]
        if section.plot is not None:
            parts.append(f"![{section.title}](_static/benchmarks/{section.results}.svg)\n")
        parts.append(f"```\n{section.command}\n```\n")
    return "\n".join(parts)


def draw() -> None:
    """Draw the plots of the sections that have results."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update({"svg.hashsalt": "rlightning", "font.size": 9})
    PLOTS.mkdir(parents=True, exist_ok=True)
    for section in SECTIONS:
        records = load(section.results)
        if section.plot is None or not records:
            continue
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        section.plot(records, figure)
        figure.savefig(PLOTS / f"{section.results}.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args()
    text = page()
    if options.check:
        sys.exit(int(text != PAGE.read_text(encoding="utf-8")))
    PAGE.write_text(text, encoding="utf-8")
    draw()


if __name__ == "__main__":
    main()
