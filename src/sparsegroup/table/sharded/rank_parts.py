"""The shard of a rank in the state dicts of a table on several ranks: its entries' names, and shards made of others."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsegroup.optim.table_parameter import KEYS
from sparsegroup.table.files.snapshot import DIRECTORY_STATE, DROPPED, OF_ROWS, joined_state, share_of_state
from sparsegroup.table.sharded.routing import BUCKETS, Routing, are_in

_PREFIX = re.compile(r"rank_(0|[1-9]\d*)_of_([1-9]\d*)")


@dataclass(frozen=True)
class RankShard:
    """The rank, of `ranks`, whose rows the entries of a state dict are; one of 1 for all rows."""

    rank: int = 0
    ranks: int = 1

    @classmethod
    def of(cls, name: str) -> "RankShard | None":
        """The shard that begins the name of an entry; None if the entry is not of one rank."""
        found = _PREFIX.fullmatch(name.partition(".")[0])
        if found is None or not int(found[1]) < int(found[2]) <= BUCKETS:
            return None
        return cls(int(found[1]), int(found[2]))

    @property
    def name(self) -> str:
        """The prefix of the names of its entries, without the dot; "" for all rows."""
        return f"rank_{self.rank}_of_{self.ranks}" if self.ranks > 1 else ""

    def named(self, entry: str) -> str:
        """The name of one of its entries."""
        return f"{self.name}.{entry}" if self.ranks > 1 else entry

    def entry_of(self, name: str) -> str:
        """The entry that has this name, of this shard or of all rows. Raises ValueError if it is another shard's."""
        found = RankShard.of(name)
        if found is None:
            return name
        if found != self:
            raise ValueError(
                f"contains only the rows of {found}, and this is {self}: load with sparsegroup.checkpoint, or with "
                "torch.distributed.checkpoint and sparsegroup.integrations.TableLoadPlanner"
            )
        return name.partition(".")[2]

    @property
    def buckets(self) -> range:
        """The logical buckets of its keys."""
        return Routing(self.ranks).range_of(self.rank)

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.ranks}" if self.ranks > 1 else "all ranks"


def joined_shards(shards: Mapping[RankShard, Mapping[str, Tensor]], wanted: RankShard) -> dict[str, Tensor]:
    """The entries of one shard, from the entries of all shards that have keys in its buckets.

    The entries are `keys` `[n]`, others of the same rows, and in modules' state dicts `dropped` and `DIRECTORY_STATE`.
    Raises ValueError if one is of other rows than `keys`, or not in all shards.
    """
    rows: dict[str, list[Tensor]] = {}
    states = []
    for shard, entries in shards.items():
        own = are_in(entries[KEYS].numpy(), wanted.buckets)
        state = {}
        for name, tensor in entries.items():
            if name in DIRECTORY_STATE and name not in OF_ROWS:
                state[name] = tensor.numpy()
                continue
            mask = are_in(tensor.numpy(), wanted.buckets) if name == DROPPED else own
            if len(tensor) != len(mask):
                raise ValueError(f"{shard.named(name)}: {len(mask):,} rows are expected, got {len(tensor):,}")
            rows.setdefault(name, []).append(tensor if mask.all() else tensor[torch.from_numpy(mask)])
        has_first = shard.buckets.start in wanted.buckets
        states.append(share_of_state(state, lambda keys: are_in(keys, wanted.buckets), has_first=has_first))
    if missing := [name for name, found in rows.items() if len(found) != len(shards)]:
        raise ValueError(f"{missing[0]}: is not there of {' and '.join(map(str, shards))} alike")
    return {
        **{name: found[0] if len(found) == 1 else torch.cat(found) for name, found in rows.items()},
        **{name: torch.from_numpy(array) for name, array in joined_state(states).items()},
    }


def needed_shards(found: Sequence[RankShard], wanted: RankShard) -> list[RankShard]:
    """The shards that have keys of another one. Raises ValueError if one is missing, or numbers of ranks differ."""
    counts = sorted({shard.ranks for shard in found})
    if len(counts) != 1:
        raise ValueError(f"there are parts of tables on {' and on '.join(map(str, counts)) or 'no'} ranks")
    its = wanted.buckets
    needed = [RankShard(rank, counts[0]) for rank in range(counts[0])]
    needed = [shard for shard in needed if shard.buckets.start < its.stop and its.start < shard.buckets.stop]
    if missing := [shard for shard in needed if shard not in found]:
        raise ValueError(f"the rows of {missing[0]} are missing: there are {', '.join(map(str, found))}")
    return needed
