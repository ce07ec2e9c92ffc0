"""Env workers that step on as soon as they are ready."""

import time

import pytest

from rlightning.assembly.assemble import assemble
from rlightning.commands.states import differences
from rlightning.runtime import gather
from tests.engine.doubles import Notebook, config


def run(name, env):
    recorder = Notebook()
    with assemble(config(engine=name, env=env), recorder=recorder) as engine:
        engine.run()
        state = engine.get_state()
    rows = [
        (epoch, steps, {key: value for key, value in metrics.items() if not key.startswith("time/")})
        for epoch, steps, metrics in recorder.rows
    ]
    return rows, state


@pytest.mark.parametrize("workers", [1, 3])
def test_with_local_workers_it_is_the_synchronous_engine(workers):
    env = {"num_workers": workers, "env_kwargs": {"lengths": [3, 4]}}
    rows, state = run("rsl", env)
    expected_rows, expected = run("syncrl", env)
    assert rows == expected_rows
    assert differences(state, expected) == []


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_quick_envs_do_not_wait_for_slow_ones_and_every_step_arrives(ray_cluster):
    start, steps = time.time(), 5
    kinds = [
        {"name": "quick", "backend": "clock", "env_kwargs": {"start": start}},
        {"name": "slow", "backend": "clock", "env_kwargs": {"start": start, "sleep_s": 0.5}},
    ]
    with assemble(config(engine="rsl", env=kinds, max_rollout_steps=steps, cluster={"remote_env": True})) as engine:
        engine.start()
        gather(engine.collector.env_rets.values())  # until here, workers are starting
        assert engine.collect() == steps * 4
        data = gather(engine.buffer.sample())[0].clone()  # views, which the clear after learning spoils
        metrics = engine.learn()
    observation, following = data["observation"][..., 0], data["next_observation"][..., 0]
    # Each row follows from the one before it, in every env.
    assert (observation[1:] == following[:-1])[~data["truncated"][:-1]].all()
    assert (following >= observation).all()
    quick, slow = following[:, 0], following[:, 2]
    assert quick[-1] < slow[1]
    assert slow[-1] - slow[0] > 0.5 * (steps - 1) * 0.99
    assert metrics["policy/version_lag"] == 0
