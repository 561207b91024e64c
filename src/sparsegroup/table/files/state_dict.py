"""A table's entries in the state dict of a module: written, read, and seen as attributes."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from torch import Tensor

from sparsegroup.optim.table_parameter import KEYS, ROWS_LEFT_OUT
from sparsegroup.table.files.snapshot import DROPPED, ENTRIES, TableSnapshot
from sparsegroup.table.rows.rows import WEIGHT
from sparsegroup.table.sharded.rank_parts import RankShard, joined_shards
from sparsegroup.table.table import Table

_Class = TypeVar("_Class", bound=type)


def save_rows(table: Table, destination: dict[str, Any], prefix: str) -> None:
    """Put keys, vectors and the directory's state into a state dict; see `nn.Module._save_to_state_dict`."""
    if ROWS_LEFT_OUT.get():
        return
    for name, tensor in table.snapshot((WEIGHT,)).tensors().items():
        destination[prefix + table.part.named(name)] = tensor  # entries of several ranks are not copies


def _entry(name: str) -> property:
    """Return an attribute for an entry of a table's state dict. AttributeError: the state dict lacks the entry."""

    def value(module: Any) -> Tensor:
        tensors = module.table.snapshot(()).tensors()
        if name not in tensors:
            raise AttributeError(f"the table has no {name!r}")
        tensor: Tensor = tensors[name]
        return tensor

    return property(value)


def with_state_entries(module_class: _Class) -> _Class:
    """Give a module over a table the entries of its state dict as attributes, as each buffer is one.

    `torch.distributed.checkpoint` looks up every name of a state dict.
    """
    for name in ENTRIES:
        if name not in (KEYS, WEIGHT):  # these are there
            setattr(module_class, name, _entry(name))
    return module_class


@with_state_entries
class PartEntries:
    """Entries of one rank's part of a `table` as attributes; `weight` is the parameter."""

    keys = _entry(KEYS)

    def __init__(self, table: Table, weight: object) -> None:
        self.table, self.weight = table, weight


def unknown_entries(state_dict: Mapping[str, Tensor], prefix: str, known: Iterable[str]) -> list[str]:
    """Return the names below `prefix` that are neither entries of a table nor begin with a `known` name."""
    unknown = []
    for name in state_dict:
        entry = name[len(prefix) :]
        if name.startswith(prefix) and entry.partition(".")[0] not in known:
            own = entry if RankShard.of(entry) is None else entry.partition(".")[2]
            unknown.extend([] if own in ENTRIES else [name])
    return unknown


def load_rows(
    table: Table, state_dict: Mapping[str, Tensor], prefix: str, missing_keys: list[str], error_msgs: list[str]
) -> None:
    """Load what `save_rows` put there; see `nn.Module._load_from_state_dict`. If that fails, nothing is changed.

    A table on several ranks takes the entries of this rank's part, or its part of those of all rows.
    """
    if ROWS_LEFT_OUT.get():
        return
    try:
        part = _part_in(state_dict, prefix, table)
    except ValueError as error:
        error_msgs.append(f"{prefix.removesuffix('.') or 'the table'} {error}")
        return
    prefix += part.named("")
    if missing := [prefix + name for name in (KEYS, WEIGHT, DROPPED) if prefix + name not in state_dict]:
        missing_keys.extend(missing)
        return
    names = [name for name in ENTRIES if prefix + name in state_dict]
    try:
        tensors = {name: state_dict[prefix + name].detach().cpu() for name in names}
        if part != table.part:
            tensors = joined_shards({part: tensors}, table.part)
        table.load(TableSnapshot.of_tensors(tensors, table.config))
    except (ValueError, RuntimeError) as error:  # nothing has been changed
        error_msgs.append(f"{prefix}{error}")


def _part_in(state_dict: Mapping[str, Tensor], prefix: str, table: Table) -> RankShard:
    """Whose rows a state dict has of a table: this rank's, or all. Raises ValueError for only other ranks'."""
    names = [name[len(prefix) :] for name in state_dict if name.startswith(prefix)]
    if table.part.named(KEYS) in names:
        return table.part
    if KEYS not in names:
        for name in names:
            table.part.entry_of(name)
    return RankShard()
