"""Clusters and requests for tests, by hand and by hypothesis."""

from dataclasses import replace

from hypothesis import strategies as st

from rlightning.config import ClusterConfig
from rlightning.placement import Cluster, Node, WorkerRequest, choose_strategy

STRATEGIES = ("default", "disaggregate", "colocate")
ENV_STRATEGIES = ("default", "node-affinity", "device-colocate", "process-colocate")


def nodes(count, cpus=16, gpus=4, **more):
    """Equal nodes n0, n1, ...; ``gpus`` is a number or the indices."""
    indices = tuple(range(gpus)) if isinstance(gpus, int) else tuple(gpus)
    return Cluster(tuple(Node(f"n{i}", cpus, indices, **more) for i in range(count)))


def workers(role, count, cpus=1.0, gpus=0.0, **more):
    return [WorkerRequest(role, index, cpus, gpus, **more) for index in range(count)]


def plan(cluster, requests, strategy="default", env_strategy="default"):
    placement = {"strategy": strategy, "env_strategy": env_strategy}
    return choose_strategy(ClusterConfig(placement=placement))(cluster, requests)


def manual(cluster, requests, pools, env_strategy="default"):
    placement = {"mode": "manual", "env_strategy": env_strategy}
    return choose_strategy(ClusterConfig(placement=placement, resource_pool=pools))(cluster, requests)


def places(found, role):
    """Node and devices of each worker of a role."""
    return [(slot.node, slot.devices) for slot in found.of(role)]


def seats(found):
    """All that a worker sees of its place."""
    return [(s.worker, s.node, s.devices, s.share, s.process, s.cpus) for s in found.slots]


@st.composite
def clusters(draw):
    """Up to five nodes, of one kind or of several, with and without devices."""
    kinds = st.tuples(
        st.integers(0, 16),
        st.sampled_from([(), (0,), (0, 1), (4, 5, 6, 7), (1, 3, 5)]),
        st.sampled_from([None, 16.0, 64.0]),
        st.sampled_from([{}, {"robot": 1.0}, {"robot": 2.0, "camera": 1.0}]),
    )
    drawn = draw(st.lists(kinds, min_size=1, max_size=5))
    return Cluster(tuple(Node(f"n{i}", *kind[:3], resources=kind[3]) for i, kind in enumerate(drawn)))


@st.composite
def wishes(draw):
    """Requests of a run with all roles."""
    shares = st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 0.6, 1.0, 2.0])
    amounts = st.sampled_from([0.0, 0.5, 1.0, 2.0])
    requests = []
    for role, most in (("train", 4), ("eval", 6), ("buffer", 3), ("env", 12), ("eval_env", 1)):
        gpus = draw(shares) if role != "buffer" else 0.0
        requests += workers(role, draw(st.integers(0, most)), draw(amounts), gpus)
    if draw(st.booleans()):
        memory, robots = draw(st.sampled_from([0.5, 4.0])), draw(st.sampled_from([0.0, 0.5]))
        resources = {"robot": robots} if robots else {}
        requests = [
            replace(request, memory_gb=memory, resources=resources) if request.role == "env" else request
            for request in requests
        ]
    return requests
