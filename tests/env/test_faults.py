"""Which worker is at fault, which call takes too long, and which episodes come next."""

import threading
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

from rlightning.config import EnvConfig
from rlightning.env import BaseEnv
from rlightning.env.env_group import EnvGroup
from rlightning.env.env_worker import EnvWorker, WorkerReport
from rlightning.env.faults import FaultCounts, HangGuard, RestartRules
from rlightning.env.seeding import sub_env_seeds
from rlightning.errors import ConfigError, WorkerError
from rlightning.runtime import LocalFuture
from rlightning.runtime.future import PendingFuture
from rlightning.types import BatchedData, EnvMeta, EnvRet, PolicyResponse


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def pending():
    return PendingFuture("env[0]", "step")


def over(future):
    future.settle(LocalFuture(1))


def watching(limits_s, clock):
    """A guard that looks when it is asked to, and a function that returns the workers that it ends then."""
    ended = []
    guard = HangGuard(limits_s, ended.append, clock)
    guard._thread = threading.current_thread()  # none is started

    def overdue():
        ended.clear()
        guard.look()
        return list(ended)

    return guard, overdue


def test_a_call_is_overdue_when_it_was_seen_running_for_longer_than_its_limit():
    clock = Clock()
    watch, overdue = watching([5.0, None], clock)
    quick, slow = pending(), pending()
    watch.started(0, quick)
    watch.started(0, slow)
    watch.started(1, pending())
    assert overdue() == []  # seen at 0
    clock.now = 5.0
    assert overdue() == []  # 5 s are not more than 5 s
    over(quick)
    clock.now = 6.0
    assert overdue() == []  # the second call is seen for the first time
    clock.now = 11.5
    assert overdue() == [0]
    assert overdue() == []


def test_a_call_that_waits_for_its_argument_does_not_count():
    clock = Clock()
    watch, overdue = watching([1.0], clock)
    argument = pending()
    watch.started(0, pending(), argument)
    for clock.now in (0.0, 100.0):
        assert overdue() == []
    over(argument)
    assert overdue() == []
    clock.now = 101.5
    assert overdue() == [0]


def test_a_guard_ends_who_hangs_once_whatever_the_others_wait_for():
    ended, call = [], pending()

    def end(env_id):
        ended.append(env_id)
        call.settle(LocalFuture(error=WorkerError("it was ended", "env[1]")))

    guard = HangGuard([None, 0.05], end)
    guard.started(1, call)
    with pytest.raises(WorkerError, match="it was ended"):
        call.result(60)
    guard.close()
    guard.close()
    assert ended == [1]


def test_without_a_limit_there_is_no_thread():
    guard = HangGuard([None, None], lambda env_id: None)
    guard.started(0, pending())
    assert not any(thread.name == "hang guard" for thread in threading.enumerate())
    guard.close()


class Fragile(BaseEnv):
    """Rewards are ``rewards``, step by step; None raises."""

    def __init__(self, config):
        super().__init__(config)
        width = config.env_kwargs.get("width", 1)
        self.meta = EnvMeta("fragile", gym.spaces.Box(-1, 1, (width,)), gym.spaces.Box(-1, 1, (1,)), 2)
        self.rewards = iter(config.env_kwargs["rewards"])

    def reset(self, seed=None, options=None):
        return EnvRet.from_reset(np.zeros((2, 1), np.float32), 2)

    def step(self, response):
        reward = next(self.rewards)
        if reward is None:
            raise OSError("the motor is off")
        if isinstance(reward, str):
            raise TypeError(reward)
        never = np.zeros(2, np.bool_)
        return EnvRet(np.zeros((2, 1), np.float32), np.array([0.0, reward], np.float32), never, never, never)


def worker(*rewards, generation=0, **env_kwargs):
    config = EnvConfig(name="fragile", num_envs=2, env_kwargs={"rewards": rewards, **env_kwargs})
    return EnvWorker(Fragile, config, 3, 7, "train", generation)


ACTION = PolicyResponse(np.zeros((2, 1), np.float32))


@pytest.mark.parametrize(
    ("reward", "kind", "message"),
    [
        (None, "raised", "fragile: OSError: the motor is off (step 2 of this worker)"),
        (
            float("nan"),
            "not_finite",
            "fragile: reward of sub-env 1 is nan, which is not finite (step 2 of this worker)",
        ),
    ],
)
def test_a_worker_reports_the_fault_of_its_env_and_the_steps_that_it_made(reward, kind, message):
    it = worker(1.0, reward)
    it.reset()
    it.step(ACTION)
    assert it.report() == WorkerReport(1)
    with pytest.raises(WorkerError) as first:
        it.step(ACTION)
    assert it.report() == WorkerReport(1, kind, message)
    with pytest.raises(WorkerError) as again:
        it.raise_fault()
    assert again.value is first.value
    it.reset()
    assert it.report() == WorkerReport(1)


def test_an_action_that_is_not_finite_is_the_policys_fault():
    it = worker(1.0)
    it.reset()
    with pytest.raises(WorkerError, match="has the policy diverged"):
        it.step(PolicyResponse(np.full((2, 1), np.nan, np.float32)))
    assert it.report() == WorkerReport(0)


def group_of(*workers, max_restarts=1, **env_kwargs):
    def build(env_id, old, generation):
        built.append((env_id, generation))
        return worker(1.0, 1.0, 1.0, generation=generation, **env_kwargs)

    built = []
    names = ["env[3]"] * len(workers)
    rules = RestartRules(names, [max_restarts] * len(workers), [None] * len(workers), build)
    return EnvGroup(list(workers), restarts=rules), built


def test_only_the_worker_at_fault_is_replaced_and_counts_go_on():
    group, built = group_of(worker(1.0, 1.0), worker(1.0, None))
    group.reset()
    for _ in range(2):
        stepped = group.step(BatchedData((0, 1), [ACTION, ACTION]))
    with pytest.raises(WorkerError) as caught:
        stepped[1].result()
    recovery = group.recover(caught.value)
    assert built == [(1, 1)]
    assert recovery.steps == {0: 2}
    assert recovery.faults == {1: "raised"}
    assert recovery.replaced[1].result().is_reset.all()
    assert (group.faults.restarts, group.faults.generations) == ([0, 1], [0, 1])
    assert group.faults.metrics() == {"faults/raised": 1.0}


def test_an_env_that_is_another_one_when_it_is_built_anew_is_refused():
    group, _ = group_of(worker(None), width=2)
    group.reset()
    (stepped,) = group.step(BatchedData((0,), [ACTION]))
    with pytest.raises(WorkerError) as caught:
        stepped[1].result()
    with pytest.raises(ConfigError, match="fragile was built anew and has other spaces than before"):
        group.recover(caught.value)


@pytest.mark.parametrize("failures", [2, 3])
def test_an_env_that_cannot_be_built_for_a_moment_gets_the_restarts_that_are_left(monkeypatch, failures):
    waits = []
    monkeypatch.setattr("rlightning.env.replacement.time.sleep", waits.append)
    group, built = group_of(worker(None), max_restarts=3)
    build = group._replacement._rules.build

    def fail_at_first(env_id, old, generation):
        if generation <= failures:
            raise OSError("the port is busy")
        return build(env_id, old, generation)

    group._replacement._rules = replace(group._replacement._rules, build=fail_at_first)
    group.reset()
    (stepped,) = group.step(BatchedData((0,), [ACTION]))
    with pytest.raises(WorkerError) as caught:
        stepped[1].result()
    if failures < 3:
        assert group.recover(caught.value).replaced[0].result().is_reset.all()
        assert built == [(0, 3)]
    else:
        with pytest.raises(WorkerError, match="cannot be built anew: OSError: the port is busy") as last:
            group.recover(caught.value)
        assert isinstance(last.value.__cause__, OSError)
        assert last.value.__notes__ == ["env[3] was replaced 3 times before (env.max_restarts)"]
    assert waits == [0.5, 1.0]
    assert group.faults.restarts == [3]


def test_a_mistake_in_the_code_of_an_env_is_not_tried_again():
    group, built = group_of(worker("a text is no reward"))
    group.reset()
    (stepped,) = group.step(BatchedData((0,), [ACTION]))
    with pytest.raises(WorkerError) as first:
        stepped[1].result()
    with pytest.raises(WorkerError) as caught:
        group.recover(first.value)
    assert caught.value is first.value
    assert built == []


def test_a_failure_of_somebody_else_is_raised_as_it_is():
    group, built = group_of(worker(1.0))
    group.reset()
    for other in (WorkerError("no memory", "train[0]"), WorkerError("it was well", "env[3]")):
        with pytest.raises(WorkerError) as caught:
            group.recover(other)
        assert caught.value is other
    assert built == []


def test_episodes_after_a_resume_are_not_those_of_a_generation_that_was_played():
    group, _ = group_of(worker(1.0), worker(1.0))
    group.faults = FaultCounts([0, 4], [0, 4])
    group.set_state([None, None], generation=3)
    # The first worker starts those of epoch 3; the second one has come to generation 4 by its replacements.
    assert group.faults.generations == [3, 5]
    assert [it._seeds() for it in group.workers] == [sub_env_seeds(7, "train", 3, number, 2) for number in (3, 5)]
