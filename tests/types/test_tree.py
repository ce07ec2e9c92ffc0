"""Nested arrays keep their structure, and what is joined is owned."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from rlightning.policy.answering import concat_rows, owned_tensor
from rlightning.types.tree import split_rows, to_numpy, tree_leaves, tree_map


class Pair(NamedTuple):
    left: object
    right: object


def tree(start, rows):
    x = np.arange(start, start + rows, dtype=np.float32)
    return {"a": x, "pair": Pair(x[:, None] * 10, (x.astype(np.uint8), [x > 0]))}


def test_a_map_keeps_dicts_named_tuples_tuples_and_lists():
    result = tree_map(lambda a, b: a + b, {"x": Pair(1, (2,))}, {"x": Pair(10, (20,))})
    assert result == {"x": Pair(11, (22,))}
    assert type(result["x"]) is Pair
    assert tree_map(lambda a: -a, [1, [2]]) == [-1, [-2]]
    assert tree_map(lambda a: -a, {}) == {}


@pytest.mark.parametrize(("a", "b"), [((1, 2), (1,)), ([1], [1, 2]), ({"x": 1, "y": 2}, {"x": 1})])
def test_trees_of_different_structure_are_refused(a, b):
    with pytest.raises((ValueError, KeyError)):
        tree_map(lambda *leaves: None, a, b)


def test_leaves_come_depth_first():
    assert tree_leaves({"a": 1, "b": (2, [3, {"c": 4}])}) == [1, 2, 3, 4]


@pytest.mark.parametrize("count", [1, 3])
def test_joined_rows_are_tensors_of_the_same_dtypes_that_nobody_else_holds(count):
    trees = [tree(10 * i, 2) for i in range(count)]
    joined = concat_rows(trees)
    assert type(joined["pair"]) is Pair
    expected = [10 * i + j for i in range(count) for j in range(2)]
    assert joined["a"].tolist() == expected
    assert joined["pair"].left.shape == (2 * count, 1)
    assert [leaf.dtype for leaf in tree_leaves(joined)] == [torch.float32, torch.float32, torch.uint8, torch.bool]
    joined["a"] += 1
    assert trees[0]["a"].tolist() == [0, 1]


@pytest.mark.parametrize(
    "leaf",
    [np.arange(3.0)[::-1], np.broadcast_to(np.float32(1), (3,)), torch.ones(1).expand(3), np.float32(2), 3.0],
    ids=["backwards", "broadcast", "expanded", "scalar", "number"],
)
def test_an_owned_tensor_may_be_written_whatever_it_was_copied_from(leaf):
    before = np.asarray(leaf).tolist()
    tensor = owned_tensor(leaf)
    assert tensor.tolist() == before
    tensor.add_(1)
    assert np.asarray(leaf).tolist() == before


def test_an_array_that_may_not_be_written_is_joined_without_a_warning():
    fixed = np.arange(2.0)
    fixed.flags.writeable = False
    for count in (1, 2):
        concat_rows([fixed] * count).mul_(2)
    assert fixed.tolist() == [0, 1]


def test_split_undoes_join():
    parts = [tree(0, 2), tree(5, 1), tree(7, 3)]
    pieces = split_rows(to_numpy(concat_rows(parts)), [2, 1, 3])
    for part, piece in zip(parts, pieces, strict=True):
        assert all(map(np.array_equal, tree_leaves(part), tree_leaves(piece)))
