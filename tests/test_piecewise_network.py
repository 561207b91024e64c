"""A network over a batch in pieces: what it gives, and when a batch stays whole."""

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from sparsegroup.kernels.cpu.threads import in_turns, set_num_threads
from sparsegroup.models import DCN, MLP, OPNN, DCNv2, DeepFM, NumberEncoder, WithNumbers, XDeepFM
from sparsegroup.training import piecewise_network
from sparsegroup.training.piecewise_network import PiecewiseNetwork, is_samplewise, pieces_of

BATCH, FIELDS, DIM, NUMBERS = 64, 3, 4, 2


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piecewise_network, "WORTH_PARTING", 50)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


@pytest.fixture(params=[1, 3])
def helped(request: pytest.FixtureRequest) -> Iterator[None]:
    set_num_threads(request.param)
    yield
    set_num_threads(None)


def batch(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return (
        torch.randn(BATCH, FIELDS, DIM, generator=draw),
        torch.randn(BATCH, NUMBERS, generator=draw),
        torch.rand(BATCH, generator=draw).round(),
    )


def trained_on(network: nn.Module, *, whole: bool) -> list[Tensor]:
    """Logits, and the gradients of embeddings and parameters."""
    embeddings, numbers, labels = batch()
    vectors = embeddings.requires_grad_()
    logits = PiecewiseNetwork(network, False, whole=whole)(vectors, numbers)
    nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
    assert vectors.grad is not None
    return [logits.detach(), vectors.grad, *(p.grad for p in network.parameters() if p.grad is not None)]


def made(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return kind(FIELDS, DIM, NUMBERS)


@pytest.mark.usefixtures("helped")
@pytest.mark.parametrize("kind", [MLP, OPNN, DCN, DCNv2, DeepFM, XDeepFM])
def test_pieces_give_what_the_whole_gives(kind: type[nn.Module]) -> None:
    assert pieces_of(BATCH, sum(p.numel() for p in made(kind).parameters())) > 1
    whole, pieces = (trained_on(made(kind), whole=whole) for whole in (True, False))
    for one, other in zip(whole, pieces, strict=True):
        torch.testing.assert_close(other, one, atol=1e-6, rtol=1e-4)


def test_the_bits_do_not_depend_on_threads() -> None:
    found = []
    for number in (1, 2, 4):
        set_num_threads(number)
        found.append(trained_on(made(DCN), whole=False))
    set_num_threads(None)
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


def test_a_frozen_parameter_has_no_gradient() -> None:
    network = made(DCN)
    assert isinstance(network, DCN)
    network.output.requires_grad_(False)
    trained_on(network, whole=False)
    assert network.output.weight.grad is None
    assert network.cross.weight.grad is not None


def test_an_encoder_sees_the_batch_as_one() -> None:
    """Its moments are those of the batch, merged once."""
    networks = []
    for whole in (True, False):
        torch.manual_seed(1)
        network = WithNumbers(NumberEncoder(NUMBERS, DIM, 4), DCN(FIELDS + NUMBERS, DIM, NUMBERS))
        for _ in range(2):
            found = trained_on(network, whole=whole)
        networks.append((network, found))
    (whole_one, whole_found), (one, found) = networks
    assert torch.equal(whole_one.encoder.count, one.encoder.count)
    assert torch.equal(whole_one.encoder.mean, one.encoder.mean)
    for own, other in zip(whole_found, found, strict=True):
        torch.testing.assert_close(other, own, atol=1e-6, rtol=1e-4)


class Watched(MLP):
    """One that notes how many samples it is given; of a module that is not the library's."""

    seen: list[int]

    def forward(self, embeddings: Tensor, numbers: Tensor | None = None) -> Tensor:
        self.seen.append(len(embeddings))
        return super().forward(embeddings, numbers)


def sizes(network: nn.Module) -> list[int]:
    seen: list[int] = []
    for module in network.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
            break
    trained_on(network, whole=False)
    return seen


def test_batches_of_networks_that_may_see_several_samples_stay_whole() -> None:
    unknown = Watched(FIELDS, DIM, NUMBERS)
    unknown.seen = []
    trained_on(unknown, whole=False)
    assert unknown.seen == [BATCH]
    assert not is_samplewise(unknown)
    assert not is_samplewise(MLP(FIELDS, DIM, NUMBERS, dropout=0.5))
    assert not is_samplewise(nn.BatchNorm1d(3))
    assert not is_samplewise(NumberEncoder(2, 4))
    assert sizes(made(MLP)) == [BATCH]  # a hook may count what it is shown


def test_torch_with_several_threads_gets_batches_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trained_on(made(DCN), whole=True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert all(torch.equal(*both) for both in zip(whole, trained_on(made(DCN), whole=False), strict=True))


def test_pieces_are_of_one_size_and_worth_it() -> None:
    samples = (38, 40, 320, 2_560, 20_480, 321, 1_000_000)
    assert [pieces_of(some, 10) for some in samples] == [1, 2, 4, 8, 16, 1, 16]


@pytest.mark.usefixtures("helped")
def test_jobs_are_done_once_each_and_the_first_failure_is_told() -> None:
    done, lock = [], threading.Lock()

    def job(number: int) -> None:
        with lock:
            done.append(number)
        if number in (3, 5):
            raise ValueError(f"job {number}")

    with pytest.raises(ValueError, match="job 3"):
        in_turns(job, 7)
    assert sorted(done) == list(range(7))
