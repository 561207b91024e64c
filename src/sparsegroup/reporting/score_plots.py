"""Charts of predictions against labels: reliability and gains, beside the baseline's."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from sparsegroup.reporting.charts import COLOURS, INK, Colour, DrawnChart, svg_element
from sparsegroup.reporting.formatting import percent
from sparsegroup.reporting.run_record import ScoreCurves

_INCHES = (5.4, 3.4)
_TOP = 0.1
"""The share of the rows whose lift is said in words."""

_Curves = Sequence[tuple[str, Colour, ScoreCurves]]


def score_figures(model: ScoreCurves | None, baseline: ScoreCurves | None) -> list[DrawnChart]:
    """The reliability plot and the gains of a model, with the baseline's where there are some; empty without any."""
    if model is None:
        return []
    beside = (("baseline", baseline),) if baseline is not None else ()
    colours: tuple[Colour, ...] = ("blue", "gold")
    curves = [(name, colour, one) for (name, one), colour in zip((("model", model), *beside), colours, strict=False)]
    figures = [_reliability([one for one in curves if one[2].reliability])]
    if model.gains:
        figures.append(_gains([one for one in curves if one[2].gains]))
    return figures


def _reliability(curves: _Curves) -> DrawnChart:
    farthest = max(max(one.predicted, one.actual) for _, _, curve in curves for one in curve.reliability)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot([0, farthest], [0, farthest], color=INK, linestyle="--", linewidth=1.1)
        for _, colour, curve in reversed(curves):
            bins = curve.reliability
            axes.plot([b.predicted for b in bins], [b.actual for b in bins], "o-", color=COLOURS[colour])
        axes.set(xlabel="mean prediction", ylabel="share of positives")
        _finish(axes)

    bins = curves[0][2].reliability
    said = f"from {percent(bins[0].predicted)} predicted, {percent(bins[0].actual)} positive, to "
    said += f"{percent(bins[-1].predicted)} predicted, {percent(bins[-1].actual)} positive"
    return DrawnChart(
        "Reliability",
        f"{len(bins)} bins of about as many rows",
        [*((name, colour) for name, colour, _ in curves), ("perfect", "reference")],
        svg_element("reliability", _INCHES, draw),
        f"Share of positives by prediction: {said}",
    )


def _gains(curves: _Curves) -> DrawnChart:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color=INK, linestyle="--", linewidth=1.1)
        for _, colour, curve in reversed(curves):
            shares = [0.0, *(point.share for point in curve.gains)]
            axes.plot(shares, [0.0, *(point.captured for point in curve.gains)], "o-", color=COLOURS[colour])
        axes.set(xlabel="rows of the highest predictions", ylabel="of all positives")
        _finish(axes)

    top = next(point for point in curves[0][2].gains if point.share >= _TOP)
    said = f"the top {top.share:.0%} of the rows hold {percent(top.captured)} of the positives"
    return DrawnChart(
        "Gains",
        f"lift at {top.share:.0%}: {top.captured / top.share:.2f}",
        [*((name, colour) for name, colour, _ in curves), ("by chance", "reference")],
        svg_element("gains", _INCHES, draw),
        f"Share of the positives among the highest predictions: {said}",
    )


def _finish(axes: Axes) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.4g} %"))
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
