"""A synthetic log as a prepared folder."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import pyarrow as pa

from sparsegroup.artifact.folder import new_folder, write_atomically
from sparsegroup.artifact.manifest import facts_of
from sparsegroup.data.arrow_arrays import numpy_of
from sparsegroup.data.batches import LABEL
from sparsegroup.data.local_files import check_name, parquet_writer
from sparsegroup.data.log_errors import ClickLogError
from sparsegroup.data.log_manifest import PREPARED_LOG, LogManifest
from sparsegroup.data.prepared_log import PreparedLog, count_features
from sparsegroup.data.synthetic.log_shapes import LogShape
from sparsegroup.data.synthetic.row_generator import synthetic_batches

_BATCHES_PER_FILE = 16


def synthesize(
    shape: LogShape, rows: int, folder: Path, seed: int = 0, on_progress: Callable[[int], None] | None = None
) -> PreparedLog:
    """Write a synthetic log of `rows` rows; the last seventh (Criteo) or tenth is the test set.

    Args:
        shape: From `DATASETS`.
        rows: From 1 to `shape.full_rows`.
        folder: Empty, or to be made.
        seed: Seed of everything random.
        on_progress: Is told the rows written so far.

    Raises:
        ValueError: Rows or seed out of range.
        ClickLogError: The folder is not empty, or its name is no text.
    """
    check_name(folder)
    batches = synthetic_batches(shape, rows, seed)
    with new_folder(folder):
        if any(folder.iterdir()):
            raise ClickLogError(f"{folder}: is not empty")
        try:
            PREPARED_LOG.write(folder, _written(shape, rows, folder, seed, batches, on_progress))
        except BaseException:
            for part in folder.iterdir():
                part.unlink()
            raise
    return PreparedLog(folder)


def _written(
    shape: LogShape,
    rows: int,
    folder: Path,
    seed: int,
    batches: Iterator[pa.RecordBatch],
    on_progress: Callable[[int], None] | None,
) -> LogManifest:
    """Write the rows, and say what they are."""
    fields = tuple(field.name for field in shape.fields)
    files: dict[str, int] = {}
    written = positives = 0
    while group := list(islice(batches, _BATCHES_PER_FILE)):
        name = f"part-{len(files):05}.parquet"
        write_atomically(folder / name, partial(_write, batches=group))
        files[name] = sum(batch.num_rows for batch in group)
        written += files[name]
        positives += sum(int(numpy_of(batch.column(LABEL)).sum()) for batch in group)
        if on_progress:
            on_progress(written)
    train_rows = rows * 6 // 7 if shape.name == "criteo" else rows - rows // 10
    everything, training = (count_features(folder, files, fields, n) for n in (rows, train_rows))
    return LogManifest(
        dataset=f"synthetic-{shape.name}",
        fields=fields,
        numbers=tuple(shape.numbers),
        lists=(),
        rows=rows,
        train_rows=train_rows,
        positives=positives,
        parts=files,
        files={name: facts_of(folder / name) for name in files},
        features={name: (everything[name], training[name]) for name in fields},
        hash="none",
        source={"synthetic": shape.name, "rows": rows, "seed": seed},
    )


def _write(path: Path, batches: list[pa.RecordBatch]) -> None:
    with parquet_writer(path, batches[0].schema, compression="lz4") as writer:
        for batch in batches:
            writer.write_batch(batch)
