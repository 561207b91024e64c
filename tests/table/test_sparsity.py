"""`feature_rate` and `sparsity_report`."""

import pytest
import torch
from torch import nn

from optimizer_cases import parameter
from over import over
from sparsegroup import GroupAdam, ParameterSparsity, SparsityReport, feature_rate, param_groups, sparsity_report

TABLE = torch.tensor([[0.0, 0.0], [0.0, 1.0], [2.0, 1.0], [0.0, 0.0], [1e-30, 0.0]])


def test_the_feature_rate_is_the_share_of_rows_with_a_non_zero_vector():
    assert feature_rate(TABLE) == 3 / 5


def test_rows_never_seen_count_neither_above_nor_below():
    assert feature_rate(TABLE, torch.tensor([True, True, False, False, False])) == 1 / 2
    assert feature_rate(TABLE, torch.tensor([True, False, False, True, False])) == 0.0


def test_the_denominator_may_be_a_number_of_features():
    assert feature_rate(TABLE, 30) == 3 / 30
    assert feature_rate(TABLE, 3) == 1.0


def test_the_rate_of_a_table_without_rows_or_never_seen_is_0():
    assert feature_rate(torch.zeros(0, 4)) == 0.0
    assert feature_rate(torch.zeros(5, 2), 0) == 0.0
    assert feature_rate(TABLE, torch.zeros(5, dtype=torch.bool)) == 0.0


@over("shape", [(4,), (4, 1), (4, 2, 3), (4, 0)])
def test_rows_may_have_any_shape(shape):
    weight = torch.zeros(shape)
    if weight.numel():
        weight.view(4, -1)[2, -1] = -1.0
    assert feature_rate(weight) == (0.25 if weight.numel() else 0.0)


def test_a_parameter_is_read_and_not_tracked():
    weight = parameter(3, 2)
    assert feature_rate(weight) == 1.0
    assert weight.grad is None


def test_nan_is_not_zero():
    assert feature_rate(torch.tensor([[float("nan")], [0.0]])) == 0.5


@over("seen", [torch.ones(4, dtype=torch.bool), torch.ones(5), torch.ones(5, 1, dtype=torch.bool), torch.tensor(5), -1])
def test_what_was_seen_must_be_a_mask_over_rows_or_a_count(seen):
    with pytest.raises(ValueError, match="seen must be"):
        feature_rate(TABLE, seen)


def test_more_live_rows_than_features_seen_is_refused():
    """A rate above 1 is no rate: the count is wrong, or rows that were never seen are not zero."""
    with pytest.raises(ValueError, match="seen"):
        feature_rate(TABLE, 2)


@pytest.fixture
def optimizer() -> GroupAdam:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 3))
    with torch.no_grad():
        model[0].weight[1:3] = 0.0
        model[0].weight[0, 0] = 0.0
        model[1].bias[0] = 0.0
    return GroupAdam(param_groups(model, l21=0.1))


def test_the_report_counts_groups_and_elements(optimizer):
    assert sparsity_report(optimizer) == (
        ParameterSparsity("0.weight", (4, 2), 4, 2, 5),
        ParameterSparsity("1.weight", (3, 2), 3, 0, 0),
        ParameterSparsity("1.bias", (3,), 3, 1, 1),
    )
    assert [entry.live_rate for entry in sparsity_report(optimizer)] == pytest.approx([0.5, 1.0, 2 / 3])


def test_the_report_uses_the_groups_of_the_optimizer():
    x = parameter(4, 3)
    with torch.no_grad():
        x[:, 1] = 0.0
        x[:2] = 0.0
    by = {"rows": (4, 2), "columns": (3, 1), "all": (1, 0), -1: (3, 1)}
    for spec, counts in by.items():
        (entry,) = sparsity_report(GroupAdam([x], groups=spec))
        assert (entry.groups, entry.zero_groups) == counts
    (entry,) = sparsity_report(GroupAdam([x], groups=torch.tensor([5, 5, 5, 9])))
    assert (entry.groups, entry.zero_groups) == (2, 0)
    (entry,) = sparsity_report(GroupAdam([x], groups=torch.tensor([5, 5, 9, 9])))
    assert (entry.groups, entry.zero_groups) == (2, 1)


def test_parameters_without_names_are_named_by_their_place():
    optimizer = GroupAdam([{"params": [parameter(2)]}, {"params": [parameter(2), parameter()]}])
    assert [entry.name for entry in sparsity_report(optimizer)] == [
        "param_groups[0][0]",
        "param_groups[1][0]",
        "param_groups[1][1]",
    ]


def test_the_report_prints_an_aligned_table(optimizer):
    lines = str(sparsity_report(optimizer)).splitlines()
    assert [line.split() for line in lines] == [
        ["parameter", "shape", "groups", "zero", "groups", "live"],
        ["0.weight", "4×2", "4", "2", "50.00%"],
        ["1.weight", "3×2", "3", "0", "100.00%"],
        ["1.bias", "3", "3", "1", "66.67%"],
    ]
    assert len({len(line) for line in lines}) == 1


def test_a_scalar_and_a_parameter_without_elements_have_a_line():
    optimizer = GroupAdam([parameter(), parameter(0, 3)])
    scalar, empty = sparsity_report(optimizer)
    assert (scalar.groups, scalar.live_rate) == (1, 1.0)
    assert (empty.groups, empty.live_rate) == (0, 0.0)
    assert "scalar" in str(sparsity_report(optimizer))


def test_large_numbers_are_grouped_by_thousands():
    report = SparsityReport([ParameterSparsity("table", (33_800_000, 8), 33_800_000, 1_000_000, 8_000_000)])
    assert "33,800,000" in str(report)
    assert "1,000,000" in str(report)


def test_the_report_changes_nothing(optimizer):
    sparsity_report(optimizer)
    assert not optimizer.state
    assert all(p.grad is None and p.requires_grad for group in optimizer.param_groups for p in group["params"])
