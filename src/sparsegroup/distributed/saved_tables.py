"""Where tables, and optimizers' states of them, are in a checkpoint of `torch.distributed.checkpoint`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from sparsegroup.optim.stored import KEYS
from sparsegroup.table.directory_notes import NOTES
from sparsegroup.table.row_storage import WEIGHT
from sparsegroup.table.sharded.rank_parts import RankPart, needed_parts

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
