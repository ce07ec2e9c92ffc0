"""Overhead of the framework around one local vectorised step, with an env and a policy that do nothing.

What is measured is ``SyncEngine.collect``, divided by its steps, less the bare calls of the same env and policy. The
parts are timed one by one in a second pass; their sum is a little more, since reading the clock takes time too.

    python benchmarks/step_overhead.py --blocks 200
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from arms import spread
from report import machine, print_line, versions

from rlightning.buffer.data_buffer import DataBuffer
from rlightning.buffer.storage import RolloutBlock
from rlightning.collect.stepwise import StepwiseCollector
from rlightning.config import Config, EnvConfig, OptimConfig, PolicyConfig, TrainConfig
from rlightning.engine.sync_engine import SyncEngine
from rlightning.env.base_env import BaseEnv
from rlightning.env.env_group import EnvGroup
from rlightning.env.env_worker import EnvWorker
from rlightning.policy.base_policy import BasePolicy, PolicyRole
from rlightning.policy.policy_group import PolicyGroup
from rlightning.types import EnvMeta, EnvRet, PolicyResponse

BUDGET_US = 30.0
"""Microseconds that a step may cost beyond what env and policy take themselves."""
NUM_ENVS, STEPS = 8, 128


@dataclass(frozen=True)
class Shape:
    """How large a run is."""

    num_envs: int = NUM_ENVS
    """Sub-envs of each env worker."""
    workers: int = 1
    """Env workers, in this process."""
    policies: int = 1
    """Eval policies, in this process."""
    parameters: int = 1
    """Numbers that a push of weights moves, about."""


class NoopEnv(BaseEnv):
    """Returns the same arrays at each step."""

    def __init__(self, config: EnvConfig) -> None:
        super().__init__(config)
        count = config.num_envs
        self.meta = EnvMeta(
            "noop", gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Box(-1, 1, (2,), np.float32), count
        )
        self._first = EnvRet.from_reset(np.zeros((count, 4), np.float32), count)
        nothing = np.zeros(count, np.bool_)
        self._next = EnvRet(self._first.observation, np.ones(count, np.float32), nothing, nothing, nothing)

    def reset(self, seed: Sequence[int] | None = None, options: dict[str, Any] | None = None) -> EnvRet:
        return self._first

    def step(self, response: PolicyResponse) -> EnvRet:
        return self._next


class NoopPolicy(BasePolicy):
    """Returns the same tensors for each request."""

    def construct_network(self, env_meta: EnvMeta | None, *args: Any, **kwargs: Any) -> None:
        self.layer = torch.nn.Linear(self.config.model_cfg.get("parameters", 1), 1)
        self._answers: dict[int, PolicyResponse] = {}

    def setup_optimizer(self, optim_cfg: OptimConfig) -> None:
        return None

    def rollout_step(self, env_ret: EnvRet, **kwargs: Any) -> PolicyResponse:
        rows = env_ret.num_envs
        if rows not in self._answers:
            self._answers[rows] = PolicyResponse(torch.zeros(rows, 2), extras={"log_prob": torch.zeros(rows)})
        return self._answers[rows]

    def update_dataset(self, data: Any) -> None:
        return None

    def train(self, *args: Any, **kwargs: Any) -> dict[str, float]:  # type: ignore[override]
        return {}


def build(shape: Shape) -> SyncEngine:
    """Put the parts together as a local run does."""
    config = Config(
        env=[EnvConfig(name="noop", num_envs=shape.num_envs, num_workers=shape.workers)],
        policy=PolicyConfig(model_cfg={"parameters": shape.parameters}),
        train=TrainConfig(max_rollout_steps=STEPS),
        seed=0,
    )
    env_group = EnvGroup([EnvWorker(NoopEnv, config.env[0], index, seed=0) for index in range(shape.workers)])
    policy_group = PolicyGroup(
        [NoopPolicy(config.policy, PolicyRole.TRAIN)],
        [NoopPolicy(config.policy, PolicyRole.EVAL) for _ in range(shape.policies)],
        config.policy,
    )
    policy_group.init(config.train, env_group.env_meta)
    buffer = DataBuffer([RolloutBlock(STEPS, [shape.num_envs] * shape.workers)])
    engine = SyncEngine(config, StepwiseCollector(env_group, policy_group, buffer), policy_group, buffer)
    engine.start()
    return engine


def measure(block: Callable[[], None], blocks: int) -> dict[str, list[float]]:
    """Time blocks of ``STEPS`` steps; wall and CPU microseconds per step of each."""
    block()
    times: dict[str, list[float]] = {"wall": [], "cpu": []}
    for _ in range(blocks):
        start, cpu_start = perf_counter(), process_time()
        block()
        cpu_end, end = process_time(), perf_counter()
        times["wall"].append(1e6 * (end - start) / STEPS)
        times["cpu"].append(1e6 * (cpu_end - cpu_start) / STEPS)
    return times


def measure_parts(engine: SyncEngine, blocks: int) -> dict[str, float]:
    """Time each part of the loop of ``collect``; the median over the blocks, in microseconds per step."""
    totals: dict[str, list[float]] = {}
    for _ in range(blocks):
        seconds = _time_one_block(engine)
        for name, value in seconds.items():
            totals.setdefault(name, []).append(1e6 * value / STEPS)
    return {name: round(statistics.median(values), 2) for name, values in totals.items()}


def _time_one_block(engine: SyncEngine) -> dict[str, float]:
    seconds = dict.fromkeys(("policy_group.rollout_batch", "env_group.step", "buffer.add_batched_data_async"), 0.0)
    env_rets = engine.env_group.current(engine.env_group.env_ids)
    for _ in range(STEPS):
        start = perf_counter()
        responses = engine.policy_group.rollout_batch(env_rets)
        answered = perf_counter()
        stepped = engine.env_group.step(responses)
        made = perf_counter()
        engine.buffer.add_batched_data_async(env_rets, responses).result()
        end = perf_counter()
        seconds["policy_group.rollout_batch"] += answered - start
        seconds["env_group.step"] += made - answered
        seconds["buffer.add_batched_data_async"] += end - made
        env_rets = stepped
    engine.buffer.truncate_episodes(env_rets)
    engine.buffer.clear()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=200, help=f"blocks of {STEPS} steps to time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    engine = build(Shape())
    env, policy = NoopEnv(engine.config.env[0]), engine.policy_group.eval_list[0]
    seen, done = env.reset(), policy.rollout_step(env.reset())

    def collect() -> None:
        engine.collect()
        engine.buffer.clear()

    def bare() -> None:
        for _ in range(STEPS):
            policy.rollout_step(seen)
            env.step(done)

    whole, alone = measure(collect, options.blocks), measure(bare, options.blocks)
    overhead = {kind: statistics.median(whole[kind]) - statistics.median(alone[kind]) for kind in whole}
    print_line({"kind": "machine", **machine()})
    print_line(
        {
            "kind": "step_overhead",
            "overhead_us": round(overhead["wall"], 2),
            "overhead_cpu_us": round(overhead["cpu"], 2),
            "budget_us": BUDGET_US,
            "within_budget": overhead["wall"] <= BUDGET_US,
            "collect_us": spread(whole["wall"]),
            "bare_us": spread(alone["wall"]),
            "parts_us": measure_parts(engine, options.blocks),
            "num_envs": NUM_ENVS,
            "versions": versions(["torch", "numpy"]),
        }
    )
    engine.close()


if __name__ == "__main__":
    main()
