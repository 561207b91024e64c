"""`overview`: claims, counts and verdicts over reports, from the tables that the reports hold."""

import re
from pathlib import Path

import pytest

from sparsegroup.errors import UserError
from sparsegroup_paper.command_line import BEYOND_ALL, EXPERIMENTS
from sparsegroup_paper.frontier import PRUNED, RECIPE
from sparsegroup_paper.overview import MARKS, write_overview
from sparsegroup_paper.report import REPORT, read_report, write_report, write_section
from sparsegroup_paper.section import Facts, Section, table

RESULTS = Path(__file__).parents[2] / "docs" / "results"
FACTS = Facts("made up", (("rows", "100"), ("network", "DCN")), "sparsegroup-paper run …", "2026-01-02", 1.25, ())


def section(name, of, specs, *rows):
    return Section(name, name, ("found",), (), (table(of, of, specs, rows),))


def against_pruning(*rows):
    return section("sparsity-vs-auc", "points", "λ21; feature rate; difference; 95 % low; 95 % high; p; verdict", *rows)


def report(folder, *sections):
    for one in sections:
        write_section(one, folder)
    write_report(folder, FACTS)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    report(
        folder / "first",
        against_pruning(
            (1e-4, 0.5, 0.002, 0.001, 0.003, 0.04, "better"),
            (1e-3, 0.04, 0.01, 0.008, 0.02, 0.001, "better"),
            (1e-2, 0.01, -0.0005, -0.0009, -0.0001, 0.02, "worse, non-inferior"),
        ),
        section(
            *("frontier", "compared", "feature rate; method; test AUC; difference; verdict"),
            (0.5, RECIPE, 0.70, 0.0, "within noise"),
            (0.5, "DeepLight", 0.72, 0.02, "better"),
            (0.3, RECIPE, 0.705, 0.005, "within noise"),
            (0.3, "DeepLight", 0.71, 0.01, "better"),
            (0.1, RECIPE, 0.72, 0.02, "better"),
            (0.1, "DeepLight", 0.71, 0.01, "better"),
            (0.1, PRUNED, 0.70, None, None),
            (0.05, RECIPE, 0.71, 0.01, "within noise, non-inferior"),
        ),
        section("l1-vs-l21", "values", "value; times", (1e-4, 1.5), (1e-3, 0.9)),
        section("embedding-dim", "dimensions", "dimension; feature rate", (4, 0.3), (8, 0.2)),
        section(
            *("norm", "compared", "other norm; verdict"),
            *(("‖s̃‖", "better"), ("‖s̃‖", "within noise"), ("metric", "worse, non-inferior")),
        ),
    )
    report(folder / "second", against_pruning((1e-4, 0.03, -0.01, -0.03, 0.01, 0.3, "within noise")))
    report(folder / "one-seed", against_pruning((1e-4, 0.03, 0.01, 0.009, 0.011, None, "better")))
    return folder


@pytest.fixture(scope="module")
def overview(reports: Path) -> str:
    assert write_overview(reports) == ["first", "one-seed", "second"]
    return (reports / "index.md").read_text()


def test_reports_are_counted_one_by_one_and_over_all(overview: str) -> None:
    experiments = "sparsity-vs-auc, norm, l1-vs-l21, embedding-dim, frontier"
    for line in (
        f"| [first](first/report.json) | rows: 100; network: DCN | {experiments} | 2026-01-02 | 1.2 h |",
        "| first | 3 | 0.5 – 0.01 | 2 | 0 | 1 | 3 | -0.0005 | +0.0100 |",
        "| second | 1 | 0.03 – 0.03 | 0 | 1 | 0 | 0 | -0.0100 | -0.0100 |",
        "at 2 of 4 points (50%; the paper: 60%), below a feature rate of 0.05 at 1 of 3 (33%;",
        "| λ21 keeps fewer features than an equal λ1 | Figure 3 | at 1 of 2 values |",
        "| The feature rate falls as the dimension grows | Table 4 | in 1 of 1 reports |",
        "| ‖s‖ against ‖s̃‖ at the same feature rate | Figure 2, Table 9 | better 1, within noise 1, worse 0 |",
        "| DeepLight | 3 | 0 | 0 |",
        f"| {RECIPE} | 1 | 3 | 0 |",
        "| first | recipe | 0.7000 (within noise) | 0.7050 (within noise) | 0.7200 (better) |",
        "| first | best of the others | 0.7200 (DeepLight) |",
        "higher mean AUC than the recommended recipe at 2 of 3 rates of first (by 0.0200 at most).",
    ):
        assert line in overview
    (line,) = [line for line in overview.splitlines() if line.startswith("| first | 1.0e-4 |")]
    cells = [cell.strip() for cell in line.split("|")[2:-1]]
    # From (.04, 1e-3) to (.5, 1e-4): at .1, 1e-3 · (.04 / .1)^(ln 10 / ln 12.5) = 4.3e-4.
    assert (cells[2], cells[-1]) == ("4.3e-4", "1.0e-2")


def test_an_overview_goes_into_a_page(reports, tmp_path, overview):
    page = tmp_path / "page.md"
    page.write_text("before\n{}\nold\n{}\nafter\n".format(*MARKS))
    write_overview(reports, page)
    text = page.read_text()
    assert re.fullmatch(rf"before\n{MARKS[0]}\n\n\| report \|.*\n\n{MARKS[1]}\nafter\n", text, re.DOTALL)
    assert "old" not in text
    assert "/first/report.json)" in text
    (tmp_path / "bare.md").write_text("no lines\n")
    with pytest.raises(UserError, match="wants the lines"):
        write_overview(reports, tmp_path / "bare.md")
    assert write_overview(tmp_path / "none") == []


def test_the_committed_reports_are_whole():
    for name in ("avazu_sample", "criteo_sample", "ipinyou_sample", "nycflights13", "globo_clicks", "synthetic"):
        report = read_report(RESULTS / name)
        assert {section.name for section in report.sections} >= {*EXPERIMENTS} - {*BEYOND_ALL}
        assert ("seeds", "5") in report.facts.data
    assert [section.name for section in read_report(RESULTS / "regret").sections] == ["regret"]


def test_the_page_is_that_of_the_committed_reports(tmp_path):
    for path in RESULTS.glob(f"*/{REPORT}"):
        copy = tmp_path / "results" / path.relative_to(RESULTS)
        copy.parent.mkdir(parents=True)
        copy.write_bytes(path.read_bytes())
    page = RESULTS.parent / "paper.md"
    (tmp_path / "paper.md").write_bytes(page.read_bytes())
    write_overview(tmp_path / "results", tmp_path / "paper.md")
    assert (tmp_path / "paper.md").read_text() == page.read_text()
