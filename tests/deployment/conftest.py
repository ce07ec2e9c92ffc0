"""Runs that the tests of this folder share."""

import pytest

from tests.deployment.kinds import train_kind


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Return the folder of a run of a kind, which is trained when it is asked for first."""
    folders = {}

    def run_of(kind):
        if kind not in folders:
            folders[kind] = train_kind(kind, tmp_path_factory.mktemp(kind))
        return folders[kind]

    return run_of
