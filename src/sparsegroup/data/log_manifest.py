"""`log.json`: what a prepared log holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from sparsegroup.artifact.manifest import FolderFormat, Manifest, Plain, digest
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
    rows: int
    train_rows: int
    positives: int
    parts: Mapping[str, int]
    features: Mapping[str, tuple[int, int]]
    hash: str
    source: Mapping[str, Any]
    bad_rows: Mapping[str, int] = field(default_factory=dict)
    weighted: bool = False
    timed: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_plain(cls, content: Plain, **header: Any) -> Self:
        """See `Manifest.from_plain`."""
        for name in ("fields", "numbers", "lists"):
            content[name] = tuple(content[name])
        content["features"] = {name: tuple(counts) for name, counts in content["features"].items()}
        return cls(**content, **header)


def _from_version_1(content: Plain) -> Plain:
    """There were no digests; `files` had the rows of each part, and `version` was the package's."""
    id, version, parts = digest(content), content.pop("version"), content.pop("files")
    return {**content, "parts": parts, "id": id, "parent": None, "files": {}, "written_by": f"sparsegroup {version}"}


PREPARED_LOG = FolderFormat(
    name="prepared log",
    file=MANIFEST,
    version=2,
    manifest=LogManifest,
    error=ClickLogError,
    migrations={1: _from_version_1},
    missing=lambda folder: "no such log",
)
"""The format of prepared logs."""
