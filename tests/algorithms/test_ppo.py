"""PPO: what it keeps, what it refuses, what an update does."""

from __future__ import annotations

import math
import shutil
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rlightning.algorithms.ppo import PPO, PPOOptions
from rlightning.errors import NotEnoughData, ProtocolError, RLightningError, ShapeError, UnsupportedSpace
from rlightning.functional.losses import approximate_kl
from rlightning.observability.metrics import undescribed
from rlightning.policy.base_policy import PolicyRole
from rlightning.registry import lookup
from tests.algorithms.doubles import act, make_ppo, rollout

VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (24, 24, 1), np.uint8)
TORQUE = spaces.Box(-2.0, 2.0, (2,), np.float32)
CHOICE = spaces.Discrete(3)


def parameters(policy: PPO) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in policy.network.parameters()]


def flags(steps: int, envs: int, *where: tuple[int, int]) -> Tensor:
    column = torch.zeros(steps, envs, dtype=torch.bool)
    for t, n in where:
        column[t, n] = True
    return column


def log_ratios(policy: PPO) -> Tensor:
    assert policy.dataset is not None
    rows = policy.dataset.rows
    return (policy.network.distribution(rows.observation).log_prob(rows.action) - rows.log_prob).detach()


def test_the_registry_knows_it() -> None:
    assert lookup("policy", "ppo") is PPO


# Spaces


@pytest.mark.parametrize("role", list(PolicyRole))
@pytest.mark.parametrize(
    ("observation", "action", "model", "culprit"),
    [
        (spaces.Text(5), CHOICE, {}, "Text"),
        (spaces.Tuple([VECTOR]), CHOICE, {}, "Tuple"),
        (spaces.Dict({"text": spaces.Text(5)}), CHOICE, {}, "Text"),
        (VECTOR, spaces.Text(5), {}, "Text"),
        (VECTOR, spaces.Dict({"a": CHOICE}), {}, "Dict"),
        (VECTOR, spaces.Box(0, 9, (2,), np.int32), {}, "int32"),
        (VECTOR, VECTOR, {"box_actions": "squash"}, "inf"),
        (VECTOR, CHOICE, {"encoder": "cnn"}, "Box"),
    ],
)
def test_a_space_that_cannot_be_served_is_refused_by_name(
    role: PolicyRole, observation: gym.Space[Any], action: gym.Space[Any], model: dict[str, Any], culprit: str
) -> None:
    with pytest.raises(UnsupportedSpace, match=rf"PPO cannot serve Test-v0: .*{culprit}"):
        make_ppo(observation, action, role, model=model)


@pytest.mark.parametrize("observation", [VECTOR, IMAGE, spaces.Dict({"a": VECTOR, "b": VECTOR})])
@pytest.mark.parametrize("action", [TORQUE, CHOICE, spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)])
def test_every_pair_of_other_spaces_is_served(observation: gym.Space[Any], action: gym.Space[Any]) -> None:
    policy = make_ppo(observation, action, batch_size=4, model={"hidden_sizes": [8]})
    data = rollout(policy, 3, 4)
    policy.update_dataset(data)
    before = parameters(policy)
    metrics = policy.train()
    assert metrics["train/gradient_steps"] == 4 * 3
    assert undescribed(metrics) == []
    assert any(not torch.equal(a, b) for a, b in zip(before, parameters(policy), strict=True))


# Acting


def test_the_env_gets_the_clipped_action_and_the_buffer_the_one_of_the_log_prob() -> None:
    policy = make_ppo(VECTOR, TORQUE, model={"log_std_init": 1.0})
    observation = torch.randn(200, 3)
    answer = act(policy, observation)
    # In units of half the range (2), a standard deviation of e = 2.718: about 7 of 10 values lie beyond the bounds.
    beyond = answer.action.abs() > 1.0
    assert 0.6 < beyond.float().mean() < 0.8
    assert answer.env_action is not None
    torch.testing.assert_close(answer.env_action, (answer.action * 2.0).clamp(-2.0, 2.0))
    z = (answer.action - policy.network.distribution(policy.network.prepare(observation)).mode()) / math.e
    expected = (-0.5 * z.square() - 1.0 - 0.5 * math.log(2 * math.pi)).sum(-1)
    torch.testing.assert_close(answer.extras["log_prob"], expected.detach(), atol=1e-4, rtol=1e-4)


def test_squashed_actions_are_kept_as_they_were_before_tanh() -> None:
    policy = make_ppo(VECTOR, TORQUE, model={"box_actions": "squash", "log_std_init": 1.0})
    answer = act(policy, torch.randn(200, 3))
    torch.testing.assert_close(answer.env_action, 2.0 * torch.tanh(answer.action))


def test_discrete_actions_with_a_start_are_shifted_for_the_env_only() -> None:
    answer = act(make_ppo(VECTOR, spaces.Discrete(3, start=-1)), torch.randn(200, 3))
    assert set(answer.action.tolist()) == {0, 1, 2}
    assert torch.equal(answer.action_for_env, answer.action - 1)


@pytest.mark.parametrize("action", [TORQUE, CHOICE])
def test_a_deterministic_answer_is_the_mode_and_uses_no_randomness(action: gym.Space[Any]) -> None:
    policy = make_ppo(VECTOR, action)
    observation = torch.randn(20, 3)
    before = policy.generator.get_state()
    first, second = (act(policy, observation, deterministic=True) for _ in range(2))
    assert torch.equal(first.action, second.action)
    assert torch.equal(before, policy.generator.get_state())
    assert torch.equal(first.action, policy.network.distribution(policy.network.prepare(observation)).mode())


@pytest.mark.parametrize(
    ("action", "model"),
    [
        (CHOICE, {}),
        (spaces.MultiDiscrete([2, 3]), {}),
        (TORQUE, {}),
        (TORQUE, {"log_std_init": -3.0}),
        (TORQUE, {"box_actions": "squash"}),
        (TORQUE, {"box_actions": "squash", "log_std_init": 1.5}),
    ],
)
def test_log_probs_recomputed_with_the_same_weights_give_a_ratio_of_one(
    action: gym.Space[Any], model: dict[str, Any]
) -> None:
    policy = make_ppo(VECTOR, action, model=model, lr=1e-3, batch_size=64)
    for seed in range(3):  # the last time with trained weights and a normaliser in use
        policy.update_dataset(rollout(policy, 16, 8, seed=seed))
        ratio = log_ratios(policy).exp()
        torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=1e-5, rtol=0)
        assert approximate_kl(ratio.log()).item() < 1e-8
        policy.train()


# The dataset


def test_a_truncated_step_is_worth_the_value_of_its_final_observation() -> None:
    policy = make_ppo(VECTOR, CHOICE, algo={"gamma": 1.0})
    cut = flags(3, 2, (1, 0))
    data = rollout(policy, 3, 2, reward=lambda action: torch.zeros(2), truncated=cut)
    data["next_observation"][1, 0] = torch.tensor([5.0, -5.0, 5.0])  # not what the next row shows
    policy.update_dataset(data)
    assert policy.dataset is not None
    returns = policy.dataset.rows.return_.view(3, 2)
    value = policy.network.value(policy.network.prepare(torch.tensor([[5.0, -5.0, 5.0]])))
    # r = 0 and gamma = 1: the return of the step is V(final observation), whatever V(observation) is
    assert returns[1, 0].item() == pytest.approx(value.item(), abs=1e-5)


def test_a_terminated_step_is_worth_its_reward_and_nothing_else() -> None:
    policy = make_ppo(VECTOR, CHOICE)
    data = rollout(policy, 3, 2, terminated=flags(3, 2, (1, 0), (2, 1)))
    data["next_observation"][1, 0] = math.nan
    policy.update_dataset(data)
    assert policy.dataset is not None
    returns = policy.dataset.rows.return_.view(3, 2)
    assert returns[1, 0].item() == pytest.approx(data["reward"][1, 0].item(), abs=1e-6)
    assert returns[2, 1].item() == pytest.approx(data["reward"][2, 1].item(), abs=1e-6)
    assert torch.isfinite(returns).all()


def test_values_of_the_next_row_stand_for_those_of_the_next_observation() -> None:
    policy = make_ppo(VECTOR, CHOICE)
    data = rollout(policy, 6, 3, truncated=flags(6, 3, (2, 1)), terminated=flags(6, 3, (4, 2)))
    data["next_observation"][2, 1] = 9.0
    with torch.no_grad():
        value = policy.network.value(policy.network.prepare(data["observation"].flatten(0, 1))).view(6, 3)
        expected = policy.network.value(policy.network.prepare(data["next_observation"].flatten(0, 1))).view(6, 3)
        cut = data["terminated"] | data["truncated"]
        computed = policy._next_values(data, value, data["terminated"], cut)
    expected[4, 2] = 0.0
    torch.testing.assert_close(computed, expected)


def test_rows_that_are_not_valid_leave_no_trace() -> None:
    def train(poison: float) -> tuple[PPO, dict[str, float]]:
        policy = make_ppo(VECTOR, TORQUE, batch_size=4, algo={"scale_reward": True})
        data = rollout(policy, 6, 2, valid=~flags(6, 2, (3, 0)), truncated=flags(6, 2, (2, 0)))
        for key in ("observation", "action", "log_prob", "reward"):
            data[key][3, 0] = poison
        data["next_observation"][3, 0] = poison
        policy.update_dataset(data)
        return policy, policy.train()

    (first, metrics), (second, _) = train(math.nan), train(1e6)
    assert metrics["train/rows"] == 11
    assert all(torch.equal(a, b) for a, b in zip(parameters(first), parameters(second), strict=True))
    assert first.network.normalizer is not None
    assert first.network.normalizer.count.item() == 11
    assert first.reward_scaler.count.item() == 11


def test_a_step_before_a_row_that_is_not_valid_does_not_look_into_it() -> None:
    policy = make_ppo(VECTOR, CHOICE)
    data = rollout(policy, 4, 1, valid=~flags(4, 1, (2, 0)))
    data["observation"][2, 0] = math.nan
    policy.update_dataset(data)
    assert policy.dataset is not None
    assert torch.isfinite(policy.dataset.rows.advantage).all()


def test_wrong_data_are_refused() -> None:
    policy = make_ppo(VECTOR, CHOICE)
    with pytest.raises(ProtocolError, match="update_dataset before train"):
        policy.train()
    with pytest.raises(ShapeError, match=r"\[T, N\]"):
        policy.update_dataset(rollout(policy, 3, 2).flatten())
    with pytest.raises(NotEnoughData, match="none of the 6 rows"):
        policy.update_dataset(rollout(policy, 3, 2, valid=flags(3, 2)))
    with pytest.raises(ProtocolError, match="env_meta"):
        make_ppo(VECTOR, CHOICE).construct_network(None)


# The update


@pytest.mark.parametrize(
    ("rows", "batch_size", "sizes"),
    [(8, 4, [4, 4]), (9, 4, [3, 3, 3]), (13, 4, [4, 3, 3, 3]), (3, 4, [3]), (1, 4, [1]), (257, 256, [129, 128])],
)
def test_minibatches_use_every_row_once_and_none_is_tiny(rows: int, batch_size: int, sizes: list[int]) -> None:
    policy = make_ppo(VECTOR, CHOICE, algo={"update_epochs": 1, "normalize_advantage": False}, batch_size=batch_size)
    policy.update_dataset(rollout(policy, rows, 1))
    assert policy.dataset is not None
    cut = list(policy._minibatches(policy.dataset))
    assert [(len(minibatch), size) for minibatch, size in cut] == [(size, size) for size in sizes]
    seen = torch.cat([minibatch.advantage for minibatch, _ in cut])
    assert torch.equal(seen.sort().values, policy.dataset.rows.advantage.sort().values)


@pytest.mark.parametrize(("rows", "batch_size"), [(1, 256), (6, 1)])
def test_minibatches_of_a_single_row_keep_the_parameters_finite(rows: int, batch_size: int) -> None:
    policy = make_ppo(VECTOR, TORQUE, batch_size=batch_size)
    policy.update_dataset(rollout(policy, rows, 1))
    policy.train()
    assert all(torch.isfinite(parameter).all() for parameter in parameters(policy))


def test_the_kl_stop_ends_the_update_before_the_step_that_would_follow() -> None:
    # The first minibatch has KL 0 exactly, and any step moves a policy: a tiny target stops at the second one.
    stopped = make_ppo(VECTOR, TORQUE, algo={"target_kl": 1e-12}, batch_size=8, lr=1e-2)
    stopped.update_dataset(rollout(stopped, 8, 4))
    assert stopped.train()["train/gradient_steps"] == 1
    free = make_ppo(VECTOR, TORQUE, batch_size=8, lr=1e-2)
    free.update_dataset(rollout(free, 8, 4))
    assert free.train()["train/gradient_steps"] == 4 * 4


def test_learning_rate_and_clip_range_follow_the_epoch() -> None:
    policy = make_ppo(VECTOR, CHOICE, lr=0.1, max_epochs=100, optim={"schedule": "linear"})
    for epoch, lr in ((0, 0.1), (50, 0.05), (99, 0.001)):
        policy.epoch = epoch
        policy.update_dataset(rollout(policy, 4, 2))
        assert policy.train()["train/lr"] == pytest.approx(lr)
        assert policy.optimizer.param_groups[0]["lr"] == pytest.approx(lr)


def test_observations_look_the_same_until_the_update_is_over() -> None:
    policy = make_ppo(VECTOR, CHOICE)
    normalizer = policy.network.normalizer
    assert normalizer is not None
    data = rollout(policy, 8, 4)
    data["observation"] += 100.0
    policy.update_dataset(data)
    assert normalizer.count.item() == 0
    policy.train()
    assert normalizer.count.item() == 32
    torch.testing.assert_close(normalizer.mean.float(), data["observation"].flatten(0, 1).mean(0))
    policy.train()  # again on the same data: they count once
    assert normalizer.count.item() == 32


def test_after_20_updates_an_eval_policy_has_the_statistics_and_acts_alike() -> None:
    learner = make_ppo(VECTOR, TORQUE)
    actor = make_ppo(VECTOR, TORQUE, PolicyRole.EVAL)
    for seed in range(20):
        data = rollout(learner, 4, 2, seed=seed)
        data["observation"] += 100.0
        learner._update_dataset(data)
        learner._train()
    actor.import_bundle(learner.export_bundle())
    assert learner.get_bundle_digest() == actor.get_bundle_digest()
    assert actor.network.normalizer is not None
    assert actor.network.normalizer.count.item() == 20 * 8
    observation = torch.randn(50, 3) + 100.0
    expected = act(learner, observation, deterministic=True).action
    before = actor.get_bundle_digest()
    assert torch.equal(act(actor, observation, deterministic=True).action, expected)
    assert actor.get_bundle_digest() == before


def test_an_entropy_bonus_widens_the_policy() -> None:
    policy = make_ppo(VECTOR, TORQUE, algo={"entropy_coef": 10.0}, lr=1e-2)
    policy.update_dataset(rollout(policy, 16, 4))
    assert policy.train()["train/std"] > 1.0
    # H = 2 (0.5 + 0.5 log(2 pi) + log std) = 2.8379 at std 1
    assert policy.train()["train/entropy"] > 2.8379


def test_an_update_that_diverged_is_an_error() -> None:
    policy = make_ppo(VECTOR, CHOICE)
    data = rollout(policy, 4, 2)
    data["reward"][0, 0] = math.nan
    policy.update_dataset(data)
    with pytest.raises(RLightningError, match=r"diverged in epoch 0.*train/value_loss"):
        policy.train()


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped() -> None:
    def make() -> PPO:
        return make_ppo(
            VECTOR, TORQUE, algo={"scale_reward": True}, optim={"schedule": "linear"}, batch_size=8, max_epochs=6
        )

    def learn(policy: PPO, seeds: range) -> list[dict[str, float]]:
        history = []
        for seed in seeds:
            policy._update_dataset(rollout(policy, 8, 2, seed=seed, truncated=flags(8, 2, (3, 0))))
            history.append(policy._train())
        return history

    whole, first, second = make(), make(), make()
    expected = learn(whole, range(6))
    learn(first, range(3))
    second.load_training_state(first.get_training_state())
    assert learn(second, range(3, 6)) == expected[3:]
    assert second.get_bundle_digest() == whole.get_bundle_digest()


def test_options_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="gama"):
        make_ppo(VECTOR, CHOICE, algo={"gama": 0.9})
    assert set(PPOOptions().model_dump()) >= {"gamma", "lam", "clip_range", "target_kl"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler imports what torch deprecates
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch compiles for a CPU by a C++ compiler")
def test_a_compiled_loss_learns_the_same_and_says_how_long_it_took(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="rlightning")
    policies = [make_ppo(VECTOR, TORQUE, compiled=compiled, batch_size=32) for compiled in (False, True)]
    for policy in policies:
        policy._update_dataset(rollout(policy, steps=16, envs=4))
        policy._train()
    for plain, compiled in zip(*map(parameters, policies), strict=True):
        torch.testing.assert_close(plain, compiled)
    assert "compiled PPO._loss_of_rows in" in caplog.text
    assert [policy._timer.summary().get("compile", {}).get("count") for policy in policies] == [None, 1]
