"""Ranks that do something together, in one process: each has its own group object."""

import socket
import threading
from pathlib import Path

import pytest
import torch

from rlightning.distributed import SOLO, Group, ParallelMode, Rendezvous, open_group
from rlightning.distributed.communicator import Communicator
from rlightning.distributed.rendezvous import own_address
from rlightning.errors import CallTimeout, ConfigError, PeerLost, ProtocolError
from tests.distributed.ranks import DATA_PARALLEL, form, in_group, on_ranks


def whole(results):
    """What the ranks returned, if none raised."""
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_sum_over_ranks_is_everywhere_the_same(size):
    def work(group):
        return group.all_reduce_(torch.tensor([1.0, 10.0 * group.rank])).tolist()

    # 1 per rank; 0 + 10 + 20.
    expected = [float(size), 10.0 * sum(range(size))]
    assert whole(in_group(size, work)) == [expected] * size


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int16, torch.int64, torch.bfloat16, torch.float16, torch.float64]
)
def test_every_dtype_is_broadcast_and_gathered_bit_for_bit(dtype):
    def work(group):
        own = torch.tensor([0, 1, group.rank]).to(dtype)
        gathered = torch.cat(group.all_gather(own))
        return gathered.tolist(), group.broadcast_(own, root=1).tolist()

    for gathered, sent in whole(in_group(2, work)):
        assert gathered == [0, 1, 0, 0, 1, 1]
        assert sent == [0, 1, 1]


def test_a_scalar_and_an_empty_tensor_are_broadcast():
    def work(group):
        return group.broadcast_(torch.tensor(group.rank), 1).item(), group.broadcast_(torch.empty(0, 3)).shape

    assert whole(in_group(2, work)) == [(1, (0, 3))] * 2


def test_tensors_of_unequal_length_are_gathered_whole():
    def work(group):
        rows = torch.full((2 * group.rank, 2), float(group.rank))
        return [part.tolist() for part in group.all_gather(rows)]

    assert whole(in_group(3, work)) == [[[], [[1.0, 1.0]] * 2, [[2.0, 2.0]] * 4]] * 3


def test_nothing_from_all_ranks_is_nothing():
    assert [len(part) for part in whole(in_group(2, lambda group: group.all_gather(torch.empty(0, 2))))[0]] == [0, 0]


def test_nobody_passes_a_barrier_before_the_last_one_came():
    came = []

    def work(group):
        if group.rank == 1:
            threading.Event().wait(0.2)
        came.append(group.rank)
        group.barrier()
        return len(came)

    assert whole(in_group(2, work)) == [2, 2]


def test_a_group_of_one_does_nothing():
    tensor = torch.ones(2)
    assert SOLO.all_reduce_(tensor) is tensor
    assert SOLO.broadcast_(tensor) is tensor
    assert SOLO.all_gather(tensor) == [tensor]
    SOLO.barrier()
    SOLO.close()
    SOLO.barrier()


def test_a_rank_that_does_not_come_is_a_timeout_that_names_rank_group_generation_and_phase():
    rendezvous = Rendezvous.host()

    def work(rank):
        group = form(rendezvous, rank, 2, timeout_s=1.0, generation=4)
        if rank == 0:
            group.all_reduce_(torch.ones(1))
        return done.wait(20)

    done = threading.Event()
    threading.Timer(3.0, done.set).start()
    error = on_ranks(2, work)[0]
    assert isinstance(error, CallTimeout)
    said = (
        "rank 0 of 2 in the group train_data_parallel[0,1] of generation 4, phase all_reduce: the other ranks did not"
    )
    assert said in str(error)


def test_a_group_that_nobody_else_joins_is_a_timeout():
    with pytest.raises(CallTimeout, match=r"rank 0 of 2 in the group intra_node\[0,1\].*phase form.*within 0\.5 s"):
        Group.form(Rendezvous.host(timeout_s=0.5), ParallelMode.INTRA_NODE, (0, 1), 0, timeout_s=0.5)


def test_a_rendezvous_listens_on_one_address_only():
    meeting = Rendezvous.host()
    listening = [
        line.split()[1].partition(":")[0]
        for name in ("tcp", "tcp6")
        for line in Path("/proc/net", name).read_text().splitlines()[1:]
        if line.split()[3] == "0A" and line.split()[1].endswith(f":{meeting.port:04X}")
    ]
    assert listening == ["0100007F"]
    assert meeting.address == "127.0.0.1"


@pytest.mark.parametrize(("is_on_one_node", "address"), [(True, "127.0.0.1"), (False, own_address())])
def test_rank_0_is_reached_from_elsewhere_only_where_ranks_are_elsewhere(is_on_one_node, address):
    communicator = Communicator()
    communicator.is_on_one_node = is_on_one_node
    assert communicator.offer()[0] == address


def test_a_rendezvous_that_nobody_holds_is_a_timeout():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # but does not listen
        with pytest.raises(CallTimeout, match=r"rank 3 found nobody at 127\.0\.0\.1:\d+ within 0\.2 s"):
            Rendezvous.join("127.0.0.1", taken.getsockname()[1], rank=3, timeout_s=0.2)


def test_a_rank_that_leaves_is_noticed_at_once_by_those_who_wait():
    def work(group):
        if group.rank == 1:
            threading.Event().wait(0.3)
            group.close("its training step failed")
            group.barrier()
        group.barrier()

    waiting, left = in_group(2, work, timeout_s=50.0, timeout=20)
    assert isinstance(waiting, PeerLost)
    assert "rank 0 of 2 in the group train_data_parallel[0,1] of generation 0, phase barrier: a rank is gone" in str(
        waiting
    )
    assert isinstance(left, ProtocolError)
    assert "has left the group" in str(left)
    assert "(its training step failed): call PolicyGroup.init_comm_group" in str(left)


def test_groups_are_formed_again_for_other_members_over_the_same_rendezvous():
    rendezvous = Rendezvous.host()

    def work(rank):
        sums = []
        for generation, ranks in enumerate([(0, 1, 2), (0, 2), (0, 1, 2)]):
            if rank in ranks:
                group = form(rendezvous, rank, 3, ranks=ranks, generation=generation)
                sums.append((group.rank, group.all_reduce_(torch.tensor(float(rank))).item()))
                group.close()
        return sums

    # 0 + 1 + 2 of three, 0 + 2 of two; rank 2 is the second of two.
    assert whole(on_ranks(3, work)) == [[(0, 3), (0, 2), (0, 3)], [(1, 3), (1, 3)], [(2, 3), (1, 2), (2, 3)]]


def test_a_process_may_be_in_several_groups_at_once():
    rendezvous = Rendezvous.host()
    layout = {ParallelMode.GLOBAL: [(0, 1, 2)], ParallelMode.WEIGHT_TRANSFER: [(0, 1), (0, 2)]}

    def work(rank):
        groups = [
            form(rendezvous, rank, 3, mode=mode, ranks=ranks)
            for mode, all_ranks in layout.items()
            for ranks in all_ranks
            if rank in ranks
        ]
        return [group.all_reduce_(torch.tensor(10.0**rank)).item() for group in groups]

    assert whole(on_ranks(3, work)) == [[111, 11, 101], [111, 11], [111, 101]]


def test_8_groups_start_at_once_while_the_customary_port_is_taken():
    with socket.socket() as customary:
        customary.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            customary.bind(("", 29500))
            customary.listen()
        except OSError:
            pass  # somebody else has taken it, which is as good
        meetings = [Rendezvous.host() for _ in range(8)]

        def work(place):
            group = form(meetings[place // 2], place % 2, 2)
            return group.all_reduce_(torch.tensor(float(place // 2))).item()

        # Groups 0 to 7, and both ranks of each bring its number.
        assert whole(on_ranks(16, work)) == [2.0 * (place // 2) for place in range(16)]
        assert len({meeting.port for meeting in meetings} | {29500}) == 9


def test_a_taken_port_that_was_asked_for_is_an_error():
    taken = Rendezvous.host()
    with pytest.raises(PeerLost, match=f"cannot listen on 127.0.0.1:{taken.port}"):
        Rendezvous.host(taken.port)


def test_a_group_wants_a_member_and_a_backend_that_there_is():
    meeting = Rendezvous.host()
    with pytest.raises(ProtocolError, match="rank 3 is no member"):
        Group.form(meeting, DATA_PARALLEL, (0, 1), 3)
    with pytest.raises(ConfigError, match="no backend 'mpi'"):
        Group.form(meeting, DATA_PARALLEL, (0, 1), 0, backend="mpi")


def test_the_group_of_a_kind_is_found_while_it_is_open():
    before = open_group(ParallelMode.INTRA_NODE)
    group = Group(ParallelMode.INTRA_NODE, (0, 1), 0)
    assert open_group(ParallelMode.INTRA_NODE) is before
    formed = Group.form(Rendezvous.host(), ParallelMode.INTRA_NODE, (5,), 5)
    assert open_group(ParallelMode.INTRA_NODE) is formed
    assert (formed.rank, formed.size, group.size) == (0, 1, 2)
    del formed
    assert open_group(ParallelMode.INTRA_NODE) is None
