"""Workers land where the plan says, by Ray's own view."""

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
WAYS = ("disaggregate default", "colocate device-colocate", "default node-affinity")


@pytest.fixture
def results(three_nodes):
    return three_nodes["landings"]


@pytest.mark.parametrize("way", WAYS)
def test_every_worker_is_on_the_node_and_the_device_of_its_slot(results, way):
    assert len(results[way]["wanted"]) >= 10
    assert results[way]["found"] == results[way]["wanted"]


@pytest.mark.parametrize("way", WAYS)
def test_who_takes_the_place_of_a_worker_that_died_is_on_its_node_and_its_device(results, way):
    assert results[way]["replaced"] == results[way]["found"]["env[1]"]


def test_strategies_keep_their_promises_there(results):
    def node(way, worker):
        return results[way]["found"][worker][0]

    learn = {node("disaggregate default", worker) for worker in ("train[0]", "train[1]", "buffer[0]")}
    act = {node("disaggregate default", f"{role}[{i}]") for role in ("eval", "env") for i in range(2)}
    assert not learn & act
    beside = results["colocate device-colocate"]["found"]
    assert [beside[f"eval[{i}]"] for i in range(2)] == [beside[f"train[{i}]"] for i in range(2)]
    for env in range(4):
        assert beside[f"env[{env}]"] == beside[f"eval[{env % 2}]"]
        assert node("default node-affinity", f"env[{env}]") == node("default node-affinity", f"eval[{env % 2}]")
    # One shard per node with learners; the data of an env worker stay on its node.
    assert results["default node-affinity"]["routes"] == [[0, 1, 0, 1], [0, 1]]
    # The plan of that run as a manual pool gives the same places.
    assert results["manual"]


def test_what_does_not_fit_is_told_before_anything_starts_and_nothing_stays_held(results):
    assert "5 GPUs are asked for (train 9 x 0.5, eval 2 x 0.25), and the cluster has 4" in results["refusal"]
    assert "lower cluster.train_worker_num" in results["refusal"]
    assert results["free"] == 14
