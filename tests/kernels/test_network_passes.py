"""The compiled passes of a network against autograd's."""

import platform
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from over import over
from sparsegroup.kernels.cpu import threads
from sparsegroup.kernels.cpu.network import NetworkPasses, has_amx, parts_of, residuals_of, torch_blas
from sparsegroup.kernels.cpu.tape import NotRecordableError
from sparsegroup.models import DCN, FM, MLP, OPNN, DCNv2, DeepFM, XDeepFM
from sparsegroup.objectives import Logistic

HAS_BLAS = torch.backends.mkl.is_available() and (platform.system(), platform.machine()) == ("Linux", "x86_64")
pytestmark = pytest.mark.skipif(not HAS_BLAS, reason="torch has another BLAS than MKL")

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
    "dcnv2_of_higher_rank": lambda: DCNv2(9, 4, 3, rank=16, hidden=(24, 17)),
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


def rounded(values: Tensor) -> Tensor:
    return values.bfloat16().to(values.dtype)


class RoundedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(rounded(left), rounded(right))
        return rounded(left) @ rounded(right).T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        left, right = ctx.saved_tensors
        return rounded(gradient) @ right, rounded(gradient).T @ left


class RoundedProducts(TorchFunctionMode):
    """Layers of at least 16 rows, inputs and outputs multiply in bfloat16, exactly."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if function is torch.nn.functional.linear and min(len(arguments[0]), *arguments[1].shape) >= 16:
            product = RoundedProduct.apply(*arguments[:2])
            return product if arguments[2] is None else product + arguments[2]
        return function(*arguments, **(keywords or {}))


def made(name: str, rounds: bool = False) -> tuple[NetworkPasses, MLP | DCN | DCNv2]:
    torch.manual_seed(0)
    network = NETWORKS[name]()
    for parameter in network.parameters():
        parameter.data += torch.randn_like(parameter) / 10
    return NetworkPasses(network, list(network.parameters()), rounds), network


def test_each_supported_torch_with_mkl_gives_its_functions() -> None:
    assert torch_blas() is not None


class Tapped(MLP):
    """Takes a layer twice, after the layer and after its ReLU."""

    def forward(self, embeddings: Tensor, numbers: Tensor | None = None) -> Tensor:
        first = self.hidden[0](self.flatten(embeddings, numbers))
        last = self.hidden[1:](first)
        return self.logits(torch.cat([first, last], dim=1))


class Gated(MLP):
    """Without a class of its own among the networks: a gate by a product, and values that are used several times."""

    def __init__(self) -> None:
        super().__init__(5, 4, 2, hidden=(6,))
        self.gate, self.output = nn.Linear(22, 6), nn.Linear(12, 2)

    def forward(self, embeddings: Tensor, numbers: Tensor | None = None) -> Tensor:
        x = self.flatten(embeddings, numbers)
        deep = self.hidden(x)
        gated = self.gate(x) * deep + deep
        return self.logits(torch.cat([gated, deep], dim=1))


class Unused(Gated):
    """Computes something that it does not use."""

    def forward(self, embeddings: Tensor, numbers: Tensor | None = None) -> Tensor:
        x = self.flatten(embeddings, numbers)
        self.gate(x)
        return self.logits(torch.cat([self.hidden(x), self.hidden(x)], dim=1))


NETWORKS["gated"] = Gated


@over("kind", [FM, DeepFM, XDeepFM, OPNN, Tapped])
def test_networks_that_call_other_functions_are_not_recorded(kind: type[nn.Module]) -> None:
    network = kind(5, 4, 2)
    with pytest.raises(NotRecordableError):
        NetworkPasses(network, list(network.parameters()))


def test_networks_that_use_parameters_in_other_ways_are_not_recorded() -> None:
    with pytest.raises(NotRecordableError, match="used twice"):
        NetworkPasses(network := Unused(), list(network.parameters()))
    network = MLP(5, 4, 2)
    nn.utils.parametrizations.weight_norm(network.output)
    with pytest.raises(NotRecordableError, match="not the network's"):
        NetworkPasses(network, list(network.parameters()))
    network = MLP(5, 4, 2)
    network.unused = nn.Linear(2, 2)
    with pytest.raises(NotRecordableError, match="not used"):
        NetworkPasses(network, list(network.parameters()))


def test_gradients_that_somebody_keeps_are_not_overwritten() -> None:
    kernels = made("mlp")[0]
    draw = torch.randn(4, 5, 4), torch.randn(4, 2)
    kernels.forward(*draw)
    kept, _ = kernels.backward(torch.ones(4, 1))
    before = [one.clone() for one in kept]
    kernels.forward(*draw)
    kernels.backward(torch.zeros(4, 1))
    assert all(map(torch.equal, kept, before))


@over("name", NETWORKS)
def test_logits_and_gradients_are_those_of_autograd(name: str) -> None:
    kernels, network = made(name)
    for rows in (1, 37, 4096, 37):  # 4,096 are 32 parts, two a piece
        for found, expected in zip(*passes(kernels, network, rows), strict=True):
            torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


@over("name", ["mlp", "dcnv2", "dcnv2_stacked", "dcnv2_of_higher_rank"])
def test_rounded_passes_are_those_of_a_network_that_rounds_what_it_multiplies(name: str) -> None:
    kernels, network = made(name, rounds=True)
    for rows in (37, 512, 37):
        with RoundedProducts():
            cases = zip(*passes(kernels, network, rows), strict=True)
        for found, expected in cases:  # few numbers are rounded the other way, because they are summed in float32
            assert (found - expected).norm() < 1e-3 * expected.norm()


def step(kernels: NetworkPasses, network: MLP | DCN | DCNv2, rows: int, rounds: bool = False) -> list[Tensor]:
    """Logits and gradients of a loss by both passes in one, checked against one pass after the other."""
    draw = torch.Generator().manual_seed(rows)
    embeddings = torch.randn(rows, network.fields, network.dim, generator=draw)
    numbers = torch.randn(rows, network.numbers, generator=draw) if network.numbers else None
    labels, factors = torch.rand(rows, generator=draw), torch.rand(rows, generator=draw) / rows
    residuals = residuals_of(Logistic.residual), 0.0
    logits, gradients, of_embeddings = kernels.step(embeddings, numbers, residuals, labels, factors)
    found = [logits, *(one.clone() for one in gradients), of_embeddings]
    other = kernels.forward(embeddings, numbers)
    gradients, of_embeddings = kernels.backward((other.sigmoid().view(-1) - labels) * factors)
    for one, expected in zip(found, [other, *gradients, of_embeddings], strict=True):
        assert (one - expected).norm() <= (1e-3 if rounds else 1e-5) * expected.norm()
    return found


@over("name", [name for name in NETWORKS if "several_outputs" not in name and name not in ("dcnv2_stacked", "gated")])
def test_both_passes_in_one_are_one_after_the_other(name: str) -> None:
    kernels, network = made(name)
    for rows in (1, 37, 4096, 37):
        step(kernels, network, rows)


def test_labels_of_other_rows_are_refused() -> None:
    kernels, _ = made("mlp")
    of = torch.randn(4, 5, 4), torch.randn(4, 2), (residuals_of(Logistic.residual), 0.0)
    with pytest.raises(ValueError, match=r"labels must be \[4\], got \[3\]"):
        kernels.step(*of, torch.zeros(3), torch.ones(4))
    with pytest.raises(ValueError, match=r"factors must be \[4\], got \[4, 1\]"):
        kernels.step(*of, torch.zeros(4), torch.ones(4, 1))


@pytest.mark.usefixtures("two_threads")
@over("name", ["dcn", "dcnv2"])
@over("rounds", [False, *[True] * has_amx()])  # without AMX, MKL rounds sums of bfloat16 otherwise in other threads
def test_bits_are_the_same_on_any_number_of_threads(name: str, rounds: bool) -> None:
    assert parts_of(1024, 1_000)[1] > 2
    kernels, network = made(name, rounds)
    found = []
    for number in (2, 1, 3):
        threads.set_num_threads(number)
        found.append([*passes(kernels, network, 1024)[0], *step(kernels, network, 4096, rounds)])
    for one, *others in zip(*found, strict=True):
        assert all(torch.equal(one, other) for other in others)


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
