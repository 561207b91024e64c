"""`sparsegroup demo` and `path`: models of several sizes on one log, compared."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field
from rich.table import Table

from sparsegroup.cli.app import UsageError, starting
from sparsegroup.cli.options import OF_THE_LOG, THREADS, Assignments, LogOrConfig, Threads, parsed, takes_settings
from sparsegroup.cli.output import show, table, training_bar
from sparsegroup.reporting.formatting import TITLES, count, metric, percent, size, titles_of
from sparsegroup.settings.yaml_settings import Share

if TYPE_CHECKING:
    from sparsegroup.training.selection.sizes import ModelScore

_logger = logging.getLogger(__name__)

_JSON, _SVG = "path.json", "path.svg"


def demo_command(
    rows: Annotated[int, typer.Option(min=100, help="Size of the synthetic log.")] = 500_000,
    target_rate: Annotated[str, typer.Option(help="Share of the features to ask for.")] = "3%",
    l21: Annotated[float, typer.Option(help="Constant λ21 of Group Adam, as in the paper.")] = 1e-3,
    lr: Annotated[float, typer.Option(help="Learning rate of Adam and Group Adam.")] = 1e-2,
    seed: Annotated[int, typer.Option(help="Seed of the log and of the training.")] = 0,
    threads: Threads = THREADS,
) -> None:
    """Adam, pruned Adam, Group Adam as in the paper, and a target rate, side by side on a synthetic log."""
    with starting(threads):
        from sparsegroup.data import SyntheticConfig, synthetic_log
        from sparsegroup.kernels.cpu.ahead import compile_ahead
        from sparsegroup.rules import ADAGRAD, ADAM
        from sparsegroup.training import Config
        from sparsegroup.training.selection.sizes import compare

    compile_ahead(ADAM, ADAGRAD)
    configs = {
        "Group Adam, fixed λ": Config.of(model="dcn", lr=lr, l21=l21, seed=seed),
        "Target rate": Config.of(model="dcn", target_rate=target_rate, seed=seed),
    }
    data = synthetic_log(SyntheticConfig(rows=rows), seed)
    informative = int(data.are_informative(data.seen).sum())
    _logger.info(
        f"A synthetic click log: {len(data):,} rows, {data.features:,} features, of which "
        f"{informative / data.features:.0%} have an effect on the click and the rest are noise.\n"
        "A DCN is trained on the first 90 % in one pass, and tested on the rest."
    )
    samples = max(config.resolved_for(data).training.plan(data.train_rows).samples for config in configs.values())
    scores = compare(data, configs, partial(training_bar, samples))
    show({"rows": len(data), "methods": [asdict(score) for score in scores]}, _demo_table(scores))


def _demo_table(scores: "Sequence[ModelScore]") -> Table:
    caption = (
        "fixed λ: as in the paper; target rate: as with `sparsegroup train --target-rate`\n"
        "rate: features that are not exactly zero; table: their 8-byte keys and float32 vectors"
    )
    rows = (
        (
            method.name,
            *(metric(getattr(method.test, name)) for name in ("auc", "log_loss")),
            f"{method.feature_rate:.2%}",
            f"{method.bytes / 1e6:.2f} MB",
            "" if method.informative is None else f"{method.informative:.0%}",
        )
        for method in scores
    )
    return table("", "test AUC", "log loss", "rate", "table", "informative", rows=rows, caption=caption)


@takes_settings(
    *OF_THE_LOG,
    *("objective", "group", "model", "optimizer", "lr", "network_lr", "schedule", "warmup", "penalty", "fallback"),
    *("admit_after", "batch_size", "epochs", "validation", "patience", "shuffle_buffer", "after_first_epoch", "seed"),
    penalty={"show_default": "hard"},
)
def path_command(
    log: LogOrConfig = None,
    rates: Annotated[str, typer.Option(help="Feature rates, separated by commas.")] = ".3,.1,.03,.01",
    tolerance: Annotated[
        float,
        typer.Option(
            min=0, help="AUC below that of all features that still counts as no loss; of numbers relative loss."
        ),
    ] = 0.001,
    out: Annotated[
        Path | None, typer.Option(help="Folder for path.json and path.svg; default paths/<name of the log>.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what --out holds.")] = False,
    set_: Assignments = None,
    *,
    settings: Mapping[str, Any],
    threads: Threads = THREADS,
) -> None:
    """How good would a smaller model be? One pass for each feature rate, against all features: table, plot and JSON."""
    with starting(threads):
        from json import dumps

        from sparsegroup.artifact.folder import new_folder, write_atomically
        from sparsegroup.artifact.validation import finite
        from sparsegroup.cli.logs import config_given, log_name, open_config_log
        from sparsegroup.reporting.charts import path_svg
        from sparsegroup.reporting.run_record import headline_of
        from sparsegroup.training.selection.sizes import cheapest, size_path

    problem = f"--rates wants feature rates between 0 and 1, separated by commas, such as .3,.1: got {rates!r}"
    targets = parsed(list[Annotated[Share, Field(gt=0)]], [rate.strip() for rate in rates.split(",")], problem)
    config = config_given(log, settings, [*(set_ or ()), f"optimizer.target_rate={targets[0]}"])
    folder = out or Path("paths") / log_name(config)
    if (folder / _JSON).exists() and not overwrite:
        raise UsageError(f"{folder} holds a {_JSON}; give another --out, or --overwrite")
    data = open_config_log(config, threads)
    if len(data) == data.train_rows:
        raise UsageError(f"{data.name} has no test rows: give a test set to measure the models on, with --test, say")
    config = config.resolved_for(data)
    scores = size_path(data, config, targets, partial(training_bar, config.training.plan(data.train_rows).samples))
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
    name, _ = headline_of(scores[0].test)
    if isnan(getattr(scores[0].test, name)):
        written = f"{_JSON}\nno plot: the labels of the test rows are all the same, so there is no {TITLES[name]}"
    else:
        title = f"{config.model.name.upper()} on {Path(data.name).name}: how small can it be?"
        points = [(score.feature_rate, getattr(score.test, name), score.bytes) for score in scores[1:]]
        begins = best.feature_rate if best is not scores[0] else None
        svg = path_svg(points, getattr(scores[0].test, name), tolerance, begins, title, TITLES[name])
        write_atomically(folder / _SVG, lambda path: path.write_text(svg, encoding="utf-8"))
        written = f"{_JSON}, {_SVG}"
    show({"folder": str(folder), **content}, _path_table(scores, best, tolerance), f"written to {folder}: {written}")


_SHORT = {"calibration": "calibr.", "log_loss": "log loss"}


def _path_table(scores: "Sequence[ModelScore]", best: "ModelScore", tolerance: float) -> Table:
    from sparsegroup.reporting.run_record import headline_of
    from sparsegroup.training.selection.sizes import lost

    name, _ = headline_of(scores[0].test)
    further = [one for one in titles_of(scores[0].test) if one in ("log_loss", "rmse", "gauc", "calibration")]
    caption = f"loss: {TITLES[name]} lost against all features; *: the smallest size that loses at most {tolerance:g}"
    titles = (
        "features",
        "live",
        "bytes",
        f"test {TITLES[name]}",
        "loss",
        *(_SHORT.get(one, TITLES[one]) for one in further),
    )
    made = table(*titles, caption=caption)
    for score in scores:
        is_all, test = score.asked is None, score.test
        made.add_row(
            ("all" if is_all else percent(score.feature_rate)) + (" *" if score is best else ""),
            *(count(score.live_rows), size(score.bytes), metric(getattr(test, name))),
            "" if is_all else metric(lost(score, scores[0])),
            *(metric(getattr(test, one)) for one in further),
            style="bold" if score is best else None,
        )
    return made
