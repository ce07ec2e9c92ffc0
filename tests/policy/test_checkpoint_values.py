"""Helpers beside the policy: copies that training cannot change, dotted attributes, the size of the world."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed

from rlightning.policy.base_policy import clone_checkpoint_value, infer_train_dp_world_size, set_nested_attr


class Moments(NamedTuple):
    first: torch.Tensor
    second: object


@dataclass(frozen=True)
class Frozen:
    weight: torch.Tensor
    derived: object = field(init=False, default=None)


@dataclass(frozen=True, slots=True)
class FrozenSlots:
    inner: dict


@dataclass
class Plain:
    weights: list


def everything(live):
    return {
        "dict": {0: live, "deep": {"er": live}},
        "list": [live, [live]],
        "tuple": (live, 1),
        "named": Moments(live, (live,)),
        "frozen": Frozen(live),
        "slots": FrozenSlots({"x": live}),
        "plain": Plain([live]),
        "array": live.detach().numpy(),
        "others": [None, True, 2**70, "text", float("inf")],
    }


def test_a_copy_has_the_same_structure_and_types():
    live = torch.arange(3.0, requires_grad=True)
    copied = clone_checkpoint_value(everything(live))
    assert type(copied["named"]) is Moments
    assert type(copied["tuple"]) is tuple
    assert [type(copied[name]) for name in ("frozen", "slots", "plain")] == [Frozen, FrozenSlots, Plain]
    assert copied["others"] == [None, True, 2**70, "text", float("inf")]
    assert copied["dict"][0].tolist() == copied["frozen"].weight.tolist() == [0, 1, 2]


def test_later_training_does_not_change_what_was_copied():
    live = torch.zeros(3, requires_grad=True)
    copied = clone_checkpoint_value(everything(live))
    with torch.no_grad():
        live += 1
    tensors = [
        copied["dict"][0],
        copied["dict"]["deep"]["er"],
        copied["list"][1][0],
        copied["tuple"][0],
        copied["named"].first,
        copied["named"].second[0],
        copied["frozen"].weight,
        copied["slots"].inner["x"],
        copied["plain"].weights[0],
    ]
    for tensor in tensors:
        assert tensor.tolist() == [0, 0, 0]
        assert not tensor.requires_grad
    assert copied["array"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "tensor",
    [torch.arange(6.0).view(2, 3).t(), torch.ones(1).expand(4), torch.arange(6)[::2], torch.tensor(True)],
    ids=["transposed", "expanded", "strided", "zero dim"],
)
def test_a_copied_tensor_is_owned_and_contiguous(tensor):
    copied = clone_checkpoint_value(tensor)
    assert torch.equal(copied, tensor)
    assert copied.dtype == tensor.dtype
    assert copied.is_contiguous()
    assert copied.untyped_storage().nbytes() == copied.nbytes
    assert copied.data_ptr() != tensor.data_ptr()


def test_copying_leaves_the_original_as_it_was():
    original = Frozen(torch.ones(2))
    weight = original.weight
    clone_checkpoint_value(original)
    assert original.weight is weight


def test_the_state_of_an_optimizer_is_copied():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight], 0.1)
    weight.sum().backward()
    optimizer.step()
    copied = clone_checkpoint_value(optimizer.state_dict())
    optimizer.step()
    # The gradient is 1: the first moment is 0.1 after one step, 0.19 after two.
    assert copied["state"][0]["exp_avg"].tolist() == pytest.approx([0.1, 0.1])
    assert optimizer.state_dict()["state"][0]["exp_avg"].tolist() == pytest.approx([0.19, 0.19])


def test_an_array_is_copied_and_may_be_written():
    fixed = np.broadcast_to(np.float32(1), (3,))
    copied = clone_checkpoint_value({"x": fixed})["x"]
    copied += 1
    assert fixed.tolist() == [1, 1, 1]


def test_without_process_group_one_policy_trains():
    assert infer_train_dp_world_size() == 1


@pytest.mark.parametrize("error", [RuntimeError, ValueError])
def test_the_size_of_the_world_is_one_where_it_cannot_be_told(monkeypatch, error):
    def fail():
        raise error("the process group is gone")

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", fail)
    assert infer_train_dp_world_size() == 1
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    assert infer_train_dp_world_size() == 4
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    assert infer_train_dp_world_size() == 1


def test_a_dotted_attribute_is_set():
    obj = SimpleNamespace(a=SimpleNamespace(b=SimpleNamespace(c=1)), d=2)
    set_nested_attr(obj, "a.b.c", 5)
    set_nested_attr(obj, "d", 6)
    assert (obj.a.b.c, obj.d) == (5, 6)


@pytest.mark.parametrize(("path", "part"), [("x.b.c", "x"), ("a.x.c", "x"), ("a.b.x", "x"), ("", "")])
def test_a_missing_part_is_named_with_the_object_that_lacks_it(path, part):
    obj = SimpleNamespace(a=SimpleNamespace(b=SimpleNamespace(c=1)))
    with pytest.raises(AttributeError, match=f"SimpleNamespace has no attribute '{part}'"):
        set_nested_attr(obj, path, 5)
    assert obj.a.b.c == 1
