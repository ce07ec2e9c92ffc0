"""Requests share, an update excludes, and nothing stays locked."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rlightning.weights.gate import RolloutGate

SOON = 20.0
"""Seconds within which anything here must have happened, also on a busy machine."""
PAUSE = 0.05
"""Seconds given to a thread that must not get in."""


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as executor:
        yield executor


def test_requests_share_the_policy(pool):
    gate, both_inside = RolloutGate(), threading.Barrier(2)

    def request():
        with gate.request():
            both_inside.wait(SOON)
            return gate.num_requests

    first, second = pool.submit(request), pool.submit(request)
    assert max(first.result(SOON), second.result(SOON)) == 2
    assert gate.num_requests == 0


def test_an_update_waits_for_the_requests_inside_and_goes_before_new_ones(pool):
    gate, order = RolloutGate(), []
    release, inside = threading.Event(), threading.Event()

    def old_request():
        with gate.request():
            inside.set()
            release.wait(SOON)
            order.append("old request")

    def update():
        with gate.update():
            order.append("update")

    def new_request():
        with gate.request():
            order.append("new request")

    old = pool.submit(old_request)
    inside.wait(SOON)
    waiting = pool.submit(update)
    while not gate._updating:
        time.sleep(0.001)
    new = pool.submit(new_request)
    time.sleep(PAUSE)
    # The old request is inside: the update waits for it, and the new request for the update.
    assert order == []
    release.set()
    for future in (old, waiting, new):
        future.result(SOON)
    assert order == ["old request", "update", "new request"]


def test_updates_exclude_each_other_and_all_requests(pool):
    gate, inside, most = RolloutGate(), [], []

    def visit(kind):
        with gate.update() if kind == "update" else gate.request():
            inside.append(kind)
            most.append(tuple(inside))
            time.sleep(0.0005)
            inside.remove(kind)

    kinds = ["update" if i % 5 == 0 else "request" for i in range(100)]
    list(pool.map(visit, kinds, timeout=SOON))
    assert len(most) == 100
    assert all(seen == ("update",) for seen in most if "update" in seen)
    assert gate.num_requests == 0


@pytest.mark.parametrize("kind", ["request", "update"])
def test_an_exception_inside_leaves_the_gate_open(pool, kind):
    gate = RolloutGate()
    with pytest.raises(KeyError), getattr(gate, kind)():
        raise KeyError("inside")
    for next_kind in ("update", "request", "update"):
        pool.submit(lambda kind=next_kind: getattr(gate, kind)().__enter__()).result(SOON)
        getattr(gate, next_kind)().__exit__(None, None, None)
    assert gate.num_requests == 0


def test_no_request_sees_two_versions_while_updates_go_on(pool):
    gate, values, stop = RolloutGate(), [0] * 20, threading.Event()

    def read():
        seen = []
        while not stop.is_set():
            with gate.request():
                seen.append(tuple(values))
        return seen

    readers = [pool.submit(read) for _ in range(4)]
    for version in range(1, 51):
        with gate.update():
            for place in range(len(values)):
                values[place] = version
                if place == 10:
                    time.sleep(0.0002)
    stop.set()
    for reader in readers:
        seen = reader.result(SOON)
        assert all(len(set(snapshot)) == 1 for snapshot in seen)
        versions = [snapshot[0] for snapshot in seen]
        assert versions == sorted(versions)
