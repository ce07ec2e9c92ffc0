"""Any env of Gymnasium runs, by id or by entry point, and is refused by name where it cannot."""

import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest

from rlightning.config import EnvConfig
from rlightning.env import EnvWorker
from rlightning.errors import ConfigError, MissingDependency, UnsupportedSpace, WorkerError
from rlightning.simulators.gymnasium import GymnasiumEnv
from rlightning.simulators.loop import EnvLoop
from rlightning.simulators.mujoco.loading import quiet_loading
from rlightning.simulators.vector import VectorRows
from rlightning.types import PolicyResponse

DOUBLES = "tests.env.doubles:"


def worker(name, num_envs=2, **options):
    return EnvWorker(GymnasiumEnv, EnvConfig(name=name, num_envs=num_envs, **options), 0, 7)


def run(env_worker, action, steps):
    env_worker.reset()
    return [env_worker.step(PolicyResponse(action)) for _ in range(steps)]


def rows_of(env_worker):
    return env_worker._env._rows


@pytest.fixture
def registered():
    """Registers envs for one test."""
    before = set(gym.registry)
    yield gym.register
    for name in set(gym.registry) - before:
        del gym.registry[name]


def test_a_native_vector_implementation_is_used_where_there_is_one():
    assert isinstance(rows_of(worker("CartPole-v1")), VectorRows)
    assert isinstance(rows_of(worker("CartPole-v1", vectorization="native")), VectorRows)
    assert isinstance(rows_of(worker("CartPole-v1", vectorization="sync")), EnvLoop)
    assert isinstance(rows_of(worker("Pendulum-v1")), EnvLoop)


def test_native_and_plain_cartpole_follow_the_same_physics():
    native, plain = worker("CartPole-v1"), worker("CartPole-v1", vectorization="sync")
    native.reset()
    start = plain.reset().observation
    rows_of(native).env.state = np.array([env.unwrapped.state for env in rows_of(plain).envs]).T
    assert start.shape == (2, 4)
    for t in range(8):
        response = PolicyResponse(np.array([t % 2, 1]))
        assert np.allclose(native.step(response).observation, plain.step(response).observation, atol=1e-6)


@pytest.mark.parametrize("vectorization", ["native", "sync"])
def test_cartpole_plays_whole_episodes_of_reward_one(vectorization):
    cartpole = worker("CartPole-v1", vectorization=vectorization)
    run(cartpole, np.ones(2, np.int64), 60)
    episodes = cartpole.pop_episodes()
    # Pushing to one side all the time topples the pole after 8 to 11 steps; every step that is one has reward 1.
    assert len(episodes) >= 8
    assert all(episode.return_ == episode.length and 7 < episode.length < 12 for episode in episodes)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("CartPole-v1", {"vectorization": "native"}),
        ("CartPole-v1", {"vectorization": "sync"}),
        (f"{DOUBLES}CountingEnv", {}),
        (f"{DOUBLES}NumpyVector", {}),
        ("rlightning/Catch-v0", {}),
    ],
)
def test_a_time_limit_of_the_configuration_truncates(name, options):
    limited = worker(name, max_episode_steps=5, **options)
    assert limited.get_meta().max_episode_steps == 5
    rets = run(limited, np.zeros(2, np.int64), 5)
    assert [bool(ret.truncated.any()) for ret in rets] == [False] * 4 + [True]
    assert not rets[-1].terminated.any()
    assert [(e.length, e.truncated) for e in limited.pop_episodes()] == [(5, True)] * 2


def test_an_episode_that_was_cut_from_outside_starts_anew():
    rets = run(worker(f"{DOUBLES}NumpyVector", max_episode_steps=2), np.zeros(2, np.int64), 4)
    # The state halves with each step: the last observation is half the one before, the next one is a new start.
    assert np.allclose(rets[1].final_observation, rets[0].observation / 2)
    assert not np.allclose(rets[1].observation, rets[0].observation / 2)
    assert np.allclose(rets[2].observation, rets[1].observation / 2)


def test_a_registered_time_limit_is_part_of_the_description():
    assert worker("CartPole-v1").get_meta().max_episode_steps == 500
    assert worker("Pendulum-v1").get_meta().max_episode_steps == 200
    assert worker(f"{DOUBLES}CountingEnv").get_meta().max_episode_steps is None


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_time_limit_that_cannot_be_kept_is_refused(mode):
    with pytest.raises(ConfigError, match=r"env\.max_episode_steps: .*has no argument max_episode_steps"):
        worker(f"{DOUBLES}NumpyVector", max_episode_steps=5, env_kwargs={"mode": mode})


def test_a_vector_env_that_does_not_say_how_it_resets_is_refused():
    with pytest.raises(ConfigError, match=r"metadata\['autoreset_mode'\] is None"):
        worker(f"{DOUBLES}NumpyVector", env_kwargs={"mode": ""})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoFinals", r"gives no info\['final_obs'\] although an episode ended"),
        ("HalfFinals", r"sub-env 1: its episode ended and info\['final_obs'\] has None"),
    ],
)
def test_a_vector_env_that_hides_last_observations_is_refused(name, message):
    hiding = worker(f"{DOUBLES}{name}", env_kwargs={"mode": "SameStep"})
    with pytest.raises(WorkerError, match=message):
        run(hiding, np.zeros(2, np.int64), 1)


def test_observations_and_actions_keep_their_structure():
    tree = worker(f"{DOUBLES}TreeEnv")
    action = {"arm": np.zeros((2, 2), np.float32), "grip": np.array([0, 1])}
    rets = run(tree, action, 4)
    # Episodes of 3 steps; the observation counts them: image = t, pair = (t, (t, -t) / 10).
    for ret, t in zip(rets, [1, 2, 0, 1], strict=True):
        assert (ret.observation["image"] == t).all()
        assert ret.observation["image"].shape == (2, 1, 4, 4)
        assert ret.observation["pair"][0].tolist() == [t, t]
        assert np.allclose(ret.observation["pair"][1], [[t / 10, -t / 10]] * 2)
    # The env writes into the same image when it is reset.
    assert (rets[2].final_observation["image"] == 3).all()
    assert rets[2].final_observation["pair"][0].tolist() == [3, 3]


def test_a_missing_part_of_an_action_is_named():
    tree = worker(f"{DOUBLES}TreeEnv")
    with pytest.raises(WorkerError, match="action has no part 'grip'"):
        run(tree, {"arm": np.zeros((2, 2), np.float32)}, 1)


def test_discrete_actions_reach_the_env_as_the_policy_sent_them():
    rets = run(worker(f"{DOUBLES}StartingAtTwo"), np.array([2, 4]), 1)
    assert rets[0].reward.tolist() == [2, 4]


def test_rows_of_gymnasiums_own_vector_env_get_one_seed_each():
    vector = worker(f"{DOUBLES}painters", num_envs=3)
    loop = worker(f"{DOUBLES}RandomEnv", num_envs=3)
    assert (vector.reset().observation == loop.reset().observation).all()


def test_a_vector_env_without_an_argument_that_is_asked_for_is_passed_over(registered):
    registered(
        "Fallback-v0",
        entry_point=f"{DOUBLES}StartingAtTwo",
        vector_entry_point=f"{DOUBLES}NumpyVector",
    )
    assert isinstance(rows_of(worker("Fallback-v0")), VectorRows)
    assert isinstance(rows_of(worker("Fallback-v0", max_episode_steps=3)), EnvLoop)


def test_ids_of_modules_and_arguments_are_understood(registered):
    registered("Sized-v0", entry_point=f"{DOUBLES}Sized", kwargs={"size": 2})
    assert worker("Sized-v0").get_meta().observation_space.shape == (2,)
    assert worker("tests.env.doubles:Sized-v0", env_kwargs={"size": 4}).get_meta().observation_space.shape == (4,)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("HalfChetah-v5", {}, r"env\.name: Gymnasium has no env 'HalfChetah-v5'.*did you mean 'HalfCheetah-v5'"),
        ("no_such_module:Env", {}, "there is no module 'no_such_module'"),
        (f"{DOUBLES}NoSuchEnv", {}, "Gymnasium has no env"),
        (f"{DOUBLES}Sised", {}, r"Gymnasium has no env .*did you mean 'tests\.env\.doubles:Sized'"),
        (f"{DOUBLES}nonsense", {}, "built a int, which is no gymnasium"),
        (f"{DOUBLES}growing", {}, "sub-env 1 has other spaces than sub-env 0"),
        (
            f"{DOUBLES}Sized",
            {"env_kwargs": {"sise": 3}},
            r"env\.env_kwargs: .*unexpected keyword argument 'sise'.*mean 'env\.env_kwargs\.size'",
        ),
        (
            "Pendulum-v1",
            {"env_kwargs": {"gg": 3}},
            r"env\.env_kwargs: .*unexpected keyword argument 'gg'.*mean 'env\.env_kwargs\.g'",
        ),
        ("Pendulum-v1", {"vectorization": "native"}, "Pendulum-v1 has no vector implementation: use sync or auto"),
        ("rlightning/Catch-v0", {"vectorization": "sync"}, "has a vector implementation only: use native or auto"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(name, options, message):
    with pytest.raises(ConfigError, match=message):
        worker(name, **options)


def test_a_space_of_no_fixed_shape_is_refused_by_name(registered):
    class Talking(gym.Env):
        observation_space = gym.spaces.Dict(said=gym.spaces.Sequence(gym.spaces.Discrete(5)))
        action_space = gym.spaces.Discrete(2)

    registered("Talking-v0", entry_point=Talking)
    with pytest.raises(UnsupportedSpace, match=r"a Sequence space at \.said"):
        worker("Talking-v0")


def test_what_is_no_space_of_gymnasium_is_named(registered):
    class Old(gym.Env):
        observation_space = (3,)
        action_space = gym.spaces.Discrete(2)

    registered("Old-v0", entry_point=Old)
    with pytest.raises(UnsupportedSpace, match=r"is a builtins\.tuple and no gymnasium\.Space: \(3,\)"):
        worker("Old-v0")


class Flags(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, terminated=False, truncated=False):
        self.flags = terminated, truncated

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, *self.flags, {}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"terminated": None}, "sub-env 0: TypeError: terminated is None"),
        ({"terminated": "False"}, "terminated is 'False', which is neither true nor false"),
        ({"terminated": float("nan")}, "terminated is nan"),
        ({"truncated": {"TimeLimit.truncated": False}}, "truncated is {'TimeLimit.truncated': False}"),
        ({"truncated": np.array([True, True])}, "truncated is array"),
    ],
)
def test_a_flag_that_is_none_is_refused(registered, flags, message):
    registered("Flags-v0", entry_point=Flags)
    with pytest.raises(WorkerError, match=message):
        run(worker("Flags-v0", env_kwargs=flags), np.zeros(2, np.int64), 1)


@pytest.mark.parametrize("flag", [True, np.True_, 1, 1.0, np.array(True), np.array([1])])
def test_a_flag_may_be_any_number_that_is_one(registered, flag):
    registered("Flags-v0", entry_point=Flags)
    (ret,) = run(worker("Flags-v0", env_kwargs={"truncated": flag}), np.zeros(2, np.int64), 1)
    assert ret.truncated.all()
    assert not ret.terminated.any()


def test_every_env_is_closed_even_if_one_fails_to(registered):
    closed = []

    class Stuck(Flags):
        def close(self):
            if self.flags[0]:
                raise OSError("the port is busy")
            closed.append(self)

    first, second = Stuck(True), Stuck()
    with pytest.raises(WorkerError, match="sub-env 0: OSError: the port is busy"):
        EnvLoop([first, second]).close()
    assert closed == [second]


def test_a_package_that_is_missing_is_named(registered):
    def needy():
        raise gym.error.DependencyNotInstalled("box2d is not installed")

    registered("Needy-v0", entry_point=needy)
    with pytest.raises(MissingDependency, match="Needy-v0 needs a package that is not installed: box2d"):
        worker("Needy-v0")


@pytest.mark.parametrize("name", ["Painter", "painters"])
def test_the_first_row_is_drawn(name):
    painter = worker(f"{DOUBLES}{name}", env_kwargs={"render_mode": "rgb_array"})
    painter.reset()
    frame = painter.render()
    assert (frame.shape, frame.dtype, frame[0, 0, 0]) == ((4, 6, 3), np.uint8, 9)


def test_without_a_render_mode_nothing_is_drawn():
    painter = worker(f"{DOUBLES}Painter")
    painter.reset()
    assert painter.render() is None


def test_a_package_that_drawing_needs_is_named():
    painter = worker(f"{DOUBLES}Painter", env_kwargs={"render_mode": "rgb_array", "dependency": True})
    painter.reset()
    with pytest.raises(MissingDependency, match=r"drawing tests\.env.doubles:Painter needs a package: pygame"):
        painter.render()


def test_loading_mujoco_models_prints_nothing_and_leaves_no_file(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    worker("HalfCheetah-v5").reset()
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_other_warnings_of_mujoco_are_not_hidden():
    worker("HalfCheetah-v5")
    mujoco = sys.modules["mujoco"]
    before = mujoco.get_mju_user_warning()
    with pytest.warns(RuntimeWarning, match="MuJoCo: the mass is negative"), quiet_loading():
        mujoco.get_mju_user_warning()("the mass is negative")
    with warnings.catch_warnings(), quiet_loading():
        warnings.simplefilter("error")
        mujoco.get_mju_user_warning()("compiler attribute 'settotalmass' is deprecated")
    assert mujoco.get_mju_user_warning() is before


def test_mujoco_runs_and_is_cut_after_its_time_limit():
    cheetah = worker("HalfCheetah-v5", max_episode_steps=3)
    rets = run(cheetah, np.zeros((2, 6), np.float32), 3)
    assert rets[0].observation.dtype == np.float32
    assert rets[2].truncated.all()
    assert not (rets[2].final_observation == rets[2].observation).all()


def test_sub_envs_share_neither_actions_nor_arguments_nor_options():
    env = GymnasiumEnv(EnvConfig(name=f"{DOUBLES}KeepingEnv", num_envs=2, env_kwargs={"goal": [0, 1]}))
    options = {"start": 1}
    env.reset(options=options)
    first, second = rows_of_env = env._rows.envs
    assert [each.start for each in rows_of_env] == [1, 1]
    assert options == {"start": 1}
    env.step(PolicyResponse(np.zeros((2, 2), np.float32)))
    first.last_action += 1
    first.goal.append(2)
    assert second.last_action.tolist() == [1, 1]
    assert first.last_action.base is None
    assert second.goal == env.config.env_kwargs["goal"] == [0, 1]


# KeepingEnv says 20 in its metadata; HalfCheetah's dt is 0.05 s; CountingEnv says nothing.
@pytest.mark.parametrize(("name", "fps"), [("KeepingEnv", 20), ("HalfCheetah-v5", 20), ("CountingEnv", None)])
def test_the_time_of_a_step_is_read_from_the_env(name, fps):
    assert worker(name if "-" in name else f"{DOUBLES}{name}").get_meta().rate_hz == fps
