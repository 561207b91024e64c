"""AUC by size, as a picture."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from sparsegroup.reporting.charts import COLOURS, INK, STYLE, save_png
from sparsegroup.reporting.formatting import size


def plot_path(
    points: Sequence[tuple[float, float, int]],
    all_features: float,
    tolerance: float,
    begins: float | None,
    title: str,
    path: Path,
) -> None:
    """Test AUC by feature rate, against the AUC of all features, as a PNG.

    Args:
        points: Feature rate, AUC and bytes of models; one of rate 0 has no place on a logarithmic axis.
        all_features: The AUC of all features.
        tolerance: AUC that counts as no loss: a band.
        begins: The smallest rate without a loss, marked; None if there is none.
        title: Above the plot.
        path: The file.
    """
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        axes = figure.subplots()
        axes.axhspan(all_features - tolerance, all_features, color=INK, alpha=0.08, linewidth=0)
        axes.axhline(all_features, color=INK, linestyle="--", linewidth=1.1, label=f"all features: {all_features:.4f}")
        by_rate = sorted(point for point in points if point[0] > 0)
        axes.plot([r for r, _, _ in by_rate], [a for _, a, _ in by_rate], "o-", color=COLOURS["orange"])
        for rate, auc, count in by_rate:
            axes.annotate(
                f"{auc:.4f}\n{size(count)}",
                (rate, auc),
                (0, -9),
                textcoords="offset points",
                ha="center",
                va="top",
                bbox={"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1.5},
            )
        if begins:
            chosen = next(auc for rate, auc, _ in by_rate if rate == begins)
            label = f"no loss (of more than {tolerance:g}) down to {100 * begins:.2g} %"
            axes.plot([begins], [chosen], "o", markersize=13, fillstyle="none", color=COLOURS["blue"], label=label)
        axes.set_xscale("log")
        axes.set_xticks([rate for rate, _, _ in by_rate])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{100 * rate:.2g} %"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.margins(0.12, 0.3)
        axes.set_title(title, parse_math=False)
        axes.set(xlabel="feature rate: live features over features seen", ylabel="test AUC")
        axes.legend(loc="lower right", frameon=False)
        save_png(figure, path)
