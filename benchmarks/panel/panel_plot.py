"""The results as a picture: how far each method is from the best baseline, log by log."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from panel.contest import OURS
from sparsegroup.reporting.charts import COLOURS, INK, STYLE

_MARKERS = {"logistic regression": "s", "LightGBM": "^", "vw": "v", "FTRL-Proximal": "D"}
_WORST = 0.03
"""What is further behind stands at the edge."""


def plot_contest(results: Mapping[str, Any], path: Path) -> None:
    """Write a picture of logs with baselines; in each metric, right is better and 0 the best baseline."""
    logs = [name for name, entry in results.items() if "differences" in entry]
    with style.context(["default", STYLE]):
        figure = Figure((9, 1.3 + 0.42 * len(logs)), dpi=130, layout="constrained", facecolor="white")
        axes = figure.subplots(1, 2, sharey=True)
        for ax, metric, sign in zip(axes, ("auc", "log_loss"), (1, -1), strict=True):
            for row, name in enumerate(logs):
                methods = results[name]["methods"]
                values = {method: sign * figures[metric] for method, figures in methods.items()}
                best = max(value for method, value in values.items() if method != OURS)
                for method, value in values.items():
                    ours = method == OURS
                    ax.plot(
                        max(value - best, -_WORST),
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
            ax.set_xlim(-_WORST, None)
            ax.xaxis.set_major_locator(MultipleLocator(0.01))
            ax.set_xlabel("AUC − best baseline's" if metric == "auc" else "best baseline's log loss − log loss")
        axes[0].set_yticks(range(len(logs)), [_named(name, results[name]) for name in logs])
        axes[0].set_ylim(len(logs) - 0.5, -0.5)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False)
        figure.savefig(path)


def _named(name: str, entry: Mapping[str, Any]) -> str:
    return f"{name} ({entry['methods'][OURS]['feature_rate']:.0%} of the features)"
