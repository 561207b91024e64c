"""`overview`: counts over reports, as the paper counts, from the tables that the reports hold."""

from pathlib import Path

import pytest

from sparsegroup_paper.overview import write_overview
from sparsegroup_paper.report import write_report, write_section
from sparsegroup_paper.section import Cell, Column, Facts, Section, SectionTable

FACTS = Facts("made up", (("rows", "100"), ("network", "DCN")), "sparsegroup-paper run …", "2026-01-02", 1.25, ())
POINTS = ("λ21", "feature rate", "difference", "95 % low", "95 % high", "p", "verdict")
COMPARED = ("feature rate", "method", "test AUC", "difference", "verdict")


def section(name: str, table: str, columns: tuple[str, ...], rows: list[tuple[Cell, ...]]) -> Section:
    return Section(name, name, ("found",), (), (SectionTable(table, table, tuple(map(Column, columns)), tuple(rows)),))


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
            "points",
            POINTS,
            [
                (1e-4, 0.5, 0.002, 0.001, 0.003, 0.04, "better"),
                (1e-3, 0.04, 0.01, 0.008, 0.02, 0.001, "better"),
                (1e-2, 0.01, -0.0005, -0.0009, -0.0001, 0.02, "worse, non-inferior"),
            ],
        ),
        section(
            "frontier",
            "compared",
            COMPARED,
            [
                (0.1, "Group Adam, hard", 0.71, 0.01, "better"),
                (0.1, "Adam, pruned and fine-tuned", 0.70, None, None),
            ],
        ),
    )
    report(
        tmp_path / "second",
        section("sparsity-vs-auc", "points", POINTS, [(1e-4, 0.03, -0.01, -0.03, 0.01, 0.3, "within noise")]),
    )
    report(
        tmp_path / "one-seed",
        section("sparsity-vs-auc", "points", POINTS, [(1e-4, 0.03, 0.01, 0.009, 0.011, None, "better")]),
    )
    assert write_overview(tmp_path) == ["first", "one-seed", "second"]
    return (tmp_path / "index.md").read_text()


def test_each_report_has_a_line_with_its_counts(overview: str) -> None:
    assert (
        "| [first](first/report.md) | rows: 100; network: DCN | sparsity-vs-auc, frontier | 2026-01-02 | 1.2 h |"
        in (overview)
    )
    assert "| first | 3 | 0.5 – 0.01 | 2 | 0 | 1 | 3 | -0.0005 | +0.0100 |" in overview
    assert "| second | 1 | 0.03 – 0.03 | 0 | 1 | 0 | 0 | -0.0100 | -0.0100 |" in overview


def test_significance_is_counted_as_the_paper_does_over_reports_with_several_seeds(overview: str) -> None:
    assert "at 2 of 4 points (50%; the paper: 60%), and below a feature rate of 0.05 at 1 of 3 (33%;" in overview


def test_its_tables_are_there_as_csv_too(overview: str, tmp_path: Path) -> None:
    for name in ("against-pruning", "strengths", "leaders"):
        assert f"({name}.csv)" in overview
        assert (tmp_path / f"{name}.csv").read_text().startswith("report,")


def test_the_strength_at_a_rate_lies_between_the_points(overview: str) -> None:
    (line,) = [line for line in overview.splitlines() if line.startswith("| first | 1.0e-4 |")]
    cells = [cell.strip() for cell in line.split("|")[2:-1]]
    # From (.04, 1e-3) to (.5, 1e-4): at .1, 1e-3 · (.04 / .1)^(ln 10 / ln 12.5) = 4.3e-4.
    assert cells[2] == "4.3e-4"
    assert cells[-1] == "1.0e-2"


def test_the_leaders_and_the_verdicts_come_from_the_frontier(overview: str) -> None:
    assert "| first | Group Adam, hard (0.7100) |" in overview
    assert "Group Adam, hard 1 / 0 / 0" in overview


def test_nothing_is_written_where_there_is_no_report(tmp_path: Path) -> None:
    assert write_overview(tmp_path / "none") == []
    assert list(tmp_path.iterdir()) == []
