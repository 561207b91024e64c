"""Which columns of a log a model can do without: by permutation importance, and by models without them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import numpy.typing as npt

from sparsegroup.data.batches import Batch, concatenated
from sparsegroup.data.log import Log
from sparsegroup.data.order import LogPart, LogWithout
from sparsegroup.errors import RunError
from sparsegroup.reporting.run_record import AnyMetrics, Importance
from sparsegroup.training.assessment.columns import Rise, rises
from sparsegroup.training.assessment.verdict import BEYOND_NOISE
from sparsegroup.training.build import Config
from sparsegroup.training.metrics import exceeds_noise
from sparsegroup.training.model import ClickModel
from sparsegroup.training.predictions import EVALUATED, predict
from sparsegroup.training.selection.trials import MOST_ROWS, SAMPLE
from sparsegroup.training.state import field_totals, table_figures
from sparsegroup.training.trainer import Callback

MEASURED_ROWS = 50_000
"""Held-out rows whose columns are shuffled, the first ones."""

HELD_OUT = 0.2
TOLERATED = 0.01
"""How much of what a model knows, the loss of the best constant prediction less its own, one of fewer columns may
lack."""

FAILURES = 3
"""Columns without which models have become worse, after which no more are tried."""

REPEATED = 0.95
"""Share of rows in which another column has to say what is in a column."""

LEAST_ROWS = 1_000

Float64s = npt.NDArray[np.float64]
Reporting = Callable[[int, str], AbstractContextManager[Callback | None]]


@dataclass(frozen=True)
class SelectedColumn:
    """A column of a log, and whether a model needs it.

    Attributes:
        name: The column.
        importance: What it is worth on held-out rows, the mean over seeds; its error counts rows and seeds.
        live: Share of its features that are live in the models; NaN of numbers.
        is_kept: Whether models without it are worse.
    """

    name: str
    importance: Importance
    live: float
    is_kept: bool


@dataclass(frozen=True)
class SelectionSide:
    """A model of all columns, or of the kept ones."""

    metrics: AnyMetrics
    live_rows: int
    table_bytes: int  # of its index and rows, including the optimizer's state
    seconds: float  # of training


@dataclass(frozen=True)
class ColumnSelection:
    """The columns of a log, the most important first, and what a model is without the others.

    Attributes:
        columns: The columns.
        whole, kept: Models of all columns and of the kept ones, trained on the same rows.
        rows: Rows on which both are measured: the log's test rows, or held-out ones of a log that has none.
        has_test_rows: Whether these are test rows, which the selection has not seen.
        trainings: How many models were trained.
    """

    columns: tuple[SelectedColumn, ...]
    whole: SelectionSide
    kept: SelectionSide
    rows: int
    has_test_rows: bool
    trainings: int

    @property
    def left_out(self) -> tuple[str, ...]:
        """The columns that are not kept, in the order of their importance."""
        return tuple(one.name for one in self.columns if not one.is_kept)


def select_columns(
    config: Config,
    log: Log,
    *,
    seeds: int = 3,
    reporting: Reporting = lambda samples, name: nullcontext(),
) -> ColumnSelection:
    """Which columns of a log a model can do without.

    Models of all columns, one for each seed, are trained on all but the last fifth of the training rows, and each
    column's permutation importance is measured on these (see `importances`). The columns whose importance is not above
    0 beyond noise are left out, and models trained without them. If these lack more than 1 % of what the models of all
    columns know, their gain over the best constant prediction, by more than their standard error over seeds, only the
    less important half of them is left out, and so on. Then columns that another one determines in 95 % of the rows
    are tried in the same way, one at a time, until three have made the models worse. In the end a model of all columns
    and one of the kept ones are trained on all training rows, and compared on the log's test rows.

    If the log has more than 500,000 training rows, the last 300,000 are taken.

    Args:
        config: The settings; what is not given is decided for the log, without trials. Columns that they name
            (`model.pairs`, `model.dims`, `model.attention`, `training.group`) are kept, and columns whose vocabulary
            others share.
        log: The log.
        seeds: Models of each kind, ≥ 1.
        reporting: Shows the progress of a training of some samples, by its name.

    Raises:
        RunError: The log has fewer than 1,000 training rows, or only one column.
        ValueError: `seeds` < 1.
        SettingsError: As `Config.build`.
    """
    if seeds < 1:
        raise ValueError(f"seeds must be >= 1, got {seeds}")
    if log.train_rows < LEAST_ROWS or len(log.made_of()) < 2:
        raise RunError(
            f"{log.name} has {log.train_rows:,} training rows and {len(log.made_of())} columns of features: a "
            f"selection needs {LEAST_ROWS:,} rows and two columns"
        )
    config.check_log(log)
    count = SAMPLE if log.train_rows > MOST_ROWS else log.train_rows
    held_out = max(1, round(HELD_OUT * count))
    part = LogPart(log, log.train_rows - count, count - held_out, held_out)
    selection = _Selection(config, part, seeds, reporting)
    out = selection.run()
    first, last = (part.train_rows, len(part)) if len(log) == log.train_rows else (log.train_rows, len(log))
    of_all = part if len(log) == log.train_rows else _Tested(log, count)
    whole, kept = (selection.side(of_all, without) for without in ((), out))
    columns = [
        SelectedColumn(name, one, selection.live.get(name, float("nan")), name not in out)
        for name, one in selection.importances.items()
    ]
    columns.sort(key=lambda one: (-one.importance.loss, one.name))
    has_test_rows = len(log) > log.train_rows
    return ColumnSelection(tuple(columns), whole, kept, last - first, has_test_rows, selection.trainings)


class _Tested(LogPart):
    """The last training rows of a log and its test rows."""

    def __init__(self, log: Log, train_rows: int) -> None:
        super().__init__(log, log.train_rows - train_rows, train_rows)
        self._rows = train_rows + len(log) - log.train_rows


class _Selection:
    """The models that are trained, and what they say.

    Attributes:
        importances: Column → its importance, by the models of all columns.
        live: Field's column → the share of its features that are live in these.
        trainings: How many models were trained so far.
    """

    def __init__(self, config: Config, part: LogPart, seeds: int, reporting: Reporting) -> None:
        self.config, self.part, self.seeds, self.reporting = config, part, seeds, reporting
        self.importances: dict[str, Importance] = {}
        self.live: dict[str, float] = {}
        self.trainings = 0
        self._losses, self._constant = np.zeros(seeds), 0.0  # of all columns, and of the best constant prediction
        named = config.model.named_fields(part.schema) | {config.training.group, *part.schema.shares.values()}
        self._sample = concatenated(
            list(part.batches(max(0, part.train_rows - MEASURED_ROWS), part.train_rows, EVALUATED))
        )
        self._held_out = concatenated(list(part.batches(part.train_rows, len(part), EVALUATED)))[:MEASURED_ROWS]
        self._bound = {column for column, made in part.made_of().items() if {column, *made} & set(named)}

    def run(self) -> tuple[str, ...]:
        """The columns to leave out."""
        self._losses, found = self._measured(())
        self.importances = {name: _importance(of) for name, of in found.items()}
        order = self._least_important(self.importances, ())
        noise = [name for name in order if not _is_sure(found[name])]
        out: tuple[str, ...] = ()
        count, worse = len(noise), len(noise) + 1  # that are tried next, and that are too many
        while count > len(out):
            without, found_without = self._measured(noise[:count])
            if self._is_good(without):
                out, found = tuple(noise[:count]), found_without
            else:
                worse = count
            count = (len(out) + worse) // 2
        needed = set[str]()
        while len(needed) < FAILURES:
            order = self._least_important({name: _importance(of) for name, of in found.items()}, needed)
            tried = next((name for name in order if not _is_sure(found[name]) or self._is_repeated(name, out)), None)
            if tried is None:
                break
            without, found_without = self._measured((*out, tried))
            if self._is_good(without):
                out, found = (*out, tried), found_without
            else:
                needed.add(tried)
        return out

    def _is_repeated(self, column: str, out: Collection[str]) -> bool:
        """Whether another column that is not left out says what is in a column, in most rows."""
        made = self.part.made_of()
        others = [name for name in made if name not in (column, *out)]
        return all(
            any(says(self._sample, self._held_out, self.part, other, name) for one in others for other in made[one])
            for name in made[column]
        )

    def _is_good(self, losses: Float64s) -> bool:
        """Whether models with these losses, one for each seed, lack no more than is tolerated, within their error."""
        lacking = losses - self._losses
        error = lacking.std(ddof=1) / len(lacking) ** 0.5 if len(lacking) > 1 else 0.0
        return bool(lacking.mean() - error <= TOLERATED * (self._constant - self._losses.mean()))

    def _least_important(self, of: Mapping[str, Importance], known: Collection[str]) -> list[str]:
        """The columns that may be left out, without known ones, the least important first; one always remains."""
        order = sorted((name for name in of if name not in known), key=lambda name: (of[name].loss, name))
        return [name for name in order[: len(order) - 1] if name not in self._bound]

    def _measured(self, without: Collection[str]) -> tuple[Float64s, dict[str, list[Rise]]]:
        """The loss on held-out rows for each seed, and by column each seed's rises."""
        losses, found, live = [], dict[str, list[Rise]](), dict[str, list[float]]()
        for seed in range(self.seeds):
            log = self._log(self.part, without)
            model, _ = self._train(log, seed)
            held_out = concatenated(list(log.batches(log.train_rows, len(log), EVALUATED)))
            metrics = predict(model, [held_out]).metrics()
            losses.append(metrics.loss)
            self._constant = metrics.loss / metrics.relative_loss
            for name, rise in rises(model, log, held_out[:MEASURED_ROWS], shuffles=1, seed=seed).items():
                found.setdefault(name, []).append(rise)
            if not without:
                counts, numbers = field_totals(model.embedding), log.schema.key_fields
                for name, made in log.made_of().items():
                    fields = [counts[numbers[one]] for one in made if one in log.fields]
                    if seen := sum(one.seen for one in fields):
                        live.setdefault(name, []).append(sum(one.live for one in fields) / seen)
        self.live = self.live or {name: float(np.mean(shares)) for name, shares in live.items()}
        return np.array(losses), found

    def side(self, log: Log, without: Sequence[str]) -> SelectionSide:
        """A model without some columns, trained on a log's training rows and measured on its others."""
        log = self._log(log, without)
        model, seconds = self._train(log, 0)
        window = predict(model, log.batches(log.train_rows, len(log), EVALUATED))
        sizes, _ = table_figures(model.embedding)
        return SelectionSide(window.metrics(), sizes["live_rows"], sizes["table_bytes"], seconds)

    def _log(self, log: Log, without: Collection[str]) -> Log:
        made = log.made_of()
        return LogWithout(log, [name for column in without for name in made[column]]) if without else log

    def _train(self, log: Log, seed: int) -> tuple[ClickModel, float]:
        """A model trained on a log, and the seconds that took."""
        config = self.config.resolved_for(log)
        config = config.decided({"training.seed": config.training.seed + seed})
        self.trainings += 1
        model, optimizer = config.build(log)
        plan = config.training.plan(log.train_rows)
        trainer = config.trainer(model, optimizer, plan)
        name = f"model {self.trainings}, {len(log.made_of())} columns"
        start = perf_counter()
        with self.reporting(plan.samples, name) as shown:
            trainer.callbacks = [*trainer.callbacks, *([] if shown is None else [shown])]
            trainer.fit_plan(plan, log)
        return model, perf_counter() - start


def says(learnt: Batch, rows: Batch, log: Log, name: str, other: str) -> bool:
    """Whether a field determines another one in at least 95 % of some rows, by its values in earlier rows.

    A number determines another one if their ranks are so correlated. A list determines nothing, and is determined by
    nothing; nor do a field and a number determine each other.
    """
    if {name, other} & set(log.lists) or (name in log.fields) != (other in log.fields):
        return False
    if name in log.numbers:
        pair = [rows.numbers[:, log.numbers.index(one)].argsort().argsort().numpy() for one in (name, other)]
        return len(rows) > 1 and bool(abs(np.corrcoef(pair[0], pair[1])[0, 1]) >= REPEATED)
    single = log.schema.single
    before, after = (batch.keys[:, [single.index(name), single.index(other)]].numpy() for batch in (learnt, rows))
    both, counts = np.unique(before, axis=0, return_counts=True)
    both = both[np.lexsort((-counts, both[:, 0]))]
    known, first = np.unique(both[:, 0], return_index=True)
    place = np.searchsorted(known, after[:, 0]).clip(max=len(known) - 1)
    right = (known[place] == after[:, 0]) & (both[first[place], 1] == after[:, 1])
    return bool(right.mean() >= REPEATED)


def _is_sure(of_seeds: Sequence[Rise]) -> bool:
    """Whether a column's importance is above 0 beyond noise, on the mean of all seeds."""
    losses = np.mean([one.losses for one in of_seeds], axis=0)
    return exceeds_noise(losses[~np.isnan(losses)], BEYOND_NOISE)


def _importance(of_seeds: Sequence[Rise]) -> Importance:
    """The mean over seeds; its error is that over blocks of rows and that over seeds."""
    mean = Rise(np.mean([one.losses for one in of_seeds], axis=0), float(np.mean([one.auc for one in of_seeds])))
    spread = np.std([one.importance.loss for one in of_seeds], ddof=1) if len(of_seeds) > 1 else 0.0
    found = mean.importance
    return replace(found, error=float(np.hypot(found.error, spread / len(of_seeds) ** 0.5)))
