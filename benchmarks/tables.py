"""Tables and plots of the page of benchmarks, each from the records that one script printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arms import spread

Records = list[dict[str, Any]]

NAMES = {
    "rlightning": "RLightning",
    "rlightning-compiled": "RLightning, `policy.compile`",
    "rlightning-gymnasium": "RLightning on Gymnasium's envs",
    "handwritten": "hand-written loop",
    "sb3": "stable-baselines3",
    "sb3-default-threads": "stable-baselines3, threads as torch sets them",
    "ray-fragments": "RLightning on Ray, by fragment",
    "ray-steps": "RLightning on Ray, step by step",
    "rllib": "RLlib",
    "ours": "backend `mujoco`",
    "rollout": "bare `mujoco.rollout`",
    "gymnasium": "Gymnasium's `SyncVectorEnv`",
}
COLORS = ("#1f6feb", "#d29922", "#57606a", "#cf222e", "#8250df", "#1a7f37")


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Lay out a table in Markdown; all columns but the first are aligned to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def cell(spread: dict[str, float], digits: int = 0) -> str:
    """Write a median with its range."""
    low, middle, high = (f"{spread[key]:,.{digits}f}" for key in ("min", "median", "max"))
    return f"{middle} ({low} to {high})"


def of_kind(records: Records, kind: str, **labels: Any) -> Records:
    """Pick the records of a kind that carry certain labels."""
    wanted = {"kind": kind, **labels}
    return [record for record in records if all(record.get(key) == value for key, value in wanted.items())]


def distinct(records: Records, key: str) -> list[Any]:
    """List the values of a key in the order in which they first come."""
    return list(dict.fromkeys(record[key] for record in records))


# Throughput of PPO by system, and ways to collect on Ray


def throughput(records: Records) -> str:
    parts = []
    for env in distinct(of_kind(records, "summary"), "env"):
        rows = []
        for record in of_kind(records, "summary", env=env):
            ratios = of_kind(records, "ratio", env=env, arm=record["arm"], to="sb3")
            times = f"{1 / ratios[0]['time_ratio']['median']:.2f}" if ratios else "1" if record["arm"] == "sb3" else ""
            warmup = f"{record['warmup_s']['median']:.1f}" if "warmup_s" in record else ""
            row = [cell(record["steps_per_s"]), cell(record["ms_per_iteration"]), warmup, times]
            rows.append([NAMES[record["arm"]], *row])
        head = [env, "env steps per second", "ms per iteration", "first iterations, s", "times stable-baselines3"]
        filled = [place for place in range(len(head)) if any(row[place] for row in rows)]
        parts.append(table([head[place] for place in filled], [[row[place] for place in filled] for row in rows]))
    return "\n".join(parts)


def plot_throughput(records: Records, figure: Any) -> None:
    envs = distinct(of_kind(records, "summary"), "env")
    for place, (env, axes) in enumerate(zip(envs, figure.subplots(1, len(envs), squeeze=False)[0], strict=True)):
        found = of_kind(records, "summary", env=env)
        rates = [record["steps_per_s"] for record in found]
        reach = [[rate["median"] - rate["min"] for rate in rates], [rate["max"] - rate["median"] for rate in rates]]
        labels = [
            NAMES[record["arm"]].replace("`", "").replace(", ", ",\n").replace(" on ", "\non ") for record in found
        ]
        middles = [rate["median"] for rate in rates]
        axes.barh(labels, middles, xerr=reach, color=COLORS[: len(found)], capsize=3)
        axes.invert_yaxis()
        axes.set_title(env)
        axes.set_xlabel("env steps per second")
        if place:
            axes.set_yticklabels([])


# Learning


def cartpole(records: Records) -> str:
    rows = [
        [NAMES[r["arm"]], f"{r['solved']} of {r['seeds']}", cell(r["env_steps"]), cell(r["wall_s"], 1)]
        for r in of_kind(records, "summary")
    ]
    return table(["", "seeds that reach it", "env steps", "seconds"], rows)


def presets(records: Records) -> str:
    rows = [
        [f"`{one['arm']}`", f"{one['goal']:g}", f"{one['solved']} of {one['seeds']}", cell(one["env_steps"])]
        for one in of_kind(records, "summary")
    ]
    return table(["", "mean return", "seeds that reach it", "env steps"], rows)


def curves(records: Records) -> str:
    rows = []
    for summary in of_kind(records, "summary"):
        runs = of_kind(records, "run", arm=summary["arm"])
        each = ", ".join(f"{value:,.0f}" for value in sorted(run["mean_return"] for run in runs))
        halfway = spread([run["curve"][len(run["curve"]) // 2 - 1][2] for run in runs], 0)
        rows.append([NAMES[summary["arm"]], summary["seeds"], cell(halfway), cell(summary["mean_return"]), each])
    return table(["mean return of 100 episodes", "seeds", "halfway", "at the end", "at the end, each seed"], rows)


def plot_curves(records: Records, figure: Any) -> None:
    axes = figure.subplots()
    for color, arm in zip(COLORS, distinct(of_kind(records, "summary"), "arm"), strict=False):
        for place, run in enumerate(of_kind(records, "run", arm=arm)):
            steps, _, returns = zip(*run["curve"], strict=True)
            axes.plot(steps, returns, color=color, label=NAMES[arm] if place == 0 else None, alpha=0.8)
    axes.set_xlabel("env steps")
    axes.set_ylabel("mean return of the last 100 episodes")
    axes.legend()


# Growth


def scaling(records: Records) -> str:
    found = of_kind(records, "summary")
    envs = distinct(found, "env")
    rows = []
    for count in distinct(found, "num_envs"):
        row: list[Any] = [f"{count:,}"]
        for env in envs:
            record = of_kind(found, "summary", env=env, num_envs=count)[0]
            row += [cell(record["steps_per_s"]), f"{record['peak_rss_mb']['median']:,.0f}"]
        rows.append(row)
    return table(
        ["envs", *(text for env in envs for text in (f"{env}, env steps per second", "peak memory, MB"))], rows
    )


def plot_scaling(records: Records, figure: Any) -> None:
    axes = figure.subplots()
    found = of_kind(records, "summary")
    for color, env in zip(COLORS, distinct(found, "env"), strict=False):
        of_env = of_kind(found, "summary", env=env)
        counts = [record["num_envs"] for record in of_env]
        low, middle, high = ([record["steps_per_s"][key] for record in of_env] for key in ("min", "median", "max"))
        axes.plot(counts, middle, marker="o", color=color, label=env)
        axes.fill_between(counts, low, high, color=color, alpha=0.15)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("envs")
    axes.set_ylabel("env steps per second")
    axes.legend()


SWEEPS = {
    "num_envs": "envs of one worker",
    "env_workers": "env workers",
    "eval_policies": "eval policies",
    "parameters": "parameters",
}
PHASES = ("collect", "learn", "publish")


def growth(records: Records) -> str:
    rows = []
    for sweep, name in SWEEPS.items():
        for record in of_kind(records, "growth", sweep=sweep):
            times = [cell(record[f"{phase}_ms"], 1) for phase in PHASES]
            rows.append([f"{record['size']:,} {name}", *times, record["memory_mb"]])
        slopes = of_kind(records, "exponent", sweep=sweep)[0]
        rows.append([f"*exponent, {name}*", *(f"*{slopes[phase]}*" for phase in PHASES), ""])
    return table(["", *(f"{phase}, ms per epoch" for phase in PHASES), "memory taken, MB"], rows)


def plot_growth(records: Records, figure: Any) -> None:
    for axes, (sweep, name) in zip(figure.subplots(1, len(SWEEPS)), SWEEPS.items(), strict=True):
        found = of_kind(records, "growth", sweep=sweep)
        for color, phase in zip(COLORS, PHASES, strict=False):
            sizes = [record["size"] for record in found]
            axes.loglog(sizes, [record[f"{phase}_ms"]["median"] for record in found], "o-", color=color, label=phase)
        axes.set_xlabel(name)
    figure.axes[0].set_ylabel("ms per epoch")
    figure.axes[0].legend()


# Parts


def overhead(records: Records) -> str:
    record = of_kind(records, "step_overhead")[0]
    rows: list[list[Any]] = [
        ["whole loop, beyond env and policy", record["overhead_us"]],
        ["whole loop, best block", round(record["collect_us"]["min"] - record["bare_us"]["min"], 2)],
        *([f"`{name}`", value] for name, value in record["parts_us"].items()),
    ]
    return table(["", "µs per step of 8 envs"], rows)


def startup(records: Records) -> str:
    names = {
        "imports": "import torch, build 8 HalfCheetahs",
        "optimizer": "the same, and make one `torch.optim.Adam`",
        "train": "`rlightning train ppo_halfcheetah` to the end of the first update",
    }
    rows = [[names[record["arm"]], cell(record["seconds"], 2)] for record in of_kind(records, "startup")]
    return table(["", "seconds"], rows)


def mujoco(records: Records) -> str:
    parts = []
    found = of_kind(records, "mujoco_batch")
    for task in distinct(found, "task"):
        of_task = of_kind(found, "mujoco_batch", task=task)
        arms = list(of_task[0]["steps_per_s"])
        rows = []
        for record in of_task:
            rates = [record["steps_per_s"].get(arm) for arm in arms]
            ratios = [record.get(f"ours_to_{arm}") for arm in arms[1:]]
            cells = [cell(rate) if rate else "" for rate in rates]
            rows.append([f"{record['envs']:,}", *cells, *(cell(ratio, 2) if ratio else "" for ratio in ratios)])
        head = [f"{task}, envs", *(NAMES[arm] for arm in arms), *(f"times {NAMES[arm]}" for arm in arms[1:])]
        parts.append(table(head, rows))
    return "\n".join(parts)


def push(records: Records) -> str:
    found = [record for record in of_kind(records, "weight_push") if record["tensors"] == 50]
    parts = []
    for megabytes in distinct(found, "megabytes"):
        of_size = [record for record in found if record["megabytes"] == megabytes]
        counts = distinct(of_size, "receivers")
        rows = []
        for way in distinct(of_size, "way"):
            row: list[Any] = [way if way in ("copy", "by hand") else f'"{way}"']
            for count in counts:
                (record,) = [r for r in of_size if r["way"] == way and r["receivers"] == count]
                row.append(f"{record['ms']['median']:,.1f} ms, {record['copies']:,.1f} copies")
            rows.append(row)
        parts.append(table([f"{megabytes:.0f} MB to", *(f"{count} eval policies" for count in counts)], rows))
    return "\n".join(parts)
