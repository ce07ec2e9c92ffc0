"""A part of a worker is called as the worker is, wherever the worker lives."""

import pytest

from rlightning.errors import CallTimeout, WorkerError
from rlightning.runtime import Call, as_handle, collective_call, gather
from rlightning.runtime.in_process import end_in_process, start_in_process
from rlightning.runtime.spawn import WorkerPool, WorkerSpec
from tests.runtime.workers import Worker

LONG = 60.0


class Robot(Worker):
    """A worker that holds another object as a part."""

    def __init__(self):
        super().__init__()
        self.arm = Arm(self)


class Arm:
    def __init__(self, robot):
        self.robot = robot

    def turn(self, by, times=1):
        self.robot.log(by * times)
        return by * times

    def fail(self):
        raise KeyError("the motor is off")

    def meet(self, value):
        return self.robot.meet(value)


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def robot(request):
    remote = request.param == "ray"
    if remote:
        request.getfixturevalue("ray_cluster")
    pool = WorkerPool()
    (worker,) = pool.start([WorkerSpec(Robot, (), "robot[2]", remote, num_cpus=0.01, channels={"beside": 2})])
    yield as_handle(worker, "robot[2]")
    pool.stop()


@pytest.fixture
def inner(robot):
    inner, started = start_in_process(robot, Robot, (), "inner[3]")
    started.result(LONG)
    yield as_handle(inner, inner.name)
    end_in_process(inner).result(LONG)


def test_a_part_takes_what_a_worker_takes(robot, inner):
    for worker in (robot, inner):
        arm = worker.part("arm")
        assert arm.name == worker.name
        assert arm.call(Arm.turn, 3).result(LONG) == 3
        two = worker.call(Worker.echo, 2)
        assert arm.call(Arm.turn, two, times=arm.call(Arm.turn, two, times=2)).result(LONG) == 8


def test_calls_of_a_worker_and_its_part_run_in_one_order(robot, inner):
    for worker in (robot, inner):
        before = len(worker.call(Worker.get_log).result(LONG))
        for number in range(5):
            worker.call(Worker.log, 2 * number)
            worker.part("arm").call(Arm.turn, 2 * number + 1)
        log = worker.call(Worker.get_log).result(LONG)[before:]
        assert [value for _, value in log] == list(range(10))
        assert len({thread for thread, _ in log}) == 1


def test_a_failure_of_a_part_names_the_worker_and_the_method(robot, inner):
    for worker in (robot, inner):
        failed = worker.part("arm").call(Arm.fail)
        for failing in (failed, worker.call(Worker.echo, failed)):
            with pytest.raises(WorkerError, match="the motor is off") as caught:
                failing.result(LONG)
            assert (caught.value.worker, caught.value.method) == (worker.name, "fail")
            assert isinstance(caught.value.__cause__, KeyError)
        with pytest.raises(WorkerError, match="no attribute 'leg'"):
            worker.part("leg").call(Arm.fail).result(LONG)


def test_parts_meet_by_channels_and_in_collective_calls(robot):
    if robot.info().remote:
        arm = robot.channel("beside").part("arm")
        assert gather([arm.call(Arm.meet, 1), arm.call(Arm.meet, 2)], LONG) == [1, 2]
        with pytest.raises(CallTimeout, match=r"robot\[2\]\.meet"):
            arm.call(Arm.meet, 3).result(0.05)
        robot.channel("beside").call(Worker.meet, 4).result(LONG)
    others = [as_handle(Robot(), f"here[{i}]") for i in range(2)]
    others[1].target.barrier = others[0].target.barrier
    calls = [Call(other.part("arm"), Arm.meet, (i,)) for i, other in enumerate(others)]
    assert collective_call([*calls, Call(robot.part("arm"), Arm.turn, (5,))], LONG) == [0, 1, 5]
