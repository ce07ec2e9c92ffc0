"""The CNN takes images of any layout and size."""

from __future__ import annotations

import pytest
import torch

from rlightning.errors import ShapeError
from rlightning.models.cnn import CNN


@pytest.mark.parametrize(
    "shape", [(4, 84, 84), (84, 84, 4), (42, 42, 1), (3, 64, 96), (24, 24), (16, 16), (10, 10, 6), (3, 3)]
)
def test_images_of_any_layout_and_size(shape: tuple[int, ...]) -> None:
    images = torch.randint(0, 256, (5, *shape), dtype=torch.uint8)
    features = CNN(shape, 32)(images)
    assert features.shape == (5, 32)
    assert features.dtype is torch.float32


def test_the_large_network_is_that_of_the_nature_paper() -> None:
    # 84 -> (84 - 8) / 4 + 1 = 20 -> (20 - 4) / 2 + 1 = 9 -> 9 - 3 + 1 = 7; 7 * 7 * 64 = 3136
    assert CNN((4, 84, 84), 512).dense.weight.shape == (512, 3136)


def test_both_layouts_give_the_same_features() -> None:
    torch.manual_seed(0)
    first = CNN((3, 42, 42), 16)
    last = CNN((42, 42, 3), 16)
    last.load_state_dict(first.state_dict())
    images = torch.randint(0, 256, (2, 3, 42, 42), dtype=torch.uint8)
    torch.testing.assert_close(first(images), last(images.permute(0, 2, 3, 1)))


def test_bytes_are_divided_by_255_and_floats_are_not() -> None:
    network = CNN((1, 24, 24), 8)
    images = torch.randint(0, 256, (2, 1, 24, 24), dtype=torch.uint8)
    torch.testing.assert_close(network(images), network(images.float() / 255))


@pytest.mark.parametrize("shape", [(17,), (2, 2, 3), (1, 1, 2, 3, 4)])
def test_what_is_no_image_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="at least 3 pixels"):
        CNN(shape, 8)
