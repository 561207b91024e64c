"""The models of §4.1: sizes as in the paper, forward passes against their formulas, inputs checked."""

from itertools import combinations, product

import pytest
import torch
from torch import nn

from sparsegroup.models import DCN, MLP, OPNN

MODELS = (MLP, OPNN, DCN)


def hidden_sizes(layers: nn.Sequential) -> list[int]:
    return [layer.out_features for layer in layers if isinstance(layer, nn.Linear)]


def test_sizes_are_the_papers_by_default() -> None:
    mlp, opnn, dcn = MLP(fields=22), OPNN(fields=16), DCN(fields=26, numbers=13)
    assert (mlp.dim, hidden_sizes(mlp.hidden), mlp.output.out_features) == (16, [64, 32, 16], 1)
    assert (opnn.dim, hidden_sizes(opnn.hidden), opnn.output.out_features) == (10, [512, 256, 128], 1)
    assert [layer.p for layer in opnn.hidden if isinstance(layer, nn.Dropout)] == [0.5] * 3
    assert (dcn.dim, hidden_sizes(dcn.deep), len(dcn.cross.weight)) == (8, [64, 64], 2)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("numbers", [0, 3])
def test_one_logit_per_row_and_gradients_reach_every_input(model: type[nn.Module], numbers: int) -> None:
    torch.manual_seed(0)
    network = model(fields=4, dim=5, numbers=numbers, hidden=(7, 6))
    embeddings = torch.randn(9, 4, 5, requires_grad=True)
    numeric = torch.randn(9, numbers, requires_grad=True) if numbers else None
    logits = network(embeddings, numeric)
    assert logits.shape == (9,)
    logits.square().sum().backward()
    assert embeddings.grad.abs().sum(dim=(0, 2)).min() > 0
    assert numeric is None or numeric.grad.abs().sum(dim=0).min() > 0
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("pairwise", [False, True])
def test_opnn_feeds_embeddings_and_outer_products_to_its_first_layer(pairwise: bool) -> None:
    """Of each pair, or of the sum of the fields with itself: the sum of all ordered pairs."""
    torch.manual_seed(1)
    network = OPNN(fields=3, dim=4, hidden=(6, 5), pairwise=pairwise).eval()
    embeddings = torch.randn(8, 3, 4)
    pairs = combinations(range(3), 2) if pairwise else product(range(3), range(3))
    products = [embeddings[:, i, :, None] * embeddings[:, j, None, :] for i, j in pairs]
    p = torch.cat(products, 1) if pairwise else sum(products)
    expected = network.output(network.hidden(torch.cat([embeddings.flatten(1), p.flatten(1)], dim=1))).squeeze(1)
    torch.testing.assert_close(network(embeddings), expected)


def test_cross_layers_follow_their_formula() -> None:
    torch.manual_seed(2)
    network = DCN(fields=2, dim=3, hidden=(4,), cross_layers=3)
    torch.nn.init.normal_(network.cross.bias)
    x_0 = torch.randn(5, 6)
    x = x_0
    for weight, bias in zip(network.cross.weight, network.cross.bias, strict=True):
        # eq. 3 of DCN with the outer product x_0 x^T written out.
        x = (x_0.unsqueeze(2) @ x.unsqueeze(1) @ weight.view(1, -1, 1)).squeeze(2) + bias + x
    weight = torch.randn(6)
    products = x_0 @ torch.cat([network.cross.weight, weight.unsqueeze(0)]).t()
    torch.testing.assert_close(network.cross(products, weight.unsqueeze(0)).squeeze(1), x @ weight)


@pytest.mark.parametrize("cross_layers", [0, 1, 2])
@pytest.mark.parametrize("hidden", [(), (4,), (4, 3)])
def test_dcn_joins_cross_and_deep_layers_in_one_logit(hidden: tuple[int, ...], cross_layers: int) -> None:
    torch.manual_seed(2)
    network = DCN(fields=2, dim=3, numbers=2, hidden=hidden, cross_layers=cross_layers)
    torch.nn.init.normal_(network.cross.bias)
    embeddings, numbers = torch.randn(5, 2, 3), torch.randn(5, 2)
    x_0 = x = torch.cat([embeddings.flatten(1), numbers], dim=1)
    for weight, bias in zip(network.cross.weight, network.cross.bias, strict=True):
        x = x_0 * (x @ weight).unsqueeze(1) + bias + x
    logits = network.output(torch.cat([x, network.deep(x_0)], dim=1)).squeeze(1)
    torch.testing.assert_close(network(embeddings, numbers), logits)


def test_numbers_join_the_embeddings() -> None:
    torch.manual_seed(3)
    network = MLP(fields=2, dim=3, numbers=2, hidden=(4,))
    embeddings, numbers = torch.randn(5, 2, 3), torch.randn(5, 2)
    flat = torch.cat([embeddings.flatten(1), numbers], dim=1)
    torch.testing.assert_close(network(embeddings, numbers), network.output(network.hidden(flat)).squeeze(1))


@pytest.mark.parametrize("model", MODELS)
def test_inputs_of_another_shape_are_named(model: type[nn.Module]) -> None:
    right, numbers = torch.zeros(5, 2, 3), torch.zeros(5, 2)
    for inputs, message in (
        ((torch.zeros(5, 3, 3), numbers), r"embeddings must be \[batch, 2, 3\], got \[5, 3, 3\]"),
        ((torch.zeros(5, 6), numbers), r"embeddings must be \[batch, 2, 3\], got \[5, 6\]"),
        ((right, None), r"numbers must be \[5, 2\], got None"),
        ((right, torch.zeros(5, 1)), r"numbers must be \[5, 2\], got \[5, 1\]"),
    ):
        with pytest.raises(ValueError, match=message):
            model(fields=2, dim=3, numbers=2)(*inputs)
    with pytest.raises(ValueError, match="numbers must be None, got"):
        model(fields=2, dim=3)(right, torch.zeros(5, 1))
