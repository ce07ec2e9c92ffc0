"""Env steps per second of the backend ``mujoco``, beside bare ``mujoco.rollout`` and Gymnasium's ``SyncVectorEnv``.

``ours`` is ``MujocoEnv.step`` with all that belongs to it: observation, reward terms, flags, starts of new episodes.
``rollout`` is MuJoCo's own native loop, which gives physics states and nothing else. It makes each step just before
ours does, with as many threads, from the very same states, what warm-starts the solver included; bringing the states
over is not measured, and the outcomes must be equal bit for bit. ``gymnasium`` takes turns with the two. All get the
same actions.

    python benchmarks/mujoco_batch.py --envs 8 64 --blocks 9
"""

from __future__ import annotations

import argparse
import os
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

TURN = 16
"""Steps of the others after which Gymnasium makes as many."""

Array = np.ndarray[Any, np.dtype[Any]]
Step = Callable[[Array], None]


def our_arm(task: str, num_envs: int, threads: int | str) -> tuple[Step, MujocoEnv]:
    config = EnvConfig(name=task, backend="mujoco", num_envs=num_envs, env_kwargs={"threads": threads})
    env = MujocoEnv(config)
    env.reset(list(range(num_envs)))

    def step(action: Array) -> None:
        env.step(PolicyResponse(action))

    return step, env


class RolloutArm:
    """The native loop over the states of our arm."""

    def __init__(self, env: MujocoEnv) -> None:
        worlds = env.worlds
        model, n = worlds.model, worlds.num_envs
        self._worlds = worlds
        self._kinds = (int(mujoco.mjtState.mjSTATE_FULLPHYSICS), int(mujoco.mjtState.mjSTATE_WARMSTART))
        self._states, self._warmstarts = (np.zeros((n, mujoco.mj_stateSize(model, kind))) for kind in self._kinds)
        # The calling thread steps where there is to be just one.
        self._pool = rollout.Rollout(nthread=worlds.threads if worlds.threads > 1 else 0)
        self._datas = [mujoco.MjData(model) for _ in range(worlds.threads)]
        self._control = np.zeros((n, worlds.substeps, model.nu))
        self._outcome = np.zeros((n, worlds.substeps, self._states.shape[1]))

    def prepare(self) -> None:
        """Copy the states of this package's arm."""
        model, whole = self._worlds.model, int(mujoco.mjtState.mjSTATE_INTEGRATION)
        for kind, targets in zip(self._kinds, (self._states, self._warmstarts), strict=True):
            for source, target in zip(self._worlds.state, targets, strict=True):
                mujoco.mj_extractState(model, source, whole, target, kind)

    def step(self, action: Array) -> None:
        worlds = self._worlds
        self._control[:] = action[:, None]
        self._pool.rollout(
            worlds.model,
            self._datas,
            self._states,
            self._control,
            nstep=worlds.substeps,
            initial_warmstart=self._warmstarts,
            state=self._outcome,
        )

    def check(self) -> None:
        """Compare with what our arm made of the same step.

        Raises:
            RuntimeError: If a position differs.
        """
        qpos = self._outcome[:, -1, 1 : 1 + self._worlds.model.nq]
        # Worlds whose episode ended have begun anew.
        goes_on = self._worlds.time[:, 0] > 0
        if not np.array_equal(qpos[goes_on], self._worlds.qpos[goes_on]):
            raise RuntimeError("rollout and ours made different steps")


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


def seconds(step: Step, action: Array) -> float:
    """Time one step."""
    start = perf_counter()
    step(action)
    return perf_counter() - start


def compare(task: str, num_envs: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measure all arms in turns."""
    ours, env = our_arm(task, num_envs, options.threads)
    native = RolloutArm(env)
    gymnasium = gymnasium_arm(task, num_envs) if num_envs <= LONGEST_GYMNASIUM else None
    arms = ["ours", "rollout", *(["gymnasium"] if gymnasium else [])]
    space = env.meta.action_space
    steps = max(2, options.env_steps // num_envs)
    rng = np.random.default_rng(0)
    rates: dict[str, list[float]] = {name: [] for name in arms}
    for block in range(options.blocks + 1):
        actions = rng.uniform(space.low, space.high, (steps, num_envs, *space.shape)).astype(np.float32)
        spent = dict.fromkeys(arms, 0.0)
        for start in range(0, steps, TURN):
            for action in actions[start : start + TURN]:
                native.prepare()
                spent["rollout"] += seconds(native.step, action)
                spent["ours"] += seconds(ours, action)
                native.check()
            if gymnasium is not None:
                spent["gymnasium"] += sum(seconds(gymnasium, action) for action in actions[start : start + TURN])
        # The first block warms up.
        if block:
            for name in arms:
                rates[name].append(steps * num_envs / spent[name])
    env.close()
    ratios = {
        f"ours_to_{name}": spread([a / b for a, b in zip(rates["ours"], rates[name], strict=True)])
        for name in arms
        if name != "ours"
    }
    within = all(ratios[f"ours_to_{name}"]["median"] >= budget for name, budget in BUDGETS.items() if name in arms)
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
