"""Ranks of a group as threads of this process."""

from __future__ import annotations

import threading

from rlightning.distributed import Group, ParallelMode, Rendezvous

DATA_PARALLEL = ParallelMode.TRAIN_DATA_PARALLEL


def on_ranks(size, work, *, timeout=60):
    """Call ``work(rank)`` in a thread for each rank.

    Returns:
        What each returned, or the exception that it raised.
    """
    results = [None] * size

    def run(rank):
        try:
            results[rank] = work(rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
    assert not any(thread.is_alive() for thread in threads), f"ranks still wait after {timeout} s"
    return results


def form(rendezvous, rank, size, *, mode=DATA_PARALLEL, ranks=None, timeout_s=30.0, **options):
    """Form a group as one of its ranks, by a connection of its own."""
    joined = Rendezvous.join(rendezvous.address, rendezvous.port, rank=rank, timeout_s=timeout_s)
    return Group.form(joined, mode, ranks or range(size), rank, timeout_s=timeout_s, **options)


def in_group(size, work, *, timeout=60, **options):
    """Call ``work(group)`` on each rank of a new group; the groups are closed at the end."""
    rendezvous = Rendezvous.host()

    def run(rank):
        group = form(rendezvous, rank, size, **options)
        try:
            return work(group)
        finally:
            group.close()

    return on_ranks(size, run, timeout=timeout)
