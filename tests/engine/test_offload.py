"""With ``cluster.enable_offload``, what acts and what learns take turns on the device, and no number changes."""

import pytest

from rlightning.assembly.assemble import assemble
from rlightning.config import ClusterConfig, Config, EnvConfig, EvalConfig, PolicyConfig, TrainConfig
from rlightning.runtime import as_handle, gather
from tests.engine.doubles import CHEAP, Notebook
from tests.policy.travel import TravellingPPO


def cart_pole(places=None, **cluster):
    return Config(
        seed=5,
        env=[EnvConfig(name="CartPole-v1", num_envs=4)],
        policy=PolicyConfig(type="travelling_ppo", model_cfg={"normalize_observation": True}, **CHEAP),
        train=TrainConfig(max_epochs=3, max_rollout_steps=16, batch_size=32, eval_interval=2),
        evaluation=EvalConfig(episodes=2, num_envs=2),
        cluster=ClusterConfig(eval_worker_num=2, **(places or {}), **cluster),
    )


def run(config):
    """Run; gives all metrics but times, digests of all policies, and the bytes that each moved out and back."""
    notebook = Notebook()
    with assemble(config, recorder=notebook) as engine:
        engine.run()
        group = engine.policy_group
        policies = [as_handle(policy) for policy in (*group.train_list, *group.eval_list)]
        digests = gather([policy.call(TravellingPPO.get_bundle_digest) for policy in policies], 60)
        moved = gather([policy.call(TravellingPPO.count_bytes) for policy in policies], 60)
    rows = [{key: x for key, x in row[2].items() if not key.startswith("time/")} for row in notebook.rows]
    return rows, digests, moved


@pytest.fixture(scope="module")
def at_home():
    return run(cart_pole())


def test_results_are_the_same_bit_for_bit(at_home):
    rows, digests, moved = run(cart_pole(enable_offload=True))
    assert rows == at_home[0]
    assert digests == at_home[1]
    assert digests[0] == digests[1] == digests[2]
    assert at_home[2] == [(0, 0)] * 3
    # The learner is away while the last evaluation acts. What acts left in all 3 epochs, and is back for it.
    (out, back), *actors = moved
    assert out > back > 0
    assert {out == back > 0 for out, back in actors} == {True}


@pytest.mark.ray
def test_and_with_policies_elsewhere(at_home, ray_cluster):
    places = {"remote_train": True, "remote_eval": True}
    rows, digests, moved = run(cart_pole(places, enable_offload=True))
    assert rows == at_home[0]
    assert digests == at_home[1]
    assert all(out >= back > 0 for out, back in moved)
