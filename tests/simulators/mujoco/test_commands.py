"""What a task keeps per world and episode, what actions mean, what is noisy, and what holds a start.

The robot is an arm of two hinges with position servos and without gravity; its keyframe "bent" is (0.5, -0.8).
"""

import mujoco
import numpy as np
import pytest

from rlightning.config import EnvConfig
from rlightning.env import EnvWorker
from rlightning.errors import CheckpointError, ConfigError, ShapeError
from rlightning.registry import register
from rlightning.simulators.mujoco.drawing import find_root, find_tracking_camera
from rlightning.simulators.mujoco.env import MujocoEnv
from rlightning.simulators.mujoco.task import Task, TaskOptions
from rlightning.simulators.mujoco.worlds import Variables, Worlds, holding_controls
from rlightning.types import PolicyResponse

BENT = (0.5, -0.8)
ARM = """
<mujoco model="arm">
  <option gravity="0 0 0" timestep="0.01"/>
  <worldbody>
    <body name="upper">
      <joint name="shoulder" axis="0 0 1" damping="0.5"/>
      <geom type="capsule" fromto="0 0 0 1 0 0" size="0.05" mass="1"/>
      <body name="lower" pos="1 0 0">
        <joint name="elbow" axis="0 0 1" damping="0.5"/>
        <geom type="capsule" fromto="0 0 0 1 0 0" size="0.05" mass="1"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="shoulder" joint="shoulder" kp="30" ctrlrange="-3 3"/>
    <position name="elbow" joint="elbow" kp="30" ctrlrange="-2 1"/>
  </actuator>
  <keyframe>
    <key name="bent" qpos="0.5 -0.8" ctrl="0.5 -0.8"/>
    <key name="pulled" qpos="0.5 -0.8" ctrl="0.6 -0.8"/>
    <key name="limp" qpos="0.5 -0.8"/>
  </keyframe>
</mujoco>
"""
N = 3


class ArmOptions(TaskOptions):
    xml_file: str = ""
    start_at: tuple[float, float] | None = None


@register("mujoco_task", "test/arm")
class Arm(Task[ArmOptions]):
    Options = ArmOptions
    max_episode_steps = 4

    def variables(self):
        return {"command": np.zeros(2), "age": np.int64(0), "swayed": 0.0}

    def start(self, streams):
        streams.variables["command"][streams.rows] = streams.uniform(-1.0, 1.0, 2)
        at = self.init_qpos if self.options.start_at is None else self.options.start_at
        return np.tile(at, (len(streams.rows), 1)), np.zeros((len(streams.rows), 2))

    def update(self, worlds, streams):
        worlds.variables["age"] += 1
        worlds.variables["swayed"] = streams.uniform(0.0, 1.0, 1)[:, 0]

    def observe(self, worlds):
        return {"joints": worlds.qpos, "speeds": worlds.qvel, "command": worlds.variables["command"]}

    def rewards(self, worlds):
        return {"reward_age": worlds.variables["age"].astype(float), "reward_sway": worlds.variables["swayed"].copy()}

    def terminated(self, worlds):
        # World 0 alone ends early.
        return (worlds.variables["age"] == 2) & (np.arange(worlds.num_envs) == 0) & (worlds.num_envs == N)


@pytest.fixture
def make(tmp_path):
    """Makes arms."""

    def make(num_envs=N, index=0, **env_kwargs):
        path = tmp_path / "arm.xml"
        path.write_text(ARM)
        kwargs = {"xml_file": str(path), **env_kwargs}
        config = EnvConfig(name="test/arm", backend="mujoco", num_envs=num_envs, env_kwargs=kwargs)
        worker = EnvWorker(MujocoEnv, config, index, 7, "train")
        worker.reset()
        return worker

    return make


def act(arm, action):
    rows = arm.get_meta().num_envs
    return arm.step(PolicyResponse(np.tile(np.asarray(action, np.float32), (rows, 1))))


@pytest.mark.parametrize(
    "kwargs",
    [
        {"start_at": BENT},
        {"start_at": BENT, "scale_actions": True},
        {"start_at": BENT, "action_scale": 0.25, "action_offset": {"elbow": 0.3}},
        {"keyframe": "bent"},
        {"keyframe": "limp"},
    ],
)
def test_what_is_late_begins_with_what_holds_the_start(make, kwargs):
    arm = make(randomisation={"action_delay": [3, 3], "gain": [0.5, 2.0]}, **kwargs)
    for _ in range(2):
        # Three actions of the start, and one of the policy; the fourth step ends the episode.
        for _ in range(3 if kwargs else 2):
            act(arm, [0.0, 0.0])
            assert np.abs(arm._env.worlds.qvel[1:]).max() < 1e-5
        act(arm, [0.0, 0.0])


def test_late_actions_begin_with_the_controls_of_the_keyframe(make):
    arm = make(keyframe="pulled", randomisation={"action_delay": [3, 3]})
    act(arm, [0.0, 0.0])
    assert np.array_equal(arm._env.worlds.ctrl[1:], np.tile(np.float32([0.6, -0.8]), (N - 1, 1)))


def test_only_position_servos_hold():
    # Forces at rest: 20 * (u - q) with a gear of 2, so that the length is 2 q; a motor; a damper.
    model = mujoco.MjModel.from_xml_string("""
    <mujoco><worldbody><body><joint name="j"/><geom size="0.1"/></body></worldbody>
    <actuator><position joint="j" kp="20" gear="2"/><motor joint="j"/><velocity joint="j" kv="3"/></actuator></mujoco>
    """)
    data = mujoco.MjData(model)
    data.qpos[:] = 0.4
    mujoco.mj_forward(model, data)
    assert holding_controls(model, data) == pytest.approx([0.8, 0, 0])


def test_each_world_and_episode_has_its_own_variables(make):
    arm = make()
    variables = arm._env.worlds.variables
    first = variables["command"].copy()
    assert len(np.unique(first)) == 2 * N
    ret = act(arm, BENT)
    assert np.array_equal(ret.observation[:, 4:], np.float32(first))
    assert ret.info["reward_age"].tolist() == [1, 1, 1]
    ret = act(arm, BENT)
    assert ret.terminated.tolist() == [True, False, False]
    assert ret.info["reward_age"].tolist() == [2, 2, 2]
    assert variables["age"].tolist() == [0, 2, 2]
    assert np.array_equal(ret.final_observation[0, 4:], np.float32(first[0]))
    assert (variables["command"][0] != first[0]).all()
    assert np.array_equal(variables["command"][1:], first[1:])


def test_variables_and_noise_of_a_world_depend_on_its_own_seed_alone(make):
    noise = {"observation_noise": {"joints": 0.1}}
    arms, whole = [make(1, index, randomisation=noise) for index in range(2)], make(2, randomisation=noise)
    whole._env.reset([5, 6])
    for arm, seed in zip(arms, (5, 6), strict=True):
        arm._env.reset([seed])
    for _ in range(6):
        rows = [act(arm, BENT) for arm in arms]
        together = act(whole, BENT)
        assert np.array_equal(np.concatenate([row.observation for row in rows]), together.observation)
        assert np.array_equal(np.concatenate([row.reward for row in rows]), together.reward)


def test_variables_and_noise_go_on_after_a_resume(make):
    noise = {"observation_noise": {"joints": 0.1, "speeds": 0.5}}
    arm, other = make(randomisation=noise), make(randomisation=noise)
    act(arm, BENT)
    other.set_state(arm.get_state())
    for _ in range(6):
        one, two = act(arm, BENT), act(other, BENT)
        assert np.array_equal(one.observation, two.observation)
        assert np.array_equal(one.reward, two.reward)


def test_a_state_with_other_variables_is_refused(make, monkeypatch):
    arm = make()
    state = arm._env.get_state()
    declared = arm._env.task.variables()
    monkeypatch.setattr(Arm, "variables", lambda self: {**declared, "more": 0})
    with pytest.raises(CheckpointError, match=r"the variables .*, and the task declares"):
        make()._env.set_state(state)


def test_a_variable_keeps_its_name_and_its_shape(make):
    variables = make()._env.worlds.variables
    with pytest.raises(KeyError, match="no variable 'comand'; did you mean 'command'"):
        variables["comand"]
    with pytest.raises(ShapeError, match=r"'command' got shape \[3\], \[3, 2\] expected"):
        variables["command"] = np.zeros(N)


def test_a_control_is_the_offset_plus_the_scaled_action(make):
    arm = make(keyframe="bent", action_offset="start", action_scale={"elbow": 0.25})
    space = arm.get_meta().action_space
    assert np.isinf(space.low).all()
    assert np.isinf(space.high).all()
    act(arm, [0.0, 0.0])
    assert np.array_equal(arm._env.worlds.ctrl, np.tile(BENT, (N, 1)))
    act(arm, [1.0, -2.0])
    assert arm._env.worlds.ctrl[1:] == pytest.approx(np.tile([1.5, -1.3], (N - 1, 1)))


def test_noise_is_that_of_its_term(make):
    quiet, noisy = make(), make(randomisation={"observation_noise": {"speeds": 0.5}})
    drawn = []
    for _ in range(10):
        ret, bare = act(noisy, BENT), act(quiet, BENT)
        difference = ret.observation - bare.observation
        # Numbers of the other terms are those without noise, also of starts.
        assert (difference[:, [0, 1, 4, 5]] == 0).all()
        drawn.append(difference[:, 2:4])
    assert len(np.unique(drawn)) == 10 * N * 2
    assert 0.3 < np.abs(drawn).max() <= 0.5


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"keyframe": "bend"}, "no keyframe 'bend'; it has bent, pulled, limp"),
        ({"action_scale": {"elbw": 1.0}}, "env.env_kwargs.action_scale.elbow"),
        ({"action_offset": {"shoulde": 1.0}}, "env.env_kwargs.action_offset.shoulder"),
        ({"action_scale": 1.0, "scale_actions": True}, "leave out action_scale"),
        ({"randomisation": {"observation_noise": {"speed": 1.0}}}, "observation_noise.speeds"),
        ({"randomisation": {"observation_noise": {"speeds": -1.0}}}, "finite and at least 0"),
    ],
)
def test_names_and_sizes_that_are_wrong_are_refused(make, kwargs, message):
    with pytest.raises(ConfigError, match=message):
        make(**kwargs)


@pytest.mark.parametrize(
    ("camera", "joint", "tracking", "root"),
    [
        ("", "<freejoint/>", None, 2),
        ("", "<joint type='hinge'/>", None, None),
        ("<camera name='fixed'/><camera name='behind' mode='trackcom'/>", "<freejoint/>", 1, 2),
        ("<camera name='a' mode='trackcom'/><camera name='track'/>", "<freejoint/>", 1, 2),
    ],
)
def test_the_camera_follows_the_robot(camera, joint, tracking, root):
    model = mujoco.MjModel.from_xml_string(f"""
    <mujoco><worldbody><body name="stone" pos="3 0 0"><geom size="0.1"/></body>
    <body name="robot">{joint}{camera}<geom size="0.1"/></body></worldbody></mujoco>
    """)
    assert (find_tracking_camera(model), find_root(model)) == (tracking, root)


def test_a_field_that_is_not_read_and_a_variable_that_is_no_number_are_named():
    worlds = Worlds(mujoco.MjModel.from_xml_string("<mujoco/>"), 2, 1, reads=("qacc",))
    with pytest.raises(KeyError, match="'xquat' is not read: add it to the task's reads, which has qacc"):
        worlds.read["xquat"]
    with pytest.raises(ShapeError, match="variable 'mode' of the task is <U4; numbers expected"):
        Variables({"mode": "walk"}, 2)
