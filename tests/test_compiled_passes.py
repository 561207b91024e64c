"""A network's compiled passes: they give what the network gives, and what cannot be compiled is left as it is."""

import pytest
import torch
from torch import Tensor, nn

from sparsegroup.models import DCN, MLP
from sparsegroup.training import piecewise_network
from sparsegroup.training.compiled_network import has_compiler
from sparsegroup.training.compiled_passes import CompiledPasses, compiled_passes
from sparsegroup.training.piecewise_network import PiecewiseNetwork

pytestmark = pytest.mark.skipif(not has_compiler(), reason="there is no C++ compiler")

BATCH, FIELDS, DIM, NUMBERS = 16, 3, 4, 2


def batch(seed: int, samples: int = BATCH) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return (
        torch.randn(samples, FIELDS, DIM, generator=draw),
        torch.randn(samples, NUMBERS, generator=draw),
        torch.rand(samples, generator=draw).round(),
    )


def trained_on(network: PiecewiseNetwork, module: nn.Module, seed: int, samples: int = BATCH) -> list[Tensor | None]:
    """Logits, and the gradients of embeddings and parameters."""
    embeddings, numbers, labels = batch(seed, samples)
    module.zero_grad()
    logits = network(embeddings.requires_grad_(), numbers)
    nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
    return [logits.detach(), embeddings.grad, *(parameter.grad for parameter in module.parameters())]


@pytest.mark.parametrize("pieces", [1, 2])
def test_they_give_what_the_network_gives(pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(piecewise_network, "pieces_of", lambda *_: pieces)
    made: list[CompiledPasses | None] = []
    monkeypatch.setattr(piecewise_network, "compiled_passes", lambda *of: made.append(compiled_passes(*of)) or made[-1])
    torch.manual_seed(1)
    module = DCN(FIELDS, DIM, NUMBERS, hidden=(8,))
    eager, compiled = PiecewiseNetwork(module, False), PiecewiseNetwork(module, True)

    def same(seed: int, samples: int = BATCH) -> None:
        found = [trained_on(network, module, seed, samples) for network in (eager, compiled)]
        for one, other in zip(*found, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(other, one, atol=1e-6, rtol=1e-4)

    same(0)
    with torch.no_grad():
        module.output.bias.add_(1.0)  # as a step does
    same(1)
    same(2, 2 * BATCH)  # another size is not compiled
    module.output.requires_grad_(False)
    same(3)  # nor are other gradients
    module.output.requires_grad_(True)
    same(4)
    assert len(made) == 1
    assert made[0] is not None


def test_a_network_that_draws_stays_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    embeddings, numbers, _ = batch(0)
    assert compiled_passes(MLP(FIELDS, DIM, NUMBERS, dropout=0.5), embeddings, numbers) is None
    assert "the network is not compiled" in caplog.text


def test_gradients_in_another_order_are_found_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another torch may give them."""
    own = CompiledPasses.backward
    monkeypatch.setattr(CompiledPasses, "backward", lambda *of: own(*of)[::-1])
    embeddings, numbers, _ = batch(0)
    assert compiled_passes(MLP(FIELDS, DIM, NUMBERS, hidden=(4, 4)), embeddings, numbers) is None
    assert "are not as expected" in caplog.text
