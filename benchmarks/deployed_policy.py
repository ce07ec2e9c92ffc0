"""What a trained policy costs outside of its run: start until the first action, and one action, by torch and by ONNX.

Starts are whole processes, alternating; actions are of a policy with two layers of 64 units and 17 observations.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from rlightning import load_policy
from rlightning.commands.run import train
from rlightning.configuring.load import load_config
from rlightning.deployment.export import export_policy

ROUNDS, CALLS = 5, 3000


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        few = ["train.max_epochs=1", "train.max_rollout_steps=16", "evaluation.episodes=1", f"train.save_dir={folder}"]
        run = train(load_config("ppo_halfcheetah", few), Console(quiet=True)).path
        start(run)
        actions(run)


def start(run: Path) -> None:
    programs = {
        "torch": "import torch",
        "first_action": (
            f"from rlightning import load_policy; p = load_policy({str(run)!r}); p.act(p.observation_space.sample())"
        ),
    }
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(ROUNDS):
        for name, program in programs.items():
            begun = time.perf_counter()
            subprocess.run([sys.executable, "-c", program], check=True)
            times[name].append(time.perf_counter() - begun)
    ratios = [one / two for one, two in zip(times["first_action"], times["torch"], strict=True)]
    print(
        json.dumps(
            {
                "start_s": {name: round(statistics.median(values), 2) for name, values in times.items()},
                "ratio": round(statistics.median(ratios), 2),
                "range": [round(min(ratios), 2), round(max(ratios), 2)],
            }
        )
    )


def actions(run: Path) -> None:
    import onnxruntime

    policy = load_policy(run)
    observation = policy.observation_space.sample()
    export_policy(policy, run / "policy.onnx", "onnx")
    export_policy(policy, run / "policy.pt", "torchscript")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(run / "policy.onnx", options, providers=["CPUExecutionProvider"])
    script = torch.jit.load(run / "policy.pt")
    row = observation.astype(np.float32)[None]
    tensor = torch.from_numpy(row)
    request = policy.policy.network

    def module() -> None:
        with torch.inference_mode():
            request.head(request.actor(request.prepare(tensor)))

    def scripted() -> None:
        with torch.inference_mode():
            script(tensor)

    ways: dict[str, Callable[[], object]] = {
        "network": module,
        "act": lambda: policy.act(observation),
        "torchscript": scripted,
        "onnxruntime": lambda: session.run(None, {"observation": row}),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, call in ways.items():
            call()
            begun = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append(1e6 * (time.perf_counter() - begun) / CALLS)
    print(
        json.dumps(
            {
                "action_us": {name: round(statistics.median(values), 1) for name, values in times.items()},
                "range": {name: [round(min(values), 1), round(max(values), 1)] for name, values in times.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
