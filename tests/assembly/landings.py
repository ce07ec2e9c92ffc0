"""Workers on three nodes, by each strategy; ``tests.three_nodes`` runs it.

The workers have the names and the needs of those of a run, and do nothing.
"""

import time
from dataclasses import replace

import ray

from rlightning.assembly.run import Run, running_cluster
from rlightning.config import ClusterConfig, Config, EnvConfig, EvalConfig, PolicyConfig
from rlightning.errors import PlacementError
from rlightning.placement.pools import as_pools
from rlightning.runtime import as_handle, gather, ray_backend
from tests.runtime.workers import Worker

REMOTE = {"remote_env": True, "remote_eval": True, "remote_storage": True, "remote_train": True}


def config(address, strategy, env_strategy, **cluster):
    return Config(
        env=[
            EnvConfig(name="CartPole-v1", num_workers=4, num_cpus=0.5, num_gpus=0.1 if "device" in env_strategy else 0)
        ],
        evaluation=EvalConfig(episodes=1),
        policy=PolicyConfig(train_num_cpus=1, train_num_gpus=0.5, eval_num_cpus=0.5, eval_num_gpus=0.25),
        cluster=ClusterConfig(
            ray_address=address,
            eval_worker_num=2,
            placement={"mode": cluster.pop("mode", "auto"), "strategy": strategy, "env_strategy": env_strategy},
            **{"train_worker_num": 2, "buffer_worker_num": "auto", **REMOTE, **cluster},
        ),
    )


def land(made):
    """Start the workers of a run; return where each should be and where Ray says it is, the plan, and its pools."""
    run = Run(made)
    names = [node.name for node in running_cluster(ray_backend.list_nodes()).nodes]
    ids = [node.node_id for node in ray_backend.list_nodes()]
    specs = [replace(spec, cls=Worker, args=()) for spec in run.plan.workers.all() if spec.remote]
    with run.pool() as pool:
        handles = [as_handle(worker, spec.name) for worker, spec in zip(pool.start(specs), specs, strict=True)]
        slots = {slot.worker: slot for slot in run.plan.placement.slots}
        wanted = {spec.name: [names.index(slots[spec.name].node), list(slots[spec.name].devices)] for spec in specs}
        used = gather([handle.call(Worker.get_gpus) for handle in handles], 200)
        found = {
            handle.name: [ids.index(handle.info().node), devices] for handle, devices in zip(handles, used, strict=True)
        }
        # An env worker comes down; who takes its place is where it was.
        place = next(place for place, spec in enumerate(specs) if spec.name == "env[1]")
        handles[place].call(Worker.exit)
        successor = as_handle(pool.replace(handles[place].target, specs[place]), "env[1]")
        replaced = [ids.index(successor.info().node), successor.call(Worker.get_gpus).result(200)]
        routes = run.plan.routes
        pools = as_pools(run.plan.placement, running_cluster(ray_backend.list_nodes()))
        run.close(pool)
    return (
        {
            "wanted": wanted,
            "found": found,
            "replaced": replaced,
            "routes": [routes.env_shards, routes.learner_shards],
        },
        run.plan,
        pools,
    )


def slots_of(plan):
    """Where each worker of a plan is, and which way its data take."""
    slots = {slot.worker: (slot.node, slot.devices) for slot in plan.placement.slots}
    return slots, plan.routes.env_shards, plan.routes.learner_shards


def all_free(cpus, timeout_s):
    """Wait until Ray has noticed that nothing is held any more; gives the CPUs that are free."""
    end = time.monotonic() + timeout_s
    while (free := ray.available_resources().get("CPU", 0.0)) < cpus and time.monotonic() < end:
        time.sleep(0.2)
    return free


def play(address):
    """Let workers land by each strategy on nodes with 4, 4 and 6 CPUs and 2, 2 and 0 GPUs; gives the results by way."""
    results = {}
    for strategy, env_strategy in (
        ("disaggregate", "default"),
        ("colocate", "device-colocate"),
        ("default", "node-affinity"),
    ):
        made = config(address, strategy, env_strategy)
        results[f"{strategy} {env_strategy}"], plan, pools = land(made)
    # The plan of the last run, as it stands.
    again = Run(config(address, "default", "node-affinity", mode="manual", resource_pool=pools))
    results["manual"] = slots_of(again.plan) == slots_of(plan)
    again.close()
    try:
        land(config(address, "disaggregate", "default", train_worker_num=9))
    except PlacementError as error:
        results["refusal"] = str(error)
    results["free"] = all_free(14, 60.0)
    return results
