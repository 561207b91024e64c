"""Models with tables under `DistributedDataParallel` and in `torch.distributed.checkpoint`."""

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.nn.parallel import DistributedDataParallel

from sparsegroup.optim.table_parameter import KEYS
from sparsegroup.table.field_tables import tables_in
from sparsegroup.table.files.snapshot import DROPPED, ENTRIES
from sparsegroup.table.sharded.rank_parts import RankShard, joined_shards, needed_shards


def data_parallel(model: nn.Module, **options: Any) -> DistributedDataParallel:
    """`DistributedDataParallel` for a model except the rows of its tables, each of which belongs to one rank.

    The fallback vectors of a table are averaged with the other parameters.

    Args:
        model: All of its tables have a `process_group`, or `per_rank`.
        **options: Arguments of `DistributedDataParallel`.

    Raises:
        ValueError: A table has neither, and would differ from rank to rank.
    """
    ignored = []
    for name, table in tables_in(model).items():
        if table.across is None and not table.per_rank:
            raise ValueError(
                f"the table {name or 'itself'!r} would differ from the other ranks' tables: make it with "
                "process_group=torch.distributed.group.WORLD, or with per_rank=True for a separate one on each rank"
            )
        ignored.append(f"{name}.weight" if name else "weight")
    ignore: Any = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
    ignore(model, ignored)
    return DistributedDataParallel(model, **options)


_STEP = "step"

Sizes = Mapping[str, TensorStorageMetadata]


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _is_of_rows(entry: str, entries: Container[str]) -> bool:
    """Whether an entry holds rows of a table, or of an optimizer's state of one."""
    return entry in ENTRIES if DROPPED in entries else "." not in entry and entry != _STEP


def _saved_tables(
    metadata: Metadata, state_dict: Mapping[str, Any]
) -> Iterator[tuple[str, RankShard, dict[RankShard, Sizes]]]:
    """Yield the tables of a flat state dict, and optimizers' states of them, that a checkpoint has.

    Each is the flat name under which its entries are, the rank of the state dict's rows, and the entries of each rank
    in the checkpoint that has some of these rows.
    """
    saved = {name: its for name, its in metadata.state_dict_metadata.items() if isinstance(its, TensorStorageMetadata)}
    for name, value in state_dict.items():
        prefix, _, entry = name.rpartition(".")
        if entry != KEYS or type(value) is not Tensor or value.dtype != torch.int64 or value.ndim != 1:
            continue
        before, _, last = prefix.rpartition(".")
        part = RankShard.of(last)
        place, own = (prefix, RankShard()) if part is None else (before, part)
        found = _parts(saved, metadata.state_dict_metadata, place)
        if not found:
            continue
        try:
            needed = needed_shards([*found], own)
        except ValueError as error:
            raise ValueError(f"the checkpoint does not hold all of {place or 'the table'!r}: {error}") from error
        yield place, own, {one: found[one] for one in needed}


def _parts(saved: Sizes, all_saved: Container[str], place: str) -> dict[RankShard, Sizes]:
    """The parts of a table in a checkpoint, by whose rows they are."""
    found: dict[RankShard, dict[str, TensorStorageMetadata]] = {}
    beginning = _joined(place, "")
    for name, its in saved.items():
        rest = name.removeprefix(beginning)
        part = RankShard.of(rest)
        entry = rest if part is None else rest.partition(".")[2]
        if name.startswith(beginning) and "." not in entry:
            found.setdefault(part or RankShard(), {})[entry] = its
    is_state = _joined(place, _STEP) in all_saved
    return {
        part: {name: its for name, its in entries.items() if _is_of_rows(name, entries)}
        for part, entries in found.items()
        if KEYS in entries and (DROPPED in entries or is_state)
    }


class TableLoadPlanner(DefaultLoadPlanner):
    """A planner for `torch.distributed.checkpoint.load` that reads as many rows of a table as the checkpoint holds.

    DCP fills the tensors of a state dict in place, so that a fresh table, which has no rows, could take none. This
    planner makes room first: the entries of each `HashEmbedding`, and of an optimizer's state of one, become those of
    the checkpoint. Everything else is loaded as by `DefaultLoadPlanner`. A table is recognized by its entries `keys`
    and `dropped`, an optimizer's state of one by `keys` and `step`.

    A table on several ranks (`process_group`) has the entries of each rank under separate names, `rank_0_of_2.keys`.
    Any number of ranks may have written them: each rank reads the parts that contain rows of its
    own, and loads only these rows.

    Args:
        **options: `DefaultLoadPlanner`'s.

    Raises:
        ValueError: In `load`: the checkpoint has an entry of a table that is missing in the state dict, which has no
            nested dicts; or parts of a table are missing.

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
        super().set_up_planner(state_dict, metadata, is_coordinator)
        self._tables: dict[str, _LoadedTable] = {}  # flat name of an entry that is read → the table that it is of
        self._awaited: Counter[_LoadedTable] = Counter()
        for place, own, sizes in () if metadata is None else [*_saved_tables(metadata, self.state_dict)]:
            table = _LoadedTable(self, place, own, sizes)
            for part, entries in table.parts.items():
                for name, tensor in entries.items():
                    flat = _joined(place, part.named(name))
                    self.state_dict[flat] = tensor
                    self._tables[flat] = table

    def finish_plan(self, new_plan: LoadPlan) -> LoadPlan:
        plan = super().finish_plan(new_plan)
        self._awaited = Counter(
            self._tables[item.dest_index.fqn] for item in plan.items if item.dest_index.fqn in self._tables
        )
        for table in dict.fromkeys(self._tables.values()):
            if not self._awaited[table]:  # there are no rows
                table.finish()
        return plan

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        super().commit_tensor(read_item, tensor)
        table = self._tables.get(read_item.dest_index.fqn)
        if table is not None:
            self._awaited[table] -= 1
            if not self._awaited[table]:
                table.finish()


class _LoadedTable:
    """A table of the state dict that a planner has flattened: without its entries, until all of them have been read.

    `parts` have room for the entries in the checkpoint. Raises ValueError if one has no place in the state dict.
    """

    def __init__(self, planner: TableLoadPlanner, place: str, own: RankShard, sizes: Mapping[RankShard, Sizes]) -> None:
        self._own = own
        keys = _joined(place, own.named(KEYS))
        self._path: tuple[Any, ...] = tuple(planner.mappings.get(keys, (keys,)))
        content: Any = planner.original_state_dict
        for name in self._path[:-1]:  # numbers of parameters are texts in paths
            content = content[name if isinstance(content, list) or name in content else int(name)]
        self._content = content
        self.parts = {
            part: {name: torch.empty(its.size, dtype=its.properties.dtype, device="cpu") for name, its in saved.items()}
            for part, saved in sizes.items()
        }
        for where in dict.fromkeys(self._named(name) for entries in self.parts.values() for name in entries):
            if self._is_on_top and where not in self._content:
                raise ValueError(
                    f"the checkpoint has {where!r}, for which the state dict that is to be loaded has no entry, and "
                    f"dcp.load adds none on its top level: give it one before, state_dict[{where!r}] = torch.empty(0)"
                )
        entries, beginning = next(iter(sizes.values())), _joined(place, own.named(""))
        for flat in [name for name in planner.state_dict if name.startswith(beginning)]:
            if not _is_of_rows(flat.removeprefix(beginning), entries):
                continue
            del planner.state_dict[flat]
            if not self._is_on_top:
                del self._content[planner.mappings[flat][-1]]

    @property
    def _is_on_top(self) -> bool:
        return len(self._path) == 1

    def finish(self) -> None:
        """Add this rank's entries, made of all parts."""
        entries = joined_shards(self.parts, self._own)
        self._content.update({self._named(name): tensor for name, tensor in entries.items()})

    def _named(self, name: str) -> str:
        """The name of an entry next to the keys; in a nested dict that of all rows', by which torch looks."""
        before = str(self._path[-1]).removesuffix(self._own.named(KEYS))
        return before + (self._own.named(name) if self._is_on_top else name)
