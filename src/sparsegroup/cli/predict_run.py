"""What `sparsegroup predict` does."""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from math import nan
from pathlib import Path
from time import perf_counter
from typing import Any

from sparsegroup.artifact.folder import write_atomically
from sparsegroup.cli.app import UsageError
from sparsegroup.cli.output import is_json, show, to_stdout
from sparsegroup.cli.progress import progress, reading_bar
from sparsegroup.cli.run_settings import check_weight, log_settings
from sparsegroup.data import Log, open_log
from sparsegroup.data.raw.files import LogPaths, short_name, shown
from sparsegroup.serving.opening import check_rows, open_trained
from sparsegroup.training import Config, Metrics
from sparsegroup.training.scoring import (
    SUFFIXES,
    Predictions,
    Tally,
    predictions,
    write_csv,
    write_predictions,
)

_logger = logging.getLogger(__name__)


def predict_run(model: Path, log: LogPaths, out: Path | None, settings: Mapping[str, Any], threads: int) -> None:
    """Score a log.

    Args:
        model: Folder of a run, a checkpoint or an export.
        log: A raw log, or a prepared folder.
        out: File to write; None is CSV on standard output.
        settings: How to read the log where not as the model's: short name → value.
        threads: That share the table's work.

    Raises:
        UsageError: Options that do not go together, or a file to write of no known kind.
    """
    if out is not None and _suffix(out) is None:
        raise UsageError(f"--out must end with {', '.join(SUFFIXES)}, got {out.name!r}")
    if out is None and is_json():
        raise UsageError("--json wants --out: without it, stdout is for the predictions")
    if out is None and sys.stdout is None:
        raise UsageError("stdout is closed: give --out for the predictions")
    opened = open_trained(model)
    check_rows(opened.path, opened.model.rows)
    data = _open(log, opened.config, settings, threads)
    check_weight(settings.get("weight"), data)
    opened.columns.check_fits(data.schema, data.name)
    tally, begin = Tally(len(data)), perf_counter()
    hidden = out is None and sys.stdout.isatty()  # the rows themselves show how far it has come
    with nullcontext(_nothing) if hidden else progress(f"scoring {short_name(log)}", "rows") as update:

        def seen() -> Iterator[Predictions]:
            for part in predictions(opened.model, data):
                tally.add(part)
                yield part
                update(tally.rows, len(data), "")

        if out is None:
            _write_to_stdout(seen())
        else:
            suffix = _suffix(out)
            assert suffix is not None
            write_atomically(out, lambda path: write_predictions(seen(), path, suffix))
    seconds = perf_counter() - begin
    _logger.info(_outcome(tally, seconds, out))
    metrics = asdict(tally.metrics() if tally.has_both_classes else Metrics(nan, nan, nan, nan))
    show({"log": shown(log), "out": str(out), "rows": tally.rows, "seconds": seconds, **metrics})


def _suffix(path: Path) -> str | None:
    return next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), None)


def _open(log: LogPaths, config: Config, given: Mapping[str, Any], threads: int) -> Log:
    """The log, read as the model's but for what `given` says."""
    data = log_settings(given)
    with reading_bar(short_name(log)) as on_progress:
        return open_log(
            log,
            like=config.data.format_options,
            whole=True,
            sort_files=data.sort_files,
            on_bad_row=data.on_bad_row,
            max_bad=data.max_bad,
            threads=threads,
            on_progress=on_progress,
            **data.format_options,
        )


def _write_to_stdout(parts: Iterator[Predictions]) -> None:
    with to_stdout():
        write_csv(parts, sys.stdout.buffer)


def _outcome(tally: Tally, seconds: float, out: Path | None) -> str:
    parts = [f"{tally.rows:,} rows, {tally.rows / max(seconds, 1e-9):,.0f} rows/s"]
    if tally.has_both_classes:
        metrics = tally.metrics()
        parts.append(f"AUC {metrics.auc:.4f}, log loss {metrics.log_loss:.4f}, calibration {metrics.calibration:.4f}")
    if out is not None:
        parts.append(f"written to {out}")
    return "; ".join(parts)


def _nothing(done: int, total: int | None, detail: str) -> None:
    pass
