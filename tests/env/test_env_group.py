"""The controller's view of env workers is the same wherever they live."""

import gymnasium as gym
import numpy as np
import pytest

from rlightning.config import EnvConfig
from rlightning.env import EnvGroup, EnvWorker
from rlightning.errors import CallTimeout, CheckpointError, ConfigError, WorkerError
from rlightning.runtime import LocalFuture, gather
from rlightning.runtime.spawn import WorkerPool, WorkerSpec
from rlightning.simulators.gymnasium import GymnasiumEnv
from rlightning.types import BatchedData, PolicyResponse

COUNTING = EnvConfig(name="tests.env.doubles:CountingEnv", num_envs=2, task="count")
LONGER = EnvConfig(name="tests.env.doubles:counting_vector", num_envs=3, env_kwargs={"mode": "NextStep"})
RANDOM = EnvConfig(name="tests.env.doubles:RandomEnv", num_envs=2)


def here(cls, *args):
    return cls(*args)


def make_group(make, *configs, **options):
    return EnvGroup([make(EnvWorker, GymnasiumEnv, c, i, 7) for i, c in enumerate(configs)], **options)


def zeros(group):
    return BatchedData(group.env_ids, [PolicyResponse(np.zeros(meta.num_envs, np.int64)) for meta in group.env_metas])


def test_different_envs_with_equal_spaces_form_one_group_that_a_state_carries_on(runtime):
    group = make_group(runtime.make, COUNTING, LONGER)
    assert group.env_ids == (0, 1)
    assert (len(group), group.num_envs, group.env_meta.num_envs) == (2, 5, 5)
    assert group.env_meta.name == "tests.env.doubles:CountingEnv, tests.env.doubles:counting_vector"
    assert group.sub_envs == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert [info.remote for info in group.infos()] == [runtime.remote] * 2
    assert [ret.num_envs for ret in gather(group.reset().items)] == [2, 3]
    for _ in range(5):
        gather(group.step(zeros(group)).items)
    state = group.get_state()
    for _ in range(2):
        rets = gather(group.step(zeros(group)).items)
    assert [ret.terminated.tolist() for ret in rets] == [[True] * 2, [True] * 3]
    episodes = group.pop_episodes()
    assert [(e.worker, e.sub_env, e.task) for e in episodes] == [
        (0, 0, "count"),
        (0, 1, "count"),
        *((1, row, "tests.env.doubles:counting_vector") for row in range(3)),
    ]
    group.close()
    group.close()

    other = make_group(here, COUNTING, LONGER)
    current = gather(other.set_state(state).items)
    assert [ret.observation[0].tolist() for ret in current] == [[1, 5], [1, 5]]
    for _ in range(2):
        gather(other.step(zeros(other)).items)
    assert other.pop_episodes() == episodes
    # 5 steps were made before and 2 after: 7 * 100 + (1 + ... + 7).
    assert [(e.length, e.return_) for e in episodes] == [(7, 728.0)] * 5


def test_a_part_of_the_workers_can_be_stepped():
    group = make_group(here, COUNTING, LONGER)
    gather(group.reset().items)
    stepped = group.step(BatchedData([1], [PolicyResponse(np.zeros(3, np.int64))]))
    assert list(stepped.env_ids) == [1]
    rets = gather(group.step(zeros(group)).items)
    assert [ret.observation[0].tolist() for ret in rets] == [[1, 1], [1, 2]]


def test_a_response_may_be_a_future():
    group = make_group(here, COUNTING)
    gather(group.reset().items)
    response = LocalFuture(PolicyResponse(np.zeros(2, np.int64)))
    assert group.step(BatchedData([0], [response]))[0].result().observation[0].tolist() == [1, 1]


def test_envs_that_no_policy_could_serve_together_are_refused():
    with pytest.raises(ConfigError, match=r"env\.1\.name: .*RandomEnv has another observation space than .*Counting"):
        make_group(here, COUNTING, RANDOM)


def test_a_group_without_workers_is_refused():
    with pytest.raises(ConfigError, match="there are no env workers"):
        EnvGroup([])


def test_a_failure_names_the_worker_and_leaves_the_others_alone():
    group = make_group(here, COUNTING, LONGER)
    gather(group.reset().items)
    bad = PolicyResponse(np.zeros(5, np.int64))
    stepped = group.step(BatchedData([0, 1], [zeros(group)[0], bad]))
    assert stepped[0].result().observation[0].tolist() == [1, 1]
    with pytest.raises(WorkerError, match=r"env\[1\]\.step.*action has shape \[5\], \[3\] expected"):
        stepped[1].result()


def test_a_worker_without_a_state_starts_other_episodes_than_at_first():
    group = make_group(here, RANDOM)
    first = group.reset()[0].result().observation
    later = group.set_state([None], generation=3)[0].result()
    assert later.is_reset.all()
    assert not (later.observation == first).any()
    other = group.set_state([None], generation=4)[0].result()
    assert not (later.observation == other.observation).any()


def test_states_of_another_number_of_workers_are_refused():
    group = make_group(here, COUNTING)
    with pytest.raises(CheckpointError, match="2 env states for 1 env workers"):
        group.set_state([None, None])


def test_a_state_of_another_env_is_refused():
    group, other = make_group(here, COUNTING), make_group(here, RANDOM)
    gather(other.reset().items)
    with pytest.raises(WorkerError, match=r"env\[0\] runs 2 sub-envs of .*CountingEnv, and the state is that of 2"):
        gather(group.set_state(other.get_state()).items)


def test_what_was_started_for_the_workers_is_ended_once_even_if_an_env_fails_to_close():
    class Stuck(gym.Env):
        observation_space = action_space = gym.spaces.Discrete(2)

        def close(self):
            raise RuntimeError("stuck")

    ended = []
    worker = EnvWorker(GymnasiumEnv, COUNTING, 0, 0)
    worker._env._rows.envs[0] = Stuck()
    group = EnvGroup([worker], on_close=lambda: ended.append(True))
    with pytest.raises(WorkerError, match=r"env\[0\]\.close .*CountingEnv: sub-env 0: RuntimeError: stuck"):
        group.close()
    group.close()
    assert ended == [True]


@pytest.mark.ray
def test_nobody_waits_for_ever_for_a_process_whose_env_does_not_close(ray_cluster, monkeypatch):
    monkeypatch.setattr("rlightning.env.env_group._CLOSE_S", 1.0)
    args = (GymnasiumEnv, EnvConfig(name="tests.env.doubles:NeverClosed"), 0, 7)
    pool = WorkerPool()
    group = EnvGroup(pool.start([WorkerSpec(EnvWorker, args, "env[0]", True, num_cpus=0.01)]), on_close=pool.stop)
    with pytest.raises(CallTimeout, match=r"env\[0\]\.close"):
        group.close()
