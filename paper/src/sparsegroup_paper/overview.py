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
from sparsegroup_paper.published import published
from sparsegroup_paper.report import REPORT, Report, read_report, section_markdown
from sparsegroup_paper.section import Cell, Section, SectionTable, columns
from sparsegroup_paper.statistics import MARGIN, count_significant

INDEX = "index.md"
MARKS = "<!-- overview -->", "<!-- end of the overview -->"
"""Lines of a page between which the overview is written."""

Row = Mapping[str, Cell]


def write_overview(folder: Path, page: Path | None = None) -> list[str]:
    """Write what the reports in the subfolders say, between the `MARKS` of a page, or into `index.md` in the folder.

    Returns:
        Names of the reports, in order; nothing is written if there are none.

    Raises:
        UserError: The page has no such lines.
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
    def rows_of(section: str, table: str) -> dict[str, list[Row]]:
        """Report → rows of a table by the names of its columns, where there is one."""
        tables = {
            name: one
            for name, report in reports.items()
            for of in report.sections
            for one in of.tables
            if (of.name, one.name) == (section, table)
        }
        return {
            name: [dict(zip((column.name for column in one.columns), row, strict=True)) for row in one.rows]
            for name, one in tables.items()
        }

    tables: list[SectionTable] = []
    findings: list[str] = []
    claims: list[tuple[Cell, ...]] = []
    if against := rows_of("sparsity-vs-auc", "points"):
        tables += [_against_pruning(against), _strengths(against)]
        claims.append(("Group Adam is better than pruned Adam", "Table 2", _counted(list(chain(*against.values())))))
    if best := rows_of("best-auc", "best"):
        tables.append(_without_pruning(best))
        found = _verdicts(chain(*best.values()))
        claims.append(("Group versions lose no AUC with few features", "Table 3", f"against all features {found}"))
    if family := rows_of("family", "family"):
        found = _verdicts(chain(*family.values()))
        claims.append(("The same for all six optimizers", "promised", f"against all features {found}"))
    if norms := rows_of("norm", "compared"):
        for norm in dict.fromkeys(str(row["other norm"]) for row in chain(*norms.values())):
            found = _verdicts(row for row in chain(*norms.values()) if row["other norm"] == norm)
            claims.append((f"‖s‖ against {norm} at the same feature rate", "Figure 2, Table 9", found))
    if values := rows_of("l1-vs-l21", "values"):
        times = [_number(row["times"]) for row in chain(*values.values())]
        found = f"at {sum(one > 1 for one in times)} of {len(times)} values"
        claims.append(("λ21 keeps fewer features than an equal λ1", "Figure 3", found))
    if dimensions := rows_of("embedding-dim", "dimensions"):
        rates = [[_number(row["feature rate"]) for row in rows] for rows in dimensions.values()]
        falling = sum(all(one >= other for one, other in pairwise(of)) for of in rates)
        found = f"in {falling} of {len(rates)} reports"
        claims.append(("The feature rate falls as the dimension grows", "Table 4", found))
    if claims:
        title = "The paper's claims, and what came out over all reports"
        tables.insert(0, SectionTable("claims", title, columns("claim; in the paper; here"), tuple(claims)))
    if frontiers := rows_of("frontier", "compared"):
        tables += [_methods(frontiers), _recipe(frontiers)]
        findings.append(_higher(frontiers))
    if contests := rows_of("bytes", "compared"):
        tables += [_contest(contests), _contestants(contests)]
    return Section("overview", "What came out", tuple(findings), (), tuple(tables))


def _verdicts(rows: Iterable[Row]) -> str:
    words = Counter(map(_verdict, rows))
    return f"better {words['better']}, within noise {words['within noise']}, worse {words['worse']}"


def _against_pruning(against: Mapping[str, Sequence[Row]]) -> SectionTable:
    rows: list[tuple[Cell, ...]] = []
    for name, points in against.items():
        words = Counter(map(_verdict, points))
        differences, rates = ([_number(point[key]) for point in points] for key in ("difference", "feature rate"))
        rows.append(
            (
                *(name, len(points), f"{max(rates):.2g} – {min(rates):.2g}"),
                *(words["better"], words["within noise"], words["worse"]),
                sum(_number(point["95 % low"]) > -MARGIN for point in points),
                *(min(differences), max(differences)),
            )
        )
    return SectionTable(
        "against-pruning",
        "Group Adam against Adam pruned to the same feature rate (Table 2)",
        columns(
            "report; points; feature rates; better; within noise; worse; non-inferior; "
            "least difference|+.4f; largest|+.4f"
        ),
        tuple(rows),
        "By the 95 % interval of a paired bootstrap over test rows and seeds (over rows only if there is one seed); "
        f"non-inferior is less than {MARGIN:g} AUC worse.",
    )


def _strengths(against: Mapping[str, Sequence[Row]]) -> SectionTable:
    """λ21 at some feature rates: between two points, linear in both logarithms."""
    lines: list[tuple[Cell, ...]] = []
    for name, points in against.items():
        ordered = sorted(points, key=lambda point: _number(point["feature rate"]))
        rates = np.log([max(_number(point["feature rate"]), 1e-12) for point in ordered])
        strengths = np.log([_number(point["λ21"]) for point in ordered])
        found = np.exp(np.interp(np.log(RATES), rates, strengths, np.nan, np.nan))
        lines.append((name, *(float(value) if np.isfinite(value) else None for value in found)))
    return SectionTable(
        "strengths",
        "λ21 of Group Adam that leads to a feature rate",
        columns("; ".join(["report", *(f"{rate:g}|.1e" for rate in RATES)])),
        tuple(lines),
        "Between two points of the report, linearly in both logarithms.",
    )


def _counted(points: Sequence[Row]) -> str:
    """As the paper counts, over all reports with several seeds."""
    claims = published().claims
    cells = [
        (_number(point["p"]), _number(point["feature rate"]), _number(point["difference"]))
        for point in points
        if point["p"] is not None
    ]
    everywhere = count_significant(cells, claims.confidence)
    low = count_significant(cells, claims.confidence, below=claims.low_feature_rate)
    return (
        f"significantly at {claims.confidence:.0%} confidence at {everywhere.significant} of {everywhere.cells} points "
        f"({everywhere.share:.0%}; the paper: {claims.share_significant:.0%}), below a feature rate of "
        f"{claims.low_feature_rate:g} at {low.significant} of {low.cells} ({low.share:.0%}; the paper: "
        f"{claims.share_significant_at_low_rate:.1%})"
    )


def _without_pruning(best: Mapping[str, Sequence[Row]]) -> SectionTable:
    shown = columns("optimizer; settings; AUC|.4f; Group: AUC|.4f; Group: feature rate|.4f; difference|+.4f; verdict")
    return SectionTable(
        "without-pruning",
        "Base optimizers with all features against their Group versions (Table 3)",
        (*columns("report"), *shown),
        tuple((report, *(row[column.name] for column in shown)) for report, rows in best.items() for row in rows),
    )


def _methods(frontiers: Mapping[str, Sequence[Row]]) -> SectionTable:
    """Each method of the frontier against pruning, over all reports."""
    verdicts: dict[str, Counter[str]] = {}
    for row in (row for rows in frontiers.values() for row in rows):
        if row["verdict"] is not None:
            verdicts.setdefault(str(row["method"]), Counter())[_verdict(row)] += 1
    words = ("better", "within noise", "worse")
    return SectionTable(
        "methods",
        f"Methods against “{PRUNED}”, over all reports and the rates of the next table",
        columns("method; better; within noise; worse"),
        tuple((method, *(count[word] for word in words)) for method, count in verdicts.items()),
    )


def _at(rows: Sequence[Row], rate: float) -> dict[str, Row]:
    return {str(row["method"]): row for row in rows if row["feature rate"] == rate}


def _recipe(frontiers: Mapping[str, Sequence[Row]]) -> SectionTable:
    """The recommended recipe, the best of the other methods, and pruning, by report and rate."""
    lines: list[tuple[Cell, ...]] = []
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
    return SectionTable(
        "recipe",
        f"Test AUC of the recommended recipe (compared with “{PRUNED}”), the best of the other methods, and pruning",
        columns("; ".join(["report", "", *(f"{rate:g}|.4f" for rate in RATES)])),
        tuple(lines),
        "The best of the others is the one with the highest mean test AUC, in part by luck.",
    )


def _higher(frontiers: Mapping[str, Sequence[Row]]) -> str:
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


def _contest(contests: Mapping[str, Sequence[Row]]) -> SectionTable:
    """This library and the best of the other methods, at equal served bytes, by report and budget."""
    lines: list[tuple[Cell, ...]] = []
    for report, rows in contests.items():
        for budget in dict.fromkeys(row["budget"] for row in rows):
            of_budget = [row for row in rows if row["budget"] == budget]
            best = max(of_budget, key=lambda row: _number(row["test AUC"]))
            first = next(row for row in of_budget if row["in trials"] == 1)
            ours = (best[name] for name in ("ours", "its AUC", "int4 AUC"))
            others = (row[name] for row in (first, best) for name in ("method", "test AUC", "verdict"))
            lines.append((report, budget, *ours, *others))
    return SectionTable(
        "contest",
        "At equal served bytes: this library, and the best of the others by held-out rows and by the test rows",
        columns(
            "report; of the dense table|.1%; this library; its AUC|.4f; int4 AUC|.4f; first in trials; AUC|.4f; "
            "verdict; highest on the test rows; AUC|.4f; verdict"
        ),
        tuple(lines),
        "This library's form is chosen on held-out rows, as the method that is first in trials; the one with the "
        "highest mean test AUC of up to 30 methods and precisions is that in part by luck. “int4 AUC” is that of one "
        f"form for all, “{FIXED}”, without a choice.",
    )


def _contestants(contests: Mapping[str, Sequence[Row]]) -> SectionTable:
    """This library against each method at equal served bytes, over all reports and budgets."""
    verdicts: dict[str, Counter[str]] = {FIRST_IN_TRIALS: Counter()}
    for row in chain(*contests.values()):
        verdicts.setdefault(str(row["method"]), Counter())[_verdict(row)] += 1
        if row["in trials"] == 1:
            verdicts[FIRST_IN_TRIALS][_verdict(row)] += 1
    words = ("better", "within noise", "worse")
    return SectionTable(
        "contestants",
        "This library against each method at equal served bytes, over all reports and budgets",
        columns("; ".join(["against", *words])),
        tuple((method, *(count[word] for word in words)) for method, count in verdicts.items()),
    )


def _verdict(row: Row) -> str:
    return str(row["verdict"]).split(",")[0]


def _number(cell: Cell) -> float:
    return float(cell) if cell is not None else float("nan")
