"""Advantages and returns of rollouts, time first: [T, N] for T steps of N parallel envs."""

from __future__ import annotations

from torch import Tensor

from rlightning.errors import ShapeError


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    cut: Tensor,
    *,
    gamma: float,
    lam: float,
) -> Tensor:
    """Generalised advantage estimates (Schulman et al. 2016, eq. 16).

    Rows on either side of a cut do not affect each other, not even by NaN.

    Args:
        rewards: Reward for the action taken at t, [T, N].
        values: V(s_t), [T, N].
        next_values: V(s_{t+1}) of the true next state, [T, N]; that of a cut step and of the last row is the
            bootstrap.
        terminated: True where s_{t+1} is terminal, [T, N] bool. A time limit is not terminal.
        cut: True where the recursion must not cross from t to t+1, [T, N] bool; terminated or truncated.
        gamma: Discount per step, in [0, 1].
        lam: Weight of longer estimates, in [0, 1]: 0 is one-step, 1 is the whole return.

    Returns:
        Advantages, [T, N], not normalised.

    Raises:
        ShapeError: If the shapes differ; [T] beside [T, N] would broadcast silently.
    """
    _same_shape(rewards=rewards, values=values, next_values=next_values, terminated=terminated, cut=cut)
    # delta_t = r_t + gamma V(s_{t+1}) - V(s_t);  A_t = delta_t + gamma lam A_{t+1}
    deltas = rewards + gamma * next_values.masked_fill(terminated, 0.0) - values
    return discounted_sums(deltas, (~cut).to(deltas.dtype) * (gamma * lam))


def discounted_returns(
    rewards: Tensor, next_values: Tensor, terminated: Tensor, cut: Tensor, *, gamma: float
) -> Tensor:
    """Discounted sum of the following rewards, with a bootstrap where the data end before the episode.

    Args:
        rewards: Reward for the action taken at t, [T, N].
        next_values: V(s_{t+1}) of the true next state, [T, N]; read only in cut rows and in the last row.
        terminated: True where s_{t+1} is terminal, [T, N] bool.
        cut: True where an episode ended, [T, N] bool; terminated or truncated.
        gamma: Discount per step, in [0, 1].

    Returns:
        Returns, [T, N].

    Raises:
        ShapeError: If the shapes differ.
    """
    _same_shape(rewards=rewards, next_values=next_values, terminated=terminated, cut=cut)
    closes = cut.clone()
    closes[-1:] = True
    tails = next_values.masked_fill(~closes | terminated, 0.0)
    return discounted_sums(rewards + gamma * tails, (~cut).to(rewards.dtype) * gamma)


def discounted_sums(terms: Tensor, factors: Tensor) -> Tensor:
    """Solve s_t = terms_t + factors_t s_{t+1} along axis 0, where s beyond the last row is 0.

    The recurrence is associative, so that pairs of rows can be joined to windows of 2, 4, 8, ... rows: log2(T)
    operations on the whole block instead of T on one row (Hillis & Steele 1986; Blelloch 1990).

    Args:
        terms: Term of each row, [T, ...] floating point.
        factors: Weight of the next row, [T, ...]; where it is 0 nothing crosses, not even NaN.

    Returns:
        The sums, [T, ...]; the arguments are unchanged.

    Raises:
        ShapeError: If the shapes differ.
    """
    _same_shape(terms=terms, factors=factors)
    sums, factors = terms.clone(), factors.clone()
    window = 1
    while window < len(sums):
        reach = factors[:-window]
        sums[:-window] += (reach * sums[window:]).masked_fill_(reach == 0.0, 0.0)
        factors[:-window] = reach * factors[window:]
        window *= 2
    return sums


def _same_shape(**tensors: Tensor) -> None:
    if len({tensor.shape for tensor in tensors.values()}) > 1:
        got = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
        raise ShapeError(f"shapes differ: {got}; all must be [T, N] (time, parallel envs)")
    if next(iter(tensors.values())).ndim == 0:
        raise ShapeError("got scalars; expected [T, N] (time, parallel envs)")
