"""Push of weights from one learner to eval policies, each a process of its own on this node, by each strategy.

A push is what a synchronous engine does: ``sync_weights`` and then ``wait_for_eval_weight_update``, so that the new
weights are in force everywhere. Beside it, in turns: one copy of the same bytes within this process, and what one
would write by hand, ``ray.put`` of the state dict, ``ray.get`` and ``load_state_dict`` in every receiver. Each strategy
is verified bit for bit at its end. The last lines are the digest of the weights beside a copy, and 2,000 small tensors
beside one of the same bytes.

    python benchmarks/weight_push.py --megabytes 4 40 400 --receivers 1 2 4 --rounds 10
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from arms import spread
from report import machine, print_line, versions
from torch import nn

from rlightning.config import OptimConfig, PolicyConfig, TrainConfig, WeightBufferConfig
from rlightning.policy.base_policy import BasePolicy, PolicyRole
from rlightning.policy.policy_group import PolicyGroup
from rlightning.runtime import as_handle, gather
from rlightning.runtime.spawn import WorkerPool, WorkerSpec
from rlightning.types import BatchedData, EnvMeta, EnvRet, PolicyResponse
from rlightning.weights import digests

STRATEGIES = ("None", "Double", "Shared", "Sharded")


class Weights(BasePolicy):
    """Some bytes in ``tensors`` tensors (``config.model_cfg``), and nothing to do with them."""

    def construct_network(self, env_meta: EnvMeta | None, *args: Any, **kwargs: Any) -> None:
        count = int(self.config.model_cfg["tensors"])
        size = int(self.config.model_cfg["megabytes"] * 250_000 / count)
        self.net = nn.ParameterList([nn.Parameter(torch.full((size,), float(i))) for i in range(count)])

    def setup_optimizer(self, optim_cfg: OptimConfig) -> None:
        return None

    def rollout_step(self, env_ret: EnvRet, **kwargs: Any) -> PolicyResponse:
        return PolicyResponse(torch.zeros(len(env_ret.reward)))

    def update_dataset(self, data: Any) -> None:
        return None

    def train(self, *args: Any, **kwargs: Any) -> dict[str, float]:  # type: ignore[override]
        with torch.no_grad():
            self.net[0] += 1
        return {}

    def plain_state(self) -> dict[str, torch.Tensor]:
        """Return the state dict, for an object store without this package."""
        return {name: tensor.detach() for name, tensor in self.net.state_dict().items()}

    def load_plain(self, state: dict[str, torch.Tensor]) -> None:
        """Load it."""
        self.net.load_state_dict(state)

    def time_copies(self, rounds: int) -> list[float]:
        """Copy all bytes from one place to another within this process; milliseconds each."""
        source = torch.cat([tensor.detach().flatten() for tensor in self.net])
        target = torch.zeros_like(source)
        return [_milliseconds(lambda: target.copy_(source)) for _ in range(rounds)]

    def copy_for(self, seconds: float) -> None:
        """Copy all bytes within this process, again and again."""
        source = torch.cat([tensor.detach().flatten() for tensor in self.net])
        target = torch.zeros_like(source)
        end = perf_counter() + seconds
        while perf_counter() < end:
            target.copy_(source)


def _spec(model: dict[str, Any], role: PolicyRole, index: int) -> WorkerSpec:
    channels = {"weights": 1} if role is PolicyRole.EVAL else {}
    return WorkerSpec(
        Weights, (PolicyConfig(model_cfg=model), role), f"{role.value}[{index}]", True, 0.01, 0.0, channels
    )


def _milliseconds(action: Callable[[], Any]) -> float:
    start = perf_counter()
    action()
    return 1e3 * (perf_counter() - start)


def measure(megabytes: float, receivers: int, rounds: int, tensors: int = 50, strategies: Any = STRATEGIES) -> None:
    """Start the policies once, and let all ways take turns."""
    model = {"tensors": tensors, "megabytes": megabytes}
    roles = [PolicyRole.TRAIN, *[PolicyRole.EVAL] * receivers]
    pool = WorkerPool()
    try:
        workers = pool.start([_spec(model, role, i) for i, role in enumerate(roles)])
        learner, actors = as_handle(workers[0]), [as_handle(worker) for worker in workers[1:]]
        times: dict[str, list[float]] = {"copy": [], "by hand": []}
        for strategy in strategies:
            config = PolicyConfig(model_cfg=model, weight_buffer=WeightBufferConfig(buffer_strategy=strategy))
            group = PolicyGroup([workers[0]], workers[1:], config, call_timeout_s=120)
            group.init(TrainConfig())
            group.init_placement_info()
            group.init_weight_buffer()

            def push(group: PolicyGroup = group) -> None:
                group.sync_weights()
                group.wait_for_eval_weight_update()

            def by_hand() -> None:
                state = learner.call(Weights.plain_state)
                gather([actor.call(Weights.load_plain, state) for actor in actors])

            push()
            push()
            times[strategy] = []
            for _ in range(rounds):
                learner.call(BasePolicy._train).result()
                times["copy"] += learner.call(Weights.time_copies, 1).result()
                times[strategy].append(_milliseconds(push))
            if not group.verify_eval_weight_consistency(rtol=0.0):
                raise RuntimeError(f"{strategy}: an eval policy has other weights than the learner")
            times["by hand"] += [_milliseconds(by_hand) for _ in range(rounds)]
    finally:
        pool.stop()
    copy = sorted(times["copy"])[len(times["copy"]) // 2]
    for name, values in times.items():
        median = sorted(values)[len(values) // 2]
        print_line(
            {
                "kind": "weight_push",
                "way": name,
                "megabytes": megabytes,
                "tensors": tensors,
                "receivers": receivers,
                "ms": spread(values),
                "copies": round(median / copy, 2),
            }
        )


def measure_rollouts(megabytes: float, rounds: int) -> None:
    """Count the answers of an eval policy alone, while weights are sent to it, and while the learner just copies bytes.

    The windows are as long as one sending and take turns. What is lost is the share of answers that are missing. Where
    there are no cores to spare, any work of another process costs answers: the third window tells how many.
    """
    config = PolicyConfig(
        model_cfg={"tensors": 50, "megabytes": megabytes}, weight_buffer=WeightBufferConfig(buffer_strategy="Double")
    )
    pool = WorkerPool()
    try:
        workers = pool.start([_spec(dict(config.model_cfg), role, 0) for role in (PolicyRole.TRAIN, PolicyRole.EVAL)])
        group = PolicyGroup(workers[:1], workers[1:], config, call_timeout_s=120)
        group.init(TrainConfig())
        group.init_weight_buffer()
        group.sync_weights()
        group.wait_for_eval_weight_update()
        asked = BatchedData([0], [EnvRet.from_reset(torch.zeros(8, 4).numpy(), 8)])

        def count(over: Callable[[], bool]) -> float:
            answers, start = 0, perf_counter()
            while not over():
                gather(group.rollout_batch(asked).items)
                answers += 1
            return answers / (perf_counter() - start)

        learner = as_handle(workers[0])
        lost: dict[str, list[float]] = {"push": [], "copies": []}
        for _ in range(rounds):
            sending = threading.Thread(target=group.sync_weights)
            start = perf_counter()
            sending.start()
            during = count(lambda thread=sending: not thread.is_alive())  # type: ignore[misc]
            sending.join()
            group.wait_for_eval_weight_update()
            took = perf_counter() - start
            until = perf_counter() + took
            alone = count(lambda until=until: perf_counter() >= until)  # type: ignore[misc]
            copying = learner.call(Weights.copy_for, took)
            beside = count(copying.done)
            lost["push"].append(100 * (1 - during / alone))
            lost["copies"].append(100 * (1 - beside / alone))
    finally:
        pool.stop()
    for what, values in lost.items():
        print_line({"kind": "rollouts_lost", "while": what, "megabytes": megabytes, "percent": spread(values)})


def measure_digest(megabytes: float, rounds: int) -> None:
    """Hash weights beside a copy of them."""
    source = torch.rand(int(megabytes * 250_000))
    target = torch.zeros_like(source)
    copies, hashes = [], []
    for _ in range(rounds):
        copies.append(_milliseconds(lambda: target.copy_(source)))
        hashes.append(_milliseconds(lambda: digests({"all": source})))
    ratios = [hashed / copied for hashed, copied in zip(hashes, copies, strict=True)]
    print_line({"kind": "digest", "megabytes": megabytes, "ms": spread(hashes), "copies": spread(ratios)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[4, 40, 400])
    parser.add_argument("--receivers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    print_line({"kind": "machine", **machine(), "versions": versions(["torch", "ray", "numpy", "xxhash"])})
    for megabytes in options.megabytes:
        for receivers in options.receivers:
            measure(megabytes, receivers, options.rounds, strategies=options.strategies)
    measure(8, 1, options.rounds, tensors=2000, strategies=options.strategies)
    measure(8, 1, options.rounds, tensors=1, strategies=options.strategies)
    measure_rollouts(max(options.megabytes), options.rounds)
    measure_digest(max(options.megabytes), options.rounds)


if __name__ == "__main__":
    main()
