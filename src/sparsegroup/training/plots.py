"""Pictures of a run."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from sparsegroup.training.trainer import Progress

BLUE, ORANGE = "#1f77b4", "#d9730d"


def plot_progress(history: Sequence[Progress], test_auc: float, title: str, path: Path) -> None:
    """AUC and feature rate along the pass, as a PNG or whatever the suffix of `path` says."""
    samples = [point.samples for point in history]
    figure = Figure(figsize=(7, 5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    top.plot(samples, [point.auc for point in history], color=BLUE, label="next samples (test, then train)")
    top.axhline(test_auc, color="0.4", linestyle="--", linewidth=1, label=f"test set: {test_auc:.4f}")
    top.set(title=title, ylabel="AUC")
    top.legend(loc="lower right", frameon=False)
    bottom.plot(samples, [100 * point.feature_rate for point in history], color=ORANGE)
    bottom.set(xlabel="samples trained on", ylabel="feature rate, % of features seen", ylim=(0, None))
    bottom.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    for axes in (top, bottom):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
