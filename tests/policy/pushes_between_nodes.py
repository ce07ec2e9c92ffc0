"""Pushes on three nodes, train-only, eval-only and mixed; ``tests.three_nodes`` runs it."""

import ray

from rlightning.config import PolicyConfig, TrainConfig, WeightBufferConfig
from rlightning.policy.base_policy import PolicyRole
from rlightning.policy.policy_group import PolicyGroup
from rlightning.runtime import as_handle, gather
from tests.policy.policies import Numbered, batch

TRAIN, EVAL = PolicyRole.TRAIN, PolicyRole.EVAL
LIVES = {"learns": [TRAIN], "acts": [EVAL, EVAL], "both": [TRAIN, EVAL, EVAL]}
"""Roles of the policies of each node, by the name of what it alone has."""
WAYS = [
    *((strategy, "object_store") for strategy in ("None", "Double", "Shared", "Sharded")),
    *((strategy, "collective") for strategy in ("None", "Double", "Shared")),
]


def start():
    """Start the policies: raw Ray actor handles, by role."""
    policies = {TRAIN: [], EVAL: []}
    actor = ray.remote(concurrency_groups={"weights": 1})(Numbered)
    for name, roles in LIVES.items():
        for role in roles:
            handle = actor.options(num_cpus=0, resources={name: 1}).remote(PolicyConfig(), role)
            policies[role].append(handle)
    return policies


def push_three_times(policies, strategy, transport):
    """Push three versions; gives what every eval policy acted with, and how the nodes were laid out."""
    config = PolicyConfig(weight_buffer=WeightBufferConfig(buffer_strategy=strategy, transport=transport))
    group = PolicyGroup(policies[TRAIN], policies[EVAL], config, call_timeout_s=120)
    group.init(TrainConfig())
    group.init_placement_info()
    group.init_weight_buffer()
    if transport == "collective":
        group.init_comm_group("gloo")
    seen, equal = [], []
    for _ in range(3):
        group.sync_weights()
        group.wait_for_eval_weight_update()
        answers = gather(group.rollout_batch(batch([1] * len(policies[EVAL]))).items, 60)
        seen.append([(sorted(set(answer.extras["numbers"][0].tolist())), answer.version) for answer in answers])
        equal.append(group.compare_weights() == [])
        gather([as_handle(learner).call(Numbered._train) for learner in policies[TRAIN]], 60)
    nodes = [[len(held["train_policies"]), len(held["eval_policies"])] for held in group.placement_info.values()]
    return {"seen": seen, "equal": equal, "nodes": sorted(nodes)}


def play():
    """Push in all ways; gives the results by way."""
    policies = start()
    return {f"{strategy} {transport}": push_three_times(policies, strategy, transport) for strategy, transport in WAYS}
