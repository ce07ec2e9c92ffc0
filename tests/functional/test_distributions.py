"""Distributions: C05, and torch.distributions as an oracle."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch import distributions as oracle

from rlightning.functional.distributions import (
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    SquashedGaussian,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gaussian(mean: float, std: float, squashed: bool = False) -> DiagonalGaussian:
    family = SquashedGaussian if squashed else DiagonalGaussian
    return family(torch.tensor([[mean]]), torch.tensor([math.log(std)]))


# log N(0.5; 0, 1) = -0.125 - 0.918939 = -1.043939;  log(1 - tanh(0.5)^2) = log(0.786448) = -0.240229
# in [-1, 1] units: -1.043939 + 0.240229 = -0.80371;  on Box(-2, 2): -0.80371 - log 2 = -1.49686
def test_squashed_log_prob_in_both_units() -> None:
    policy, u = gaussian(0.0, 1.0, squashed=True), torch.tensor([[0.5]])
    assert policy.log_prob(u).item() == pytest.approx(-0.80371, abs=1e-5)
    assert isinstance(policy, SquashedGaussian)
    assert policy.log_prob_in_units(u, torch.tensor([2.0])).item() == pytest.approx(-1.49686, abs=1e-5)


def test_squashed_log_prob_is_finite_where_tanh_saturates() -> None:
    # log N(20; 20, 0.1) = -0.918939 + 2.302585;  log(1 - tanh(20)^2) = 2 (log 2 - 20) = -38.613706
    policy, u = gaussian(20.0, 0.1, squashed=True), torch.tensor([[20.0]])
    assert policy.log_prob(u).item() == pytest.approx(39.997, abs=1e-3)
    for far in (-1e4, 1e4):
        assert torch.isfinite(gaussian(far, 0.1, squashed=True).log_prob(torch.tensor([[far]]))).all()


def test_gaussian_agrees_with_the_oracle() -> None:
    rng = generator()
    mean, log_std = torch.randn(16, 3, generator=rng), torch.randn(3, generator=rng)
    action = torch.randn(16, 3, generator=rng)
    expected = oracle.Independent(oracle.Normal(mean, log_std.exp().expand(16, 3)), 1)
    policy = DiagonalGaussian(mean, log_std)
    torch.testing.assert_close(policy.log_prob(action), expected.log_prob(action))
    torch.testing.assert_close(policy.entropy(), expected.entropy())
    per_row = DiagonalGaussian(mean, log_std.expand(16, 3))
    torch.testing.assert_close(per_row.log_prob(action), expected.log_prob(action))
    torch.testing.assert_close(per_row.entropy(), expected.entropy())
    assert torch.equal(policy.mode(), mean)


def test_squashed_gaussian_agrees_with_the_oracle() -> None:
    rng = generator(1)
    mean, log_std = torch.randn(16, 3, generator=rng).double(), torch.tensor([-1.0, 0.0, 0.3]).double()
    policy = SquashedGaussian(mean, log_std)
    u = policy.sample(rng)
    base = oracle.Independent(oracle.Normal(mean, log_std.exp().expand(16, 3)), 1)
    expected = oracle.TransformedDistribution(base, [oracle.TanhTransform(cache_size=1)])
    torch.testing.assert_close(policy.log_prob(u), expected.log_prob(torch.tanh(u)))
    # the env's unit: y = 3 tanh(u) has the density of tanh(u) divided by 3, in each of 3 dimensions
    torch.testing.assert_close(
        policy.log_prob_in_units(u, torch.full((3,), 3.0).double()), policy.log_prob(u) - 3 * math.log(3.0)
    )


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.1), (0.7, 1.0), (-2.0, 2.0), (5.0, 3.0)])
def test_squashed_entropy_is_minus_the_expected_log_prob(mean: float, std: float) -> None:
    policy = SquashedGaussian(torch.tensor([[mean]]).double(), torch.tensor([math.log(std)]).double())
    z = torch.linspace(-10, 10, 40_001).double()
    density = torch.exp(-z.square() / 2)
    log_probs = policy.log_prob((mean + std * z).unsqueeze(-1))
    expected = -(density * log_probs).sum() / density.sum()
    assert policy.entropy().item() == pytest.approx(expected.item(), abs=0.01)


def test_categorical_agrees_with_the_oracle() -> None:
    rng = generator(2)
    logits = torch.randn(16, 5, generator=rng) * 3
    action = torch.randint(5, (16,), generator=rng)
    expected, policy = oracle.Categorical(logits=logits), Categorical(logits)
    torch.testing.assert_close(policy.log_prob(action), expected.log_prob(action))
    torch.testing.assert_close(policy.entropy(), expected.entropy())
    assert torch.equal(policy.mode(), logits.argmax(-1))


def test_multi_categorical_is_the_product_of_its_parts() -> None:
    rng = generator(3)
    logits = torch.randn(8, 5, generator=rng)
    policy, first, second = MultiCategorical(logits, [2, 3]), Categorical(logits[:, :2]), Categorical(logits[:, 2:])
    action = policy.sample(rng)
    assert action.shape == (8, 2)
    torch.testing.assert_close(policy.log_prob(action), first.log_prob(action[:, 0]) + second.log_prob(action[:, 1]))
    torch.testing.assert_close(policy.entropy(), first.entropy() + second.entropy())
    assert torch.equal(policy.mode(), torch.stack([first.mode(), second.mode()], dim=-1))


def test_gaussian_samples_have_its_mean_and_spread() -> None:
    samples = DiagonalGaussian(torch.full((100_000, 1), 3.0), torch.tensor([math.log(0.5)])).sample(generator())
    # standard errors: 0.5 / sqrt(1e5) = 0.0016 and 0.0011
    assert samples.mean().item() == pytest.approx(3.0, abs=0.008)
    assert samples.std().item() == pytest.approx(0.5, abs=0.006)


def test_categorical_samples_have_its_frequencies() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.2, 0.0])
    actions = Categorical(probabilities.log().expand(100_000, 4)).sample(generator())
    frequencies = torch.bincount(actions, minlength=4) / 100_000
    # standard error at most sqrt(0.25 / 1e5) = 0.0016
    torch.testing.assert_close(frequencies, probabilities, atol=0.008, rtol=0)
    assert frequencies[3] == 0


FAMILIES = [
    gaussian(0.3, 0.7),
    gaussian(0.3, 0.7, squashed=True),
    DiagonalGaussian(torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5, -3.0]])),
    Categorical(torch.tensor([[0.0, 1.0, -1.0, 0.5]])),
    MultiCategorical(torch.tensor([[0.0, 1.0, -1.0, 0.5]]), [2, 2]),
]


@pytest.mark.parametrize("policy", FAMILIES)
def test_a_sample_with_its_log_prob_is_the_same_sample_and_its_log_prob(policy: Distribution) -> None:
    first, second = generator(3), generator(3)
    for _ in range(5):
        action, log_prob = policy.sample_with_log_prob(first)
        assert torch.equal(action, policy.sample(second))
        torch.testing.assert_close(log_prob, policy.log_prob(action))


@pytest.mark.parametrize("policy", FAMILIES)
def test_samples_follow_from_the_generator_alone(policy: Distribution) -> None:
    def draw() -> list[Tensor]:
        source = generator(7)
        return [policy.sample(source) for _ in range(10)]

    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = draw()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert all(torch.equal(a, b) for a, b in zip(first, draw(), strict=True))
    assert len({tuple(sample.flatten().tolist()) for sample in first}) > 1


def test_a_choice_that_is_not_allowed_is_never_drawn_and_spoils_no_entropy() -> None:
    # Two equal choices are left: ln 2 nats, and no gradient where both are equal.
    logits = torch.tensor([[1.0, -math.inf, 1.0]], requires_grad=True)
    distribution = Categorical(logits)
    assert distribution.entropy().item() == pytest.approx(math.log(2.0))
    distribution.entropy().sum().backward()
    assert torch.allclose(logits.grad, torch.zeros(1, 3))
    many = Categorical(logits.detach().expand(10_000, 3))
    assert torch.bincount(many.sample(torch.Generator().manual_seed(0)), minlength=3)[1] == 0
