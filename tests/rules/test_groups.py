"""How tensors are cut into groups, and `param_groups`, which chooses the layers."""

import math
from collections.abc import Hashable
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from optimizer_cases import assert_identical, parameter, train
from over import over
from sparsegroup import GroupAdam, param_groups
from sparsegroup.groups import grouping, mean_square
from sparsegroup.penalties import MetricNorm

IDS = torch.tensor([2, 0, 2, 7])


def key_of(spec, shape: torch.Size, at: tuple[int, ...]) -> Hashable:
    """The group of the element at index `at`, said in the plainest way."""
    if spec == "all" or not shape:
        return 0
    if isinstance(spec, torch.Tensor):
        return int(spec[at[0]])
    return at[{"rows": 0, "columns": 1, "channels": 0}.get(spec, spec)]


def cut(spec, shape: torch.Size) -> dict[Hashable, torch.Tensor]:
    """A bool mask per group."""
    masks: dict[Hashable, torch.Tensor] = {}
    for at in product(*map(range, shape)):
        masks.setdefault(key_of(spec, shape, at), torch.zeros(shape, dtype=torch.bool))[at] = True
    return masks


SHAPES = [(4,), (4, 3), (4, 3, 2), (4, 1, 2, 3)]
CUTS = [
    *((spec, shape) for shape in SHAPES for spec in ("rows", "channels", "all", 0, -1)),
    *((spec, shape) for shape in SHAPES[1:] for spec in ("columns", 1, -2)),
    *((IDS, shape) for shape in SHAPES[:3]),
    *((spec, ()) for spec in ("rows", "columns", "channels", "all", 0, 3)),
]


@over(("spec", "shape"), CUTS)
def test_a_cut_equals_the_plain_one(spec, shape):
    x = parameter(*shape).detach()
    if shape:
        x[..., ::2] = 0.0
    groups = grouping(spec, x.shape, x.device)
    masks = cut(spec, x.shape)
    norm, size, mean, mask = (torch.zeros_like(x) for _ in range(4))
    for members in masks.values():
        norm[members] = x[members].square().sum().sqrt()
        size[members] = math.sqrt(int(members.sum()))
        mean[members] = x[members].square().mean()
        mask[members] = float((x[members] > 1).any())
    torch.testing.assert_close(groups.norm(x).expand(x.shape), norm)
    torch.testing.assert_close((groups.sqrt_size * torch.ones_like(x)), size)
    torch.testing.assert_close(mean_square(x, groups), mean)
    assert_identical(groups.any(x > 1).expand(x.shape), mask.bool())
    live = sum(bool((x[members] != 0).any()) for members in masks.values())
    assert groups.count_nonzero(x) == (live, len(masks))


def test_ids_may_be_any_numbers_from_0():
    """Hashes, say: the memory does not depend on how large they are."""
    x, y = parameter(4, 3), parameter(4, 3)
    train(GroupAdam([x], groups=torch.tensor([0, 1, 0, 2]), l21=0.3), 2)
    train(GroupAdam([y], groups=torch.tensor([0, 2**62, 0, 2**63 - 1]), l21=0.3), 2)
    assert_identical(x, y)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 2)
        self.bag = nn.EmbeddingBag(4, 2)
        self.head = nn.Linear(2, 5)


def named(groups: list[dict]) -> list[list[str]]:
    return [[name for name, _ in group["params"]] for group in groups]


def test_param_groups_refuses_a_weight_decay_of_sparse_embeddings():
    for sparse in (False, True):
        model = nn.Sequential(nn.Embedding(4, 2, sparse=sparse), nn.Linear(2, 1))
        if sparse:
            with pytest.raises(ValueError, match=r"weight_decay=0.1 .*'0'.* l2"):
                param_groups(model, weight_decay=0.1)
        else:
            assert param_groups(model, weight_decay=0.1)[0]["weight_decay"] == 0.1


def test_param_groups_regularizes_the_embeddings_only():
    net = Net()
    groups = param_groups(net, l21=0.1, l1=0.2, norm="metric")
    assert named(groups) == [["words.weight", "bag.weight"], ["head.weight", "head.bias"]]
    assert [(g.get("l1", 0.0), g.get("l21", 0.0), g.get("l2", 0.0)) for g in groups] == [(0.2, 0.1, 0), (0, 0, 0)]
    optimizer = GroupAdam(groups, lr=0.5, l21=7.0, l2=0.3)
    assert optimizer.param_groups[0]["l2"] == 0.3, "the optimizer's default, where nothing was said"
    assert optimizer.param_groups[1]["l21"] == 0.0, "nor does the optimizer's default reach the rest"
    assert optimizer.param_groups[0]["norm"] == MetricNorm()
    of_linear = param_groups(net, layers=nn.Linear, l21=0.1, groups="columns")
    assert named(of_linear) == [["head.weight"], ["words.weight", "bag.weight", "head.bias"]]
    assert [g["groups"] for g in GroupAdam(of_linear).param_groups] == ["columns", "rows"]
    net.head.weight = net.words.weight  # a tied weight counts once, and as an embedding
    assert named(param_groups(net, l21=0.1)) == [["words.weight", "bag.weight"], ["head.bias"]]


def test_subclasses_of_embeddings_are_embeddings_and_a_model_without_any_is_refused():
    class Table(nn.Embedding):
        pass

    assert named(param_groups(nn.Sequential(Table(3, 2), nn.Linear(2, 1)), l21=0.1))[0] == ["0.weight"]
    assert named(param_groups(Table(3, 2), l21=0.1)) == [["weight"]]
    for layers, names in (({}, "Embedding, EmbeddingBag"), ({"layers": nn.Conv2d}, "Conv2d")):
        with pytest.raises(ValueError, match=f"no layer of type {names}"):
            param_groups(nn.Linear(2, 2), l21=0.1, **layers)


HIDDEN = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "pruned": lambda module: prune.random_unstructured(module, "weight", 0.5),
}


@over("kind", HIDDEN)
def test_a_layer_whose_weight_is_computed_from_parameters_is_refused_even_beside_others(kind):
    net = nn.Sequential(nn.Embedding(5, 3), HIDDEN[kind](nn.Embedding(5, 3)))
    with pytest.raises(ValueError, match=r"'1'.*no parameter 'weight'.*(original|weight_orig)"):
        param_groups(net, l21=0.1)
    with pytest.raises(ValueError, match="no parameter 'weight'"):
        param_groups(HIDDEN[kind](nn.Linear(5, 3)), layers=nn.Linear, l21=0.1)


@over(
    ("layers", "error", "match"),
    [
        (nn.LSTM, ValueError, "'0', a LSTM.*weight_ih_l0"),
        (nn.MultiheadAttention, ValueError, "'1', a MultiheadAttention"),
        ((nn.Linear, nn.LSTM), ValueError, "'0', a LSTM"),
        (nn.LayerNorm, ValueError, "no layer of type LayerNorm with a weight"),
        (nn.Dropout, ValueError, "no layer of type Dropout"),
        ("Linear", TypeError, "got 'Linear'"),
        (nn.Linear(2, 2), TypeError, "must be a type"),
    ],
)
def test_layers_without_a_weight_are_refused(layers, error, match):
    net = nn.Sequential(
        nn.LSTM(2, 2), nn.MultiheadAttention(2, 1), nn.LayerNorm(2, elementwise_affine=False), nn.Dropout()
    )
    with pytest.raises(error, match=match):
        param_groups(net, layers=layers, l21=0.1)


def test_layers_of_which_some_have_no_weight_by_choice():
    net = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2, affine=False))
    assert named(param_groups(net, layers=nn.BatchNorm1d, l21=0.1)) == [["0.weight"], ["0.bias"]]


@over(
    "convolutions", [(nn.Conv1d, nn.ConvTranspose1d), (nn.Conv2d, nn.ConvTranspose2d), (nn.Conv3d, nn.ConvTranspose3d)]
)
def test_channels_are_the_output_channels_of_both_kinds_of_convolution(convolutions):
    plain, transposed = convolutions
    net = nn.Sequential(plain(2, 3, 2), transposed(3, 5, 2), nn.BatchNorm1d(5))
    groups = param_groups(net, layers=convolutions, groups="channels", l21=0.1)
    assert named(groups) == [["0.weight"], ["1.weight"], ["0.bias", "1.bias", "2.weight", "2.bias"]]
    optimizer = GroupAdam(groups)
    for group, convolution in zip(optimizer.param_groups[:2], net[:2], strict=True):
        weight = group["params"][0]
        assert weight is convolution.weight
        _, count = grouping(group["groups"], weight.shape, weight.device).count_nonzero(weight)
        assert count == convolution.out_channels


def test_a_transposed_convolution_in_several_parts_has_no_channels_to_cut():
    net = nn.Sequential(nn.ConvTranspose1d(4, 4, 2, groups=2))
    with pytest.raises(ValueError, match=r"groups='channels'.*'0'.*groups > 1"):
        param_groups(net, layers=nn.ConvTranspose1d, groups="channels", l21=0.1)
    assert named(param_groups(net, layers=nn.ConvTranspose1d, groups="rows", l21=0.1)) == [["0.weight"], ["0.bias"]]
