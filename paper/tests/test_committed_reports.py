"""The reports in docs/results are whole, and the documentation shows what they found."""

from pathlib import Path

from sparsegroup_paper.catalog import EXPERIMENTS
from sparsegroup_paper.overview import write_overview
from sparsegroup_paper.report import REPORT, read_report

ROOT = Path(__file__).parents[2]


def test_the_committed_reports_are_whole() -> None:
    results = ROOT / "docs" / "results"
    for name in ("avazu_sample", "criteo_sample", "ipinyou_sample", "nycflights13", "globo_clicks", "synthetic"):
        report = read_report(results / name)
        assert {section.name for section in report.sections} == {*EXPERIMENTS}
        assert report.facts is not None
        assert ("seeds", "5") in report.facts.data
    assert [section.name for section in read_report(results / "regret").sections] == ["regret"]


def test_the_page_is_that_of_the_committed_reports(tmp_path: Path) -> None:
    for path in (ROOT / "docs" / "results").glob(f"*/{REPORT}"):
        (tmp_path / "results" / path.parent.name).mkdir(parents=True)
        (tmp_path / "results" / path.parent.name / REPORT).write_bytes(path.read_bytes())
    page = ROOT / "docs" / "paper.md"
    (tmp_path / "paper.md").write_bytes(page.read_bytes())
    write_overview(tmp_path / "results", tmp_path / "paper.md")
    assert (tmp_path / "paper.md").read_text() == page.read_text()
