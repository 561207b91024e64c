"""A table on several ranks is trained as one on one process with the same global batches."""

from functools import partial
from typing import Any

import pytest

from distributed_cases import Ranks
from optimizer_cases import ALL, make
from sharded_cases import Case, all_to_the_last, assert_same, content, mostly_last, together, trained
from sparsegroup import GroupAdaHessian, GroupAdam, GroupOptimizer, feature_rate, sparsity_report
from sparsegroup.table import MinCount

L21 = {"sgd": 5.0, "momentum": 2.0}


def checked(four_ranks: Ranks, case: Case, count: int) -> dict[str, Any]:
    theirs = content(case, 0)  # first, so that one process compiles what all need
    assert theirs is not None
    parts = four_ranks.call(content, case, count)
    assert [part is not None for part in parts] == [rank < count for rank in range(4)]
    ours = together(parts)
    assert_same(ours, theirs)
    return ours


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize(
    ("cls", "count"), [*((cls, 4) for cls in ALL), (GroupAdam, 1), (GroupAdam, 2), (GroupAdaHessian, 3)]
)
def test_every_rule_with_a_penalty(cls: type[GroupOptimizer], count: int, four_ranks: Ranks) -> None:
    ours = checked(four_ranks, Case(partial(make, cls, l1=1e-3, l21=L21.get(cls.rule.name, 0.05), l2=1e-3)), count)
    rows, live, seen = ours["counts"]
    assert 0 < live < rows == seen


def adam(parameters: Any, **arguments: Any) -> GroupOptimizer:
    return GroupAdam(parameters, **{"lr": 0.1, "l21": 5e-3, **arguments})


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(
    ("table", "ahead"),
    [
        ({"admission": MinCount(2)}, False),
        ({"admission": MinCount(2)}, True),
        ({"field_bits": 4, "fallback": True}, False),
        ({"field_bits": 4, "fallback": True}, True),
        ({"reduction": "sum", "fallback": True}, True),
    ],
)
def test_the_options_of_a_table(table: dict[str, Any], ahead: bool, count: int, four_ranks: Ranks) -> None:
    checked(four_ranks, Case(adam, table, ahead=ahead), count)


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("rows", [2, 30])
@pytest.mark.parametrize("cut", [mostly_last, all_to_the_last])
@pytest.mark.parametrize(("cls", "count"), [(GroupAdam, 4), (GroupAdaHessian, 2)])
def test_ranks_with_few_keys_or_none(
    cls: type[GroupOptimizer], cut: Any, rows: int, count: int, four_ranks: Ranks
) -> None:
    checked(four_ranks, Case(partial(make, cls, l21=0.05), cut=cut, rows=rows), count)


@pytest.mark.parametrize(
    ("penalty", "ahead", "count"), [("lasso", False, 3), ("lasso", True, 4), ("hard", True, 2), ("hard", False, 1)]
)
def test_a_target_of_all_ranks(penalty: str, ahead: bool, count: int, four_ranks: Ranks) -> None:
    case = Case(partial(adam, penalty=penalty), rate=0.1, ahead=ahead)
    _, live, seen = checked(four_ranks, case, count)["counts"]
    assert live == round(0.1 * seen)


@pytest.mark.parametrize("ahead", [False, True], ids=["at once", "ahead"])
def test_the_same_ranks_give_the_same_bits(ahead: bool, four_ranks: Ranks) -> None:
    case = Case(adam, {"fallback": True}, ahead=ahead)
    first, second = (together(four_ranks.call(content, case, 3)) for _ in range(2))
    assert_same(first, second, tolerance=0)


def reports(case: Case, count: int) -> tuple[str, float] | None:
    found = trained(case, count)
    if found is None:
        return None
    table, optimizer = found
    return str(sparsity_report(optimizer)), feature_rate(table.weight)


@pytest.mark.parametrize("count", [1, 3])
def test_reports_are_of_all_ranks(count: int, four_ranks: Ranks) -> None:
    case = Case(partial(make, GroupAdam, l21=0.05))
    theirs = reports(case, 0)
    assert theirs is not None
    assert 0 < theirs[1] < 1
    assert four_ranks.call(reports, case, count) == [theirs] * count + [None] * (4 - count)
