"""Three ways to start the next episode, one set of transitions."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from rlightning.config import EnvConfig
from rlightning.env import EnvGroup, EnvWorker
from rlightning.functional.advantages import gae
from rlightning.runtime import gather
from rlightning.simulators.gymnasium import GymnasiumEnv
from rlightning.types import BatchedData, PolicyResponse
from tests.env.doubles import EPISODE_LENGTH

N, STEPS = 3, 600

KINDS = {
    "own loop": EnvConfig(name="tests.env.doubles:CountingEnv", num_envs=N),
    **{
        f"{mode}{' dense' if dense else ''}{'' if copy else ' shared'}": EnvConfig(
            name="tests.env.doubles:counting_vector",
            num_envs=N,
            env_kwargs={"mode": mode, "dense": dense, "copy": copy},
        )
        for mode, dense, copy in [
            ("NextStep", False, True),
            ("NextStep", False, False),
            ("SameStep", False, True),
            ("SameStep", True, True),
            ("SameStep", False, False),
            ("Disabled", False, True),
            ("Disabled", False, False),
        ]
    },
}


def collect(make, configs, steps=STEPS):
    """Step one worker per config; give the results of each, and the episodes that it counted."""
    group = EnvGroup([make(EnvWorker, GymnasiumEnv, config, index, 7) for index, config in enumerate(configs)])
    responses = BatchedData(group.env_ids, [PolicyResponse(np.zeros(N, np.int64)) for _ in configs])
    rets = [gather(group.reset().items), *(gather(group.step(responses).items) for _ in range(steps))]
    episodes = group.pop_episodes()
    group.close()
    return [([row[i] for row in rets], [e for e in episodes if e.worker == i]) for i in range(len(configs))]


def collect_here(kind, steps=STEPS):
    """The same for one worker in this process."""
    return collect(lambda cls, *args: cls(*args), [KINDS[kind]], steps)[0]


def transitions(rets):
    """Read (o, r, o', terminated, truncated) of each row, the plain way."""
    rows = defaultdict(list)
    for before, after in pairwise(rets):
        for i in range(len(after.reward)):
            if after.is_reset[i]:
                continue
            is_over = after.terminated[i] or after.truncated[i]
            following = after.final_observation[i] if is_over else after.observation[i]
            pair = tuple(before.observation[i].tolist()), tuple(following.tolist())
            rows[i].append((*pair, float(after.reward[i]), bool(after.terminated[i]), bool(after.truncated[i])))
    return rows


def expected(episodes):
    """Write the transitions down from the definition of the env."""
    return [
        ((k, t), (k, t + 1), 100.0 * k + t + 1, t == 6 and k % 2 == 1, t == 6 and k % 2 == 0)
        for k in range(1, episodes + 1)
        for t in range(EPISODE_LENGTH)
    ]


def advantages(rows):
    """GAE of one row, with V(episode, step) = episode + step / 10."""
    value = lambda observation: observation[0] + observation[1] / 10  # noqa: E731
    columns = [
        [r for _, _, r, _, _ in rows],
        [value(o) for o, *_ in rows],
        [value(following) for _, following, *_ in rows],
    ]
    rewards, values, next_values = (torch.tensor(column, dtype=torch.float64)[:, None] for column in columns)
    terminated = torch.tensor([row[3] for row in rows])[:, None]
    cut = torch.tensor([row[3] or row[4] for row in rows])[:, None]
    return gae(rewards, values, next_values, terminated, cut, gamma=0.9, lam=0.8)


def check_transitions(kind, rets, episodes):
    found = transitions(rets)
    # A row that resets in the next step spends every 8th of 600 steps on it: 75 episodes. The others play 85 whole
    # ones and 5 steps of the 86th.
    whole, rest = (75, 0) if kind.startswith("NextStep") else (85, 5)
    want = expected(whole) + expected(whole + 1)[-EPISODE_LENGTH:][:rest]
    for i in range(N):
        assert found[i] == want
    assert len(episodes) == whole * N
    assert sum(len(found[i]) for i in range(N)) == sum(e.length for e in episodes) + rest * N
    assert all(episode.length == EPISODE_LENGTH for episode in episodes)


@pytest.mark.parametrize("kind", KINDS)
def test_every_autoreset_mode_gives_the_same_transitions(kind):
    check_transitions(kind, *collect_here(kind))


def test_four_workers_in_different_modes_give_the_same_transitions_wherever_they_run(runtime):
    kinds = ["own loop", "NextStep", "SameStep dense", "Disabled"]
    # 40 steps hold 5 episodes in every mode.
    outcomes = collect(runtime.make, [KINDS[kind] for kind in kinds], steps=40)
    for kind, (rets, episodes) in zip(kinds, outcomes, strict=True):
        expected, counted = collect_here(kind, steps=40)
        assert transitions(rets) == transitions(expected)
        assert [replace(one, worker=0) for one in episodes] == counted


@pytest.mark.parametrize("kind", KINDS)
def test_every_autoreset_mode_gives_the_same_advantages(kind):
    rets, _ = collect_here(kind)
    for rows in transitions(rets).values():
        assert torch.equal(advantages(rows[: 75 * 7]), advantages(expected(75)))


@pytest.mark.parametrize("kind", KINDS)
def test_no_pair_joins_a_terminal_observation_to_a_reset_observation(kind):
    rets, _ = collect_here(kind)
    for rows in transitions(rets).values():
        for (episode, t), (next_episode, next_t), *_ in rows:
            assert (next_episode, next_t) == (episode, t + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_episodes_have_the_return_and_the_end_that_the_env_gave_them(kind):
    _, episodes = collect_here(kind, steps=40)
    # Episode k: 7 * 100 k + (1 + ... + 7) = 700 k + 28; odd ones terminate. 40 steps hold 5 episodes in every mode.
    for i in range(N):
        assert [(e.return_, e.truncated) for e in episodes if e.sub_env == i] == [
            (728.0, False),
            (1428.0, True),
            (2128.0, False),
            (2828.0, True),
            (3528.0, False),
        ]


def test_next_step_rows_are_marked_as_reset_and_carry_no_reward():
    rets, _ = collect_here("NextStep", steps=9)
    assert [bool(ret.is_reset[0]) for ret in rets] == [True] + [False] * 7 + [True, False]
    assert rets[8].reward[0] == 0.0
    assert rets[7].final_observation[0].tolist() == rets[7].observation[0].tolist() == [1, 7]
    assert rets[8].observation[0].tolist() == [2, 0]


def test_same_step_rows_show_the_next_episode_and_keep_the_last_observation():
    rets, _ = collect_here("own loop", steps=8)
    assert rets[7].observation[0].tolist() == [2, 0]
    assert rets[7].final_observation[0].tolist() == [1, 7]
    assert not rets[7].is_reset.any()
    assert rets[8].final_observation is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_observation_of_every_episode_is_marked_and_no_other(kind):
    rets, _ = collect_here(kind, 40)
    for ret in rets:
        # The observation is (episode, step). A row that still shows a last observation waits for its reset.
        first = ret.observation[:, 1] == 0
        marked = np.zeros(N, np.bool_) if ret.is_first is None else ret.is_first
        assert marked.tolist() == first.tolist()
