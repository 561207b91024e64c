"""What a training knows of itself: its epochs, the points of its history, and its state in a checkpoint."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, ClassVar, Protocol, Self

import numpy as np
from pydantic import BeforeValidator, Field
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from sparsegroup.artifact.folder import remove_folder
from sparsegroup.artifact.validation import STRICT, Count, Flag, Real, validated
from sparsegroup.checkpoint import load_checkpoint, save_checkpoint
from sparsegroup.data.schema import LogSchema
from sparsegroup.errors import RunError
from sparsegroup.objectives import Objective
from sparsegroup.reporting.run_record import LOSSES, AnyMetrics, HistoryPoint
from sparsegroup.table.field_tables import tables_in
from sparsegroup.table.table import FieldCount
from sparsegroup.training.plan import EarlierRanks
from sparsegroup.training.predictions import PredictionWindow, WindowState


class BestState(Protocol):
    """A place for the state of a training after its best epoch."""

    def keep(self) -> None:
        """Keep the state of this moment, instead of an earlier one."""

    def restore(self) -> None:
        """Bring the training back to the state that was kept last."""


@dataclass
class TemporaryBest:
    """A `BestState` in a temporary folder: on disk, so that memory holds one model. Random numbers continue."""

    folder: Path
    model: nn.Module
    optimizers: Sequence[Optimizer]
    scheduler: LRScheduler | None
    _count: int = 0

    def keep(self) -> None:
        save_checkpoint(self.folder / str(self._count + 1), self.model, self.optimizers, self.scheduler)
        if self._count:
            remove_folder(self.folder / str(self._count))
        self._count += 1

    def restore(self) -> None:
        kept = self.folder / str(self._count)
        load_checkpoint(kept, self.model, self.optimizers, self.scheduler, rng=False)


@dataclass
class EpochProgress:
    """How far a training has come in its epochs."""

    epoch: Count = 0  # epochs that have ended
    position: Count = 0  # samples trained on in the epoch under way, by all ranks
    best: Count | None = None  # number, from 1, of the epoch after which the validation loss was lowest
    validation: AnyMetrics | None = None  # on the validation rows after the best epoch; before there is one, the last
    is_over: Flag = False
    steps: Count = 0  # batches trained on in the epoch under way

    def end_epoch(self, validation: AnyMetrics | None, *, may_be_best: bool) -> bool:
        """An epoch has ended, with a state that `may_be_best`; gives whether it is the best so far."""
        self.epoch, self.position, self.steps = self.epoch + 1, 0, 0
        if validation is None:
            return False
        lowest = inf if self.best is None or self.validation is None else self.validation.loss
        is_best = may_be_best and validation.loss < lowest
        if is_best:
            self.best = self.epoch
        if is_best or self.best is None:
            self.validation = validation
        return is_best

    def goes_on(self, epochs: int, patience: int) -> bool:
        """Whether there is another of `epochs`, and the last `patience` (0: any number) have not all been worse."""
        waited = 0 if self.best is None else self.epoch - self.best
        return self.epoch < epochs and not (patience and waited >= patience)


def table_figures(embedding: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sizes of all tables of an embedding, and what they have dropped, as a summary names them.

    They are over all ranks, which must all call it.
    """
    totals = np.zeros(5, np.int64)
    for table in tables_in(embedding).values():
        # Other memory than the content depends on what the process has done: a resumed run would differ.
        own = [table.num_live, table.num_seen, table.memory().content, table.num_evicted, table.num_refused]
        totals += own if table.across is None else table.across.shards.totals(own, "counts of rows")
    live, seen, size, evicted, refused = totals.tolist()
    rate = live / seen if seen else 0.0
    sizes = {"feature_rate": rate, "live_rows": live, "features_seen": seen, "table_bytes": size}
    return sizes, {"evicted_rows": evicted, "refused_rows": refused}


def field_totals(embedding: nn.Module) -> dict[int, FieldCount]:
    """`HashEmbedding.field_counts` of all tables in `embedding`, on all ranks; each of them must call it."""
    totals: dict[int, FieldCount] = {}
    for table in tables_in(embedding).values():
        own = table.field_counts()
        for counts in [own] if table.across is None else table.across.shards.of_all([own], "counts of fields"):
            for number, count in counts.items():
                before = totals.get(number, FieldCount(0, 0, 0))
                sums = (before.seen + count.seen, before.rows + count.rows, before.live + count.live)
                totals[number] = FieldCount(*sums)
    return dict(sorted(totals.items()))


class History:
    """The points of a training, the window of this rank's samples since the last one, and the time."""

    def __init__(self, objective: Objective) -> None:
        self.points: list[HistoryPoint] = []
        self.window = PredictionWindow(objective)
        self._reported = 0  # points that callbacks know
        self._seconds, self._window_begin = 0.0, 0.0  # of training
        self._started: float | None = None

    def go_on(
        self, points: Sequence[HistoryPoint], seconds: float, window: PredictionWindow, window_seconds: float = 0.0
    ) -> None:
        """Continue after these points, `seconds` after training started, perhaps in the middle of a window."""
        self.points, self._reported, self.window = list(points), len(points), window
        self._seconds, self._window_begin = seconds, seconds - window_seconds

    @contextmanager
    def clock(self) -> Iterator[None]:
        """Measure the time of training, until it ends or fails."""
        self._started = perf_counter()
        try:
            yield
        finally:
            self._seconds, self._started = self.seconds, None

    @property
    def seconds(self) -> float:
        """That training has taken so far."""
        return self._seconds if self._started is None else self._seconds + perf_counter() - self._started

    @property
    def window_seconds(self) -> float:
        """That training has taken since the window began."""
        return self.seconds - self._window_begin

    def next_window(self) -> None:
        """A new window begins."""
        self.window, self._window_begin = PredictionWindow(self.window.objective), self.seconds

    def forget(self, keep: int) -> None:
        """Keep the last points only, of a training that never ends."""
        gone = max(0, len(self.points) - keep)
        del self.points[:gone]
        self._reported = max(0, self._reported - gone)

    def new_points(self) -> list[HistoryPoint]:
        """The points since the last call."""
        new, self._reported = self.points[self._reported :], len(self.points)
        return new

    def note_validation(self, metrics: AnyMetrics) -> None:
        """The last point is that of an epoch's end, where the model has these metrics on the validation rows."""
        if self.points:
            last = self.points[-1]
            found = {f"validation_{name}": getattr(metrics, name) for name in LOSSES[type(metrics)]}
            self.points[-1] = replace(last, **found)


@dataclass(frozen=True)
class RankState:
    """The state of one rank."""

    taken: Count  # samples that it has trained on in the epoch under way
    window: WindowState  # its samples since the last point
    compiled_for: Count | None  # samples of its part of the batches that its network was compiled for
    callbacks: Mapping[str, Any]  # by the names of their classes
    trained: Count = 0  # samples that it has trained on since the run began, or since this number of ranks trains it


@dataclass(frozen=True)
class TrainerState:
    """The state of a training between two batches, see `Trainer`."""

    __pydantic_config__: ClassVar = STRICT

    samples: Count
    seconds: Real
    history: tuple[HistoryPoint, ...]
    progress: EpochProgress
    ranks: Annotated[tuple[RankState, ...], Field(min_length=1)]

    @classmethod
    def of(cls, content: Any) -> "TrainerState":
        """What `Trainer.state_dict` gave."""
        state = content if isinstance(content, cls) else validated(cls, content)
        for rank in state.ranks:
            rank.window.check()
        if state.history and state.history[-1].samples > state.samples:
            raise ValueError(f"samples: {state.samples:,} are fewer than those of the history")
        progress = state.progress
        if not 0 < (progress.best or 1) <= max(progress.epoch, 1):
            raise ValueError(f"progress.best: {progress.best} of {progress.epoch} epochs")
        return state

    def callbacks(self) -> dict[str, list[Any]]:
        """Class → the states of its callback on all ranks."""
        names = self.ranks[0].callbacks
        return {name: [rank.callbacks[name] for rank in self.ranks if name in rank.callbacks] for name in names}


@dataclass(frozen=True)
class StreamState:
    """How far a training that follows a stream has come; see `sparsegroup.streaming`."""

    block: Count  # blocks of the source that it has learnt to their end
    position: Any  # of the source after these
    skip: Count  # rows that it has learnt of the next block
    bad_rows: Mapping[str, Count]  # reason → rows that were left out, of the blocks taken so far
    learnt_until: Real | None  # the latest time in the learnt rows, in seconds since 1970
    read_until: Real | None  # when the last of these blocks was read, in seconds since 1970


@dataclass(frozen=True)
class CheckpointMetadata:
    """What a run's checkpoint holds besides model and optimizer: enough to make the model and to resume."""

    __pydantic_config__: ClassVar = STRICT

    config: Mapping[str, Mapping[str, Any]]
    columns: Annotated[LogSchema, BeforeValidator(LogSchema.from_dict)]
    trainer: Annotated[TrainerState, BeforeValidator(TrainerState.of)]
    earlier: tuple[EarlierRanks, ...] = ()  # other numbers of ranks that its epoch started with
    stream: StreamState | None = None  # of a training that follows a stream

    @classmethod
    def of(cls, content: Any, checkpoint: Path) -> Self:
        """Parse `LoadResult.extra` of a run's checkpoint; RunError names checkpoint and field."""
        if not isinstance(content, dict) or "config" not in content:
            raise RunError(f"{checkpoint}: was not written by `sparsegroup train`: it has no model settings")
        try:
            return validated(cls, content)
        except ValueError as error:
            raise RunError(f"{checkpoint}: damaged (state.extra.{error})") from error

    @property
    def samples(self) -> int:
        """Samples trained on, in all runs."""
        return self.trainer.samples
