"""Charts of predictions against labels: reliability and gains, beside the baseline's."""

from collections.abc import Sequence

from sparsegroup.reporting.charts import Axis, Colour, Curve, DrawnChart, line_svg
from sparsegroup.reporting.formatting import percent
from sparsegroup.reporting.run_record import ScoreCurves

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

    drawn = [
        Curve([b.predicted for b in one.reliability], [b.actual for b in one.reliability], colour, dots=True)
        for _, colour, one in reversed(curves)
    ]
    bins = curves[0][2].reliability
    said = f"from {percent(bins[0].predicted)} predicted, {percent(bins[0].actual)} positive, to "
    said += f"{percent(bins[-1].predicted)} predicted, {percent(bins[-1].actual)} positive"
    return DrawnChart(
        "Reliability",
        f"{len(bins)} bins of about as many rows",
        [*((name, colour) for name, colour, _ in curves), ("perfect", "reference")],
        _svg(farthest, "mean prediction", "share of positives", drawn),
        f"Share of positives by prediction: {said}",
    )


def _gains(curves: _Curves) -> DrawnChart:
    drawn = [
        Curve([0, *(p.share for p in one.gains)], [0, *(p.captured for p in one.gains)], colour, dots=True)
        for _, colour, one in reversed(curves)
    ]
    top = next(point for point in curves[0][2].gains if point.share >= _TOP)
    said = f"the top {top.share:.0%} of the rows hold {percent(top.captured)} of the positives"
    return DrawnChart(
        "Gains",
        f"lift at {top.share:.0%}: {top.captured / top.share:.2f}",
        [*((name, colour) for name, colour, _ in curves), ("by chance", "reference")],
        _svg(1.0, "rows of the highest predictions", "of all positives", drawn),
        f"Share of the positives among the highest predictions: {said}",
    )


def _svg(farthest: float, across: str, up: str, curves: Sequence[Curve]) -> str:
    """Curves of shares up to `farthest`, with a dashed diagonal."""
    x, y = (Axis.of(0, 1.05 * farthest or 1, lambda share: f"{100 * share:.4g} %", label, 6) for label in (across, up))
    return line_svg(245, x, y, curves, [((0, farthest), (0, farthest))])
