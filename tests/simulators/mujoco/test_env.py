"""The backend mujoco keeps the promises of an env: seeds, threads, states, options, pictures."""

import os
import subprocess
import sys

import mujoco
import numpy as np
import pytest

from rlightning.checkpoint import load_state, save_state
from rlightning.config import EnvConfig
from rlightning.env import EnvWorker
from rlightning.errors import CheckpointError, ConfigError
from rlightning.simulators.mujoco.env import MujocoEnv
from rlightning.simulators.mujoco.loading import load_model
from rlightning.types import PolicyResponse
from tests.architecture.source import ROOT

RANDOMISED = {
    "randomisation": {
        "mass": [0.5, 2.0],
        "friction": [0.5, 1.5],
        "gain": [0.8, 1.2],
        "action_delay": [0, 3],
        "observation_delay": [1, 2],
        "push": {"body": "torso", "force_n": [50.0, 100.0], "interval": [10, 20]},
    },
    "curriculum": {"follows": "success", "start": 0.5},
}


def config(name="HalfCheetah-v5", num_envs=3, limit=25, **env_kwargs):
    return EnvConfig(
        name=name, backend="mujoco", num_envs=num_envs, max_episode_steps=limit, env_kwargs=dict(env_kwargs)
    )


def worker(*args, seed=7, purpose="train", **env_kwargs):
    return EnvWorker(MujocoEnv, config(*args, **env_kwargs), 0, seed, purpose)


def script(env_worker, steps, seed=3):
    rng = np.random.default_rng(seed)
    shape = (env_worker.get_meta().num_envs, *env_worker.get_meta().action_space.shape)
    return [PolicyResponse(rng.uniform(-1, 1, shape).astype(np.float32)) for _ in range(steps)]


def play(env_worker, steps=60):
    return [env_worker.reset(), *(env_worker.step(response) for response in script(env_worker, steps))]


def assert_same(left, right):
    for a, b in zip(left, right, strict=True):
        for field in ("observation", "reward", "terminated", "truncated", "is_reset", "final_observation"):
            x, y = getattr(a, field), getattr(b, field)
            assert (x is None and y is None) or (x.dtype == y.dtype and x.tobytes() == y.tobytes())
        assert a.info.keys() == b.info.keys()
        assert all(a.info[name].tobytes() == b.info[name].tobytes() for name in a.info)


@pytest.mark.parametrize("name", ["HalfCheetah-v5", "Ant-v5"])
def test_the_number_of_threads_changes_no_bit(name):
    # Seven worlds are no multiple of anything here.
    alone, three, ten = (play(worker(name, 7, threads=threads)) for threads in (0, 3, 10))
    assert_same(alone, three)
    assert_same(alone, ten)


def test_threads_change_no_bit_of_randomised_worlds():
    alone, three = (play(worker("Ant-v5", 5, threads=threads, **RANDOMISED)) for threads in (1, 3))
    assert_same(alone, three)


def test_a_world_with_factors_steps_like_a_model_that_is_written_with_them():
    factors = {"mass": [1.7, 1.7], "friction": [0.6, 0.6], "gain": [1.3, 1.3]}
    env = MujocoEnv(config("Humanoid-v5", 2, None, threads=2, randomisation=factors))
    env.reset([5, 6])
    model = load_model("humanoid.xml")
    model.body_mass[:] *= 1.7
    model.body_inertia[:] *= 1.7
    model.geom_friction[:] *= 0.6
    model.actuator_gainprm[:] *= 1.3
    model.actuator_biasprm[:] *= 1.3
    data = mujoco.MjData(model)
    mujoco.mj_setConst(model, data)
    mujoco.mj_resetData(model, data)
    data.qpos[:], data.qvel[:] = env.worlds.qpos[0], env.worlds.qvel[0]
    mujoco.mj_forward(model, data)
    for response in script(EnvWorker(MujocoEnv, env.config, 0, 7), 15):
        data.ctrl[:] = response.action[0]
        mujoco.mj_step(model, data, 5)
        ret = env.step(response)
        assert not ret.ended[0]
        assert (env.worlds.qpos[0] == data.qpos).all()
        assert (env.worlds.read["qfrc_actuator"][0] == data.qfrc_actuator).all()
    # Nothing of it is left in the model that all share.
    assert env.worlds.model.body_mass.sum() * 1.7 == pytest.approx(model.body_mass.sum())


def test_every_sub_env_starts_differently_and_a_second_run_repeats():
    starts = [play(worker("Hopper-v5", 4, None), 0)[0].observation for _ in range(2)]
    assert (starts[0] == starts[1]).all()
    assert len({row.tobytes() for row in starts[0]}) == 4
    assert not (play(worker("Hopper-v5", 4, None, seed=8), 0)[0].observation == starts[0]).any()


@pytest.mark.parametrize("env_kwargs", [{}, RANDOMISED], ids=["plain", "randomised"])
def test_a_fresh_env_goes_on_bit_for_bit(env_kwargs, tmp_path):
    first = worker("Ant-v5", **env_kwargs)
    responses = script(first, 120)
    first.reset()
    for response in responses[:40]:
        last = first.step(response)
    save_state(tmp_path / "state", {"env": first.get_state()})
    expected = [last, *(first.step(response) for response in responses[40:])]
    # Another seed: nothing may depend on how the fresh env started.
    fresh = worker("Ant-v5", seed=8, **env_kwargs)
    found = [fresh.set_state(load_state(tmp_path / "state")["env"])]
    found += [fresh.step(response) for response in responses[40:]]
    assert_same(expected, found)
    episodes = first.pop_episodes()
    assert episodes == fresh.pop_episodes()
    # 120 steps of 3 worlds, cut after 25 at the latest.
    assert len(episodes) >= 12


def test_a_state_of_another_model_or_other_randomisation_is_refused():
    plain, other, randomised = worker("Ant-v5"), worker("HalfCheetah-v5"), worker("Ant-v5", **RANDOMISED)
    plain.reset()
    state = plain.get_state()
    with pytest.raises(CheckpointError, match="of Ant-v5"):
        other.set_state(state)
    for wrong in (other, randomised):
        with pytest.raises(CheckpointError, match="another model, version of MuJoCo, or randomisation"):
            wrong.set_state({**state, "env_name": wrong.get_meta().name})


def test_the_last_observation_of_an_episode_and_the_first_of_the_next_are_both_there():
    rets = play(worker("HalfCheetah-v5", 2, 3), 4)
    assert [bool(ret.truncated.all()) for ret in rets] == [False, False, False, True, False]
    # A start is near the model's position (noise 0.1), after 3 steps the cheetah is elsewhere.
    assert np.abs(rets[3].observation[:, :8]).max() < 0.1
    assert (rets[3].final_observation != rets[3].observation).all()
    # What info tells belongs to the step that ended the episode and not to the start of the next one.
    moved = rets[3].info["x_position"] - rets[2].info["x_position"]
    assert np.allclose(moved, 0.05 * rets[3].info["x_velocity"], atol=1e-12)


@pytest.mark.parametrize(
    ("name", "env_kwargs", "message"),
    [
        ("HalfChetah-v5", {}, r"env\.name: .*did you mean 'HalfCheetah-v5'"),
        (
            "HalfCheetah-v5",
            {"ctrl_cost_wieght": 1.0},
            r"env\.env_kwargs\.ctrl_cost_wieght: .*'env\.env_kwargs\.ctrl_cost_weight'",
        ),
        ("HalfCheetah-v5", {"healthy_reward": 1.0}, r"env\.env_kwargs\.healthy_reward: there is no such option"),
        ("HalfCheetah-v5", {"frame_skip": 0}, r"env\.env_kwargs\.frame_skip: .*greater than or equal to 1; got 0"),
        ("HalfCheetah-v5", {"xml_file": "robot.xml"}, "robot.xml; a path of your own begins with '/', '.' or '~'"),
        ("HalfCheetah-v5", {"xml_file": "./no.xml"}, "there is no file no.xml"),
        ("Ant-v5", {"main_body": "torsoo"}, r"env\.env_kwargs\.main_body: there is no body 'torsoo'; .*torso"),
        ("Ant-v5", {"randomisation": {"mass": [2.0, 1.0]}}, r"env_kwargs\.randomisation: .*mass is to be a lowest"),
        ("Ant-v5", {"randomisation": {"action_delay": [-1, 1]}}, "action_delay is to be a lowest"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(name, env_kwargs, message):
    with pytest.raises(ConfigError, match=message):
        MujocoEnv(config(name, **env_kwargs))


def test_all_problems_of_the_options_are_named_at_once():
    with pytest.raises(ConfigError) as caught:
        MujocoEnv(config(frame_skip="5", nonsense=1))
    assert len(caught.value.problems) == 2


def test_a_file_that_is_no_model_is_refused(tmp_path):
    path = tmp_path / "broken.xml"
    path.write_text("<mujoco><worldbody><geom/></worldbody></mujoco>")
    with pytest.raises(ConfigError, match=r"xml_file: MuJoCo cannot read .*broken\.xml"):
        MujocoEnv(config(xml_file=str(path)))


def test_stepping_one_by_one_is_another_backend():
    with pytest.raises(ConfigError, match="steps natively"):
        MujocoEnv(EnvConfig(name="Ant-v5", backend="mujoco", vectorization="sync"))


def test_reward_terms_are_logged_one_by_one():
    cheetah = worker("HalfCheetah-v5", 2)
    rets = play(cheetah, 5)
    sums, steps = cheetah.pop_info()
    assert steps == 5 * 2
    assert set(sums) == {"reward_forward", "reward_ctrl"}
    for name, value in sums.items():
        assert value == pytest.approx(sum(float(ret.info[name].sum()) for ret in rets[1:]))
    assert sum(sums.values()) == pytest.approx(sum(float(ret.reward.sum()) for ret in rets), rel=1e-5)
    assert cheetah.pop_info() == ({}, 0)


CANNOT_DRAW = 77
PICTURES = f"""
import sys

import mujoco
import numpy as np

try:
    mujoco.GLContext(8, 8).make_current()
except Exception:
    sys.exit({CANNOT_DRAW})

from rlightning.config import EnvConfig
from rlightning.simulators.mujoco.env import MujocoEnv
from rlightning.types import PolicyResponse

kwargs = {{"width": 64, "height": 48}}
envs = [MujocoEnv(EnvConfig(name="Hopper-v5", backend="mujoco", num_envs=2, env_kwargs=kwargs)) for _ in range(2)]
rets = [env.reset([3, 4]) for env in envs]
first = envs[0].render()
for _ in range(20):
    rets = [env.step(PolicyResponse(np.ones((2, 3), np.float32))) for env in envs]
    frame = envs[0].render()
assert frame.shape == (48, 64, 3) and frame.dtype == np.uint8
assert frame.std() > 5 and (frame != first).any()
assert (rets[0].observation == rets[1].observation).all(), "drawing changes the worlds"
for env in envs:
    env.close()
"""


@pytest.mark.slow
def test_the_first_world_is_drawn_without_a_screen_and_left_as_it_is():
    for backend in ("egl", "osmesa"):
        # In a process of its own: MuJoCo chooses how to draw when it is imported.
        done = subprocess.run(
            [sys.executable, "-c", PICTURES],
            cwd=ROOT,
            env={**os.environ, "MUJOCO_GL": backend},
            capture_output=True,
            text=True,
            timeout=100,
        )
        if done.returncode == CANNOT_DRAW:
            continue
        assert done.returncode == 0, done.stderr
        return
    pytest.skip("there is neither EGL nor OSMesa here")
