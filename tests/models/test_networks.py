"""Networks of one output against their formulas, written out in loops, in float64; their inputs and settings."""

from itertools import combinations, product

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from plain_settings import plain
from sparsegroup.data.schema import LogSchema
from sparsegroup.models import DCN, FM, LR, MLP, OPNN, DCNv2, DeepFM, XDeepFM
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.training import Config

SCHEMA = LogSchema(("a", "b"), (), ())
NETWORKS: list[tuple[type[nn.Module], dict[str, object]]] = [
    (LR, {}),
    (FM, {}),
    (MLP, {"hidden": (4,)}),
    (OPNN, {"hidden": (4, 3)}),
    (OPNN, {"hidden": (4,), "pairwise": True}),
    (DCN, {"hidden": (4, 3), "cross_layers": 3}),
    (DCN, {"hidden": (4,), "cross_layers": 1}),
    (DCN, {"hidden": (), "cross_layers": 0}),
    (DeepFM, {"hidden": (4, 3)}),
    (DCNv2, {"hidden": (4,), "cross_layers": 3}),
    (DCNv2, {"hidden": (4,), "rank": 2, "stacked": True}),
    (DCNv2, {"hidden": (), "cross_layers": 0}),
    (XDeepFM, {"hidden": (4,), "cin": (3, 2)}),
    (XDeepFM, {"hidden": (), "cin": ()}),
]
ALL = pytest.mark.parametrize(("kind", "options"), NETWORKS, ids=lambda one: getattr(one, "__name__", str(one)))


def made(kind: type[nn.Module], options: dict[str, object], numbers: int) -> nn.Module:
    """A network none of whose parameters is zero."""
    torch.manual_seed(0)
    network: nn.Module = kind(3, 1 if kind is LR else 4, numbers, **options).double().eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    return network


def inputs(network: nn.Module, rows: int = 5) -> tuple[Tensor, Tensor | None]:
    embeddings = torch.randn(rows, network.fields, network.dim, dtype=torch.float64)
    return embeddings, torch.randn(rows, network.numbers, dtype=torch.float64) if network.numbers else None


def linear(bias: Tensor, weight: Tensor | None, row: Tensor, x: Tensor) -> Tensor:
    return bias[0] + sum(row[:, 0]) + sum(a * one for a, one in zip([] if weight is None else weight, x, strict=True))


def formula(network: nn.Module, row: Tensor, x: Tensor) -> Tensor:
    """The logit of one row of embeddings `[fields, dim]` and numbers `[n]`, in loops."""
    flat = torch.cat([row.flatten(), x])
    if isinstance(network, LR):
        return linear(network.bias, network.weight, row, x)
    if isinstance(network, MLP):
        return network.output(network.hidden(flat))[0]
    if isinstance(network, OPNN):  # of the sum of the fields with itself: the sum of all ordered pairs
        pairs = combinations(range(3), 2) if network.pairwise else product(range(3), range(3))
        products = [torch.outer(row[i], row[j]).flatten() for i, j in pairs]
        outer = torch.cat(products) if network.pairwise else sum(products)
        return network.output(network.hidden(torch.cat([flat, outer])))[0]
    if isinstance(network, DCN):
        last = flat
        for weight, bias in zip(network.cross.weight, network.cross.bias, strict=True):
            last = torch.outer(flat, last) @ weight + bias + last  # eq. 3
        return network.output(torch.cat([last, network.deep(flat)]))[0]
    if isinstance(network, DCNv2):
        last = flat
        for layer, up in enumerate(network.cross.up):
            matrix = up.weight @ network.cross.down[layer].weight if len(network.cross.down) else up.weight
            last = flat * (matrix @ last + up.bias) + last
        both = network.deep(last) if network.stacked else torch.cat([last, network.deep(flat)])
        return network.output(both)[0]
    logit = linear(network.wide.bias, network.wide.weight, row, x)
    factors = list(row[:, 1:])
    deep = torch.cat([*factors, x])
    if isinstance(network, XDeepFM):
        layer, sums = factors, []
        for weight in network.cin.weights:
            shaped = weight.view(len(weight), len(layer), len(factors))
            layer = [sum(w[i, j] * a * b for i, a in enumerate(layer) for j, b in enumerate(factors)) for w in shaped]
            sums += [vector.sum() for vector in layer]
        return logit + network.output(torch.cat([torch.stack(sums) if sums else x[:0], network.deep(deep)]))[0]
    if isinstance(network, FM):
        factors += [one * v for one, v in zip(x, [] if network.factors is None else network.factors, strict=True)]
    logit = logit + sum(a @ b for a, b in combinations(factors, 2))
    return logit + network.output(network.deep(deep))[0] if isinstance(network, DeepFM) else logit


@ALL
@pytest.mark.parametrize("numbers", [0, 2])
def test_logits_are_those_of_the_formula_also_of_no_rows(
    kind: type[nn.Module], options: dict[str, object], numbers: int
) -> None:
    network = made(kind, options, numbers)
    embeddings, x = inputs(network)
    expected = [
        formula(network, row, torch.zeros(0, dtype=torch.float64) if x is None else x[place])
        for place, row in enumerate(embeddings)
    ]
    torch.testing.assert_close(network(embeddings, x), torch.stack(expected))
    assert network(*inputs(network, 0)).shape == (0,)


@ALL
def test_first_and_second_derivatives_reach_all_inputs_and_parameters(
    kind: type[nn.Module], options: dict[str, object]
) -> None:
    network = made(kind, options, 2)
    given = [one.requires_grad_() for one in inputs(network, 2) if one is not None]
    assert gradcheck(network, given)
    assert gradgradcheck(network, given)
    network(*given).square().sum().backward()
    for one in (*given, *network.parameters()):
        assert not one.numel() or (one.grad is not None and one.grad.any())


@ALL
def test_inputs_of_another_shape_are_named(kind: type[nn.Module], options: dict[str, object]) -> None:
    network = made(kind, options, 2)
    right, numbers = inputs(network)
    dim = network.dim
    for wrong, message in (
        ((right[:, 1:], numbers), rf"embeddings must be \[batch, 3, {dim}\], got \[5, 2, {dim}\]"),
        ((right.flatten(1), numbers), rf"embeddings must be \[batch, 3, {dim}\], got \[5, {3 * dim}\]"),
        ((right, None), r"numbers must be \[5, 2\], got None"),
        ((right, torch.zeros(5, 1)), r"numbers must be \[5, 2\], got \[5, 1\]"),
    ):
        with pytest.raises(ValueError, match=message):
            network(*wrong)
    with pytest.raises(ValueError, match="numbers must be None, got"):
        made(kind, options, 0)(right, torch.zeros(5, 1))


def test_sizes_are_the_papers_by_default_and_checked() -> None:
    def sizes(layers: nn.Sequential) -> list[int]:
        return [layer.out_features for layer in layers if isinstance(layer, nn.Linear)]

    mlp, opnn, dcn = MLP(fields=22), OPNN(fields=16), DCN(fields=26, numbers=13)
    assert (mlp.dim, sizes(mlp.hidden), mlp.output.out_features) == (16, [64, 32, 16], 1)
    assert (opnn.dim, sizes(opnn.hidden), opnn.output.out_features) == (10, [512, 256, 128], 1)
    assert [layer.p for layer in opnn.hidden if isinstance(layer, nn.Dropout)] == [0.5] * 3
    assert (dcn.dim, sizes(dcn.deep), len(dcn.cross.weight)) == (8, [64, 64], 2)
    with pytest.raises(ValueError, match="dim must be 1, got 3"):
        LR(2, 3)
    with pytest.raises(ValueError, match="dim must be >= 2, got 1"):
        FM(2, 1)
    with pytest.raises(ValueError, match="rank must be >= 1, got 0"):
        DCNv2(2, 3, rank=0)


def test_options_reach_the_network() -> None:
    config = Config.of(model="dcnv2", network_options={"rank": 3, "stacked": True}, hidden=(5,))
    network = config.model.network(SCHEMA)
    assert isinstance(network, DCNv2)
    assert (network.stacked, network.cross.down[0].out_features, network.deep[0].out_features) == (True, 3, 5)
    assert Config.model_validate(config.as_dict()) == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "fm", "hidden": (4,)}, "FM has no hidden layers: leave hidden out"),
        ({"model": "lr", "dropout": 0.5}, "LR has no hidden layers: leave dropout out"),
        ({"model": "dcn", "network_options": {"rank": 2}}, "DCN has no option 'rank'; it has cross_layers"),
        ({"model": "lr", "network_options": {"k": 2}}, "LR has no option 'k'; it has none"),
        ({"model": "dcnv2", "network_options": {"dim": 2}}, "DCNv2 has no option 'dim'"),
        ({"model": "dcnv2", "network_options": {"rank": "x"}}, r"options\.rank: input should be a valid integer"),
        ({"model": "lr", "dim": 4}, "model: LR has one weight per feature: dim must be 1, got 4"),
    ],
)
def test_what_a_network_does_not_have_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        plain(**settings).build_for(SCHEMA)
