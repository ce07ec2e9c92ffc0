"""All that runs on three simulated nodes: ``python -m tests.three_nodes``; prints JSON.

One cluster for all of it, since it starts slowly, and a process of its own, since the other tests have a Ray of theirs.
"""

import json
import sys

from tests.assembly import landings
from tests.policy import pushes_between_nodes
from tests.simulated_nodes import simulated_nodes

NODES = (
    {"num_cpus": 4, "num_gpus": 2, "resources": {"learns": 10}},
    {"num_cpus": 4, "num_gpus": 2, "resources": {"acts": 10}},
    {"num_cpus": 6, "num_gpus": 0, "resources": {"both": 10}},
)


def main():
    with simulated_nodes(*NODES) as (address, _):
        results = {"landings": landings.play(address), "pushes": pushes_between_nodes.play()}
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
