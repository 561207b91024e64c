"""`TableLoadPlanner`: tables of any number of rows out of a checkpoint of `torch.distributed.checkpoint`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem

from sparsegroup.optim.stored import KEYS
from sparsegroup.table.directory_notes import NOTES
from sparsegroup.table.row_storage import WEIGHT
from sparsegroup.table.sharded.rank_parts import RankPart, joined_parts, needed_parts

_DROPPED, _STEP = "dropped", "step"
_OF_TABLE = frozenset({KEYS, WEIGHT, _DROPPED, *NOTES})

Sizes = Mapping[str, TensorStorageMetadata]


@dataclass(frozen=True)
class SavedTable:
    """A table, or an optimizer's state of one.

    Attributes:
        place: The flat name under which its entries are.
        own: Whose rows those of the state dict are.
        parts: Those in the checkpoint that have rows of these → their entries by name.
    """

    place: str
    own: RankPart
    parts: Mapping[RankPart, Sizes]

    def entry_of(self, flat: str) -> str | None:
        """The entry of this rank's rows that a flat name of the state dict is; None for others."""
        beginning = joined_name(self.place, self.own.named(""))
        entry = flat.removeprefix(beginning)
        is_table = _DROPPED in next(iter(self.parts.values()))
        return entry if flat.startswith(beginning) and _is_of_rows(entry, is_table=is_table) else None


def joined_name(prefix: str, name: str) -> str:
    """A flat name."""
    return f"{prefix}.{name}" if prefix else name


def saved_tables(metadata: Metadata, state_dict: Mapping[str, Any]) -> Iterator[SavedTable]:
    """The tables of a flat state dict that a checkpoint has.

    Raises:
        ValueError: Parts of one are missing.
    """
    saved = {name: its for name, its in metadata.state_dict_metadata.items() if isinstance(its, TensorStorageMetadata)}
    for name, value in state_dict.items():
        if not is_keys(name, value):
            continue
        prefix = name.rpartition(".")[0]
        before, _, last = prefix.rpartition(".")
        part = RankPart.of(last)
        place, own = (prefix, RankPart()) if part is None else (before, part)
        found = _parts(saved, metadata.state_dict_metadata, place)
        if not found:
            continue
        try:
            needed = needed_parts([*found], own)
        except ValueError as error:
            raise ValueError(f"the checkpoint does not hold all of {place or 'the table'!r}: {error}") from error
        yield SavedTable(place, own, {one: found[one] for one in needed})


def is_keys(name: str, value: Any) -> bool:
    """Whether an entry may be the keys of a table."""
    return name.rpartition(".")[2] == KEYS and type(value) is Tensor and value.dtype == torch.int64 and value.ndim == 1


def _parts(saved: Sizes, all_saved: Mapping[str, Any], place: str) -> dict[RankPart, Sizes]:
    """The parts of a table in a checkpoint, by whose rows they are."""
    found: dict[RankPart, dict[str, TensorStorageMetadata]] = {}
    beginning = joined_name(place, "")
    for name, its in saved.items():
        if not name.startswith(beginning):
            continue
        rest = name[len(beginning) :]
        part = RankPart.of(rest)
        entry = rest if part is None else rest.partition(".")[2]
        if "." not in entry:
            found.setdefault(part or RankPart(), {})[entry] = its
    is_state = joined_name(place, _STEP) in all_saved
    kept: dict[RankPart, Sizes] = {}
    for part, entries in found.items():
        is_table = _DROPPED in entries
        if KEYS in entries and (is_table or is_state):
            kept[part] = {name: its for name, its in entries.items() if _is_of_rows(name, is_table=is_table)}
    return kept


def _is_of_rows(entry: str, *, is_table: bool) -> bool:
    return entry in _OF_TABLE if is_table else "." not in entry and entry != _STEP


class TableLoadPlanner(DefaultLoadPlanner):
    """A planner for `torch.distributed.checkpoint.load` that reads as many rows of a table as the checkpoint holds.

    DCP fills the tensors of a state dict in place, so that a fresh table, which has no rows, could take none. This
    planner makes room first: the entries of each `HashEmbedding`, and of an optimizer's state of one, become those of
    the checkpoint. Everything else is loaded as by `DefaultLoadPlanner`. A table is known by its entries `keys` and
    `dropped`, an optimizer's state of one by `keys` beside `step`.

    A table that lies on several ranks (`process_group`) has the entries of each under names of its own,
    `rank_0_of_2.keys`. Whatever number of ranks has written them, one process alone or others, each rank reads the
    parts that have rows of its own, and keeps these.

    Args:
        **options: Those of `DefaultLoadPlanner`.

    Raises:
        ValueError: In `load`: the checkpoint knows something of a table for which the state dict, which has no nested
            dicts, has no entry; or parts of a table are missing.

    Examples:
        >>> import tempfile, warnings
        >>> import torch
        >>> import torch.distributed.checkpoint as dcp
        >>> from sparsegroup import HashEmbedding
        >>> table, fresh, folder = HashEmbedding(4), HashEmbedding(4), tempfile.mkdtemp()
        >>> _ = table(torch.tensor([7, -1]))
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")  # in one process
        ...     saved = dcp.save({"table": table.state_dict()}, checkpoint_id=folder, no_dist=True)
        ...     loaded = {"table": fresh.state_dict()}
        ...     dcp.load(loaded, checkpoint_id=folder, planner=TableLoadPlanner(), no_dist=True)
        >>> fresh.load_state_dict(loaded["table"])
        <All keys matched successfully>
        >>> fresh.keys.tolist()
        [7, -1]
    """

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """See `torch.distributed.checkpoint.LoadPlanner`."""
        super().set_up_planner(state_dict, metadata, is_coordinator)
        self._joins: dict[str, _Join] = {}  # flat name of an entry that is read → what it is read for
        self._awaited: Counter[_Join] = Counter()
        for table in () if metadata is None else [*saved_tables(metadata, self.state_dict)]:
            target = _Target(self, table)
            entries = {
                part: {name: torch.empty(its.size, dtype=its.properties.dtype) for name, its in sizes.items()}
                for part, sizes in table.parts.items()
            }
            for name in dict.fromkeys(name for its in entries.values() for name in its):
                target.check(name)
            target.clear()
            join = _Join(target, entries)
            for part, its in entries.items():
                for name, tensor in its.items():
                    flat = joined_name(table.place, part.named(name))
                    self.state_dict[flat] = tensor
                    self._joins[flat] = join

    def finish_plan(self, new_plan: LoadPlan) -> LoadPlan:
        """See `torch.distributed.checkpoint.LoadPlanner`."""
        plan = super().finish_plan(new_plan)
        self._awaited = Counter(
            self._joins[item.dest_index.fqn] for item in plan.items if item.dest_index.fqn in self._joins
        )
        for join in dict.fromkeys(self._joins.values()):
            if not self._awaited[join]:  # there are no rows
                join.finish()
        return plan

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """See `torch.distributed.checkpoint.LoadPlanner`."""
        super().commit_tensor(read_item, tensor)
        join = self._joins.get(read_item.dest_index.fqn)
        if join is not None:
            self._awaited[join] -= 1
            if not self._awaited[join]:
                join.finish()


class _Target:
    """Where in the state dict that is loaded the entries of a table go.

    Args:
        planner: Which has flattened it.
        table: The table.
    """

    def __init__(self, planner: TableLoadPlanner, table: SavedTable) -> None:
        self.table, self._planner = table, planner
        keys = joined_name(table.place, table.own.named(KEYS))
        self._path: tuple[Any, ...] = tuple(planner.mappings.get(keys, (keys,)))
        self._content = _container(planner.original_state_dict, self._path)

    @property
    def is_on_top(self) -> bool:
        """Whether it has its place among the names that `dcp.load` knows before, and takes no others."""
        return len(self._path) == 1

    def check(self, name: str) -> None:
        """Raise ValueError if an entry has no place."""
        if self.is_on_top and self._named(name) not in self._content:
            where = self._named(name)
            raise ValueError(
                f"the checkpoint has {where!r}, for which the state dict that is to be loaded has no entry, and "
                f"dcp.load adds none on its top level: give it one before, state_dict[{where!r}] = torch.empty(0)"
            )

    def clear(self) -> None:
        """Take the table's entries out of what is loaded as it is."""
        for flat in [name for name in self._planner.state_dict if self.table.entry_of(name) is not None]:
            del self._planner.state_dict[flat]
            if not self.is_on_top:
                del self._content[self._planner.mappings[flat][-1]]

    def put(self, entries: dict[str, Tensor]) -> None:
        """Have these entries."""
        self._content.update({self._named(name): tensor for name, tensor in entries.items()})

    def _named(self, name: str) -> str:
        """What an entry is called beside the keys: in a nested dict as all rows' are, by which torch looks."""
        own = self.table.own
        before = str(self._path[-1]).removesuffix(own.named(KEYS))
        return before + (own.named(name) if self.is_on_top else name)


class _Join:
    """Parts of a table that are read, to be made one.

    Args:
        target: Where that goes.
        entries: The parts, with room for their entries.
    """

    def __init__(self, target: _Target, entries: dict[RankPart, dict[str, Tensor]]) -> None:
        self._target, self._entries = target, entries

    def finish(self) -> None:
        """All has been read."""
        self._target.put(joined_parts(self._entries, self._target.table.own))


def _container(state_dict: Any, path: Sequence[Any]) -> Any:
    """The dict in which the last name of a path is; numbers of parameters are texts in paths."""
    for name in path[:-1]:
        state_dict = state_dict[name if isinstance(state_dict, list) or name in state_dict else int(name)]
    return state_dict
