"""The raw typed click log as a file: CSV, or Parquet of the same values."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pyarrow as pa

from sparsegroup.artifact.folder import write_atomically
from sparsegroup.data.arrow_arrays import numpy_of
from sparsegroup.data.formats.log_format import TEST_FRACTION
from sparsegroup.data.local_files import check_name, parquet_writer
from sparsegroup.data.log_errors import ClickLogError
from sparsegroup.data.synthetic.best_possible import BestPossible
from sparsegroup.data.synthetic.typed_clicks import LABEL_COLUMN, TypedClicks

SUFFIXES = (".csv", ".parquet")


class ClickTruth(NamedTuple):
    """What the true probabilities reach.

    Attributes:
        everything: On all rows.
        test: On the last tenth, which is the test set where nothing else is asked for.
    """

    everything: BestPossible
    test: BestPossible


def write_clicks(
    path: Path,
    rows: int = 300_000,
    seed: int = 0,
    on_progress: Callable[[int], None] | None = None,
    *,
    overwrite: bool = False,
) -> ClickTruth:
    """Write the log that `typed_clicks` describes, block by block.

    In CSV, times are ISO 8601 without a zone, booleans true and false, tags "t1|t20", and what is missing is empty. In
    Parquet, times are timestamps of microseconds, booleans booleans, tags lists of strings, other texts dictionaries.

    Args:
        path: A `.csv` or `.parquet` file.
        rows: >= 1.
        seed: Seed of everything random; the same rows and seed give the same file.
        on_progress: Is told the rows written so far.
        overwrite: Replace the file if it exists, once the new one is complete.

    Returns:
        What the best possible predictions reach on it.

    Raises:
        ValueError: Rows or seed out of range.
        ClickLogError: Another suffix, a name that is no text, the file exists and is not to be replaced, or a folder is
            in its place.
    """
    check_name(path)
    if path.suffix not in SUFFIXES:
        raise ClickLogError(f"{path}: the log of typed columns is a file; name it *.csv or *.parquet")
    if path.is_dir():
        raise ClickLogError(f"{path}: is a folder; give another file")
    if path.exists() and not overwrite:
        raise ClickLogError(f"{path}: exists; give another file, or `overwrite`", "overwrite")
    log, truth = TypedClicks(rows, seed), ClickTruth(BestPossible(), BestPossible())
    train_rows = rows - round(rows * TEST_FRACTION)

    def batches() -> Iterator[pa.RecordBatch]:
        done = 0
        for block in log.blocks():
            labels, held = numpy_of(block.rows.column(LABEL_COLUMN)), max(train_rows - done, 0)
            truth.everything.add(labels, block.probabilities)
            truth.test.add(labels[held:], block.probabilities[held:])
            yield block.rows
            done += len(labels)
            if on_progress:
                on_progress(done)

    def write(temporary: Path) -> None:
        if path.suffix == ".csv":
            _write_csv(temporary, batches())
        else:
            with parquet_writer(temporary, TypedClicks.schema) as writer:
                for batch in batches():
                    writer.write_batch(batch)

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, write)
    return truth


def _write_csv(path: Path, batches: Iterator[pa.RecordBatch]) -> None:
    with path.open("wb") as file:
        for number, batch in enumerate(batches):
            frame = pl.DataFrame(pl.from_arrow(batch)).with_columns(pl.col("tags").list.join("|").replace("", None))
            frame.write_csv(file, include_header=number == 0, datetime_format="%Y-%m-%dT%H:%M:%S")
