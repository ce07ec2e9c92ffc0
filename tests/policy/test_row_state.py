"""A request says whose rows it holds, so that a policy remembers something of each row."""

import numpy as np
import pytest
import torch

from rlightning.config import PolicyConfig, TrainConfig
from rlightning.errors import ProtocolError, ShapeError
from rlightning.policy.base_policy import PolicyRole
from rlightning.policy.policy_group import PolicyGroup
from rlightning.policy.row_state import RowState
from rlightning.runtime import gather
from rlightning.types import BatchedData, EnvRet, PolicyResponse
from tests.policy.policies import Bare, request


class Counting(Bare):
    """Answers how many requests each row has made in its episode, and who it is."""

    is_stateful = True

    def construct_network(self, env_meta, *args, **kwargs):
        super().construct_network(env_meta)
        self.count = RowState(torch.zeros(()))

    def rollout_step(self, env_ret, *, deterministic=False):
        count = self.count.get(env_ret) + 1
        self.count.put(env_ret, count)
        names = {"env_id": env_ret.env_id, "row": env_ret.row, "first": env_ret.is_first}
        return PolicyResponse(count, extras={**names, "evaluation": torch.full_like(count, env_ret.evaluation)})

    def extra_training_state(self):
        return {"count": self.count.state()}

    def load_extra_training_state(self, state):
        self.count.load(state["count"])


class CountingAsync(Counting):
    async def rollout_step(self, env_ret, *, deterministic=False):
        return super().rollout_step(env_ret)


def step(rows, first=()):
    ret = request(rows)
    ret.is_reset[:] = False
    ret.is_first = np.isin(np.arange(rows), first) if len(first) else None
    return ret


def make_group(cls=Counting, actors=1, mode="sync"):
    config = PolicyConfig(rollout_mode=mode)
    group = PolicyGroup(
        [cls(config, PolicyRole.TRAIN)], [cls(config, PolicyRole.EVAL) for _ in range(actors)], config, seed=1
    )
    group.init(TrainConfig())
    group.sync_weights()
    return group


def counts(group, requests, **options):
    answers = group.rollout_batch(BatchedData(list(requests), list(requests.values())), **options)
    return [answer.action.tolist() for answer in gather(answers.items)]


@pytest.mark.parametrize(("cls", "mode"), [(Counting, "sync"), (CountingAsync, "async")])
@pytest.mark.parametrize("actors", [1, 2])
def test_rows_are_counted_whoever_asks_together(cls, mode, actors):
    group = make_group(cls, actors, mode)
    assert counts(group, {0: step(2)}) == [[1, 1]]
    assert counts(group, {0: step(2)}) == [[2, 2]]
    assert counts(group, {1: step(1)}) == [[1]]
    assert counts(group, {0: step(2), 1: step(1)}) == [[3, 3], [2]]
    # An evaluation asks by the same ids, and neither disturbs the other.
    assert counts(group, {0: step(2)}, evaluation=True) == [[1, 1]]
    assert counts(group, {1: step(1), 0: step(2, first=[1])}) == [[3], [4, 1]]
    assert counts(group, {0: step(2)}, evaluation=True) == [[2, 2]]
    group.shutdown()


def test_a_request_names_worker_row_and_evaluation_of_each_row():
    group = make_group()
    for evaluation in (False, True):
        batched = BatchedData([5, 3], [step(2, first=[0]), request(1)])
        group.rollout_batch(batched, evaluation=evaluation)  # the first request of a worker marks all of its rows
        answers = gather(group.rollout_batch(batched, evaluation=evaluation).items)
        told = {name: np.concatenate([one.extras[name] for one in answers]).tolist() for name in answers[0].extras}
        assert (told["env_id"], told["row"], told["first"]) == ([5, 5, 3], [0, 1, 0], [True, False, True])
        assert told["evaluation"] == [evaluation] * 3
    group.shutdown()


def test_the_state_of_training_is_saved_with_the_group_and_restored():
    before, after = make_group(actors=2), make_group(actors=2)
    for _ in range(3):
        counts(before, {0: step(2), 1: step(1)})
    counts(before, {0: step(2)}, evaluation=True)
    after.load_training_state(before.get_training_state())
    assert counts(after, {0: step(2), 1: step(1)}) == [[4, 4], [4]]
    assert counts(after, {0: step(2)}, evaluation=True) == [[1, 1]]
    for group in (before, after):
        group.shutdown()


def test_a_worker_with_another_number_of_rows_begins_anew():
    state = RowState(torch.zeros(3))
    for rows, expected in ((2, 0.0), (2, 1.0), (4, 0.0)):
        ret = EnvRet.from_reset(np.zeros((rows, 2), np.float32), rows)
        ret.env_id, ret.is_first = torch.zeros(rows, dtype=torch.int64), torch.zeros(rows, dtype=torch.bool)
        assert torch.equal(state.get(ret), torch.full((rows, 3), expected))
        state.put(ret, state.get(ret) + 1)


def test_ids_that_are_no_numbers_are_named_where_a_policy_asks_for_them():
    group = make_group()
    with pytest.raises(Exception, match=r"numbers as ids, and these have \['left'\]") as caught:
        gather(group.rollout_batch(BatchedData(["left"], [request(1)])).items)
    assert isinstance(caught.value.__cause__, ProtocolError) or isinstance(caught.value, ProtocolError)
    group.shutdown()


def test_an_env_worker_that_comes_to_another_policy_is_marked_there():
    group = make_group(actors=2)
    marks = []
    for actor in group.eval_list:
        own = actor.rollout_step
        actor.rollout_step = lambda ret, own=own, **options: (
            marks.append((ret.env_id.tolist(), ret.is_first.tolist())) or own(ret, **options)
        )
    both = {0: step(2), 1: step(2)}
    counts(group, both)
    counts(group, both)
    assert sorted(marks) == sorted(
        [([0, 0], [True] * 2), ([1, 1], [True] * 2), ([0, 0], [False] * 2), ([1, 1], [False] * 2)]
    )
    marks.clear()
    group.pop(PolicyRole.EVAL)
    assert counts(group, both) == [[3, 3], [1, 1]]
    assert marks == [([0, 0, 1, 1], [False, False, True, True])]


def test_a_state_of_another_shape_is_refused_when_it_is_put():
    ret = EnvRet.from_reset(np.zeros((2, 2), np.float32), 2)
    ret.env_id = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ShapeError, match=r"has the shape \[2, 64\], got \[2, 3\]"):
        RowState(torch.zeros(64)).put(ret, torch.zeros(2, 3))
