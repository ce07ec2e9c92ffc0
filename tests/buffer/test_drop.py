"""A fragment that is not whole is dropped, with nothing left of it, and what is whole stays."""

import pytest

from rlightning.buffer.data_buffer import DataBuffer
from rlightning.buffer.storage import Dropped, RolloutBlock
from rlightning.errors import ProtocolError
from tests.buffer.makers import answer, ret


def act():
    return answer([0])


def test_nothing_is_left_of_a_fragment_that_is_dropped():
    block = RolloutBlock(2, [1])
    block.add(0, ret([1]), act())
    block.add(0, ret([20], reward=3.0, terminated=True, final=[2]), act())
    # A whole transition, and an open row.
    assert block.drop([0]) == {0: Dropped(2, 1)}
    assert block.size() == 0
    for number in (7, 8):
        block.add(0, ret([number]), act())
    block.truncate(0, ret([9]))
    data = block.sample()
    assert data["observation"].flatten().tolist() == [7, 8]
    assert data["next_observation"].flatten().tolist() == [8, 9]
    assert not (data["terminated"] | data["truncated"]).any()
    assert data["valid"].all()


def test_only_valid_transitions_are_counted_as_dropped():
    block = RolloutBlock(3, [2])
    for _ in range(3):
        block.add(0, ret([1, 2], is_reset=[1, 0]), answer([0, 0]))
    assert block.drop([0]) == {0: Dropped(3, 2)}
    assert block.drop([0]) == {0: Dropped(0, 0)}


def test_what_is_whole_stays_where_it_is():
    block = RolloutBlock(3, [1])
    block.add(0, ret([1]), act())
    block.truncate(0, ret([2], reward=3.0))
    block.add(0, ret([2]), act())
    assert block.drop([0]) == {0: Dropped(1, 0)}
    data = block.sample()
    assert (data["observation"].item(), data["next_observation"].item(), data["reward"].item()) == (1, 2, 3)


@pytest.mark.parametrize("shards", [1, 2])
def test_each_shard_drops_the_fragments_of_its_env_workers(shards):
    made = {1: [RolloutBlock(3, [1, 1, 1])], 2: [RolloutBlock(3, [1, 1], [0, 1])]}
    made[2].append(RolloutBlock(3, [1], [2]))
    buffer = DataBuffer(made[shards], num_env_workers=3)
    for env_id in range(3):
        for number in (1, 2):
            buffer.add_transition(env_id, ret([number]), act())
    assert buffer.truncate_async(1, ret([3]), steps=2).result()
    # One that lost a step is not whole, and stays open.
    assert buffer.truncate_async(0, ret([3]), steps=3).result() is False
    assert buffer.drop([2, 0]) == {0: Dropped(2, 1), 2: Dropped(2, 1)}
    assert buffer.size() == 2


def test_a_whole_fragment_is_taken_out_and_leaves_room_for_the_next_one():
    shard = RolloutBlock(2, [1, 2], [3, 5])
    for first in (1, 11):
        shard.add(5, ret([first, 0], terminated=False), answer([0, 0], version=4))
        shard.add(5, ret([first + 1, 0], truncated=[1, 0], final=[first + 9, 0]), answer([0, 0], version=4))
        assert shard.truncate(5, ret([first + 2, 0]), 2)
        fragment = shard.take(5)
        assert (fragment.env_id, fragment.policy_state) == (5, None)
        assert fragment.fields["observation"][..., 0].tolist() == [[first, 0], [first + 1, 0]]
        assert fragment.fields["next_observation"][..., 0].tolist() == [[first + 9, 0], [first + 2, 0]]
        assert fragment.fields["truncated"].tolist() == [[True, False], [False, False]]
        assert fragment.fields["version"].tolist() == [[4, 4], [4, 4]]
    with pytest.raises(ProtocolError, match="env worker 5 has no whole fragment"):
        shard.take(5)
