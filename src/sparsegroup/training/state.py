"""The state of a training in a checkpoint: a trainer's, an epoch's."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isnan
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from sparsegroup.artifact.folder import remove_folder
from sparsegroup.artifact.validation import STRICT, Count, Flag, Real, validated
from sparsegroup.checkpoint import load_checkpoint, save_checkpoint
from sparsegroup.optim import SizeTarget
from sparsegroup.reporting.run_record import HistoryPoint, Metrics
from sparsegroup.tensors import shape_of
from sparsegroup.training.baseline import check_baseline_state


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


NotNegative = Annotated[Real, Field(ge=0)]


@dataclass(frozen=True)
class WindowState:
    """Predictions since the last point; see `PredictionWindow.state`. What there is not is empty."""

    logits: Tensor
    labels: Tensor
    weights: Tensor
    seconds: Real
    baseline: Tensor

    def check(self) -> None:
        """Raise ValueError unless there is a number of each kind for each sample."""
        count = len(self.labels) if self.labels.ndim else 0
        for name in ("logits", "labels", "weights", "baseline"):
            tensor = getattr(self, name)
            may_lack = name in ("weights", "baseline") and tensor.shape == (0,)
            if not tensor.is_floating_point() or (tensor.shape != (count,) and not may_lack):
                raise ValueError(f"window.{name}: numbers [{count}] are expected, got {shape_of(tensor)}")
            if not bool(torch.isfinite(tensor).all()):
                raise ValueError(f"window.{name}: has numbers that are not finite")
        if not bool(((self.labels == 0) | (self.labels == 1)).all()):
            raise ValueError("window.labels: has others than 0 and 1")
        if bool((self.weights < 0).any()):
            raise ValueError("window.weights: has some below 0")

    def part(self, start: int, stop: int) -> "WindowState":
        """Samples `start` to `stop` of it."""
        names = ("logits", "labels", "weights", "baseline")
        return replace(self, **{name: getattr(self, name)[start:stop] for name in names})


@dataclass(frozen=True)
class PartState:
    """The state of a field's target, see `SizeTarget.state_dict`."""

    begin: NotNegative
    l21: NotNegative


@dataclass(frozen=True)
class TargetState:
    """The state of a target, see `SizeTarget.state_dict`."""

    count: Count
    begin: NotNegative
    l21: NotNegative
    rate: NotNegative | None
    scheduled_rate: NotNegative | None
    fields: Mapping[int, PartState] = field(default_factory=dict)


@dataclass(frozen=True)
class RankState:
    """The state of one of several ranks.

    Attributes:
        taken: Samples that it has trained on in the epoch under way.
        window: How many of the window's samples are its own; those of the ranks before it come first.
        baseline: The state of the baseline that it trains.
        compiled_for: Samples of its part of the batches that its network was compiled for; None before the first.
    """

    taken: Count
    window: Count
    baseline: Mapping[str, Tensor] | None = None
    compiled_for: Count | None = None


@dataclass(frozen=True)
class TrainerState:
    """The state of a training between two batches, see `Trainer.state_dict`.

    Attributes:
        samples, seconds, history, window, target, progress, baseline: See `Trainer`.
        compiled_for: Samples of the batches that one rank's network was compiled for; None before the first.
        baseline: The state of the baseline, merged over the ranks.
        ranks: The states of several ranks; empty for a single process.
    """

    __pydantic_config__: ClassVar = STRICT

    samples: Count
    seconds: Real
    history: tuple[HistoryPoint, ...]
    window: WindowState
    compiled_for: Count | None
    progress: EpochProgress
    target: TargetState | None = None
    baseline: Mapping[str, Tensor] | None = None
    ranks: tuple[RankState, ...] = ()

    @classmethod
    def of(cls, content: Any) -> "TrainerState":
        """What `Trainer.state_dict` gave."""
        state = content if isinstance(content, cls) else validated(cls, content)
        state.window.check()
        if state.history and state.history[-1].samples > state.samples:
            raise ValueError(f"samples: {state.samples:,} are fewer than those of the history")
        progress = state.progress
        if not 0 < (progress.best or 1) <= max(progress.epoch, 1):
            raise ValueError(f"progress.best: {progress.best} of {progress.epoch} epochs")
        for baseline in (state.baseline, *(rank.baseline for rank in state.ranks)):
            if baseline is not None:
                check_baseline_state(baseline)
        if state.ranks and sum(rank.window for rank in state.ranks) != len(state.window.labels):
            raise ValueError(f"ranks: their samples are not the {len(state.window.labels):,} of the window")
        return state


@dataclass
class TemporaryBest:
    """A `BestState` in a temporary folder: on disk, so that memory holds one model."""

    folder: Path
    model: nn.Module
    optimizers: Sequence[Optimizer]
    scheduler: LRScheduler | None
    target: SizeTarget | None
    _count: int = 0

    @property
    def _kept(self) -> Path:
        return self.folder / str(self._count)

    def keep(self) -> None:
        """See `BestState`."""
        place = self.folder / str(self._count + 1)
        target = None if self.target is None else self.target.state_dict()
        save_checkpoint(place, self.model, self.optimizers, self.scheduler, extra=target)
        if self._count:
            remove_folder(self._kept)
        self._count += 1

    def restore(self) -> None:
        """See `BestState`; random numbers continue."""
        loaded = load_checkpoint(self._kept, self.model, self.optimizers, self.scheduler, rng=False)
        if self.target is not None:
            self.target.load_state_dict(loaded.extra)
