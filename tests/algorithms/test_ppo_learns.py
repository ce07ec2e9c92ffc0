"""PPO finds what is best, and its values are right."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import Tensor

from tests.algorithms.doubles import act, make_ppo, rollout

POINT = spaces.Box(-np.inf, np.inf, (1,), np.float32)
SMALL = {"hidden_sizes": [16], "normalize_observation": False}


def test_time_limits_learn_the_right_value() -> None:
    # Reward 1 for ever is worth 1 / (1 - 0.9) = 10. With the time limit of 10 taken for an end, the ten states of an
    # episode would be worth 1 to (1 - 0.9^10) / (1 - 0.9) = 6.51.
    policy = make_ppo(
        POINT, spaces.Discrete(2), model=SMALL, algo={"gamma": 0.9, "update_epochs": 10}, lr=1e-2, batch_size=40
    )
    limit = torch.zeros(10, 4, dtype=torch.bool)
    limit[9] = True
    for _ in range(50):
        data = rollout(policy, 10, 4, reward=lambda action: torch.ones(4), truncated=limit)
        data["observation"].fill_(1.0)
        data["next_observation"].fill_(1.0)
        policy._update_dataset(data)
        policy._train()
    assert policy.network.value(torch.ones(1, 1)).item() == pytest.approx(10.0, abs=0.2)


@pytest.mark.parametrize(
    ("action", "model", "best"),
    [
        (spaces.Discrete(3, start=5), {}, 7.0),
        (spaces.MultiDiscrete([3, 3], start=[5, 5]), {}, 7.0),
        (spaces.Box(-2.0, 6.0, (2,), np.float32), {}, 3.0),
        (spaces.Box(-2.0, 6.0, (2,), np.float32), {"box_actions": "squash"}, 3.0),
        (spaces.Box(-np.inf, np.inf, (2,), np.float32), {}, 1.5),
    ],
)
def test_the_best_action_is_found(action: gym.Space[Any], model: dict[str, Any], best: float) -> None:
    def reward(chosen: Tensor) -> Tensor:
        return -(chosen.float().reshape(32, -1) - best).abs().mean(-1)

    policy = make_ppo(POINT, action, model=SMALL | model, algo={"gamma": 0.0}, lr=3e-2, batch_size=128)
    for seed in range(15):
        policy._update_dataset(rollout(policy, 8, 32, seed=seed, reward=reward))
        policy._train()
    found = act(policy, torch.zeros(1, 1), deterministic=True).action_for_env
    assert found.float().mean().item() == pytest.approx(best, abs=0.3)


def test_an_image_and_a_vector_are_understood_together() -> None:
    # Right is 1 where the picture is bright and the number positive, or neither: no part alone tells anything.
    space = spaces.Dict(image=spaces.Box(0, 255, (8, 8, 3), np.uint8), vec=POINT)
    model = {"hidden_sizes": [32], "share_encoder": True}
    policy = make_ppo(space, spaces.Discrete(2), model=model, algo={"gamma": 0.0}, lr=3e-3, batch_size=128)
    rng = torch.Generator().manual_seed(0)

    def draw(rows: int) -> tuple[dict[str, Tensor], Tensor]:
        bright, positive = (torch.randint(0, 2, (rows,), generator=rng) for _ in range(2))
        image = torch.randint(0, 100, (rows, 8, 8, 3), generator=rng) + 150 * bright[:, None, None, None]
        return {"image": image.to(torch.uint8), "vec": 2.0 * positive[:, None] - 1.0}, (bright == positive).long()

    for _ in range(30):
        seen, right = draw(256)
        answer = act(policy, seen)
        observation = TensorDict(seen, [256]).view(8, 32)
        no = torch.zeros(8, 32, dtype=torch.bool)
        columns = {
            "action": answer.action,
            "log_prob": answer.extras["log_prob"],
            "reward": (answer.action == right).float(),
        }
        data = {name: column.clone().view(8, 32) for name, column in columns.items()}
        ends = {"terminated": ~no, "truncated": no, "valid": ~no}
        both = {"observation": observation, "next_observation": observation}
        policy._update_dataset(TensorDict({**both, **data, **ends}, [8, 32]))
        policy._train()
    seen, right = draw(500)
    assert (act(policy, seen, deterministic=True).action == right).float().mean().item() > 0.95
