"""`feature_rate` and `sparsity_report`."""

from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn

from optimizer_cases import parameter
from over import over
from sparsegroup import (
    GroupAdam,
    HashEmbedding,
    ParameterSparsity,
    SparsityReport,
    feature_rate,
    param_groups,
    sparsity_report,
)

TABLE = torch.tensor([[0.0, 0.0], [0.0, 1.0], [2.0, 1.0], [0.0, 0.0], [1e-30, 0.0]])


def mask(*seen: int) -> Tensor:
    return torch.tensor(seen, dtype=torch.bool)


@over(
    ("weight", "seen", "rate"),
    [
        (TABLE, None, 3 / 5),
        (TABLE, mask(1, 1, 0, 0, 0), 1 / 2),
        (TABLE, mask(1, 0, 0, 1, 0), 0.0),
        (TABLE, 30, 3 / 30),
        (torch.zeros(5, 2), 0, 0.0),
        (torch.zeros(0, 4), None, 0.0),
        (torch.tensor([0.0, 0.0, -1.0, 0.0])[:, None, None], None, 1 / 4),
        (torch.zeros(4, 0), None, 0.0),
        (torch.tensor([[float("nan")], [0.0]]), None, 1 / 2),
    ],
)
def test_the_feature_rate_is_the_share_of_seen_rows_with_a_non_zero_vector(
    weight: Tensor, seen: Tensor | int | None, rate: float
) -> None:
    assert feature_rate(weight, seen) == rate


@over("sparse", [False, True])
def test_an_optimizer_knows_which_rows_training_has_seen(sparse: bool) -> None:
    embedding = nn.Embedding.from_pretrained(torch.full((1000, 2), 0.05), freeze=False, sparse=sparse)
    optimizer = GroupAdam(embedding.parameters(), lr=0.1, l21=0.1)
    assert feature_rate(embedding.weight, optimizer) == 0
    (embedding(torch.arange(10)) * torch.tensor([1.0] * 8 + [0.01] * 2)[:, None]).sum().backward()
    optimizer.step()
    assert feature_rate(embedding.weight, optimizer) == 0.8
    assert feature_rate(embedding.weight) == 0.998
    table = HashEmbedding(2)
    table(torch.arange(4))
    assert feature_rate(table.weight, optimizer) == 1
    with pytest.raises(ValueError, match="not among those"):
        feature_rate(TABLE, optimizer)


@over("seen", [mask(1, 1, 1, 1), torch.ones(5), mask(1, 1, 1, 1, 1)[:, None], torch.tensor(5), -1, 2])
def test_what_was_seen_must_be_a_mask_over_rows_or_a_count_of_all_live_ones_at_least(seen: Tensor | int) -> None:
    with pytest.raises(ValueError, match="seen"):
        feature_rate(TABLE, seen)


def test_the_report_counts_groups_and_elements_and_prints_an_aligned_table() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 3))
    with torch.no_grad():
        model[0].weight[1:3] = 0.0
        model[0].weight[0, 0] = 0.0
        model[1].bias[0] = 0.0
    optimizer = GroupAdam(param_groups(model, l21=0.1))
    optimizer.add_param_group({"params": [parameter(), parameter(0, 3)], "param_names": ["scalar", "empty"]})
    table = HashEmbedding(2)
    table.assign(torch.arange(3), torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    optimizer.add_param_group({"params": [table.weight], "param_names": ["rows"]})
    report = sparsity_report(optimizer)
    assert report == (
        ParameterSparsity("0.weight", (4, 2), 4, 2, 5),
        ParameterSparsity("1.weight", (3, 2), 3, 0, 0),
        ParameterSparsity("1.bias", (3,), 3, 1, 1),
        ParameterSparsity("scalar", (), 1, 0, 0),
        ParameterSparsity("empty", (0, 3), 0, 0, 0),
        ParameterSparsity("rows", (3, 2), 3, 1, 3),
    )
    assert [entry.live_rate for entry in report] == pytest.approx([0.5, 1.0, 2 / 3, 1.0, 0.0, 2 / 3])
    large = ParameterSparsity("table", (33_800_000, 8), 33_800_000, 1_000_000, 8_000_000)
    lines = str(SparsityReport([*report, large])).splitlines()
    assert [line.split() for line in lines] == [
        ["parameter", "shape", "groups", "zero", "groups", "live"],
        ["0.weight", "4×2", "4", "2", "50.00%"],
        ["1.weight", "3×2", "3", "0", "100.00%"],
        ["1.bias", "3", "3", "1", "66.67%"],
        ["scalar", "scalar", "1", "0", "100.00%"],
        ["empty", "0×3", "0", "0", "0.00%"],
        ["rows", "3×2", "3", "1", "66.67%"],
        ["table", "33800000×8", "33,800,000", "1,000,000", "97.04%"],
    ]
    assert len({len(line) for line in lines}) == 1
    assert not optimizer.state


def test_the_report_uses_the_groups_of_the_optimizer_and_places_where_there_are_no_names() -> None:
    x = parameter(4, 3)
    with torch.no_grad():
        x[:, 1] = 0.0
        x[:2] = 0.0
    numbered = {torch.tensor([5, 5, 5, 9]): (2, 0), torch.tensor([5, 5, 9, 9]): (2, 1)}
    for spec, counts in {"rows": (4, 2), "columns": (3, 1), "all": (1, 0), -1: (3, 1), **numbered}.items():
        _, entry = sparsity_report(GroupAdam([{"params": [parameter(2)]}, {"params": [x], "groups": spec}]))
        assert (entry.name, entry.groups, entry.zero_groups) == ("param_groups[1][0]", *counts)


def test_notebooks_show_tables_with_escaped_names() -> None:
    table, dense = HashEmbedding(4), nn.Parameter(torch.ones(3))
    table(torch.arange(1200))
    optimizer = GroupAdam([{"params": [("<b>", table.weight)], "l21": 0.5}, {"params": [("b", dense)]}])
    shown = {one: one._repr_html_() for one in (table, optimizer, sparsity_report(optimizer))}
    for one, html in shown.items():
        ElementTree.fromstring(html)
        assert "<b>" not in html, one
    of_table, of_optimizer, of_report = shown.values()
    assert of_table.count(">1,200<") == 3  # rows, live rows, keys seen
    assert f">{table.memory().total:,}<" in of_table
    assert ">0.5<" in of_optimizer
    assert "&lt;b&gt;" in of_report


def test_the_repr_of_an_optimizer_has_a_line_for_each_param_group() -> None:
    x, y = parameter(4, 3), parameter(4)
    groups = [
        {"params": [x], "l21": 0.01, "penalty": "mcp"},
        {"params": [y], "groups": torch.zeros(4, dtype=torch.int64)},
    ]
    assert repr(GroupAdam(groups, lr=torch.tensor(0.5))).splitlines() == [
        "GroupAdam(",
        "  0: 1 parameter, lr=0.5, l21=0.01, penalty=mcp",
        "  1: 1 parameter, lr=0.5, groups=int64 [4]",
        ")",
    ]
