"""Every env worker gets one eval policy, evenly, and from its own node where there is one."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rlightning.config import PolicyConfig
from rlightning.policy.base_policy import PolicyRole
from rlightning.policy.policy_group import PolicyGroup
from rlightning.policy.router import LoadRouter, NodeAffinityRouter, SimpleRouter, stick
from rlightning.runtime import gather
from rlightning.types import PolicyResponse
from tests.policy.policies import batch

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


loads_of = st.lists(st.integers(0, 9), min_size=1, max_size=8)


@quick
@given(st.integers(0, 40), loads_of)
def test_load_each_request_goes_to_the_first_of_those_with_the_fewest(num_envs, loads):
    given_loads = list(loads)
    for index in LoadRouter().select(range(num_envs), loads):
        assert index == min(range(len(given_loads)), key=lambda i: given_loads[i])
        given_loads[index] += 1


@quick
@given(st.integers(1, 40), counts)
def test_load_idle_policies_share_evenly(num_envs, num_policies):
    chosen = LoadRouter().select(range(num_envs), [0] * num_policies)
    shares = [chosen.count(index) for index in range(num_policies)]
    assert max(shares) - min(shares) <= 1


@quick
@given(st.lists(st.integers(0, 40), unique=True), loads_of, st.data())
def test_stick_env_workers_with_a_home_go_there_and_the_others_around_them(env_ids, loads, data):
    homes = data.draw(st.dictionaries(st.integers(0, 40), st.integers(0, len(loads) - 1)))
    before = list(loads)
    chosen = stick(LoadRouter(), env_ids, loads, homes)
    assert loads == before
    assert len(chosen) == len(env_ids)
    for env_id, index in zip(env_ids, chosen, strict=True):
        assert 0 <= index < len(loads)
        assert homes.get(env_id, index) == index
    # With a home of their own for all, nothing is left to choose.
    assert stick(LoadRouter(), env_ids, loads, dict(zip(env_ids, chosen, strict=True))) == chosen


class Named:
    """Answers with its number; it says that it keeps a state."""

    is_stateful, role_type = True, PolicyRole.EVAL

    def __init__(self, number):
        self.number = number

    def _rollout(self, env_ret, **options):
        return PolicyResponse(env_ret.observation[:, 0] + 100 * self.number)

    def _rollout_async(self, env_ret, **options):
        return self._rollout(env_ret)

    def _rollout_batch(self, *env_rets, **options):
        return [self._rollout(env_ret) for env_ret in env_rets]


happenings = st.lists(
    st.one_of(st.just("push"), st.just("pop"), st.lists(st.integers(0, 5), unique=True, min_size=1)), max_size=12
)


@quick
@given(happenings, st.sampled_from(["sync", "async"]))
def test_an_env_worker_stays_with_its_policy_as_long_as_it_exists(happenings, mode):
    group = PolicyGroup([], [Named(0)], PolicyConfig(rollout_mode=mode))
    homes, number = {}, 0
    for happening in happenings:
        if happening == "push":
            number += 1
            group.push(Named(number), PolicyRole.EVAL)
        elif happening == "pop":
            gone = group.pop(PolicyRole.EVAL) if len(group.eval_list) > 1 else None
            homes = {env_id: home for env_id, home in homes.items() if home != getattr(gone, "number", None)}
        else:
            # The row of env worker i observes i, wherever it stands in the batch.
            requests = batch([1] * 6)
            requests = type(requests)(happening, [requests.items[env_id] for env_id in happening])
            answers = gather(group.rollout_batch(requests).items, 60)
            assert [int(answer.action[0]) % 100 for answer in answers] == happening
            for env_id, answer in zip(happening, answers, strict=True):
                home = int(answer.action[0]) // 100
                assert homes.setdefault(env_id, home) == home
                assert home in [policy.number for policy in group.eval_list]


def test_affinity_an_env_worker_that_nobody_told_of_is_answered_by_any():
    router = NodeAffinityRouter(["a"], ["b", "a"])
    assert router.select([0, 1, 2], [0, 0]) == [1, 1, 0]
