"""Where a training stands among its epochs, and which of them was the best."""

from dataclasses import asdict, dataclass
from math import isnan
from typing import Any, Protocol

from sparsegroup.artifact.validation import Count, Flag
from sparsegroup.reporting.run_record import Metrics


class BestState(Protocol):
    """A place for the state of a training after its best epoch."""

    def keep(self) -> None:
        """Keep the state of this moment, instead of an earlier one."""

    def restore(self) -> None:
        """Bring the training back to the state that was kept last."""


@dataclass
class EpochProgress:
    """Where a training stands among its epochs.

    Attributes:
        epoch: Epochs that have ended.
        position: Samples trained on in the epoch under way, by all ranks.
        best: Number, from 1, of the epoch after which the validation log loss was lowest; None before there was one.
        validation: Metrics on the validation rows after the best epoch; before there was one, after the last.
        is_over: Whether the training has come to its end.
        steps: Batches trained on in the epoch under way.
    """

    epoch: Count = 0
    position: Count = 0
    best: Count | None = None
    validation: Metrics | None = None
    is_over: Flag = False
    steps: Count = 0

    def go_on(self, samples: int) -> None:
        """A batch of so many samples has been trained on."""
        self.position += samples
        self.steps += 1

    def end_epoch(self, validation: Metrics | None, *, may_be_best: bool) -> bool:
        """An epoch has ended; gives whether it is the best so far.

        Args:
            validation: Metrics on the validation rows, if there are any.
            may_be_best: Whether its state is one to end with.
        """
        self.epoch, self.position, self.steps = self.epoch + 1, 0, 0
        if validation is None:
            return False
        lowest = self.validation.log_loss if self.best is not None and self.validation is not None else None
        is_best = may_be_best and not isnan(validation.log_loss) and (lowest is None or validation.log_loss < lowest)
        if is_best:
            self.best = self.epoch
        if is_best or self.best is None:
            self.validation = validation
        return is_best

    def goes_on(self, epochs: int, patience: int) -> bool:
        """Whether there is another of `epochs`, and the last `patience` (0: any number) have not all been worse."""
        waited = 0 if self.best is None else self.epoch - self.best
        return self.epoch < epochs and not (patience and waited >= patience)

    def as_dict(self) -> dict[str, Any]:
        """Its numbers, as `TrainerState` has them."""
        return asdict(self)
