"""The pixel task does what it says: hand-worked falls, rewards and lengths."""

import numpy as np
import pytest

from rlightning.config import EnvConfig
from rlightning.env import EnvWorker
from rlightning.simulators.catch import CatchVectorEnv
from rlightning.simulators.gymnasium import GymnasiumEnv
from rlightning.types import PolicyResponse

STAY = np.ones(2, np.int64)


def catch(**options):
    env = CatchVectorEnv(num_envs=2, **options)
    env.reset(seed=3)
    return env


def follow(env):
    """Move towards the ball."""
    return 1 + np.sign(np.rint(env._x) - env._paddle).astype(np.int64)


def flee(env):
    """Stand at the other side."""
    env._paddle[:] = np.where(env._x < env.size / 2, env.size - 4, 3)
    return STAY


def play(env, choose, steps):
    returns = np.zeros(2)
    for step in range(1, steps + 1):
        _, reward, terminated, truncated, _ = env.step(choose(env))
        returns += reward
        if terminated.any() or truncated.any():
            return step, returns, terminated, truncated
    raise AssertionError("no end")


def test_an_episode_of_eight_balls_lasts_160_steps():
    # From row 1 to row 40 in steps of 2: 20 steps per ball.
    step, _, terminated, truncated = play(catch(), follow, 200)
    assert step == 160
    assert terminated.all()
    assert not truncated.any()


def test_following_every_ball_returns_8_and_fleeing_minus_8():
    assert play(catch(), follow, 200)[1].tolist() == [8, 8]
    assert play(catch(), flee, 200)[1].tolist() == [-8, -8]


def test_acting_at_random_returns_about_minus_5():
    worker = EnvWorker(GymnasiumEnv, EnvConfig(name="rlightning/Catch-v0", num_envs=50), 0, 0)
    worker.reset()
    rng = np.random.default_rng(0)
    for _ in range(320):
        worker.step(PolicyResponse(rng.integers(0, 3, 50)))
    returns = [episode.return_ for episode in worker.pop_episodes()]
    assert len(returns) == 100
    assert -5.5 < np.mean(returns) < -3.5


def test_the_image_shows_ball_and_paddle():
    env = catch()
    env._x[:], env._y[:], env._drift[:], env._paddle[:] = [10.0, 20.0], [5, 38], 0.0, [20, 7]
    image, reward, *_ = env.step(STAY)
    assert (image.shape, image.dtype) == ((2, 1, 42, 42), np.uint8)
    first, second = image[:, 0]
    assert (first[6:9, 9:12] == 255).all()
    assert (first[40:, 17:24] == 255).all()
    assert (first == 255).sum() == 9 + 14
    # The second ball landed beside the paddle and the next one is on top.
    assert reward.tolist() == [0, -1]
    assert (second[40:, 4:11] == 255).all()
    assert (second[:3] == 255).sum() == 9


@pytest.mark.parametrize(("offset", "reward"), [(0, 1), (4, 1), (-4, 1), (5, -1), (-5, -1)])
def test_a_ball_is_caught_if_one_of_its_columns_touches_the_paddle(offset, reward):
    # The paddle reaches 3 columns to either side, the ball 1: they touch up to a distance of 4.
    env = catch()
    env._x[:], env._y[:], env._drift[:], env._paddle[:] = 20.0 + offset, 38, 0.0, 20
    assert env.step(STAY)[1].tolist() == [reward, reward]


def test_balls_bounce_off_the_walls():
    env = catch()
    env._x[:], env._y[:], env._drift[:] = [2.0, 39.5], 1, [-1.5, 1.0]
    env.step(STAY)
    # 2 - 1.5 = 0.5 is 0.5 beyond column 1: 1.5. 39.5 + 1 = 40.5 is 0.5 beyond column 40: 39.5.
    assert env._x.tolist() == [1.5, 39.5]
    assert env._drift.tolist() == [1.5, -1.0]


def test_the_paddle_moves_by_two_and_stops_at_the_walls():
    env = catch()
    env._paddle[:] = [4, 20]
    env.step(np.array([0, 2]))
    assert env._paddle.tolist() == [3, 22]


def test_the_last_image_is_kept_when_an_episode_ends():
    env = catch(balls=1)
    for _ in range(19):
        before = env.step(STAY)[0]
    image, _, terminated, _, info = env.step(STAY)
    assert terminated.all()
    assert (info["final_obs"][:, 0, 39:42] == 255).any(axis=(1, 2)).all()
    assert (info["final_obs"][:, 0, :3] == 0).all()
    assert (image[:, 0, :3] == 255).any(axis=(1, 2)).all()
    assert not (before == image).all()


def test_a_time_limit_truncates():
    step, _, terminated, truncated = play(catch(max_episode_steps=5), follow, 10)
    assert step == 5
    assert truncated.all()
    assert not terminated.any()


def test_frames_for_videos_are_larger_and_coloured():
    assert catch().render() is None
    frames = catch(render_mode="rgb_array").render()
    assert len(frames) == 2
    assert frames[0].shape == (336, 336, 3)


@pytest.mark.parametrize("arguments", [{"size": 10}, {"balls": 0}])
def test_arguments_that_make_no_task_are_refused(arguments):
    with pytest.raises(ValueError, match="size must be at least 16 and balls at least 1"):
        catch(**arguments)
