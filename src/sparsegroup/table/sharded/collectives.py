"""Collective operations among ranks, whose failures say which rank failed in what."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from sparsegroup.table.sharded.rank_process import RankProcess
from sparsegroup.table.sharded.receiving_threads import schedule_receivers
from sparsegroup.table.sharded.roll_call import RollCall

Result = TypeVar("Result")


class ExchangeError(RuntimeError):
    """Ranks did not come together: one has ended, hangs, or does something else. Training cannot go on from here."""


class Collectives:
    """The collective operations of one thread of a table, or of a training.

    All ranks call them in the same order; alone, each gives what it was given. `what` names the operation in messages:
    in each, `ExchangeError` is raised where the ranks do not come together.

    Args:
        group: The ranks. Nothing else may use the group meanwhile. All of them have to make the first `Collectives` of
            a group together, for they tell each other who they are.
        name: Begins the messages.

    Attributes:
        group, name: As above.
        ranks, rank: How many ranks there are, and the number of this one.
    """

    def __init__(self, group: dist.ProcessGroup, name: str) -> None:
        self.group, self.name = group, name
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self._calls = RollCall.of(group)
        if not self._calls.knows_ranks:
            self._calls.introduce(self.of_all([RankProcess.own()], "names of the ranks"))
        schedule_receivers()

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
        with self._operation(what):
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
        with self._operation(what):
            dist.all_reduce(sums, group=self.group)
        return [int(number) for number in sums.tolist()]

    def norm(self, own: Tensor, order: float) -> Tensor:
        """The p-norm, p being `order`, of vectors of which each rank has a part; by the 0-d norm of its own."""
        if self.ranks == 1:
            return own
        with self._operation("the norm of gradients"):
            if math.isinf(order):
                largest = own.clone()
                dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.group)
                return largest
            power = own.double().pow(order)
            dist.all_reduce(power, group=self.group)
        return power.pow(1 / order).to(own.dtype)

    def summed(self, tensor: Tensor, what: str) -> Tensor:
        """The sum of the ranks' tensors, which have one shape and dtype; `tensor` itself stays as it is.

        Args:
            tensor: This rank's, on a device of the group.
            what: It is, in messages.

        Raises:
            ExchangeError: See `swapped`.
        """
        if self.ranks == 1:
            return tensor
        total = tensor.clone(memory_format=torch.contiguous_format)
        with self._operation(what):
            dist.all_reduce(total, group=self.group)
        return total

    def of_all(self, own: list[Any], what: str) -> list[Any]:
        """The lists of all ranks, one after the other; `what` is in them, in messages. They are pickled.

        Raises:
            ExchangeError: See `swapped`.
        """
        if self.ranks == 1:
            return own
        parts: list[list[Any]] = [[]] * self.ranks
        with self._operation(what):
            dist.all_gather_object(parts, own, group=self.group)
        return [one for part in parts for one in part]

    def from_first(self, value: Result, what: str) -> Result:
        """The value of rank 0, which is pickled; that of the others is not looked at. `what` it is, in messages.

        Raises:
            ExchangeError: See `swapped`.
        """
        if self.ranks == 1:
            return value
        holder = [value if self.rank == 0 else None]
        with self._operation(what):
            dist.broadcast_object_list(holder, dist.get_global_rank(self.group, 0), group=self.group)
        return value if self.rank == 0 else holder[0]  # type: ignore[return-value]

    @property
    def device(self) -> torch.device:
        """Where numbers of the host are exchanged: there, or on a GPU where the group has no way to do that."""
        kinds = dist.get_backend_config(self.group)
        return torch.device("cpu" if "cpu:" in kinds else "cuda")

    @contextmanager
    def _operation(self, what: str) -> Iterator[None]:
        calls = self._calls
        if calls.verdict is not None:  # the ranks count their operations differently from now on
            raise ExchangeError(f"{self.name}: {what}: the ranks have parted before: {calls.verdict}")
        calls.begin(what)
        try:
            yield
        except Exception as error:  # also of what cannot be pickled: the others wait for it
            raise ExchangeError(f"{self.name}: {calls.say(error, self.group)}") from error
