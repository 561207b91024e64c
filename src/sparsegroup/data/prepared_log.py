"""A prepared log: a folder of Parquet files and, written last, `log.json`, which says what they hold."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from sparsegroup.artifact.disk import write_atomically
from sparsegroup.data.batches import Batch, batch_of, read_ahead, rebatched
from sparsegroup.data.log import Log
from sparsegroup.data.log_errors import ClickLogError
from sparsegroup.data.raw.raw_file import identity_of
from sparsegroup.data.synthetic.truth import is_informative

MANIFEST = "log.json"
VOCABULARY = "vocabulary.parquet"
FORMAT = 1


@dataclass(frozen=True)
class LogManifest:
    """What a prepared folder holds.

    Attributes:
        dataset: Name of the format.
        fields: Categorical fields, in the order of their numbers in the keys.
        numbers: Numeric columns.
        lists: Fields of several values.
        rows: Number of rows.
        train_rows: Number of training rows, which come first; the others are the test set.
        positives: Number of rows with label 1.
        files: Name of each file, in order → its rows.
        features: Field → distinct values, in all rows and in the training rows.
        hash: Name of the hash that keys are made with.
        source: What it was made of and how; a folder made of something else cannot be completed.
        bad_rows: Reason → rows left out.
        weighted: Whether the rows have weights.
        version: Version of the package that wrote it.
        format: Version of the folder's format.
    """

    dataset: str
    fields: tuple[str, ...]
    numbers: tuple[str, ...]
    lists: tuple[str, ...]
    rows: int
    train_rows: int
    positives: int
    files: Mapping[str, int]
    features: Mapping[str, tuple[int, int]]
    hash: str
    source: Mapping[str, Any]
    bad_rows: Mapping[str, int] = field(default_factory=dict)
    weighted: bool = False
    version: str = ""
    format: int = FORMAT


def write_manifest(folder: Path, manifest: LogManifest) -> None:
    """Complete the folder."""
    text = json.dumps(asdict(manifest), indent=1) + "\n"
    write_atomically(folder / MANIFEST, lambda path: path.write_text(text))


class PreparedLog(Log):
    """A folder that `sparsegroup prepare` has written.

    Args:
        folder: The folder.

    Raises:
        ClickLogError: It holds no complete prepared log, or one of a newer version.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        path = self.folder / MANIFEST
        if not path.is_file():
            unfinished = any(self.folder.glob("part-*.parquet"))
            what = "an unfinished prepared log; run the same `prepare` again" if unfinished else "no such log"
            raise ClickLogError(f"{self.folder}: {what} ({MANIFEST} is missing)", "prepare")
        try:
            content = json.loads(path.read_text())
            if content["format"] != FORMAT:
                raise ClickLogError(f"{path}: format {content['format']}, this version reads {FORMAT}")
            for name in ("fields", "numbers", "lists"):
                content[name] = tuple(content[name])
            content["features"] = {name: tuple(counts) for name, counts in content["features"].items()}
            self.manifest = LogManifest(**content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, ClickLogError):
                raise
            raise ClickLogError(f"{path}: damaged ({error})") from error

        manifest = self.manifest
        self.name, self.train_rows = str(self.folder), manifest.train_rows
        self.fields, self.lists, self.numbers = manifest.fields, manifest.lists, manifest.numbers
        self.hash, self.weighted, self.bad_rows = manifest.hash, manifest.weighted, manifest.bad_rows
        self.identity = identity_of(manifest.source)
        vocabulary = self.folder / VOCABULARY
        self.vocabulary = vocabulary if vocabulary.exists() else None
        if "synthetic" in manifest.source:
            self.truth = partial(is_informative, seed=int(manifest.source["seed"]))

    def __len__(self) -> int:
        return self.manifest.rows

    @property
    def features(self) -> int:
        """Number of distinct features in the training rows."""
        return sum(training for _, training in self.manifest.features.values())

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """Rows `start` to `stop` in order, `size` at a time, the last ones fewer; a thread reads ahead.

        Raises:
            ClickLogError: A file is missing or damaged.
        """
        yield from rebatched(read_ahead(self._row_groups(start, stop)), size)

    def _row_groups(self, start: int, stop: int) -> Iterator[Batch]:
        position = 0
        for name, count in self.manifest.files.items():
            if position + count <= start or position >= stop:
                position += count
                continue
            path = self.folder / name
            try:
                with pq.ParquetFile(path) as file:
                    for group in range(file.num_row_groups):
                        rows = file.metadata.row_group(group).num_rows
                        first, last = max(start - position, 0), min(stop - position, rows)
                        position += rows
                        if first < last:
                            table = file.read_row_group(group, use_threads=False).slice(first, last - first)
                            yield batch_of(table, self.fields, self.numbers, self.lists, self.weighted)
            except (OSError, pa.ArrowException) as error:
                raise ClickLogError(f"{path}: missing or damaged ({error})") from error


def count_features(folder: Path, files: Mapping[str, int], fields: tuple[str, ...], rows: int) -> dict[str, int]:
    """Distinct keys of each field in the first `rows` rows, one field in memory at a time."""
    log = pl.scan_parquet([folder / name for name in files]).head(rows)
    counts = {}
    for name in fields:
        column = pl.col(name)
        if log.collect_schema()[name] == pl.List:
            column = column.explode()
        counts[name] = int(log.select(column.drop_nulls().n_unique()).collect(engine="streaming").item())
    return counts
