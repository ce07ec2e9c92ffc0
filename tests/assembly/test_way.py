"""Whether data come by fragment, and why."""

import pytest

from rlightning.assembly.way import choose_way, settle_way
from rlightning.configuring.load import load_config
from tests.engine.doubles import config

AUTO = {"placement": {"env_strategy": "auto"}, "remote_env": True, "remote_eval": True}


def auto(env=(), cluster=(), **options):
    return config(env=dict(env), cluster={**AUTO, **dict(cluster)}, **options)


def test_with_an_eval_policy_per_env_worker_it_is_by_fragment():
    for workers in (1, 3):
        way = choose_way(auto(env={"num_workers": workers}, cluster={"eval_worker_num": workers}))
        assert way.by_fragment
        assert str(way).startswith("by fragment: each env worker lives in the process of its eval policy")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"engine": "rsl"}, "fragments are for engine: syncrl"),
        ({"policy": {"rollout_mode": "async"}}, "requests overlap"),
        ({"cluster": {"remote_env": False}}, "not both processes of their own"),
        ({"cluster": {"remote_env": False, "remote_eval": False}}, "not both processes of their own"),
        ({"env": {"num_workers": 2}}, "env workers would take turns; by fragment with as many eval policies"),
        ({"cluster": {"eval_worker_num": 2}}, "as many eval policies as env workers"),
        ({"env": {"step_timeout_s": 5.0}}, "a process is ended whose env hangs (env.step_timeout_s)"),
        ({"env": {"num_gpus": 0.5}}, "the envs have devices of their own"),
        (
            {"cluster": {"placement": {"env_strategy": "auto", "mode": "manual"}, "resource_pool": {"a": {}}}},
            "the envs have places of their own",
        ),
    ],
)
def test_what_does_not_go_by_fragment_goes_step_by_step_and_says_why(options, reason):
    if pools := options.get("cluster", {}).get("resource_pool"):
        pools["a"] = {"num_nodes": 1, "components": {"env": "all", "eval": "all"}}
    way = choose_way(auto(**options))
    assert not way.by_fragment
    assert reason in str(way)


@pytest.mark.parametrize("strategy", ["default", "node-affinity", "device-colocate", "process-colocate"])
def test_a_strategy_that_is_named_is_taken(strategy):
    made = auto(env={"num_workers": 3}, cluster={"placement": {"env_strategy": strategy}})
    assert choose_way(made).by_fragment == (strategy == "process-colocate")
    assert settle_way(made, choose_way(made)) is made


def test_the_choice_takes_the_place_of_auto():
    for made, strategy in ((auto(), "process-colocate"), (auto(engine="rsl"), "default")):
        assert settle_way(made, choose_way(made)).cluster.placement.env_strategy == strategy


def test_only_the_preset_of_ray_leaves_it_to_the_choice():
    chosen = {
        cluster: load_config("ppo_cartpole", [f"cluster={cluster}"]).config.cluster.placement.env_strategy
        for cluster in ("local", "mixed", "ray")
    }
    assert chosen == {"local": "default", "mixed": "default", "ray": "auto"}
