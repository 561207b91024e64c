"""What ranks do together: sums, lists of all, a value of the first."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from distributed_cases import Ranks
from sharded_cases import first_ranks
from sparsegroup.table.sharded.exchange import Collectives


def done() -> tuple[Tensor, bool, list[Any], Any]:
    first_ranks(1)
    together, rank = Collectives(dist.group.WORLD, "Trainer"), dist.get_rank()
    own = torch.arange(6, dtype=torch.float64).view(2, 3).t() * (rank + 1)
    total = together.summed(own, "gradients")
    stays = torch.equal(own, torch.arange(6, dtype=torch.float64).view(2, 3).t() * (rank + 1))
    return total, stays, together.of_all([rank, {"a": rank}][: rank % 3], "parts"), together.from_first({rank}, "a set")


def test_all_ranks_get_the_same(four_ranks: Ranks) -> None:
    for total, stays, parts, first in four_ranks.call(done):
        assert torch.equal(total, torch.arange(6, dtype=torch.float64).view(2, 3).t() * 10)
        assert stays
        assert parts == [1, 2, {"a": 2}]
        assert first == {0}


def of_the_others() -> Any:
    """The first of a group is not that of the world."""
    first_ranks(1)
    group = dist.new_group([2, 3])
    return Collectives(group, "Trainer").from_first(dist.get_rank(), "a rank") if dist.get_rank() > 1 else None


def test_the_first_is_that_of_the_group(four_ranks: Ranks) -> None:
    assert four_ranks.call(of_the_others) == [None, None, 2, 2]


def alone() -> bool:
    group = first_ranks(1)
    if group is None:
        return True
    together, own = Collectives(group, "Trainer"), torch.ones(2)
    return (
        together.summed(own, "x") is own and together.from_first(own, "x") is own and together.of_all([1], "x") == [1]
    )


def test_one_rank_has_what_it_gives(four_ranks: Ranks) -> None:
    assert all(four_ranks.call(alone))
