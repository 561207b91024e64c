"""The reports in docs/results are whole, and the documentation shows what they found."""

import re
from pathlib import Path

from sparsegroup_paper.catalog import EXPERIMENTS
from sparsegroup_paper.report import sections_in

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
    on_small_logs = ("avazu_sample", "criteo_sample", "ipinyou_sample", "nycflights13", "globo_clicks", "synthetic")
    for name in on_small_logs:
        assert {*sections_in(results / name)} == {*EXPERIMENTS}
        assert "| seeds | 5 |" in (results / name / "report.md").read_text()
    assert sections_in(results / "regret") == ["regret"]
    for page in results.glob("*/report.md"):
        for link in re.findall(r"\]\(([^)]+\.(?:png|csv))\)", page.read_text()):
            assert (page.parent / link).is_file(), f"{page}: {link}"
