"""A group is its policies: routed, trained and kept equal, wherever they live."""

import logging
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rlightning.checkpoint import load_state
from rlightning.config import PolicyConfig, TrainConfig, WeightBufferConfig
from rlightning.errors import ProtocolError, ShapeError, WeightSyncError, WorkerError
from rlightning.policy.base_policy import PolicyRole
from rlightning.policy.policy_group import PolicyGroup
from rlightning.runtime import as_handle, gather
from rlightning.runtime.future import LocalFuture
from rlightning.runtime.spawn import WorkerPool, WorkerSpec
from rlightning.types import BatchedData, EnvRet
from tests.policy.hooks import RolloutOnly
from tests.policy.policies import Breakable, Scribbling, batch, request

CONFIG = PolicyConfig()
TRAIN = TrainConfig(max_epochs=10, lr=0.1)


class Policies(NamedTuple):
    learner: object
    actors: list
    remote: bool


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def policies(request):
    """A learner and two eval policies; shared by all tests, since processes start slowly."""
    remote = request.param == "ray"
    if remote:
        request.getfixturevalue("ray_cluster")
    pool = WorkerPool()
    roles = [PolicyRole.TRAIN, PolicyRole.EVAL, PolicyRole.EVAL]
    specs = [WorkerSpec(Breakable, (CONFIG, role), f"{i}", remote, num_cpus=0.01) for i, role in enumerate(roles)]
    learner, *actors = pool.start(specs)
    yield Policies(learner, actors, remote)
    pool.stop()


@pytest.fixture
def group(policies):
    """The same policies as after a start, without weights."""
    group = PolicyGroup([policies.learner], policies.actors, CONFIG, seed=7)
    group.init(TRAIN)
    return group


def ask(worker, method, *args):
    return as_handle(worker).call(method, *args).result(60)


def data(version=0):
    return TensorDict(
        {
            "observation": torch.arange(12.0).view(2, 3, 2),
            "reward": torch.ones(2, 3),
            "version": torch.full((2, 3), version),
        },
        [2, 3],
    )


def train(group, epochs=1):
    for _ in range(epochs):
        group.update_dataset([data()])
        metrics = group.train()
    return metrics


def answers(batched):
    return dict(zip(batched.env_ids, gather(batched.items, 60), strict=True))


# Who is there


def test_policies_are_given_back_as_they_were_given(policies, group):
    assert [policy is policies.learner for policy in group.train_list] == [True]
    assert [a is b for a, b in zip(group.eval_list, policies.actors, strict=True)] == [True, True]


def test_a_policy_that_leaves_or_joins_is_known_at_once(policies, group):
    group.sync_weights()
    requests = batch([1, 1, 1])
    answers(group.rollout_batch(requests))
    left = group.pop(PolicyRole.EVAL)
    assert left is policies.actors[1]
    assert len(group.eval_list) == 1
    answers(group.rollout_batch(requests))
    # Env 1 was answered by policy 1 before, and by policy 0 after.
    assert [ask(actor, Breakable.count_forwards) for actor in policies.actors] == [2, 1]
    ask(left, Breakable.init_eval)
    group.push(left, PolicyRole.EVAL)
    with pytest.raises(WorkerError, match="no weights have come yet") as caught:
        answers(group.rollout_batch(requests))
    assert caught.value.worker == "eval[1]"
    group.sync_weights()
    answers(group.rollout_batch(requests))
    assert ask(left, Breakable.count_forwards) == 1


def test_the_nearest_policies_are_known_again_when_one_leaves_or_joins():
    config = PolicyConfig(router_type="node_affinity")
    policies = [Breakable(config, PolicyRole.EVAL) for _ in range(2)]
    learner = Breakable(config, PolicyRole.TRAIN)
    group = PolicyGroup([learner], policies[:1], config)
    group.init(TRAIN)
    policies[1].init_eval()
    group.routing.place_envs(["local"] * 4)
    group.push(policies[1], PolicyRole.EVAL)
    group.sync_weights()
    answers(group.rollout_batch(batch([1] * 4)))
    assert [policy.forwards for policy in policies] == [1, 1]
    group.pop(PolicyRole.EVAL)
    answers(group.rollout_batch(batch([1] * 4)))
    assert [policy.forwards for policy in policies] == [2, 1]


def test_an_empty_role_says_which_policy_is_missing():
    nobody = PolicyGroup([], [], CONFIG)
    with pytest.raises(ProtocolError, match="no eval policy to roll out"):
        nobody.rollout_batch(batch([1]))
    for call in (nobody.train, nobody.sync_weights, nobody.get_training_state):
        with pytest.raises(ProtocolError, match="no train policy"):
            call()
    for role in PolicyRole:
        with pytest.raises(ProtocolError, match=f"no policy of role '{role.value}'"):
            nobody.pop(role)
    with pytest.raises(ValueError, match="PolicyRole"):
        nobody.push(object(), "both")


def test_policies_are_listed_by_node(policies, group):
    group.init_placement_info()
    ((node, entry),) = group.placement_info.items()
    assert (node == "local") is not policies.remote
    assert entry["train_policies"] == [policies.learner]
    assert entry["eval_policies"] == policies.actors


def test_a_strategy_that_is_not_known_is_refused_by_name():
    for strategy in ("None", "Double", "Shared", "Sharded"):
        config = PolicyConfig(weight_buffer=WeightBufferConfig(buffer_strategy=strategy))
        PolicyGroup([], [], config).init_weight_buffer()
    unknown = PolicyConfig(weight_buffer=WeightBufferConfig.model_construct(buffer_strategy="Triple"))
    with pytest.raises(ValueError, match=r"'Triple': set .*buffer_strategy to one of None, Double, Shared, Sharded"):
        PolicyGroup([], [], unknown).init_weight_buffer()


# Rollouts


def test_answers_come_by_env_id_with_one_forward_per_eval_policy(policies, group):
    group.sync_weights()
    sizes = [2, 1, 3, 1, 2]
    weight, _ = ask(policies.learner, Breakable.get_weights)
    bias_free = answers(group.rollout_batch(batch(sizes), deterministic=True))
    assert list(bias_free) == [0, 1, 2, 3, 4]
    assert [len(answer.action) for answer in bias_free.values()] == sizes
    assert {answer.version for answer in bias_free.values()} == {0}
    # Rows are numbered 0 to 8 and observe (i, i): one row more moves the action by the sums of the weights.
    rows = np.concatenate([bias_free[env_id].action for env_id in range(5)])
    np.testing.assert_allclose(np.diff(rows, axis=0), np.tile(weight.sum(1), (8, 1)), rtol=1e-4, atol=1e-5)
    # Envs 0, 2, 4 at policy 0 and 1, 3 at policy 1: one forward each.
    assert [ask(actor, Breakable.count_forwards) for actor in policies.actors] == [1, 1]


def test_some_env_workers_may_ask_in_any_order_and_by_futures(policies, group):
    group.sync_weights()
    there = as_handle(policies.learner)
    for wrap in (lambda ret: ret, LocalFuture, lambda ret: there.call(Breakable.give_back, ret)):
        requests = batch([1, 2, 3], env_ids=[4, 0, 3])
        asked = BatchedData(requests.env_ids, [wrap(ret) for ret in requests.items])
        got = answers(group.rollout_batch(asked, deterministic=True))
        assert [(env_id, len(answer.action)) for env_id, answer in got.items()] == [(4, 1), (0, 2), (3, 3)]
        weight, _ = ask(policies.learner, Breakable.get_weights)
        # Row 5 of 0 to 5 is the last one of env 3, row 0 the only one of env 4.
        np.testing.assert_allclose(got[3].action[2] - got[4].action[0], 5 * weight.sum(1), rtol=1e-4, atol=1e-5)


def test_ids_of_env_workers_may_be_of_any_hashable_kind(policies, group):
    group.sync_weights()
    ids = [("arm", 1), "head", np.int64(3), "tail"]
    responses = group.rollout_batch(batch([1, 2, 3, 1], env_ids=ids))
    finished = group.postprocess(batched_policy_resp=responses)
    assert responses.ids() == finished.ids() == ids
    assert [len(answer.action) for answer in gather(finished.values(), 60)] == [1, 2, 3, 1]
    # They take turns as numbers do: two of the four at each policy, by one forward.
    assert [ask(actor, Breakable.count_forwards) for actor in policies.actors] == [1, 1]


def test_postprocess_goes_where_the_rollout_went_and_keeps_the_order(group):
    group.sync_weights()
    requests = batch([2, 1, 1])
    responses = group.rollout_batch(requests)
    finished = answers(group.postprocess(requests, responses))
    for env_id, answer in answers(responses).items():
        assert np.array_equal(finished[env_id].action, answer.action)
    assert list(answers(group.postprocess(batched_policy_resp=responses))) == [0, 1, 2]
    with pytest.raises(ValueError, match="postprocess needs"):
        group.postprocess()


def _odd(part, value):
    """A request whose observation is a dict, with another value in one place."""
    observation = {"image": np.zeros((1, 4, 4, 3), np.uint8), "state": (np.zeros((1, 2), np.float32),)}
    return EnvRet.from_reset({**observation, part: value}, 1)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        (
            "image",
            np.zeros((1, 8, 8, 3), np.uint8),
            r"\['image'\] of env worker 4 is \[N, 8, 8, 3\] uint8, .* worker 0 ",
        ),
        (
            "state",
            (np.zeros((1, 3), np.float32),),
            r"\['state'\]\[0\] of env worker 4 is \[N, 3\] float32, .* \[N, 2\]",
        ),
        ("state", (np.zeros((1, 2), np.float64),), r"\['state'\]\[0\] of env worker 4 is \[N, 2\] float64, .* float32"),
        ("state", np.zeros((1, 2), np.float32), r"\['state'\]\[0\] of env worker 4 is missing"),
        ("depth", np.zeros((1, 2), np.float32), r"\['depth'\] of env worker 4 is \[N, 2\] float32, .* missing"),
    ],
)
def test_env_workers_of_different_shapes_dtypes_or_keys_are_named_with_the_field(group, part, value, message):
    group.sync_weights()
    # Env workers 0, 2 and 4 ask the first policy, 1 and 3 the second one.
    fine = _odd("image", np.zeros((1, 4, 4, 3), np.uint8))
    answers = group.rollout_batch(BatchedData([0, 1, 2, 3, 4], [fine] * 4 + [_odd(part, value)])).items
    with pytest.raises(WorkerError, match="observation" + message) as caught:
        answers[0].result(60)
    assert isinstance(caught.value.__cause__, ShapeError)


def test_evaluation_does_not_change_what_training_samples(group):
    group.sync_weights()

    def sampled(**options):
        return [answer.action for answer in answers(group.rollout_batch(batch([2, 2]), **options)).values()]

    undisturbed = [sampled(), sampled()]
    group.init(TRAIN)
    group.sync_weights()
    first = sampled()
    with group.evaluating(5):
        evaluated = sampled(evaluation=True)
    second = sampled()
    for expected, got in zip(undisturbed, (first, second), strict=True):
        assert all(map(np.array_equal, expected, got))
    with group.evaluating(5):
        assert all(map(np.array_equal, evaluated, sampled(evaluation=True)))
    # The two policies draw differently: their noise is what is left without the mode.
    mode = sampled(deterministic=True)
    assert not np.allclose(evaluated[0] - mode[0], evaluated[1] - mode[1])


def test_a_failing_request_names_the_policy(group):
    group.sync_weights()
    requests = batch([2, 2])
    requests.items[1].observation = np.zeros((2, 5), np.float32)
    responses = group.rollout_batch(requests)
    with pytest.raises(WorkerError, match="shapes cannot be multiplied") as caught:
        gather(responses.items, 60)
    assert caught.value.worker == "eval[1]"


# Training and weights


def test_training_reports_the_first_learners_metrics_and_how_old_the_data_are(policies, group):
    assert group.update_dataset([data(version=0)]) == 0
    assert set(group.train()) == {"loss"}
    assert group.update_dataset([LocalFuture(data(version=0))]) == 1
    assert group.train()["loss"] > 0
    assert ask(policies.learner, Breakable.get_weights)[1] == 12


@pytest.mark.parametrize("count", [0, 2])
def test_data_of_another_number_of_pieces_than_learners_are_refused(group, count):
    with pytest.raises(ValueError, match=f"{count} pieces of data for 1 train policies"):
        group.update_dataset([data()] * count)


def test_a_sync_brings_every_eval_policy_to_the_learners_digest_and_version(policies, group):
    assert group.version is None
    for epochs in (0, 2, 1):
        if epochs:
            train(group, epochs)
        version = group.sync_weights()
        expected = ask(policies.learner, Breakable.get_bundle_digest)
        assert group.version == version == expected[0]
        assert [ask(actor, Breakable.get_bundle_digest) for actor in policies.actors] == [expected, expected]
        assert group.compare_weights() == []
        assert group.verify_eval_weight_consistency()
        assert group.verify_eval_weight_consistency(rtol=0)
    assert group.version == 3
    for actor in policies.actors:
        assert ask(actor, Breakable.get_training) == (False, False)
    assert ask(policies.learner, Breakable.get_training) == (True, True)


def test_one_bit_in_one_parameter_of_one_eval_policy_is_found_by_name(policies, group, caplog):
    train(group)
    group.sync_weights()
    ask(policies.actors[1], Breakable.flip, "net.weight", 2)
    # The norm is the same within 0.1 %: it is no proof.
    assert group.verify_eval_weight_consistency(rtol=1e-3)
    assert not caplog.records
    with caplog.at_level(logging.ERROR):
        assert not group.verify_eval_weight_consistency(rtol=0)
    assert [(m.policy, m.name) for m in group.compare_weights()] == [(1, "net.weight")]
    (record,) = caplog.records
    assert "eval[1] net.weight" in record.getMessage()
    group.sync_weights()
    assert group.verify_eval_weight_consistency(rtol=0)


def test_a_norm_that_is_off_by_more_than_told_is_found(policies, group):
    group.sync_weights()
    ask(policies.actors[0], Breakable.scale, "net.bias", 1.01)
    assert not group.verify_eval_weight_consistency()
    assert [(m.policy, m.name) for m in group.compare_weights(rtol=1e-3)] == [(0, "net.bias")]
    assert group.verify_eval_weight_consistency(rtol=0.02)


def test_a_policy_that_missed_a_sync_is_found_by_its_version(policies, group):
    group.sync_weights()
    train(group)
    found = [(m.policy, m.name) for m in group.compare_weights()]
    assert found == [(i, name) for i in (0, 1) for name in ("version", "net.weight", "net.bias", "self.seen")]
    assert not group.verify_eval_weight_consistency(rtol=0)


def test_weights_that_come_late_are_refused_and_the_next_request_says_so(policies, group):
    late = ask(policies.learner, Breakable.export_bundle)
    train(group)
    group.sync_weights()
    with pytest.raises(WorkerError, match="version 0 came after those of version 1") as caught:
        ask(policies.actors[0], Breakable.import_bundle, late)
    assert isinstance(caught.value.__cause__, WeightSyncError)
    with pytest.raises(WorkerError, match="the last weight update failed"):
        answers(group.rollout_batch(batch([1])))


def test_a_group_that_runs_goes_back_to_an_older_state(policies, group):
    group.sync_weights()
    state, before = group.get_training_state(), ask(policies.actors[1], Breakable.get_bundle_digest)
    train(group, 2)
    group.sync_weights()
    group.load_training_state(state)
    assert group.version == before[0]
    assert ask(policies.actors[1], Breakable.get_bundle_digest) == before


def test_after_a_reset_the_eval_policies_take_the_initial_weights(policies, group):
    group.sync_weights()
    initial = ask(policies.actors[0], Breakable.get_bundle_digest)[1]
    train(group, 3)
    group.sync_weights()
    group.reset_training_state(TRAIN, seed=7)
    group.sync_weights()
    assert ask(policies.actors[1], Breakable.get_bundle_digest)[1] == initial


# State


def test_a_group_goes_on_from_its_state(policies, group, tmp_path):
    train(group, 2)
    group.sync_weights()
    answers(group.rollout_batch(batch([2, 2])))
    state = group.get_training_state()
    group.save_checkpoint(tmp_path / "c")

    def go_on():
        metrics = train(group, 2)
        group.sync_weights()
        sampled = [answer.action for answer in answers(group.rollout_batch(batch([2, 2]))).values()]
        return metrics, sampled, ask(policies.learner, Breakable.get_bundle_digest)

    expected = go_on()
    fresh = PolicyGroup(group.train_list, group.eval_list, CONFIG, seed=99)
    fresh.init(TRAIN)
    fresh.load_training_state(state)
    assert fresh.verify_eval_weight_consistency(rtol=0)
    metrics, sampled, digest = go_on()
    assert (metrics, digest) == (expected[0], expected[2])
    assert all(map(np.array_equal, sampled, expected[1]))
    assert load_state(tmp_path / "c")["policy"]["epoch"] == 2
    fresh.pop(PolicyRole.EVAL)
    with pytest.raises(ProtocolError, match=r"2 eval policies, this one has 1: set cluster\.eval_worker_num=2"):
        fresh.load_training_state(state)


def test_shutdown_happens_once_and_lets_go_of_all():
    calls = []
    group = PolicyGroup([object()], [object()], CONFIG, on_shutdown=lambda: calls.append("end"))
    group.shutdown()
    group.shutdown()
    assert (calls, group.train_list, group.eval_list) == (["end"], [], [])


def test_where_the_time_went_is_one_table_of_all_workers(group, capsys):
    group.print_timing_summary(reset=True)
    capsys.readouterr()
    group.sync_weights()
    answers(group.rollout_batch(batch([1, 1])))
    answers(group.rollout_batch(batch([1])))
    group.print_timing_summary(reset=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["worker", "name", "count", "total", "s", "average", "ms"]
    assert sorted(line.split()[:3] for line in lines[1:]) == [
        ["eval[0]", "import", "1"],
        ["eval[0]", "rollout", "2"],
        ["eval[1]", "import", "1"],
        ["eval[1]", "rollout", "1"],
        ["train[0]", "export", "1"],
    ]
    assert len({len(line) for line in lines}) == 1
    group.print_timing_summary()
    assert len(capsys.readouterr().out.splitlines()) == 1


# Doubles, mixtures, user code


class Telling(RolloutOnly):
    """Returns something where it is initialised."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def init_train(self, train_config, env_meta=None):
        return f"learner {self.number}"

    def init_eval(self, eval_config=None, env_meta=None):
        return self.number


def test_what_the_policies_return_from_their_start_is_listed():
    learner, *actors = (Telling(number) for number in (7, 1, 2))
    group = PolicyGroup([learner], actors, CONFIG)
    assert group.init_eval() == [1, 2]
    assert group.init_train(TRAIN) == ["learner 7"]
    group.push(policy_worker=Telling(3), role=PolicyRole.EVAL)
    assert group.init_eval() == [1, 2, 3]


def test_a_bare_double_with_just_the_hooks_works(runtime):
    learner, actor = runtime.make(RolloutOnly), runtime.make(RolloutOnly)
    group = PolicyGroup([learner], [actor], CONFIG)
    group.init(TRAIN)
    requests = batch([1, 2])
    responses = group.rollout_batch(requests)
    assert [len(answer.action) for answer in answers(responses).values()] == [1, 2]
    assert list(answers(group.postprocess(requests, responses))) == [0, 1]
    group.update_dataset(["piece"])
    assert group.train() == {"loss": 1.0}
    assert ask(learner, RolloutOnly.get_calls) == ["init_train", "update_dataset piece", "train"]
    assert ask(actor, RolloutOnly.get_calls) == ["init_eval", *["_rollout"] * 2, *["_postprocess"] * 2]


def test_a_bare_double_may_have_a_rank_and_come_and_go(capsys):
    class Ranked(RolloutOnly):
        def _get_node_id(self):
            return "local"

        def _get_gpu_ids(self):
            return []

        def _get_addr_and_port(self):
            return "127.0.0.1", 1

        def init_distributed_env(self, rank, *args, **kwargs):
            self.calls.append(f"rank {rank}")

        def init_single_comm_group(self, ranks, mode, backend):
            self.calls.append(mode.value)

    first, second, actor = (Ranked() for _ in range(3))
    group = PolicyGroup([first], [actor], CONFIG)
    group.init_comm_group()
    group.init(TRAIN)
    group.push(second, PolicyRole.TRAIN)
    assert group.train() == {"loss": 1.0}
    assert second.calls == ["rank 1", "intra_node", "train_data_parallel", "train"]
    assert group.pop(PolicyRole.TRAIN) is second
    group.train()
    assert [call for call in first.calls if call.startswith("rank")] == ["rank 0"] * 3
    group.print_timing_summary()
    assert capsys.readouterr().out.split() == ["worker", "name", "count", "total", "s", "average", "ms"]
    group.shutdown()


@pytest.mark.ray
@pytest.mark.parametrize("policies", [pytest.param("ray", marks=pytest.mark.ray)], indirect=True)
def test_local_and_remote_policies_work_in_one_group(policies):
    here = [Breakable(CONFIG, role) for role in (PolicyRole.TRAIN, PolicyRole.EVAL)]
    for learner in (here[0], policies.learner):
        group = PolicyGroup([learner], [here[1], policies.actors[0]], CONFIG, seed=7)
        group.init(TRAIN)
        train(group)
        group.sync_weights()
        assert group.verify_eval_weight_consistency(rtol=0)
        got = answers(group.rollout_batch(batch([1, 2, 1]), deterministic=True))
        assert [len(answer.action) for answer in got.values()] == [1, 2, 1]
        group.init_placement_info()
        assert "local" in group.placement_info


def test_user_code_may_write_into_all_that_it_is_given(runtime):
    learner = runtime.make(Scribbling, CONFIG, PolicyRole.TRAIN)
    actor = runtime.make(Scribbling, CONFIG, PolicyRole.EVAL)
    group = PolicyGroup([learner], [actor], CONFIG, seed=7)
    group.init(TRAIN)
    group.sync_weights()
    for count in (1, 2):
        requests = batch([2] * count)
        responses = group.rollout_batch(requests)
        got = answers(responses)
        # Rows observe 0 and 1, and the policy adds 1; the env gets twice that; the reward 0 + 1.
        assert got[0].action.tolist() == [[1, 1], [2, 2]]
        assert got[0].env_action.tolist() == [[2, 2], [4, 4]]
        assert got[0].extras["r"].tolist() == [1, 1]
        finished = answers(group.postprocess(requests, responses))
        assert finished[0].action.tolist() == [[2, 2], [3, 3]]
        assert finished[0].extras["r"].tolist() == [10, 10]
        assert requests.items[0].observation.tolist() == request(2).observation.tolist()
    given = TensorDict({name: value.numpy() for name, value in data().items()}, [2, 3])
    group.update_dataset([given])
    # 6 rewards of 0.1; the sum of 0 to 11 is 66, and 12 numbers grew by 1.
    metrics = group.train()
    assert metrics == {"reward": pytest.approx(0.6), "observation": 78.0}
