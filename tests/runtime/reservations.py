"""Reservations on three simulated nodes: ``python -m tests.runtime.reservations``; prints JSON.

A process of its own, since the other tests have a Ray of theirs.
"""

import json
import sys

import ray

from rlightning.errors import PlacementError
from rlightning.runtime import as_handle, ray_backend
from tests.runtime.workers import Worker
from tests.simulated_nodes import simulated_nodes

NODES = ({"num_cpus": 2, "num_gpus": 2}, {"num_cpus": 2, "num_gpus": 2}, {"num_cpus": 4, "num_gpus": 0})


def gpus(_worker):
    return [int(gpu) for gpu in ray.get_gpu_ids()]


def play(nodes):
    first, second, third = nodes
    device = {"CPU": 1.0, "GPU": 1.0}
    held = ray_backend.reserve([(third, {"CPU": 4.0}), (first, device), (second, device), (second, device)], 60)
    asked = [(0, 1.0, 0.0), (1, 0.5, 0.25), (1, 0.5, 0.75), (2, 1.0, 1.0), (3, 1.0, 1.0)]
    workers = [
        ray_backend.spawn(Worker, (), num_cpus=cpus, num_gpus=share, slot=held.options(bundle))
        for bundle, cpus, share in asked
    ]
    bundles = ray.util.placement_group_table(held._group)["bundles_to_node_id"]
    handles = [as_handle(worker, f"worker[{i}]") for i, worker in enumerate(workers)]
    result = {
        "bundles": [nodes.index(bundles[bundle]) for bundle in range(4)],
        "nodes": [nodes.index(handle.info().node) for handle in handles],
        "gpus": [handle.run(gpus).result(100) for handle in handles],
    }
    try:
        ray_backend.reserve([(third, {"CPU": 1.0}), (first, device)], 1.0)
    except PlacementError as error:
        result["refusal"] = str(error)
    for handle in handles:
        handle.stop()
    held.release()
    ray_backend.reserve([(third, {"CPU": 4.0})], 60).release()
    return result


def main():
    with simulated_nodes(*NODES) as (_, nodes):
        listed = {node.node_id: node for node in ray_backend.list_nodes()}
        resources = [[listed[node].resources.get(name, 0.0) for name in ("CPU", "GPU")] for node in nodes]
        result = play(nodes) | {"resources": resources}
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
