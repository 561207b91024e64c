"""LR, FM, DeepFM, DCNv2 and xDeepFM against their formulas, written out in loops, in float64."""

from itertools import combinations

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from plain_settings import plain
from sparsegroup.data.schema import LogSchema
from sparsegroup.models import DCN, FM, LR, DCNv2, DeepFM, XDeepFM
from sparsegroup.models.dcnv2 import MatrixCross
from sparsegroup.models.fm import pair_products
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.training import Config

NETWORKS: list[tuple[type[nn.Module], dict[str, object]]] = [
    (LR, {}),
    (FM, {}),
    (DeepFM, {"hidden": (4, 3)}),
    (DeepFM, {"hidden": ()}),
    (DCNv2, {"hidden": (4,), "cross_layers": 3}),
    (DCNv2, {"hidden": (4,), "rank": 2, "stacked": True}),
    (DCNv2, {"hidden": (), "cross_layers": 0}),
    (XDeepFM, {"hidden": (4,), "cin": (3, 2)}),
    (XDeepFM, {"hidden": (), "cin": ()}),
]
ALL = pytest.mark.parametrize(("kind", "options"), NETWORKS, ids=lambda one: getattr(one, "__name__", str(one)))


def made(kind: type[nn.Module], options: dict[str, object], numbers: int, fields: int = 3) -> nn.Module:
    """A network none of whose parameters is zero."""
    torch.manual_seed(0)
    network: nn.Module = kind(fields, 1 if kind is LR else 4, numbers, **options).double()
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
    if isinstance(network, LR):
        return linear(network.bias, network.weight, row, x)
    if isinstance(network, DCNv2):
        first = last = torch.cat([row.flatten(), x])
        for layer, up in enumerate(network.cross.up):
            matrix = up.weight @ network.cross.down[layer].weight if len(network.cross.down) else up.weight
            last = first * (matrix @ last + up.bias) + last
        both = network.deep(last) if network.stacked else torch.cat([last, network.deep(first)])
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
def test_the_formula(kind: type[nn.Module], options: dict[str, object], numbers: int) -> None:
    network = made(kind, options, numbers)
    embeddings, x = inputs(network)
    expected = [
        formula(network, row, torch.zeros(0, dtype=torch.float64) if x is None else x[place])
        for place, row in enumerate(embeddings)
    ]
    torch.testing.assert_close(network(embeddings, x), torch.stack(expected))


@ALL
def test_first_and_second_derivatives(kind: type[nn.Module], options: dict[str, object]) -> None:
    network = made(kind, options, 2)
    given = [one.requires_grad_() for one in inputs(network, 2) if one is not None]
    assert gradcheck(network, given)
    assert gradgradcheck(network, given)
    network(*given).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in network.parameters())


@ALL
def test_without_rows(kind: type[nn.Module], options: dict[str, object]) -> None:
    network = made(kind, options, 2)
    assert network(*inputs(network, 0)).shape == (0,)
    with pytest.raises(ValueError, match=r"numbers must be \[5, 2\], got None"):
        network(inputs(network)[0], None)


def test_pairs_of_one_vector_are_none() -> None:
    assert pair_products(torch.randn(4, 1, 3)).tolist() == pytest.approx([0.0] * 4, abs=1e-6)
    assert pair_products(torch.randn(4, 0, 3)).tolist() == [0.0] * 4


def test_a_cross_layer_whose_rank_is_full_gives_what_its_matrix_does() -> None:
    whole, factored = MatrixCross(6, 2).double(), MatrixCross(6, 2, rank=6).double()
    for down, up, matrix in zip(factored.down, factored.up, whole.up, strict=True):
        nn.init.normal_(matrix.bias)
        up.bias.data.copy_(matrix.bias)
        left, sizes, right = torch.linalg.svd(matrix.weight.data)
        up.weight.data.copy_(left * sizes)
        down.weight.data.copy_(right)
    x = torch.randn(5, 6, dtype=torch.float64)
    torch.testing.assert_close(factored(x), whole(x))


def test_a_rank_takes_fewer_parameters_and_1_with_equal_rows_is_dcn() -> None:
    """With W = 1 wᵀ a matrix cross layer is one of DCN."""
    plain, factored = DCN(2, 3, hidden=(4,)).double(), DCNv2(2, 3, hidden=(4,), rank=1).double()
    assert sum(one.numel() for one in factored.cross.parameters()) == 2 * (6 + 6 + 6)
    for down, up, weight in zip(factored.cross.down, factored.cross.up, plain.cross.weight, strict=True):
        down.weight.data.copy_(weight)
        nn.init.ones_(up.weight)
    factored.deep.load_state_dict(plain.deep.state_dict())
    factored.output.load_state_dict(plain.output.state_dict())
    embeddings = torch.randn(5, 2, 3, dtype=torch.float64)
    torch.testing.assert_close(factored(embeddings), plain(embeddings))


def test_sizes_that_cannot_be() -> None:
    for make, message in (
        (lambda: LR(2, 3), "dim must be 1, got 3"),
        (lambda: FM(2, 1), "dim must be >= 2, got 1"),
        (lambda: DCNv2(2, 3, rank=0), "rank must be >= 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


class TestSettings:
    def test_options_reach_the_network(self) -> None:
        config = Config.of(model="dcnv2", network_options={"rank": 3, "stacked": True}, hidden=(5,))
        network = config.model.network(LogSchema(("a", "b"), (), ()))
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
        ],
    )
    def test_what_a_network_does_not_have_is_refused(self, settings: dict[str, object], message: str) -> None:
        with pytest.raises(SettingsError, match=message):
            Config.of(**settings)

    def test_a_size_that_it_cannot_have_is_a_settings_error(self) -> None:
        with pytest.raises(SettingsError, match="model: LR has one weight per feature: dim must be 1, got 4"):
            plain(model="lr", dim=4).build_for(LogSchema(("a", "b"), (), ()))
