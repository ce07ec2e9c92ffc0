"""Several futures as one."""

import pytest

from rlightning.errors import WorkerError
from rlightning.runtime import JointFuture, LocalFuture, as_handle, gather, wait
from rlightning.runtime.spawn import WorkerPool, WorkerSpec
from tests.runtime.workers import Worker


def test_it_has_a_result_when_all_parts_have_one():
    assert JointFuture([LocalFuture(1), LocalFuture("x")]).result() is None
    assert JointFuture([]).done()
    assert gather([JointFuture([LocalFuture(1)]), LocalFuture(2), JointFuture([])]) == [None, 2, None]


def test_the_failure_of_a_part_is_its_own():
    with pytest.raises(WorkerError, match="the motor is off"):
        JointFuture([LocalFuture(1), LocalFuture(error=WorkerError("the motor is off"))]).result()


@pytest.mark.ray
def test_one_that_waits_for_a_slow_worker_is_pending(ray_cluster):
    pool = WorkerPool()
    try:
        (worker,) = pool.start([WorkerSpec(Worker, (), "worker[0]", True, num_cpus=0.01)])
        handle = as_handle(worker)
        quick = JointFuture([LocalFuture(1), handle.call(Worker.echo, 2)])
        quick.result(60)
        slow = JointFuture([LocalFuture(1), handle.call(Worker.sleep, 3.0)])
        assert wait([slow, quick], 1) == ([quick], [slow])
        assert not slow.done()
        assert wait([slow, quick], 2, 60) == ([slow, quick], [])
    finally:
        pool.stop()
