"""What is held on certain nodes is there for the workers that name it, and for nobody else."""

import pytest

from rlightning.errors import PlacementError
from rlightning.runtime.spawn import WorkerPool, WorkerSpec
from tests.runtime.workers import Worker
from tests.simulated_nodes import results_of


@pytest.mark.ray
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_workers_land_in_their_bundles_and_share_a_device_with_all_who_are_there():
    result = results_of("tests.runtime.reservations")
    assert result["resources"] == [[2, 2], [2, 2], [4, 0]]
    assert result["bundles"] == [2, 0, 1, 1]
    assert result["nodes"] == [2, 0, 0, 1, 1]
    # Devices in the order of the bundles of a node, and one for all who share a bundle.
    assert result["gpus"] == [[], [0], [0], [0], [1]]
    assert "1 CPU asked, 0 CPU free" in result["refusal"]
    assert "1 CPU, 1 GPU asked, 1 CPU, 1 GPU free" in result["refusal"]


class NoSlots:
    """An assignment that does not fit."""

    def __init__(self):
        self.did = []

    def reserve(self):
        self.did.append("reserve")
        raise PlacementError("too little")

    def options_of(self, worker):
        self.did.append("start")
        return {}


@pytest.mark.ray
def test_a_pool_that_gets_no_slots_starts_nothing(ray_cluster):
    assignment = NoSlots()
    pool = WorkerPool(assignment=assignment)
    with pytest.raises(PlacementError, match="too little"):
        pool.start([WorkerSpec(Worker, (), "worker[0]", True, num_cpus=0.01)])
    pool.stop()
    assert assignment.did == ["reserve"]
