"""Several PPO learners on pieces of a batch learn what one learns on the whole batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import Tensor

from rlightning.algorithms.global_batch import GlobalBatch, Slices, merged_moments
from rlightning.algorithms.ppo import PPO
from rlightning.config import OptimConfig, PolicyConfig, TrainConfig
from rlightning.distributed import SOLO
from rlightning.errors import NotEnoughData, WorkerError
from rlightning.functional.losses import normalized
from rlightning.models.normalizer import Moments
from rlightning.observability.metrics import undescribed
from rlightning.policy.base_policy import BasePolicy
from rlightning.policy.policy_group import PolicyGroup
from rlightning.runtime import as_handle
from rlightning.types import EnvMeta
from tests.algorithms.doubles import make_ppo, rollout
from tests.distributed.ranks import in_group
from tests.policy.crew import HERE_AND_THERE, LOCAL, Crew, crews

VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
TORQUE = spaces.Box(-2.0, 2.0, (2,), np.float32)
CHOICE = spaces.Discrete(3)
crew = pytest.fixture(scope="module", params=HERE_AND_THERE)(crews)


def settings(**algo: Any) -> PolicyConfig:
    """PPO with all that has statistics of its own; gradients are not blown up where they nearly vanish."""
    return PolicyConfig(
        model_cfg={"hidden_sizes": [16], "normalize_observation": True},
        algo_cfg={"scale_reward": True, "entropy_coef": 0.01, "update_epochs": 3, **algo},
        optim_cfg=OptimConfig(name="adam", eps=1e-3),
    )


def started(group: PolicyGroup, action: Any = CHOICE, **train: Any) -> PolicyGroup:
    group.init_comm_group()
    options = {"max_epochs": 10, "batch_size": 32, "lr": 3e-3, **train}
    group.init_train(TrainConfig(**options), EnvMeta("Test-v0", VECTOR, action, num_envs=6))
    return group


def acted(steps: int, envs: int, seed: int, action: Any = CHOICE, **columns: Tensor) -> TensorDict:
    """A rollout by a policy that does not learn."""
    return rollout(make_ppo(VECTOR, action, model={"hidden_sizes": [8]}), steps, envs, seed=seed, **columns)


def eventful(steps: int, envs: int, seed: int, action: Any = CHOICE) -> TensorDict:
    """A rollout with ends of all kinds and rows that are not valid."""
    rng = torch.Generator().manual_seed(seed)
    drawn = torch.rand(steps, envs, generator=rng)
    flags = {"terminated": drawn < 0.1, "truncated": (drawn > 0.1) & (drawn < 0.2), "valid": drawn < 0.9}
    return acted(steps, envs, seed, action, **flags)


def shared(data: TensorDict, counts: list[int]) -> list[TensorDict]:
    """Cut a rollout by envs."""
    stops = np.cumsum(counts).tolist()
    return [data[:, stop - count : stop].clone() for count, stop in zip(counts, stops, strict=True)]


def update(group: PolicyGroup, pieces: list[TensorDict]) -> dict[str, float]:
    group.update_dataset([piece.clone() for piece in pieces])
    metrics: dict[str, float] = group.train()
    return metrics


def digests(group: PolicyGroup) -> list[Any]:
    return [as_handle(one).call(BasePolicy.get_bundle_digest).result(60) for one in group.train_list]


def modules(group: PolicyGroup) -> dict[str, Tensor]:
    found: dict[str, Tensor] = group.get_training_state()["train"]["modules"]
    return found


# One policy on all rows, several on the pieces


@pytest.mark.parametrize(
    ("counts", "action", "algo"),
    [
        ([3, 3], CHOICE, {}),
        ([2, 4], TORQUE, {"value_clip": 0.2}),
        ([6, 0], CHOICE, {"normalize_advantage": False}),
    ],
)
def test_two_learners_equal_one_on_the_same_global_batch(
    crew: Crew, counts: list[int], action: Any, algo: dict[str, Any]
) -> None:
    one = started(Crew(LOCAL).group(PPO, 1, 0, config=settings(**algo)), action)
    two = started(crew.group(PPO, 2, 0, config=settings(**algo)), action)
    for seed in range(3):
        data = eventful(25, 6, seed, action)
        expected = update(one, [data])
        metrics = update(two, shared(data, counts))
        assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-5)
        assert undescribed(metrics) == []
        first, second = digests(two)
        assert first == second
    wanted, found = modules(one), modules(two)
    assert wanted.keys() == found.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(
            found[name], tensor, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
    moved = modules(started(Crew(LOCAL).group(PPO, 1, 0, config=settings(**algo)), action))
    assert not torch.allclose(moved["network.critic.0.weight"], wanted["network.critic.0.weight"], atol=1e-3)


@pytest.mark.parametrize("counts", [[1, 2, 3], [2, 0, 3, 1]])
def test_more_learners_equal_one_too(counts: list[int]) -> None:
    one, many = (started(Crew(LOCAL).group(PPO, k, 0, config=settings())) for k in (1, len(counts)))
    for seed in range(3):
        data = eventful(25, 6, seed)
        expected, metrics = update(one, [data]), update(many, shared(data, counts))
        assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert len({str(digest) for digest in digests(many)}) == 1
    for name, tensor in modules(one).items():
        torch.testing.assert_close(modules(many)[name], tensor, rtol=1e-4, atol=1e-5)


# Uneven shards (C18)


def rows_of(count: int, seed: int, *, off: float = 0.0) -> TensorDict:
    """A piece of 2 envs with ``count`` valid rows of 2 x 65; its log-probs are off from the policy's by ``off``."""
    valid = (torch.arange(130) < count).view(65, 2)
    data = acted(65, 2, seed, valid=valid)
    data["log_prob"] += off
    return data


@pytest.mark.parametrize(("target_kl", "off"), [(None, 0.0), (0.05, 0.0), (0.05, 0.6)])
def test_uneven_shards_end_together(crew: Crew, target_kl: float | None, off: float) -> None:
    # Where a KL stop is set, the second learner alone sees a large KL: exp(-0.6) - 1 + 0.6 = 0.149 beside about 0.
    group = started(crew.group(PPO, 2, 0, config=settings(target_kl=target_kl), timeout_s=30.0))
    for seed, sizes in enumerate([(100, 130), (0, 64), (64, 64), (1, 0)]):
        metrics = update(group, [rows_of(sizes[0], seed), rows_of(sizes[1], seed + 10, off=off)])
        assert metrics["train/rows"] == sum(sizes)
        assert (metrics["train/dropped_rows"], metrics["train/padded_rows"]) == (0, 0)
        planned = 3 * -(-sum(sizes) // 32)
        if target_kl is None:
            assert metrics["train/gradient_steps"] == planned
        elif sizes[1] and off:
            assert metrics["train/gradient_steps"] < planned
        assert group._reports[0] == group._reports[1]
        first, second = digests(group)
        assert first == second


@pytest.mark.parametrize("off", [0.6, 0.2])
def test_the_kl_stop_is_that_of_all_rows(off: float) -> None:
    one, two = (started(Crew(LOCAL).group(PPO, k, 0, config=settings(target_kl=0.04))) for k in (1, 2))
    pieces = [rows_of(64, 0), rows_of(64, 1, off=off)]
    expected, metrics = update(one, [torch.cat(pieces, 1)]), update(two, pieces)
    assert metrics["train/gradient_steps"] == expected["train/gradient_steps"]
    assert metrics["train/approx_kl"] == pytest.approx(expected["train/approx_kl"], rel=1e-4)
    # exp(-0.6) - 1 + 0.6 = 0.149 in half of the rows is 0.074 over all, above 1.5 x 0.04; exp(-0.2) - 1 + 0.2 = 0.019
    # is not.
    assert (metrics["train/gradient_steps"] == 0) == (off == 0.6)


def test_the_gradient_is_the_mean_over_the_samples_used() -> None:
    """One step of plain SGD moves the weights by the gradient."""
    optim = OptimConfig(name="sgd", momentum=0.0, max_grad_norm=None)
    config = settings(update_epochs=1, normalize_advantage=False).model_copy(update={"optim_cfg": optim})
    one, two = (started(Crew(LOCAL).group(PPO, k, 0, config=config), batch_size=1000, lr=1.0) for k in (1, 2))
    before = modules(one)
    pieces = [rows_of(100, 0), rows_of(130, 1)]
    update(one, [torch.cat(pieces, 1)])
    update(two, pieces)
    for name, tensor in modules(one).items():
        torch.testing.assert_close(modules(two)[name], tensor, rtol=1e-5, atol=1e-6)
        assert name.startswith("reward_scaler") or not torch.equal(tensor, before[name]) or "log_std" in name


def test_no_rows_at_all_are_refused_by_all() -> None:
    group = started(Crew(LOCAL).group(PPO, 2, 0, config=settings()))
    with pytest.raises(WorkerError, match="none of the 130 rows") as caught:
        update(group, [rows_of(0, 0), rows_of(0, 1)])
    assert isinstance(caught.value.__cause__, NotEnoughData)


def test_a_piece_without_steps_is_a_piece() -> None:
    group = started(Crew(LOCAL).group(PPO, 2, 0, config=settings()))
    metrics = update(group, [acted(8, 4, 0)[:0], acted(8, 4, 0)])
    assert metrics["train/rows"] == 32


# The parts


def test_rows_are_ordered_by_time_then_learner_then_column() -> None:
    times = [torch.tensor(own, dtype=torch.int32) for own in ([0, 1, 1, 2], [0, 0, 2])]

    def work(group: Any) -> list[int]:
        index: list[int] = GlobalBatch.of(times[group.rank], group).index.tolist()
        return index

    # All rows: 0a 0b 0b | 1a 1a | 2a 2b.
    first, second = in_group(2, work)
    assert first == [0, -1, -1, 1, 2, 3, -1]
    assert second == [-1, 0, 1, -1, -1, -1, 2]


def test_a_batch_is_cut_like_that_of_one_learner_and_each_takes_its_own() -> None:
    index = torch.tensor([0, -1, -1, 1, 2, 3, -1])
    cut = GlobalBatch(SOLO, index).cut(torch.tensor([6, 5, 4, 3, 2, 1, 0]), 3)
    # 7 rows in 3 slices of 3, 2, 2: rows 6 5 4 | 3 2 | 1 0, of which 5 4 | 3 | 0 are own.
    assert cut.sizes == [3, 2, 2]
    assert cut.counts == [2, 1, 1]
    assert cut.index.tolist() == [3, 2, 1, 0]


def test_advantages_are_normalised_over_the_rows_of_all() -> None:
    rng = torch.Generator().manual_seed(0)
    pieces = [[torch.randn(n, generator=rng) * 3 + 100 for n in own] for own in ([2, 0, 5, 1], [3, 4, 0, 0])]
    sizes = [5, 4, 5, 1]

    def work(group: Any) -> list[Tensor]:
        own = pieces[group.rank]
        slices = Slices(torch.empty(0), [len(piece) for piece in own], sizes)
        return slices.normalize(torch.cat(own), group)

    results = in_group(2, work)
    for rank, found in enumerate(results):
        for i, mine in enumerate(found):
            whole = normalized(torch.cat([pieces[0][i], pieces[1][i]]))
            start = 0 if rank == 0 else len(pieces[0][i])
            torch.testing.assert_close(mine, whole[start : start + len(mine)], atol=1e-4, rtol=1e-4)


def test_moments_are_those_of_the_rows_of_all() -> None:
    rows = [torch.tensor([[1.0, 10.0]]), torch.empty(0, 2), torch.tensor([[2.0, 10.0], [3.0, 40.0]])]
    for moments in in_group(3, lambda group: merged_moments(Moments.of(rows[group.rank]), group)):
        assert moments.count.item() == 3
        # (1 + 2 + 3) / 3 and (10 + 10 + 40) / 3; variances 2 / 3 and (100 + 100 + 400) / 3.
        assert moments.mean.tolist() == pytest.approx([2.0, 20.0])
        assert moments.var.tolist() == pytest.approx([2 / 3, 200.0])


def test_metrics_of_one_learner_report_no_dropped_and_no_padded_rows() -> None:
    metrics = update(started(Crew(LOCAL).group(PPO, 1, 0, config=settings())), [acted(8, 4, 0)])
    assert (metrics["train/rows"], metrics["train/dropped_rows"], metrics["train/padded_rows"]) == (32, 0, 0)
    assert all(math.isfinite(value) for value in metrics.values())
