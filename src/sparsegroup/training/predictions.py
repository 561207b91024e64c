"""A model's predictions for a stream of batches: their metrics, and files of them."""

import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import torch
from torch import Tensor, nn

from sparsegroup.artifact.validation import Real
from sparsegroup.data.batches import Batch
from sparsegroup.data.keys import keys_of
from sparsegroup.data.local_files import arrow_of, parquet_writer
from sparsegroup.data.log import Log
from sparsegroup.data.schema import LogSchema
from sparsegroup.errors import UserError
from sparsegroup.models import NumberEncoder
from sparsegroup.objectives import LOGISTIC, Objective
from sparsegroup.reporting.run_record import AnyMetrics
from sparsegroup.table import FieldTables
from sparsegroup.table.field_tables import tables_in
from sparsegroup.tensors import shape_of
from sparsegroup.training.metrics import measure
from sparsegroup.training.model import LookupModel, keys_to_look_up, logits_of, looked_up
from sparsegroup.training.ranks import SINGLE_PROCESS, RankGroup

Float64s = npt.NDArray[np.float64]

Columns = Mapping[str, npt.NDArray[np.generic]]

EVALUATED = 4096
"""Samples of a batch in evaluation."""

SUFFIXES = (".csv", ".csv.gz", ".parquet")
"""Of files of predictions."""

_ROW_GROUP = 1 << 17

_NEARLY_ALL = 0.99
"""Smallest share of a column's values without a row that causes a warning."""

_ENOUGH_VALUES = 100
"""Smallest number of a column's values for a warning."""

_FIRST_BATCHES, _EVERY = 32, 8
"""Number of first batches, which are all counted; afterwards every eighth batch is counted."""

Sample = Batch | Sequence[Tensor]
"""A batch, or tensors (keys, labels) or (keys, numbers, labels), as a torch DataLoader gives them."""


def as_batch(sample: Sample) -> Batch:
    """A batch of one sample of a stream; TypeError or ValueError if it is none."""
    if isinstance(sample, Batch):
        return sample
    if not isinstance(sample, Sequence) or not all(isinstance(part, Tensor) for part in sample):
        parts = [type(part).__name__ for part in sample] if isinstance(sample, Sequence) else [type(sample).__name__]
        raise TypeError(f"a batch is a Batch or tensors (keys, labels) or (keys, numbers, labels), got {parts}")
    if not 2 <= len(sample) <= 3:
        raise TypeError(f"a batch is a Batch, (keys, labels) or (keys, numbers, labels), got {len(sample)} parts")
    keys, *numbers, labels = sample
    if numbers and numbers[0].ndim != 2:
        shape = [*numbers[0].shape]
        raise ValueError(f"of (keys, numbers, labels), numbers must be [batch, numbers], got {shape}")
    given = numbers[0] if numbers else torch.empty(len(labels), 0)
    return Batch(keys, given, labels.to(torch.get_default_dtype()), torch.zeros(len(labels), dtype=torch.int64))


def with_checked_labels(batches: Iterable[Batch], objective: Objective = LOGISTIC) -> Iterator[Batch]:
    """Yield the batches. UserError: the objective does not accept a label, named with value, batch and row."""
    for number, batch in enumerate(batches):
        good = objective.are_labels(batch.labels)
        if not bool(good.all()):
            row = int((~good).flatten().nonzero()[0])
            given = batch.labels[row] if objective.tasks else batch.labels.flatten()[row : row + 1]
            raise UserError(
                f"labels must be {objective.label_words}, got {', '.join(f'{one:g}' for one in given.tolist())} in row "
                f"{row} of batch {number} of the stream (both from 0)"
            )
        yield batch


class MissingNumberError(UserError):
    """A number that is missing or infinite, at a row and column of a batch, and a network that does not take it.

    `first` is the row of the stream, from 0, at which the batch begins.
    """

    def __init__(self, batch: Batch, row: int, column: int, first: int, place: str = "") -> None:
        place = place or f"row {first + row} of the stream: column {column} of the numbers (from 0)"
        super().__init__(
            f"{place} has missing or infinite numbers, and the model takes numbers as they are: fill them in, or train "
            "with model.standardize=true, which takes them"
        )
        self.batch, self.row, self.column, self.first = batch, row, column, first


@contextmanager
def numbers_named(log: Log, start: int | None = None) -> Iterator[None]:
    """A `MissingNumberError` names the log and the column; and the row, where the stream is the log from `start` on."""
    try:
        yield
    except MissingNumberError as error:
        batch, row, column, first = error.batch, error.row, error.column, error.first
        place = "" if start is None else f" row {log.places(start + first, batch)[row]} (from 0):"
        raise MissingNumberError(batch, row, column, first, f"{log.name}:{place} {log.numbers[column]!r}") from error


def missing_number(model: nn.Module, batch: Batch, rows: slice, first: int) -> MissingNumberError | None:
    """The first number in rows of a batch that the network turns into no number."""
    encoder = next((module for module in model.modules() if isinstance(module, NumberEncoder)), None)
    numbers = batch.numbers[rows]
    refused = ~numbers.isfinite() if encoder is None else numbers.isinf() & (not encoder.standardize)
    if not bool(refused.any()):
        return None
    row, column = refused.nonzero()[0].tolist()
    return MissingNumberError(batch, (rows.start or 0) + row, column, first)


def check_logits(model: nn.Module, batch: Batch, logits: Tensor, first: int) -> None:
    """Raise where a logit of a batch that begins at row `first` of a stream is NaN. Not checked on a GPU.

    The error is a MissingNumberError if a number of the row is missing, or else a FloatingPointError.
    """
    if logits.device.type != "cpu" or not bool((wrong := logits.isnan()).any()):
        return
    row = int(wrong.nonzero()[0, 0])
    raise missing_number(model, batch, slice(row, row + 1), first) or FloatingPointError(
        f"the model's logit of row {first + row} (from 0) is NaN: its weights are not finite, its training has "
        "diverged; train it with a lower learning rate"
    )


def predict(model: LookupModel, stream: Iterable[Sample], ranks: RankGroup = SINGLE_PROCESS) -> "PredictionWindow":
    """Predict all batches of a stream. The model is left in evaluation mode.

    Args:
        model: A `ClickModel`, such as `load_model` gives, or another over an embedding.
        stream: The batches; on several ranks, this rank's part of them.
        ranks: The ranks that share the stream; all get all predictions, the first rank's first.

    Raises:
        MissingNumberError: A number is missing that the model needs.
        FloatingPointError: The model's weights are not finite.

    Examples:
        >>> from sparsegroup.data import SyntheticConfig, synthetic_log
        >>> from sparsegroup.training import Config, predict
        >>> log = synthetic_log(SyntheticConfig(rows=100), seed=0)
        >>> model, _ = Config.of(model="lr").build(log)
        >>> found = predict(model, log.batches(log.train_rows, len(log), 4096))
        >>> found.probabilities().shape, round(found.metrics().log_loss, 4)
        ((10,), 0.4042)
    """
    window = PredictionWindow(model.objective)
    own = (one.own for one in ranks.synchronized_batches(map(as_batch, stream)))
    for batch, logits in logits_over(model, own):
        window.add(batch, logits)
    return window.of_all(ranks)


@torch.no_grad()
def logits_over(model: LookupModel, stream: Iterable[Sample]) -> Iterator[tuple[Batch, Tensor]]:
    """Each batch of a stream and the model's logits; another thread looks up the keys of the next batch ahead."""
    model.eval()
    embedding, rows = model.embedding, 0
    is_here = all(table.across is None for table in tables_in(embedding).values())  # else other ranks have to join in
    prefetch = getattr(embedding, "prefetch", None) if is_here else None
    for batch, following in pairwise(chain(map(as_batch, stream), (None,))):
        assert batch is not None
        keys = keys_to_look_up(model.network, batch.keys, batch.bags)
        found = looked_up(embedding, model.network, keys, batch.keys, batch.bags)
        if prefetch is not None and following is not None:
            prefetch(keys_to_look_up(model.network, following.keys, following.bags))
        logits = logits_of(model.network, *found, batch.keys, batch.numbers)
        check_logits(model, batch, logits, rows)
        rows += len(batch)
        yield batch, logits


@torch.no_grad()
def logits_in_float64(model: LookupModel, stream: Iterable[Batch]) -> Iterator[Tensor]:
    """The logits float64 of each batch of a stream, on the CPU. The model is left in evaluation mode.

    In float32 a row's place in its batch changes the order of sums, and the last bits with it.
    """
    model.eval()
    network, embedding = deepcopy(model.network).double(), model.embedding
    for batch in stream:
        keys = keys_to_look_up(network, batch.keys, batch.bags)
        vectors = embedding(keys, torch.float64) if isinstance(embedding, FieldTables) else embedding(keys).double()
        yield logits_of(network, vectors, batch.bags, batch.keys, batch.numbers.double()).cpu()


def check_tensor(name: str, tensor: Tensor, dtype: torch.dtype, *shape: int) -> None:
    """Raise ValueError, whose message begins with the name, unless a tensor has this form and finite numbers."""
    if tensor.dtype != dtype or tensor.shape != shape:
        expected = shape_of(torch.empty(shape, dtype=dtype, device="meta"))
        raise ValueError(f"{name}: {expected} are expected, got {shape_of(tensor)}")
    if not bool(tensor.isfinite().all()):
        raise ValueError(f"{name}: has numbers that are not finite")


@dataclass(frozen=True)
class WindowState:
    """A `PredictionWindow` in a checkpoint: numbers `[samples]`, weights `[0]` where every row counts the same, and
    groups `[0]` where the objective takes none.

    Logits are `[samples, outputs]` where the objective has several.
    """

    logits: Tensor
    labels: Tensor
    weights: Tensor
    seconds: Real
    groups: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))

    def check(self) -> None:
        """Raise ValueError, whose message begins with the field, unless a window can have given it."""
        rows = len(self.labels) if self.labels.ndim else 0
        for name, tensor, shape in (
            ("logits", self.logits, (rows, *self.logits.shape[1:2])),
            ("labels", self.labels.nan_to_num(), (rows, *self.labels.shape[1:2])),
            ("weights", self.weights, (rows if self.weights.numel() else 0,)),
        ):
            dtype = tensor.dtype if tensor.is_floating_point() else torch.float32
            check_tensor(f"window.{name}", tensor, dtype, *shape)
        check_tensor("window.groups", self.groups, torch.int64, rows if self.groups.numel() else 0)
        if bool((self.weights < 0).any()):
            raise ValueError("window.weights: has some below 0")

    def check_objective(self, objective: Objective) -> None:
        """Raise ValueError unless an objective takes the labels and the logits, and the groups if it takes any."""
        if objective.takes_groups and len(self.groups) < len(self.labels):
            raise ValueError(f"window.groups: are missing, which {objective} takes")
        several = () if objective.outputs == 1 else (objective.outputs,)
        if len(self.logits) and self.logits.shape[1:] != several:
            raise ValueError(f"window.logits: are not of {objective.outputs} outputs")
        if len(self.labels) and not bool(objective.are_labels(self.labels).all()):
            raise ValueError(f"window.labels: has others than {objective.label_words}")


class PredictionWindow:
    """Predictions for some samples, and their labels.

    Args:
        objective: What the scores mean.
    """

    def __init__(self, objective: Objective = LOGISTIC) -> None:
        self.samples, self.objective = 0, objective
        self._logits: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._weights: list[Tensor] = []
        self._groups: list[Tensor] = []

    @classmethod
    def joined(
        cls, states: Sequence[WindowState], samples: int | None = None, objective: Objective = LOGISTIC
    ) -> "PredictionWindow":
        """The windows of several ranks as one, in their order; `samples`: of all ranks, if there are more."""
        window = cls(objective)
        window.samples = sum(len(state.labels) for state in states) if samples is None else samples
        window._logits = [state.logits for state in states if len(state.logits)]
        window._labels = [state.labels for state in states if len(state.labels)]
        window._weights = [state.weights for state in states if len(state.weights)]
        window._groups = [state.groups for state in states if len(state.groups)]
        return window

    def of_all(self, ranks: RankGroup) -> "PredictionWindow":
        """The windows of all ranks as one, that of the first rank first."""
        return (
            self
            if ranks.is_alone
            else self.joined(ranks.all_gather([self.state()], "predictions"), objective=self.objective)
        )

    def state(self, seconds: float = 0.0) -> WindowState:
        """Its logits, labels, weights and groups, and how long it has taken so far."""
        logits, labels, weights = (_joined(one) for one in (self._logits, self._labels, self._weights))
        return WindowState(logits, labels, weights, seconds, _joined(self._groups).long())

    def add(self, batch: Batch, logits: Tensor, samples: int | None = None) -> None:
        """Take a batch and its logits, of this rank; `samples`: of all ranks, if there are more."""
        self.samples += len(batch) if samples is None else samples
        self._logits.append(logits)
        self._labels.append(batch.labels)
        if batch.weights is not None:
            self._weights.append(batch.weights)
        if (groups := self.objective.groups_of(batch.keys)) is not None:
            self._groups.append(groups.clone())  # without the other keys

    def probabilities(self) -> Float64s:
        """The predictions `[samples]`, in the order in which they came: of a binary objective, probabilities.

        Like logits and what is `measured`, they are `[samples, outputs]` where the objective has several.
        """
        return predictions_of(self._logits, self.objective)

    def logits(self) -> Float64s:
        """The logits `[samples]`."""
        return _joined(self._logits).double().numpy()

    def labels(self) -> npt.NDArray[np.float32]:
        """The labels `[samples]`."""
        return _joined(self._labels).numpy()

    def weights(self) -> npt.NDArray[np.float32] | None:
        """The weights `[samples]`, or None where every row counts the same."""
        return _joined(self._weights).numpy() if self._weights else None

    def groups(self) -> npt.NDArray[np.int64] | None:
        """The groups `[samples]`, or None if the objective takes none."""
        return _joined(self._groups).numpy() if self._groups else None

    def metrics(self) -> AnyMetrics:
        """Metrics of the predictions against the labels."""
        return self.measured(self.probabilities())

    def measured(self, predictions: Float64s) -> AnyMetrics:
        """Metrics of other predictions `[samples]` for the same samples."""
        return measure(self.objective, self.labels(), predictions, self.weights(), self.groups())

    def shift(self) -> Any:
        """What is added to the logits so that the loss is lowest, see `Objective.shift`."""
        weights = self.weights()
        counts = np.ones(self.samples) if weights is None else weights.astype(np.float64)
        return self.objective.shift(self.logits(), self.labels().astype(np.float64), counts)


def predictions_of(logits: Sequence[Tensor], objective: Objective) -> Float64s:
    """The predictions `[samples]` of the logits of some batches, one behind the other."""
    result: Float64s = objective.predict(_joined(logits).double()).numpy()
    return result


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """All parts, one behind the other, on the host."""
    return torch.cat([part.cpu() for part in parts]) if parts else torch.zeros(0)


def predicted_rows(
    model: LookupModel, log: Log, window: PredictionWindow, watch: Callable[[Batch], object] | None = None
) -> Iterator[Columns]:
    """The predictions of all rows of a log in order, which `window` takes too, as columns `[n]`, a batch at a time.

    The columns are the row's place in the log, from 0, its probability (of another objective, see
    `Objective.columns`), and its label if the log has labels. Rows that were left out as bad or blank leave gaps in
    the places. `watch` is called with each batch.
    """
    with numbers_named(log, 0):
        for batch, logits in logits_over(model, log.batches(0, len(log), EVALUATED)):
            rows = log.places(window.samples, batch)
            window.add(batch, logits)
            if watch is not None:
                watch(batch)
            columns = model.objective.columns(predictions_of([logits], model.objective))
            labels = model.objective.label_columns(batch.labels.numpy()) if log.labelled else {}
            yield {"row": rows, **columns, **labels}


def write_csv(parts: Iterable[Columns], file: IO[bytes] | gzip.GzipFile) -> None:
    """Write columns as CSV; probabilities read back as the same numbers."""
    for number, part in enumerate(parts):
        file.write(pl.DataFrame(part).write_csv(include_header=number == 0).encode())


def write_predictions(parts: Iterator[Columns], path: Path, suffix: str) -> None:
    """Write columns into a file of any name, in the format of one of `SUFFIXES`."""
    if suffix == ".parquet":
        _write_parquet(parts, path)
        return
    with path.open("wb") as file:
        if suffix == ".csv":
            write_csv(parts, file)
            return
        with gzip.GzipFile("", "wb", 6, file, mtime=0) as compressed:  # the same bytes whenever it is written
            write_csv(parts, compressed)


def _write_parquet(parts: Iterator[Columns], path: Path) -> None:
    batches = (pa.record_batch({name: arrow_of(values) for name, values in part.items()}) for part in parts)
    held = [next(batches)]  # a log has rows
    with closing(parquet_writer(path, held[0].schema, compression="zstd")) as writer:
        for batch in batches:
            held.append(batch)
            if sum(batch.num_rows for batch in held) >= _ROW_GROUP:
                writer.write_table(pa.Table.from_batches(held))
                held = []
        if held:
            writer.write_table(pa.Table.from_batches(held))


class UnseenValues:
    """Count of the values of each field, without missing values, and of the values without a row in the model.

    A value without a row was not in the training log, was pruned, or was not admitted.

    Args:
        embedding: The model's embedding. Nothing is counted for an embedding that does not know its keys.
        columns: The columns that the model expects.
    """

    def __init__(self, embedding: Any, columns: LogSchema) -> None:
        self._contains: Callable[[Tensor], Tensor] | None = getattr(embedding, "contains", None)
        if any(table.across is not None for table in tables_in(embedding).values()):
            self._contains = None  # a count would need all ranks
        counts = embedding.field_counts() if self._contains is not None else {}
        numbers = columns.key_fields
        self._fields, self._columns = [name for name in columns.fields if numbers[name] in counts], columns
        self._missing = {name: int(keys_of([""], number)[0]) for name, number in numbers.items()}
        self._batches = 0
        self.values = dict.fromkeys(self._fields, 0)
        self.unseen = dict.fromkeys(self._fields, 0)

    def add(self, batch: Batch) -> Mapping[str, tuple[int, int]]:
        """Count the values of a batch. Of many batches, only some are counted.

        Returns:
            Field → number of values, and of values without a row; empty if the batch is not counted.
        """
        self._batches += 1
        if self._contains is None or (self._batches > _FIRST_BATCHES and self._batches % _EVERY):
            return {}
        parts = dict(zip(self._columns.lists, (bags.keys for bags in batch.bags), strict=True))
        parts |= dict(zip(self._columns.single, batch.keys.unbind(1), strict=True))
        keys = torch.cat([parts[name].to(torch.int64) for name in self._fields]) if self._fields else batch.keys[:0, 0]
        ends = [len(parts[name]) for name in self._fields]
        found = dict[str, tuple[int, int]]()
        for name, own, has_row in zip(
            self._fields, torch.split(keys, ends), torch.split(self._contains(keys), ends), strict=True
        ):
            is_value = own != self._missing[name]
            found[name] = int(is_value.sum()), int((is_value & ~has_row).sum())
            self.values[name] += found[name][0]
            self.unseen[name] += found[name][1]
        return found

    @property
    def shares(self) -> Mapping[str, float]:
        """Field → share of its values without a row. Fields without a counted value are left out."""
        return {name: self.unseen[name] / count for name, count in self.values.items() if count}

    def warning(self, where: str) -> str:
        """Return a warning about the columns of `where` with hardly any known value; empty for no warning."""
        found = [
            f"{name!r} ({share:.1%})"
            for name, share in self.shares.items()
            if share >= _NEARLY_ALL and self.values[name] >= _ENOUGH_VALUES
        ]
        if not found:
            return ""
        return (
            f"{where}: nearly all values of {', '.join(found)} have no row in the model. Unless they are new, they are "
            "written in another way than in the training log, and the predictions miss them"
        )
