"""On several nodes every strategy brings each eval policy exactly the learners' weights."""

import pytest

from tests.policy.pushes_between_nodes import WAYS

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("strategy", "transport"), WAYS)
def test_train_only_eval_only_and_mixed_nodes_act_with_the_learners_weights(three_nodes, strategy, transport):
    result = three_nodes["pushes"][f"{strategy} {transport}"]
    assert result["nodes"] == [[0, 2], [1, 0], [1, 2]]
    # Three pushes to four eval policies, each of which answered with all 200 numbers of its version.
    assert result["seen"] == [[[[version], version]] * 4 for version in range(3)]
    assert result["equal"] == [True] * 3
