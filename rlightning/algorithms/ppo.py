"""Proximal policy optimization with a clipped surrogate (Schulman et al. 2017).

What is done beyond the paper follows Engstrom et al. (2020) and Andrychowicz et al. (2021): orthogonal initial weights,
normalised observations, rewards scaled by the spread of the return, advantages normalised per minibatch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from rlightning.algorithms.global_batch import GlobalBatch, explained_variance, mean_over, merged_moments
from rlightning.algorithms.optimizers import clip_grad_norm, make_optimizer
from rlightning.config import OptimConfig, Section
from rlightning.distributed import Group
from rlightning.errors import NotEnoughData, ProtocolError, RLightningError, ShapeError, UnsupportedSpace
from rlightning.functional import losses
from rlightning.functional.advantages import gae
from rlightning.functional.schedules import anneal
from rlightning.models.action_heads import BoxHead
from rlightning.models.actor_critic import ActorCritic, ActorCriticOptions, Prepared
from rlightning.models.normalizer import Moments, RewardScaler
from rlightning.policy.base_policy import BasePolicy
from rlightning.types import EnvMeta, EnvRet, PolicyResponse

if TYPE_CHECKING:
    from tensordict import TensorDictBase

_FORWARD_ROWS = 8192
"""Rows of one forward pass outside of training, so that images of a whole rollout are not floats at once."""


class PPOOptions(Section):
    """``policy.algo_cfg`` of PPO."""

    gamma: float = Field(0.99, ge=0, le=1)
    """Discount per step."""
    lam: float = Field(0.95, ge=0, le=1)
    """Lambda of the generalised advantage estimate."""
    clip_range: float = Field(0.2, gt=0)
    """How far the probability ratio may move from 1 with profit."""
    clip_schedule: Literal["constant", "linear"] = "constant"
    """"linear" lets the clip range shrink to 0 over ``train.max_epochs``."""
    value_clip: float | None = Field(None, gt=0)
    """Largest useful change of a value per update, in units of the (scaled) return; null means any."""
    entropy_coef: float = Field(0.0, ge=0)
    """Weight of the entropy bonus."""
    value_coef: float = Field(0.5, ge=0)
    """Weight of the mean squared error of the values."""
    update_epochs: int = Field(4, ge=1)
    """Passes over the rollout per update."""
    target_kl: float | None = Field(None, gt=0)
    """An update stops as soon as a minibatch shows an approximate KL above 1.5 times this, before its gradient step;
    null means never."""
    normalize_advantage: bool = True
    """Normalise the advantages of each minibatch."""
    scale_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""


@dataclass(slots=True)
class _Rows:
    """Valid steps of one rollout, in any order: B rows each."""

    observation: Prepared
    action: Tensor
    log_prob: Tensor
    advantage: Tensor
    return_: Tensor
    value: Tensor

    def __len__(self) -> int:
        return len(self.advantage)

    def _columns(self) -> list[Any]:
        return [getattr(self, column.name) for column in fields(self)]

    def take(self, index: Tensor) -> _Rows:
        return _Rows(*(_take(column, index) for column in self._columns()))

    def split(self, counts: list[int]) -> Iterator[_Rows]:
        """Cut into views of the given numbers of rows."""
        parts = [_cut(column, lambda part: torch.split(part, counts)) for column in self._columns()]
        return (_Rows(*part) for part in zip(*parts, strict=True))


def _take(column: Prepared, index: Tensor) -> Any:
    """Select rows of a column, or of each part of it."""
    if isinstance(column, dict):
        return {name: part.index_select(0, index) for name, part in column.items()}
    return column.index_select(0, index)


def _cut(column: Prepared, cut: Callable[[Tensor], Sequence[Tensor]]) -> Iterable[Prepared]:
    """Cut a column, or each part of it alike."""
    if not isinstance(column, dict):
        return cut(column)
    pieces = zip(*(cut(part) for part in column.values()), strict=True)
    return (dict(zip(column, each, strict=True)) for each in pieces)


@dataclass(slots=True)
class _Dataset:
    """What ``update_dataset`` leaves for ``train``.

    Attributes:
        rows: The own rows.
        moments: Those of the observations, not yet merged into the statistics.
        batch: Where the rows are among those of all train policies.
    """

    rows: _Rows
    moments: Moments | None
    batch: GlobalBatch


@dataclass(slots=True)
class _Trace:
    """What the minibatches of one update showed; numbers stay on the device until the update is over.

    Attributes:
        log_ratios: Of the rows of each minibatch, [B] each.
        terms: Policy loss, value loss and entropy of each minibatch, one after the other.
        grad_norms: One per gradient step.
        shares: Part of the rows of each minibatch that is this train policy's.
    """

    log_ratios: list[Tensor] = field(default_factory=list)
    terms: list[Tensor] = field(default_factory=list)
    grad_norms: list[Tensor] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)

    def means(self, clip_range: float, peers: Group) -> dict[str, float]:
        """Return metrics of the update as a whole, over the rows of all train policies."""
        log_ratio = torch.cat(self.log_ratios)
        terms = torch.stack(self.terms).view(-1, 3)
        terms = peers.all_reduce_(terms * terms.new_tensor(self.shares)[:, None])
        kl = mean_over(torch.expm1(log_ratio) - log_ratio, peers)
        clip_fraction = mean_over(((log_ratio.exp() - 1.0).abs() > clip_range).to(log_ratio.dtype), peers)
        policy_loss, value_loss, entropy = terms.mean(0).tolist()
        return {
            "train/policy_loss": policy_loss,
            "train/value_loss": value_loss,
            "train/entropy": entropy,
            "train/approx_kl": kl.item(),
            "train/clip_fraction": clip_fraction.item(),
            "train/grad_norm": torch.stack(self.grad_norms).mean().item() if self.grad_norms else 0.0,
            "train/gradient_steps": float(len(self.grad_norms)),
        }


class PPO(BasePolicy):
    """PPO for one observation per step: vectors, images, texts, or dicts of them; continuous and discrete actions.

    The buffer keeps the action of the distribution, in the distribution's unit (see ``BoxHead``); the env receives the
    clipped or squashed one in its own unit. Log-probs are in the distribution's unit.
    """

    ModelOptions: ClassVar[type[Section] | None] = ActorCriticOptions
    AlgoOptions: ClassVar[type[Section] | None] = PPOOptions

    model_options: ActorCriticOptions
    algo_options: PPOOptions
    dataset: _Dataset | None
    network: ActorCritic
    reward_scaler: RewardScaler
    optimizer: torch.optim.Optimizer

    def construct_network(self, env_meta: EnvMeta | None, *args: Any, **kwargs: Any) -> None:
        if env_meta is None:
            raise ProtocolError("PPO builds its networks for an env: give init_train and init_eval its env_meta")
        try:
            self.network = ActorCritic(env_meta.observation_space, env_meta.action_space, self.model_options)
        except UnsupportedSpace as error:
            raise UnsupportedSpace(f"PPO cannot serve {env_meta.name}: {error}") from None
        self.reward_scaler = RewardScaler(self.algo_options.gamma)

    def setup_optimizer(self, optim_cfg: OptimConfig) -> None:
        self.optimizer = make_optimizer(self.network.parameters(), optim_cfg, self.train_config.lr)
        self._compiled_loss = self.compiled(type(self)._loss_of_rows)

    def rollout_step(self, env_ret: EnvRet, *, deterministic: bool = False, **kwargs: Any) -> PolicyResponse:
        network = self.network
        distribution = network.distribution(network.prepare(env_ret.observation))
        if deterministic:
            action = distribution.mode()
            log_prob = distribution.log_prob(action)
        else:
            action, log_prob = distribution.sample_with_log_prob(self.generator)
        return PolicyResponse(action, network.head.to_env(action), {"log_prob": log_prob})

    @torch.no_grad()
    def update_dataset(self, data: TensorDictBase) -> None:
        """Turn a rollout into rows with advantages and returns.

        Args:
            data: [T, N] with observation, next_observation, action, log_prob, reward, terminated, truncated, valid. One
                of several train policies may have none.

        Raises:
            ShapeError: If the data are not [T, N].
            NotEnoughData: If no row is valid, on no train policy.
        """
        if data.ndim != 2:
            raise ShapeError(f"got a batch of shape {list(data.batch_size)}; expected [T, N] (time, parallel envs)")
        options, network = self.algo_options, self.network
        terminated, valid = data["terminated"], data["valid"]
        cut = terminated | data["truncated"] | ~valid
        cut[:-1] |= ~valid[1:]
        reward = data["reward"].masked_fill(~valid, 0.0)
        if options.scale_reward:
            reward = self.reward_scaler(reward, cut, valid, lambda own: merged_moments(own, self.peers))

        flat = network.flat(data["observation"].flatten(0, 1))
        observation = network.normalized(flat)
        value = self._values(observation).view(data.batch_size)
        next_value = self._next_values(data, value, terminated | ~valid, cut)
        advantage = gae(reward, value, next_value, terminated, cut, gamma=options.gamma, lam=options.lam)

        columns = (data["action"], data["log_prob"], advantage, advantage + value, value)
        rows = _Rows(observation, *(column.flatten(0, 1) for column in columns))
        if not valid.all():
            index = valid.flatten().nonzero().squeeze(-1)
            rows, flat = rows.take(index), _take(flat, index)
        steps, envs = valid.shape
        times = torch.arange(steps, dtype=torch.int32, device=valid.device).repeat_interleave(envs)
        batch = GlobalBatch.of(times[valid.flatten()], self.peers)
        if len(batch) == 0:
            raise NotEnoughData(
                f"none of the {valid.numel()} rows of the rollout is valid, since all envs were being reset: raise "
                f"train.max_rollout_steps or env.num_envs"
            )
        self.dataset = _Dataset(rows, network.moments(flat), batch)

    def _values(self, prepared: Prepared) -> Tensor:
        pieces = _cut(prepared, lambda part: torch.split(part, _FORWARD_ROWS))
        return torch.cat([self.network.value(rows) for rows in pieces])

    def _next_values(self, data: TensorDictBase, value: Tensor, worthless: Tensor, cut: Tensor) -> Tensor:
        """V(s_{t+1}), [T, N]: the value of the next row where the episode goes on there, else a forward pass."""
        next_value = torch.cat([value[1:], torch.zeros_like(value[:1])]).masked_fill_(cut, 0.0)
        asked = cut.clone()
        asked[-1:] = True
        index = (asked & ~worthless).flatten().nonzero().squeeze(-1)
        if len(index):
            observation = data["next_observation"].flatten(0, 1)[index]
            next_value.view(-1)[index] = self._values(self.network.prepare(observation))
        return next_value

    def train(self, *args: Any, **kwargs: Any) -> dict[str, float]:  # type: ignore[override]
        """Update policy and values on the rollout, then the statistics of the observations.

        Returns:
            Metrics: means over the gradient steps, and what the update as a whole did.

        Raises:
            ProtocolError: If there is no rollout.
            RLightningError: If the update diverged.
        """
        if self.dataset is None:
            raise ProtocolError("call update_dataset before train")
        rows = self.dataset.rows
        progress = self.epoch / self.train_config.max_epochs
        lr = self.train_config.lr * anneal(self.config.optim_cfg.schedule, progress)
        clip_range = self.algo_options.clip_range * anneal(self.algo_options.clip_schedule, progress)
        for group in self.optimizer.param_groups:
            group["lr"] = lr

        trace = self._optimize(self.dataset, clip_range)

        metrics = trace.means(clip_range, self.peers) | {
            "train/explained_variance": explained_variance(rows.value, rows.return_, self.peers),
            "train/lr": lr,
            "train/rows": float(len(self.dataset.batch)),
            "train/dropped_rows": 0.0,
            "train/padded_rows": 0.0,
        }
        if isinstance(self.network.head, BoxHead):
            metrics["train/std"] = self.network.head.log_std.detach().exp().mean().item()
        self._check_finite(metrics)
        # Only now: while the update lasted, observations had to look as they did to the policy that acted.
        if self.network.normalizer is not None and self.dataset.moments is not None:
            self.network.normalizer.merge(merged_moments(self.dataset.moments, self.peers))
            self.dataset.moments = None
        return metrics

    def _optimize(self, dataset: _Dataset, clip_range: float) -> _Trace:
        """Make the gradient steps of one update."""
        target_kl = self.algo_options.target_kl
        max_grad_norm = self.config.optim_cfg.max_grad_norm or math.inf
        parameters = list(self.network.parameters())
        trace = _Trace()
        for minibatch, size in self._minibatches(dataset):
            loss, log_ratio, terms = self._loss(minibatch, clip_range)
            trace.log_ratios.append(log_ratio)
            trace.terms += terms
            trace.shares.append(len(minibatch) / size)
            # Asking for the value waits for the device, so only where it is needed.
            if target_kl is not None:
                # Over the rows of all train policies, so that all stop together.
                kl = mean_over(torch.expm1(log_ratio) - log_ratio, self.peers).item()
                if kl > 1.5 * target_kl:
                    break
            self.optimizer.zero_grad()
            self.average_backward(loss, len(minibatch))
            trace.grad_norms.append(clip_grad_norm(parameters, max_grad_norm))
            self.optimizer.step()
        return trace

    def _minibatches(self, dataset: _Dataset) -> Iterator[tuple[_Rows, int]]:
        """Yield the own rows of each minibatch, and how many rows all train policies have in it."""
        for _ in range(self.algo_options.update_epochs):
            device = dataset.rows.advantage.device
            order = torch.randperm(len(dataset.batch), generator=self.shared_generator, device=device)
            slices = dataset.batch.cut(order, self.train_config.batch_size)
            rows = dataset.rows.take(slices.index)
            minibatches = list(rows.split(slices.counts))
            if self.algo_options.normalize_advantage:
                advantages = slices.normalize(rows.advantage, self.peers)
                minibatches = [replace(one, advantage=own) for one, own in zip(minibatches, advantages, strict=True)]
            yield from zip(minibatches, slices.sizes, strict=True)

    def _loss(self, rows: _Rows, clip_range: float) -> tuple[Tensor | None, Tensor, list[Tensor]]:
        """Loss of a minibatch, None without rows; log-ratio of its rows, [B]; policy loss, value loss and entropy."""
        if len(rows) == 0:
            nothing = rows.value.sum()
            return None, rows.log_prob, [nothing] * 3
        loss, log_ratio, terms = self._compiled_loss(self, rows, clip_range)
        return loss, log_ratio, terms

    def _loss_of_rows(self, rows: _Rows, clip_range: float) -> tuple[Tensor, Tensor, list[Tensor]]:
        options = self.algo_options
        distribution, value = self.network(rows.observation)
        log_ratio = distribution.log_prob(rows.action) - rows.log_prob
        policy_loss = losses.clipped_policy_loss(log_ratio.exp(), rows.advantage, clip_range)
        value_loss = losses.value_loss(value, rows.return_, rows.value, options.value_clip)
        loss = policy_loss + options.value_coef * value_loss
        if options.entropy_coef > 0:
            entropy = distribution.entropy().mean()
            loss = loss - options.entropy_coef * entropy
        else:  # it is just a metric
            with torch.no_grad():
                entropy = distribution.entropy().mean()
        return loss, log_ratio.detach(), [policy_loss.detach(), value_loss.detach(), entropy.detach()]

    def _check_finite(self, metrics: dict[str, float]) -> None:
        lost = [name for name, value in metrics.items() if not math.isfinite(value)]
        if lost:
            raise RLightningError(
                f"PPO diverged in epoch {self.epoch}: {', '.join(lost)} not finite; look for rewards or observations "
                f"that are not finite, lower train.lr ({self.train_config.lr}) or set policy.algo_cfg.target_kl"
            )

    def extra_training_state(self) -> dict[str, Any]:
        return {"reward_carry": self.reward_scaler.carry}

    def envs_changed(self) -> None:
        self.reward_scaler.carry = None

    def load_extra_training_state(self, state: dict[str, Any]) -> None:
        carry = state["reward_carry"]
        self.reward_scaler.carry = None if carry is None else carry.to(self.device)
