"""What a checkpoint holds, in files and in its state, and the ranks that write or read one together."""

import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import Field
from torch import Tensor, nn
from torch.optim import Optimizer

from sparsegroup.artifact.manifest import FolderFormat, Manifest, version
from sparsegroup.artifact.validation import STRICT, AnyReal, Count, Key, shortened
from sparsegroup.errors import UserError
from sparsegroup.optim import GroupOptimizer
from sparsegroup.table.field_tables import tables_in
from sparsegroup.table.files.read import ALL, TableFile
from sparsegroup.table.files.write import TableFacts
from sparsegroup.table.sharded.exchange import Shards
from sparsegroup.table.sharded.routing import Routing
from sparsegroup.table.table import Table

Optimizers = Optimizer | Sequence[Optimizer] | None


class CheckpointError(UserError):
    """A checkpoint that cannot be written or read. The message names the file and what is wrong with it."""


MANIFEST = "checkpoint.json"
STATE = "state.safetensors"

_NEIGHBOUR = re.compile(r"\.\./[^./\\\0][^/\\\0]*")


@dataclass(frozen=True, kw_only=True)
class CheckpointManifest(Manifest):
    """What a checkpoint holds. Its parent is a neighbour: the checkpoint whose tables' rows this one changes."""

    step: Count  # the training step that it was written at
    written: str  # date and time, ISO 8601
    versions: Mapping[str, str]  # the versions of Python, this package and torch
    # file name → the table's name in the model, and the table's facts. A sharded table has a file a rank
    tables: Mapping[str, tuple[str, TableFacts]]
    state: Any  # `SavedState` as JSON; its tensors are in `STATE`
    routing: Routing | None = None  # which rank has which key, if tables are sharded

    def check(self) -> None:
        """Raise ValueError unless parent, files, tables and routing fit together."""
        if self.parent is not None and not _NEIGHBOUR.fullmatch(self.parent.path):
            raise ValueError(
                f"parent.path: a neighbour is expected, as in ../step-1, got {shortened(self.parent.path)}"
            )
        every_rank = [] if self.routing is None else [*range(self.routing.ranks)]
        ranks: dict[str, list[int | None]] = {}
        for name, (where, facts) in self.tables.items():
            ranks.setdefault(where, []).append(facts.rank)
            if name not in self.files:
                raise ValueError(f"tables.{name}: is not among the files")
            try:
                facts.check()
            except ValueError as error:
                raise ValueError(f"tables.{name}.1.{error}") from error
        for where, found in ranks.items():
            if found != [None] and sorted(found, key=str) != sorted(every_rank, key=str):
                raise ValueError(f"tables: the table {where!r} is in the files of the ranks {found}, not once in all")

    def check_parent(self, parent: Self) -> None:
        """Raise ValueError unless the changes fit, as far as can be known without reading rows."""
        own, its = ({name: (at, facts.rank) for name, (at, facts) in one.tables.items()} for one in (self, parent))
        if self.routing != parent.routing or own != its:
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
                buckets = ALL if facts.rank is None or self.routing is None else self.routing.range_of(facts.rank)
                parts.append(TableFile(folder / name, facts, buckets))
        return sorted(parts, key=lambda part: part.buckets.start)


def versions() -> dict[str, str]:
    """The versions that a checkpoint records."""
    return {"python": platform.python_version(), **{name: version(name) for name in ("sparsegroup", "torch")}}


CHECKPOINT = FolderFormat("checkpoint", MANIFEST, 1, CheckpointManifest, CheckpointError, missing="no checkpoint")


@dataclass(frozen=True)
class SavedOptimizer:
    """A state dict without the rows of tables; `kind` is the rule's name, or the class of torch's own."""

    kind: str
    param_groups: list[dict[str, Any]]
    state: Mapping[Any, Any]


@dataclass(frozen=True)
class SavedRng:
    """The states of torch's, NumPy's and Python's global generators."""

    torch: Tensor
    cuda: list[Tensor]
    numpy: tuple[str, list[int], int, int, AnyReal]
    python: tuple[Key, tuple[int, ...], AnyReal | None]


@dataclass(frozen=True)
class SavedRank:
    """The random numbers of a rank: its global generators, and each optimizer's where it has one."""

    rng: SavedRng
    generators: list[Tensor | None]


@dataclass(frozen=True)
class SavedState:
    """State dicts of the model, its optimizers and the scheduler, the random numbers of each rank, and `extra`."""

    __pydantic_config__: ClassVar = STRICT

    model: dict[str, Any]
    optimizers: list[SavedOptimizer]
    scheduler: dict[str, Any] | None
    scheduler_kind: str | None
    ranks: Annotated[list[SavedRank], Field(min_length=1)]
    extra: Any

    def as_dict(self) -> dict[str, Any]:
        """The same in dictionaries and lists; nothing is copied."""
        ranks = [{"rng": vars(rank.rng), "generators": rank.generators} for rank in self.ranks]
        return {**vars(self), "optimizers": [vars(one) for one in self.optimizers], "ranks": ranks}


Result = TypeVar("Result")


class CheckpointRanks:
    """The ranks that a model's `tables` are sharded over, this `rank` among them; one for a process without others.

    `operation` names the work in messages of `ExchangeError`: "writing a checkpoint".
    """

    def __init__(self, model: nn.Module, operation: str) -> None:
        tables = tables_in(model)
        shards: dict[Any, Shards] = {t.across.shards.group: t.across.shards for t in tables.values() if t.across}
        if len(shards) > 1 or (shards and any(table.per_rank for table in tables.values())):
            raise CheckpointError(
                "the tables of a checkpoint must be sharded over one process_group, or each rank must have its own "
                f"whole tables; these differ: {', '.join(map(repr, tables))}"
            )
        self.tables: dict[str, Table] = {name: table.table for name, table in tables.items()}
        self._shards, self._operation = next(iter(shards.values()), None), operation
        self.rank = 0 if self._shards is None else self._shards.rank
        self.routing = Routing(1) if self._shards is None else self._shards.routing

    @property
    def is_alone(self) -> bool:
        """Whether this process works without others."""
        return self._shards is None

    def all_of(self, local: Result) -> list[Result]:
        """The values of all ranks, in their order; ExchangeError if the ranks do not meet."""
        return [local] if self._shards is None else self._shards.of_all([local], self._operation)

    def agree_on(self, local: object) -> bool:
        """Whether all ranks, each of which must call this, have the same value."""
        values = self.all_of(local)
        return values.count(local) == len(values)

    def do(self, action: Callable[[], Result]) -> Result:
        """The result of an action of all ranks. If it fails on one, it raises on all: CheckpointError on the others."""
        return action() if self._shards is None else self._shards.do(action, self._operation, CheckpointError)


def listed(optimizer: Optimizers) -> list[Optimizer]:
    """One optimizer, several or none, as a list."""
    return [] if optimizer is None else [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)


def kind_of(optimizer: Optimizer) -> str:
    """The rule's name, or the class of torch's own."""
    return optimizer.rule.name if isinstance(optimizer, GroupOptimizer) else type(optimizer).__name__
