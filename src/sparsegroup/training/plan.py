"""Which rows a training has: its epochs, the rows held out, and the share of a rank."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Any, ClassVar

from sparsegroup.artifact.validation import STRICT, Count
from sparsegroup.data.batches import Batch, complete, read_ahead, resized
from sparsegroup.data.log import Log
from sparsegroup.data.order import ShuffledLog, piece_batches, remaining, shares
from sparsegroup.optim.target import CONTROLS, RAMP
from sparsegroup.settings.names import AfterFirstEpoch
from sparsegroup.training.predictions import EVALUATED, Sample

Epochs = Iterable[Sample] | Callable[[int], Iterable[Sample]]
"""The stream of each epoch: one that can be read again and again, or what gives it, by the epoch's number from 0."""


def of_epoch(stream: Epochs, epoch: int) -> Iterable[Sample]:
    """The stream of one epoch."""
    return stream(epoch) if callable(stream) else stream


def check_epochs(
    stream: Epochs, epochs: int, validation: Epochs | None, patience: int, after_first_epoch: AfterFirstEpoch
) -> None:
    """Raise ValueError unless `Trainer.fit` can take these."""
    for name, value, least in (("epochs", epochs, 1), ("patience", patience, 0)):
        if value < least:
            raise ValueError(f"{name} must be >= {least}, got {value}")
    if patience and validation is None:
        raise ValueError(f"patience={patience} needs the validation log loss: give validation")
    if after_first_epoch not in ("train", "reset", "freeze"):
        raise ValueError(f"after_first_epoch must be 'train', 'reset' or 'freeze', got {after_first_epoch!r}")
    for name, given in (("stream", stream), ("validation", validation)):
        if epochs > 1 and isinstance(given, Iterator):
            raise ValueError(
                f"{name} is used up by the first of {epochs} epochs: give one that can be read again, such as a "
                "DataLoader or a list, or a function of the epoch's number"
            )


RECALIBRATED = 200_000
"""Rows on which a model is recalibrated, at most."""

Rows = Callable[[int, int, int], Iterator[Batch]]
"""From the first row, the one after the last, and the size of a batch to batches, as `Log.batches`."""


@dataclass(frozen=True)
class EpochPlan:
    """The rows of each epoch, in their order.

    Attributes:
        rows: Trained on in each epoch: the first ones of the log.
        batch_size: Samples per step.
        epochs: How often, at most.
        validation_rows: The rows that follow these, never trained on.
        patience, after_first_epoch: See `Trainer.fit`.
        shuffle_buffer: See `ShuffledLog`; 0 for the log's order.
        seed: The seed of that.
        recalibrate: Whether the model is recalibrated in the end, see `Trainer.fit_plan`.
        group: A field whose values' rows are shuffled together, see `ShuffledLog`.
    """

    rows: int
    batch_size: int
    epochs: int = 1
    validation_rows: int = 0
    patience: int = 0
    after_first_epoch: AfterFirstEpoch = "train"
    shuffle_buffer: int = 0
    seed: int = 0
    recalibrate: bool = False
    group: str | None = None

    @property
    def epoch_steps(self) -> int:
        """Steps of an epoch."""
        return -(-self.rows // self.batch_size)

    @property
    def steps(self) -> int:
        """Steps of all epochs."""
        return self.epochs * self.epoch_steps

    @property
    def samples(self) -> int:
        """Samples of all epochs."""
        return self.epochs * self.rows

    @property
    def target_steps(self) -> dict[str, int]:
        """`steps`, `ramp` and `interval` of a `TargetRate`: the size is reached at the end of the last epoch.

        With validation, or with `after_first_epoch` reset or freeze, it is reached at the end of the first epoch, so
        that every epoch can be the best.
        """
        if self.epochs > 1 and self.after_first_epoch != "train":
            return {"steps": self.epoch_steps}
        if self.epochs > 1 and self.validation_rows:
            ramp, interval = ceil(RAMP * self.epoch_steps), max(1, self.epoch_steps // CONTROLS)
            return {"steps": self.steps, "ramp": ramp, "interval": interval}
        return {"steps": self.steps}

    def batches(self, log: Log, epoch: int, start: int = 0, size: int | None = None) -> Iterator[Batch]:
        """The rows of an epoch, numbered from 0, in its order, from row `start` of that order on."""
        if self.shuffle_buffer:
            how: dict[str, Any] = {"rows": self.rows, "seed": self.seed, "epoch": epoch, "group": self.group}
            log = ShuffledLog(log, self.shuffle_buffer, **how)
        return complete(log.batches(start, self.rows, size or self.batch_size), max(self.rows - start, 0), log.name)

    @property
    def first_recalibrated(self) -> int:
        """The place in the first epoch's order from which on its rows recalibrate: the last 200,000, or all."""
        return max(0, self.rows - RECALIBRATED)

    def recalibration(self, log: Log) -> Iterator[Batch]:
        """The rows on which the model is recalibrated."""
        return self.batches(log, 0, self.first_recalibrated, EVALUATED)

    def arguments(self, log: Log, rows: Rows | None = None) -> dict[str, Any]:
        """Arguments for `Trainer.fit`; `rows` gives the rows to evaluate, by default all of the log's."""
        rows, first, stop = rows or log.batches, self.rows, self.rows + self.validation_rows
        return {
            "stream": lambda epoch: self.batches(log, epoch),
            "epochs": self.epochs,
            "validation": (lambda epoch: rows(first, stop, EVALUATED)) if self.validation_rows else None,
            "patience": self.patience,
            "after_first_epoch": self.after_first_epoch,
        }


@dataclass(frozen=True)
class EarlierRanks:
    """Another number of ranks that an epoch started with."""

    __pydantic_config__: ClassVar = STRICT

    epoch: Count  # from 0
    steps: Count  # steps of it that they, and others before them, have made
    taken: tuple[Count, ...]  # rows of its share that each of them has trained on


@dataclass(frozen=True)
class RankRows:
    """The rows that one of `count` ranks trains on and evaluates.

    A rank takes an equal part of its share of the rows in each step, so all have as many steps as one rank would have.
    """

    plan: EpochPlan
    log: Log
    rank: int = 0
    count: int = 1

    def of_epoch(self, epoch: int, step: int, before: Sequence[EarlierRanks] = ()) -> Iterator[Batch]:
        """The batches of this rank, from a step of an epoch on; where it has no row, its batch is empty.

        `before` has the other numbers of ranks that the epoch started with, in their order.
        """
        plan, log = self.plan, self.log
        if self.count == 1 and not before:
            return plan.batches(log, epoch, step * plan.batch_size)
        share = shares(log, plan.rows, self.count, [one.taken for one in before])[self.rank]
        total, first = sum(piece.rows for piece in share), before[-1].steps if before else 0
        steps = plan.epoch_steps - first
        edges = [total * number // steps for number in range(step - first, steps + 1)] if steps else [0]
        sizes = [stop - start for start, stop in pairwise(edges)]
        if not total:
            return iter([next(log.batches(0, 1, 1))[:0]] * len(sizes))
        rows = piece_batches(log, remaining(share, edges[0]), plan.shuffle_buffer, plan.seed, epoch, plan.group)
        return resized(read_ahead(rows, depth=1), sizes)

    def recalibration(self) -> Iterator[Batch]:
        """The rows of this rank on which the model is recalibrated."""
        if self.count == 1:
            return self.plan.recalibration(self.log)
        return self.of_epoch(0, self.plan.first_recalibrated // self.plan.batch_size)

    def of_range(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """The rows that this rank evaluates of rows `start` to `stop`: those behind the part of the rank before it."""
        first, last = (start + (stop - start) * rank // self.count for rank in (self.rank, self.rank + 1))
        return complete(self.log.batches(first, last, size), last - first, self.log.name)
