"""Scoring a log: a model's probabilities, row by row in order, written as they are made."""

import gzip
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from sparsegroup.data.local_files import parquet_writer
from sparsegroup.data.log import Log
from sparsegroup.reporting.run_record import Metrics
from sparsegroup.training.checks import numbers_named
from sparsegroup.training.evaluation import EVALUATED, logits_over, probabilities_of
from sparsegroup.training.lookup_model import LookupModel
from sparsegroup.training.metrics import evaluate

SUFFIXES = (".csv", ".csv.gz", ".parquet")
_ROW_GROUP = 1 << 17


@dataclass(frozen=True)
class Predictions:
    """What a model says of some rows.

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


def predictions(model: LookupModel, log: Log) -> Iterator[Predictions]:
    """Predictions of all rows in order, bit for bit those of `predict`; the model is left in evaluation mode.

    Raises:
        ClickLogError: As `Log.batches`.
        MissingNumberError: A number is missing that the model needs.
        FloatingPointError: The model's weights are not finite.
    """
    done = 0
    with numbers_named(log, 0):
        for batch, logits in logits_over(model, log.batches(0, len(log), EVALUATED)):
            rows = log.places(done, batch)
            labels = batch.labels.numpy().astype(np.uint8) if log.labelled else None
            weights = None if batch.weights is None else batch.weights.numpy()
            done += len(batch)
            yield Predictions(rows, probabilities_of([logits]), labels, weights)


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
        """The measures of the rows so far."""
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
    with closing(parquet_writer(path, first.schema, compression="zstd")) as writer:
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
