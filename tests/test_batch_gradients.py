"""A batch's gradients by the network's own passes: those of autograd, whoever shares the batch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sparsegroup import HashEmbedding
from sparsegroup.data.batches import Batch
from sparsegroup.models import DCN, MLP, NumberEncoder, WithNumbers
from sparsegroup.training import batch_gradients, piecewise_network
from sparsegroup.training.batch_gradients import give_gradients
from sparsegroup.training.network_passes import PartedBatch
from sparsegroup.training.piecewise_network import PiecewiseNetwork
from sparsegroup.training.ranks import SINGLE_PROCESS, GlobalBatch

BATCH, FIELDS, DIM, NUMBERS = 64, 3, 4, 2


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piecewise_network, "WORTH_PARTING", 5)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


def batch(*, weighted: bool) -> Batch:
    draw = torch.Generator().manual_seed(0)
    return Batch(
        torch.randint(0, 40, (BATCH, FIELDS), generator=draw),
        torch.randn(BATCH, NUMBERS, generator=draw),
        torch.rand(BATCH, generator=draw).round(),
        torch.arange(BATCH),
        torch.rand(BATCH, generator=draw) * 3 if weighted else None,
    )


def plain() -> nn.Module:
    return DCN(FIELDS, DIM, NUMBERS)


def with_encoder() -> nn.Module:
    return WithNumbers(NumberEncoder(NUMBERS, DIM, 4), DCN(FIELDS + NUMBERS, DIM, NUMBERS))


def partly_frozen() -> nn.Module:
    network = MLP(FIELDS, DIM, NUMBERS)
    next(network.parameters()).requires_grad_(False)
    return network


def gradients(make: Callable[[], nn.Module], of: Batch, *, before: bool = False) -> list[Tensor | None]:
    """Logits, loss, and the gradients of table and network; twice the latter if there were some before."""
    torch.manual_seed(1)
    network, table = make(), HashEmbedding(DIM, std=0.5, seed=1)
    for _ in range(1 + before):
        logits, loss = give_gradients(
            PiecewiseNetwork(network, False),
            table(of.keys),
            of.numbers,
            GlobalBatch(of, len(of)),
            SINGLE_PROCESS,
            second_order=False,
        )
    assert not logits.requires_grad
    assert not loss.requires_grad
    assert table.weight.grad is not None
    return [logits, loss, table.weight.grad.coalesce().values(), *(one.grad for one in network.parameters())]


@pytest.mark.parametrize("make", [plain, with_encoder, partly_frozen])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_they_are_those_of_autograd_in_every_bit(
    make: Callable[[], nn.Module], weighted: bool, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = gradients(make, batch(weighted=weighted), before=before)
    monkeypatch.setattr(PartedBatch, "is_plain", False)
    expected = gradients(make, batch(weighted=weighted), before=before)
    for one, other in zip(own, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert torch.equal(one, other)


def test_a_hook_is_called_by_autograd() -> None:
    seen: list[int] = []

    def hooked() -> nn.Module:
        network = plain()
        for parameter in network.parameters():
            parameter.register_post_accumulate_grad_hook(lambda one: seen.append(one.numel()))
        return network

    gradients(hooked, batch(weighted=False))
    assert len(seen) == len(list(plain().parameters()))


def test_gradients_are_tensors_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd gives the terms of a sum one and the same, and whoever clips the one would clip the other, too."""

    class Twins(MLP):
        def __init__(self) -> None:
            super().__init__(FIELDS, DIM, NUMBERS)
            self.one, self.other = (nn.Parameter(torch.zeros(1)) for _ in range(2))

        def forward(self, embeddings: Tensor, numbers: Tensor | None = None) -> Tensor:
            return super().forward(embeddings, numbers) + (self.one + self.other)

    monkeypatch.setattr(piecewise_network, "is_samplewise", lambda network: True)
    network = Twins()
    pieces = PiecewiseNetwork(network, False)
    of = batch(weighted=False)
    vectors = torch.randn(BATCH, FIELDS, DIM)
    step = GlobalBatch(of, len(of))
    logits, _ = give_gradients(pieces, vectors, of.numbers, step, SINGLE_PROCESS, second_order=False)
    expected = (logits.sigmoid() - of.labels).mean()
    assert network.one.grad is not None
    assert network.other.grad is not None
    torch.testing.assert_close(network.one.grad, expected.view(1))
    torch.testing.assert_close(network.other.grad, expected.view(1))
    assert network.one.grad.data_ptr() != network.other.grad.data_ptr()


def test_a_loss_that_is_not_finite_gives_no_gradients() -> None:
    network = plain()
    assert isinstance(network, DCN)
    nn.init.constant_(network.output.bias, torch.nan)
    of = batch(weighted=False)
    step = GlobalBatch(of, len(of))
    with pytest.raises(FloatingPointError, match="the loss of the next batch is nan"):
        batch_gradients.give_gradients(
            PiecewiseNetwork(network, False),
            torch.randn(BATCH, FIELDS, DIM),
            of.numbers,
            step,
            SINGLE_PROCESS,
            second_order=False,
        )
    assert all(parameter.grad is None for parameter in network.parameters())
