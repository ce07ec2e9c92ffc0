"""The buffer as an engine sees it, with its shard here and in a process of its own."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rlightning.buffer.assignment import BufferRoutes, blocks
from rlightning.buffer.data_buffer import DataBuffer
from rlightning.buffer.storage import RolloutBlock
from rlightning.errors import NotEnoughData, ProtocolError, ShapeError, WorkerError
from rlightning.runtime import LocalFuture, as_handle, gather
from rlightning.runtime.spawn import WorkerPool, WorkerSpec
from rlightning.types import BatchedData
from tests.buffer.makers import answer, build_anew, ret


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def start(request):
    """Starts the one shard or the other for all tests of a place, since a process takes seconds to start."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    pool = WorkerPool()

    def start(index, num_envs):
        args = (2, num_envs)
        return pool.start([WorkerSpec(RolloutBlock, args, f"buffer[{index}]", request.param == "ray", num_cpus=0.01)])[
            0
        ]

    yield start
    pool.stop()


@pytest.fixture(scope="module")
def shard(start):
    return start(0, [2, 1])


@pytest.fixture(scope="module")
def second_shard(start):
    return start(1, [1])


@pytest.fixture
def buffer(shard):
    buffer = DataBuffer([shard], call_timeout_s=60)
    yield buffer
    buffer.clear()


def both(first, second):
    return BatchedData([0, 1], [first, second])


def test_all_ways_to_add_steps_give_the_same_block(buffer):
    seen = [both(ret([1, 2]), ret([3])), both(ret([4, 5], reward=1.0), ret([6], reward=2.0))]
    done = [both(answer([1, 2], log_prob=[0, 0]), answer([3], log_prob=[0])) for _ in seen]
    last = both(ret([7, 8], reward=3.0), ret([9], reward=4.0))

    def one_by_one(step, add):
        for env_id in (0, 1):
            add(env_id, seen[step][env_id], done[step][env_id])

    def futures_of_one(step):
        one_by_one(step, lambda *args: gather([buffer.add_data_async(*args)]))

    def futures_of_all(step):
        unopened = both(LocalFuture(seen[step][0]), LocalFuture(seen[step][1]))
        gather([buffer.add_batched_data_async(unopened, done[step])])

    ways = [
        lambda step: one_by_one(step, buffer.add_transition),
        lambda step: buffer.add_batched_transition(seen[step], done[step]),
        futures_of_one,
        futures_of_all,
    ]
    blocks = []
    for way in ways:
        way(0)
        way(1)
        buffer.truncate_episodes(last)
        blocks.append(gather(buffer.sample())[0].clone())
        buffer.clear()
    assert blocks[0]["observation"].squeeze(-1).tolist() == [[1, 2, 3], [4, 5, 6]]
    assert blocks[0]["next_observation"].squeeze(-1).tolist() == [[4, 5, 6], [7, 8, 9]]
    assert blocks[0]["reward"].tolist() == [[1, 1, 2], [3, 3, 4]]
    assert all((block == blocks[0]).all() for block in blocks)


def test_results_may_be_futures_of_calls_on_other_workers(buffer):
    # What a shard gave is a future that goes into the next call unopened.
    buffer.add_batched_transition(
        both(ret([1, 2]), ret([3])), both(answer([0, 0], log_prob=[0, 0]), answer([0], log_prob=[0]))
    )
    buffer.truncate_episodes(both(LocalFuture(ret([4, 5])), LocalFuture(ret([6]))))
    assert buffer.size() == len(buffer) == 3


def test_workers_at_different_steps(buffer):
    buffer.add_transition(0, ret([1, 2]), answer([0, 0], log_prob=[0, 0]))
    buffer.add_transition(0, ret([3, 4]), answer([0, 0], log_prob=[0, 0]))
    buffer.add_transition(1, ret([9]), answer([0], log_prob=[0]))
    buffer.truncate_episodes(both(ret([5, 6]), ret([8])))
    assert buffer.size() == 5
    with pytest.raises(WorkerError, match=r"different steps \[2, 1\]") as caught:
        gather(buffer.sample())
    assert isinstance(caught.value.__cause__, NotEnoughData)


def test_an_episode_is_added_whole(buffer):
    zeros = torch.zeros(2, 2)
    fields = {
        "observation": torch.ones(2, 2, 1),
        "next_observation": torch.full((2, 2, 1), 2.0),
        "action": torch.zeros(2, 2, dtype=torch.int64),
        "reward": zeros + 0.5,
        "terminated": zeros.bool(),
        "truncated": zeros.bool(),
        "log_prob": zeros,
    }
    buffer.add_episode(0, TensorDict(fields, [2, 2]))
    buffer.add_episode(1, TensorDict(fields, [2, 2])[:, :1])
    data = gather(buffer.sample())[0]
    assert data.batch_size == (2, 3)
    assert data["reward"].sum() == 3
    assert buffer.size() == 6


def test_failures_name_the_buffer_and_have_their_cause(buffer):
    gather([buffer.add_data_async(0, ret([1, 2]), answer([0, 0], log_prob=[0, 0]))])
    for env_ret, response, error in [
        (ret([1, 2]), answer([0, 0]), ShapeError),
        (ret([1]), answer([0], log_prob=[0]), ShapeError),
    ]:
        future = buffer.add_data_async(0, env_ret, response)
        with pytest.raises(WorkerError, match=r"buffer\[0\]") as caught:
            future.result(60)
        assert isinstance(caught.value.__cause__, error)


def test_a_step_whose_result_failed_fails_with_the_first_failure(buffer):
    fault = WorkerError("the motor is off", "env[1]", "step")
    if buffer._shards[0].info().remote:
        pytest.skip("a remote shard gets failed results as references; tests/engine covers them")
    with pytest.raises(WorkerError) as caught:
        buffer.add_transition(0, LocalFuture(error=fault), answer([0, 0], log_prob=[0, 0]))
    assert caught.value is fault


def test_a_full_block_and_an_open_row_are_refused(buffer):
    for step in range(2):
        buffer.add_transition(1, ret([step]), answer([0], log_prob=[0]))
        buffer.add_transition(0, ret([step, step]), answer([0, 0], log_prob=[0, 0]))
    with pytest.raises(WorkerError, match="call truncate_episodes") as caught:
        gather(buffer.sample())
    assert isinstance(caught.value.__cause__, ProtocolError)
    with pytest.raises(WorkerError, match="full after 2 steps of env worker 1"):
        buffer.add_transition(1, ret([5]), answer([0], log_prob=[0]))


def test_batches_of_different_workers_are_refused(buffer):
    with pytest.raises(ValueError, match="results of env workers"):
        buffer.add_batched_data_async(both(ret([1, 2]), ret([3])), BatchedData([1, 0], [answer([0]), answer([0, 0])]))


def test_versions_size_and_clear(buffer):
    assert buffer.size() == 0
    buffer.add_transition(0, ret([1, 2]), answer([0, 0], version=4, log_prob=[0, 0]))
    buffer.add_transition(0, ret([1, 2], is_reset=[1, 0]), answer([0, 0], version=6, log_prob=[0, 0]))
    assert buffer.versions() == (4, 6)
    assert buffer.size() == 1  # of the one closed row, one sub-env was reset; the other row is open
    buffer.clear()
    assert len(buffer) == 0


def test_what_a_learner_gets_is_its_own_to_write_into_and_a_view_where_the_shard_is_here(buffer):
    def fill():
        buffer.add_batched_transition(
            both(ret([1, 2]), ret([3])), both(answer([0, 0], log_prob=[0, 0]), answer([0], log_prob=[0]))
        )
        buffer.truncate_episodes(both(ret([4, 5], reward=1.0), ret([6], reward=1.0)))

    fill()
    data, again = gather(buffer.sample())[0], gather(buffer.sample())[0]
    data["reward"] *= 0.5
    data["observation"][:] = -1
    assert data["reward"].tolist() == [[0.5, 0.5, 0.5]]
    shared = not buffer._shards[0].info().remote
    assert (again["observation"] == -1).all() == shared
    data["terminated"][:], data["valid"][:] = True, False
    buffer.clear()
    fill()
    now = gather(buffer.sample())[0]
    assert np.allclose(now["reward"], 1.0)
    assert now["valid"].all()
    assert not now["terminated"].any()
    # And to keep: a learner may hold what came in earlier rollouts.
    now["reward"][:] = 7
    assert data["reward"].tolist() == [[0.5, 0.5, 0.5]]


# Several shards


@pytest.fixture
def shards(shard, second_shard):
    """Makes two shards anew, in the processes that are there, with the sub-envs and the env ids of each."""

    def make(*args):
        pair = [shard, second_shard]
        gather([as_handle(one).run(build_anew, 2, *its) for one, its in zip(pair, args, strict=True)])
        return pair

    yield make
    make(([2, 1],), ([1],))  # as other tests expect to find them


def two_shards(shards, learners=2):
    """Env workers 0 and 1 (2 and 1 sub-envs) belong to the first shard, 2 (3 sub-envs) to the second one."""
    pair = shards(([2, 1], [0, 1]), ([3], [2]))
    return DataBuffer(pair, num_env_workers=3, num_learners=learners, call_timeout_s=60)


def all_three(items):
    return BatchedData([2, 0, 1], items)


def test_each_learner_gets_the_steps_of_its_env_workers(shards):
    buffer = two_shards(shards)
    stored = [
        buffer.add_batched_data_async(
            all_three([ret([7, 8, 9]), ret([1, 2]), ret([3])]),
            all_three([answer([0] * 3, version=2), answer([0] * 2, version=1), answer([0], version=1)]),
        ),
        buffer.add_data_async(1, ret([4], reward=1.0), answer([0], version=1)),
    ]
    assert gather(stored, 60) == [None, None]
    assert stored[0].done()
    buffer.add_transition(0, ret([5, 6]), answer([0] * 2, version=4))
    buffer.add_transition(2, ret([0, 0, 0]), answer([0] * 3, version=1))
    buffer.truncate_episodes(all_three([ret([1, 1, 1]), ret([2, 2]), ret([3])]))
    pieces = gather(buffer.sample(), 60)
    assert [piece["observation"].squeeze(-1).tolist() for piece in pieces] == [
        [[1, 2, 3], [5, 6, 4]],
        [[7, 8, 9], [0, 0, 0]],
    ]
    assert (buffer.size(), buffer.versions()) == (12, (1, 4))
    buffer.clear()
    assert buffer.size() == 0


def test_routes_say_which_shard_has_which_env_workers_and_which_learners(shards):
    # Env workers 0 and 2 and learner 1 belong to the first shard, env worker 1 and learners 0 and 2 to the second one.
    pair = shards(([2, 3], [0, 2]), ([2], [1]))
    routes = BufferRoutes(env_shards=(0, 1, 0), learner_shards=(1, 0, 1))
    buffer = DataBuffer(pair, num_env_workers=3, num_learners=3, routes=routes, call_timeout_s=60)
    buffer.add_batched_transition(
        all_three([ret([7, 8, 9]), ret([1, 2]), ret([3, 4])]), all_three([answer([0] * n) for n in (3, 2, 2)])
    )
    buffer.truncate_episodes(all_three([ret([1, 1, 1]), ret([2, 2]), ret([3, 3])]))
    pieces = [piece["observation"].flatten().tolist() for piece in gather(buffer.sample(), 60)]
    assert pieces == [[3], [1, 2, 7, 8, 9], [4]]


def test_a_shard_with_several_learners_gives_each_some_of_its_sub_envs(shards):
    buffer = two_shards(shards, learners=5)
    buffer.add_batched_transition(
        all_three([ret([7, 8, 9]), ret([1, 2]), ret([3])]), all_three([answer([0] * n) for n in (3, 2, 1)])
    )
    buffer.truncate_episodes(all_three([ret([1, 1, 1]), ret([2, 2]), ret([3])]))
    # 3 learners at the first shard and 2 at the second one.
    pieces = [piece["observation"].flatten().tolist() for piece in gather(buffer.sample(), 60)]
    assert pieces == [[1], [2], [3], [7, 8], [9]]


def test_more_learners_than_sub_envs_get_pieces_without_any():
    buffer = DataBuffer([RolloutBlock(1, [1])], num_learners=2)
    buffer.add_transition(0, ret([1]), answer([0]))
    buffer.truncate_episodes(BatchedData([0], [ret([2])]))
    assert [tuple(piece.batch_size) for piece in gather(buffer.sample())] == [(1, 1), (1, 0)]


def test_messages_of_a_later_shard_name_the_env_worker_of_the_run(shards):
    buffer = two_shards(shards)
    buffer.add_transition(2, ret([1, 2, 3]), answer([0] * 3))
    with pytest.raises(WorkerError, match="step 1 of env worker 2 does not fit"):
        buffer.add_transition(2, ret([1, 2, 3]), answer([0] * 2))


def test_shards_without_work_are_refused():
    shards = [RolloutBlock(1, [1]) for _ in range(2)]
    with pytest.raises(ValueError, match="needs a shard"):
        DataBuffer([])
    with pytest.raises(ValueError, match="2 shards for 1 env workers"):
        DataBuffer(shards, num_env_workers=1)
    with pytest.raises(ValueError, match="2 shards for 1 train policies"):
        DataBuffer(shards, num_env_workers=2, num_learners=1)


@given(st.integers(0, 40), st.integers(1, 10))
def test_blocks_are_neighbours_of_nearly_equal_number(count, parts):
    cut = blocks(count, parts)
    assert [place for block in cut for place in block] == list(range(count))
    sizes = [len(block) for block in cut]
    assert len(cut) == parts
    assert max(sizes) - min(sizes) <= 1


def test_close_ends_what_was_started_once():
    calls = []
    buffer = DataBuffer([RolloutBlock(1, [1])], on_close=lambda: calls.append("closed"))
    buffer.close()
    buffer.close()
    assert calls == ["closed"]
