"""Code of the guides that a reader copies runs as it stands."""

import re
from pathlib import Path

import gymnasium as gym
import numpy as np

from rlightning import BasePolicy, EnvMeta
from rlightning.config import PolicyConfig, TrainConfig
from rlightning.policy.base_policy import PolicyRole
from rlightning.types import EnvRet

GUIDES = Path(__file__).parents[2] / "docs" / "guide"
META = EnvMeta("any", gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2), 2)


def code_of(page, heading):
    section = (GUIDES / page).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1]
    return re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]


def test_the_recurrent_policy_of_the_guide_acts_with_what_it_remembers():
    names = {}
    exec(code_of("own-algorithm.md", "State per row"), names)  # noqa: S102 (it is the guide's own code)
    learning = {
        "setup_optimizer": lambda self, optim_cfg: None,
        "update_dataset": lambda self, data: None,
        "train": lambda self: {},
    }
    recurrent = type("Whole", (names["Recurrent"],), learning)
    assert issubclass(recurrent, BasePolicy)
    learner, actor = (recurrent(PolicyConfig(), role) for role in PolicyRole)
    learner.init_train(TrainConfig(), META)
    actor.init_eval(env_meta=META)
    actor.import_bundle(learner.export_bundle())
    request = EnvRet.from_reset(np.ones((2, 3), np.float32), 2)
    first = actor._rollout(request, env_ids=(0,)).extras["hidden"]
    request.is_reset, request.is_first = np.zeros(2, np.bool_), np.array([False, True])
    second = actor._rollout(request, env_ids=(0,)).extras["hidden"]
    assert not first.any()
    assert second[0].any()
    assert not second[1].any()
    kept = actor.extra_training_state()
    assert kept["hidden"]["0"].shape == (2, 64)
    actor.load_extra_training_state(kept)
