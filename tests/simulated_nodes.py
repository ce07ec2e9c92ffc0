"""Several nodes on one machine, in programs of their own: the other tests have a Ray of theirs."""

import json
import subprocess
import sys
from contextlib import contextmanager

import ray
from ray.cluster_utils import Cluster


@contextmanager
def simulated_nodes(*nodes):
    """Start a cluster and join it; gives its address and Ray's ids of the nodes.

    Args:
        *nodes: Options of ``Cluster.add_node``.
    """
    cluster = Cluster()
    try:
        added = [cluster.add_node(**{"object_store_memory": 100_000_000, **node}) for node in nodes]
        ray.init(address=cluster.address, logging_level="error")
        yield cluster.address, [node.node_id for node in added]
    finally:
        ray.shutdown()
        cluster.shutdown()


def results_of(module, timeout_s=500):
    """Run a module of the tests as a program; gives the JSON in the last line that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", module], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
