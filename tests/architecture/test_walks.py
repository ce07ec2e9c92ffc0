"""A step and a push pass through few files: what a newcomer has to read to follow them."""

import pytest

from rlightning.launch import assemble
from rlightning.policy.base_policy import BasePolicy
from rlightning.registry import register
from tests.architecture.walks import files_entered
from tests.engine.doubles import Notebook, config
from tests.engine.policies import CoinPolicy

STEP_FILES, PUSH_FILES = 16, 12


@register("policy", "plain_coin")
class PlainCoin(CoinPolicy):
    """Loads weights as most policies do."""

    load_state_dict = BasePolicy.load_state_dict


@pytest.fixture(scope="module")
def engine():
    """A run in one process, after an epoch that warms up what is built on first use."""
    engine = assemble(config(policy={"type": "plain_coin"}), recorder=Notebook())
    engine.start()
    engine.run_epoch()
    yield engine
    engine.close()


def test_a_step_passes_through_few_files(engine):
    collector = engine.collector
    entered = files_entered(lambda: collector._make_steps(collector.env_group.env_ids, 1, []))
    engine.buffer.clear()
    assert len(entered) <= STEP_FILES, entered
    assert {"env/env_worker.py", "policy/base_policy.py", "buffer/storage.py"} <= set(entered)


def test_a_push_passes_through_few_files(engine):
    entered = files_entered(engine.publish)
    assert len(entered) <= PUSH_FILES, entered
    assert "policy/hooks.py" in entered
