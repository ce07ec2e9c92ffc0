"""A bundle is a whole, versioned copy, bit for bit; what does not fit changes nothing."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlightning.errors import WeightSyncError
from rlightning.weights import Mismatch, digests, flatten_names, pack
from rlightning.weights.comparison import differences, strip_wrappers
from rlightning.weights.layout import Layout, as_bytes, check_same_layout

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


def every_kind():
    """Two modules with tensors of every kind that a network may hold."""
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(4, 6, generator=generator)
    first = {str(dtype): (base * 3).to(dtype) for dtype in DTYPES}
    tied = torch.arange(3.0)
    second = {
        "zero dim": torch.tensor(7, dtype=torch.int64),
        "transposed": base.t(),
        "strided": base[:, ::2],
        "expanded": torch.ones(1).expand(5),
        "tied": tied,
        "tied too": tied,
        "empty": torch.empty(0, 3),
        "empty half": torch.empty(0, dtype=torch.float16),
        "parameter": torch.nn.Parameter(base[0]),
        "nan": torch.tensor([float("nan"), -0.0, float("inf")]),
    }
    return {"first": first, "second": second}


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


def test_tensors_of_every_kind_come_back_bit_for_bit():
    given_ = every_kind()
    bundle = pack(given_, version=3)
    unpacked = bundle.views()
    assert bundle.version == 3
    assert {module: list(named) for module, named in unpacked.items()} == {m: list(n) for m, n in given_.items()}
    for name, tensor in flatten_names(given_).items():
        back = flatten_names(unpacked)[name]
        assert (back.dtype, back.shape, back.requires_grad) == (tensor.dtype, tensor.shape, False), name
        assert bits(back) == bits(tensor), name


shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(DTYPES), shapes, st.sampled_from("ab")), max_size=8), st.integers(0, 9))
def test_any_mixture_of_dtypes_and_shapes_comes_back_and_its_size_is_that_of_its_tensors(entries, version):
    tensors = {}
    for i, (dtype, shape, module) in enumerate(entries):
        size = int(np.prod(shape))
        tensors.setdefault(module, {})[f"t{i}"] = (torch.arange(size).reshape(shape) + i).to(dtype)
    bundle = pack(tensors, version)
    assert digests(flatten_names(bundle.views())) == digests(flatten_names(tensors))
    sizes = [tensor.nbytes for named in tensors.values() for tensor in named.values()]
    # Each tensor starts at a multiple of 64 bytes.
    assert sum(sizes) <= bundle.num_bytes <= sum(sizes) + 64 * len(sizes)


def test_later_training_does_not_change_a_bundle():
    weight = torch.ones(3)
    bundle = pack({"net": {"weight": weight, "step": torch.tensor(1)}}, 0)
    weight += 1
    assert bundle.views()["net"]["weight"].tolist() == [1, 1, 1]


def test_a_bundle_that_comes_in_memory_that_may_not_be_written_is_read_without_a_warning():
    array = pack({"net": {"weight": torch.ones(3)}}, 0).flat.numpy()
    array.flags.writeable = False
    held = as_bytes(array)
    del array  # it lives as long as the tensor
    assert held.view(torch.float32).tolist() == [1, 1, 1]


def test_a_bucket_crosses_processes_with_the_tensors_of_its_run_and_no_others():
    layout = Layout.of(tensors := {"net": {name: torch.full((32,), float(i)) for i, name in enumerate("abc")}})
    first, second = (pickle.loads(pickle.dumps(pack(tensors, 3, layout, run))) for run in layout.buckets(300))
    assert [(one.version, one.is_whole, one.run) for one in (first, second)] == [
        (3, False, (0, 256)),
        (3, False, (256, 384)),
    ]
    assert {name: tensor.unique().tolist() for name, tensor in first.views()["net"].items()} == {"a": [0.0], "b": [1.0]}
    assert second.views()["net"]["c"].unique().tolist() == [2.0]
    assert [second.share(index, 2).run for index in range(2)] == [(256, 320), (320, 384)]


def test_nothing_makes_an_empty_bundle():
    assert pack({}, 0).views() == {}
    assert pack({}, 0).num_bytes == 0


@pytest.mark.parametrize("name", [name for name, tensor in flatten_names(every_kind()).items() if tensor.numel()])
def test_one_bit_changes_the_digest_of_its_tensor_and_no_other(name):
    # Tied tensors share their bits: here each has its own.
    tensors = {key: tensor.detach().clone() for key, tensor in flatten_names(every_kind()).items()}
    before = digests(tensors)
    flat = tensors[name].contiguous().reshape(-1).view(torch.uint8).clone()
    flat[-1] ^= 1
    tensors[name] = flat.view(tensors[name].dtype).reshape(tensors[name].shape)
    after = digests(tensors)
    assert {key for key in before if before[key] != after[key]} == {name}


def test_a_digest_knows_dtype_and_shape_and_not_the_strides():
    x = torch.zeros(2, 3)
    different = [x, x.view(3, 2), x.view(6), x.int(), torch.zeros(2, 3, 1), torch.tensor(0.0), torch.zeros(1)]
    assert len(set(digests({str(i): tensor for i, tensor in enumerate(different)}).values())) == len(different)
    a = torch.arange(6.0).view(2, 3)
    assert digests({"": a.t().contiguous().t()}) == digests({"": a})
    assert digests({"": torch.tensor(0.0)}) != digests({"": torch.tensor(-0.0)})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("net.a"), "missing net.a"),
        (lambda t: t.update({"net.c": torch.ones(1)}), "unexpected net.c"),
        (lambda t: t.update({"net.a": torch.ones(2, 1)}), r"net.a is \(2, 1\) torch.float32, expected \(2,\)"),
        (lambda t: t.update({"net.a": torch.ones(2).double()}), "net.a is .* torch.float64, expected .* torch.float32"),
    ],
)
def test_what_does_not_fit_is_told_by_name(change, words):
    expected = {"net.a": torch.ones(2), "net.b": torch.ones(1)}
    given_ = dict(expected)
    check_same_layout(expected, given_, "receiver", 4)
    change(given_)
    with pytest.raises(WeightSyncError, match=f"weights of version 4 do not fit receiver: {words}"):
        check_same_layout(expected, given_, "receiver", 4)


def test_many_faults_are_told_up_to_ten():
    with pytest.raises(WeightSyncError, match=r"missing n9 and 2 more$"):
        check_same_layout({f"n{i}": torch.ones(1) for i in range(12)}, {}, "receiver", 0)


@pytest.mark.parametrize(
    ("wrapped", "plain"),
    [
        ("module.weight", "weight"),
        ("_orig_mod.module.0.weight", "0.weight"),
        ("net._orig_mod.weight", "net.weight"),
        ("trunk._fsdp_wrapped_module.module.bias", "trunk.bias"),
        ("submodule.weight", "submodule.weight"),
        ("my_module.weight", "my_module.weight"),
        ("weight", "weight"),
    ],
)
def test_names_lose_what_wrappers_put_into_them_and_nothing_else(wrapped, plain):
    assert strip_wrappers(wrapped) == plain


def test_a_mismatch_says_which_policy_which_tensor_and_what():
    assert str(Mismatch(2, "net.weight", 1.0, 2.0)) == "eval[2] net.weight: 2.0, the learner has 1.0"


def test_norms_that_are_not_finite_agree_with_themselves_only():
    norms = {"a": float("nan"), "b": float("inf"), "c": 1.0, "d": float("nan")}
    found = {"a": float("nan"), "b": float("inf"), "c": float("nan"), "d": 1.0}
    assert [one.name for one in differences(0, norms, found, rtol=0.1)] == ["c", "d"]
