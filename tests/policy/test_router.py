"""Every env worker gets one eval policy, evenly, and from its own node where there is one."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rlightning.policy.router import NodeAffinityRouter, SimpleRouter

counts = st.integers(1, 8)
quick = settings(max_examples=50, deadline=None)
nodes = st.lists(st.sampled_from("abcd"), min_size=1, max_size=12)


@quick
@given(st.integers(1, 40), counts)
def test_simple_every_env_has_one_policy_in_range_and_shares_differ_by_one_at_most(num_envs, num_policies):
    chosen = SimpleRouter().select(range(num_envs), [0] * num_policies)
    assert len(chosen) == num_envs
    assert set(chosen) <= set(range(num_policies))
    shares = [chosen.count(index) for index in range(num_policies)]
    assert max(shares) - min(shares) <= 1


@quick
@given(st.lists(st.integers(0, 40), unique=True), counts, st.data())
def test_simple_an_env_keeps_its_policy_whoever_asks_beside_it_and_whatever_the_loads(env_ids, num_policies, data):
    loads = data.draw(st.lists(st.integers(0, 9), min_size=num_policies, max_size=num_policies))
    together = SimpleRouter().select(env_ids, loads)
    assert together == [SimpleRouter().select([env_id], [0] * num_policies)[0] for env_id in env_ids]


@quick
@given(nodes, nodes)
def test_affinity_no_request_crosses_nodes_where_it_need_not(env_nodes, policy_nodes):
    chosen = NodeAffinityRouter(env_nodes, policy_nodes).select(range(len(env_nodes)), [0] * len(policy_nodes))
    assert len(chosen) == len(env_nodes)
    for node, index in zip(env_nodes, chosen, strict=True):
        assert 0 <= index < len(policy_nodes)
        assert policy_nodes[index] == node or node not in policy_nodes


@quick
@given(nodes, nodes)
def test_affinity_policies_of_a_node_share_its_envs_evenly(env_nodes, policy_nodes):
    chosen = NodeAffinityRouter(env_nodes, policy_nodes).select(range(len(env_nodes)), [0] * len(policy_nodes))
    for node in set(policy_nodes):
        near = [index for index, policy_node in enumerate(policy_nodes) if policy_node == node]
        asked = [index for env_node, index in zip(env_nodes, chosen, strict=True) if env_node == node]
        shares = [asked.count(index) for index in near]
        assert max(shares) - min(shares) <= 1


@quick
@given(nodes, nodes, st.data())
def test_affinity_an_env_keeps_its_policy_whoever_asks_beside_it(env_nodes, policy_nodes, data):
    router, loads = NodeAffinityRouter(env_nodes, policy_nodes), [0] * len(policy_nodes)
    some = data.draw(st.lists(st.integers(0, len(env_nodes) - 1), unique=True))
    everyone = router.select(range(len(env_nodes)), loads)
    assert router.select(some, loads) == [everyone[env_id] for env_id in some]
