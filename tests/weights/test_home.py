"""Many small tensors live side by side, and nobody notices but the clock."""

import pickle

import pytest
import torch
from torch import nn

from rlightning.weights.bundle import pack
from rlightning.weights.home import Home
from rlightning.weights.layout import Layout

KINDS = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def many(count=120):
    """Parameters and buffers of several dtypes and shapes; the last one is the first one by another name."""
    tensors = {}
    for i in range(count):
        value = (torch.arange(2 * (i % 7) + 1.0) + i).to(KINDS[i % len(KINDS)])
        tensors[f"t{i}"] = nn.Parameter(value) if value.is_floating_point() else value
    tensors["zero_dim"] = torch.tensor(3.5)
    tensors["empty"] = torch.empty(0, 2)
    tensors["tied"] = tensors["t0"]
    return {"net": tensors}


def home_of(tensors):
    return Home.of(tensors, Layout.of(tensors))


def test_tensors_that_move_are_the_same_objects_with_the_same_values():
    tensors = many()
    before = {name: (tensor, tensor.detach().clone()) for name, tensor in tensors["net"].items()}
    bundle = pack(tensors, 0)
    home = home_of(tensors)
    assert home.read().tobytes() == bundle.flat.tobytes()
    assert home.holds(tensors)
    assert all(tensor.data_ptr() % 64 == 0 for tensor in tensors["net"].values() if tensor.numel())
    for name, (tensor, value) in before.items():
        assert tensors["net"][name] is tensor
        assert tensor.dtype == value.dtype
        assert torch.equal(tensor, value)
    # What is written by one of them is in the bytes, and the other way round.
    with torch.no_grad():
        tensors["net"]["t0"].fill_(7)
    assert tensors["net"]["tied"].item() == 7
    assert home.read().tobytes() == pack(tensors, 0).flat.tobytes()
    home.flat.copy_(torch.from_numpy(bundle.flat))
    assert all(torch.equal(tensor, value) for tensor, value in before.values())


def test_a_tensor_that_moved_is_pickled_without_its_neighbours():
    tensors = many()
    size = len(pickle.dumps(tensors["net"]["t5"]))
    home_of(tensors)
    assert len(pickle.dumps(tensors["net"]["t5"])) == size


def test_learning_goes_on_with_tensors_that_moved():
    torch.manual_seed(0)
    nets = [nn.Sequential(*(nn.Linear(3, 3) for _ in range(60))) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    optimizers = [torch.optim.Adam(net.parameters(), lr=0.1) for net in nets]
    for step in range(4):
        if step == 2:
            named = {"net": nets[1].state_dict(keep_vars=True)}
            home = home_of(named)
        for net, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            net(torch.ones(2, 3)).square().sum().backward()
            optimizer.step()
    assert home.holds(named)
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(one, other)


def few(tensors):
    tensors["net"] = dict(list(tensors["net"].items())[:50])


def large(tensors):
    tensors["net"]["large"] = torch.zeros(2_000_000)


def turned(tensors):
    tensors["net"]["turned"] = torch.zeros(2, 3).t()


def watched(tensors):
    return tensors["net"]["t3"].detach()


def seen_as_array(tensors):
    return tensors["net"]["t2"].numpy()


def tied_by_a_view(tensors):
    tensors["net"]["part"] = tensors["net"]["t5"].detach()[1:]


def shared(tensors):
    tensors["net"]["t3"].share_memory_()


@pytest.mark.parametrize("change", [few, large, turned, watched, seen_as_array, tied_by_a_view, shared])
def test_tensors_stay_where_moving_does_not_pay_or_somebody_else_has_a_hold_on_one(change):
    tensors = many()
    held = change(tensors)  # noqa: F841 (somebody else's hold lasts as long as this)
    places = {name: tensor.data_ptr() for name, tensor in tensors["net"].items()}
    assert home_of(tensors) is None
    assert {name: tensor.data_ptr() for name, tensor in tensors["net"].items()} == places


def moved_away(tensors):
    tensors["net"]["t9"].data = tensors["net"]["t9"].data.clone()


def replaced(tensors):
    tensors["net"]["t9"] = tensors["net"]["t9"].clone()


def renamed(tensors):
    named = {"new" if name == "t9" else name: tensor for name, tensor in tensors["net"].items()}
    return {"net": named}


def removed(tensors):
    del tensors["net"]["t9"]
    return {"net": dict(tensors["net"])}


def reshaped(tensors):
    tensors["net"]["t9"].unsqueeze_(0)


def shortened(tensors):
    tensors["net"]["t9"].data = tensors["net"]["t9"].data[:3]


def shared_later(tensors):
    tensors["net"]["t9"].share_memory_()


@pytest.mark.parametrize("change", [moved_away, replaced, renamed, removed, reshaped, shortened, shared_later])
def test_a_home_knows_when_a_tensor_has_left(change):
    tensors = many()
    tensors["net"]["t9"] = torch.arange(5.0)
    home = home_of(tensors)
    assert home.holds({"net": dict(tensors["net"])})
    changed = change(tensors) or {"net": dict(tensors["net"])}
    assert not home.holds(changed)
