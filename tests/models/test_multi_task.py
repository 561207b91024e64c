"""Networks of several outputs: MMoE and PLE against their formulas, heads side by side, and their gradients."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from sparsegroup.models import DCN, FM, LR, MLP, OPNN, PLE, DCNv2, MMoE, WithHeads
from sparsegroup.objectives import Esmm, Tasks
from sparsegroup.training import network_step
from sparsegroup.training.network_step import NetworkStep
from sparsegroup.training.predictions import as_batch
from sparsegroup.training.ranks import GlobalBatch

EMBEDDINGS, NUMBERS = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(0)), torch.ones(6, 2)


def shares(gate: nn.Linear, x: Tensor) -> Tensor:
    exponents = (x @ gate.weight.t()).exp()
    return exponents / exponents.sum(1, keepdim=True)


def test_a_task_of_mmoe_mixes_experts_by_its_gate() -> None:
    torch.manual_seed(1)
    network = MMoE(3, 4, 2, hidden=(5,), experts=3, tower=(4,), outputs=2)
    nn.init.normal_(network.bias)
    x = torch.cat([EMBEDDINGS.flatten(1), NUMBERS], dim=1)
    expected = []
    for task in range(2):
        mix = sum(shares(network.gates[task], x)[:, [one]] * network.experts[one](x) for one in range(3))
        expected.append(network.towers[task](mix).squeeze(1) + network.logit_bias[task])
    torch.testing.assert_close(network(EMBEDDINGS, NUMBERS), torch.stack(expected, dim=1))
    assert MMoE(3, 4, 2, outputs=1)(EMBEDDINGS, NUMBERS).shape == (6,)


def test_a_task_of_ple_mixes_its_own_and_the_shared_experts_level_by_level() -> None:
    torch.manual_seed(1)
    network = PLE(3, 4, 2, hidden=(5,), experts=2, levels=2, tower=(), outputs=2)
    inputs = [torch.cat([EMBEDDINGS.flatten(1), NUMBERS], dim=1)] * 3
    for level in network.levels:
        made = [[expert(x) for expert in experts] for experts, x in zip(level.experts, inputs, strict=True)]
        seen = [[*made[0], *made[2]], [*made[1], *made[2]], [*made[0], *made[1], *made[2]]]
        inputs = [
            sum(shares(gate, x)[:, [one]] * expert for one, expert in enumerate(own))
            for gate, x, own in zip(level.gates, inputs, seen, strict=False)
        ]
    assert len(inputs) == 2  # of the last level's shared experts nothing is made
    expected = [network.towers[task](inputs[task]).squeeze(1) for task in range(2)]
    torch.testing.assert_close(network(EMBEDDINGS, NUMBERS), torch.stack(expected, dim=1))
    with pytest.raises(ValueError, match="levels must be >= 1, got 0"):
        PLE(3, levels=0)


def test_heads_each_have_a_part_of_the_embeddings_and_one_bias() -> None:
    torch.manual_seed(1)
    heads = [FM(3, 4, 2), FM(3, 4, 2)]
    network, embeddings = WithHeads(heads), torch.randn(6, 3, 8)
    nn.init.normal_(network.logit_bias)
    expected = [head(embeddings[:, :, 4 * one : 4 * one + 4], NUMBERS) for one, head in enumerate(heads)]
    torch.testing.assert_close(network(embeddings, NUMBERS), torch.stack(expected, dim=1) + network.logit_bias)
    assert not any(head.logit_bias.requires_grad for head in heads)
    multinomial = WithHeads([LR(3), LR(3), LR(3)])  # a weight of each feature for each class
    torch.testing.assert_close(multinomial(embeddings[:, :, :3]), embeddings[:, :, :3].sum(1))


@pytest.mark.parametrize("of", [MLP, OPNN, DCN, DCNv2])
def test_one_output_of_several_is_the_network_of_one(of: type[nn.Module]) -> None:
    torch.manual_seed(1)
    three, one = of(3, 4, 2, outputs=3), of(3, 4, 2, outputs=1)
    state = three.state_dict()
    for task in range(3):
        own = {name: value[task : task + 1] if "output" in name else value for name, value in state.items()}
        one.load_state_dict(own)
        torch.testing.assert_close(one.eval()(EMBEDDINGS, NUMBERS), three.eval()(EMBEDDINGS, NUMBERS)[:, task])


@pytest.mark.parametrize(
    ("of", "objective", "compiles"),
    [
        (PLE, Tasks(objectives=("logistic", "squared"), weights=(1, 0.5)), False),
        pytest.param(partial(MMoE, experts=2, tower=()), Esmm(weights=(1, 0.5)), True, marks=pytest.mark.whole),
    ],
)
def test_parts_of_a_batch_have_the_gradients_of_the_whole(
    of: Callable[..., nn.Module], objective: Tasks, compiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = torch.tensor([[0.0, 1.0], [1.0, float("nan")]] * 32)
    batch, gradients = as_batch((torch.zeros(64, 3, dtype=torch.int64), labels)), []
    for work in (network_step.MIN_WORK_TO_SPLIT, 5):
        monkeypatch.setattr(network_step, "MIN_WORK_TO_SPLIT", work)
        torch.manual_seed(1)
        network, vectors = of(3, 4, hidden=(8,), outputs=2), torch.randn(64, 3, 4, requires_grad=True)
        step = NetworkStep(network, objective=objective, compile=compiles and work == 5)
        logits, loss = step.backward(vectors, None, GlobalBatch(batch, 64))
        assert step._compiles == (compiles and work == 5)  # it has not failed
        gradients.append([logits, loss, vectors.grad, *(parameter.grad for parameter in network.parameters())])
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)
