"""Fragments come from the process of their env workers and say who failed; that process belongs to both groups."""

import itertools

import numpy as np
import pytest

from rlightning.assembly.assemble import assemble, build_env_group, build_policy_group
from rlightning.buffer.data_buffer import DataBuffer
from rlightning.buffer.storage import RolloutBlock
from rlightning.collect.fragments import FragmentCollector
from rlightning.collect.rate_limiter import RateLimiter
from rlightning.errors import NotEnoughData, ProtocolError, WorkerError
from rlightning.runtime import gather
from rlightning.types.fragment import Fragment
from tests.engine.doubles import config
from tests.engine.envs import OPEN

NEAR = {"placement": {"env_strategy": "process-colocate"}}


@pytest.fixture(autouse=True)
def _all_envs_are_closed():
    OPEN.clear()
    yield
    assert OPEN == []


def near(**sections):
    cluster = {**NEAR, "eval_worker_num": 2, **sections.pop("cluster", {})}
    return config(env={"num_workers": 3, **sections.pop("env", {})}, cluster=cluster, **sections)


def test_each_env_worker_has_a_fragment_of_its_own():
    with assemble(near()) as engine:
        engine.start()
        fragments = gather(itertools.islice(engine.collector.stream(5, RateLimiter(1)), 3))
        # Env workers 0 and 2 share a process.
        assert [fragment.env_id for fragment in fragments] == [0, 2, 1]
        for fragment in fragments:
            # 5 steps of 2 sub-envs.
            assert fragment.fields["observation"].shape == (5, 2, 3)
            assert set(np.unique(fragment.fields["version"])) == {0}


def test_a_run_by_fragment_trains():
    with assemble(near()) as engine:
        result = engine.run()
    # 3 epochs of 5 steps in 3 workers with 2 sub-envs each.
    assert (result.epochs, result.env_steps) == (3, 90)


def test_an_env_that_fails_within_a_fragment_is_named_with_its_step():
    with (
        pytest.raises(WorkerError, match=r"the motor is off \(step 7 of this worker\)") as caught,
        assemble(near(env={"max_restarts": 0, "env_kwargs": {"fail_at": 7}})) as engine,
    ):
        engine.run()
    assert (caught.value.worker, caught.value.method) == ("env[0]", "step")


def test_a_policy_that_became_a_learner_does_not_act_for_its_env_workers():
    with assemble(near()) as engine:
        engine.start()
        engine.policy_group.convert_eval_to_train(1)
        with pytest.raises(WorkerError, match=r"env workers \[1\] live with a policy that has become a train policy"):
            engine.collect()


def test_policies_that_live_with_envs_come_from_the_env_group():
    made = near()
    with pytest.raises(ProtocolError, match="call build_env_group before build_policy_group"):
        build_policy_group(made, None)
    envs = build_env_group(made)
    try:
        group = build_policy_group(made, envs.env_meta)
        assert group.eval_list == list(dict.fromkeys(worker.host.target for worker in envs.workers))
        # A second group would need other processes.
        with pytest.raises(ProtocolError, match="call build_env_group"):
            build_policy_group(made, envs.env_meta)
        group.shutdown()
    finally:
        envs.close()


def test_env_workers_with_processes_of_their_own_give_no_fragments():
    envs = build_env_group(config())
    try:
        with pytest.raises(ProtocolError, match="env worker 0 does not live in the process of an eval policy"):
            FragmentCollector(envs, DataBuffer([RolloutBlock(5, [2])]), RolloutBlock)
    finally:
        envs.close()


def test_each_shard_takes_the_fragments_of_its_env_workers():
    shards = [RolloutBlock(2, [1], [0]), RolloutBlock(2, [2], [1])]
    buffer = DataBuffer(shards, num_env_workers=2, num_learners=2)

    def fragment(env_id, *columns):
        column = np.array(columns, np.float32)
        flags = np.zeros(column.shape, np.bool_)
        fields = {
            "observation": column,
            "next_observation": column + 1,
            "action": column,
            "reward": column,
            "terminated": flags,
            "truncated": flags,
            "valid": ~flags,
            "version": np.zeros(column.shape, np.int64),
        }
        for array in fields.values():
            array.flags.writeable = False  # as what comes out of an object store
        return Fragment(env_id, fields)

    for env_id, columns in ((0, [[0], [3]]), (1, [[1, 2], [4, 5]])):
        buffer.add_fragment_async(env_id, fragment(env_id, *columns)).result()
    first, second = gather(buffer.sample())
    assert first["observation"].tolist() == [[0], [3]]
    assert second["observation"].tolist() == [[1, 2], [4, 5]]
    assert second["next_observation"].tolist() == [[2, 3], [5, 6]]
    # A second one does not fit.
    with pytest.raises(WorkerError) as caught:
        buffer.add_fragment_async(0, fragment(0, [0], [3])).result()
    assert isinstance(caught.value.__cause__, NotEnoughData)
