"""Each of Gymnasium's tasks is the same in batches: starts, observations, reward terms, flags and info."""

import gymnasium as gym
import numpy as np
import pytest

from rlightning.config import EnvConfig
from rlightning.registry import names
from rlightning.simulators.mujoco.env import MujocoEnv
from rlightning.simulators.mujoco.loading import quiet_loading
from rlightning.types import PolicyResponse

SEEDS = [11, 12]
STEPS = 300
ALMOST = {"rtol": 1e-8, "atol": 1e-8}

CASES = {
    **{name: {"name": name} for name in names("mujoco_task") if name.endswith("-v5")},
    "HalfCheetah with options": {
        "name": "HalfCheetah-v5",
        "env_kwargs": {
            "frame_skip": 3,
            "forward_reward_weight": 2.0,
            "ctrl_cost_weight": 0.3,
            "reset_noise_scale": 0.2,
            "exclude_current_positions_from_observation": False,
        },
        "max_episode_steps": 100,
    },
    "Hopper that goes on": {
        "name": "Hopper-v5",
        "env_kwargs": {
            "terminate_when_unhealthy": False,
            "healthy_reward": 3.0,
            "healthy_state_range": [-5.0, 5.0],
            "healthy_angle_range": [-0.1, 0.3],
            "healthy_z_range": [0.8, 2.0],
        },
    },
    "Walker2d with another range": {
        "name": "Walker2d-v5",
        "env_kwargs": {"healthy_z_range": [1.1, 2.0], "xml_file": "walker2d.xml"},
    },
    "Ant without contact forces": {
        "name": "Ant-v5",
        "env_kwargs": {
            "main_body": "aux_1",
            "include_cfrc_ext_in_observation": False,
            "contact_force_range": [-0.5, 2.0],
            "contact_cost_weight": 0.1,
            "healthy_z_range": [0.3, 0.9],
        },
    },
    "Humanoid that sees less": {
        "name": "Humanoid-v5",
        "env_kwargs": {
            "include_cinert_in_observation": False,
            "include_cfrc_ext_in_observation": False,
            "contact_cost_weight": 1e-4,
            "contact_cost_range": [0.1, 2.0],
            "exclude_current_positions_from_observation": False,
        },
    },
    "HumanoidStandup that sees less": {
        "name": "HumanoidStandup-v5",
        "env_kwargs": {
            "include_cvel_in_observation": False,
            "include_qfrc_actuator_in_observation": False,
            "impact_cost_range": [0.01, 0.5],
        },
    },
    "Pusher with weights": {
        "name": "Pusher-v5",
        "env_kwargs": {"reward_near_weight": 2.0, "reward_dist_weight": 0.3, "reward_control_weight": 1.0},
    },
    "InvertedDoublePendulum with less reward": {
        "name": "InvertedDoublePendulum-v5",
        "env_kwargs": {"healthy_reward": 2.5, "reset_noise_scale": 0.02},
    },
}


def gymnasium_envs(name, env_kwargs=None, max_episode_steps=None):
    tuples = {key: tuple(value) if isinstance(value, list) else value for key, value in (env_kwargs or {}).items()}
    with quiet_loading():
        return [gym.make(name, max_episode_steps=max_episode_steps, disable_env_checker=True, **tuples) for _ in SEEDS]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_task_is_gymnasiums_step_by_step(case):
    usual = MujocoEnv(EnvConfig(backend="mujoco", num_envs=1, **case))
    assert usual.meta.max_episode_steps == gymnasium_envs(**case)[0].spec.max_episode_steps
    usual.close()
    if usual.meta.max_episode_steps > STEPS:  # so that each task is truncated while it is watched
        case = {**case, "max_episode_steps": STEPS - 50}
    singles = gymnasium_envs(**case)
    batch = MujocoEnv(EnvConfig(backend="mujoco", num_envs=len(SEEDS), **case))
    assert batch.meta.observation_space == singles[0].observation_space
    assert batch.meta.action_space == singles[0].action_space
    assert batch.meta.max_episode_steps == singles[0].spec.max_episode_steps

    ret = batch.reset(SEEDS)
    starts = [env.reset(seed=seed) for env, seed in zip(singles, SEEDS, strict=True)]
    same_rows(ret.observation, [observation for observation, _ in starts])
    same_info(ret.info, [info for _, info in starts])
    actions = np.random.default_rng(5)
    ends = 0
    for _ in range(STEPS):
        # Actions outside of the range of the controls, too: MuJoCo cuts them, and they cost as they are.
        high = batch.meta.action_space.high
        action = (1.2 * high * actions.uniform(-1, 1, (len(SEEDS), len(high)))).astype(np.float32)
        ret = batch.step(PolicyResponse(action.copy()))
        outcomes = [env.step(row) for env, row in zip(singles, action, strict=True)]
        observations, rewards, terminated, truncated, infos = zip(*outcomes, strict=True)
        np.testing.assert_allclose(ret.reward, rewards, **ALMOST)
        assert ret.terminated.tolist() == list(terminated)
        assert ret.truncated.tolist() == list(truncated)
        assert not ret.is_reset.any()
        same_info(ret.info, infos)
        ended = np.flatnonzero(ret.ended)
        ends += len(ended)
        seen = list(observations)
        for i in ended:
            same_rows(ret.final_observation[i], observations[i])
            seen[i] = singles[i].reset()[0]
        assert (ret.final_observation is None) == (len(ended) == 0)
        same_rows(ret.observation, seen)
    batch.close()
    assert ends >= len(SEEDS)


def same_rows(found, wanted):
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, np.array(wanted), **ALMOST)


def same_info(found, wanted):
    # The 1 that HumanoidStandup adds to its reward is a term of its own here.
    assert set(found) - {"reward_constant"} == set(wanted[0])
    for name in wanted[0]:
        np.testing.assert_allclose(found[name], np.array([info[name] for info in wanted]), **ALMOST, err_msg=name)


@pytest.mark.parametrize("name", ["Pusher-v5", "Humanoid-v5"])
def test_scaled_actions_are_those_of_gymnasiums_wrapper(name):
    # Controls reach from -2 to 2 and from -0.4 to 0.4, and their cost is one of controls.
    single = gym.wrappers.RescaleAction(gymnasium_envs(name)[0], np.float32(-1), np.float32(1))
    batch = MujocoEnv(EnvConfig(name=name, backend="mujoco", env_kwargs={"scale_actions": True}))
    assert batch.meta.action_space == single.action_space
    batch.reset([11])
    single.reset(seed=11)
    actions = np.random.default_rng(5)
    for _ in range(15):
        action = actions.uniform(-1, 1, batch.meta.action_space.shape).astype(np.float32)
        ret = batch.step(PolicyResponse(action[None].copy()))
        observation, reward, *_ = single.step(action)
        np.testing.assert_allclose(ret.observation[0], observation, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(ret.reward[0], reward, rtol=1e-4)
        assert not ret.ended.any()
