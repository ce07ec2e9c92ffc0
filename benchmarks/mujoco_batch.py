"""Env steps per second of the backend ``mujoco``, beside bare ``mujoco.rollout`` and Gymnasium's ``SyncVectorEnv``.

``ours`` is ``MujocoEnv.step`` with all that belongs to it: observation, reward terms, flags, starts of new episodes.
``rollout`` is MuJoCo's own native loop over the same states: it gives physics states and nothing else (no sensors),
each call goes on from the last one's states, and no episode ever ends, so that it stands for what cannot be beaten by
much. Both use the same number of threads. All arms get the same actions and take turns, block by block.

    python benchmarks/mujoco_batch.py --envs 8 64 --blocks 9
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from arms import spread
from mujoco import rollout
from report import machine, print_line, versions

from rlightning.config import EnvConfig
from rlightning.simulators.mujoco.env import MujocoEnv
from rlightning.simulators.mujoco.loading import quiet_loading
from rlightning.types import PolicyResponse

TASKS = ("HalfCheetah-v5", "Humanoid-v5")
ENVS = (8, 64, 256, 1024, 4096)
BUDGETS = {"rollout": 0.85, "gymnasium": 2.0}
"""What ``ours`` is to reach, as a ratio to the arm, at 8 and 64 envs."""
LONGEST_GYMNASIUM = 1024
"""Envs beyond which Gymnasium's vector takes too long to build."""

Array = np.ndarray[Any, np.dtype[Any]]
Step = Callable[[Array], None]


def our_arm(task: str, num_envs: int, threads: int | str) -> tuple[Step, MujocoEnv]:
    config = EnvConfig(name=task, backend="mujoco", num_envs=num_envs, env_kwargs={"threads": threads})
    env = MujocoEnv(config)
    env.reset(list(range(num_envs)))

    def step(action: Array) -> None:
        env.step(PolicyResponse(action))

    return step, env


def rollout_arm(env: MujocoEnv) -> Step:
    """Build the native loop from the states of our arm.

    MuJoCo's own threads step, unless there is to be just one: then the calling thread does.
    """
    worlds = env.worlds
    model, substeps, n = worlds.model, worlds.substeps, worlds.num_envs
    kind = mujoco.mjtState.mjSTATE_FULLPHYSICS
    data = mujoco.MjData(model)
    states = np.zeros((n, mujoco.mj_stateSize(model, kind)))
    for row in range(n):
        worlds.load(row, data)
        mujoco.mj_getState(model, data, states[row], kind)
    threads = worlds.threads
    pool = rollout.Rollout(nthread=threads if threads > 1 else 0)
    datas = [mujoco.MjData(model) for _ in range(threads)]
    control = np.zeros((n, substeps, model.nu))
    outcome = np.zeros((n, substeps, states.shape[1]))

    def step(action: Array) -> None:
        control[:] = action[:, None]
        pool.rollout(model, datas, states, control, nstep=substeps, state=outcome)
        states[:] = outcome[:, -1]

    return step


def gymnasium_arm(task: str, num_envs: int) -> Step:
    with quiet_loading():
        env = gym.make_vec(
            task,
            num_envs,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP},
        )
    env.reset(seed=0)

    def step(action: Array) -> None:
        env.step(action)

    return step


def time_block(step: Step, actions: Array) -> float:
    """Run one block; env steps per second."""
    start = perf_counter()
    for action in actions:
        step(action)
    return actions.shape[0] * actions.shape[1] / (perf_counter() - start)


def compare(task: str, num_envs: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measure all arms in turns."""
    ours, env = our_arm(task, num_envs, options.threads)
    arms: dict[str, Step] = {"ours": ours, "rollout": rollout_arm(env)}
    if num_envs <= LONGEST_GYMNASIUM:
        arms["gymnasium"] = gymnasium_arm(task, num_envs)
    space = env.meta.action_space
    steps = max(2, options.env_steps // num_envs)
    rng = np.random.default_rng(0)
    rates: dict[str, list[float]] = {name: [] for name in arms}
    for block in range(options.blocks + 1):
        actions = rng.uniform(space.low, space.high, (steps, num_envs, *space.shape)).astype(np.float32)
        for name, step in arms.items():
            rate = time_block(step, actions)
            # The first block warms up.
            if block:
                rates[name].append(rate)
    env.close()
    ratios = {
        f"ours_to_{name}": spread([a / b for a, b in zip(rates["ours"], rates[name], strict=True)])
        for name in arms
        if name != "ours"
    }
    within = all(
        statistics.median(rates["ours"]) / statistics.median(rates[name]) >= BUDGETS[name]
        for name in BUDGETS
        if name in rates
    )
    return {
        "kind": "mujoco_batch",
        "task": task,
        "envs": num_envs,
        "threads": env.worlds.threads,
        "steps_per_block": steps,
        "steps_per_s": {name: spread(values) for name, values in rates.items()},
        **ratios,
        "budgets_kept": within,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=TASKS, help="tasks of Gymnasium")
    parser.add_argument("--envs", type=int, nargs="+", default=ENVS, help="numbers of envs")
    parser.add_argument("--blocks", type=int, default=7, help="blocks per arm")
    parser.add_argument("--env-steps", type=int, default=4096, help="env steps per block, all envs together")
    parser.add_argument("--threads", default="auto", help="threads of ours and of rollout; auto is the default of ours")
    options = parser.parse_args()
    options.threads = options.threads if options.threads == "auto" else int(options.threads)
    packages = ["rlightning", "mujoco", "gymnasium", "numpy"]
    print_line({"kind": "machine", **machine(), "versions": versions(packages)})
    for task in options.tasks:
        for num_envs in options.envs:
            print_line({"load_before": os.getloadavg()[0], **compare(task, num_envs, options)})


if __name__ == "__main__":
    main()
