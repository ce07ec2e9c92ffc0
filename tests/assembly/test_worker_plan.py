"""Which workers a run has, before any is started."""

from rlightning.assembly.plan import plan_run
from rlightning.assembly.sizes import Sizes, flows
from rlightning.assembly.workers import plan_workers
from rlightning.config import Config


def test_eval_policies_have_a_channel_for_weights():
    plan = plan_workers(Config(env=[{"name": "CartPole-v1"}], cluster={"remote_eval": True}))
    assert [dict(spec.channels) for spec in plan.eval] == [{"weights": 1}]
    assert [dict(spec.channels) for spec in [*plan.train, *plan.env, *plan.buffer]] == [{}, {}, {}]


def test_env_workers_live_in_the_processes_of_the_policies_that_answer_them():
    cluster = {"remote_eval": True, "remote_env": True, "eval_worker_num": 2}
    cluster["placement"] = {"env_strategy": "process-colocate"}
    env = {"name": "CartPole-v1", "num_workers": 3, "num_envs": 4, "num_cpus": 2.0, "num_gpus": 0.1}
    config = Config(env=[env], cluster=cluster)
    plan = plan_workers(config)
    assert [spec.host for spec in plan.env] == ["eval[0]", "eval[1]", "eval[0]"]
    assert not any(spec.remote for spec in plan.env)
    # Those of one process take turns on a CPU, and each has its share of a device.
    assert [(spec.num_cpus, spec.num_gpus) for spec in plan.eval] == [(2.0, 0.2), (2.0, 0.1)]
    found = flows(plan_run(config), Sizes(observation=16, action=8, weights=100, parameters=25))
    # 128 steps of 12 sub-envs; a transition is two observations, an action, and 15 bytes of columns.
    rows = 128 * 12
    assert [(flow.what, flow.transport, flow.num_bytes) for flow in found[:3]] == [
        ("observations", "in memory", rows * 16),
        ("actions", "in memory", rows * 8),
        ("fragments of transitions", "Ray's object store", rows * (2 * 16 + 8 + 15)),
    ]
