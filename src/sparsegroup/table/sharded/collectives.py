"""All-to-all among the ranks of a table, whose failures say which rank failed in what."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class ExchangeError(RuntimeError):
    """Ranks did not come together: one has ended, hangs, or does something else. Training cannot go on from here."""


class Collectives:
    """The collective operations of one thread of a table.

    Args:
        group: Its ranks.
        name: Begins the messages.
    """

    def __init__(self, group: dist.ProcessGroup, name: str) -> None:
        self.group, self.name = group, name
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)

    def swapped(self, values: Tensor, sent: Sequence[int], got: Sequence[int], what: str) -> Tensor:
        """What all ranks have sent to this one, in the order of ranks.

        Args:
            values: `[n, …]`, what goes to rank 0 first.
            sent: `[ranks]`, how many lines go to each.
            got: How many come from each.
            what: It is, in messages.

        Returns:
            `[Σ got, …]`.

        Raises:
            ExchangeError: The ranks do not come together.
        """
        if self.ranks == 1:
            return values
        out = values.new_empty(sum(got), *values.shape[1:])
        with self._told(f"sends {sum(sent):,} {what} and awaits {sum(got):,}"):
            dist.all_to_all_single(out, values.contiguous(), list(got), list(sent), group=self.group)
        return out

    def swapped_numbers(self, numbers: Tensor, what: str) -> Tensor:
        """`[ranks, …]`: the line that each rank has sent to this one; see `swapped`."""
        ones = [1] * self.ranks
        return self.swapped(numbers, ones, ones, what)

    def total(self, numbers: Sequence[float | int], what: str) -> list[int]:
        """The sums of int64 `numbers` over all ranks.

        Raises:
            ExchangeError: See `swapped`.
        """
        if self.ranks == 1:
            return [int(number) for number in numbers]
        sums = torch.tensor(numbers, dtype=torch.int64, device=self.device)
        with self._told(f"adds up {what}"):
            dist.all_reduce(sums, group=self.group)
        return [int(number) for number in sums.tolist()]

    def norm(self, own: Tensor, order: float) -> Tensor:
        """The p-norm, p being `order`, of vectors of which each rank has a part; by the 0-d norm of its own."""
        if self.ranks == 1:
            return own
        with self._told("adds up a norm"):
            if math.isinf(order):
                largest = own.clone()
                dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.group)
                return largest
            power = own.double().pow(order)
            dist.all_reduce(power, group=self.group)
        return power.pow(1 / order).to(own.dtype)

    def of_all(self, own: list[Any]) -> list[Any]:
        """The lists of all ranks, one after the other."""
        if self.ranks == 1:
            return own
        parts: list[list[Any]] = [[]] * self.ranks
        with self._told("gathers numbers"):
            dist.all_gather_object(parts, own, group=self.group)
        return [one for part in parts for one in part]

    @property
    def device(self) -> torch.device:
        """Where numbers of the host are exchanged: there, or on a GPU where the group has no way to do that."""
        kinds = dist.get_backend_config(self.group)
        return torch.device("cpu" if "cpu:" in kinds else "cuda")

    @contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError) as error:
            raise ExchangeError(
                f"{self.name}: rank {self.rank} of {self.ranks} {doing}, and the ranks do not come together: "
                f"{' '.join(str(error).split())}"
            ) from error
