"""A batch has one item per env worker; rows carry their flags apart."""

import numpy as np
import pytest

from rlightning.types import BatchedData, EnvRet, PolicyResponse


def test_a_batch_is_read_by_env_id_and_in_order():
    batch = BatchedData([4, 2], ["four", "two"])
    assert (len(batch), list(batch), batch[2]) == (2, [(4, "four"), (2, "two")], "two")


def test_a_batch_gives_its_ids_and_values_which_may_be_of_any_hashable_kind():
    batch = BatchedData((("left", 1), "head", 3), "abc")
    assert (batch.ids(), batch.values()) == ([("left", 1), "head", 3], ["a", "b", "c"])
    assert (batch["head"], batch[("left", 1)]) == ("b", "a")


def test_ids_and_items_of_different_numbers_are_refused():
    with pytest.raises(ValueError, match="2 env ids for 1 items"):
        BatchedData([0, 1], ["only one"])


def test_after_a_reset_no_row_ended_and_no_transition_led_here():
    ret = EnvRet.from_reset(np.zeros((3, 2), np.float32), 3)
    assert ret.num_envs == 3
    assert ret.is_reset.all()
    assert not ret.ended.any()
    assert (ret.reward.dtype, ret.reward.tolist()) == (np.float32, [0, 0, 0])
    # The two flags are arrays of their own: writing one leaves the other.
    ret.terminated[0] = True
    assert not ret.truncated.any()
    assert ret.ended.tolist() == [True, False, False]


def test_the_env_receives_the_action_itself_where_no_other_is_given():
    assert PolicyResponse("drawn").action_for_env == "drawn"
    assert PolicyResponse("drawn", env_action="clipped").action_for_env == "clipped"
