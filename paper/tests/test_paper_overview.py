"""`overview`: counts over reports, as the paper counts, from the tables that the reports hold."""

from pathlib import Path

import pytest

from sparsegroup_paper.overview import write_overview
from sparsegroup_paper.recipe import RECIPE
from sparsegroup_paper.report import write_report, write_section
from sparsegroup_paper.section import Cell, Column, Facts, Section, SectionTable

FACTS = Facts("made up", (("rows", "100"), ("network", "DCN")), "sparsegroup-paper run …", "2026-01-02", 1.25, ())
POINTS = ("λ21", "feature rate", "difference", "95 % low", "95 % high", "p", "verdict")
AGAINST_BEST = ("feature rate", "method", "test AUC", "best of the others", "its AUC", "difference", "verdict")
COMPARED = ("feature rate", "method", "test AUC", "difference", "verdict")


def table(name: str, columns: tuple[str, ...], rows: list[tuple[Cell, ...]]) -> SectionTable:
    return SectionTable(name, name, tuple(map(Column, columns)), tuple(rows))


def section(name: str, *tables: SectionTable) -> Section:
    return Section(name, name, ("found",), (), tables)


def report(folder: Path, *sections: Section) -> None:
    for one in sections:
        write_section(one, folder)
    write_report(folder, FACTS)


@pytest.fixture
def overview(tmp_path: Path) -> str:
    report(
        tmp_path / "first",
        section(
            "sparsity-vs-auc",
            table(
                "points",
                POINTS,
                [
                    (1e-4, 0.5, 0.002, 0.001, 0.003, 0.04, "better"),
                    (1e-3, 0.04, 0.01, 0.008, 0.02, 0.001, "better"),
                    (1e-2, 0.01, -0.0005, -0.0009, -0.0001, 0.02, "worse, non-inferior"),
                ],
            ),
        ),
        section(
            "frontier",
            table(
                "compared",
                COMPARED,
                [
                    (0.5, RECIPE, 0.70, 0.0, "within noise"),
                    (0.5, "Group Adam, hard", 0.72, 0.02, "better"),
                    (0.3, RECIPE, 0.705, 0.005, "within noise"),
                    (0.3, "Group Adam, hard", 0.71, 0.01, "better"),
                    (0.1, RECIPE, 0.72, 0.02, "better"),
                    (0.1, "Group Adam, hard", 0.71, 0.01, "better"),
                    (0.1, "Adam, pruned and fine-tuned", 0.70, None, None),
                    (0.05, RECIPE, 0.71, 0.01, "within noise, non-inferior"),
                ],
            ),
            table(
                "against-best",
                AGAINST_BEST,
                [
                    (0.5, RECIPE, 0.70, "Group Adam, hard", 0.72, -0.02, "worse"),
                    (0.3, RECIPE, 0.705, "Group Adam, hard", 0.71, -0.005, "worse"),
                    (0.1, RECIPE, 0.72, "Group Adam, hard", 0.71, 0.01, "better"),
                    (0.05, RECIPE, 0.71, "DeepLight", 0.71, 0.0, "within noise, non-inferior"),
                ],
            ),
        ),
    )
    report(
        tmp_path / "second",
        section("sparsity-vs-auc", table("points", POINTS, [(1e-4, 0.03, -0.01, -0.03, 0.01, 0.3, "within noise")])),
    )
    report(
        tmp_path / "one-seed",
        section("sparsity-vs-auc", table("points", POINTS, [(1e-4, 0.03, 0.01, 0.009, 0.011, None, "better")])),
    )
    assert write_overview(tmp_path) == ["first", "one-seed", "second"]
    return (tmp_path / "index.md").read_text()


def test_each_report_has_a_line_with_its_counts(overview: str) -> None:
    assert (
        "| [first](first/report.json) | rows: 100; network: DCN | sparsity-vs-auc, frontier | 2026-01-02 | 1.2 h |"
        in (overview)
    )
    assert "| first | 3 | 0.5 – 0.01 | 2 | 0 | 1 | 3 | -0.0005 | +0.0100 |" in overview
    assert "| second | 1 | 0.03 – 0.03 | 0 | 1 | 0 | 0 | -0.0100 | -0.0100 |" in overview


def test_significance_is_counted_as_the_paper_does_over_reports_with_several_seeds(overview: str) -> None:
    assert "at 2 of 4 points (50%; the paper: 60%), and below a feature rate of 0.05 at 1 of 3 (33%;" in overview


def test_the_strength_at_a_rate_lies_between_the_points(overview: str) -> None:
    (line,) = [line for line in overview.splitlines() if line.startswith("| first | 1.0e-4 |")]
    cells = [cell.strip() for cell in line.split("|")[2:-1]]
    # From (.04, 1e-3) to (.5, 1e-4): at .1, 1e-3 · (.04 / .1)^(ln 10 / ln 12.5) = 4.3e-4.
    assert cells[2] == "4.3e-4"
    assert cells[-1] == "1.0e-2"


def test_the_leaders_and_the_verdicts_come_from_the_frontier(overview: str) -> None:
    assert (
        "| first | Group Adam, hard (0.7200) | Group Adam, hard (0.7100) | Recommended recipe (0.7200) | "
        "Recommended recipe (0.7100) |"
    ) in overview
    assert "Group Adam, hard 3 / 0 / 0" in overview


def test_the_recipe_is_counted_against_the_best_of_the_others_and_where_any_beats_pruning(overview: str) -> None:
    assert (
        "Recommended recipe against the best of all others at rates of 0.3 and below, better / within noise / worse: "
        "1 / 1 / 1 (first at 0.3 by 0.0050). Where any method is better than pruned and fine-tuned Adam, so is it at 1 "
        "of 2."
    ) in overview
    assert "| first | 0.3 | Recommended recipe | 0.7050 | Group Adam, hard | 0.7100 | -0.0050 | worse |" in overview


def test_nothing_is_written_where_there_is_no_report(tmp_path: Path) -> None:
    assert write_overview(tmp_path / "none") == []
    assert list(tmp_path.iterdir()) == []
