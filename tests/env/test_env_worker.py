"""What an env worker hands out and takes is checked, owned and counted."""

import sys

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlightning.config import EnvConfig
from rlightning.env import BaseEnv, EnvGroup, EnvWorker
from rlightning.env.env_worker import WorkerReport
from rlightning.errors import ProtocolError, ShapeError, UnsupportedSpace, WorkerError
from rlightning.runtime import gather
from rlightning.simulators.gymnasium import GymnasiumEnv
from rlightning.types import BatchedData, EnvMeta, EnvRet, PolicyResponse
from tests.env.doubles import ScribblingBatch

COUNTING = EnvConfig(name="tests.env.doubles:CountingEnv", num_envs=3)
SCRIBBLING = EnvConfig(name="tests.env.doubles:ScribblingEnv", num_envs=2)


class Scripted(BaseEnv):
    """Answers each step with whatever the test gives it."""

    space = gym.spaces.Box(-1, 1, (2,), np.float64)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, config):
        super().__init__(config)
        self.meta = EnvMeta("scripted", self.space, self.action_space, 2)
        self.answer = None

    def reset(self, seed=None, options=None):
        return EnvRet.from_reset(np.zeros((2, 2)), 2)

    def step(self, response):
        return self.answer


def answer(**changes):
    flags = np.zeros(2, np.bool_)
    fields = {"observation": np.zeros((2, 2)), "reward": np.ones(2), "terminated": flags, "truncated": flags}
    return EnvRet(**{**fields, "is_reset": flags, **changes})


def scripted():
    worker = EnvWorker(Scripted, EnvConfig(name="scripted", num_envs=2), 3, 0)
    worker.reset()
    return worker


def step_with(given):
    worker = scripted()
    worker._env.answer = given
    return worker.step(PolicyResponse(np.zeros((2, 2), np.float32)))


def test_env_code_may_write_into_what_it_got_and_what_it_gave(runtime):
    # C22: two steps with action (1, 2), which the envs double in place: states (2, 4) and (4, 8).
    envs = [GymnasiumEnv, ScribblingBatch]
    group = EnvGroup([runtime.make(EnvWorker, env, SCRIBBLING, i, 0) for i, env in enumerate(envs)])
    action = np.array([[1, 2], [1, 2]], np.float32)
    responses = BatchedData((0, 1), [PolicyResponse(action), PolicyResponse(action)])
    results = [gather(group.reset().items), *(gather(group.step(responses).items) for _ in range(2))]
    for i in range(2):
        assert [rets[i].observation.tolist() for rets in results] == [[[0, 0]] * 2, [[2, 4]] * 2, [[4, 8]] * 2]
        assert [rets[i].reward.tolist() for rets in results] == [[0, 0], [6, 6], [12, 12]]
    assert action.tolist() == [[1, 2], [1, 2]]


def test_what_was_handed_out_is_the_callers_to_write_into():
    worker = EnvWorker(ScribblingBatch, SCRIBBLING, 0, 0)
    response = PolicyResponse(np.ones((2, 2), np.float32))
    for ret in (worker.reset(), worker.step(response)):
        for array in (ret.observation, ret.reward, ret.terminated, ret.truncated, ret.is_reset):
            assert array.flags.owndata
            assert array.flags.writeable
        ret.observation += 100
        ret.reward *= 100
    assert worker.step(response).observation.tolist() == [[4, 4], [4, 4]]
    assert worker._env.reward.tolist() == [8, 8]


def test_the_action_of_the_log_prob_is_kept_from_the_env():
    worker = scripted()
    seen = []
    worker._env.step = lambda response: seen.append(response) or answer()
    response = PolicyResponse(np.full((2, 2), 3, np.float32), np.ones((2, 2), np.float32), {"log_prob": np.zeros(2)})
    worker.step(response)
    assert seen[0].action_for_env.tolist() == [[1, 1], [1, 1]]
    assert seen[0].action_for_env is not response.env_action
    assert response.action.tolist() == [[3, 3], [3, 3]]


def test_float64_becomes_float32_and_bytes_stay():
    worker = EnvWorker(GymnasiumEnv, EnvConfig(name="tests.env.doubles:TreeEnv", num_envs=2), 0, 0)
    observation = worker.reset().observation
    assert observation["image"].dtype == np.uint8
    assert [leaf.dtype for leaf in observation["pair"]] == [np.int64, np.float32]


def test_tensors_and_float64_actions_are_taken():
    worker = scripted()
    worker._env.answer = answer(observation=torch.full((2, 2), 2.0), reward=torch.ones(2))
    ret = worker.step(PolicyResponse(torch.zeros(2, 2, dtype=torch.float64)))
    assert ret.observation.tolist() == [[2, 2], [2, 2]]
    assert ret.reward.dtype == np.float32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observation": np.zeros((2, 3))}, r"observation has shape \[2, 3\], \[2, 2\] expected"),
        ({"observation": np.zeros((1, 2))}, r"observation has shape \[1, 2\], \[2, 2\] expected"),
        ({"observation": np.array([["a", "b"]] * 2)}, "observation has dtype <U1, which does not fit float32"),
        ({"observation": np.array([[0, 0], [np.nan, 0]])}, "observation of sub-env 1 is not finite"),
        ({"reward": np.ones((2, 1))}, r"reward has shape \[2, 1\], \[2\] expected"),
        ({"reward": np.array([1, np.nan])}, "reward of sub-env 1 is nan"),
        ({"reward": np.array([np.inf, 0])}, "reward of sub-env 0 is inf"),
        ({"reward": None}, "reward has shape"),
        ({"terminated": np.zeros(2)}, "terminated has dtype float64, which does not fit bool"),
        ({"truncated": np.zeros(3, np.bool_)}, r"truncated has shape \[3\], \[2\] expected"),
        ({"is_reset": False}, r"is_reset has shape \[\], \[2\] expected"),
        ({"terminated": np.array([False, True])}, "the episode of sub-env 1 ended and final_observation is None"),
        (
            {"truncated": np.array([False, True]), "final_observation": np.array([[0, 0], [0, np.inf]])},
            "final_observation of sub-env 1 is not finite",
        ),
        (
            {"truncated": np.array([True, False]), "final_observation": np.zeros(2)},
            r"final_observation has shape \[2\], \[2, 2\] expected",
        ),
        (
            {
                "truncated": np.array([True, False]),
                "is_reset": np.array([True, False]),
                "final_observation": np.zeros((2, 2)),
            },
            "sub-env 0 has is_reset and ended",
        ),
        ({"info": {"torque": np.zeros(3)}}, r"info\['torque'\] has shape \[3\], \[2, \.\.\.\] expected"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes, message):
    with pytest.raises(WorkerError, match=message) as caught:
        step_with(answer(**changes))
    assert caught.value.worker == "env[3]"
    assert caught.value.method == "step"
    assert "scripted" in str(caught.value)
    assert "step 1" in str(caught.value)


def test_an_answer_of_another_kind_is_refused():
    with pytest.raises(WorkerError, match="returned a tuple and not an EnvRet"):
        step_with((np.zeros((2, 2)), np.zeros(2), False, False, {}))


def test_huge_but_finite_numbers_pass():
    # Their squares are infinite in float32.
    assert step_with(answer(observation=np.full((2, 2), 1e30))).observation[0, 0] == np.float32(1e30)


def test_rows_that_did_not_end_never_show_what_a_final_observation_had_for_them():
    ret = step_with(
        answer(
            observation=np.full((2, 2), 5.0),
            truncated=np.array([True, False]),
            final_observation=np.array([[7, 7], [np.nan, np.nan]]),
        )
    )
    assert ret.final_observation.tolist() == [[7, 7], [5, 5]]


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (np.zeros((2, 3), np.float32), r"action has shape \[2, 3\], \[2, 2\] expected"),
        (np.zeros(2, np.float32), r"action has shape \[2\], \[2, 2\] expected"),
        (np.array([[0, 0], [0, np.nan]], np.float32), "action of sub-env 1 is not finite: has the policy diverged"),
        (np.zeros((2, 2), np.complex64), "action has dtype complex64, which does not fit float32"),
    ],
)
def test_an_action_that_does_not_fit_is_refused(action, message):
    with pytest.raises(WorkerError, match=message):
        scripted().step(PolicyResponse(action))


def test_a_fraction_is_no_discrete_action():
    worker = EnvWorker(GymnasiumEnv, COUNTING, 0, 0)
    worker.reset()
    with pytest.raises(WorkerError, match="action has dtype float32, which does not fit int64"):
        worker.step(PolicyResponse(np.zeros(3, np.float32)))


@pytest.mark.parametrize(
    ("space", "action", "message"),
    [
        (gym.spaces.Discrete(2), [0, 2], r"action of sub-env 1 is 2, which is not in Discrete\(2\) \(step 1"),
        (gym.spaces.Discrete(2, start=-1), [-2, 0], "action of sub-env 0 is -2, which is not in Discrete"),
        (gym.spaces.MultiDiscrete([2, 3]), [[1, 2], [2, 0]], r"action of sub-env 1 is \[2 0\], which is not in Multi"),
        (gym.spaces.MultiBinary(2), [[0, 1], [0, 2]], r"action of sub-env 1 is \[0 2\], which is not in MultiBinary"),
        (gym.spaces.Dict(a=gym.spaces.Discrete(2)), {"a": [0, -1]}, r"action\.a of sub-env 1 is -1, which is not"),
    ],
)
def test_an_action_that_is_none_of_the_choices_is_the_policys_fault(space, action, message):
    class Choosing(Scripted):
        action_space = space

        def step(self, response):
            raise AssertionError("the env got the action")

    worker = EnvWorker(Choosing, EnvConfig(name="scripted", num_envs=2), 0, 0)
    worker.reset()
    action = {"a": np.array(action["a"])} if isinstance(action, dict) else np.array(action)
    with pytest.raises(WorkerError, match=message):
        worker.step(PolicyResponse(action))
    assert worker.report() == WorkerReport(0)


def test_a_step_before_a_reset_is_refused():
    worker = EnvWorker(GymnasiumEnv, COUNTING, 0, 0)
    with pytest.raises(ProtocolError, match=r"env\[0\]: call reset before step"):
        worker.step(PolicyResponse(np.zeros(3, np.int64)))


def test_an_env_without_a_description_is_refused():
    class Nameless(Scripted):
        def __init__(self, config):
            self.config = config

    with pytest.raises(ProtocolError, match=r"Nameless must set self\.meta"):
        EnvWorker(Nameless, EnvConfig(name="x", num_envs=2), 0, 0)


def test_an_env_with_another_number_of_rows_is_refused():
    with pytest.raises(ShapeError, match=r"Scripted has 2 sub-envs and env\.num_envs is 5"):
        EnvWorker(Scripted, EnvConfig(name="x", num_envs=5), 0, 0)


def test_a_space_without_a_fixed_shape_is_refused():
    class Talking(Scripted):
        space = gym.spaces.Dict({"said": gym.spaces.Text(5)})

    with pytest.raises(UnsupportedSpace, match=r"a Text space at \.said"):
        EnvWorker(Talking, EnvConfig(name="x", num_envs=2), 0, 0)


def broken(how, **kwargs):
    env_kwargs = {"how": how, **kwargs}
    return EnvConfig(name="tests.env.doubles:broken", num_envs=3, env_kwargs=env_kwargs)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", "sub-env 1: RuntimeError: the motor is off"),
        ("exit", "sub-env 1: SystemExit: 3"),
        ("nan reward", "reward of sub-env 1 is nan"),
        ("inf reward", "reward of sub-env 1 is -inf"),
        ("nan observation", "observation of sub-env 1 is not finite"),
        ("wrong shape", r"observation of sub-env 1 has shape \[3\], \[2\] expected"),
        ("wrong dtype", "observation of sub-env 1 has dtype <U1"),
        ("no array", "observation of sub-env 1 has shape"),
    ],
)
def test_a_broken_simulator_is_named_by_worker_sub_env_and_step(how, message):
    from tests.env.doubles import BrokenEnv

    BrokenEnv.made = 0
    group = EnvGroup([EnvWorker(GymnasiumEnv, broken(how), 0, 0)])
    responses = BatchedData((0,), [PolicyResponse(np.zeros(3, np.int64))])
    gather(group.reset().items)
    for _ in range(2):
        gather(group.step(responses).items)
    failed = group.step(responses)
    with pytest.raises(WorkerError, match=message) as caught:
        gather(failed.items)
    assert "step 3" in str(caught.value)
    assert str(caught.value).startswith("env[0].step")


def test_the_exception_of_the_simulator_is_the_cause(runtime):
    group = EnvGroup([runtime.make(EnvWorker, GymnasiumEnv, broken("raise", at=1, row=0), 0, 0)])
    from tests.env.doubles import BrokenEnv

    BrokenEnv.made = 0
    gather(group.reset().items)
    failed = group.step(BatchedData((0,), [PolicyResponse(np.zeros(3, np.int64))]))
    with pytest.raises(WorkerError, match=r"env\[0\]\.step.*the motor is off.*step 1") as caught:
        gather(failed.items)
    if not runtime.remote:
        assert type(caught.value.__cause__) is RuntimeError


def test_a_failing_reset_is_named():
    from tests.env.doubles import BrokenEnv

    BrokenEnv.made = 0
    worker = EnvWorker(GymnasiumEnv, broken("reset"), 4, 0)
    with pytest.raises(WorkerError, match=r"env\[4\]\.reset.*sub-env 1: RuntimeError: the motor is off"):
        worker.reset()


def test_an_observation_that_does_not_fit_in_a_reset_is_a_cause_without_a_cause():
    class Narrow(gym.Env):
        observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros(3, np.float32), {}

    gym.register("Narrow-v0", entry_point=Narrow)
    try:
        with pytest.raises(WorkerError, match=r"observation of sub-env 0 has shape \[3\], \[2\] expected") as caught:
            EnvWorker(GymnasiumEnv, EnvConfig(name="Narrow-v0", num_envs=2), 0, 0).reset()
    finally:
        del gym.registry["Narrow-v0"]
    cause = caught.value.__cause__
    assert type(cause) is ShapeError
    assert cause.__cause__ is None


def test_popped_episodes_are_gone():
    worker = EnvWorker(GymnasiumEnv, COUNTING, 2, 0)
    worker.reset()
    for _ in range(7):
        worker.step(PolicyResponse(np.zeros(3, np.int64)))
    episodes = worker.pop_episodes()
    assert [(e.worker, e.sub_env, e.length, e.task) for e in episodes] == [
        (2, row, 7, "tests.env.doubles:CountingEnv") for row in range(3)
    ]
    assert worker.pop_episodes() == []


def test_a_reset_in_the_middle_of_an_episode_starts_the_count_again():
    worker = EnvWorker(GymnasiumEnv, COUNTING, 2, 0)
    response = PolicyResponse(np.zeros(3, np.int64))
    worker.reset()
    worker.step(response)
    worker.reset()
    for _ in range(7):
        worker.step(response)
    # The second episode: 7 * 200 + 28.
    assert [(e.length, e.return_) for e in worker.pop_episodes()] == [(7, 1428.0)] * 3


def test_the_current_result_can_be_asked_for_again():
    worker = EnvWorker(GymnasiumEnv, COUNTING, 2, 0)
    worker.reset()
    ret = worker.step(PolicyResponse(np.zeros(3, np.int64)))
    kept = ret.observation.copy()
    ret.observation[:] = -1
    assert (worker.current().observation == kept).all()


def test_an_observation_space_of_bytes_refuses_fractions():
    class Painting(Scripted):
        space = gym.spaces.Box(0, 255, (2,), np.uint8)

        def reset(self, seed=None, options=None):
            return EnvRet.from_reset(np.full((2, 2), 0.5), 2)

    worker = EnvWorker(Painting, EnvConfig(name="x", num_envs=2), 0, 0)
    with pytest.raises(WorkerError, match="observation has dtype float64, which does not fit uint8"):
        worker.reset()


@pytest.mark.parametrize(
    ("space", "observation", "message"),
    [
        (
            gym.spaces.Box(0, 255, (2,), np.uint8),
            np.array([[0, 0], [0, 256]], np.uint16),
            "numbers from 0 to 256, which",
        ),
        (gym.spaces.Box(-9, 9, (2,), np.int8), [[0, 0], [-129, 5]], "numbers from -129 to 5, which do not fit int8"),
        (gym.spaces.Discrete(3, start=2), [2, 5], "observation of sub-env 1 is 5, which is not in"),
        (gym.spaces.MultiDiscrete([3, 4]), [[2, 3], [3, 0]], r"observation of sub-env 1 is \[3 0\], which is not in"),
        (gym.spaces.MultiBinary(2), np.array([[0, 2], [1, 1]], np.int8), "observation of sub-env 0 is"),
    ],
)
def test_whole_numbers_that_their_space_does_not_have_are_refused(space, observation, message):
    class Counting(Scripted):
        def reset(self, seed=None, options=None):
            return EnvRet.from_reset(np.array(observation), 2)

    Counting.space = space
    with pytest.raises(WorkerError, match=message):
        EnvWorker(Counting, EnvConfig(name="x", num_envs=2), 0, 0).reset()


def test_whole_numbers_of_another_kind_that_fit_are_taken():
    class Painting(Scripted):
        space = gym.spaces.Box(0, 255, (2,), np.uint8)

        def reset(self, seed=None, options=None):
            return EnvRet.from_reset(np.array([[0, 255], [7, 0]], np.uint16), 2)

    ret = EnvWorker(Painting, EnvConfig(name="x", num_envs=2), 0, 0).reset()
    assert ret.observation.tolist() == [[0, 255], [7, 0]]


@pytest.mark.parametrize("method", ["__init__", "close", "render"])
def test_an_env_that_ends_the_program_has_failed(method):
    class Leaving(Scripted):
        def leave(self, *args):
            sys.exit(0)

    setattr(Leaving, method, Leaving.leave)
    with pytest.raises(WorkerError, match="SystemExit: 0") as caught:
        getattr(EnvWorker(Leaving, EnvConfig(name="x", num_envs=2), 3, 0), method)()
    assert (caught.value.worker, caught.value.method) == ("env[3]", method)


class Telling(Scripted):
    logged_info = ("speed",)


def test_what_an_env_wants_logged_is_averaged_over_workers_and_steps():
    workers = [EnvWorker(Telling, EnvConfig(name="scripted", num_envs=2), index, 0) for index in range(2)]
    group = EnvGroup(workers)
    group.reset()
    for worker, speeds in zip(workers, ([[1, 2], [3, 4]], [[10, 10]]), strict=True):
        for speed in speeds:
            worker._env.answer = answer(info={"speed": np.array(speed, np.float64), "other": np.ones(2)})
            worker.step(PolicyResponse(np.zeros((2, 2), np.float32)))
    # (1 + 2 + 3 + 4 + 10 + 10) / 6
    assert group.pop_info_means() == {"speed": 5.0}
    assert group.pop_info_means() == {}


def test_a_number_that_is_to_be_logged_and_missing_is_named():
    worker = EnvWorker(Telling, EnvConfig(name="scripted", num_envs=2), 3, 0)
    worker.reset()
    worker._env.answer = answer()
    with pytest.raises(WorkerError, match=r"env\[3\].*the env logs 'speed' and its info has no such name"):
        worker.step(PolicyResponse(np.zeros((2, 2), np.float32)))
