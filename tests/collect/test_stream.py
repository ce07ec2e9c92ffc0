"""A stream keeps envs at work while its reader is busy, up to a limit, and loses nothing whole."""

import itertools
import time

import numpy as np
import pytest

from rlightning.assembly.assemble import assemble
from rlightning.collect.rate_limiter import RateLimiter
from rlightning.env.env_worker import EnvWorker
from rlightning.errors import ProtocolError, WorkerError
from rlightning.runtime import as_handle, gather
from tests.engine.doubles import config

NEAR = {"placement": {"env_strategy": "process-colocate"}}
FAR = {"remote_env": True, "remote_eval": True}
WAYS = [
    pytest.param({"engine": "syncrl"}, id="step by step"),
    pytest.param({"engine": "rsl"}, id="eager"),
    pytest.param({"cluster": {**NEAR, "eval_worker_num": 2}}, id="by fragment"),
]


def steps_made(engine):
    handles = [as_handle(worker, f"env[{i}]") for i, worker in enumerate(engine.env_group.workers)]
    return [report.steps for report in gather([handle.call(EnvWorker.report) for handle in handles], 60)]


def started(made):
    engine = assemble(made)
    engine.start()
    return engine


def test_a_limiter_admits_up_to_its_limit_per_actor():
    limit = RateLimiter(2)
    for actor in ("a", "a", "b"):
        assert limit.admits(actor)
        limit.started(actor)
    assert (limit.admits("a"), limit.admits("b")) == (False, True)
    limit.ended("a")
    assert (limit.admits("a"), limit.in_flight, limit.peak) == (True, 2, 3)
    with pytest.raises(ValueError, match="at least one is needed"):
        RateLimiter(0)


@pytest.mark.parametrize("way", WAYS)
def test_fragments_of_an_env_worker_follow_each_other(way):
    with started(config(env={"num_workers": 2}, **way)) as engine:
        read = gather(itertools.islice(engine.collector.stream(3, RateLimiter(2)), 8))
    for env_id in (0, 1):
        fragments = [fragment for fragment in read if fragment.env_id == env_id]
        assert len(fragments) == 4
        observations, following = (
            np.concatenate([fragment.fields[name] for fragment in fragments])
            for name in ("observation", "next_observation")
        )
        ended = np.concatenate([fragment.fields["truncated"] for fragment in fragments])
        assert len(observations) == 12
        follows = (following[:-1] == observations[1:]).all(-1)
        assert (follows | ended[:-1]).all()


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_has_the_numbers_of_collecting(way):
    made = config(env={"num_workers": 2}, **way)
    with started(made) as engine:
        engine.collect()
        (expected,) = gather(engine.buffer.sample())
        expected = expected.clone()
    with started(made) as engine:
        fragments = gather(itertools.islice(engine.collector.stream(5, RateLimiter(1)), 2))
    fragments.sort(key=lambda fragment: fragment.env_id)
    for name in ("observation", "next_observation", "reward", "truncated", "action", "version"):
        joined = np.concatenate([fragment.fields[name] for fragment in fragments], axis=1)
        assert np.array_equal(joined, expected[name].numpy()), name


@pytest.mark.parametrize("way", WAYS)
def test_a_fragment_that_breaks_is_dropped_and_the_stream_goes_on(way):
    kinds = [{"max_restarts": 5, "env_kwargs": {"fail_at": 8}}, {}]
    with started(config(env=kinds, **way)) as engine:
        limit = RateLimiter(2)
        fragments = gather(itertools.islice(engine.collector.stream(5, limit), 12))
        assert sum(engine.env_group.faults.restarts) >= 2
        assert engine.collector.dropped["raised"] > 0
    assert {fragment.env_id for fragment in fragments} == {0, 1}
    for fragment in fragments:
        fields = fragment.fields
        assert len(fields["reward"]) == 5
        follows = (fields["next_observation"][:-1] == fields["observation"][1:]).all(-1)
        assert (follows | fields["truncated"][:-1]).all()
    assert limit.peak <= 4


def test_a_stream_before_start_says_what_to_call():
    with assemble(config()) as engine, pytest.raises(ProtocolError, match="call start before collect"):
        next(engine.collector.stream(5, RateLimiter()))


def test_a_policy_that_fails_ends_a_stream():
    with (
        started(config(policy={"algo_cfg": {"fail": "rollout"}})) as engine,
        pytest.raises(WorkerError, match="no rollout today"),
    ):
        gather(itertools.islice(engine.collector.stream(5, RateLimiter()), 3))


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_two_fragments_per_actor_stay_in_flight_while_the_reader_sleeps(ray_cluster):
    steps, cluster = 4, {**NEAR, **FAR, "eval_worker_num": 2}
    with started(config(env={"num_workers": 2}, cluster=cluster)) as engine:
        limit = RateLimiter(2)
        stream = engine.collector.stream(steps, limit)
        read = [next(stream).result(60)]
        deadline = time.monotonic() + 60
        # The one that was read, and two more of each actor.
        wanted = [steps * (3 if env_id == read[0].env_id else 2) for env_id in (0, 1)]
        while steps_made(engine) != wanted:
            assert time.monotonic() < deadline, (steps_made(engine), wanted)
            time.sleep(0.05)
        time.sleep(1.0)
        # However long the reader sleeps, there are no more than these.
        assert steps_made(engine) == wanted
        assert (limit.in_flight, limit.peak) == (4, 4)
        read += gather(itertools.islice(stream, 7), 60)
        assert {fragment.env_id for fragment in read} == {0, 1}
        assert limit.peak == 4
