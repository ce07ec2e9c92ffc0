"""The MLP is the chain of its layers."""

import pytest
import torch
from torch import nn

from rlightning.models.mlp import MLP


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "gelu", "silu"])
def test_it_gives_what_its_layers_give_one_after_the_other(activation):
    mlp, x = MLP(3, [5, 4], activation), torch.randn(7, 3)
    assert (mlp.out_features, len(mlp)) == (4, 4)
    expected = x
    for layer in mlp:
        expected = layer(expected)
    assert torch.equal(mlp(x), expected)
    assert torch.equal(MLP(3, [])(x), x)


def test_hooks_of_its_layers_are_called():
    mlp, seen = MLP(3, [5]), []
    mlp[0].register_forward_pre_hook(lambda layer, args: (args[0] + 1,))
    mlp[1].register_forward_hook(lambda layer, args, output: seen.append(output))
    mlp[1].register_full_backward_hook(lambda layer, grad_in, grad_out: seen.append(grad_out[0]))
    x = torch.randn(2, 3)
    y = mlp(x)
    assert torch.equal(y, torch.tanh(nn.functional.linear(x + 1, mlp[0].weight, mlp[0].bias)))
    y.sum().backward()
    assert torch.equal(seen[0], y)
    assert torch.equal(seen[1], torch.ones(2, 5))


def test_a_layer_can_be_replaced():
    mlp, x = MLP(3, [5]), torch.randn(2, 3)
    mlp[1] = nn.Identity()
    assert torch.equal(mlp(x), nn.functional.linear(x, mlp[0].weight, mlp[0].bias))
