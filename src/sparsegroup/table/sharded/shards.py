"""The ranks that a table lies on: what they ask each other for, and what goes between them."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal, NoReturn, Self, TypeVar, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from sparsegroup.table.row_locations import Int64s
from sparsegroup.table.sharded.collectives import Collectives
from sparsegroup.table.sharded.differentiable_exchange import Route, exchanged
from sparsegroup.table.sharded.outgoing import Outgoing, Sorter
from sparsegroup.table.sharded.rank_line import RankLine
from sparsegroup.table.sharded.rank_parts import RankPart
from sparsegroup.table.sharded.routing import Routing
from sparsegroup.table.sharded.traffic import Traffic

Result = TypeVar("Result")
Reduction = Literal["mean", "sum"]


@dataclass(frozen=True)
class Asked:
    """What this rank asks the others for in one lookup, and they it.

    Attributes:
        own: What it asks for.
        keys: `[m]`, what it is asked for: those of rank 0 first, each rank's distinct.
        counts: `[ranks]`, how many each rank asks for.
    """

    own: Outgoing
    keys: Int64s
    counts: Sequence[int]


class Shards:
    """The ranks that a table lies on.

    Args:
        group: The ranks.
        reduction: Whether gradients are averaged over them, or added up.
        wire_dtype: In which vectors and gradients travel; None: as they are.
        scratch_bytes: Working memory that is kept from one exchange to the next, at most.

    Raises:
        TypeError: `group` is none, or one of others.
        ValueError: More ranks than a table can lie on, or another argument out of range.
        ExchangeError: Not all ranks make the first table of the group.

    Attributes:
        group, reduction, wire_dtype: As above.
        routing: Which rank has which key.
        traffic: What has been sent.
    """

    def __init__(
        self, group: dist.ProcessGroup, reduction: Reduction, wire_dtype: torch.dtype | None, scratch_bytes: int
    ) -> None:
        if not isinstance(group, dist.ProcessGroup):
            raise TypeError(
                f"process_group must be a torch.distributed.ProcessGroup that this rank is in, got {group!r}; "
                "torch.distributed.group.WORLD is that of all ranks"
            )
        if reduction not in get_args(Reduction):
            raise ValueError(f"reduction must be 'mean' or 'sum', got {reduction!r}")
        if wire_dtype not in (None, torch.bfloat16, torch.float16):
            raise ValueError(f"wire_dtype must be None, torch.bfloat16 or torch.float16, got {wire_dtype!r}")
        self.group, self.reduction, self.wire_dtype = group, reduction, wire_dtype
        self._line = RankLine.of(group)
        self._together = Collectives(self._line.group, "HashEmbedding")
        self.ranks, self.rank = self._together.ranks, self._together.rank
        self.routing = Routing(self.ranks)
        self.traffic = Traffic()
        self._sorter = Sorter(self.routing, scratch_bytes)

    @property
    def nbytes(self) -> int:
        """Working memory that is kept for the next exchange."""
        return self._sorter.nbytes

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # ranks are not copied

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a HashEmbedding with a process_group cannot be pickled, for its rows are on several ranks: write a "
            "checkpoint, sparsegroup.checkpoint.save, or its state_dict"
        )

    def ask(self, keys: Int64s) -> "Future[Asked]":
        """Tell the ranks which of `keys` `[n]` belong to them, and be told, while the caller goes on.

        All ranks have to call it, in the same order among all tables of the group. The result raises `ExchangeError`
        where they do not come together.
        """
        return self._line.begin(self._asked, keys)

    def _asked(self, keys: Int64s) -> Asked:
        own, together = self._sorter.sort(keys), self._together
        if self.ranks == 1:
            return Asked(own, own.keys, own.counts.tolist())
        counts = torch.from_numpy(own.counts).to(together.device)
        got, sent = together.swapped_numbers(counts, "numbers of keys").tolist(), own.counts.tolist()
        asked = together.swapped(torch.from_numpy(own.keys).to(together.device), sent, got, "keys")
        self.traffic.lookups += 1
        self.traffic.keys += 8 * (self.ranks - 1 + len(own.keys) - sent[self.rank])
        return Asked(own, asked.cpu().numpy(), got)

    def answered(self, vectors: Tensor, asked: Asked) -> Tensor:
        """The vectors that this rank has asked for, in the order of its keys, for those it was asked for.

        Args:
            vectors: `[m, dim]`, of the keys that it was asked for.
            asked: By whom.

        Returns:
            `[distinct, dim]`, differentiable: gradients go back to where the vectors came from, and are added up there
            in the order of ranks.

        Raises:
            ExchangeError: The ranks do not come together.
        """
        route = Route(self._carry, asked.counts, asked.own.counts.tolist())
        return exchanged(vectors, route, 1 / self.ranks if self.reduction == "mean" else 1.0)

    def told(self, answers: Tensor, asked: Asked) -> Tensor:
        """What others answer for the keys that this rank has asked for, `[distinct, …]`; its answers are `[m, …]`."""
        come = self._call(
            self._together.swapped,
            answers.to(self._together.device),
            asked.counts,
            asked.own.counts.tolist(),
            "answers",
        )
        return come.to(answers.device)

    def handed_over(self, values: Tensor, asked: Asked) -> Tensor:
        """What others have for the keys that this rank was asked for, `[m, …]`.

        Args:
            values: `[n, …]`, this rank's, of its distinct keys in the order in which it gave them to `ask`.
            asked: That call's.
        """
        order = torch.from_numpy(asked.own.inverse).long().argsort()
        away = values[order].to(self._together.device)
        come = self._call(self._together.swapped, away, asked.own.counts.tolist(), asked.counts, "values")
        return come.to(values.device)

    def totals(self, numbers: Sequence[int], what: str) -> list[int]:
        """The sums of some numbers over the ranks, which all have to call it; `what` they are, in messages.

        Raises:
            ExchangeError: They do not come together.
        """
        return self._call(self._together.total, numbers, what)

    @property
    def part(self) -> RankPart:
        """What state dicts call this rank's part of the rows."""
        return RankPart(self.rank, self.ranks)

    def norm(self, own: Tensor, order: float) -> Tensor:
        """See `sparsegroup.optim.stored.StoreRanks`."""
        return self._call(self._together.norm, own, order)

    def of_all(self, own: list[Any], what: str) -> list[Any]:
        """See `sparsegroup.optim.stored.StoreRanks`."""
        return self._call(self._together.of_all, own, what)

    def _carry(self, lines: Tensor, route: Route) -> Tensor:
        what = "gradients" if route.is_back else "vectors"
        dtype, packed = lines.dtype, lines.to(self.wire_dtype) if self.wire_dtype is not None else lines
        with self.waiting():
            packed = packed.contiguous()
            come = self._call(self._together.swapped, packed.view(torch.uint8), route.sent, route.got, what)
        away = sum(route.sent) - route.sent[self.rank]
        sent = away * packed.shape[1] * packed.element_size()
        setattr(self.traffic, what, getattr(self.traffic, what) + sent)
        return come.view(packed.dtype).to(dtype)

    def _call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return self._line.call(function, *arguments)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time that this takes as waiting."""
        begun = perf_counter()
        try:
            yield
        finally:
            self.traffic.waited += perf_counter() - begun


def check_not_sharded(reduction: Reduction, wire_dtype: torch.dtype | None) -> None:
    """Raise ValueError for options that a table without ranks does not have."""
    if reduction != "mean" or wire_dtype is not None:
        raise ValueError("reduction and wire_dtype are of tables that lie on several ranks: give process_group, too")
