"""The reports in docs/results are whole, and the documentation shows what they found."""

from pathlib import Path

from sparsegroup_paper.catalog import EXPERIMENTS
from sparsegroup_paper.overview import write_overview
from sparsegroup_paper.report import REPORT, read_report

ROOT = Path(__file__).parents[2]
MEASURED = (ROOT / "docs" / "measured.md").read_text()


def test_the_documentation_shows_what_came_out_of_the_papers_experiments() -> None:
    overview = (ROOT / "docs" / "results" / "index.md").read_text()
    section = overview[overview.index("## What came out") :]
    findings = [line for line in section.splitlines() if line.startswith("- ")]
    table = section[section.index("| report | points |") :].split("\n\n")[0]
    assert len(findings) == 4
    assert "\n".join(findings) in MEASURED
    assert table in MEASURED


def test_the_committed_reports_are_whole() -> None:
    results = ROOT / "docs" / "results"
    for name in ("avazu_sample", "criteo_sample", "ipinyou_sample", "nycflights13", "globo_clicks", "synthetic"):
        report = read_report(results / name)
        assert {section.name for section in report.sections} == {*EXPERIMENTS}
        assert report.facts is not None
        assert ("seeds", "5") in report.facts.data
    assert [section.name for section in read_report(results / "regret").sections] == ["regret"]


def test_the_overview_is_that_of_the_committed_reports(tmp_path: Path) -> None:
    results = ROOT / "docs" / "results"
    for path in results.glob(f"*/{REPORT}"):
        (tmp_path / path.parent.name).mkdir()
        (tmp_path / path.parent.name / REPORT).write_bytes(path.read_bytes())
    write_overview(tmp_path)
    assert (tmp_path / "index.md").read_text() == (results / "index.md").read_text()
