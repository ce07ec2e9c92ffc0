"""What a user may give instead of a policy, importable by worker processes, which need no torch for it."""

from __future__ import annotations

from rlightning.types import PolicyResponse


class RolloutOnly:
    """A test double of a user: no base class, only the hooks that its test calls."""

    def __init__(self):
        self.calls = []

    def init_train(self, train_config, env_meta=None):
        self.calls.append("init_train")

    def init_eval(self, eval_config=None, env_meta=None):
        self.calls.append("init_eval")

    def _rollout(self, env_ret):
        self.calls.append("_rollout")
        return PolicyResponse(env_ret.observation)

    def _postprocess(self, env_ret=None, policy_resp=None):
        self.calls.append("_postprocess")
        return policy_resp

    def update_dataset(self, data):
        self.calls.append(f"update_dataset {data}")

    def train(self, *args, **kwargs):
        self.calls.append("train")
        return {"loss": 1.0}

    def get_calls(self):
        return self.calls
