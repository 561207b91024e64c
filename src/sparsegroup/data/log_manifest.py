"""`log.json`: what a prepared log holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparsegroup.artifact.manifest import FileName, FolderFormat, Manifest
from sparsegroup.artifact.validation import Count, Flag
from sparsegroup.data.log_errors import ClickLogError

MANIFEST = "log.json"


@dataclass(frozen=True, kw_only=True)
class LogManifest(Manifest):
    """What a prepared folder holds.

    Attributes:
        dataset: Name of the format.
        fields: Categorical fields, in the order of their numbers in the keys.
        numbers: Numeric columns.
        lists: Fields of several values.
        rows: Number of rows.
        train_rows: Number of training rows, which come first; the others are the test set.
        positives: Number of rows with label 1.
        parts: Name of each file of rows, in order → its rows.
        features: Field → distinct values, in all rows and in the training rows.
        hash: Name of the hash that keys are made with.
        source: What it was made of and how; a folder made of something else cannot be completed.
        bad_rows: Reason → rows left out.
        weighted: Whether the rows have weights.
        timed: Whether the rows have times of their own; not known of folders that older versions have written.
        columns: Raw column → what it was taken for, see `Log.columns`.
    """

    dataset: str
    fields: tuple[str, ...]
    numbers: tuple[str, ...]
    lists: tuple[str, ...]
    rows: Count
    train_rows: Count
    positives: Count
    parts: Mapping[FileName, Count]
    features: Mapping[str, tuple[Count, Count]]
    hash: str
    source: Mapping[str, Any]
    bad_rows: Mapping[str, Count] = field(default_factory=dict)
    weighted: Flag = False
    timed: Flag = False
    columns: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """See `Manifest.check`."""
        for name in ("fields", "numbers", "lists"):
            if len(set(given := getattr(self, name))) < len(given):
                raise ValueError(f"{name}: one is there twice")
        if strange := set(self.lists) - set(self.fields):
            raise ValueError(f"lists: {min(strange)} is no field")
        if self.features.keys() != set(self.fields):
            raise ValueError("features: are not those of the fields")
        for name, (in_all, in_training) in self.features.items():
            if in_training > in_all:
                raise ValueError(f"features.{name}: {in_training:,} of {in_all:,}")
        for name in ("train_rows", "positives"):
            if getattr(self, name) > self.rows:
                raise ValueError(f"{name}: {getattr(self, name):,} of {self.rows:,} rows")
        if sum(self.parts.values()) != self.rows:
            raise ValueError(f"parts: have {sum(self.parts.values()):,} rows, and not {self.rows:,}")
        if self.files and (missing := self.parts.keys() - self.files.keys()):  # version 1 had no facts of files
            raise ValueError(f"parts.{min(missing)}: is not among the files")
        self._check_source()

    def _check_source(self) -> None:
        seed, files = self.source.get("seed"), self.source.get("files", [])
        if "synthetic" in self.source and (type(seed) is not int or seed < 0):
            raise ValueError(f"source.seed: a number >= 0 is expected, got {seed!r}")
        if not isinstance(files, list) or not all(isinstance(one, list) and len(one) >= 2 for one in files):
            raise ValueError("source.files: names and sizes are expected")


PREPARED_LOG = FolderFormat(
    name="prepared log",
    file=MANIFEST,
    version=1,
    manifest=LogManifest,
    error=ClickLogError,
    missing="no such log",
)
"""The format of prepared logs."""
