"""A model of one's own and a few functions are an env; what varies from world to world obeys Newton.

The robot is a puck of 2 kg that slides without friction in x and y; a force in x is its only control. A step is five
times 0.01 s, so that a force F adds F / 2 * 0.05 = F / 40 to its velocity.
"""

import numpy as np
import pytest

from rlightning.config import EnvConfig
from rlightning.env import EnvWorker
from rlightning.errors import ConfigError, ShapeError, WorkerError
from rlightning.registry import register
from rlightning.simulators.mujoco.env import MujocoEnv
from rlightning.simulators.mujoco.task import Task, TaskOptions
from rlightning.types import PolicyResponse

PUCK = """
<mujoco model="puck">
  <option gravity="0 0 0" timestep="0.01"/>
  <worldbody>
    <body name="puck">
      <joint name="x" type="slide" axis="1 0 0"/>
      <joint name="y" type="slide" axis="0 1 0"/>
      <geom name="disc" type="cylinder" size="0.1 0.02" mass="2" friction="0.8 0.01 0.001"/>
      <site name="centre"/>
    </body>
  </worldbody>
  <actuator><motor name="push" joint="x" {range}/></actuator>
  <sensor>
    <framelinvel name="velocity" objtype="site" objname="centre"/>
    <jointpos name="way" joint="x"/>
  </sensor>
</mujoco>
"""
N = 3


class PuckOptions(TaskOptions):
    xml_file: str = ""
    frame_skip: int = 5
    goal: float = 1.0


@register("mujoco_task", "test/puck")
class Puck(Task[PuckOptions]):
    Options = PuckOptions
    reads = ("sensordata",)
    max_episode_steps = 8
    velocity_names = ("speed",)

    def landmark(self, worlds):
        return worlds.qpos[:, :1]

    def observe(self, worlds):
        return np.concatenate((worlds.qpos, worlds.qvel), axis=1)

    def rewards(self, worlds):
        return {"reward_way": worlds.qpos[:, 0] - self.options.goal, "reward_force": -0.1 * worlds.action[:, 0]}

    def terminated(self, worlds):
        return worlds.qpos[:, 0] > self.options.goal

    def start(self, streams):
        # The level of the curriculum, 1 where there is none, is to be seen in y.
        qpos = np.zeros((len(streams.generators), 2))
        qpos[:, 1] = streams.level
        return qpos, np.zeros((len(streams.generators), 2))


@pytest.fixture
def make(tmp_path):
    """Makes pucks whose control has a range."""

    def make(control_range='ctrlrange="-20 40"', purpose="train", **env_kwargs):
        path = tmp_path / "puck.xml"
        path.write_text(PUCK.format(range=control_range))
        config = EnvConfig(
            name="test/puck", backend="mujoco", num_envs=N, env_kwargs={"xml_file": str(path), **env_kwargs}
        )
        worker = EnvWorker(MujocoEnv, config, 0, 7, purpose)
        worker.reset()
        return worker

    return make


def push(worker, *forces):
    """Act with forces that are the same in all worlds; give the last result."""
    for force in forces:
        ret = worker.step(PolicyResponse(np.full((N, 1), force, np.float32)))
    return ret


def velocities(worker, *forces):
    return [push(worker, force).observation[:, 2].tolist() for force in forces]


def test_a_task_says_what_is_observed_rewarded_and_ends_an_episode(make):
    puck = make(goal=0.1)
    ret = push(puck, 20.0)
    # v = 0.5; the position after five steps of semi-implicit Euler: 0.01 * (0.1 + 0.2 + 0.3 + 0.4 + 0.5) = 0.015.
    assert ret.observation == pytest.approx(np.tile([0.015, 1, 0.5, 0], (N, 1)))
    assert ret.info["reward_way"] == pytest.approx(0.015 - 0.1)
    assert ret.info["reward_force"] == pytest.approx(-2.0)
    assert ret.reward == pytest.approx(0.015 - 0.1 - 2.0)
    assert ret.info["speed"] == pytest.approx(0.015 / 0.05)
    # 0.01 * (0.6 + ... + 1.0) = 0.04 further, then 0.065.
    assert not push(puck, 20.0).terminated.any()
    ret = push(puck, 20.0)
    assert ret.terminated.all()
    assert not ret.truncated.any()
    assert ret.final_observation[:, 0] == pytest.approx(0.015 + 0.04 + 0.065)
    assert (ret.observation[:, 0] == 0).all()


def test_an_episode_is_cut_after_the_steps_that_the_task_names(make):
    puck = make()
    assert puck.get_meta().max_episode_steps == 8
    assert not push(puck, *[0.0] * 7).truncated.any()
    assert push(puck, 0.0).truncated.all()


def test_sensors_are_read_by_name(make):
    puck = make()
    push(puck, 20.0, 20.0)
    worlds = puck._env.worlds
    # As of the beginning of the last physics step: 9 of 10 steps of 0.1 m/s each.
    assert worlds.sensor("velocity") == pytest.approx(np.tile([0.9, 0, 0], (N, 1)))
    assert worlds.sensor("way").shape == (N, 1)
    with pytest.raises(KeyError, match="no sensor 'wya'; it has velocity, way"):
        worlds.sensor("wya")


def test_actions_are_scaled_to_the_range_of_the_control(make):
    puck = make(scale_actions=True)
    assert (puck.get_meta().action_space.low, puck.get_meta().action_space.high) == (-1, 1)
    # -1, 0, 1 are -20, 10 and 40 N: -0.5, 0.25 and 1 m/s more.
    assert np.allclose(velocities(puck, -1.0, 0.0, 1.0), np.array([[-0.5], [-0.25], [0.75]]))


def test_a_control_without_a_range_cannot_be_scaled_to(make):
    with pytest.raises(ConfigError, match="the control of push has no range"):
        make("", scale_actions=True)


def test_physics_steps_per_action_are_an_option(make):
    assert np.allclose(velocities(make(frame_skip=2), 20.0), 20 / 2 * 0.02)


def test_a_task_with_a_default_of_its_own_steps_physics_at_least_once(make):
    with pytest.raises(ConfigError, match=r"env\.env_kwargs\.frame_skip: must be at least 1; got 0"):
        make(frame_skip=0)


@pytest.mark.parametrize(
    ("function", "value", "message"),
    [
        (
            "rewards",
            {"reward_way": np.zeros((N, 1))},
            r"reward_way has shape \[3, 1\], \[3\] expected: one value per world",
        ),
        ("rewards", {"alive": 1.0}, r"alive has shape \[\], \[3\] expected"),
        ("terminated", np.zeros((N, 1), bool), r"terminated has shape \[3, 1\], \[3\] expected"),
    ],
)
def test_what_is_not_one_value_per_world_is_refused_by_name(make, monkeypatch, function, value, message):
    puck = make()
    monkeypatch.setattr(Puck, function, lambda self, worlds: value)
    with pytest.raises(WorkerError, match=message):
        push(puck, 1.0)


@pytest.mark.parametrize(
    ("randomisation", "velocity"),
    [({"mass": [4.0, 4.0]}, 0.125), ({"gain": [0.5, 0.5]}, 0.25), ({"mass": [2.0, 2.0], "gain": [3.0, 3.0]}, 0.75)],
)
def test_masses_and_gains_change_what_a_force_does(make, randomisation, velocity):
    assert np.allclose(velocities(make(randomisation=randomisation), 20.0), velocity)


def test_each_world_and_each_episode_has_its_own_factors_within_their_range(make):
    puck = make(randomisation={"mass": [0.5, 2.0], "friction": [0.5, 1.5]})
    worlds, seen = puck._env.worlds, []
    for _ in range(3):
        masses = worlds.own["body_mass"][:, 1].tolist()
        frictions = worlds.own["geom_friction"][:, 0, 0].tolist()
        assert all(1.0 <= mass <= 4.0 for mass in masses)
        assert all(0.4 <= friction <= 1.2 for friction in frictions)
        seen += masses + frictions
        velocity = push(puck, 20.0).observation[:, 2]
        assert velocity == pytest.approx([20 / mass * 0.05 for mass in masses])
        push(puck, *[0.0] * 7)
    assert len(set(seen)) == 3 * 2 * N
    assert (worlds.model.body_mass[1], worlds.model.geom_friction[0, 0]) == (2.0, 0.8)


def test_an_action_arrives_as_late_as_its_delay(make):
    late = make(randomisation={"action_delay": [2, 2]})
    assert np.allclose(velocities(late, 20.0, 0.0, 0.0, 0.0), [[0], [0], [0.5], [0.5]])


def test_what_was_on_its_way_is_lost_at_the_end_of_an_episode(make):
    late = make(randomisation={"action_delay": [2, 2]})
    push(late, *[0.0] * 7, 20.0)
    assert np.allclose(velocities(late, 0.0, 0.0, 0.0), 0)


def test_an_observation_arrives_as_late_as_its_delay(make):
    late = make(randomisation={"observation_delay": [2, 2]})
    assert np.allclose(velocities(late, 20.0, 20.0, 20.0, 20.0), [[0], [0], [0.5], [1.0]])


def test_the_first_observation_of_an_episode_is_not_one_of_the_last(make):
    late = make(randomisation={"observation_delay": [2, 2]})
    ret = push(late, *[20.0] * 4, *[0.0] * 4)
    assert ret.truncated.all()
    assert np.allclose(ret.final_observation[:, 2], 2.0)
    assert np.allclose(ret.observation[:, 2], 0.0)


def test_delays_differ_from_world_to_world(make):
    late = make(randomisation={"action_delay": [0, 2]})
    delays = set()
    for _ in range(6):
        speeds = np.array(velocities(late, 20.0, 0.0, 0.0))
        # With the delay d the speed is 0.5 after the action d + 1.
        assert np.allclose(speeds[-1], 0.5)
        delays |= set((speeds == 0).sum(axis=0).tolist())
        push(late, *[0.0] * 5)
    assert delays == {0, 1, 2}


def test_a_push_accelerates_for_as_long_as_it_lasts(make):
    pushed = make(randomisation={"push": {"body": "puck", "force_n": [12, 12], "interval": [3, 3], "duration": 2}})
    speeds = [np.hypot(*push(pushed, 0.0).observation[:, 2:].T) for _ in range(5)]
    # 12 N are 0.3 m/s per action: none in the first three actions, then two of them. The direction is drawn.
    assert np.allclose(speeds, np.array([[0], [0], [0], [0.3], [0.6]]), atol=1e-6)
    directions = push(pushed, 0.0).observation[:, 2]
    assert len(set(directions.tolist())) == N


def test_a_push_of_a_body_that_is_not_there_is_refused(make):
    with pytest.raises(
        ConfigError, match=r"randomisation\.push\.body: there is no body 'puk'; the model has world, puck"
    ):
        make(randomisation={"push": {"body": "puk", "force_n": [1.0, 1.0]}})


def test_a_level_rises_with_steps_and_ranges_widen_with_it(make):
    puck = make(randomisation={"mass": [3.0, 3.0]}, curriculum={"steps": 16, "start": 0.0})
    assert np.allclose(velocities(puck, 20.0), 0.5)
    ret = push(puck, *[0.0] * 7)
    # After 8 of 16 steps: level 0.5, factor 1 + 0.5 * (3 - 1) = 2. Starts show the level, too.
    assert (ret.observation[:, 1] == 0.5).all()
    assert np.allclose(velocities(puck, 20.0), 0.25)
    ret = push(puck, *[0.0] * 6)
    assert ret.info["curriculum_level"] == pytest.approx(14 / 16)
    assert push(puck, *[0.0] * 20).info["curriculum_level"] == pytest.approx(1.0)


def test_a_level_rises_with_success_and_falls_without(make):
    puck = make(goal=0.1, curriculum={"follows": "success", "start": 0.5, "rise": 0.25, "fall": 0.2})
    # An episode that lasts is a success; one that reaches a terminal state is none.
    assert (push(puck, *[0.0] * 8).observation[:, 1] == 0.75).all()
    assert push(puck, *[20.0] * 3).observation[:, 1] == pytest.approx(0.55)
    sums, steps = puck.pop_info()
    assert sums["curriculum_level"] / steps == pytest.approx((8 * 0.5 + 3 * 0.75) / 11)


def test_evaluations_are_at_full_difficulty(make):
    puck = make(purpose="eval", randomisation={"mass": [2.0, 2.0]}, curriculum={"steps": 1000})
    assert np.allclose(velocities(puck, 20.0), 0.25)
    assert (push(puck, *[0.0] * 7).observation[:, 1] == 1.0).all()


def test_a_term_that_is_a_view_is_that_of_the_step_and_not_of_the_next_start(make, monkeypatch):
    monkeypatch.setattr(Puck, "rewards", lambda self, worlds: {"reward_way": worlds.qpos[:, 0]})
    puck = make()
    # 8 actions are 40 steps of physics of 0.1 m/s each: 0.01 * 0.1 * (1 + ... + 40) = 0.82 m.
    ret = push(puck, *[20.0] * 8)
    assert ret.truncated.all()
    assert ret.reward == pytest.approx(0.82)
    assert ret.info["reward_way"] == pytest.approx(0.82)
    assert (ret.observation[:, 0] == 0).all()


def test_a_start_shows_nothing_of_the_episode_before(make, monkeypatch):
    def observe(self, worlds):
        return np.concatenate((worlds.action, worlds.previous_action, worlds.velocity), axis=1)

    monkeypatch.setattr(Puck, "observe", observe)
    puck = make()
    assert (puck.current().observation == 0).all()
    ret = push(puck, *[20.0] * 8)
    # The mean speed of the last five of 40 steps of physics, of 3.6 to 4.0 m/s.
    assert ret.final_observation == pytest.approx(np.tile([20, 20, 3.8], (N, 1)))
    assert (ret.observation == 0).all()
    assert push(puck, 4.0).observation[:, :2] == pytest.approx(np.tile([4, 0], (N, 1)))


@pytest.mark.parametrize(
    ("function", "value", "message"),
    [
        ("start", (np.zeros((N, 1)), np.zeros((N, 2))), r"start gave qpos of shape \[3, 1\], \[3, 2\] expected"),
        ("start", (np.zeros((N, 2)), np.zeros(2)), r"start gave qvel of shape \[2\], \[3, 2\] expected"),
        ("observe", np.zeros(N), r"observe gave shape \[3\], \[3, D\] expected"),
        ("observe", np.zeros((N + 1, 2)), r"observe gave shape \[4, 2\], \[3, D\] expected"),
    ],
)
def test_starts_and_observations_of_another_shape_are_refused(make, monkeypatch, function, value, message):
    monkeypatch.setattr(Puck, function, lambda self, _: value)
    with pytest.raises((ShapeError, WorkerError), match=message):
        make()


def test_a_success_is_one_per_world(make, monkeypatch):
    monkeypatch.setattr(Puck, "succeeded", lambda self, worlds: np.array(True))
    with pytest.raises(WorkerError, match=r"succeeded has shape \[\], \[3\] expected"):
        push(make(curriculum={"follows": "success"}), *[0.0] * 8)


def test_a_control_without_a_range_is_not_cut(make):
    puck = make(control_range="")
    space = puck.get_meta().action_space
    assert (space.low, space.high) == (-np.inf, np.inf)
    assert push(puck, 100.0).observation[:, 2] == pytest.approx(2.5)


def test_what_is_derived_on_demand_is_there_from_the_start(make, monkeypatch):
    monkeypatch.setattr(Puck, "reads", ("subtree_linvel",))
    monkeypatch.setattr(
        Puck, "start", lambda self, streams: (np.zeros((len(streams.generators), 2)), np.full((N, 2), 3.0))
    )
    puck = make()
    speeds = puck._env.worlds.read["subtree_linvel"][:, 1]
    assert speeds == pytest.approx(np.tile([3, 3, 0], (N, 1)))
    push(puck, 20.0)
    # As of the beginning of the last of five steps of physics of 0.1 m/s.
    assert speeds == pytest.approx(np.tile([3.4, 3, 0], (N, 1)))


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("efc_force", "reads 'efc_force', whose size changes with the contacts"),
        ("qfrc_inverse", "reads 'qfrc_inverse', which steps do not compute"),
        ("energy", "reads 'energy', and the model does not enable it"),
        ("xpso", "reads 'xpso', which is no array of numbers"),
    ],
)
def test_a_field_that_would_stay_empty_is_refused(make, monkeypatch, field, message):
    monkeypatch.setattr(Puck, "reads", (field,))
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_sensor_needs_the_field_of_all_sensors(make, monkeypatch):
    monkeypatch.setattr(Puck, "reads", ())
    puck = make()
    with pytest.raises(KeyError, match="'way', the task has to name sensordata in its reads"):
        puck._env.worlds.sensor("way")


@pytest.mark.parametrize("threads", [1, 3])
def test_a_simulation_that_becomes_unstable_ends_its_episode_and_no_other(make, threads, caplog):
    puck, other = make(threads=threads), make()
    push(puck, 20.0), push(other, 20.0)
    # More than 1e10 is what MuJoCo calls unstable: it sets the world back to the start of the model.
    puck._env.worlds.qvel[1, 0] = 1e11
    ret, wanted = push(puck, 20.0), push(other, 20.0)
    assert ret.terminated.tolist() == [False, True, False]
    assert ret.reward[1] == 0
    assert ret.info["speed"][1] == ret.info["reward_force"][1] == 0
    assert (ret.observation[1] == [0, 1, 0, 0]).all()
    assert "test/puck: the simulation of sub-env 1 became unstable" in caplog.text
    for row in (0, 2):
        assert (ret.observation[row] == wanted.observation[row]).all()
        assert ret.reward[row] == wanted.reward[row] != 0
    # It goes on from a start like any other.
    ret = push(puck, 20.0)
    assert not ret.ended.any()
    assert ret.observation[:, 2] == pytest.approx([1.5, 0.5, 1.5])


MUSCLE = """
<mujoco>
  <option gravity="0 0 0" timestep="0.01"/>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 1"/>
    <body pos="0 0 1"><joint name="x" type="slide" axis="1 0 0"/><joint name="y" type="slide" axis="0 1 0"/>
      <geom name="disc" size="0.1" mass="2"/></body>
  </worldbody>
  <contact><pair geom1="floor" geom2="disc" friction="0.8 0.8 0.01 0.001 0.001"/></contact>
  <actuator>{actuator}</actuator>
</mujoco>
"""


@pytest.mark.parametrize("force", ['force="{}"', 'force="-1" scale="{}"'], ids=["peak", "scale"])
def test_a_stronger_muscle_is_one_of_more_force(make, tmp_path, force):
    def muscle(name, newtons):
        path = tmp_path / f"{name}.xml"
        actuator = f'<muscle joint="x" ctrlrange="0 1" lengthrange="-0.5 0.5" {force.format(newtons)}/>'
        path.write_text(MUSCLE.format(actuator=actuator))
        return str(path)

    varied = make(xml_file=muscle("weak", 10), randomisation={"gain": [1.5, 1.5]})
    written = make(xml_file=muscle("strong", 15))
    for _ in range(8):
        found, wanted = push(varied, 0.7), push(written, 0.7)
    assert abs(wanted.final_observation[0, 2]) > 0.01
    assert found.final_observation == pytest.approx(wanted.final_observation, rel=1e-6)


def test_pairs_of_geometries_with_a_friction_of_their_own_vary_too(make, tmp_path):
    path = tmp_path / "pair.xml"
    path.write_text(MUSCLE.format(actuator='<motor joint="x" ctrlrange="-1 1"/>'))
    worlds = make(xml_file=str(path), randomisation={"friction": [0.5, 0.5]})._env.worlds
    assert worlds.own["pair_friction"][:, 0] == pytest.approx(np.tile([0.4, 0.4, 0.005, 0.0005, 0.0005], (N, 1)))


def test_strength_that_is_no_factor_of_the_parameters_cannot_vary(make, tmp_path):
    path = tmp_path / "user.xml"
    path.write_text(MUSCLE.format(actuator='<general name="motor" joint="x" ctrlrange="-1 1" gaintype="user"/>'))
    with pytest.raises(ConfigError, match=r"randomisation\.gain: only gains .* not those of motor"):
        make(xml_file=str(path), randomisation={"gain": [0.5, 0.5]})
