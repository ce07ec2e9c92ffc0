"""Where an env worker lost a step, what was before it and what comes after it are two episodes."""

import pytest

from rlightning.buffer.data_buffer import DataBuffer
from rlightning.buffer.shard import BufferShard
from rlightning.buffer.storage import RolloutBlock
from rlightning.functional.advantages import gae
from tests.buffer.makers import answer, ret


def act():
    return answer([0])


def broken():
    """Observations 1, 2, 3; the step from 3 is lost; a new env shows 101, 102 and 103."""
    block = RolloutBlock(4, [1])
    block.add(0, ret([1], is_reset=True), act())
    block.add(0, ret([2], reward=10.0), act())
    block.add(0, ret([3], reward=20.0), act())
    block.cut(0)
    block.add(0, ret([101], is_reset=True), act())
    block.add(0, ret([102], reward=1000.0), act())
    block.truncate(0, ret([103], reward=2000.0))
    return block


def test_the_lost_step_is_dropped_and_the_one_before_it_is_truncated_in_its_true_next_observation():
    data = broken().sample()
    assert data["observation"].flatten().tolist() == [1, 2, 101, 102]
    assert data["next_observation"].flatten().tolist() == [2, 3, 102, 103]
    assert data["reward"].flatten().tolist() == [10, 20, 1000, 2000]
    assert data["truncated"].flatten().tolist() == [False, True, False, False]
    assert not data["terminated"].any()
    assert data["valid"].all()


def test_advantages_on_both_sides_of_a_lost_step_know_nothing_of_each_other():
    data = broken().sample()
    # V(s) = s, gamma 0.5, lambda 1:
    #   A3 = 2000 + 0.5 * 103 - 102                   = 1949.5
    #   A2 = 1000 + 0.5 * 102 - 101 + 0.5 * 1949.5    = 1924.75
    #   A1 =   20 + 0.5 *   3 -   2                   =   19.5   and nothing of A2, which would make it 981.875
    #   A0 =   10 + 0.5 *   2 -   1 + 0.5 * 19.5      =   19.75
    values, next_values = data["observation"].squeeze(-1), data["next_observation"].squeeze(-1)
    terminated = data["terminated"]
    cut = terminated | data["truncated"]
    advantages = gae(data["reward"], values, next_values, terminated, cut, gamma=0.5, lam=1.0)
    assert advantages.flatten().tolist() == [19.75, 19.5, 1924.75, 1949.5]


def test_an_episode_that_had_ended_before_the_lost_step_keeps_its_end():
    block = RolloutBlock(3, [3])
    block.add(0, ret([1, 2, 3]), answer([0, 0, 0]))
    # Sub-env 0 goes on, 1 is terminated in 5, and 2 spent the row on an autoreset.
    after = ret([4, 50, 6], terminated=[0, 1, 0], is_reset=[0, 0, 1], final=[-1, 5, -1])
    block.add(0, after, answer([0, 0, 0]))
    block.cut(0)
    data = block.sample()
    assert data["truncated"].tolist() == [[True, False, False]]
    assert data["terminated"].tolist() == [[False, True, False]]
    assert data["valid"].tolist() == [[True, True, False]]
    assert data["next_observation"].flatten().tolist() == [4, 5, 6]


def test_nothing_is_left_of_a_first_step_that_is_lost():
    block = RolloutBlock(2, [1, 1])
    block.add(0, ret([1]), act())
    block.cut(0)
    block.cut(1)
    assert block.rows() == [0, 0]
    for number in (7, 8):
        block.add(0, ret([number]), act())
    block.truncate(0, ret([9]))
    assert block._fields["observation"][:, 0].flatten().tolist() == [7, 8]
    assert not block._fields["truncated"].any()


def test_a_full_block_has_room_for_another_step_after_one_was_lost_and_is_as_new_when_it_is_cleared():
    block = RolloutBlock(2, [1])
    block.add(0, ret([1]), act())
    block.add(0, ret([2]), act())
    block.cut(0)
    block.add(0, ret([30]), act())
    block.truncate(0, ret([31]))
    data = block.sample()
    assert data["observation"].flatten().tolist() == [1, 30]
    assert data["next_observation"].flatten().tolist() == [2, 31]
    assert data["truncated"].flatten().tolist() == [True, False]
    block.clear()
    block.add(0, ret([5]), act())
    block.truncate(0, ret([6]))
    assert not block.sample()["truncated"].any()


def test_what_is_closed_stays_and_ends_there():
    block = RolloutBlock(2, [1])
    block.add(0, ret([1]), act())
    block.truncate(0, ret([2], reward=3.0))
    block.cut(0)
    data = block.sample()
    assert (data["next_observation"].item(), data["reward"].item(), data["truncated"].item()) == (2, 3, True)


def test_parts_of_observations_are_cut_alike():
    block = RolloutBlock(2, [1])
    for number in (1.0, 2.0):
        parts = ret([number])
        parts.observation = {"eye": parts.observation, "ear": -parts.observation}
        block.add(0, parts, act())
    block.cut(0)
    following = block.sample()["next_observation"]
    assert {name: part.item() for name, part in following.items()} == {"eye": 2, "ear": -2}


@pytest.mark.parametrize("shards", [1, 2])
def test_only_the_env_workers_that_lost_a_step_are_cut_whatever_shard_they_have(shards):
    made = {1: [BufferShard(RolloutBlock, 3, [1, 1, 1])], 2: [BufferShard(RolloutBlock, 3, [1, 1], [0, 1])]}
    made[2].append(BufferShard(RolloutBlock, 3, [1], [2]))
    buffer = DataBuffer(made[shards], num_env_workers=3)
    for env_id in range(3):
        for number in (1, 2):
            buffer.add_transition(env_id, ret([number]), act())
    buffer.cut([2, 0])
    assert buffer.rows() == {0: 1, 1: 2, 2: 1}
