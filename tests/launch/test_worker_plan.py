"""Which workers a run has, before any is started."""

from rlightning.config import Config
from rlightning.launch.workers import plan_workers


def test_eval_policies_have_a_channel_for_weights():
    plan = plan_workers(Config(env=[{"name": "CartPole-v1"}], cluster={"remote_eval": True}))
    assert [dict(spec.channels) for spec in plan.eval] == [{"weights": 1}]
    assert [dict(spec.channels) for spec in [*plan.train, *plan.env, *plan.buffer]] == [{}, {}, {}]
