"""Scoring a log: a model's probabilities, row by row in order, written as they are made."""

import gzip
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Unpack

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from sparsegroup.data.formats.recognition import FormatOptions, choose_format
from sparsegroup.data.log_opening import open_log
from sparsegroup.data.prepared_log import PreparedLog
from sparsegroup.data.raw.columnar_file import is_columnar
from sparsegroup.data.raw.raw_log import RawLog
from sparsegroup.names import OnBadRow
from sparsegroup.reporting.run_record import Metrics
from sparsegroup.training.click_model import ClickModel
from sparsegroup.training.log_pass import EVALUATED
from sparsegroup.training.metrics import evaluate
from sparsegroup.training.trainer import Trainer

SUFFIXES = (".csv", ".csv.gz", ".parquet")
_ROW_GROUP = 1 << 17


@dataclass(frozen=True)
class LogToScore:
    """A log all of whose rows are to be scored.

    Attributes:
        log: The log.
        first_line: Of a raw log, whose batches have line numbers as times: the line of its first row, from 1.
    """

    log: PreparedLog | RawLog
    first_line: int | None


@dataclass(frozen=True)
class Predictions:
    """Of some rows.

    Attributes:
        rows: `[n]` int64: the place of each in its log, from 0. Bad rows and blank lines of a raw log, which are left
            out, leave gaps; what `prepare` has left out does not.
        probabilities: `[n]` float64.
        labels: `[n]` uint8, 0 or 1; None of a log without them.
        weights: `[n]` float32, or None where every row counts the same.
    """

    rows: npt.NDArray[np.int64]
    probabilities: npt.NDArray[np.float64]
    labels: npt.NDArray[np.uint8] | None
    weights: npt.NDArray[np.float32] | None


def open_to_score(
    log: Path,
    *,
    on_bad_row: OnBadRow = "error",
    max_bad: float = 0.001,
    threads: int = 1,
    on_progress: Callable[[int], None] | None = None,
    **options: Unpack[FormatOptions],
) -> LogToScore:
    """A log to score, as `open_log` opens one to train on; but it needs no time, order, test set or label.

    Raises:
        ClickLogError: It cannot be read.
        ValueError: Options that do not go together, or options of raw logs for a prepared one.
        OSError: No such file.
    """
    if log.is_dir():
        prepared = open_log(log, **options)
        assert isinstance(prepared, PreparedLog)
        return LogToScore(prepared, None)
    found = replace(choose_format(log, needs_label=False, **options), time=None, split="none", split_column=None)
    raw = RawLog(log, None, found, on_bad_row=on_bad_row, max_bad=max_bad, threads=threads, on_progress=on_progress)
    return LogToScore(raw, 2 if found.has_header and not is_columnar(log) else 1)


def predictions(model: ClickModel, log: LogToScore) -> Iterator[Predictions]:
    """Predictions of all rows in order, bit for bit those of `predict`; the model is left in evaluation mode.

    Raises:
        ClickLogError: As `RawLog.batches`.
    """
    trainer = Trainer(model.network, model.embedding, ())
    labelled = not isinstance(log.log, RawLog) or log.log.format.labelled
    done = 0
    for batch in log.log.batches(0, len(log.log), EVALUATED):
        first = log.first_line
        rows = np.arange(done, done + len(batch)) if first is None else batch.times.numpy() - first
        done += len(batch)
        labels = batch.labels.numpy().astype(np.uint8) if labelled else None
        yield Predictions(
            rows, trainer.predict([batch]), labels, None if batch.weights is None else batch.weights.numpy()
        )


class Tally:
    """Takes the predictions of up to so many rows, in 9 bytes each (13 with weights), for their metrics.

    Args:
        rows: At most so many.
    """

    def __init__(self, rows: int) -> None:
        self.rows = 0
        self._probabilities = np.empty(rows)
        self._labels = np.zeros(rows, np.uint8)
        self._weights: npt.NDArray[np.float32] | None = None

    def add(self, predictions: Predictions) -> None:
        """Take those of the next rows."""
        if predictions.labels is None:  # then there is nothing to compare with
            self.rows += len(predictions.rows)
            return
        begin, end = self.rows, self.rows + len(predictions.rows)
        self._probabilities[begin:end], self._labels[begin:end] = predictions.probabilities, predictions.labels
        if predictions.weights is not None:
            if self._weights is None:
                self._weights = np.empty(len(self._labels), np.float32)
            self._weights[begin:end] = predictions.weights
        self.rows = end

    @property
    def has_both_classes(self) -> bool:
        """Whether there are labels of 0 and of 1."""
        labels = self._labels[: self.rows]
        return bool(labels.any()) and not bool(labels.all())

    def metrics(self) -> Metrics:
        """Of the rows so far."""
        weights = None if self._weights is None else self._weights[: self.rows]
        return evaluate(self._labels[: self.rows], self._probabilities[: self.rows], weights)


def write_csv(parts: Iterator[Predictions], file: IO[bytes] | gzip.GzipFile) -> None:
    """Write columns `row`, `probability` (which reads back as the same number) and, where there are labels, `label`."""
    for number, part in enumerate(parts):
        if number == 0:
            file.write(",".join(_columns(part)).encode() + b"\n")
        file.write(pl.DataFrame(_columns(part)).write_csv(include_header=False).encode())


def write_predictions(parts: Iterator[Predictions], path: Path, suffix: str) -> None:
    """Write the columns of `write_csv` into a file.

    Args:
        parts: The predictions.
        path: The file, whatever its name.
        suffix: One of `SUFFIXES`, which says what it is to be.
    """
    if suffix == ".parquet":
        _write_parquet(parts, path)
        return
    with path.open("wb") as file:
        if suffix == ".csv":
            write_csv(parts, file)
            return
        with gzip.GzipFile("", "wb", 6, file, mtime=0) as compressed:  # the same bytes whenever it is written
            write_csv(parts, compressed)


def _write_parquet(parts: Iterator[Predictions], path: Path) -> None:
    first = pa.record_batch(_columns(next(parts)))  # a log has rows
    held: list[pa.RecordBatch] = [first]
    with closing(pq.ParquetWriter(path, first.schema, compression="zstd")) as writer:
        for part in parts:
            held.append(pa.record_batch(_columns(part)))
            if sum(batch.num_rows for batch in held) >= _ROW_GROUP:
                writer.write_table(pa.Table.from_batches(held))
                held = []
        if held:
            writer.write_table(pa.Table.from_batches(held))


def _columns(part: Predictions) -> dict[str, npt.NDArray[np.generic]]:
    labels = {} if part.labels is None else {"label": part.labels}
    return {"row": part.rows, "probability": part.probabilities, **labels}
