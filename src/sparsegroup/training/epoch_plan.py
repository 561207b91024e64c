"""Which rows of a log are trained on, in which order, how often, and which are held out to see how it goes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import TypedDict

from sparsegroup.data.batches import Batch, complete
from sparsegroup.data.log import Log
from sparsegroup.data.shuffled_log import ShuffledLog
from sparsegroup.optim.target import CONTROLS, RAMP
from sparsegroup.settings.names import AfterFirstEpoch
from sparsegroup.training.epoch_streams import Epochs
from sparsegroup.training.evaluation import EVALUATED

Rows = Callable[[int, int, int], Iterator[Batch]]
"""From the first row, the one after the last, and the size of a batch to batches, as `Log.batches`."""


class TargetSteps(TypedDict):
    """Steps of a size target, see `TargetRate`."""

    steps: int
    ramp: int | None
    interval: int | None


class EpochArguments(TypedDict):
    """What `Trainer.fit` is given beside the stream."""

    epochs: int
    validation: Epochs | None
    patience: int
    after_first_epoch: AfterFirstEpoch


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
    """

    rows: int
    batch_size: int
    epochs: int = 1
    validation_rows: int = 0
    patience: int = 0
    after_first_epoch: AfterFirstEpoch = "train"
    shuffle_buffer: int = 0
    seed: int = 0

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
    def target_steps(self) -> TargetSteps:
        """A size target's: over all epochs, so that it is met at the end of the last one.

        It is met in the first epoch where the best epoch is to be chosen, for each must have the size that was asked
        for, and where embeddings start again or stay after it.
        """
        if self.epochs > 1 and self.after_first_epoch != "train":
            return {"steps": self.epoch_steps, "ramp": None, "interval": None}
        if self.epochs > 1 and self.validation_rows:
            ramp, interval = ceil(RAMP * self.epoch_steps), max(1, self.epoch_steps // CONTROLS)
            return {"steps": self.steps, "ramp": ramp, "interval": interval}
        return {"steps": self.steps, "ramp": None, "interval": None}

    def batches(self, log: Log, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The rows of an epoch, numbered from 0, in its order, from row `start` of that order on."""
        if self.shuffle_buffer:
            log = ShuffledLog(log, self.shuffle_buffer, rows=self.rows, seed=self.seed, epoch=epoch)
        return complete(log.batches(start, self.rows, self.batch_size), max(self.rows - start, 0), log.name)

    def arguments(self, log: Log, rows: Rows | None = None) -> EpochArguments:
        """What `Trainer.fit` is given of it.

        Args:
            log: The log.
            rows: Gives the rows to be evaluated; None: all of those asked for.
        """
        rows = rows or log.batches
        validation: Callable[[int], Iterator[Batch]] | None = None
        if self.validation_rows:
            first, stop = self.rows, self.rows + self.validation_rows

            def validation(epoch: int) -> Iterator[Batch]:
                return rows(first, stop, EVALUATED)

        return {
            "epochs": self.epochs,
            "validation": validation,
            "patience": self.patience,
            "after_first_epoch": self.after_first_epoch,
        }
