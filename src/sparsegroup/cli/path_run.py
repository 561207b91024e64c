"""What `sparsegroup path` does."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any

from rich.table import Table

from sparsegroup.artifact.folder import new_folder, write_atomically
from sparsegroup.artifact.validation import finite
from sparsegroup.cli.app import UsageError
from sparsegroup.cli.output import show
from sparsegroup.cli.progress import training_bar
from sparsegroup.cli.run_settings import log_name, open_config_log, setting_values, settings_file
from sparsegroup.reporting.formatting import count, metric, percent, size
from sparsegroup.reporting.path_plot import plot_path
from sparsegroup.settings.yaml_settings import share_of
from sparsegroup.training.build import Config, read_config
from sparsegroup.training.size_path import PathPoint, cheapest, size_path

_JSON, _PNG = "path.json", "path.png"


def path_run(
    log: Sequence[str] | None,
    rates: str,
    tolerance: float,
    out: Path | None,
    settings: Mapping[str, Any],
    assignments: Sequence[str],
    threads: int,
    *,
    overwrite: bool,
) -> None:
    """Train at each rate and show what came out; the arguments are those of the command."""
    asked = _rates(rates)
    values = {**setting_values(log, settings, assignments), "optimizer.target_rate": asked[0]}
    config = read_config(settings_file(log), values, "the command line")
    folder = out or Path("paths") / log_name(config)
    if (folder / _JSON).exists() and not overwrite:
        raise UsageError(f"{folder} holds a {_JSON}; give another --out, or --overwrite")
    data = open_config_log(config, threads)
    if len(data) == data.train_rows:
        raise UsageError(f"{data.name} has no test rows: give a test set to measure the models on, with --test, say")
    config = config.resolved_for(data)
    points = size_path(data, config, asked, partial(training_bar, config.training.plan(data.train_rows).samples))
    best = cheapest(points, tolerance)
    content = {
        "log": data.name,
        "config": config.as_dict(),
        "tolerance": tolerance,
        "no_loss_down_to": best.feature_rate,
        "points": [asdict(point) for point in points],
    }
    text = json.dumps(finite(content), indent=1) + "\n"
    with new_folder(folder):
        write_atomically(folder / _JSON, lambda path: path.write_text(text, encoding="utf-8"))
    if isnan(points[0].test.auc):
        written = f"{_JSON}\nno plot: the test rows are all of one class, so there is no AUC"
    else:
        written = f"{_JSON}, {_plotted(config, data.name, points, tolerance, folder)}"
    show({"folder": str(folder), **content}, _table(points, best, tolerance), f"written to {folder}: {written}")


def _plotted(config: Config, name: str, points: Sequence[PathPoint], tolerance: float, folder: Path) -> str:
    """Plot the points; gives the file's name."""
    everything, *others = points
    best = cheapest(points, tolerance)
    smaller = [point for point in others if point.live_rows]  # nothing has no place on a logarithmic axis
    title = f"{config.model.name.upper()} on {Path(name).name}: how small can it be?"
    draw = partial(
        plot_path,
        [point.feature_rate for point in smaller],
        [point.test.auc for point in smaller],
        [point.bytes for point in smaller],
        everything.test.auc,
        tolerance,
        best.feature_rate if best is not everything else None,
        title,
    )
    write_atomically(folder / _PNG, draw)
    return _PNG


def _rates(text: str) -> list[float]:
    try:
        rates = [float(str(share_of(part.strip()))) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < 1 for rate in rates):
        raise UsageError(
            f"--rates wants feature rates between 0 and 1, separated by commas, such as .3,.1: got {text!r}"
        )
    return rates


def _table(points: Sequence[PathPoint], best: PathPoint, tolerance: float) -> Table:
    table = Table(caption=f"loss: AUC lost against all features; *: the smallest size that loses at most {tolerance:g}")
    for column in ("features", "live", "bytes", "test AUC", "loss", "log loss", "calibr."):
        table.add_column(column, justify="left" if column == "features" else "right")
    for point in points:
        table.add_row(
            ("all" if point.asked is None else percent(point.feature_rate)) + (" *" if point is best else ""),
            count(point.live_rows),
            size(point.bytes),
            metric(point.test.auc),
            "" if point.asked is None else f"{points[0].test.auc - point.test.auc:.4f}",
            metric(point.test.log_loss),
            metric(point.test.calibration),
            style="bold" if point is best else None,
        )
    return table
