"""What a person sees of a failure: what happened and where in their code, and no more."""

from pathlib import Path

import pytest

import rlightning
from rlightning.commands.problems import causes, config_error_in, short_trace
from rlightning.errors import ConfigError, ShapeError, WorkerError
from rlightning.runtime.local import LocalHandle


class Robot:
    def move(self):
        raise OSError("the motor is off")

    def carry(self):
        raise ShapeError("7 joints, 6 expected")


def failure(method):
    with pytest.raises(WorkerError) as caught:
        LocalHandle(Robot(), "env[0]").call(method).result()
    return caught.value


def test_the_trace_begins_with_the_users_code():
    error = failure(Robot.move)
    error.add_note("env[0] was replaced 3 times before")
    lines = short_trace(error).splitlines()
    # The call of this package that led to the user's code, and then that: 2 frames.
    assert sum(line.startswith("  File ") for line in lines) == 2
    assert "local.py" in lines[1]
    assert any("test_problems.py" in line and "in move" in line for line in lines)
    assert lines[-2:] == ["OSError: the motor is off", "env[0] was replaced 3 times before"]


def test_what_this_package_says_of_its_input_needs_no_trace():
    with pytest.raises(ShapeError) as caught:
        raise ShapeError("7 joints, 6 expected")
    caught.value.__traceback__ = None
    assert short_trace(caught.value) == ""
    outer = WorkerError("env[0]: 7 joints, 6 expected")
    outer.__cause__ = caught.value
    assert short_trace(outer) == "rlightning.errors.ShapeError: 7 joints, 6 expected\n"
    assert "in carry" in short_trace(failure(Robot.carry))  # raised by the user's own code


def test_a_package_beside_this_one_whose_name_begins_alike_is_the_users():
    file = f"{Path(rlightning.__file__).parent}_robots/arm.py"
    names = {"ShapeError": ShapeError}
    exec(compile("def reach(self): raise ShapeError('7 joints')", file, "exec"), names)  # noqa: S102 (our own text)
    arm = type("Arm", (), {"reach": names["reach"]})
    with pytest.raises(WorkerError) as caught:
        LocalHandle(arm(), "env[0]").call(arm.reach).result()
    assert f'File "{file}", line 1, in reach' in short_trace(caught.value)


def test_a_traceback_of_another_process_is_shown_once():
    error = WorkerError("the motor is off", "env[0]", "step", "10.0.0.7")
    error.add_note("The worker's own traceback:\nmove")
    assert short_trace(error) == "The worker's own traceback:\nmove\n"


def test_a_trace_shows_the_innermost_calls_of_a_deep_one():
    def ping(depth):
        if not depth:
            raise ValueError("at the bottom")
        pong(depth - 1)

    def pong(depth):  # two that call each other: Python writes repeated lines of one but once
        ping(depth)

    with pytest.raises(ValueError, match="bottom") as caught:
        ping(60)
    lines = short_trace(caught.value).splitlines()
    assert sum(line.startswith("  File ") for line in lines) == 12
    assert lines[-1] == "ValueError: at the bottom"


def test_an_error_that_is_its_own_cause_is_told_once():
    error = ValueError("x")
    error.__cause__ = error
    assert list(causes(error)) == [error]
    assert config_error_in(error) is None
    wrong = ConfigError("env")
    outer = WorkerError("y")
    outer.__cause__, wrong.__cause__ = wrong, outer
    assert config_error_in(outer) is wrong
    assert list(causes(None)) == []
