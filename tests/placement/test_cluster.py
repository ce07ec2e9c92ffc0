"""A cluster is described by groups of nodes; devices are those that a process may use."""

import pytest

from rlightning.configuring.cluster_file import ClusterDescription
from rlightning.errors import ConfigError
from rlightning.placement.cluster import parse_devices
from tests.placement.makers import nodes, places, plan, workers


def build(*groups):
    return ClusterDescription.model_validate({"nodes": list(groups)}).build()


def test_groups_of_equal_nodes_are_written_out_in_order():
    cluster = build(
        {"count": 2, "cpus": 64, "gpus": 8, "gpu_memory_gb": 80}, {"name": "io", "cpus": 4, "memory_gb": 16}
    )
    assert [node.name for node in cluster.nodes] == ["n0", "n1", "io"]
    assert [len(node.gpus) for node in cluster.nodes] == [8, 8, 0]
    assert cluster.describe() == "n0..n1 (64 CPUs, 8 GPUs each), io (4 CPUs, 0 GPUs, 16 GB)"


def test_all_that_is_wrong_with_groups_is_told_at_once():
    with pytest.raises(ConfigError) as caught:
        build({"name": "a", "cpus": 1}, {"name": "a", "cpus": 1, "gpus": [1, 1]}, {"cpus": 1, "gpus": -1})
    assert [problem.path for problem in caught.value.problems] == ["nodes.1.gpus", "nodes.2.gpus", "nodes"]


@pytest.mark.parametrize(
    ("text", "count", "devices"),
    [
        (None, 3, (0, 1, 2)),
        ("4,5,6,7", 4, (4, 5, 6, 7)),
        (" 2, 0", 2, (2, 0)),
        ("", 0, ()),
        ("-1", 0, ()),
        ("1,-1,2", 1, (1,)),
        ("0,1,2,3", 2, (0, 1)),  # it names more than there are
        ("GPU-8f1e,GPU-77aa", 2, (0, 1)),
    ],
)
def test_a_narrowed_list_of_devices_is_what_there_is(text, count, devices):
    assert parse_devices(text, count) == devices


# C20: 2 nodes with 4 GPUs each, of which a list says 4,5,6,7.
def test_ranks_get_the_visible_devices_one_each():
    cluster = nodes(2, gpus=parse_devices("4,5,6,7", 4))
    found = plan(cluster, workers("train", 8, gpus=1))
    assert places(found, "train") == [(node, (device,)) for node in ("n0", "n1") for device in (4, 5, 6, 7)]


def test_two_workers_share_a_device_only_where_fractions_say_so():
    # 0.5 + 0.5 fill a device; a third half begins the next; 0.6 and 0.6 never share one.
    found = plan(nodes(1, gpus=(4, 5, 6, 7)), workers("train", 3, gpus=0.5))
    assert places(found, "train") == [("n0", (4,)), ("n0", (4,)), ("n0", (5,))]
    found = plan(nodes(1, gpus=(4, 5, 6, 7)), workers("train", 3, gpus=0.6))
    assert places(found, "train") == [("n0", (4,)), ("n0", (5,)), ("n0", (6,))]


def test_a_fraction_never_straddles_two_devices():
    # 2 x 0.6 leave 0.4 + 0.4 of two devices, and 0.5 fits in neither.
    with pytest.raises(RuntimeError, match=r"eval\[0\] found no place .* 0.5 of a GPU of one node.*0.4 \+ 0.4 GPUs"):
        plan(nodes(1, gpus=2), [*workers("train", 2, gpus=0.6), *workers("eval", 1, gpus=0.5)])
