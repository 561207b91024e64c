"""The network's part of a step: gradients in micro-batches and compiled, and when a batch stays whole."""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsegroup import HashEmbedding
from sparsegroup.data.batches import Batch
from sparsegroup.kernels.cpu.network import residuals_of, torch_blas
from sparsegroup.kernels.cpu.threads import set_num_threads
from sparsegroup.models import DCN, MLP, OPNN, DCNv2, DeepFM, NumberEncoder, WithNumbers, XDeepFM
from sparsegroup.training import network_step
from sparsegroup.training.network_step import NetworkStep, has_compiler, is_samplewise, micro_batches
from sparsegroup.training.ranks import GlobalBatch

BATCH, FIELDS, DIM, NUMBERS = 64, 3, 4, 2
INPUTS = FIELDS * DIM + NUMBERS
compiler = pytest.mark.skipif(not has_compiler(), reason="there is no C++ compiler")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_step, "MIN_WORK_TO_SPLIT", 5)


@pytest.fixture
def threads() -> Iterator[Callable[[int | None], None]]:
    yield set_num_threads
    set_num_threads(None)


def batch(seed: int = 0, samples: int = BATCH, *, weighted: bool = False) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    return Batch(
        torch.randint(0, 40, (samples, FIELDS), generator=draw),
        torch.randn(samples, NUMBERS, generator=draw),
        torch.rand(samples, generator=draw).round(),
        torch.arange(samples),
        torch.rand(samples, generator=draw) * 3 if weighted else None,
    )


def trained_on(step: NetworkStep, network: nn.Module, of: Batch, *, times: int = 1) -> list[Tensor | None]:
    """Logits, loss, and the gradients of the table's rows and of the parameters, of some times the same step."""
    network.zero_grad()
    table = HashEmbedding(DIM, std=0.5, seed=1)
    for _ in range(times):
        logits, loss = step.backward(table(of.keys), of.numbers, GlobalBatch(of, len(of)))
    assert not logits.requires_grad
    assert not loss.requires_grad
    return [logits, loss, table.weight.grad.coalesce().values(), *(one.grad for one in network.parameters())]


def same(one: list[Tensor | None], other: list[Tensor | None], **tolerance: float) -> bool:
    """Whether the same gradients are there, with the same bits or within a tolerance."""
    return all(
        a is b is None
        or (a is not None and b is not None and torch.allclose(a, b, **{"rtol": 0, "atol": 0, **tolerance}))
        for a, b in zip(one, other, strict=True)
    )


def made(kind: Callable[..., nn.Module] = DCN, seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return kind(FIELDS, DIM, NUMBERS)


def with_encoder(*_: int) -> nn.Module:
    return WithNumbers(NumberEncoder(NUMBERS, DIM, 4), DCN(FIELDS + NUMBERS, DIM, NUMBERS))


def encoded_opnn(*_: int) -> nn.Module:
    return WithNumbers(NumberEncoder(NUMBERS, DIM, 4), OPNN(FIELDS + NUMBERS, DIM, NUMBERS, dropout=0.0))


def partly_frozen(*sizes: int) -> nn.Module:
    network = MLP(*sizes)
    next(network.parameters()).requires_grad_(False)
    return network


def step_of(network: nn.Module, *, whole: bool) -> NetworkStep:
    """One that leaves batches whole, because of hooks, or does not."""
    for module in network.modules() if whole else ():
        module.register_forward_pre_hook(lambda *_: None)
    return NetworkStep(network)


KINDS = [MLP, OPNN, DCN, DCNv2, DeepFM, XDeepFM, with_encoder, partly_frozen]


@pytest.mark.parametrize("kind", KINDS)
def test_parts_give_what_the_whole_gives_and_bits_do_not_depend_on_threads(
    kind: Callable[..., nn.Module], threads: Callable[[int], None]
) -> None:
    assert micro_batches(BATCH, sum(one.numel() for one in made(kind).parameters())) > 1
    network = made(kind)
    of = batch(weighted=True)
    whole, encoder = trained_on(step_of(network, whole=True), network, of, times=2), _encoder_of(network)
    found = []
    for number in (1, 3):
        threads(number)
        network = made(kind)
        found.append(trained_on(step_of(network, whole=False), network, of, times=2))
    assert same(found[0], whole, atol=1e-6, rtol=1e-4)
    assert same(*found)
    assert all(map(torch.equal, encoder, _encoder_of(network)))  # it sees the batch as one


def _encoder_of(network: nn.Module) -> list[Tensor]:
    """The moments of a network's encoder, if it has one."""
    return [network.encoder.count, network.encoder.mean] if isinstance(network, WithNumbers) else []


@pytest.mark.parametrize("kind", [XDeepFM, encoded_opnn, partly_frozen])
def test_one_part_has_the_bits_of_autograd(kind: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there are gradients already."""
    whole, parts = made(kind), made(kind)
    expected = trained_on(step_of(whole, whole=True), whole, batch(weighted=True), times=2)
    monkeypatch.setattr(network_step, "micro_batches", lambda *_: 1)
    monkeypatch.setattr(network_step, "has_compiler", lambda: True)
    monkeypatch.setattr(NetworkStep, "_passes", lambda step, arguments: step._eager_passes)  # as if that were compiled
    found = trained_on(NetworkStep(parts, compile=True), parts, batch(weighted=True), times=2)
    assert same(found, expected)


CHANGES: dict[str, Callable[[MLP], object]] = {
    "another layer": lambda network: network.hidden.__setitem__(1, nn.Identity()),
    "one without bias": lambda network: network.hidden.__setitem__(
        0, nn.Linear(FIELDS * DIM + NUMBERS, 64, bias=False)
    ),
    "another output": lambda network: setattr(network, "output", nn.Linear(16, 1)),
    "other weights": lambda network: network.load_state_dict(made(MLP, seed=2).state_dict(), assign=True),
    "a normalized output": lambda network: nn.utils.parametrizations.weight_norm(network.output),
    "another forward": lambda network: setattr(network, "forward", lambda *of: 2 * MLP.forward(network, *of)),
    "one layer more": lambda network: setattr(network, "extra", nn.Linear(2, 2)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_network_that_is_changed_is_trained_as_it_is(change: str) -> None:
    of, vectors = batch(), torch.randn(BATCH, FIELDS, DIM)
    for before in (False, True):
        network = made(MLP)
        step = NetworkStep(network)
        step.backward(vectors, of.numbers, GlobalBatch(of, BATCH))
        CHANGES[change](network)
        step = NetworkStep(network) if before else step
        network.zero_grad()
        own = vectors.clone().requires_grad_()
        logits, _ = step.backward(own, of.numbers, GlobalBatch(of, BATCH))
        exact = vectors.clone().requires_grad_()
        expected = network(exact, of.numbers)
        nn.functional.binary_cross_entropy_with_logits(expected, of.labels).backward()
        torch.testing.assert_close(logits, expected.detach())
        torch.testing.assert_close(own.grad, exact.grad)


def test_a_weight_of_another_size_is_an_error() -> None:
    network, of, vectors = made(MLP), batch(), torch.randn(BATCH, FIELDS, DIM)
    step = NetworkStep(network)
    step.backward(vectors, of.numbers, GlobalBatch(of, BATCH))
    network.output.weight.data, network.output.bias.data = torch.randn(2, 16), torch.randn(2)
    with pytest.raises(RuntimeError, match="size"):
        step.backward(vectors, of.numbers, GlobalBatch(of, BATCH))


def test_a_copy_trains_alone() -> None:
    network, of, vectors = made(), batch(), torch.randn(BATCH, FIELDS, DIM, requires_grad=True)
    step = NetworkStep(network)
    step.backward(vectors, of.numbers, GlobalBatch(of, BATCH))
    kept = [one.grad for one in network.parameters()]
    before = [one.clone() for one in kept if one is not None]
    network.zero_grad()
    other = pickle.loads(pickle.dumps(step))
    del step
    other.backward(vectors, of.numbers, GlobalBatch(of, BATCH))
    own = [one.grad for one in other._network.parameters()]
    assert same(own, before)
    assert same(kept, before)  # a gradient that somebody keeps is not overwritten


def test_what_a_default_says_is_of_no_matter_to_kernels() -> None:
    network, of, vectors = made(), batch(weighted=True), torch.randn(BATCH, FIELDS, DIM)
    expected, _ = NetworkStep(network).backward(vectors, of.numbers, GlobalBatch(of, BATCH))
    gradients = [one.grad for one in network.parameters()]
    network.zero_grad()
    of = replace(of, labels=of.labels.double(), weights=of.weights.double() if of.weights is not None else None)
    torch.set_default_dtype(torch.float64)
    try:
        found, _ = NetworkStep(network).backward(vectors, of.numbers, GlobalBatch(of, BATCH))
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, expected)
    assert same([one.grad for one in network.parameters()], gradients, atol=1e-7)


@pytest.mark.skipif(torch_blas() is None, reason="torch has another BLAS than MKL")
def test_products_are_rounded_as_torch_or_the_caller_says_where_the_cpu_has_amx(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def trained(**options: Any) -> list[Tensor | None]:
        network = made(MLP)
        return trained_on(NetworkStep(network, **options), network, batch())

    monkeypatch.setattr(network_step, "has_amx", lambda: True)
    exact, rounded = trained(), trained(matmul_precision="medium")
    assert not same(rounded, exact)
    assert same(rounded, exact, atol=3e-3)
    torch.set_float32_matmul_precision("medium")
    try:
        assert same(trained(), rounded)
        assert same(trained(matmul_precision="highest"), exact)
    finally:
        torch.set_float32_matmul_precision("highest")
    monkeypatch.setattr(network_step, "has_amx", lambda: False)
    assert same(trained(matmul_precision="medium"), exact)


def test_an_objective_that_cannot_be_compiled_is_learnt_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert residuals_of(lambda score, label, shape: torch.sigmoid(score) - label) is None  # not by `xp`
    expected = trained_on(NetworkStep(network := made(MLP)), network, batch(weighted=True))
    monkeypatch.setattr(network_step, "residuals_of", lambda residual: None)
    found = trained_on(NetworkStep(network := made(MLP)), network, batch(weighted=True))
    assert same(found, expected, atol=1e-6, rtol=1e-4)


class Unknown(MLP):
    """Of a module that is not the library's, which may see several samples."""


def test_batches_stay_whole_where_a_part_would_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_samplewise(made(MLP))
    for network in (made(Unknown), MLP(FIELDS, DIM, NUMBERS, dropout=0.5), nn.BatchNorm1d(3), NumberEncoder(2, 4)):
        assert not is_samplewise(network)
    seen: list[int] = []
    network = made(MLP)
    layer = next(module for module in network.modules() if isinstance(module, nn.Linear))
    layer.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    trained_on(NetworkStep(network), network, batch())
    assert seen == [BATCH]
    seen.clear()
    network = made()
    for parameter in network.parameters():  # called by autograd, once
        parameter.register_post_accumulate_grad_hook(lambda one: seen.append(one.numel()))
    trained_on(NetworkStep(network), network, batch())
    assert len(seen) == len(list(network.parameters()))
    network = made()
    parts = trained_on(NetworkStep(network), network, batch())
    whole = trained_on(NetworkStep(network, second_order=True), network, batch())
    assert not same(parts, whole)
    network = made(XDeepFM)
    parts = trained_on(NetworkStep(network), network, batch())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # its own, which torch would rather have a whole batch for
    assert not same(trained_on(NetworkStep(network), network, batch()), parts)


@compiler
def test_compiled_passes_give_what_the_network_gives(
    monkeypatch: pytest.MonkeyPatch, threads: Callable[[int], None]
) -> None:
    monkeypatch.setattr(network_step, "micro_batches", lambda *_: 2)
    compiled_functions: list[str] = []
    compile: Callable[..., Any] = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda one, **options: compiled_functions.append(type(one)) or compile(one, **options)
    )
    torch.manual_seed(1)
    network = OPNN(FIELDS, DIM, NUMBERS, hidden=(8,), dropout=0.0)
    eager, compiled = NetworkStep(network), NetworkStep(network, compile=True)

    def check(of: Batch) -> None:
        assert same(trained_on(eager, network, of), trained_on(compiled, network, of), atol=1e-6, rtol=1e-4)

    check(batch(0))
    with torch.no_grad():
        network.output.bias.add_(1.0)  # as a step does
    check(batch(1))
    found = []
    for number in (1, 3):  # on which the bits do not depend
        threads(number)
        found.append(trained_on(compiled, network, batch(1)))
    assert same(*found)
    check(batch(2, samples=2 * BATCH))  # another size is not compiled
    check(batch(3, weighted=True))  # nor are weights
    network.output.requires_grad_(False)
    check(batch(4))  # nor other gradients
    network.output.requires_grad_(True)
    check(batch(5))
    assert compiled_functions == [FunctionType]


@compiler
def test_networks_of_one_class_are_compiled_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though torch stores what it has compiled by code object, and only so many for each."""
    monkeypatch.setattr(network_step, "micro_batches", lambda *_: 1)
    of = batch()
    for hidden in ((4,), (4, 4)):
        torch.manual_seed(1)
        network = OPNN(FIELDS, DIM, NUMBERS, hidden=hidden, dropout=0.0)
        expected = trained_on(NetworkStep(network), network, of)
        with torch._dynamo.config.patch(recompile_limit=1):
            step = NetworkStep(network, compile=True)
            assert same(trained_on(step, network, of), expected, atol=1e-6, rtol=1e-4)
        assert step._compiles
