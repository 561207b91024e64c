"""The ranks that train one model together: the same number of batches, one loss, one end."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sparsegroup.data.batches import Batch
from sparsegroup.errors import RunError
from sparsegroup.models import NumberEncoder, WithNumbers
from sparsegroup.models.layers import RunningStatistics, merged_moments
from sparsegroup.objectives import Objective
from sparsegroup.optim.table_parameter import store_of
from sparsegroup.table.field_tables import tables_in
from sparsegroup.table.sharded.exchange import Collectives, ExchangeError

Object = TypeVar("Object")

_PATIENCE = 5.0
"""Seconds between two signs of life of a rank that the others wait for."""


class StopRequest:
    """Whether a training shall end, and for good. It takes no lock: threads and signal handlers may set it."""

    def __init__(self) -> None:
        self.is_made = self.finishes = False

    def make(self, *, finish: bool) -> None:
        self.finishes = self.finishes or finish
        self.is_made = True

    def withdraw(self) -> None:
        self.is_made = self.finishes = False


class FirstRankError(RunError):
    """The first of several ranks, which does it for all, failed, and has reported why."""

    is_told = True


@dataclass(frozen=True)
class GlobalBatch:
    """What all ranks train on in one step: this rank's `own` part, perhaps empty, and the `samples` of all parts."""

    own: Batch
    samples: int


class RankGroup:
    """The ranks that train one model together; without a `group`, a single process.

    All of them call each method alike, and each gives the same on all.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, scale: int = 1) -> None:
        self._together = None if group is None else Collectives(group, "Trainer")
        self.rank, self.count = (0, 1) if self._together is None else (self._together.rank, self._together.ranks)
        self.is_alone = self._together is None
        self.scale = scale  # factor of each rank's loss; the sum of its gradients is divided by it
        self.sent = 0  # bytes of gradients and statistics that went from this rank to others
        self.waited = 0.0  # seconds in which it has waited for others

    @classmethod
    def of(cls, embedding: nn.Module) -> "RankGroup":
        """The ranks that store the tables of an embedding."""
        found = {name: table.across for name, table in tables_in(embedding).items()}
        shards = [across.shards for across in found.values() if across is not None]
        if not shards:
            return cls()
        if len(shards) < len(found) or any(one.group is not dist.group.WORLD for one in shards):
            raise ValueError(
                "a Trainer trains tables that all have process_group=torch.distributed.group.WORLD, or none: "
                f"{', '.join(repr(name or 'table') for name in found)} differ, or have another group"
            )
        if len({one.reduction for one in shards}) > 1:
            raise ValueError("a Trainer trains tables that all have the same reduction")
        return cls(shards[0].group, shards[0].ranks if shards[0].reduction == "mean" else 1)

    def synchronized_batches(
        self, batches: Iterator[Batch], asked: StopRequest | None = None, agreed: StopRequest | None = None
    ) -> Iterator[GlobalBatch]:
        """The batches of all ranks, side by side. A rank that has no more continues with empty ones until none has.

        A stop that one of them is `asked` for is `agreed` on all.
        """
        if self._together is None:
            for own in batches:
                yield GlobalBatch(own, len(own))
            return
        batch, error = _next(batches)
        firsts: list[Batch | None] = self.all_gather([None if batch is None else batch[:0]], "kinds of batches")
        empty = next((one for one in firsts if one is not None), None)
        while True:
            wants = [asked is not None and asked.is_made, asked is not None and asked.finishes]
            numbers = [0 if batch is None else len(batch), batch is not None, *wants]
            start = perf_counter()
            samples, having, stops, finishes = self._together.total(
                numbers, "the samples of a step", error, ExchangeError
            )
            self.waited += perf_counter() - start
            if agreed is not None and stops:
                agreed.make(finish=bool(finishes))
            if not having or empty is None:
                return
            yield GlobalBatch(empty if batch is None else batch, samples)
            batch, error = _next(batches)

    def loss(self, objective: Objective, logits: Tensor, batch: Batch, samples: int) -> Tensor:
        """This rank's part of the loss: the mean of all ranks' samples, each times its weight; groups are its own."""
        groups = objective.groups_of(batch.keys)
        loss = objective.mean_loss(logits, batch.labels, batch.weights, groups, total=not self.is_alone)
        return loss if self.is_alone else loss * self.loss_factor(samples)

    def loss_factor(self, samples: int) -> float:
        """The factor of the loss of one of several ranks, which together have this many samples; 1 for one process."""
        return 1.0 if self.is_alone else self.scale / max(samples, 1)

    def all_reduce_gradients(self, parameters: Sequence[nn.Parameter], loss: Tensor) -> Tensor:
        """Sum the gradients of all parameters except tables' rows over the ranks, and the losses, which it returns."""
        if self.is_alone:
            return loss
        dense = [one for one in parameters if one.requires_grad and store_of(one) is None]
        has_grad = torch.tensor([one.grad is not None for one in dense], dtype=loss.dtype, device=loss.device)
        parts = [loss.detach().view(1), has_grad]
        parts += [(one.grad if one.grad is not None else torch.zeros_like(one)).flatten().to(loss) for one in dense]
        sums = self._summed(torch.cat(parts), "gradients of the network")
        total, counts, *gradients = torch.split(sums, [part.numel() for part in parts])
        for parameter, count, gradient in zip(dense, counts.tolist(), gradients, strict=True):
            if count:
                parameter.grad = (gradient / self.scale).view_as(parameter).to(parameter.dtype)
        return total.squeeze() / self.scale

    def gathered(self, own: Tensor, what: str) -> Tensor:
        """`[ranks, *shape]`: the tensors of all ranks, which have one shape and dtype; the same bits on each."""
        lines = own.new_zeros(self.count, *own.shape)
        lines[self.rank] = own
        return self._summed(lines, what)  # a number and zeros: exact

    def _summed(self, values: Tensor, what: str) -> Tensor:
        assert self._together is not None
        start = perf_counter()
        sums = self._together.summed(values, what)
        self.waited += perf_counter() - start
        self.sent += 2 * (self.count - 1) * values.numel() * values.element_size() // self.count
        return sums

    def broadcast_parameters(self, network: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
        """Copy a network's buffers, and all parameters except tables' rows, from the first rank."""
        if self.is_alone:
            return
        dense = [one for one in parameters if store_of(one) is None]
        buffers = {name: buffer.cpu() for name, buffer in network.named_buffers()}
        weights, buffers = self.broadcast(([one.detach().cpu() for one in dense], buffers), "weights")
        for parameter, values in zip(dense, weights, strict=True):
            parameter.data.copy_(values)
        network.load_state_dict(buffers, strict=False)

    def on_rank_0(self, action: Callable[[], Object], what: str) -> Object | None:
        """Let the first rank do something for all, such as writing a file: what that gives; None on the others.

        The others wait however long it takes, as long as the first one lives.
        """
        if self.is_alone:
            return action()
        with ThreadPoolExecutor(1, "sparsegroup-first") as thread:
            done = None if self.rank else thread.submit(action)
            while self.broadcast(done is not None and not wait([done], _PATIENCE).done, what):
                pass  # a sign of life
            error = None if done is None else done.exception()
            message = self.broadcast(None if error is None else str(error), what)
        if message is not None and done is None:
            raise FirstRankError(message)
        return None if done is None else done.result()

    def broadcast_result(self, action: Callable[[], Object], what: str) -> Object:
        """What the first rank makes, on all; see `on_rank_0`."""
        made: Object | None = self.on_rank_0(action, what)
        return self.broadcast(made, what)  # type: ignore[return-value]

    def all_gather(self, own: list[Object], what: str) -> list[Object]:
        """The lists of all ranks, one after the other; messages call their content `what`."""
        return own if self._together is None else self._together.of_all(own, what)

    def broadcast(self, own: Object, what: str) -> Object:
        """What the first rank has; messages call it `what`."""
        return own if self._together is None else self._together.from_first(own, what)


SINGLE_PROCESS = RankGroup()


def _next(batches: Iterator[Batch]) -> tuple[Batch | None, Exception | None]:
    try:
        return next(batches, None), None
    except Exception as error:
        return None, error


class SharedStatistics:
    """The running statistics of a network in training, over all ranks' rows, with the same bits on each.

    The moments of each batch are merged in float64 in the order of ranks, so they are one process's to its rounding.
    Means and variances of torch's batch normalization become the mean of the ranks'.
    """

    def __init__(self, network: nn.Module, ranks: RankGroup) -> None:
        self._ranks = ranks
        layers = [] if ranks.is_alone else list(network.modules())
        self._encoders = [one.encoder for one in layers if isinstance(one, WithNumbers)]
        self._sampled: list[NumberEncoder] = []
        self._following = [one for one in layers if isinstance(one, RunningStatistics) and one.of_batch.numel()]
        normalizing = [one for one in layers if isinstance(one, nn.modules.batchnorm._BatchNorm)]
        self._averaged = [
            buffer for one in normalizing for buffer in (one.running_mean, one.running_var) if buffer is not None
        ]

    @contextmanager
    def following(self, first: Batch | None) -> Iterator[None]:
        """While training continues, layers leave the moments of each batch to `merge`."""
        self._sampled = [] if first is None else [encoder for encoder in self._encoders if not encoder.is_fitted]
        if self._sampled and first is not None:
            sample = torch.cat(self._ranks.all_gather([first.numbers], "numbers"))
            for encoder in self._sampled:
                encoder.fit(sample)
        for layer in self._following:
            layer.is_shared = True
        try:
            yield
        finally:
            for layer in self._following:
                layer.is_shared = False

    @torch.no_grad()
    def merge(self) -> None:
        """All ranks have trained on a batch, or on none."""
        while self._sampled:
            self._sampled.pop().of_batch.zero_()  # it has followed this batch as its sample
        shared = [*(layer.of_batch for layer in self._following), *self._averaged]
        if not shared:
            return
        lines = self._ranks.gathered(torch.cat([one.flatten().double() for one in shared]), "statistics of the network")
        parts = iter(torch.split(lines, [one.numel() for one in shared], dim=1))
        for layer in self._following:
            layer.follow(*merged_moments(next(parts).view(self._ranks.count, *layer.of_batch.shape)))
        for buffer in self._averaged:
            buffer.copy_(next(parts).mean(0))
