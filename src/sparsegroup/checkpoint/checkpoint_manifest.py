"""`checkpoint.json`: what a checkpoint holds."""

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from sparsegroup.artifact.manifest import FolderFormat, Manifest
from sparsegroup.artifact.validation import Count, shortened
from sparsegroup.checkpoint.checkpoint_error import CheckpointError
from sparsegroup.table.sharded.routing import Routing
from sparsegroup.table.table_file import TableFacts
from sparsegroup.table.table_reading import ALL, TableFile

MANIFEST = "checkpoint.json"
STATE = "state.safetensors"

_NEIGHBOUR = re.compile(r"\.\./[^./\\\0][^/\\\0]*")


@dataclass(frozen=True, kw_only=True)
class CheckpointManifest(Manifest):
    """What a checkpoint holds. Its parent is a neighbour: the checkpoint whose tables' rows this one changes.

    Attributes:
        step: The training step that it was written at.
        written: Date and time, ISO 8601.
        versions: The versions of Python, this package and torch.
        tables: File name → the table's name in the model, and the table's facts. A sharded table has a file a rank.
        state: `SavedState` as JSON; its tensors are in `STATE`.
        routing: Which rank has which key, if tables are sharded.
    """

    step: Count
    written: str
    versions: Mapping[str, str]
    tables: Mapping[str, tuple[str, TableFacts]]
    state: Any
    routing: Mapping[str, Any] | None = None

    def check(self) -> None:
        """Raise ValueError unless parent, files, tables and routing fit together."""
        if self.parent is not None and not _NEIGHBOUR.fullmatch(self.parent.path):
            raise ValueError(
                f"parent.path: a neighbour is expected, as in ../step-1, got {shortened(self.parent.path)}"
            )
        ranks = 1
        if self.routing is not None:
            try:
                ranks = Routing.of_plain(self.routing).ranks
            except (ValueError, TypeError, LookupError) as error:
                raise ValueError(f"routing: {error}") from error
        places = [(where, facts.rank) for where, facts in self.tables.values()]
        for name, (where, facts) in self.tables.items():
            if name not in self.files:
                raise ValueError(f"tables.{name}: is not among the files")
            if places.count((where, facts.rank)) > 1:
                raise ValueError(f"tables.{name}: the table {where!r} is also in another file")
            if facts.rank is not None and (self.routing is None or facts.rank >= ranks):
                raise ValueError(f"tables.{name}.1.rank: there is no rank {facts.rank} of the table {where!r}")
            if sum(place == where for place, _ in places) != (1 if facts.rank is None else ranks):
                raise ValueError(f"tables.{name}: not all of the table {where!r} is there, or more")
            try:
                facts.check()
            except ValueError as error:
                raise ValueError(f"tables.{name}.1.{error}") from error

    def check_parent(self, parent: Self) -> None:
        """Raise ValueError unless the changes fit, as far as can be known without reading rows."""
        if self.routing != parent.routing or self.tables.keys() != parent.tables.keys():
            raise ValueError("its tables are others, or on other ranks")
        for name, (_, facts) in self.tables.items():
            before = parent.tables[name][1].rows
            if facts.rows > before + facts.written:
                raise ValueError(f"{name}: {facts.written:,} rows cannot make {facts.rows:,} of {before:,}")

    def parts(self, folder: Path, where: str) -> list[TableFile]:
        """The files of a table in `folder`, in the order of ranks."""
        parts = []
        for name, (place, facts) in self.tables.items():
            if place == where:
                is_sharded = facts.rank is not None and self.routing is not None
                buckets = Routing.of_plain(self.routing or {}).range_of(facts.rank or 0) if is_sharded else ALL
                parts.append(TableFile(folder / name, facts, buckets))
        return sorted(parts, key=lambda part: part.buckets.start)


def versions() -> dict[str, str]:
    """The versions that a checkpoint records."""
    return {"python": platform.python_version(), **{name: version(name) for name in ("sparsegroup", "torch")}}


CHECKPOINT = FolderFormat(
    name="checkpoint",
    file=MANIFEST,
    version=1,
    manifest=CheckpointManifest,
    error=CheckpointError,
    missing="no checkpoint",
)
