"""Several reports summed up: what came out on each data set, and in all."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path

import numpy as np

from sparsegroup.artifact import write_atomically
from sparsegroup.errors import UserError
from sparsegroup_paper.equal_bytes.experiment import FIRST_IN_TRIALS
from sparsegroup_paper.equal_bytes.ours import FIXED
from sparsegroup_paper.frontier import PRUNED, RATES, RECIPE
from sparsegroup_paper.report import REPORT, Report, read_report, section_markdown
from sparsegroup_paper.section import Cell, Row, Section, SectionTable, table
from sparsegroup_paper.statistics import MARGIN, counted

INDEX = "index.md"
MARKS = "<!-- overview -->", "<!-- end of the overview -->"
"""Lines of a page between which the overview is written."""

WORDS = ("better", "within noise", "worse")

Record = Mapping[str, Cell]
"""A row of a report's table by the names of its columns."""
Records = Mapping[str, Sequence[Record]]
"""Report → rows of one of its tables."""


def write_overview(folder: Path, page: Path | None = None) -> list[str]:
    """Write what the reports in the subfolders say, between the `MARKS` of a page, or into `index.md` in the folder.

    Returns their names, in order; nothing is written if there are none.
    """
    names = sorted(path.parent.name for path in folder.glob(f"*/{REPORT}"))
    reports = {name: report for name in names if (report := read_report(folder / name)).facts is not None}
    if not reports:
        return []
    if page is None:
        text, path = f"# The paper's experiments, repeated\n\n{overview(reports, '')}", folder / INDEX
    else:
        first, last = MARKS
        path, before = page, page.read_text(encoding="utf-8")
        if not re.search(f"{first}\n.*{last}", before, re.DOTALL):
            raise UserError(f"{page}: wants the lines {first} and {last}, between which the overview is written")
        start, end = before.index(first) + len(first) + 1, before.index(last)
        to_folder = f"{Path(os.path.relpath(folder, page.parent)).as_posix()}/"
        text = f"{before[:start]}\n{overview(reports, to_folder)}\n{before[end:]}"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return list(reports)


def overview(reports: Mapping[str, Report], folder: str) -> str:
    """Markdown; `folder` is the prefix of links to reports."""
    lines = ["| report | data | experiments | made | computing |", "| --- | --- | --- | --- | ---: |"]
    for name, report in reports.items():
        assert report.facts is not None
        about = "; ".join(f"{what}: {text}" for what, text in report.facts.data if what in ("rows", "network", "seeds"))
        hours = "–" if report.facts.hours is None else f"{report.facts.hours:.1f} h"
        experiments = ", ".join(section.name for section in report.sections)
        link = f"[{name}]({folder}{name}/{REPORT})"
        lines.append(f"| {link} | {about or '–'} | {experiments} | {report.facts.date} | {hours} |")
    return "\n".join([*lines, "", section_markdown(_summary(reports))])


def _summary(reports: Mapping[str, Report]) -> Section:
    def rows_of(section: str, table: str) -> dict[str, list[Record]]:
        found: dict[str, list[Record]] = {}
        for name, report in reports.items():
            for one in (one for of in report.sections if of.name == section for one in of.tables if one.name == table):
                names = [column.name for column in one.columns]
                found[name] = [dict(zip(names, row, strict=True)) for row in one.rows]
        return found

    def verdicts(rows: Iterable[Record]) -> str:
        counts = Counter(map(_verdict, rows))
        return ", ".join(f"{word} {counts[word]}" for word in WORDS)

    tables: list[SectionTable] = []
    findings: list[str] = []
    claims: list[Row] = []
    if against := rows_of("sparsity-vs-auc", "points"):
        tables += [_against_pruning(against), _strengths(against)]
        # As the paper counts, over all reports with several seeds.
        rows = [row for row in chain(*against.values()) if row["p"] is not None]
        found = counted([(_number(row["p"]), _number(row["feature rate"]), _number(row["difference"])) for row in rows])
        claims.append(("Group Adam is better than pruned Adam", "Table 2", found))
    if best := rows_of("best-auc", "best"):
        tables.append(_without_pruning(best))
        found = f"against all features {verdicts(chain(*best.values()))}"
        claims.append(("Group versions lose no AUC with few features", "Table 3", found))
    if family := rows_of("family", "family"):
        found = f"against all features {verdicts(chain(*family.values()))}"
        claims.append(("The same for all six optimizers", "promised", found))
    if norms := rows_of("norm", "compared"):
        for norm in dict.fromkeys(str(row["other norm"]) for row in chain(*norms.values())):
            found = verdicts(row for row in chain(*norms.values()) if row["other norm"] == norm)
            claims.append((f"‖s‖ against {norm} at the same feature rate", "Figure 2, Table 9", found))
    if values := rows_of("l1-vs-l21", "values"):
        times = [_number(row["times"]) for row in chain(*values.values())]
        found = f"at {sum(one > 1 for one in times)} of {len(times)} values"
        claims.append(("λ21 keeps fewer features than an equal λ1", "Figure 3", found))
    if dimensions := rows_of("embedding-dim", "dimensions"):
        rates = [[_number(row["feature rate"]) for row in rows] for rows in dimensions.values()]
        falling = sum(all(one >= other for one, other in pairwise(of)) for of in rates)
        claims.append(
            ("The feature rate falls as the dimension grows", "Table 4", f"in {falling} of {len(rates)} reports")
        )
    if claims:
        title = "The paper's claims, and what came out over all reports"
        tables.insert(0, table("claims", title, "claim; in the paper; here", claims))
    if frontiers := rows_of("frontier", "compared"):
        tables += [_methods(frontiers), _recipe(frontiers)]
        findings.append(_higher(frontiers))
    if contests := rows_of("bytes", "compared"):
        tables += [_contest(contests), _contestants(contests)]
    return Section("overview", "What came out", tuple(findings), (), tuple(tables))


def _against_pruning(against: Records) -> SectionTable:
    rows: list[Row] = []
    for name, points in against.items():
        words = Counter(map(_verdict, points))
        differences, rates = ([_number(point[key]) for point in points] for key in ("difference", "feature rate"))
        non_inferior = sum(_number(point["95 % low"]) > -MARGIN for point in points)
        spans = f"{max(rates):.2g} – {min(rates):.2g}"
        counts = (words[word] for word in WORDS)
        rows.append((name, len(points), spans, *counts, non_inferior, min(differences), max(differences)))
    return table(
        "against-pruning",
        "Group Adam against Adam pruned to the same feature rate (Table 2)",
        "report; points; feature rates; better; within noise; worse; non-inferior; least difference|+.4f; largest|+.4f",
        rows,
        "By the 95 % interval of a paired bootstrap over test rows and seeds (over rows only if there is one seed); "
        f"non-inferior is less than {MARGIN:g} AUC worse.",
    )


def _strengths(against: Records) -> SectionTable:
    """λ21 at some feature rates: between two points, linear in both logarithms."""
    lines: list[Row] = []
    for name, points in against.items():
        ordered = sorted(points, key=lambda point: _number(point["feature rate"]))
        rates = np.log([max(_number(point["feature rate"]), 1e-12) for point in ordered])
        strengths = np.log([_number(point["λ21"]) for point in ordered])
        found = np.exp(np.interp(np.log(RATES), rates, strengths, np.nan, np.nan))
        lines.append((name, *(float(value) if np.isfinite(value) else None for value in found)))
    return table(
        "strengths",
        "λ21 of Group Adam that leads to a feature rate",
        "; ".join(["report", *(f"{rate:g}|.1e" for rate in RATES)]),
        lines,
        "Between two points of the report, linearly in both logarithms.",
    )


def _without_pruning(best: Records) -> SectionTable:
    shown = "optimizer; settings; AUC|.4f; Group: AUC|.4f; Group: feature rate|.4f; difference|+.4f; verdict"
    names = [one.split("|")[0] for one in shown.split("; ")]
    return table(
        "without-pruning",
        "Base optimizers with all features against their Group versions (Table 3)",
        f"report; {shown}",
        ((report, *(row[name] for name in names)) for report, rows in best.items() for row in rows),
    )


def _counts(verdicts: Iterable[tuple[str, str]]) -> list[Row]:
    """How many of each verdict each method has."""
    counts: dict[str, Counter[str]] = {}
    for method, verdict in verdicts:
        counts.setdefault(method, Counter())[verdict] += 1
    return [(method, *(of[word] for word in WORDS)) for method, of in counts.items()]


def _methods(frontiers: Records) -> SectionTable:
    """Each method of the frontier against pruning, over all reports."""
    compared = (row for row in chain(*frontiers.values()) if row["verdict"] is not None)
    return table(
        "methods",
        f"Methods against “{PRUNED}”, over all reports and the rates of the next table",
        "method; better; within noise; worse",
        _counts((str(row["method"]), _verdict(row)) for row in compared),
    )


def _at(rows: Sequence[Record], rate: float) -> dict[str, Record]:
    return {str(row["method"]): row for row in rows if row["feature rate"] == rate}


def _recipe(frontiers: Records) -> SectionTable:
    """The recommended recipe, the best of the other methods, and pruning, by report and rate."""
    lines: list[Row] = []
    for report, rows in frontiers.items():
        cells: dict[str, list[Cell]] = {"recipe": [], "best of the others": [], "pruned": []}
        for rate in RATES:
            at = _at(rows, rate)
            recipe = at.get(RECIPE)
            others = [row for name, row in at.items() if name != RECIPE]
            best = max(others, key=lambda row: _number(row["test AUC"]), default=None)
            cells["recipe"].append(None if recipe is None else f"{recipe['test AUC']:.4f} ({_verdict(recipe)})")
            cells["best of the others"].append(None if best is None else f"{best['test AUC']:.4f} ({best['method']})")
            cells["pruned"].append(at[PRUNED]["test AUC"] if PRUNED in at else None)
        lines += [(report, name, *of) for name, of in cells.items()]
    return table(
        "recipe",
        f"Test AUC of the recommended recipe (compared with “{PRUNED}”), the best of the other methods, and pruning",
        "; ".join(["report", "", *(f"{rate:g}|.4f" for rate in RATES)]),
        lines,
        "The best of the others is the one with the highest mean test AUC, in part by luck.",
    )


def _higher(frontiers: Records) -> str:
    """Where another method has a higher mean AUC than the recipe."""
    words = []
    for report, rows in frontiers.items():
        gaps = []
        for rate in RATES:
            at = {name: _number(row["test AUC"]) for name, row in _at(rows, rate).items()}
            if RECIPE in at and len(at) > 1:
                gaps.append(max(auc for name, auc in at.items() if name != RECIPE) - at[RECIPE])
        if ahead := [gap for gap in gaps if gap > 0]:
            words.append(f"{len(ahead)} of {len(gaps)} rates of {report} (by {max(ahead):.4f} at most)")
    return f"Another method has a higher mean AUC than the recommended recipe at {', '.join(words) or 'no rate'}."


def _contest(contests: Records) -> SectionTable:
    """This library and the best of the other methods, at equal served bytes, by report and budget."""
    lines: list[Row] = []
    for report, rows in contests.items():
        for budget in dict.fromkeys(row["budget"] for row in rows):
            of_budget = [row for row in rows if row["budget"] == budget]
            best = max(of_budget, key=lambda row: _number(row["test AUC"]))
            first = next(row for row in of_budget if row["in trials"] == 1)
            ours = (best[name] for name in ("ours", "its AUC", "int4 AUC"))
            others = (row[name] for row in (first, best) for name in ("method", "test AUC", "verdict"))
            lines.append((report, budget, *ours, *others))
    return table(
        "contest",
        "At equal served bytes: this library, and the best of the others by held-out rows and by the test rows",
        "report; of the dense table|.1%; this library; its AUC|.4f; int4 AUC|.4f; first in trials; AUC|.4f; verdict; "
        "highest on the test rows; AUC|.4f; verdict",
        lines,
        "This library's form is chosen on held-out rows, as the method that is first in trials; the one with the "
        "highest mean test AUC of up to 30 methods and precisions is that in part by luck. “int4 AUC” is that of one "
        f"form for all, “{FIXED}”, without a choice.",
    )


def _contestants(contests: Records) -> SectionTable:
    """This library against each method at equal served bytes, over all reports and budgets."""
    rows = list(chain(*contests.values()))
    first = [(FIRST_IN_TRIALS, _verdict(row)) for row in rows if row["in trials"] == 1]
    return table(
        "contestants",
        "This library against each method at equal served bytes, over all reports and budgets",
        "against; better; within noise; worse",
        _counts([*first, *((str(row["method"]), _verdict(row)) for row in rows)]),
    )


def _verdict(row: Record) -> str:
    return str(row["verdict"]).split(",")[0]


def _number(cell: Cell) -> float:
    return float(cell) if cell is not None else float("nan")
