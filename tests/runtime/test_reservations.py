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


class NoSeats:
    """A plan that does not fit."""

    def __init__(self):
        self.did = []

    def take(self):
        self.did.append("take")
        raise PlacementError("no room")

    def place_of(self, worker):
        return {}

    def leave(self):
        self.did.append("leave")


@pytest.mark.ray
def test_a_pool_that_gets_no_seats_starts_nothing_and_leaves_none(ray_cluster):
    seats = NoSeats()
    pool = WorkerPool(seats=seats)
    with pytest.raises(PlacementError, match="no room"):
        pool.start([WorkerSpec(Worker, (), "worker[0]", True, num_cpus=0.01)])
    pool.stop()
    assert seats.did == ["take"]
