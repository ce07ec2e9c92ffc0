"""What a block of steps promises to the learner, and what it refuses."""

import numpy as np
import pytest
import torch

from rlightning.buffer.storage import RESERVED, RolloutBlock
from rlightning.errors import NotEnoughData, ProtocolError, ShapeError
from rlightning.types import EnvRet, PolicyResponse
from rlightning.types.fragment import Fragment
from tests.buffer.makers import answer, column, ret


def filled(block=None):
    """Two steps of one worker with two sub-envs: observations 1, 2 then 3, 4 then 5, 6."""
    block = block or RolloutBlock(4, [2])
    block.add(0, ret([1, 2]), answer([10, 20], log_prob=[-1, -2]))
    block.add(0, ret([3, 4], reward=[0.25, 0.5]), answer([30, 40], log_prob=[-3, -4]))
    block.truncate(0, ret([5, 6], reward=[0.75, 1]))
    return block


def test_a_row_is_what_was_seen_what_was_done_what_came_of_it_and_what_was_seen_next():
    data = filled().sample()
    assert data.batch_size == (2, 2)
    assert data["observation"].squeeze(-1).tolist() == [[1, 2], [3, 4]]
    assert data["action"].tolist() == [[10, 20], [30, 40]]
    assert data["log_prob"].tolist() == [[-1, -2], [-3, -4]]
    assert data["reward"].tolist() == [[0.25, 0.5], [0.75, 1]]
    assert data["next_observation"].squeeze(-1).tolist() == [[3, 4], [5, 6]]
    assert data["valid"].all()
    assert not (data["terminated"] | data["truncated"]).any()
    assert set(data.keys()) == {*RESERVED, "log_prob"}


def test_where_an_episode_ended_the_next_observation_is_the_last_one_and_not_the_first_of_the_next_episode():
    block = RolloutBlock(2, [3])
    block.add(0, ret([1, 2, 3]), answer([0, 0, 0]))
    # Sub-env 0 goes on, 1 is terminated, 2 is truncated: 50 and 60 are the first ones of new episodes.
    after = ret([4, 50, 60], terminated=[0, 1, 0], truncated=[0, 0, 1], final=[-1, 5, 6])
    block.add(0, after, answer([0, 0, 0]))
    block.truncate(0, ret([7, 51, 61]))
    data = block.sample()
    assert data["next_observation"].squeeze(-1).tolist() == [[4, 5, 6], [7, 51, 61]]
    assert data["observation"].squeeze(-1).tolist() == [[1, 2, 3], [4, 50, 60]]
    assert data["terminated"].tolist() == [[False, True, False], [False] * 3]
    assert data["truncated"].tolist() == [[False, False, True], [False] * 3]


def test_an_end_that_closes_the_block_keeps_its_true_next_observation():
    block = RolloutBlock(1, [1])
    block.add(0, ret([1]), answer([0]))
    block.truncate(0, ret([70], truncated=True, final=[2]))
    assert block.sample()["next_observation"].item() == 2


def test_rows_that_an_autoreset_spent_are_not_valid_and_nothing_else_is_not():
    block = RolloutBlock(3, [2])
    block.add(0, ret([1, 1], is_reset=True), answer([0, 0]))
    block.add(0, ret([2, 2], terminated=[1, 0], final=[2, 0]), answer([0, 0]))
    block.add(0, ret([9, 3], is_reset=[1, 0]), answer([0, 0]))
    block.truncate(0, ret([10, 4]))
    # The row between the end and the reset is no transition. That the very first observation came from a reset is no
    # reason to drop the transition that starts there.
    assert block.sample()["valid"].tolist() == [[True, True], [False, True], [True, True]]
    assert block.size() == 5


def test_workers_may_be_at_different_steps_and_lie_side_by_side_in_the_order_of_their_ids():
    block = RolloutBlock(2, [1, 2])
    block.add(1, ret([1, 2]), answer([1, 2]))
    block.add(1, ret([3, 4]), answer([3, 4]))
    block.add(0, ret([7]), answer([7]))
    block.truncate(1, ret([5, 6]))
    assert block.size() == 4  # the row of worker 0 has no outcome yet
    block.add(0, ret([8]), answer([8]))
    block.truncate(0, ret([9]))
    data = block.sample()
    assert data["observation"].squeeze(-1).tolist() == [[7, 1, 2], [8, 3, 4]]
    assert data["next_observation"].squeeze(-1).tolist() == [[8, 3, 4], [9, 5, 6]]


def test_a_full_block_refuses_and_stays_as_it_is():
    block = RolloutBlock(1, [1])
    block.add(0, ret([1]), answer([0]))
    for _ in range(2):
        with pytest.raises(ProtocolError, match=r"full after 1 steps of env worker 0: sample and clear it first"):
            block.add(0, ret([2], reward=3.0), answer([0]))
    block.truncate(0, ret([2], reward=3.0))
    data = block.sample()
    assert (data["observation"].item(), data["next_observation"].item(), data["reward"].item()) == (1, 2, 3)


def test_nothing_is_handed_out_while_the_last_step_has_no_outcome():
    block = RolloutBlock(2, [1])
    block.add(0, ret([1]), answer([0]))
    with pytest.raises(ProtocolError, match="call truncate_episodes"):
        block.sample()


def test_an_empty_block_and_workers_at_different_steps_are_refused():
    block = RolloutBlock(2, [1, 1])
    with pytest.raises(NotEnoughData, match=r"held: \[0, 0\]"):
        block.sample()
    with pytest.raises(NotEnoughData, match="empty"):
        block.versions()
    block.add(0, ret([1]), answer([0]))
    block.add(0, ret([2]), answer([0]))
    block.add(1, ret([1]), answer([0]))
    block.truncate(0, ret([3]))
    block.truncate(1, ret([2]))
    with pytest.raises(NotEnoughData, match=r"different steps \[2, 1\]"):
        block.sample()


def test_a_second_truncation_changes_nothing():
    block = filled()
    block.truncate(0, ret([100, 100], reward=9.0))
    assert block.sample()["next_observation"][-1].squeeze(-1).tolist() == [5, 6]


def test_an_episode_goes_on_after_a_truncation():
    block = RolloutBlock(2, [1])
    block.add(0, ret([1]), answer([0]))
    block.truncate(0, ret([2], reward=1.0))
    block.add(0, ret([2], reward=1.0), answer([0]))
    block.truncate(0, ret([3], reward=2.0))
    data = block.sample()
    assert data["observation"].flatten().tolist() == [1, 2]
    assert data["reward"].flatten().tolist() == [1, 2]


def test_extras_of_other_names_are_refused_whatever_their_order():
    block = RolloutBlock(4, [1])
    block.add(0, ret([1]), answer([0], a=[1], b=[2]))
    block.add(0, ret([2]), answer([0], b=[4], a=[3]))
    for extras in ({}, {"a": [5]}, {"a": [5], "b": [6], "c": [7]}, {"a": [5], "c": [6]}):
        with pytest.raises(ShapeError, match=r"earlier ones \['a', 'b'\]"):
            block.add(0, ret([3]), answer([0], **extras))
    block.truncate(0, ret([3]))
    data = block.sample()
    assert data["a"].flatten().tolist() == [1, 3]
    assert data["b"].flatten().tolist() == [2, 4]


@pytest.mark.parametrize("name", RESERVED)
def test_an_extra_may_not_take_the_name_of_a_field(name):
    with pytest.raises(ShapeError, match="names of the block's own fields"):
        RolloutBlock(1, [1]).add(0, ret([1]), PolicyResponse(np.array([0]), extras={name: np.array([1])}))


@pytest.mark.parametrize(
    ("extras", "says"),
    [
        ({"said": np.array(["yes"])}, r"said has dtype <U3, and there are no tensors of it"),
        ({"when": np.zeros(1, "datetime64[s]")}, r"when has dtype datetime64\[s\]"),
        ({"memory": {"cell": np.zeros(1, object)}}, r"memory has dtype object"),
        ({"memory": (np.zeros(1), np.zeros(1))}, r"\['memory'\] are tuples or lists"),
        ({7: np.zeros(1)}, r"the extras \[7\] are no strings"),
    ],
)
def test_an_extra_that_no_batch_can_hold_is_refused_when_the_first_step_comes(extras, says):
    with pytest.raises(ShapeError, match=says):
        RolloutBlock(1, [1]).add(0, ret([1]), PolicyResponse(np.array([0]), extras=extras))


def test_extras_that_belong_together_may_be_a_dict_and_numbers_of_another_byte_order_are_taken():
    block = RolloutBlock(3, [1])
    for number in (1.5, 2.5):
        extras = {"memory": {"hidden": np.full((1, 2), number, np.float16), "cell": np.full(1, number, ">f4")}}
        block.add(0, ret([0]), PolicyResponse(np.array([0]), extras=extras))
    with pytest.raises(ShapeError, match=r"got a ndarray, expected the parts \['cell', 'hidden'\]"):
        block.add(0, ret([0]), PolicyResponse(np.array([0]), extras={"memory": np.zeros(1)}))
    block.truncate(0, ret([0]))
    data = block.sample()
    assert data["memory", "hidden"].tolist() == [[[1.5, 1.5]], [[2.5, 2.5]]]
    assert data["memory", "cell"].dtype is torch.float32
    assert data["memory", "cell"].flatten().tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("seen", "done"),
    [
        (ret([1]), answer([0, 0], log_prob=[0, 0])),  # one row would be copied to both sub-envs
        (ret([1, 2]), answer([0], log_prob=[0, 0])),
        (ret([1, 2]), answer([0, 0], log_prob=[0])),
        (ret([1, 2, 3]), answer([0, 0], log_prob=[0, 0])),
        (ret([1, 2]), answer([[0, 1], [2, 3]], log_prob=[0, 0])),
        (EnvRet(np.zeros((2, 3), np.float32), *[np.zeros(2)] * 4), answer([0, 0], log_prob=[0, 0])),
        (EnvRet({"x": column([1, 2])}, *[np.zeros(2)] * 4), answer([0, 0], log_prob=[0, 0])),
    ],
)
def test_nothing_is_broadcast(seen, done):
    block = filled()
    with pytest.raises(ShapeError, match="step 2 of env worker 0 does not fit the block"):
        block.add(0, seen, done)


@pytest.mark.parametrize(
    "outcome",
    [
        ret([1]),
        EnvRet(column([1, 2]), np.zeros((2, 1), np.float32), *[np.zeros(2, np.bool_)] * 3),
        EnvRet(column([1, 2]), np.zeros(1, np.float32), *[np.zeros(2, np.bool_)] * 3),
        ret([1, 2], truncated=True, final=[1]),
    ],
)
def test_an_outcome_of_another_shape_is_refused(outcome):
    block = RolloutBlock(2, [2])
    block.add(0, ret([1, 2]), answer([0, 0]))
    with pytest.raises(ShapeError, match="step 0 of env worker 0"):
        block.truncate(0, outcome)


def test_numbers_never_change_their_kind():
    block = filled()
    fractions = PolicyResponse(np.array([0.5, 1.5]), extras={"log_prob": np.zeros(2, np.float32)})
    with pytest.raises(ShapeError, match="got float64, the block holds int64"):
        block.add(0, ret([7, 8]), fractions)


def test_dtypes_are_kept_and_bytes_stay_bytes():
    block = RolloutBlock(1, [2])
    pixels = np.array([[[250]], [[3]]], np.uint8)
    flags = [np.zeros(2, np.bool_)] * 3
    seen = EnvRet(pixels, np.zeros(2, np.float32), *flags)
    extras = {"half": np.array([1, 2], np.float16), "code": np.array([1, 2], np.int32)}
    block.add(0, seen, PolicyResponse(np.array([0.5, 1.5], np.float64), extras=extras))
    block.truncate(0, EnvRet(pixels + 1, np.array([1.0, 2.0]), *flags))
    data = block.sample()
    wanted = {
        "observation": torch.uint8,
        "next_observation": torch.uint8,
        "action": torch.float64,
        "half": torch.float16,
        "code": torch.int32,
        "reward": torch.float32,
        "version": torch.int64,
        "valid": torch.bool,
        "terminated": torch.bool,
        "truncated": torch.bool,
    }
    assert {name: data[name].dtype for name in wanted} == wanted
    assert data["next_observation"].flatten().tolist() == [251, 4]


def test_dict_observations_are_nested_and_their_ends_are_true():
    def seen(x, y, **kwargs):
        made = ret(x, **kwargs)
        made.observation = {"x": made.observation, "eyes": {"left": column(y)}}
        if made.final_observation is not None:
            made.final_observation = {"x": made.final_observation, "eyes": {"left": made.final_observation * 10}}
        return made

    block = RolloutBlock(1, [2])
    block.add(0, seen([1, 2], [3, 4]), answer([0, 0]))
    with pytest.raises(ShapeError, match="the parts"):
        block.truncate(0, EnvRet({"x": column([1, 2])}, *[np.zeros(2, np.float32)], *[np.zeros(2, np.bool_)] * 3))
    block.truncate(0, seen([5, 60], [7, 80], terminated=[0, 1], final=[0, 6]))
    data = block.sample()
    assert data["observation", "eyes", "left"].flatten().tolist() == [3, 4]
    assert data["next_observation", "x"].flatten().tolist() == [5, 6]
    assert data["next_observation", "eyes", "left"].flatten().tolist() == [7, 60]


def test_a_tuple_observation_is_refused_when_the_first_step_comes():
    seen = EnvRet((column([1]), column([2])), *[np.zeros(1)] * 4)
    with pytest.raises(ShapeError, match="give the parts names"):
        RolloutBlock(1, [1]).add(0, seen, answer([0]))


def test_the_block_copies_what_it_is_given_and_hands_out_views():
    block = RolloutBlock(1, [1])
    seen, done = ret([1]), answer([5])
    block.add(0, seen, done)
    seen.observation[:], done.action[:] = 99, 99
    block.truncate(0, ret([2]))
    first, second = block.sample(), block.sample()
    assert (first["observation"].item(), first["action"].item()) == (1, 5)
    assert first["observation"].data_ptr() == second["observation"].data_ptr()
    first["reward"] *= 0.1  # a learner may write into what it got
    first["observation"].add_(1)
    assert second["observation"].item() == 2


def test_tensors_of_a_users_own_loop_are_taken_too():
    block = RolloutBlock(1, [1])
    block.add(0, ret([1]), PolicyResponse(torch.tensor([3]), extras={"log_prob": torch.tensor([-0.5])}))
    block.truncate(0, ret([2]))
    assert block.sample()["log_prob"].item() == -0.5


def test_clear_forgets_the_steps_and_keeps_the_memory_that_nobody_has():
    block = filled()
    before = block.sample()["observation"].data_ptr()
    block.clear()
    assert block.size() == 0
    with pytest.raises(NotEnoughData):
        block.sample()
    assert filled(block).sample()["observation"].data_ptr() == before
    # What was true of a row before is not true of it now.
    block.clear()
    block.add(0, ret([1, 1]), answer([0, 0], log_prob=[0, 0]))
    block.truncate(0, ret([2, 2]))
    data = block.sample()
    assert data.batch_size == (1, 2)
    assert data["reward"].tolist() == [[0, 0]]


def test_what_was_handed_out_belongs_to_whoever_has_it_and_tells_nothing_to_the_next_rollout():
    block = filled()
    kept = block.sample()
    kept["terminated"][:], kept["truncated"][:], kept["valid"][:] = True, True, False
    block.clear()
    assert filled(block).sample()["valid"].all()
    now = block.sample()
    assert not (now["terminated"] | now["truncated"]).any()
    now["observation"].fill_(99)
    assert kept["observation"].squeeze(-1).tolist() == [[1, 2], [3, 4]]
    assert kept["terminated"].all()


def test_versions_are_kept_by_row():
    block = RolloutBlock(2, [1, 1])
    block.add(0, ret([1]), answer([0], version=3))
    block.add(1, ret([1]), answer([0], version=5))
    assert block.versions() == (3, 5)
    block.add(0, ret([2]), answer([0], version=4))
    block.add(1, ret([2]), answer([0], version=2))
    assert block.versions() == (2, 5)
    for worker in (0, 1):
        block.truncate(worker, ret([3]))
    assert block.sample()["version"].tolist() == [[3, 5], [4, 2]]


def episode(steps, rows=1, **more):
    numbers = torch.arange(float(steps)).reshape(steps, 1, 1).repeat(1, rows, 1)
    ends = torch.zeros(steps, rows, dtype=torch.bool)
    fields = {
        "observation": numbers,
        "next_observation": numbers + 1,
        "action": torch.zeros(steps, rows, dtype=torch.int64),
        "reward": torch.ones(steps, rows),
        "terminated": ends,
        "truncated": ends,
        **more,
    }
    return {name: value.numpy() for name, value in fields.items() if value is not None}


def test_an_episode_of_whole_transitions_is_taken_and_may_be_followed_by_steps():
    block = RolloutBlock(3, [1])
    block.add_fragment(Fragment(0, episode(2)))
    block.add(0, ret([2]), answer([1], version=7))
    block.truncate(0, ret([3], reward=5.0))
    data = block.sample()
    assert data["observation"].flatten().tolist() == [0, 1, 2]
    assert data["reward"].flatten().tolist() == [1, 1, 5]
    assert data["valid"].all()
    assert data["version"].flatten().tolist() == [-1, -1, 7]  # nobody said which weights acted in the episode


def test_an_episode_keeps_what_it_says_of_validity_and_versions():
    block = RolloutBlock(2, [1])
    block.add_fragment(Fragment(0, episode(2, valid=torch.tensor([[True], [False]]), version=torch.tensor([[4], [6]]))))
    assert block.size() == 1
    assert block.versions() == (4, 6)


def test_an_episode_has_the_dtypes_of_every_block():
    block = RolloutBlock(2, [1])
    version = torch.tensor([[4], [6]], dtype=torch.int32)
    block.add_fragment(Fragment(0, episode(2, reward=torch.tensor([[1], [2]]), version=version)))
    data = block.sample()
    assert (data["reward"].dtype, data["version"].dtype) == (torch.float32, torch.int64)
    assert data["reward"].flatten().tolist() == [1, 2]
    # ~1 is 254 as a byte: a factor where a learner expects a flag.
    with pytest.raises(ShapeError, match="got uint8, the block holds bool"):
        RolloutBlock(2, [1]).add_fragment(Fragment(0, episode(2, terminated=torch.zeros(2, 1, dtype=torch.uint8))))


def test_an_episode_that_does_not_fit_is_refused():
    block = RolloutBlock(3, [1])
    with pytest.raises(NotEnoughData, match="3 rows of env worker 0 are free"):
        block.add_fragment(Fragment(0, episode(4)))
    with pytest.raises(ShapeError, match="the episode has the fields"):
        block.add_fragment(Fragment(0, episode(2, next_observation=None)))
    block.add(0, ret([1]), answer([0]))
    with pytest.raises(ProtocolError, match="open row"):
        block.add_fragment(Fragment(0, episode(2)))
    block.truncate(0, ret([2]))
    with pytest.raises(ShapeError, match="the episode has the fields"):
        block.add_fragment(Fragment(0, episode(2, log_prob=torch.zeros(2, 1))))
    with pytest.raises(ShapeError, match="does not fit"):
        block.add_fragment(Fragment(0, episode(2, rows=2)))
    assert block.size() == 1
