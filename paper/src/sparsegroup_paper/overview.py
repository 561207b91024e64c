"""Several reports side by side: what came out on each data set, and in all."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from sparsegroup.artifact import write_atomically
from sparsegroup_paper.against_best import AGAINST_BEST, RECIPES
from sparsegroup_paper.markdown import section_markdown
from sparsegroup_paper.published import published
from sparsegroup_paper.recipe import RECIPE
from sparsegroup_paper.report import REPORT, Report, read_report
from sparsegroup_paper.section import Cell, Column, Section, SectionTable
from sparsegroup_paper.statistics import Count, share_significant

INDEX = "index.md"

STRENGTHS_AT = (0.5, 0.3, 0.1, 0.05, 0.03, 0.01)
"""Feature rates at which λ21 is told."""

GOAL_FROM = 0.3
"""The highest feature rate at which the recipe is to be as good as any method."""

Row = Mapping[str, Cell]


def write_overview(folder: Path) -> list[str]:
    """Write `index.md`, on the reports in its subfolders.

    Args:
        folder: Its subfolders are reports.

    Returns:
        Names of the reports, in order; nothing is written if there are none.
    """
    names = sorted(path.parent.name for path in folder.glob(f"*/{REPORT}"))
    reports = {name: report for name in names if (report := read_report(folder / name)).facts is not None}
    if reports:
        summary = _summary({name: {one.name: one for one in report.sections} for name, report in reports.items()})
        text = "\n".join([_HEAD, _reports(reports), section_markdown(summary)])
        write_atomically(folder / INDEX, lambda path: path.write_text(text, encoding="utf-8"))
    return list(reports)


_HEAD = """# The paper's experiments, repeated

Section 4 of Yue et al. (ECML-PKDD 2021) on data at hand, and on a synthetic log of Criteo's shape. Each report is a
file of all its numbers, with the command that wrote it; `sparsegroup-paper report FOLDER` makes it a page.
"""


def _reports(reports: Mapping[str, Report]) -> str:
    lines = ["| report | data | experiments | made | computing |", "| --- | --- | --- | --- | ---: |"]
    for name, report in reports.items():
        assert report.facts is not None
        about = "; ".join(f"{what}: {text}" for what, text in report.facts.data if what in ("rows", "network", "seeds"))
        hours = "–" if report.facts.hours is None else f"{report.facts.hours:.1f} h"
        experiments = ", ".join(section.name for section in report.sections)
        lines.append(f"| [{name}]({name}/{REPORT}) | {about or '–'} | {experiments} | {report.facts.date} | {hours} |")
    return "\n".join(lines) + "\n"


def rows_of(section: Section, table: str) -> list[Row]:
    """The rows of a table, by the names of its columns."""
    found = next(one for one in section.tables if one.name == table)
    return [dict(zip((column.name for column in found.columns), row, strict=True)) for row in found.rows]


def _summary(sections: Mapping[str, Mapping[str, Section]]) -> Section:
    tables, findings = [], []
    against = {name: rows_of(of[_AGAINST], "points") for name, of in sections.items() if _AGAINST in of}
    if against:
        tables += [_against_pruning(against), _strengths(against)]
        findings += _counted([row for rows in against.values() for row in rows])
    best = {name: rows_of(of["best-auc"], "best") for name, of in sections.items() if "best-auc" in of}
    if best:
        tables.append(_best(best))
    frontiers = {name: rows_of(of["frontier"], "compared") for name, of in sections.items() if "frontier" in of}
    if frontiers:
        tables.append(_leaders(frontiers))
        findings += _methods(row for rows in frontiers.values() for row in rows)
    goals = {
        name: rows_of(of["frontier"], AGAINST_BEST)
        for name, of in sections.items()
        if "frontier" in of and any(one.name == AGAINST_BEST for one in of["frontier"].tables)
    }
    if goals:
        tables.append(_recipe(goals))
        findings += [_goal(method, goals, frontiers) for method in RECIPES]
    return Section("overview", "What came out", tuple(findings), (), tuple(tables))


_AGAINST = "sparsity-vs-auc"


def _against_pruning(against: Mapping[str, Sequence[Row]]) -> SectionTable:
    rows: list[tuple[Cell, ...]] = []
    for name, points in against.items():
        words = Counter(str(point["verdict"]).split(",")[0] for point in points)
        safe = sum(_number(point["95 % low"]) > -0.001 for point in points)
        differences = [_number(point["difference"]) for point in points]
        rates = [_number(point["feature rate"]) for point in points]
        rows.append(
            (
                name,
                len(points),
                f"{max(rates):.2g} – {min(rates):.2g}",
                words["better"],
                words["within noise"],
                words["worse"],
                safe,
                min(differences),
                max(differences),
            )
        )
    return SectionTable(
        "against-pruning",
        "Group Adam against Adam pruned to the same feature rate",
        (
            Column("report"),
            Column("points"),
            Column("feature rates"),
            Column("better"),
            Column("within noise"),
            Column("worse"),
            Column("non-inferior"),
            Column("least difference", "+.4f"),
            Column("largest", "+.4f"),
        ),
        tuple(rows),
        "By the 95 % interval of a paired bootstrap over test rows and seeds (over rows alone where there is one "
        "seed); "
        "non-inferior is less than .001 AUC worse.",
    )


def _strengths(against: Mapping[str, Sequence[Row]]) -> SectionTable:
    """λ21 at some feature rates: between two points, linear in both logarithms."""
    lines: list[tuple[Cell, ...]] = []
    for name, points in against.items():
        ordered = sorted(points, key=lambda point: _number(point["feature rate"]))
        rates = np.log([max(_number(point["feature rate"]), 1e-12) for point in ordered])
        strengths = np.log([_number(point["λ21"]) for point in ordered])
        cells = [
            float(np.exp(np.interp(np.log(rate), rates, strengths))) if rates[0] <= np.log(rate) <= rates[-1] else None
            for rate in STRENGTHS_AT
        ]
        lines.append((name, *cells))
    return SectionTable(
        "strengths",
        "λ21 of Group Adam that leads to a feature rate",
        (Column("report"), *(Column(f"{rate:g}", ".1e") for rate in STRENGTHS_AT)),
        tuple(lines),
        "Between two points of the report, linearly in both logarithms.",
    )


def _counted(points: Sequence[Row]) -> list[str]:
    claims = published().claims

    def count(below: float | None) -> Count:
        tested = [point for point in points if point["p"] is not None]
        return share_significant(
            [_number(point["p"]) for point in tested],
            [_number(point["feature rate"]) for point in tested],
            [_number(point["difference"]) for point in tested],
            claims.confidence,
            below,
        )

    everywhere, low = count(None), count(claims.low_feature_rate)
    return [
        "Counted as the paper does, over all reports with several seeds: Group Adam is significantly better than "
        "pruned "
        f"Adam at {claims.confidence:.0%} confidence at {everywhere.significant} of {everywhere.cells} points "
        f"({everywhere.share:.0%}; the paper: {claims.share_significant:.0%}), and below a feature rate of "
        f"{claims.low_feature_rate:g} at {low.significant} of {low.cells} ({low.share:.0%}; the paper: "
        f"{claims.share_significant_at_low_rate:.1%})."
    ]


def _best(best: Mapping[str, Sequence[Row]]) -> SectionTable:
    names = ("optimizer", "settings", "AUC", "Group: AUC", "Group: feature rate", "difference", "verdict")
    formats = ("", "", ".4f", ".4f", ".4f", "+.4f", "")
    return SectionTable(
        "without-pruning",
        "Base optimizers with all features against their Group versions",
        (Column("report"), *(Column(name, form) for name, form in zip(names, formats, strict=True))),
        tuple((report, *(row[name] for name in names)) for report, rows in best.items() for row in rows),
    )


def _leaders(frontiers: Mapping[str, Sequence[Row]]) -> SectionTable:
    rates = sorted({_number(row["feature rate"]) for rows in frontiers.values() for row in rows}, reverse=True)
    lines: list[tuple[Cell, ...]] = []
    for report, rows in frontiers.items():
        cells: list[Cell] = [report]
        for rate in rates:
            at = [row for row in rows if row["feature rate"] == rate]
            top = max(at, key=lambda row: _number(row["test AUC"]), default=None)
            cells.append(None if top is None else f"{top['method']} ({_number(top['test AUC']):.4f})")
        lines.append(tuple(cells))
    return SectionTable(
        "leaders",
        "Highest mean AUC by feature rate",
        (Column("report"), *(Column(f"at {rate:g}") for rate in rates)),
        tuple(lines),
        "A mean that is highest need not be so by more than noise: see the verdicts in the reports.",
    )


def _methods(rows: Iterable[Row]) -> list[str]:
    """Each method of the frontier against pruning, over all reports."""
    verdicts: dict[str, Counter[str]] = {}
    for row in rows:
        if row["verdict"] is not None:
            verdicts.setdefault(str(row["method"]), Counter())[str(row["verdict"]).split(",")[0]] += 1
    parts = [
        f"{method} {count['better']} / {count['within noise']} / {count['worse']}" for method, count in verdicts.items()
    ]
    return [
        "Against pruned and fine-tuned Adam at the frontier's rates, better / within noise / worse: "
        f"{'; '.join(parts)}."
    ]


def _recipe(goals: Mapping[str, Sequence[Row]]) -> SectionTable:
    """The recommended recipe against the best of all others, by report and rate."""
    names = ("feature rate", "method", "test AUC", "best of the others", "its AUC", "difference", "verdict")
    formats = ("", "", ".4f", "", ".4f", "+.4f", "")
    return SectionTable(
        "recipe",
        f"{RECIPE} against the best of all others",
        (Column("report"), *(Column(name, form) for name, form in zip(names, formats, strict=True))),
        tuple((report, *(row[name] for name in names)) for report, rows in goals.items() for row in rows),
        "The best of the others is that with the highest mean test AUC, which is luck in part: the recipe's choices "
        "are made on training rows.",
    )


def _goal(method: str, goals: Mapping[str, Sequence[Row]], frontiers: Mapping[str, Sequence[Row]]) -> str:
    """How often it is as good as any, and better than pruning where any is, at the rates of the goal."""
    words: Counter[str] = Counter()
    worse, wins, wanted = [], 0, 0
    for report, rows in goals.items():
        for row in rows:
            rate = _number(row["feature rate"])
            if rate > GOAL_FROM or row["method"] != method:
                continue
            words[_word(row)] += 1
            if _word(row) == "worse":
                worse.append(f"{report} at {rate:g} by {-_number(row['difference']):.4f}")
            better = {
                one["method"] for one in frontiers[report] if one["feature rate"] == rate and _word(one) == "better"
            }
            wanted += bool(better)
            wins += method in better
    where = f" ({', '.join(worse)})" if worse else ""
    return (
        f"{method} against the best of all others at rates of {GOAL_FROM:g} and below, better / within noise / worse: "
        f"{words['better']} / {words['within noise']} / {words['worse']}{where}. "
        f"Where any method is better than pruned and fine-tuned Adam, so is it at {wins} of {wanted}."
    )


def _word(row: Row) -> str:
    return str(row["verdict"]).split(",")[0]


def _number(cell: Cell) -> float:
    return float(cell) if cell is not None else float("nan")
