"""Commands that use what was trained. Everything heavy is imported inside of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from rlightning.commands.app import OverridesArgument, RunArgument, app, exit_codes, loading, open_console
from rlightning.errors import ConfigError, Problem

_VIDEO_ENDINGS = (".mp4", ".gif")
_CheckpointOption = Annotated[
    str, typer.Option(help="Which checkpoint: 'best' (the last one where none was marked), 'last', or its folder.")
]


@app.command(name="eval")
def evaluate(
    run: RunArgument,
    overrides: OverridesArgument = None,
    episodes: Annotated[
        int | None, typer.Option(min=1, help="Whole episodes to run; default: evaluation.episodes.")
    ] = None,
    video: Annotated[Path | None, typer.Option(help="Write one episode to this .mp4 or .gif file.")] = None,
    sampled: Annotated[
        bool, typer.Option("--sampled", help="Sample actions instead of taking the most likely ones.")
    ] = False,
    checkpoint: _CheckpointOption = "best",
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**64 - 1, help="Seed of the episodes; default: evaluation.seed.")
    ] = None,
    fps: Annotated[
        float | None, typer.Option(min=1, help="Steps per second of the video; default: real time, as the env says.")
    ] = None,
    both: Annotated[bool, typer.Option("--both", help="Evaluate the most likely actions and sampled ones.")] = False,
    against: Annotated[
        Path | None, typer.Option(help="Folder of another run, whose best policy plays the same episodes.")
    ] = None,
) -> None:
    """Run whole episodes with the policy of a run and print their returns; in one process, without Ray.

    For example:

        rlightning eval runs/ppo_halfcheetah-20250131-120000 --episodes 20

        rlightning eval runs/ppo_halfcheetah-20250131-120000 --video cheetah.mp4

        rlightning eval runs/ppo_halfcheetah-20250131-120000 env.env_kwargs.reset_noise_scale=0.2
    """
    with exit_codes():
        if video is not None and video.suffix not in _VIDEO_ENDINGS:
            raise ConfigError(Problem("--video", f"must end in {' or '.join(_VIDEO_ENDINGS)}, got {str(video)!r}"))
        with loading():
            from rlightning.commands.evaluate import EvalRequest, evaluate_run

        request = EvalRequest(
            run, checkpoint, episodes, video, sampled, seed, fps, both, against, tuple(overrides or ())
        )
        evaluate_run(request, open_console())


@app.command()
def export(
    run: RunArgument,
    kind: Annotated[
        str, typer.Option("--format", "-f", help="onnx, torchscript, or safetensors for the weights alone.")
    ] = "onnx",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file; default: policy with the format's ending, in RUN.")
    ] = None,
    checkpoint: _CheckpointOption = "best",
) -> None:
    """Write the policy of a run into a file for other programs, and compare both on 1,000 observations.

    Observations are normalised inside, and actions are those of the env: the most likely ones, mapped and clipped.

    For example:

        rlightning export runs/ppo_halfcheetah-20250131-120000

        rlightning export runs/ppo_halfcheetah-20250131-120000 --format torchscript --output cheetah.pt
    """
    with exit_codes():
        with loading():
            from rlightning.deployment.export import COMPARED_ROWS, FORMATS, export_policy
            from rlightning.deployment.trained_policy import load_policy

        policy = load_policy(run, checkpoint=checkpoint)
        ending = FORMATS[kind].ending if kind in FORMATS else ""
        exported = export_policy(policy, output or run / f"policy{ending}", kind)
        lines = {
            "file": f"{exported.path}, {exported.path.stat().st_size / 1e3:,.0f} kB",
            "checkpoint": f"{exported.metadata['checkpoint']}, version {exported.metadata['weights_version']}",
            **{name: f"in   {what}" for name, what in exported.inputs.items()},
            **{name: f"out  {what}" for name, what in exported.outputs.items()},
            "compared": "weights only, equal"
            if exported.difference is None
            else f"{COMPARED_ROWS:,} observations, largest difference of an action {exported.difference:.2g}",
        }
        for label, text in lines.items():
            open_console().print(f"{label:<11} {text}", soft_wrap=True, markup=False)


@app.command()
def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or folders with such folders.")
    ],
    picture: Annotated[Path, typer.Option("--picture", "-o", help="The picture, a PNG.")] = Path("compare.png"),
    x: Annotated[str, typer.Option("--x", help="steps or time: what the picture's x axis is.")] = "steps",
) -> None:
    """Compare runs: final returns with intervals over seeds, what differs, and one picture.

    Runs that differ in nothing but the seed are one group.

    For example:

        rlightning compare runs/a-seed1 runs/a-seed2 runs/b-seed1 runs/b-seed2

        rlightning compare runs --x time
    """
    with exit_codes():
        if x not in ("steps", "time"):
            raise ConfigError(Problem("--x", f"must be steps or time, got {x!r}"))
        with loading():
            from rlightning.studies.compare import compare as compare_runs
            from rlightning.studies.compare import draw_comparison

        comparison, console = compare_runs(runs), open_console()
        titles = ("group", "seeds", "IQM", "95 % interval", "lowest to highest", "steps/s")
        table = Table(*titles, box=None, pad_edge=False)
        for row in comparison.table():
            table.add_row(*map(escape, row))
        console.print(f"final return: {comparison.metric}; IQM is the interquartile mean over seeds")
        console.print(table)
        for line in comparison.statement():
            console.print(line, soft_wrap=True, markup=False)
        draw_comparison(comparison, picture, "time" if x == "time" else "steps")
        console.print(f"picture  {picture}", soft_wrap=True, markup=False)
