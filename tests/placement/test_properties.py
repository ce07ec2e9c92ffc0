"""What holds of every plan of every strategy."""

import json
from collections import Counter, defaultdict
from fractions import Fraction

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rlightning.errors import PlacementError
from rlightning.placement import Cluster, Node
from rlightning.placement.pools import as_pools
from tests.placement.makers import ENV_STRATEGIES, STRATEGIES, clusters, manual, plan, seats, wishes

ways = st.tuples(st.sampled_from(STRATEGIES), st.sampled_from(ENV_STRATEGIES))
SETTINGS = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)


def plan_or_skip(cluster, requests, way):
    try:
        return plan(cluster, requests, *way)
    except PlacementError:
        assume(False)


def exact(amount):
    return Fraction(str(round(amount, 4)))


def assert_nothing_is_given_away_twice(found, cluster):
    devices, cpus, memory, custom = Counter(), Counter(), Counter(), Counter()
    for slot in found.slots:
        for device in slot.devices:
            devices[slot.node, device] += exact(slot.share)
        cpus[slot.node] += exact(slot.cpus)
        memory[slot.node] += exact(slot.memory_gb)
        for name, amount in slot.resources.items():
            custom[slot.node, name] += exact(amount)
    by_name = {node.name: node for node in cluster.nodes}
    for (node, device), share in devices.items():
        assert device in by_name[node].gpus
        assert share <= 1
    for node in cluster.nodes:
        assert cpus[node.name] <= exact(node.cpus)
        assert node.memory_gb is None or memory[node.name] <= exact(node.memory_gb)
    for (node, name), amount in custom.items():
        assert amount <= exact(by_name[node].resources.get(name, 0.0))


@SETTINGS
@given(clusters(), wishes(), ways)
def test_no_plan_gives_a_device_or_a_node_away_twice(cluster, requests, way):
    assert_nothing_is_given_away_twice(plan_or_skip(cluster, requests, way), cluster)


@SETTINGS
@given(clusters(), wishes(), ways)
def test_every_worker_has_exactly_one_slot_and_gets_what_it_asked_for(cluster, requests, way):
    found = plan_or_skip(cluster, requests, way)
    assert sorted(slot.worker for slot in found.slots) == sorted(request.name for request in requests)
    assert [slot.rank for slot in found.slots] == list(range(len(requests)))
    asked = {request.name: request for request in requests}
    for slot in found.slots:
        assert exact(slot.gpus) == exact(asked[slot.worker].gpus)
        # A part of a device is a part of one device.
        assert len(slot.devices) == (max(1, round(slot.gpus)) if slot.gpus else 0)
        assert slot.memory_gb == asked[slot.worker].memory_gb
        if slot.process == slot.worker:
            assert exact(slot.cpus) == exact(asked[slot.worker].cpus)


@SETTINGS
@given(clusters(), wishes(), ways, st.randoms())
def test_no_plan_depends_on_the_order_in_which_things_are_listed(cluster, requests, way, random):
    found = plan_or_skip(cluster, requests, way)
    shuffled = list(requests)
    random.shuffle(shuffled)
    mirrored = Cluster(
        tuple(
            Node(n.name, n.cpus, n.gpus, n.memory_gb, n.gpu_memory_gb, dict(reversed(n.resources.items())))
            for n in cluster.nodes
        )
    )
    assert plan(mirrored, shuffled, *way) == found


@SETTINGS
@given(clusters(), wishes(), ways)
def test_reservations_hold_exactly_what_their_workers_take(cluster, requests, way):
    found = plan_or_skip(cluster, requests, way)
    taken = defaultdict(lambda: [Fraction(0), Fraction(0), Fraction(0), set(), set()])
    for slot in found.slots:
        sums = taken[slot.reservation]
        sums[0] += exact(slot.cpus)
        sums[1] += exact(slot.gpus)
        sums[2] += exact(slot.memory_gb)
        sums[3] |= set(slot.devices)
        sums[4].add(slot.node)
    assert [one.index for one in found.reservations] == list(range(len(found.reservations))) == sorted(taken)
    for one in found.reservations:
        held = [exact(one.cpus), exact(one.gpus), exact(one.memory_gb), set(one.devices), {one.node}]
        assert held == taken[one.index]
    # Workers that share a device share its reservation: no device is in two of them.
    devices = Counter((one.node, device) for one in found.reservations for device in one.devices)
    assert all(count == 1 for count in devices.values())


@SETTINGS
@given(clusters(), wishes(), st.sampled_from(STRATEGIES), st.sampled_from(ENV_STRATEGIES[1:]))
def test_envs_are_as_near_to_their_eval_policy_as_the_strategy_says(cluster, requests, strategy, env_strategy):
    found = plan_or_skip(cluster, requests, (strategy, env_strategy))
    evals = found.of("eval")
    assume(evals and found.of("env"))
    for index, slot in enumerate(found.of("env")):
        owner = evals[index % len(evals)]
        assert slot.node == owner.node
        if env_strategy == "device-colocate":
            assert slot.devices == owner.devices
        assert (slot.process == owner.worker) == (env_strategy == "process-colocate")


@SETTINGS
@given(clusters(), wishes(), st.sampled_from(ENV_STRATEGIES))
def test_disaggregated_pools_share_no_device(cluster, requests, env_strategy):
    found = plan_or_skip(cluster, requests, ("disaggregate", env_strategy))
    pools = {"train": [], "rollout": []}
    for slot in found.slots:
        assert slot.pool == ("train" if slot.role in ("train", "buffer") else "rollout")
        pools[slot.pool].append(slot)
    devices = [{(slot.node, device) for slot in held for device in slot.devices} for held in pools.values()]
    assert not devices[0] & devices[1]


@SETTINGS
@given(clusters(), wishes(), st.sampled_from(ENV_STRATEGIES))
def test_colocated_eval_policies_are_on_the_node_of_their_train_policy(cluster, requests, env_strategy):
    found = plan_or_skip(cluster, requests, ("colocate", env_strategy))
    trains, evals = found.of("train"), found.of("eval")
    for index, slot in enumerate(evals if trains else []):
        many = len(evals) > len(trains)
        assert slot.node == trains[index * len(trains) // len(evals) if many else index].node


@SETTINGS
@given(clusters(), wishes(), ways)
def test_a_plan_can_be_used_as_pools_as_it_stands(cluster, requests, way):
    found = plan_or_skip(cluster, requests, way)
    assume(found.slots)
    again = manual(cluster, requests, as_pools(found, cluster), way[1])
    assert seats(again) == seats(found)
    assert_nothing_is_given_away_twice(again, cluster)


@SETTINGS
@given(clusters(), wishes(), ways)
def test_a_plan_comes_back_equal_from_plain_values(cluster, requests, way):
    found = plan_or_skip(cluster, requests, way)
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict()
