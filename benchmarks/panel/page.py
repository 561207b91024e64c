"""The results as a page of the documentation, and as a picture: how far each method is from the best baseline."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean, median
from typing import Any

from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from panel.baselines import BASELINES
from panel.contest import CALIBRATION, FEATURE_RATE, MARGIN, OURS, verdict_of
from panel.family import KEPT, UNSEEN
from panel.linear import CHOOSING
from sparsegroup.reporting.charts import COLOURS
from sparsegroup_paper.figures import INK, STYLE

_INTRODUCTION = f"""# Out of the box

`sparsegroup train LOG` with no option but the label, against six baselines whose hyperparameters are searched.
Written by `python benchmarks/out_of_the_box.py --data FOLDER`, which runs all of it.

Every method sees the same training rows and is measured on the same test rows, as `sparsegroup` splits the log. A
baseline chooses its hyperparameters by log loss on the last tenth of the training rows in time, fitted to at most
{CHOOSING:,} rows before them, and is then fitted to all training rows: hashed logistic regression (scikit-learn;
one-hot categories, quantile buckets and standardized numbers; C), LightGBM and XGBoost (native categories; leaves or
depth, rows of a leaf, categories kept, integers as numbers or categories; early stopping), CatBoost (depth, L2), `vw`
(learning rate, passes, `-q ::`), FTRL-Proximal (α, λ1, λ2, passes). Times give them hour and weekday; columns that
never repeat are left out. Ours is the mean over seeds. Seconds are of two cores that other programs used as well.

Besides public logs and the log of `sparsegroup synthesize` (`clicks`), there are made-up logs of a family
(`benchmarks/panel/family.py`), each with another difficulty. {len(KEPT)} of them were kept while trials, pairs and
sizes were chosen: {", ".join(KEPT)}. How a run ends (averages,
the shift of the logits) and the sums of lists were later measured on all of these but ads. {len(UNSEEN)} were first
looked at when all of that was done: {", ".join(UNSEEN)}.

The goal is met where ours is at most {MARGIN} worse than the best baseline, in AUC and in log loss, at a calibration of
{CALIBRATION[0]}–{CALIBRATION[1]} with at most {FEATURE_RATE:.0%} of the features. ± is the standard error of a
difference, over test rows (paired) and seeds: what is missed by less than twice that is said to be within noise. MB:
what must be kept to predict: of ours the keys of the features that are kept, with their vectors as float32; of logistic
regression and FTRL-Proximal the keys of the weights other than 0, with these; of the others the file that the library
saves, without the dictionary that numbers the categories of the trees.

Where it is missed: the share of positives moves (ratings, mixed, season, visits, nycflights13), and the training rows
do not say whether following the last of them would help; negatives and plays, where users keep to a few items among
thousands, are CatBoost's, in several times the time; on alerts, with 111 positives among the test rows, a logistic
regression is better there but not on the held-out training rows, so that no trial would choose it.

![AUC and log loss of all methods beside the best baseline of each log](contest.png)
"""


def page_of(results: Mapping[str, Any]) -> str:
    """Markdown of results: log → its entry, as `contest` makes it."""
    return "\n".join(
        [
            _INTRODUCTION,
            *_summary(results),
            *_ranking(results),
            *(line for name in results for line in _log(name, results[name])),
        ]
    )


def _summary(results: Mapping[str, Any]) -> Iterator[str]:
    yield "| log | AUC, ours − best | met | log loss, best − ours | met | calibration | met | features | met |"
    yield "|---|---|---|---|---|---:|---|---:|---|"
    for name, entry in results.items():
        if "differences" not in entry:
            continue
        cells = [name]
        for metric in ("auc", "log_loss"):
            one = entry["differences"][metric]
            cells.append(f"{one['difference']:+.4f} ± {one['error']:.4f} ({one['best']})")
            cells.append(verdict_of(one["difference"], one["error"]))
        ours = entry["methods"][OURS]
        cells += [f"{ours['calibration']:.3f}", _yes(CALIBRATION[0] <= ours["calibration"] <= CALIBRATION[1])]
        cells += [f"{ours['feature_rate']:.1%}", _yes(ours["feature_rate"] <= FEATURE_RATE)]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _ranking(results: Mapping[str, Any]) -> Iterator[str]:
    """All methods over the logs on which each of them was run: mean ranks, worst distances from the best, seconds."""
    every = [OURS, *BASELINES]
    entries = [entry["methods"] for entry in results.values() if set(every) <= entry["methods"].keys()]
    if not entries:
        return
    yield f"Over the {len(entries)} logs on which all methods were run, mean ranks among {len(every)}:\n"
    yield (
        "| method | rank, AUC | worst AUC − best | rank, log loss | worst log loss − best | seconds, median "
        "| MB, median |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|"
    lines = []
    for method in every:
        cells: list[float] = []
        for metric, sign in (("auc", 1), ("log_loss", -1)):
            values = [{name: sign * of[name][metric] for name in every} for of in entries]
            cells.append(mean(1 + sum(other > one[method] for other in one.values()) for one in values))
            cells.append(sign * min(one[method] - max(one.values()) for one in values))
        seconds = median(of[method]["seconds"] for of in entries)
        served = [of[method]["served_bytes"] for of in entries if of[method].get("served_bytes") is not None]
        size = f"{median(served) / 1e6:,.2f}" if len(served) == len(entries) else ""
        figures = f"{cells[0]:.1f} | {cells[1]:+.4f} | {cells[2]:.1f} | {cells[3]:+.4f} | {seconds:,.0f} | {size}"
        lines.append((cells[2], f"| {method} | {figures} |"))
    yield from (line for _, line in sorted(lines))
    yield ""


def _log(name: str, entry: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {name}\n"
    yield f"{entry['test_rows']:,} test rows, {entry['positives']:,} of them positive; {entry['columns']}.\n"
    if "best_possible" in entry:
        best = entry["best_possible"]
        yield f"The true probabilities reach an AUC of {best['auc']:.4f} at a log loss of {best['log_loss']:.4f}.\n"
    if missing := [name for name in BASELINES if name not in entry["methods"]]:
        yield f"Not run on this log: {', '.join(missing)}.\n"
    yield "| method | AUC | log loss | normalized entropy | calibration | features | MB | seconds | chosen |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---|"
    for method, figures in sorted(entry["methods"].items(), key=lambda one: -one[1]["auc"]):
        cells = [method, *(f"{figures[metric]:.4f}" for metric in ("auc", "log_loss", "normalized_entropy"))]
        cells.append(f"{figures['calibration']:.3f}")
        served = figures.get("served_bytes")
        cells.append(f"{figures['features']:,.0f}" if "features" in figures else "")
        cells.append("" if served is None else f"{served / 1e6:,.2f}")
        cells.append(f"{figures['seconds']:,.0f}")
        cells.append(", ".join(f"{key} {value}" for key, value in figures.get("settings", {}).items()))
        yield f"| {' | '.join(cells)} |"
    yield ""


def _yes(met: bool) -> str:
    return "yes" if met else "no"


_MARKERS = {
    "logistic regression": "s",
    "LightGBM": "^",
    "XGBoost": ">",
    "CatBoost": "<",
    "vw": "v",
    "FTRL-Proximal": "D",
}
_LINEAR = 0.01
"""Differences up to here are drawn in proportion, larger ones by their logarithms."""


def plot_contest(results: Mapping[str, Any], path: Path) -> None:
    """Write the picture of `contest_figure`."""
    contest_figure(results).savefig(path)


def contest_figure(results: Mapping[str, Any]) -> Figure:
    """Return a picture of logs with baselines; in each metric, right is better and 0 the best baseline."""
    logs = [name for name, entry in results.items() if "differences" in entry and not name.endswith(", Parquet")]
    with style.context(["default", STYLE]):
        figure = Figure((9, 1.3 + 0.42 * len(logs)), dpi=100, layout="constrained", facecolor="white")
        axes = figure.subplots(1, 2, sharey=True)
        for ax, metric, sign in zip(axes, ("auc", "log_loss"), (1, -1), strict=True):
            for row, name in enumerate(logs):
                methods = results[name]["methods"]
                values = {method: sign * figures[metric] for method, figures in methods.items()}
                best = max(value for method, value in values.items() if method != OURS)
                for method, value in values.items():
                    ours = method == OURS
                    ax.plot(
                        value - best,
                        row,
                        "o" if ours else _MARKERS[method],
                        color=COLOURS["orange"] if ours else INK,
                        alpha=1 if ours else 0.45,
                        markersize=9 if ours else 6,
                        markeredgewidth=0,
                        label=method if row == 0 else None,
                        zorder=3 if ours else 2,
                        clip_on=False,
                    )
            ax.axvline(0, color=INK, linewidth=0.8)
            ax.set_xscale("symlog", linthresh=_LINEAR)
            ax.xaxis.set_major_locator(FixedLocator([-1, -0.1, -0.01, 0, 0.01, 0.1, 1]))
            ax.xaxis.set_major_formatter("{x:g}")
            ax.minorticks_off()
            what = "AUC − best baseline's" if metric == "auc" else "best baseline's log loss − log loss"
            ax.set_xlabel(f"{what}\nlogarithmic beyond ±{_LINEAR}")
        axes[0].set_yticks(range(len(logs)), [_named(name, results[name]) for name in logs])
        axes[0].set_ylim(len(logs) - 0.5, -0.5)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
        return figure


def _named(name: str, entry: Mapping[str, Any]) -> str:
    return f"{name} ({entry['methods'][OURS]['feature_rate']:.0%} of the features)"
