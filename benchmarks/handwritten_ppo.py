"""PPO as one would write it by hand for one machine: the yardstick for the training loop of the package.

Same algorithm and settings as the package's presets (Schulman et al. 2017, with generalised advantage estimates of
Schulman et al. 2016), nothing configurable beyond them, no layers: numpy buffers that torch shares, values computed
once per rollout in one batch, a time limit bootstrapped from the value of the final observation.

    python benchmarks/handwritten_ppo.py --env-id HalfCheetah-v5 --normalise 1
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from report import IterationClock, print_run
from settings import Settings
from torch import Tensor, nn

Step = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[int, np.ndarray]]
"""Observation, reward, terminated, truncated, and the final observations by row where they are not the observation."""


class EnvLoop:
    """N envs one after the other; an ended env is reset within the step that ended it."""

    spends_a_step_on_reset = False

    def __init__(self, env_id: str, num_envs: int) -> None:
        self._envs = [gym.make(env_id) for _ in range(num_envs)]
        self.observation_space, self.action_space = self._envs[0].observation_space, self._envs[0].action_space
        self._reward = np.zeros(num_envs, np.float32)
        self._terminated, self._truncated = np.zeros(num_envs, np.bool_), np.zeros(num_envs, np.bool_)

    def reset(self, seed: int) -> np.ndarray:
        """Reset all envs, each with a seed of its own, [N, ...]."""
        return np.stack([env.reset(seed=seed + row)[0] for row, env in enumerate(self._envs)])

    def step(self, actions: np.ndarray) -> Step:
        """Step all envs."""
        observations, finals = [], {}
        for row, (env, action) in enumerate(zip(self._envs, actions, strict=True)):
            observation, self._reward[row], terminated, truncated, _ = env.step(action)
            self._terminated[row], self._truncated[row] = terminated, truncated
            if terminated or truncated:
                finals[row] = observation
                observation, _ = env.reset()
            observations.append(observation)
        return np.stack(observations), self._reward, self._terminated, self._truncated, finals


class NativeEnvs:
    """Gymnasium's own vector implementation; an ended env spends its next step on resetting."""

    spends_a_step_on_reset = True

    def __init__(self, env_id: str, num_envs: int) -> None:
        self._envs = gym.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point")
        self.observation_space = self._envs.single_observation_space
        self.action_space = self._envs.single_action_space

    def reset(self, seed: int) -> np.ndarray:
        """Reset all envs, [N, ...]."""
        return np.asarray(self._envs.reset(seed=seed)[0])

    def step(self, actions: np.ndarray) -> Step:
        """Step all envs."""
        observation, reward, terminated, truncated, _ = self._envs.step(actions)
        return observation, reward, terminated, truncated, {}


class ActorCritic(nn.Module):
    """Two separate networks, and the statistics that normalise their input."""

    def __init__(self, observation_size: int, action_space: gym.Space[Any]) -> None:
        super().__init__()
        self.discrete = isinstance(action_space, gym.spaces.Discrete)
        actions = int(action_space.n) if self.discrete else math.prod(action_space.shape)  # type: ignore[attr-defined, arg-type]
        self.actor, self.critic = mlp(observation_size, actions, 0.01), mlp(observation_size, 1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(actions))

    def act(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Sample actions and their log-probabilities for one step."""
        output = self.actor(observation)
        if self.discrete:
            log_probs = output.log_softmax(-1)
            # The winner of a race of exponential clocks with these rates: a third of the time of multinomial.
            action = (log_probs.exp() / torch.empty_like(log_probs).exponential_()).argmax(-1, keepdim=True)
            return action.squeeze(-1), log_probs.gather(-1, action).squeeze(-1)
        noise = torch.randn_like(output)
        return output + self.log_std.exp() * noise, self._gaussian_log_prob(noise)

    def log_prob(self, observation: Tensor, action: Tensor) -> Tensor:
        """Log-probability of actions, [B]."""
        output = self.actor(observation)
        if self.discrete:
            chosen: Tensor = output.log_softmax(-1).gather(-1, action.unsqueeze(-1))
            return chosen.squeeze(-1)
        return self._gaussian_log_prob((action - output) * (-self.log_std).exp())

    def _gaussian_log_prob(self, noise: Tensor) -> Tensor:
        constant = 0.5 * math.log(2 * math.pi) * noise.shape[-1]
        return -0.5 * noise.square().sum(-1) - (self.log_std.sum() + constant)


def mlp(inputs: int, outputs: int, output_gain: float) -> nn.Sequential:
    """Two hidden layers of 64 tanh units, initialised orthogonally."""
    layers = [nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
    for layer, gain in zip(layers[::2], (math.sqrt(2), math.sqrt(2), output_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)  # type: ignore[arg-type]
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return nn.Sequential(*layers)


class RunningMoments:
    """Mean and variance of a stream of batches (Chan, Golub and LeVeque 1979)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean, self.variance, self._count = np.zeros(shape), np.ones(shape), 0

    def update(self, batch: np.ndarray) -> None:
        """Update the statistics from a batch, [B, ...]."""
        count, mean, variance = len(batch), batch.mean(0, dtype=np.float64), batch.var(0, dtype=np.float64)
        total, shift = self._count + count, mean - self.mean
        squares = self.variance * self._count + variance * count + shift**2 * self._count * count / total
        self.mean, self.variance, self._count = self.mean + shift * count / total, squares / total, total

    def normalise(self, batch: Tensor) -> Tensor:
        """Centre and scale a batch, cut off at 10 deviations."""
        mean = torch.from_numpy(self.mean.astype(np.float32))
        scale = torch.from_numpy(np.sqrt(self.variance + 1e-8).astype(np.float32))
        return ((batch - mean) / scale).clamp_(-10, 10)


class Rollout:
    """T steps of N envs in arrays that torch shares."""

    def __init__(self, settings: Settings, observation_shape: tuple[int, ...], action_space: gym.Space[Any]) -> None:
        rows = (settings.rollout_steps, settings.num_envs)
        self.observation = np.zeros((rows[0] + 1, rows[1], *observation_shape), np.float32)
        discrete = isinstance(action_space, gym.spaces.Discrete)
        self.action = np.zeros((*rows, *(action_space.shape or ())), np.int64 if discrete else np.float32)
        self.log_prob, self.reward = np.zeros(rows, np.float32), np.zeros(rows, np.float32)
        self.terminated, self.truncated = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
        self.valid = np.ones(rows, np.bool_)
        self.finals: list[tuple[int, int, np.ndarray]] = []


class Trainer:
    """The loop: collect, then learn."""

    def __init__(self, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        self.settings = settings
        native = gym.spec(settings.env_id).vector_entry_point is not None
        self.envs = (NativeEnvs if native else EnvLoop)(settings.env_id, settings.num_envs)
        observations, actions = self.envs.observation_space, self.envs.action_space
        self.network = ActorCritic(math.prod(observations.shape or ()), actions)
        self.optimizer = torch.optim.Adam(self.network.parameters(), settings.learning_rate, eps=1e-5, fused=True)
        self.rollout = Rollout(settings, observations.shape or (), actions)
        self.rollout.observation[-1] = self.envs.reset(settings.seed)
        self.bounds = None if self.network.discrete else (actions.low, actions.high)  # type: ignore[attr-defined]
        self.observation_moments = RunningMoments(observations.shape or ())
        self.return_moments = RunningMoments(())
        self.ended = np.zeros(settings.num_envs, np.bool_)
        self.running_return, self.discounted_return = np.zeros(settings.num_envs), np.zeros(settings.num_envs)
        self.returns: deque[float] = deque(maxlen=100)

    @torch.inference_mode()
    def collect(self) -> None:
        """Fill the rollout."""
        data = self.rollout
        data.observation[0] = data.observation[-1]
        data.finals.clear()
        observations = torch.from_numpy(data.observation)
        for t in range(self.settings.rollout_steps):
            action, log_prob = self.network.act(self._normalised(observations[t]))
            data.action[t], data.log_prob[t] = action.numpy(), log_prob.numpy()
            env_action = data.action[t] if self.bounds is None else data.action[t].clip(*self.bounds)
            observation, reward, terminated, truncated, finals = self.envs.step(env_action)
            data.observation[t + 1], data.reward[t] = observation, reward
            data.terminated[t], data.truncated[t] = terminated, truncated
            data.finals.extend((t, row, final) for row, final in finals.items())
            self._follow_episodes(t)

    def _follow_episodes(self, t: int) -> None:
        data = self.rollout
        if self.envs.spends_a_step_on_reset:
            data.valid[t] = ~self.ended
        self.running_return += data.reward[t]
        self.ended = data.terminated[t] | data.truncated[t]
        if self.ended.any():
            self.returns.extend(self.running_return[self.ended])
            self.running_return[self.ended] = 0.0

    def learn(self) -> None:
        """Make the gradient steps of one iteration."""
        settings, data = self.settings, self.rollout
        advantage, target = self._advantages()
        rows = torch.from_numpy(np.flatnonzero(data.valid))
        observation = self._normalised(torch.from_numpy(data.observation[:-1])).flatten(0, 1)
        action, old_log_prob = torch.from_numpy(data.action).flatten(0, 1), torch.from_numpy(data.log_prob).flatten()
        columns = (observation, action, old_log_prob, advantage.flatten(), target.flatten())
        for _ in range(settings.epochs):
            order = rows[torch.randperm(len(rows))]
            # One gather per pass; the minibatches are views.
            shuffled = [column[order].tensor_split(settings.minibatches) for column in columns]
            for minibatch in zip(*shuffled, strict=True):
                self._gradient_step(*minibatch)
        if settings.normalise:
            # At the end, so that the first minibatch sees the statistics that acted and its ratio is 1.
            self.observation_moments.update(data.observation[:-1][data.valid])

    def _gradient_step(
        self, observation: Tensor, action: Tensor, old_log_prob: Tensor, advantage: Tensor, target: Tensor
    ) -> None:
        clip = self.settings.clip
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = (self.network.log_prob(observation, action) - old_log_prob).exp()
        surrogate = torch.min(advantage * ratio, advantage * ratio.clamp(1 - clip, 1 + clip)).mean()
        value_loss = nn.functional.mse_loss(self.network.critic(observation).squeeze(-1), target)
        loss = self.settings.value_coef * value_loss - surrogate
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.max_grad_norm)
        self.optimizer.step()

    @torch.no_grad()
    def _advantages(self) -> tuple[Tensor, Tensor]:
        """Advantages and value targets, [T, N] each."""
        data, gamma, decay = self.rollout, self.settings.gamma, self.settings.gamma * self.settings.gae_lambda
        values = self._values(torch.from_numpy(data.observation))
        next_values = values[1:].copy()
        if data.finals:
            steps, rows, finals = zip(*data.finals, strict=True)
            next_values[steps, rows] = self._values(torch.from_numpy(np.stack(finals).astype(np.float32)))
        next_values[data.terminated] = 0.0
        going_on = (~(data.terminated | data.truncated) & data.valid).astype(np.float32)
        delta = self._scaled_rewards() + gamma * next_values - values[:-1]
        advantages, following = np.empty_like(delta), np.zeros_like(delta[0])
        for t in reversed(range(len(delta))):
            # A_t = delta_t + gamma lambda A_{t+1}, which stops where the episode does.
            advantages[t] = following = delta[t] + decay * going_on[t] * following
        return torch.from_numpy(advantages), torch.from_numpy(advantages + values[:-1])

    def _values(self, observation: Tensor) -> np.ndarray:
        values: np.ndarray = self.network.critic(self._normalised(observation)).squeeze(-1).numpy()
        return values

    def _scaled_rewards(self) -> np.ndarray:
        """Rewards divided by the deviation of the running discounted return."""
        data = self.rollout
        if not self.settings.normalise:
            return data.reward
        history = np.empty(data.reward.shape)
        ended = data.terminated | data.truncated
        for t, reward in enumerate(data.reward):
            history[t] = self.discounted_return = self.settings.gamma * self.discounted_return + reward
            self.discounted_return = np.where(ended[t], 0.0, self.discounted_return)
        self.return_moments.update(history[data.valid])
        scale = np.float32(1 / np.sqrt(self.return_moments.variance + 1e-8))
        return (data.reward * scale).clip(-10, 10)

    def _normalised(self, observation: Tensor) -> Tensor:
        return self.observation_moments.normalise(observation) if self.settings.normalise else observation


def main() -> None:
    settings = Settings.from_command_line(__doc__)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    trainer = Trainer(settings)
    clock = IterationClock()
    for _ in range(settings.iterations):
        start = time.perf_counter()
        trainer.collect()
        collected = time.perf_counter()
        trainer.learn()
        clock.tick(int(trainer.rollout.valid.sum()), collected - start, trainer.returns)
    mean_return = round(float(np.mean(trainer.returns)), 2) if trainer.returns else None
    print_run("handwritten", settings, clock, ["torch", "numpy", "gymnasium"], mean_return=mean_return)


if __name__ == "__main__":
    main()
