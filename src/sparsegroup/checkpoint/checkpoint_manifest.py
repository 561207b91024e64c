"""`checkpoint.json`: what a checkpoint holds."""

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Self

from sparsegroup.artifact.manifest import FolderFormat, Manifest, Plain, digest
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

    step: int
    written: str
    versions: Mapping[str, str]
    tables: Mapping[str, tuple[str, TableFacts]]
    state: Any

    @classmethod
    def from_plain(cls, content: Plain, **header: Any) -> Self:
        """See `Manifest.from_plain`."""
        tables = {name: (where, TableFacts(**facts)) for name, (where, facts) in content.pop("tables").items()}
        manifest = cls(tables=tables, **content, **header)
        parent = manifest.parent
        _expect(parent is None or _NEIGHBOUR.fullmatch(parent.path), "parent")
        _expect(isinstance(manifest.written, str), "time")
        _expect(all(isinstance(text, str) for item in manifest.versions.items() for text in item), "versions")
        _expect(type(manifest.step) is int and manifest.step >= 0, "step")
        _expect(tables.keys() <= manifest.files.keys(), "tables without files")
        for name, (where, facts) in tables.items():
            _expect(isinstance(where, str) and facts.is_possible(), f"facts of {name}")
        return manifest


def versions() -> dict[str, str]:
    """The versions that a checkpoint records."""
    return {"python": platform.python_version(), **{name: version(name) for name in ("sparsegroup", "torch")}}


def _expect(holds: object, what: str) -> None:
    if not holds:
        raise ValueError(f"impossible {what}")


def _from_version_1(content: Plain) -> Plain:
    """The id was the only checksum; the parent was a name and an id."""
    id = content.pop("id")
    _expect(id == digest(content), "content: its checksum does not match")
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
