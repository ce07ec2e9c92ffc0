"""The state of an object as plain data: all of it comes back, or it is not stored."""

import functools
import importlib.machinery
import json
import logging
import multiprocessing
import random
import re
import sys
import threading
import types
from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass
from enum import Enum

import gymnasium as gym
import numpy as np
import pytest

from rlightning.checkpoint import load_state, save_state
from rlightning.env.state import capture, restore
from rlightning.errors import CheckpointError

Point = namedtuple("Point", "x y")


class Phase(Enum):
    REACH = 1
    GRASP = 2


@dataclass
class Arm:
    angle: float = 0.0


class ClientOfALibrary:
    """Knows the state of its simulator by a number only."""

    def __init__(self):
        self.handle = 3


# As if written in a module that says "import _compiled".
outside = types.ModuleType("outside")
outside._compiled = types.ModuleType("_compiled")
outside._compiled.__spec__ = importlib.machinery.ModuleSpec("_compiled", None, origin="/x/_compiled.abi3.so")
ClientOfALibrary.__module__ = "outside"


@pytest.fixture
def imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "outside", outside)
    monkeypatch.setitem(sys.modules, "_compiled", outside._compiled)


class Thing:
    """An object that a test gives its attributes."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


def through_a_checkpoint(state, folder):
    save_state(folder / "state", {"env": state})
    return load_state(folder / "state")["env"]


VALUES = {
    "none": None,
    "bool": True,
    "number": 3,
    "huge number": 2**127 + 1,
    "fraction": 0.1,
    "not a number": float("-inf"),
    "text": "a",
    "numpy number": np.float64(0.1),
    "numpy flag": np.bool_(True),
    "list": [1, [2.0, None]],
    "tuple": (1, (2, "x")),
    "dict": {"a": 1, 2: [3], (4, 5): {"b": None}},
    "deque": deque([1, 2], maxlen=3),
    "set": {3, 1, 2},
    "frozen set": frozenset("ab"),
}


@pytest.mark.parametrize("name", VALUES)
def test_plain_values_come_back_as_they_were(name, tmp_path):
    value = VALUES[name]
    thing = Thing(value="something else")
    restore(through_a_checkpoint(capture(Thing(value=value)), tmp_path), thing)
    assert thing.value == value
    assert type(thing.value) is type(value)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "uint32", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (3,), (0,), (2, 3)])
def test_arrays_come_back_bit_for_bit(dtype, shape, tmp_path):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    thing = Thing(array=None)
    restore(through_a_checkpoint(capture(Thing(array=array)), tmp_path), thing)
    assert (thing.array.dtype, thing.array.shape) == (array.dtype, array.shape)
    assert thing.array.tobytes() == array.tobytes()
    assert thing.array.flags.writeable


def test_the_memory_order_of_an_array_comes_back():
    thing = Thing(array=None)
    restore(capture(Thing(array=np.asfortranarray(np.ones((2, 3))))), thing)
    assert thing.array.flags.f_contiguous


def test_a_deque_keeps_its_bound_and_a_list_its_identity():
    thing = Thing(recent=deque(), names=["old"])
    names = thing.names
    restore(capture(Thing(recent=deque([1, 2], maxlen=2), names=["new"])), thing)
    thing.recent.append(3)
    assert thing.recent == deque([2, 3])
    assert thing.names is names == ["new"]


@pytest.mark.parametrize("name", ["PCG64", "MT19937", "Philox", "SFC64"])
def test_generators_go_on_where_they_were(name, tmp_path):
    rng = np.random.Generator(getattr(np.random, name)(3))
    rng.random(5, np.float32)
    state = through_a_checkpoint(capture(Thing(rng=rng)), tmp_path)
    expected = rng.random(5), rng.integers(9, size=5)
    for other in (np.random.default_rng(0), np.random.Generator(getattr(np.random, name)(0)), None):
        thing = Thing(rng=other)
        restore(state, thing)
        assert (thing.rng.random(5) == expected[0]).all()
        assert (thing.rng.integers(9, size=5) == expected[1]).all()


def test_older_generators_go_on_too(tmp_path):
    old, plain = np.random.RandomState(3), random.Random(3)
    old.standard_normal()
    plain.gauss(0, 1)
    state = through_a_checkpoint(capture(Thing(old=old, plain=plain)), tmp_path)
    thing = Thing(old=None, plain=None)
    restore(state, thing)
    assert thing.old.standard_normal() == old.standard_normal()
    assert [thing.plain.gauss(0, 1), thing.plain.random()] == [plain.gauss(0, 1), plain.random()]


def test_objects_inside_of_objects_are_written_into():
    thing = Thing(arm=Arm(1.0), phase=Phase.REACH, point=Point(0, 0))
    arm = thing.arm
    restore(capture(Thing(arm=Arm(2.5), phase=Phase.GRASP, point=Point(1, [2]))), thing)
    assert thing.arm is arm
    assert thing.arm.angle == 2.5
    assert thing.phase is Phase.GRASP
    assert thing.point == Point(1, [2])
    assert type(thing.point) is Point


def test_what_is_shared_is_shared_again():
    array, items = np.zeros(2), [1]
    source = Thing(a=array, b=[array], c=items, d={"items": items})
    source.me = source
    thing = Thing(a=np.ones(2), b=[np.ones(2)], c=[], d={})
    restore(capture(source), thing)
    assert thing.a is thing.b[0]
    assert thing.c is thing.d["items"]
    assert thing.me is thing


def test_what_is_shared_in_the_fresh_object_only_is_parted():
    start = np.zeros(2)
    thing = Thing(start=start, now=start, log=(log := []), other=log)
    restore(capture(Thing(start=np.zeros(2), now=np.ones(2), log=[1], other=[2])), thing)
    assert (thing.start.tolist(), thing.now.tolist()) == ([0, 0], [1, 1])
    assert (thing.log, thing.other) == ([1], [2])


def test_attributes_that_were_not_there_go():
    thing = Thing(cache=[1], draw=print)
    restore(capture(Thing(value=1)), thing)
    assert vars(thing) == {"value": 1, "draw": print}


def test_what_never_changes_stays_as_it_is():
    kept = {
        "space": gym.spaces.Box(0, 1, (2,)),
        "function": print,
        "cls": Thing,
        "module": np,
        "dtype": np.dtype("int8"),
        "log": logging.getLogger("x"),
        "spec": gym.spec("CartPole-v1"),
    }
    state = capture(Thing(**kept, value=1))
    assert list(state["root"]["attributes"]) == ["value"]
    thing = Thing(**kept)
    restore(state, thing)
    assert vars(thing) == {**kept, "value": 1}


def test_a_space_that_was_sampled_from_goes_on_too():
    space, fresh = (gym.spaces.Dict({"a": gym.spaces.Discrete(1000, seed=seed)}) for seed in (1, 2))
    space.sample()
    thing = Thing(space=fresh)
    restore(capture(Thing(space=space)), thing)
    assert thing.space.sample() == space.sample()


def counter():
    count = 0

    def step():
        nonlocal count
        count += 1
        return count

    return step


class Opponent:
    def act(self):
        return self


def test_methods_refer_to_the_restored_object():
    def owner(value):
        thing = Thing(value=value)
        thing.act = Opponent.act.__get__(thing)
        return thing

    fresh = owner(1)
    restore(capture(owner(2)), fresh)
    assert fresh.act() is fresh
    assert fresh.value == 2


SLICED = np.zeros(4)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"fill": np.zeros(2).fill}, r"Thing\.fill is a builtins\.builtin_function_or_method"),
        ({"call": functools.partial(print, 1)}, r"Thing\.call is a functools\.partial"),
        ({"call": counter()}, r"Thing\.call is a builtins\.function"),
        ({"call": Opponent().act}, r"Thing\.call is a method of an object that is not stored before it"),
        ({"call": np.random.default_rng(3).random}, r"Thing\.call is a method of an object that is not stored"),
        (
            {"view": np.asarray(memoryview(bytearray(2)))},
            r"Thing\.view is an array in the memory of a builtins\.memoryview",
        ),
        ({"lock": threading.Lock()}, r"Thing\.lock is a _thread\.lock"),
        ({"deep": {"items": [(x for x in ())]}}, r"Thing\.deep\[0\]\[0\] is a builtins\.generator"),
        ({"array": np.array([None])}, r"Thing\.array is an array of object"),
        ({"a": SLICED[:2], "b": SLICED[1:]}, r"Thing\.b shares its memory with another array"),
        ({"items": OrderedDict()}, r"Thing\.items is a collections\.OrderedDict"),
        ({"image": b"\x00"}, r"Thing\.image is a builtins\.bytes"),
        ({"pipe": multiprocessing.Pipe()}, r"Thing\.pipe\[0\] is a multiprocessing\.connection\.Connection"),
        ({"client": ClientOfALibrary()}, r"Thing\.client is a outside\.ClientOfALibrary, whose module uses _compiled"),
    ],
)
def test_what_cannot_be_described_makes_the_whole_object_not_stored(attributes, reason, caplog, imported):
    with caplog.at_level(logging.INFO):
        assert capture(Thing(**attributes, value=1)) is None
    assert len(caplog.records) == 1
    assert re.search(reason, caplog.text)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (Thing(arm=Arm()), Thing(arm=None)),
        (Thing(arm=Arm()), Thing(arm=Thing())),
        (Thing(phase=Phase.REACH), Thing(phase=None)),
        (Thing(point=Point(1, 2)), Thing(point=None)),
        (Arm(), Thing()),
    ],
)
def test_a_state_of_another_object_is_refused(source, target):
    with pytest.raises(CheckpointError, match="a state fits only an env that is built the same way"):
        restore(capture(source), target)


@pytest.mark.parametrize(
    "root",
    [
        {"kind": "generator", "id": 0, "name": "__import__", "state": {}},
        {"kind": "foreign", "id": 0, "class": "builtins.NoneType", "state": {}},
        {"kind": "object", "id": 0, "class": "os._wrap_close", "attributes": {}},
        {"kind": "same", "id": 9},
        {"kind": "call", "id": 0},
        {"kind": "list", "id": 0},
        {},
    ],
)
def test_a_damaged_state_is_refused(root):
    with pytest.raises(CheckpointError):
        restore({"root": root})


def test_a_state_is_json_and_arrays():
    def plain(node):
        if isinstance(node, dict):
            assert all(isinstance(key, str) for key in node)
            return {key: plain(value) for key, value in node.items()}
        if isinstance(node, list):
            return [plain(value) for value in node]
        return None if isinstance(node, np.ndarray) else node

    json.dumps(plain(capture(Thing(**VALUES, rng=np.random.default_rng(1), arm=Arm()))), allow_nan=False)
