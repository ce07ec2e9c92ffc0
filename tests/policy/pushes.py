"""What tests of weights on their way have in common."""

from rlightning.config import PolicyConfig, TrainConfig, WeightBufferConfig

STRATEGIES = ["None", "Double", "Shared", "Sharded"]
TRAIN = TrainConfig(max_epochs=1000)


def config_for(strategy, transport="auto"):
    return PolicyConfig(weight_buffer=WeightBufferConfig(buffer_strategy=strategy, transport=transport))


def push(group):
    version = group.sync_weights()
    group.wait_for_eval_weight_update()
    return version
