"""The settings that all arms of the PPO benchmark share, and their command line."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, fields, replace


@dataclass(frozen=True)
class Settings:
    """One PPO run; defaults are the setting that the project's speed budget is stated for."""

    env_id: str = "CartPole-v1"
    """Gymnasium id."""
    seed: int = 0
    """Of envs, weights and sampling."""
    iterations: int = 40
    """Rollouts, each followed by an update."""
    warmup: int = 3
    """Iterations at the start that are not part of the measured time; what they took is printed."""
    num_envs: int = 8
    """Sub-envs (N)."""
    rollout_steps: int = 128
    """Steps of each sub-env per iteration (T)."""
    epochs: int = 4
    """Passes over the data per update."""
    minibatches: int = 4
    """Gradient steps per pass."""
    learning_rate: float = 3e-4
    """Of Adam, constant."""
    gamma: float = 0.99
    """Discount."""
    gae_lambda: float = 0.95
    """Decay of the advantage estimates."""
    clip: float = 0.2
    """Range of the probability ratio."""
    value_coef: float = 0.5
    """Weight of the mean squared value error."""
    max_grad_norm: float = 0.5
    """Global L2 norm that gradients are scaled down to."""
    normalise: int = 0
    """1: normalise observations and scale rewards by the deviation of the discounted return."""
    threads: int = 1
    """Threads of torch; 0 leaves torch's own choice."""
    workers: int = 1
    """Processes that collect, where there are several; each has ``num_envs / workers`` sub-envs."""
    collect: str = "local"
    """How this package collects: "local", in one process; on Ray by "steps", or by "fragments"."""

    backend: str = ""
    """Simulator backend of this package; empty means that of the preset."""
    hidden: int = 64
    """Width of both hidden layers; the peers have 64."""
    learn_threads: int = 0
    """Threads of torch while this package learns; 0 means ``threads``."""
    compile: int = 0
    """1: this package has torch compile the loss."""
    curve_points: int = 0
    """Points of the learning curve that are printed with the result."""

    @property
    def batch_size(self) -> int:
        """Transitions per gradient step."""
        return self.num_envs * self.rollout_steps // self.minibatches

    def lasting(self, steps: int) -> Settings:
        """Return the same settings with the iterations that make at least so many env steps."""
        return replace(self, iterations=-(-steps // (self.num_envs * self.rollout_steps)))

    @classmethod
    def from_command_line(cls, description: str | None) -> Settings:
        """Parse one option per field: ``--env-id``, ``--seed`` and so on."""
        parser = argparse.ArgumentParser(description=description)
        for field in fields(cls):
            option = "--" + field.name.replace("_", "-")
            parser.add_argument(option, type=type(field.default), default=field.default)
        return cls(**vars(parser.parse_args()))

    def to_command_line(self) -> list[str]:
        """Return the arguments that ``from_command_line`` turns into these settings."""
        return [part for name, value in asdict(self).items() for part in ("--" + name.replace("_", "-"), str(value))]
