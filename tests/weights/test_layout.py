"""Named tensors lie in one run of bytes, aligned and without overlap, and come out of it as views."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st
from ray import cloudpickle

from rlightning.weights.layout import ALIGNMENT, Layout, copy_all, each, even_runs


def test_every_tensor_starts_at_a_cache_line():
    # 12 bytes, then 2 bytes, then 8: at 0, 64 and 128; 136 bytes in all.
    tensors = {"a": {"w": torch.zeros(3)}, "b": {"h": torch.zeros(1, dtype=torch.float16), "n": torch.tensor(5)}}
    layout = Layout.of(tensors)
    assert [(spec.start, spec.num_bytes) for spec in layout.specs] == [(0, 12), (64, 2), (128, 8)]
    assert layout.num_bytes == 136


def test_tied_tensors_share_their_place_and_are_tied_in_the_views():
    tied = torch.arange(4.0)
    layout = Layout.of({"a": {"w": tied}, "b": {"w": tied, "part": tied[:2]}})
    assert [spec.start for spec in layout.specs] == [0, 0, 64]
    views = layout.views(torch.zeros(layout.num_bytes, dtype=torch.uint8))
    views["a"]["w"][0] = 7
    assert views["b"]["w"].tolist() == [7, 0, 0, 0]


def test_two_layouts_have_the_same_key_only_if_bytes_may_be_exchanged():
    def key(**tensors):
        return Layout.of({"net": tensors}).key

    ours = key(w=torch.zeros(2, 3), b=torch.zeros(3))
    assert ours == key(w=torch.ones(2, 3), b=torch.ones(3))
    others = [
        key(b=torch.zeros(3), w=torch.zeros(2, 3)),
        key(w=torch.zeros(3, 2), b=torch.zeros(3)),
        key(w=torch.zeros(2, 3), b=torch.zeros(3, dtype=torch.int32)),
        key(w=torch.zeros(2, 3), c=torch.zeros(3)),
        key(w=torch.zeros(2, 3)),
    ]
    assert ours not in others
    assert len(set(others)) == len(others)


def test_a_layout_that_a_process_knows_already_is_not_made_again():
    layout = Layout.of({"net": {"w": torch.zeros(2, 3), "n": torch.tensor(1)}})
    message = cloudpickle.dumps(layout)
    assert b"_KNOWN" not in message  # it travels as text and not as code
    first = cloudpickle.loads(message)
    assert first == layout
    assert cloudpickle.loads(message) is first


def test_a_layout_fits_just_what_it_was_made_of():
    tensors = {"net": {"w": torch.zeros(2), "b": torch.zeros(())}}
    layout = Layout.of(tensors)
    assert layout.fits({"net": {"w": torch.ones(2), "b": torch.ones(())}})
    assert not layout.fits({"net": {"w": torch.ones(2)}})
    assert not layout.fits({"net": {"w": torch.ones(2), "b": torch.ones(1)}})
    assert not layout.fits({"net": {"w": torch.ones(2), "b": torch.ones((), dtype=torch.int64)}})
    assert not layout.fits({"net": {"v": torch.ones(2), "b": torch.ones(())}})


def test_a_layout_of_tied_tensors_fits_just_tied_ones():
    tied, other = torch.ones(2), torch.ones(2)
    layout = Layout.of({"net": {"w": tied, "v": tied}})
    assert layout.fits({"net": {"w": other, "v": other}})
    assert layout.fits({"net": {"w": other, "v": other.view(2)}})
    assert not layout.fits({"net": {"w": tied, "v": other}})
    # Two that are not tied may become so: each has a place of its own.
    assert Layout.of({"net": {"w": tied, "v": other}}).fits({"net": {"w": tied, "v": tied}})


DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]
shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
networks = st.lists(st.tuples(st.sampled_from(DTYPES), shapes), max_size=12).map(
    lambda entries: {"net": {f"t{i}": torch.zeros(shape, dtype=dtype) for i, (dtype, shape) in enumerate(entries)}}
)


@given(networks, st.integers(0, 2**31))
def test_what_is_copied_in_comes_out_and_no_tensor_touches_another(tensors, seed):
    generator = torch.Generator().manual_seed(seed)
    for _, _, tensor in each(tensors):
        tensor.copy_(torch.randint(0, 2, tensor.shape, generator=generator))
    layout = Layout.of(tensors)
    views = layout.views(torch.zeros(layout.num_bytes, dtype=torch.uint8))
    copy_all(views, tensors)
    for (_, _, view), (_, _, tensor) in zip(each(views), each(tensors), strict=True):
        assert view.dtype is tensor.dtype
        assert torch.equal(view, tensor)


@given(st.integers(0, 100_000), st.integers(1, 9))
def test_runs_cover_all_bytes_once_and_are_nearly_equal(num_bytes, count):
    runs = even_runs(num_bytes, count)
    assert len(runs) == count
    assert runs[0][0] == 0
    assert runs[-1][1] == num_bytes
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(runs))
    sizes = [stop - start for start, stop in runs]
    assert all(size >= 0 for size in sizes)
    assert max(sizes) - min(sizes) < 2 * ALIGNMENT
