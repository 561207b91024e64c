"""The compiled passes of a network against autograd's."""

import pytest
import torch
from torch import Tensor

from over import over
from sparsegroup.kernels.cpu import threads
from sparsegroup.kernels.cpu.network import NetworkPasses, parts_of, torch_blas
from sparsegroup.models import DCN, MLP, DCNv2

pytestmark = pytest.mark.skipif(torch_blas() is None, reason="torch has another BLAS than MKL")

NETWORKS = {
    "mlp": lambda: MLP(5, 4, 2),
    "mlp_of_several_outputs": lambda: MLP(3, 2, hidden=(6,), outputs=2),
    "mlp_without_hidden_layers": lambda: MLP(3, 2, 1, hidden=()),
    "dcn": lambda: DCN(5, 4, 3),
    "dcn_of_one_cross_layer": lambda: DCN(3, 2, 0, hidden=(7,), cross_layers=1),
    "dcn_of_several_outputs": lambda: DCN(4, 8, 2, hidden=(9, 5, 3), cross_layers=4, outputs=3),
    "dcn_without_layers": lambda: DCN(4, 4, 2, hidden=(), cross_layers=0),
    "dcnv2": lambda: DCNv2(5, 4, 3),
    "dcnv2_stacked": lambda: DCNv2(5, 4, cross_layers=3, stacked=True, outputs=2),
    "dcnv2_of_low_rank": lambda: DCNv2(5, 4, 3, rank=2, hidden=()),
}


def passes(kernels: NetworkPasses, network: MLP | DCN | DCNv2, rows: int) -> tuple[list[Tensor], list[Tensor]]:
    """Logits and gradients, and those of autograd in float64."""
    draw = torch.Generator().manual_seed(rows)
    numbers = torch.randn(rows, network.numbers, generator=draw) if network.numbers else None
    gradient = torch.randn(rows, network.output.out_features, generator=draw) / rows
    embeddings = torch.randn(rows, network.fields, network.dim, generator=draw)
    assert kernels.takes(embeddings, numbers)
    found = kernels.forward(embeddings, numbers)
    gradients, of_embeddings = kernels.backward(gradient)
    exact, own = network.double(), embeddings.double().requires_grad_()
    logits = exact(own, None if numbers is None else numbers.double()).view(rows, -1)
    expected = torch.autograd.grad(logits, [*exact.parameters(), own], gradient.double(), materialize_grads=True)
    network.float()
    return [found, *gradients, of_embeddings], [logits, *expected]


def made(name: str) -> tuple[NetworkPasses, MLP | DCN | DCNv2]:
    torch.manual_seed(0)
    network = NETWORKS[name]()
    for parameter in network.parameters():
        parameter.data += torch.randn_like(parameter) / 10
    return NetworkPasses(network, list(network.parameters())), network


@over("name", NETWORKS)
def test_logits_and_gradients_are_those_of_autograd(name: str) -> None:
    kernels, network = made(name)
    for rows in (1, 37, 512, 37):
        for found, expected in zip(*passes(kernels, network, rows), strict=True):
            torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("two_threads")
@over("name", ["dcn", "dcnv2"])
def test_bits_are_the_same_on_any_number_of_threads(name: str) -> None:
    assert parts_of(1024, 1_000) > 2
    kernels, network = made(name)
    shared, _ = passes(kernels, network, 1024)
    threads.set_num_threads(1)
    alone, _ = passes(kernels, network, 1024)
    for one, other in zip(shared, alone, strict=True):
        assert torch.equal(one, other)


@over("name", ["mlp", "dcn", "dcnv2"])
def test_what_is_not_a_number_stays_one(name: str) -> None:
    kernels, network = made(name)
    hidden = network.hidden if isinstance(network, MLP) else network.deep
    hidden[0].bias.data[1] = torch.nan
    (logits, *_), _ = passes(kernels, network, 3)
    assert logits.isnan().all()


def test_only_networks_in_float32_that_are_trained_whole_are_taken() -> None:
    kernels, network = made("mlp")
    vectors = torch.zeros(2, 5, 4)
    assert kernels.takes(vectors, torch.zeros(2, 2))
    assert not kernels.takes(vectors.double())
    next(network.parameters()).requires_grad_(False)
    assert not kernels.takes(vectors)
