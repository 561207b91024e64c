"""`sparsegroup path`."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sparsegroup.cli.app import THREADS, Threads, UsageError, starting, use_threads
from sparsegroup.cli.options import OF_THE_LOG, Assignments, LogOrConfig, takes_settings
from sparsegroup.cli.output import show
from sparsegroup.reporting.formatting import count, metric, percent, size

if TYPE_CHECKING:
    from sparsegroup.training.compare import ModelScore

_JSON, _SVG = "path.json", "path.svg"


@takes_settings(
    *OF_THE_LOG,
    *("model", "optimizer", "lr", "network_lr", "schedule", "warmup", "penalty", "fallback", "admit_after"),
    *("batch_size", "epochs", "validation", "patience", "shuffle_buffer", "after_first_epoch", "seed"),
    penalty={"show_default": "hard"},
)
def path_command(
    log: LogOrConfig = None,
    rates: Annotated[str, typer.Option(help="Feature rates, separated by commas.")] = ".3,.1,.03,.01",
    tolerance: Annotated[
        float, typer.Option(min=0, help="AUC below that of all features that still counts as no loss.")
    ] = 0.001,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for path.json and path.svg; default paths/<name of the log>.", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what --out holds.")] = False,
    set_: Assignments = None,
    *,
    settings: Mapping[str, Any],
    threads: Threads = THREADS,
) -> None:
    """How good would a smaller model be? One pass for each feature rate, against all features: table, plot and JSON."""
    with starting():
        from json import dumps

        from sparsegroup.artifact.folder import new_folder, write_atomically
        from sparsegroup.artifact.validation import finite
        from sparsegroup.cli.progress import training_bar
        from sparsegroup.cli.run_settings import log_name, open_config_log, setting_values, settings_file
        from sparsegroup.reporting.charts import path_svg
        from sparsegroup.training.build import read_config
        from sparsegroup.training.compare import cheapest, size_path

    use_threads(threads)
    asked = _rates(rates)
    values = {**setting_values(log, settings, set_ or []), "optimizer.target_rate": asked[0]}
    config = read_config(settings_file(log), values, "the command line")
    folder = out or Path("paths") / log_name(config)
    if (folder / _JSON).exists() and not overwrite:
        raise UsageError(f"{folder} holds a {_JSON}; give another --out, or --overwrite")
    data = open_config_log(config, threads)
    if len(data) == data.train_rows:
        raise UsageError(f"{data.name} has no test rows: give a test set to measure the models on, with --test, say")
    config = config.resolved_for(data)
    scores = size_path(data, config, asked, partial(training_bar, config.training.plan(data.train_rows).samples))
    best = cheapest(scores, tolerance)
    content = {
        "log": data.name,
        "config": config.as_dict(),
        "tolerance": tolerance,
        "no_loss_down_to": best.feature_rate,
        "points": [asdict(score) for score in scores],
    }
    text = dumps(finite(content), indent=1) + "\n"
    with new_folder(folder):
        write_atomically(folder / _JSON, lambda path: path.write_text(text, encoding="utf-8"))
    if isnan(scores[0].test.auc):
        written = f"{_JSON}\nno plot: the test rows are all of one class, so there is no AUC"
    else:
        title = f"{config.model.name.upper()} on {Path(data.name).name}: how small can it be?"
        points = [(score.feature_rate, score.test.auc, score.bytes) for score in scores[1:]]
        begins = best.feature_rate if best is not scores[0] else None
        svg = path_svg(points, scores[0].test.auc, tolerance, begins, title)
        write_atomically(folder / _SVG, lambda path: path.write_text(svg, encoding="utf-8"))
        written = f"{_JSON}, {_SVG}"
    show({"folder": str(folder), **content}, _table(scores, best, tolerance), f"written to {folder}: {written}")


def _rates(text: str) -> list[float]:
    from sparsegroup.settings.yaml_settings import share_of

    with suppress(ValueError):
        rates = [float(str(share_of(part.strip()))) for part in text.split(",")]
        if rates and all(0 < rate < 1 for rate in rates):
            return rates
    raise UsageError(f"--rates wants feature rates between 0 and 1, separated by commas, such as .3,.1: got {text!r}")


def _table(scores: "Sequence[ModelScore]", best: "ModelScore", tolerance: float) -> Table:
    table = Table(caption=f"loss: AUC lost against all features; *: the smallest size that loses at most {tolerance:g}")
    for column in ("features", "live", "bytes", "test AUC", "loss", "log loss", "calibr."):
        table.add_column(column, justify="left" if column == "features" else "right")
    for score in scores:
        table.add_row(
            ("all" if score.asked is None else percent(score.feature_rate)) + (" *" if score is best else ""),
            count(score.live_rows),
            size(score.bytes),
            metric(score.test.auc),
            "" if score.asked is None else f"{scores[0].test.auc - score.test.auc:.4f}",
            metric(score.test.log_loss),
            metric(score.test.calibration),
            style="bold" if score is best else None,
        )
    return table
