"""Fixtures for all tests: everything that works with workers is tested with local and with remote ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rlightning.runtime.spawn import WorkerPool, WorkerSpec

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the quick tests first, so that most mistakes show early."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


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
    """One small Ray for all tests of a session."""
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    # Worker processes must find the tests' own modules, as a user's script is found by its workers.
    paths = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    ray.init(
        address="local",
        num_cpus=16,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )
    yield
    ray.shutdown()


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    """Local workers, then remote ones."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    runtime = Runtime(remote=request.param == "ray")
    yield runtime
    runtime.stop()
