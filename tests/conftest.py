"""Fixtures for all tests: everything that works with workers is tested with local and with remote ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

from rlightning.runtime.spawn import WorkerPool, WorkerSpec

collect_ignore = ["e2e/runs_of_0_1_0"]
torch.set_num_threads(1)
# torch asks for the name of every address that it connects to, and a name server that loses a question would cost five
# seconds each time. Processes that tests start inherit it.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
# A busy machine is no reason to fail.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


SHARING = {
    "tests/algorithms/test_data_parallel.py": "held policies",
    "tests/deployment/test_export.py": "runs",
    "tests/deployment/test_fine_tuning.py": "runs",
    "tests/deployment/test_trained_policy.py": "runs",
    "tests/policy/test_comm_groups.py": "held policies",
    "tests/policy/test_learner_state.py": "held policies",
    "tests/policy/test_roles.py": "held policies",
    "tests/assembly/test_landings.py": "three nodes",
    "tests/policy/test_three_nodes.py": "three nodes",
}
"""Files that share processes or runs of the session, by what they share."""


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run the tests of a file, and of files that share processes, in one process."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = super()._split_scope(nodeid)
            return SHARING.get(path, path)

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count tests that start processes among the slow ones, and order all.

    In one process the quick ones come first: most mistakes show early. In several ones the slow ones do, so that all
    processes end together.
    """
    for item in items:
        # The room that makes processes is tested with them at any rate.
        if item.get_closest_marker("ray") is not None and "tests/runtime" not in item.path.as_posix():
            item.add_marker(pytest.mark.slow)
    slow_first = "PYTEST_XDIST_WORKER" in os.environ
    items.sort(key=lambda item: (item.get_closest_marker("slow") is not None) is not slow_first)


class Runtime:
    """Makes workers of one kind.

    Attributes:
        remote: Whether they are processes of their own.
    """

    def __init__(self, remote: bool) -> None:
        self.remote = remote
        self._pool = WorkerPool()

    def make(self, cls: type[Any], *args: Any) -> Any:
        """Make a worker: an object, or the handle of a Ray actor."""
        return self._pool.start([WorkerSpec(cls, args, cls.__name__, self.remote, num_cpus=0.01)])[0]

    def stop(self) -> None:
        """End all workers that were made."""
        self._pool.stop()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One small Ray for all tests of a session; more places for workers than the machine has cores."""
    from rlightning.runtime import ray_backend

    ray_backend.join("local", num_cpus=16, num_gpus=0)
    yield
    ray_backend.leave()


@pytest.fixture(scope="session")
def held_policies(ray_cluster: None) -> Iterator[Any]:
    """Remote policies that all tests share."""
    from tests.policy.crew import Held

    held = Held()
    yield held
    held.stop()


@pytest.fixture(scope="session")
def three_nodes() -> Any:
    """What ``tests.three_nodes`` found, by room."""
    from tests.simulated_nodes import results_of

    return results_of("tests.three_nodes")


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    """Local workers, then remote ones."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    runtime = Runtime(remote=request.param == "ray")
    yield runtime
    runtime.stop()
