"""With async rollouts, requests overlap on one policy, and none ever sees two versions."""

import gc
import inspect
import threading
import time
from typing import NamedTuple

import numpy as np
import pytest

from rlightning.config import PolicyConfig, TrainConfig, WeightBufferConfig
from rlightning.errors import CallTimeout, ConfigError, ProtocolError, WeightSyncError, WorkerError
from rlightning.policy.base_policy import BasePolicy, PolicyRole
from rlightning.policy.group_routing import request_channel
from rlightning.policy.policy_group import PolicyGroup
from rlightning.runtime import WorkerHandle, as_handle, gather
from rlightning.runtime.future import LocalFuture, PendingFuture
from rlightning.runtime.spawn import WorkerPool, WorkerSpec
from rlightning.types import BatchedData, PolicyResponse
from tests.doubles import LinearPolicy
from tests.policy.coroutine_policies import Alone, Held, Remembering
from tests.policy.hooks import RolloutOnly
from tests.policy.policies import batch, request

CONFIG = PolicyConfig(rollout_mode="async")
TRAIN = TrainConfig(max_epochs=10, lr=0.1)
LONG = 60.0
CHANNELS = {"weights": 1, **{request_channel(env_id): 1 for env_id in range(4)}}


def learner():
    policy = LinearPolicy(CONFIG, PolicyRole.TRAIN)
    policy.set_seed(3)
    policy.init_train(TRAIN)
    return policy


class Workers:
    """Makes eval policies of this process, or as a run has them elsewhere.

    They are made once and initialised by each test, since processes start slowly.
    """

    def __init__(self, remote):
        self.remote, self.pool, self.made = remote, WorkerPool(), {}

    def make(self, cls, count):
        made = self.made.setdefault(cls, [])
        specs = [
            WorkerSpec(cls, (CONFIG, PolicyRole.EVAL), f"eval[{i}]", self.remote, 0.01, 0.0, CHANNELS)
            for i in range(len(made), count)
        ]
        made += self.pool.start(specs) if specs else []
        return made[:count]

    def group(self, cls, count):
        group = PolicyGroup([learner()], self.make(cls, count), CONFIG, seed=5)
        group.init(TRAIN)
        group.sync_weights()
        return group


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def workers(request):
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    workers = Workers(request.param == "ray")
    yield workers
    workers.pool.stop()


class Asked(NamedTuple):
    """A policy, who asks it, and where its weights come from."""

    handle: WorkerHandle
    source: LinearPolicy

    def request(self, env_id, number, **options):
        return self.handle.call_beside(
            request_channel(env_id), BasePolicy._rollout_async, request(1, number), **options
        )

    def push(self):
        return self.handle.call_beside("weights", BasePolicy.import_bundle, self.source.export_bundle())

    def ask(self, method, *args):
        return self.handle.call(method, *args).result(LONG)

    def until(self, method, wanted):
        while self.ask(method) != wanted:
            time.sleep(0.001)


@pytest.fixture
def held(workers):
    (policy,) = workers.make(Held, 1)
    asked = Asked(as_handle(policy, "eval[0]"), learner())
    asked.ask(BasePolicy.init_eval)
    asked.push().result(LONG)
    yield asked
    asked.ask(Held.let)


# One policy


def test_requests_overlap_on_one_policy(workers):
    group = workers.group(Held, 1)
    (policy,) = (as_handle(policy) for policy in group.eval_list)
    futures = group.rollout_batch(batch([1, 2])).items
    # Both are in it at the same time: it answers none of them before.
    while len(policy.call(Held.get_began).result(LONG)) < 2:
        time.sleep(0.001)
    assert not any(future.done() for future in futures)
    policy.call(Held.let).result(LONG)
    assert [len(answer.action) for answer in gather(futures, LONG)] == [1, 2]
    assert policy.call(Held.get_most).result(LONG) == 2


def test_an_update_waits_for_requests_in_flight_and_stops_new_ones_first(held):
    early = [held.request(env_id, env_id) for env_id in range(2)]
    held.until(Held.get_most, 2)
    held.source.version = 1
    update = held.push()
    held.until(Held.is_updating, True)
    late = held.request(2, 2)
    held.ask(Held.let)
    assert [answer.version for answer in gather(early, LONG)] == [0, 0]
    assert update.result(LONG) == 1
    assert late.result(LONG).version == 1
    began = held.ask(Held.get_began)
    assert (set(began[:2]), began[2:]) == ({0, 1}, [2])  # the first two come by channels of their own
    assert held.ask(Held.get_most) == 2
    assert held.ask(BasePolicy.get_num_requests) == 0


def test_a_request_waits_for_the_version_that_was_announced(held):
    held.ask(Held.let)
    waits = held.request(0, 1, at_least=1)
    assert held.request(1, 2, at_least=0).result(LONG).version == 0
    assert not waits.done()
    assert held.ask(BasePolicy.get_num_requests) == 0
    held.source.version = 1
    held.push()
    assert waits.result(LONG).version == 1


def test_a_request_that_waits_hears_of_an_update_that_failed(held):
    waits = held.request(0, 1, at_least=2)
    held.source.version = -1
    with pytest.raises(WorkerError, match="came after those of version 0"):
        held.push().result(LONG)
    with pytest.raises(WorkerError, match="the last weight update failed") as caught:
        waits.result(LONG)
    assert isinstance(caught.value.__cause__, WeightSyncError)


def test_a_failing_request_leaves_the_policy_usable(held):
    futures = [held.request(env_id, number) for env_id, number in enumerate((1, 13, 2))]
    held.until(BasePolicy.get_num_requests, 3)
    held.ask(Held.let)
    with pytest.raises(WorkerError, match="13 is not for us") as caught:
        futures[1].result(LONG)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert gather([futures[0], futures[2]], LONG)[1].action.shape == (1, 2)
    held.source.version = 1
    assert held.push().result(LONG) == 1
    assert held.request(1, 3).result(LONG).version == 1


def test_an_evaluation_draws_from_its_own_generator_though_requests_overlap(held):
    def sampled(evaluations):
        held.ask(BasePolicy.set_seed, 11)
        held.ask(Held.let, False)
        futures = [held.request(i, 1, evaluation=evaluation) for i, evaluation in enumerate(evaluations)]
        held.until(BasePolicy.get_num_requests, len(evaluations))
        held.ask(Held.let)
        return [answer.action for answer in gather(futures, LONG)]

    alone, evaluated, together = sampled([False]), sampled([True]), sampled([False, True])
    assert not np.array_equal(alone[0], evaluated[0])
    assert np.array_equal(together, [alone[0], evaluated[0]])


def test_a_slow_env_worker_holds_up_no_other(workers):
    quick, slow = workers.group(Held, 2).eval_list
    handle, asks = as_handle(quick, "eval[0]"), Asked(as_handle(slow, "eval[1]"), learner())
    handle.call(Held.let).result(LONG)
    # What env worker 0 asks with is the answer of somebody who is not let yet.
    waits = handle.call_beside(request_channel(0), BasePolicy._postprocess, None, asks.request(0, 1))
    assert handle.call_beside(request_channel(1), BasePolicy._rollout_async, request(1)).result(LONG).version == 0
    assert not waits.done()
    asks.ask(Held.let)
    assert waits.result(LONG).version == 0


def test_a_plain_rollout_step_takes_one_request_after_the_other(workers):
    group = workers.group(Alone, 1)
    for _ in range(10):
        assert len(gather(group.rollout_batch(batch([1] * 4)).items, LONG)) == 4


def test_check_idle_is_for_sync_rollouts(held):
    with pytest.raises(WorkerError, match="use get_num_requests") as caught:
        held.ask(BasePolicy.check_idle)
    assert isinstance(caught.value.__cause__, AssertionError)
    assert isinstance(caught.value.__cause__, ProtocolError)


def test_a_coroutine_with_sync_rollouts_says_which_option_to_set():
    with pytest.raises(ConfigError, match=r"Held\.rollout_step is a coroutine: set policy\.rollout_mode=async"):
        Held(PolicyConfig(), PolicyRole.EVAL)


def test_no_class_has_a_method_that_ray_takes_for_a_coroutine():
    assert not inspect.getmembers(Held, inspect.iscoroutinefunction)
    assert inspect.signature(Held.rollout_step).parameters.keys() >= {"self", "env_ret", "deterministic"}
    policy = Held(CONFIG, PolicyRole.EVAL)
    thinking = policy.think()
    assert inspect.iscoroutine(thinking)
    thinking.close()


def test_the_thread_of_a_policy_ends_with_it():
    before = set(threading.enumerate())
    policy = Held(CONFIG, PolicyRole.EVAL)
    policy.init_eval()
    (thread,) = set(threading.enumerate()) - before
    assert thread.name == "Held rollouts"
    del policy
    gc.collect()
    assert not thread.is_alive()


# Groups


def test_requests_go_where_the_fewest_are_in_flight_and_come_back_in_order(workers):
    group = workers.group(Held, 2)
    first, second = (as_handle(policy) for policy in group.eval_list)

    def began():
        return [len(handle.call(Held.get_began).result(LONG)) for handle in (first, second)]

    def until(counts):
        while began() != counts:
            time.sleep(0.001)

    early = group.rollout_batch(batch([1, 1, 1], env_ids=[2, 0, 1]))
    until([2, 1])
    # One more to the second; then one of it comes back, and the next goes there again.
    late = group.rollout_batch(batch([1], env_ids=[3]))
    until([2, 2])
    second.call(Held.let).result(LONG)
    gather([early.items[1], late.items[0]], LONG)
    more = group.rollout_batch(batch([1, 1], env_ids=[0, 3]))
    until([2, 4])
    first.call(Held.let).result(LONG)
    everything = [*early, *late, *more]
    assert [env_id for env_id, _ in everything] == [2, 0, 1, 3, 0, 3]
    assert {answer.version for answer in gather([future for _, future in everything], LONG)} == {0}


def test_answers_have_the_rows_of_who_asked(workers):
    group = workers.group(Alone, 2)
    answers = group.rollout_batch(batch([2, 1, 3], env_ids=[3, 0, 2]), deterministic=True)
    assert answers.env_ids == [3, 0, 2]
    rows = np.concatenate([answer.action for answer in gather(answers.items, LONG)])
    weight = group.train_list[0].net.weight.detach().numpy()
    np.testing.assert_allclose(np.diff(rows, axis=0), np.tile(weight.sum(1), (5, 1)), rtol=1e-4, atol=1e-5)


def test_new_weights_are_in_force_for_the_next_request(workers):
    group = workers.group(Alone, 2)
    for version in range(1, 4):
        group.train_list[0].version = version
        group.sync_weights()
        answers = group.rollout_batch(batch([1] * 4))
        assert {answer.version for answer in gather(answers.items, LONG)} == {version}


@pytest.mark.parametrize("strategy", ["Double", "Shared", "Sharded"])
def test_a_request_waits_for_weights_that_were_only_announced(workers, strategy):
    config = CONFIG.model_copy(update={"weight_buffer": WeightBufferConfig(buffer_strategy=strategy)})
    group = PolicyGroup([learner()], workers.make(Alone, 2), config, seed=5)
    group.init_weight_buffer()
    group.init(TRAIN)
    for version in range(5):
        group.train_list[0].version = version
        group.sync_weights()
        # Nobody waits for the update but the requests.
        answers = group.rollout_batch(batch([1] * 4))
        assert {answer.version for answer in gather(answers.items, LONG)} == {version}


def test_postprocess_goes_to_who_answered_also_when_loads_have_changed(workers):
    group = workers.group(Held, 2)
    gather([as_handle(policy).call(Held.let) for policy in group.eval_list], LONG)
    requests = batch([1, 1, 1])
    responses = group.rollout_batch(requests)
    names = [answer.extras["by"].tolist() for answer in gather(responses.items, LONG)]
    backwards = BatchedData(responses.env_ids[::-1], responses.items[::-1])
    finished = group.postprocess(batched_policy_resp=backwards)
    assert finished.env_ids == [2, 1, 0]
    for answer, name in zip(gather(finished.items, LONG), reversed(names), strict=True):
        assert answer.extras["by"].tolist() == answer.extras["finished_by"].tolist() == name
    group.pop(PolicyRole.EVAL)
    assert len(gather(group.postprocess(requests, responses).items, LONG)) == 3


def test_a_policy_that_is_pushed_without_weights_says_so(workers):
    group = workers.group(Alone, 1)
    _, new = workers.make(Alone, 2)
    as_handle(new).call(BasePolicy.init_eval).result(LONG)
    group.push(new, PolicyRole.EVAL)
    futures = group.rollout_batch(batch([1, 1])).items
    assert futures[0].result(LONG).version == 0
    with pytest.raises(WorkerError, match="no weights have come yet"):
        futures[1].result(LONG)
    group.sync_weights()
    gather(group.rollout_batch(batch([1, 1])).items, LONG)


def test_a_bare_double_answers_by_its_hook():
    double = RolloutOnly()
    group = PolicyGroup([], [double], CONFIG)
    (answer,) = gather(group.rollout_batch(batch([2])).items, LONG)
    assert isinstance(answer, PolicyResponse)
    assert double.calls == ["_rollout"]


class WithWeights(RolloutOnly):
    """Has the documented hooks for weights and overlapping requests, too."""

    def _get_node_id(self):
        return "local"

    def _rollout_async(self, env_ret):
        self.calls.append("_rollout_async")
        return PolicyResponse(env_ret.observation)

    def send_weights(self, receivers, shared_weight_buffer=None):
        return "weights"

    def recv_weights(self, payload=None):
        self.calls.append(payload)
        return 1

    def init_weight_buffer(self, shared_weight_buffer=None):
        self.calls.append("init_weight_buffer")

    def notify_update_weights(self):
        self.calls.append("notify_update_weights")

    def wait_for_weight_update_done(self, timeout=None):
        return True


def test_a_double_with_the_documented_hooks_gets_weights_and_answers():
    double, config = WithWeights(), PolicyConfig(rollout_mode="async", weight_buffer={"buffer_strategy": "Double"})
    group = PolicyGroup([WithWeights()], [double], config)
    group.init_weight_buffer()
    group.sync_weights()
    group.wait_for_eval_weight_update()
    gather(group.rollout_batch(batch([2])).items, LONG)
    assert double.calls == ["init_weight_buffer", "weights", "notify_update_weights", "_rollout_async"]


class Exiting(Held):
    """Ends its process, or so it thinks, at a row that observes 5."""

    async def rollout_step(self, env_ret, **kwargs):
        if env_ret.observation[0, 0] == 5:
            raise SystemExit(5)
        return await super().rollout_step(env_ret, **kwargs)


def test_a_coroutine_that_exits_is_an_error_of_its_own_request_only():
    policy = Exiting(CONFIG, PolicyRole.EVAL)
    policy.init_eval()
    held = Asked(as_handle(policy), learner())
    held.push().result(LONG)
    waiting = held.request(0, 1)
    held.until(BasePolicy.get_num_requests, 1)
    with pytest.raises(WorkerError, match="SystemExit: 5"):
        held.request(1, 5).result(LONG)
    policy.let()
    assert [future.result(LONG).version for future in (waiting, held.request(2, 1))] == [0, 0]


def test_a_request_that_never_ends_times_out_by_name():
    policy = Held(CONFIG, PolicyRole.EVAL)
    group = PolicyGroup([learner()], [policy], CONFIG)
    group.init(TRAIN)
    group.sync_weights()
    answers = group.rollout_batch(batch([1]))
    with pytest.raises(CallTimeout, match=r"eval\[0\]\._rollout_async"):
        gather(answers.items, 0.05)
    policy.let()
    gather(answers.items, LONG)


# Stateful policies


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_env_worker_stays_with_the_policy_that_keeps_its_state(mode):
    config = PolicyConfig(rollout_mode=mode)
    policies = [Remembering(config, PolicyRole.EVAL) for _ in range(3)]
    group = PolicyGroup([learner()], policies[:2], config)
    group.init(TRAIN)
    policies[2].init_eval()
    group.sync_weights()

    def counts():
        requests = batch([1] * 6)
        return [int(answer.action[0, 0]) for answer in gather(group.rollout_batch(requests).items, LONG)]

    assert counts() == [1] * 6
    group.push(policies[2], PolicyRole.EVAL)
    group.sync_weights()
    # Nobody leaves for the one that joined.
    assert counts() == [2] * 6
    assert policies[2].asked == {}
    group.pop(PolicyRole.EVAL)
    group.pop(PolicyRole.EVAL)
    # 1, 3 and 5 lost theirs, and begin anew where they are now.
    assert counts() == [3, 1, 3, 1, 3, 1]
    assert counts() == [4, 2, 4, 2, 4, 2]


def test_requests_on_their_way_are_answered_before_an_older_state_is_loaded():
    config = PolicyConfig(rollout_mode="async", weight_buffer=WeightBufferConfig(buffer_strategy="Double"))
    source = learner()
    group = PolicyGroup([source], [Alone(config, PolicyRole.EVAL)], config)
    group.init(TRAIN)
    group.init_weight_buffer()
    group.sync_weights()
    state = group.get_training_state()
    source.version += 1
    group.sync_weights()
    # What the env shows comes late: the request needs version 1, and would wait for ever where that has gone.
    shown = PendingFuture("env[0]", "step")
    answer = group.rollout_batch(BatchedData([0], [shown])).items[0]
    threading.Timer(0.1, shown.settle, [LocalFuture(request(1))]).start()
    group.load_training_state(state)
    assert answer.done()
    assert answer.result(LONG).version == 1
    assert group.rollout_batch(batch([1])).items[0].result(LONG).version == 0
