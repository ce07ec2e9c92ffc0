"""Engines collect with rollouts that overlap as well."""

import pytest

from tests.engine.doubles import config
from tests.parity.stretch import run

FAR = {"remote_env": True, "remote_eval": True}


def test_one_env_worker_gets_the_same_answers_as_with_sync_rollouts():
    reports = {}
    for mode, kind in (("sync", "coin"), ("async", "coin"), ("async", "slow_coin")):
        report = run(config(policy={"type": kind, "rollout_mode": mode}), 3)
        reports[mode, kind] = report["rows"], report["digests"], report["stale"]
    assert reports["async", "coin"] == reports["sync", "coin"] == reports["async", "slow_coin"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("places", "engine"),
    [
        ({}, "syncrl"),
        ({}, "rsl"),
        pytest.param(FAR, "syncrl", marks=pytest.mark.ray),
        pytest.param(FAR, "rsl", marks=[pytest.mark.ray, pytest.mark.exhaustive]),
    ],
)
def test_several_env_workers_and_policies_run(request, engine, places):
    if places:
        request.getfixturevalue("ray_cluster")
    policy = {"type": "slow_coin", "rollout_mode": "async"}
    made = config(env={"num_workers": 3}, policy=policy, cluster={"eval_worker_num": 2, **places}, engine=engine)
    report = run(made, 3)
    # 3 epochs of 5 steps in 3 workers with 2 sub-envs each.
    assert report["env_steps"] == 90
    assert report["stale"] == []
    assert [row["policy/version_lag"] for row in report["rows"]] == [0, 0, 0]
