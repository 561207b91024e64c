"""The part of a rank in the state dicts of a table that lies on several: its names, and others made of some."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.table.directory_notes import NOTES, OF_ROWS, joined_notes, left_to_another
from sparsegroup.table.sharded.routing import BUCKETS, Routing, buckets_of

_PREFIX = re.compile(r"rank_(0|[1-9]\d*)_of_([1-9]\d*)")
_DROPPED, _CANDIDATES, _COUNTS = "dropped", "candidates", "candidate_counts"


@dataclass(frozen=True)
class RankPart:
    """Whose rows the entries of a state dict are.

    Attributes:
        rank: The number of the rank.
        ranks: How many the table lies on; 1 for all rows.
    """

    rank: int = 0
    ranks: int = 1

    @classmethod
    def of(cls, name: str) -> "RankPart | None":
        """The part that begins the name of an entry; None where it is none of a rank."""
        found = _PREFIX.fullmatch(name.partition(".")[0])
        if found is None or not int(found[1]) < int(found[2]) <= BUCKETS:
            return None
        return cls(int(found[1]), int(found[2]))

    @property
    def name(self) -> str:
        """What stands before the names of its entries, with a dot between; "" for all rows."""
        return f"rank_{self.rank}_of_{self.ranks}" if self.ranks > 1 else ""

    def named(self, entry: str) -> str:
        """The name of one of its entries."""
        return f"{self.name}.{entry}" if self.ranks > 1 else entry

    def entry_of(self, name: str) -> str:
        """The entry that has this name, of this part or of all rows.

        Raises:
            ValueError: It is another part's.
        """
        found = RankPart.of(name)
        if found is None:
            return name
        if found != self:
            raise ValueError(
                f"holds the rows of {found} alone, and {self} needs others: take them over by sparsegroup.checkpoint, "
                "or by torch.distributed.checkpoint with sparsegroup.integrations.TableLoadPlanner"
            )
        return name.partition(".")[2]

    @property
    def buckets(self) -> range:
        """The logical buckets of its keys."""
        return Routing(self.ranks).range_of(self.rank)

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.ranks}" if self.ranks > 1 else "all ranks"


def joined_parts(parts: Mapping[RankPart, Mapping[str, Tensor]], wanted: RankPart) -> dict[str, Tensor]:
    """The entries of one part, made of those of others.

    Args:
        parts: All that have keys in its buckets → their entries: `keys` `[n]`, others of the same rows, and, in
            modules' state dicts, `dropped` and the names in `NOTES`.
        wanted: The part.

    Raises:
        ValueError: An entry is of other rows than `keys`, or not in all parts.
    """
    rows: dict[str, list[Tensor]] = {}
    notes = []
    for part, entries in parts.items():
        own = _wanted(entries["keys"], wanted)
        for name, tensor in entries.items():
            if name in NOTES and name not in OF_ROWS:
                continue
            mask = _wanted(tensor, wanted) if name == _DROPPED else own
            if len(tensor) != len(mask):
                raise ValueError(f"{part.named(name)}: {len(mask):,} rows are expected, got {len(tensor):,}")
            rows.setdefault(name, []).append(tensor if mask.all() else tensor[mask])
        notes.append(_notes_of(part, entries, wanted))
    if missing := [name for name, found in rows.items() if len(found) != len(parts)]:
        raise ValueError(f"{missing[0]}: is not there of {' and '.join(map(str, parts))} alike")
    joined = joined_notes(notes)
    return {
        **{name: found[0] if len(found) == 1 else torch.cat(found) for name, found in rows.items()},
        **{name: torch.from_numpy(array) for name, array in joined.items()},
    }


def _wanted(keys: Tensor, wanted: RankPart) -> Tensor:
    """Which of some keys belong to a part, `[n]`."""
    if wanted.ranks == 1:
        return torch.ones(len(keys), dtype=torch.bool)
    buckets, its = torch.from_numpy(buckets_of(keys.numpy())), wanted.buckets
    return (its.start <= buckets) & (buckets < its.stop)


def _notes_of(part: RankPart, entries: Mapping[str, Tensor], wanted: RankPart) -> dict[str, npt.NDArray[Any]]:
    """What the directory knew in addition to rows."""
    notes = {name: entries[name].numpy() for name in NOTES if name in entries and name not in OF_ROWS}
    if _CANDIDATES in notes:
        mask = _wanted(entries[_CANDIDATES], wanted).numpy()
        notes |= {name: notes[name][mask] for name in (_CANDIDATES, _COUNTS) if name in notes}
    return notes if part.buckets.start in wanted.buckets else left_to_another(notes)


def needed_parts(found: Sequence[RankPart], wanted: RankPart) -> list[RankPart]:
    """Those of some parts that have keys of another one.

    Raises:
        ValueError: Some of them are missing, or they are of different numbers of ranks.
    """
    counts = sorted({part.ranks for part in found})
    if len(counts) != 1:
        raise ValueError(f"there are parts of tables on {' and on '.join(map(str, counts)) or 'no'} ranks")
    there = {part.rank: part for part in found}
    its = wanted.buckets
    needed = [RankPart(rank, counts[0]) for rank in range(counts[0])]
    needed = [part for part in needed if part.buckets.start < its.stop and its.start < part.buckets.stop]
    if missing := [part for part in needed if part.rank not in there]:
        raise ValueError(f"the rows of {missing[0]} are missing: there are those of {', '.join(map(str, found))}")
    return needed
