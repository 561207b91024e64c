"""How good a model of each size would be: one pass for each, and one with all features."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from sparsegroup.data.log import Log
from sparsegroup.optim.step import KEY_BYTES
from sparsegroup.reporting.run_record import Metrics
from sparsegroup.training.build import NO_TARGET, Config
from sparsegroup.training.comparison import Reporter
from sparsegroup.training.log_pass import train_as


@dataclass(frozen=True)
class PathPoint:
    """A model of one size.

    Attributes:
        asked: The feature rate asked for; None for all features.
        feature_rate: Live features over features seen in training.
        live_rows: Live features.
        bytes: What these take where they are served: float32 vectors and 8-byte keys.
        test: Metrics on the test rows.
        l21: λ21 at the end; 0 for all features.
    """

    asked: float | None
    feature_rate: float
    live_rows: int
    bytes: int
    test: Metrics
    l21: float


def size_path(
    log: Log,
    config: Config,
    rates: Sequence[float],
    reporting: Callable[[str], AbstractContextManager[Reporter | None]] = lambda name: nullcontext(),
) -> list[PathPoint]:
    """Train once with all features, then once for each feature rate, with the same seed.

    Args:
        log: It has test rows.
        config: All but the size; with a target, so that its penalty is "hard" unless another was asked for.
        rates: Feature rates in (0, 1); those of all other fields where the config has rates for some.
        reporting: Given a name, a context that yields the `on_batch` and `on_progress` of `train`, or None.

    Returns:
        All features first, then as many points as rates, in their order.

    Raises:
        SettingsError: A rate out of range, or fields or times that the log has not.
    """
    config.check_log(log)
    config = config.resolved_for(log)
    everything = config.replace(l1=0.0, l21=0.0, l2=0.0, **NO_TARGET)
    configs = [everything, *(config.replace(l21=0.0, target_rate=rate, target_bytes=None) for rate in rates)]
    points = []
    for one in configs:
        asked = one.optimizer.target_rate
        model, optimizer = one.build(log)
        with reporting("all features" if asked is None else f"rate {asked:g}") as reporter:
            on_batch, on_progress = reporter or (None, None)
            result = train_as(one, model, optimizer, log, on_batch=on_batch, on_progress=on_progress)
        size = model.live_bytes + result.live_rows * KEY_BYTES
        l21 = float(optimizer.param_groups[0]["l21"])
        points.append(PathPoint(asked, result.feature_rate, result.live_rows, size, result.test, l21))
    return points


def cheapest(points: Sequence[PathPoint], tolerance: float) -> PathPoint:
    """The smallest model whose test AUC is no more than `tolerance` below that of all features, the first point."""
    good = [point for point in points if point.test.auc >= points[0].test.auc - tolerance]
    return min(good or points[:1], key=lambda point: point.live_rows)
