"""Time per step of ``PolicyGroup.rollout_batch`` on Ray, beside as many calls of actors that do nothing.

Two eval policies in processes of their own answer 1 to 128 env workers. The results of the env workers are futures, as
in a run; one process made them all, once. The empty actors take the same futures and return the same bytes, one object
per env worker, so that what is left is what the framework does: routing, joining the requests, a forward pass of a
policy that does nothing, and cutting its answer. The two take turns. Each step makes one call per eval policy, whatever
the number of env workers; anything else is an error.

    python benchmarks/rollout_batch.py --blocks 20
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import torch
from arms import spread
from report import machine, print_line, versions

from rlightning.config import OptimConfig, PolicyConfig, TrainConfig
from rlightning.observability.timer import Timer
from rlightning.policy.base_policy import BasePolicy, PolicyRole
from rlightning.policy.policy_group import PolicyGroup
from rlightning.runtime import as_handle, gather
from rlightning.runtime.spawn import WorkerPool, WorkerSpec
from rlightning.types import BatchedData, EnvMeta, EnvRet, PolicyResponse

WORKERS = (1, 8, 32, 128)
NUM_POLICIES = 2
NUM_ENVS, STEPS = 8, 25
"""Sub-envs of each env worker, and steps per block."""


class NoopPolicy(BasePolicy):
    """Answers zeros."""

    def construct_network(self, env_meta: EnvMeta | None, *args: Any, **kwargs: Any) -> None:
        self.layer = torch.nn.Linear(1, 1)

    def setup_optimizer(self, optim_cfg: OptimConfig) -> None:
        return None

    def rollout_step(self, env_ret: EnvRet, **kwargs: Any) -> PolicyResponse:
        rows = len(env_ret.observation)
        return PolicyResponse(torch.zeros(rows, 2), extras={"log_prob": torch.zeros(rows)})

    def update_dataset(self, data: Any) -> None:
        return None

    def train(self, *args: Any, **kwargs: Any) -> dict[str, float]:  # type: ignore[override]
        return {}


class Source:
    """Plays all env workers."""

    def result(self) -> EnvRet:
        return self.results(1)[0]

    def results(self, count: int) -> list[EnvRet]:
        return [EnvRet.from_reset(np.zeros((NUM_ENVS, 4), np.float32), NUM_ENVS) for _ in range(count)]


class Empty:
    """Answers requests with responses that were built once."""

    def __init__(self) -> None:
        zeros = np.zeros((NUM_ENVS, 2), np.float32)
        self._answer = PolicyResponse(zeros, extras={"log_prob": zeros[:, 0].copy()}, version=0)

    def one(self, _env_ret: EnvRet) -> PolicyResponse:
        return self._answer

    def several(self, *env_rets: EnvRet) -> list[PolicyResponse]:
        return [self._answer] * len(env_rets)


def build(pool: WorkerPool) -> tuple[PolicyGroup, list[Any], Any]:
    """Start two eval policies, two empty actors and the source."""
    config = PolicyConfig()
    specs = [
        *(WorkerSpec(NoopPolicy, (config, PolicyRole.EVAL), f"eval[{i}]", True, 0.01) for i in range(NUM_POLICIES)),
        *(WorkerSpec(Empty, (), f"empty[{i}]", True, 0.01) for i in range(NUM_POLICIES)),
        WorkerSpec(Source, (), "source", True, 0.01),
    ]
    workers = pool.start(specs)
    group = PolicyGroup([NoopPolicy(config, PolicyRole.TRAIN)], workers[:NUM_POLICIES], config)
    group.init(TrainConfig())
    group.sync_weights()
    return group, [as_handle(worker) for worker in workers[NUM_POLICIES:-1]], as_handle(workers[-1])


def call_empty(actors: list[Any], requests: BatchedData[Any]) -> list[Any]:
    """Make the calls that the group makes, on actors that do nothing; gives one future per env worker."""
    answers: list[Any] = [None] * len(requests)
    for index, actor in enumerate(actors):
        places = range(index, len(requests), len(actors))
        if len(places) == 1:
            answers[index] = actor.call(Empty.one, requests.items[index])
        elif places:
            items = [requests.items[place] for place in places]
            for place, answer in zip(places, actor.call_split(len(items), Empty.several, *items), strict=True):
                answers[place] = answer
    return answers


def time_block(step: Callable[[], list[Any]]) -> float:
    """Time ``STEPS`` steps, each with its answers fetched; microseconds per step."""
    start = perf_counter()
    for _ in range(STEPS):
        gather(step(), 60.0)
    return 1e6 * (perf_counter() - start) / STEPS


def count_calls(group: PolicyGroup) -> int:
    """Count the calls that the eval policies answered since the last count."""
    policies = [as_handle(policy) for policy in group.eval_list]
    timers = [policy.part("_timer") for policy in policies]
    timings = gather([timer.call(Timer.summary) for timer in timers], 60.0)
    gather([timer.call(Timer.reset) for timer in timers], 60.0)
    return int(sum(timing["rollout"]["count"] for timing in timings if "rollout" in timing))


def compare(group: PolicyGroup, actors: list[Any], source: Any, count: int, blocks: int) -> dict[str, Any]:
    """Measure both for a number of env workers.

    Raises:
        RuntimeError: If the group makes another number of calls per step than it has eval policies to ask.
    """
    asked = source.call_split(count, Source.results, count) if count > 1 else [source.call(Source.result)]
    requests = BatchedData(list(range(count)), asked)
    ours: list[float] = []
    empty: list[float] = []

    def ask_group() -> list[Any]:
        return group.rollout_batch(requests).items

    def ask_empty() -> list[Any]:
        return call_empty(actors, requests)

    time_block(ask_group), time_block(ask_empty)
    count_calls(group)
    for _ in range(blocks):
        ours.append(time_block(ask_group))
        empty.append(time_block(ask_empty))
    calls = count_calls(group) / (STEPS * blocks)
    if calls != min(count, NUM_POLICIES):
        raise RuntimeError(f"{calls} calls per step for {count} env workers and {NUM_POLICIES} eval policies")
    return {
        "kind": "rollout_batch",
        "env_workers": count,
        "calls_per_step": calls,
        "rollout_batch_us": spread(ours),
        "empty_calls_us": spread(empty),
        "ratio": round(statistics.median(a / b for a, b in zip(ours, empty, strict=True)), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=20, help=f"blocks of {STEPS} steps to time")
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, help="numbers of env workers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print_line({"kind": "machine", **machine(), "versions": versions(["rlightning", "ray", "torch", "numpy"])})
    pool = WorkerPool()
    try:
        group, actors, source = build(pool)
        for count in options.workers:
            print_line(compare(group, actors, source, count, options.blocks))
    finally:
        pool.stop()


if __name__ == "__main__":
    main()
