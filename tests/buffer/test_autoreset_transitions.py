"""The three autoreset modes of Gymnasium, through env worker and buffer: one set of transitions, equal advantages.

The env counts: its observation is (episode, step), an episode has 7 steps, odd ones are terminated and even ones
truncated, the reward of a step is 100 episode + step.
"""

from collections import defaultdict

import numpy as np
import pytest
import torch

from rlightning.buffer.data_buffer import DataBuffer
from rlightning.buffer.storage import RolloutBlock
from rlightning.config import EnvConfig
from rlightning.env import EnvGroup, EnvWorker
from rlightning.functional.advantages import gae
from rlightning.runtime import gather
from rlightning.simulators.gymnasium import GymnasiumEnv
from rlightning.types import BatchedData, PolicyResponse
from tests.env.doubles import EPISODE_LENGTH

N, STEPS, BLOCK = 3, 600, 100
KINDS = {
    "loop": EnvConfig(name="tests.env.doubles:CountingEnv", num_envs=N),
    **{
        f"{mode}{' dense' if dense else ''}": EnvConfig(
            name="tests.env.doubles:counting_vector", num_envs=N, env_kwargs={"mode": mode, "dense": dense}
        )
        for mode, dense in [("NextStep", False), ("SameStep", False), ("SameStep", True), ("Disabled", False)]
    },
}


def collect(make, kind, num_blocks=STEPS // BLOCK):
    """Step for 600 steps or fewer, a block of 100 at a time; gives the blocks and the counted episodes."""
    envs = EnvGroup([make(EnvWorker, GymnasiumEnv, KINDS[kind], 0, 7)])
    buffer = DataBuffer([make(RolloutBlock, BLOCK, [N])])
    response = BatchedData([0], [PolicyResponse(np.zeros(N, np.int64), version=1)])
    blocks, env_rets = [], envs.reset()
    for _ in range(num_blocks):
        added = []
        for _ in range(BLOCK):
            after = envs.step(response)
            added.append(buffer.add_batched_data_async(env_rets, response))
            env_rets = after
        gather(added)
        buffer.truncate_episodes(env_rets)
        blocks.append(gather(buffer.sample())[0].clone())
        buffer.clear()
    episodes = envs.pop_episodes()
    envs.close()
    return blocks, episodes


def transitions(blocks):
    """List (o, r, o', terminated, truncated) of each sub-env in the order of time."""
    rows = defaultdict(list)
    for block in blocks:
        for t in range(BLOCK):
            for i in range(N):
                row = block[t, i]
                if row["valid"]:
                    observation, following = (tuple(row[name].tolist()) for name in ("observation", "next_observation"))
                    ends = bool(row["terminated"]), bool(row["truncated"])
                    rows[i].append((observation, float(row["reward"]), following, *ends))
    return rows


def by_definition(count):
    """Write the first transitions down from the definition of the env."""
    every = [
        ((float(k), float(t)), 100.0 * k + t + 1, (float(k), t + 1.0), t == 6 and k % 2 == 1, t == 6 and k % 2 == 0)
        for k in range(1, count // EPISODE_LENGTH + 2)
        for t in range(EPISODE_LENGTH)
    ]
    return every[:count]


def advantages(blocks):
    """Advantages by (episode, step) of sub-env 0, all blocks joined to one; V(o) = episode / 8 - step / 4."""
    data = torch.cat(blocks)

    def value(observation):
        return observation[..., 0] / 8 - observation[..., 1] / 4

    cut = data["terminated"] | data["truncated"] | ~data["valid"]
    found = gae(
        data["reward"],
        value(data["observation"]),
        value(data["next_observation"]),
        data["terminated"],
        cut,
        gamma=0.5,
        lam=0.5,
    )
    rows = zip(data["observation"][:, 0].tolist(), data["valid"][:, 0].tolist(), found[:, 0].tolist(), strict=True)
    return {tuple(observation): advantage for observation, valid, advantage in rows if valid}


@pytest.fixture(scope="module")
def here():
    return {kind: collect(lambda cls, *args: cls(*args), kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_transitions_are_those_of_the_definition(here, kind):
    blocks, episodes = here[kind]
    found = transitions(blocks)
    # With next-step autoreset every eighth step is spent: of 600 steps, 75 resets; the others step 600 times.
    wanted = STEPS - STEPS // (EPISODE_LENGTH + 1) if kind == "NextStep" else STEPS
    for i in range(N):
        assert found[i] == by_definition(wanted)
    finished = [episode for episode in episodes if episode.sub_env == 0]
    assert {episode.length for episode in finished} == {EPISODE_LENGTH}
    assert len(finished) == wanted // EPISODE_LENGTH
    assert [episode.truncated for episode in finished[:3]] == [False, True, False]


def test_rows_are_invalid_exactly_where_an_autoreset_spent_a_step(here):
    for kind, (blocks, _) in here.items():
        valid = torch.cat(blocks)["valid"]
        spent = torch.zeros(STEPS, dtype=torch.bool)
        if kind == "NextStep":
            spent[EPISODE_LENGTH :: EPISODE_LENGTH + 1] = True
        assert torch.equal(~valid, spent[:, None].expand(STEPS, N)), kind


def test_advantages_are_equal_in_all_modes(here):
    # Compare all but the last episodes: where the data end inside an episode, they end elsewhere in each mode.
    full = {kind: advantages(blocks) for kind, (blocks, _) in here.items()}
    common = [key for key in full["NextStep"] if key[0] <= 74]
    assert len(common) == 74 * EPISODE_LENGTH
    for kind, found in full.items():
        assert [found[key] for key in common] == pytest.approx([full["loop"][key] for key in common], rel=1e-6), kind
    # By hand, gamma = lambda = 0.5. Episode 1 is terminated: the last step has A = 107 - V(1, 6) = 107 + 1.375 and the
    # one before it 106 + 0.5 (-1.375) + 1.125 + 0.25 x 108.375. Episode 2 is truncated at (2, 7), V = -1.5: its last
    # step has A = 207 + 0.5 (-1.5) + 1.25.
    assert full["loop"][1.0, 6.0] == pytest.approx(108.375)
    assert full["loop"][1.0, 5.0] == pytest.approx(106 - 0.6875 + 1.125 + 0.25 * 108.375)
    assert full["loop"][2.0, 6.0] == pytest.approx(207.5)


def test_the_same_blocks_come_from_workers_elsewhere(runtime, here):
    blocks, _ = collect(runtime.make, "NextStep", num_blocks=1)
    assert (blocks[0] == here["NextStep"][0][0]).all()
