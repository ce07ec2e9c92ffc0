"""A recurrent policy of one's own gives the same numbers however data are collected."""

import pytest

from rlightning.assembly.assemble import assemble
from rlightning.checkpoint import save_state
from tests.engine.doubles import config

COUNTED = {"backend": "step_count", "num_workers": 2, "env_kwargs": {"lengths": [3, 7]}}
RAY = dict.fromkeys(("remote_env", "remote_eval"), True)


def made(policy="recurrent", mode="sync", env=(), cluster=(), **options):
    return config(
        env={**COUNTED, **dict(env)}, policy={"type": policy, "rollout_mode": mode}, cluster=dict(cluster), **options
    )


def hidden(engine, epochs=3):
    """Train, with an evaluation after each epoch; the count of each row is that of its episode at any time."""
    rows = []
    for _ in range(epochs):
        metrics = engine.run_epoch()
        engine.evaluate()
        assert metrics["user/wrong"] == 0
        rows.append(metrics["user/hidden"])
    return rows


@pytest.fixture(scope="module")
def expected():
    with assemble(made()) as engine:
        engine.start()
        return hidden(engine)


WAYS = [
    {"cluster": {"eval_worker_num": 2}},
    {"engine": "rsl"},
    {"policy": "recurrent_async", "mode": "async"},
    {"cluster": {"placement": {"env_strategy": "process-colocate"}}},
    pytest.param({"cluster": {**RAY, "eval_worker_num": 2}}, marks=pytest.mark.ray),
]


@pytest.mark.parametrize("way", WAYS, ids=["two actors", "rsl", "async", "fragments", "ray"])
def test_a_recurrent_policy_gives_the_same_numbers(way, expected, request):
    if way.get("cluster", {}).get("remote_env"):
        request.getfixturevalue("ray_cluster")
    with assemble(made(**way)) as engine:
        engine.start()
        # How many rows share a forward pass decides how sums are rounded.
        assert hidden(engine) == pytest.approx(expected, rel=1e-5)


def test_a_resumed_run_goes_on_with_the_state_of_each_row(tmp_path, expected):
    with assemble(made()) as engine:
        engine.start()
        hidden(engine, 2)
        save_state(tmp_path / "checkpoint", engine.get_state())
    with assemble(made()) as engine:
        engine.resume(tmp_path / "checkpoint")
        assert hidden(engine, 1) == expected[2:]


@pytest.mark.parametrize("homes", [[0, 1, 0], [1, 1, 0]])
def test_a_resumed_run_keeps_who_answers_whom(tmp_path, homes):
    way = {"policy": "recurrent_async", "mode": "async", "env": {"num_workers": 3}, "cluster": {"eval_worker_num": 2}}
    with assemble(made(**way)) as engine:
        engine.policy_group.routing.restore_homes(list(enumerate(homes)))  # as load may have it
        engine.start()
        hidden(engine, 1)
        save_state(tmp_path / "checkpoint", engine.get_state())
    with assemble(made(**way)) as engine:
        engine.resume(tmp_path / "checkpoint")
        hidden(engine, 1)
        assert sorted(engine.policy_group.get_training_state()["homes"]) == [[i, home] for i, home in enumerate(homes)]


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("cluster", [{}, {"placement": {"env_strategy": "process-colocate"}}])
def test_envs_beside_one_that_fails_keep_their_state(failing, cluster):
    kinds = [dict(COUNTED, num_workers=1, max_restarts=5) for _ in range(3)]
    kinds[failing]["env_kwargs"] = {"lengths": [3, 7], "fail_at": 8}
    with assemble(config(env=kinds, policy={"type": "recurrent"}, cluster=cluster)) as run:
        run.start()
        for _ in range(3):
            assert run.run_epoch()["user/wrong"] == 0
        assert run.env_group.faults.restarts[failing] > 0


@pytest.mark.parametrize("engine", ["syncrl", "rsl"])
def test_rows_of_an_env_that_was_replaced_begin_anew(engine):
    with assemble(made(env={"env_kwargs": {"lengths": [3, 7], "fail_at": 8}, "max_restarts": 5}, engine=engine)) as run:
        run.start()
        for _ in range(3):
            assert run.run_epoch()["user/wrong"] == 0
        assert sum(run.env_group.faults.kinds.values()) > 0
