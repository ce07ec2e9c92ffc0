"""Errors cross processes whole, and are what a caller would catch."""

import inspect
import pickle

import pytest

from rlightning import errors
from rlightning.errors import (
    CallbackError,
    CallTimeout,
    CheckpointError,
    ConfigError,
    MissingDependency,
    NotEnoughData,
    PeerLost,
    PlacementError,
    Problem,
    ProtocolError,
    RecordError,
    ReservedName,
    RLightningError,
    ShapeError,
    UnsupportedSpace,
    WeightSyncError,
    WorkerDied,
    WorkerError,
)

BUILTIN = {
    ConfigError: ValueError,
    PlacementError: RuntimeError,
    WorkerError: RuntimeError,
    WorkerDied: RuntimeError,
    CallTimeout: TimeoutError,
    PeerLost: ConnectionError,
    ShapeError: ValueError,
    WeightSyncError: RuntimeError,
    NotEnoughData: ValueError,
    CheckpointError: RuntimeError,
    CallbackError: RuntimeError,
    RecordError: OSError,
    ProtocolError: RuntimeError,
    ReservedName: TypeError,
    UnsupportedSpace: TypeError,
    MissingDependency: ImportError,
}
PROBLEMS = [
    Problem("train.learning_rat", "there is no such option", "my.yaml:3", "learning_rate"),
    Problem("env.0.num_workers", "must be at least 1"),
]
EXAMPLES = [
    RLightningError("what happened"),
    ConfigError(PROBLEMS),
    WorkerError("ValueError: no", "env[3]", "step", "10.0.0.7"),
    WorkerDied("exit code 1", "eval[0]", "_rollout_batch", "10.0.0.8"),
    *(cls("what happened, where, what to do") for cls in BUILTIN if cls not in {ConfigError, WorkerError, WorkerDied}),
]


def all_error_classes():
    members = inspect.getmembers(errors, inspect.isclass)
    return {cls for _, cls in members if issubclass(cls, BaseException) and cls.__module__ == errors.__name__}


def test_every_error_class_has_an_example_here():
    assert {type(error) for error in EXAMPLES} == all_error_classes()


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_crosses_processes_with_its_attributes(error):
    error.add_note("the worker's own traceback")
    arrived = pickle.loads(pickle.dumps(error))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert arrived.args == error.args
    assert vars(arrived) == vars(error)


@pytest.mark.parametrize(("cls", "builtin"), BUILTIN.items(), ids=lambda cls: cls.__name__)
def test_an_error_is_caught_by_the_builtin_that_a_caller_would_name(cls, builtin):
    assert issubclass(cls, builtin)
    assert issubclass(cls, RLightningError)


def test_a_configuration_error_shows_all_problems_with_place_and_nearest_name():
    assert str(ConfigError(PROBLEMS)) == (
        "train.learning_rat: there is no such option; did you mean 'learning_rate'? (my.yaml:3)\n"
        "env.0.num_workers: must be at least 1"
    )


def test_a_worker_error_says_who_did_what_where():
    assert (
        str(WorkerError("ValueError: no", "env[3]", "step", "10.0.0.7"))
        == "env[3].step on node 10.0.0.7: ValueError: no"
    )
    assert str(WorkerError("no")) == "no"
