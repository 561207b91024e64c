"""`checkpoint.json`: what a checkpoint holds."""

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from sparsegroup.artifact.manifest import FolderFormat, Manifest, Plain, digest
from sparsegroup.artifact.validation import Count, shortened
from sparsegroup.checkpoint.checkpoint_error import CheckpointError
from sparsegroup.table.table_file import TableFacts

MANIFEST = "checkpoint.json"

_NEIGHBOUR = re.compile(r"\.\./[^./\\\0][^/\\\0]*")


@dataclass(frozen=True, kw_only=True)
class CheckpointManifest(Manifest):
    """What a checkpoint holds. Its parent is a neighbour: the checkpoint whose tables' rows this one changes.

    Attributes:
        step: The training step that it was written at.
        written: Date and time, ISO 8601.
        versions: The versions of Python, this package and torch.
        tables: Name of the file → where its table is in the model, and the table's facts.
        state: All the rest, as `as_plain` makes it.
    """

    step: Count
    written: str
    versions: Mapping[str, str]
    tables: Mapping[str, tuple[str, TableFacts]]
    state: Any

    def check(self) -> None:
        """See `Manifest.check`."""
        if self.parent is not None and not _NEIGHBOUR.fullmatch(self.parent.path):
            raise ValueError(
                f"parent.path: a neighbour is expected, as in ../step-1, got {shortened(self.parent.path)}"
            )
        places = [where for where, _ in self.tables.values()]
        for name, (where, facts) in self.tables.items():
            if name not in self.files:
                raise ValueError(f"tables.{name}: is not among the files")
            if places.count(where) > 1:
                raise ValueError(f"tables.{name}: the table {where!r} is in another file, too")
            try:
                facts.check()
            except ValueError as error:
                raise ValueError(f"tables.{name}.1.{error}") from error


def versions() -> dict[str, str]:
    """The versions that a checkpoint records."""
    return {"python": platform.python_version(), **{name: version(name) for name in ("sparsegroup", "torch")}}


def _from_version_1(content: Plain) -> Plain:
    """The id was the only checksum; the parent was a name and an id."""
    id = content.pop("id")
    if id != digest(content):
        raise ValueError("its checksum is not that of its content")
    parent = content["parent"]
    return {
        **content,
        "id": id,
        "parent": None if parent is None else {"id": parent[1], "path": f"../{parent[0]}"},
        "written_by": f"sparsegroup {content['versions']['sparsegroup']}",
    }


CHECKPOINT = FolderFormat(
    name="checkpoint",
    file=MANIFEST,
    version=2,
    manifest=CheckpointManifest,
    error=CheckpointError,
    migrations={1: _from_version_1},
    missing=lambda folder: "no checkpoint",
)
"""The format of checkpoints.

A migration is the place to rename arguments of optimizers, in `content["state"]["optimizers"][i]["param_groups"]`, and
settings of runs, in `content["state"]["extra"]["config"]`.
"""
