"""Why a model predicts what it does for a row: the share of each column in the logit, by Shapley values."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import comb
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsegroup.artifact.validation import finite
from sparsegroup.data.batches import Bags, Batch, concatenated
from sparsegroup.data.keys import VALUE_BITS, Int64s
from sparsegroup.data.local_files import names_of
from sparsegroup.data.log import Log
from sparsegroup.data.schema import LogSchema
from sparsegroup.errors import ClickLogError, UserError
from sparsegroup.models import NumberEncoder
from sparsegroup.objectives import Objective
from sparsegroup.serving.opening import TrainedModel
from sparsegroup.training.model import LookupModel
from sparsegroup.training.predictions import EVALUATED, Float64s, check_logits, logits_in_float64, numbers_named

EXACT = 10
"""Columns up to which all their subsets are evaluated, 2¹⁰ at most."""

_VALUES = 1_000_000
"""Largest number of list values in one evaluation of the model, unless a single row has more."""

_UNSEEN = 0x9E3779B97F4A7C
"""The value bits of a key that has no row, unless a hash is just that: 2⁵⁶ over the golden ratio."""


@dataclass(frozen=True)
class Explanation:
    """The logits of n rows as sums: `reference`, and a contribution of each column.

    Attributes:
        columns: Names of the fields, then of the numbers.
        reference: The logit of the reference row, see `explain`.
        logits: `[n]` float64.
        contributions: `[n, columns]` float64; a row's add up to its logit minus `reference`.
        errors: `[n, columns]` float64: standard errors of the contributions; 0 if these are exact.
        permutations: How many orders of the columns were drawn; 0 if the contributions are exact.
    """

    columns: tuple[str, ...]
    reference: float
    logits: Float64s
    contributions: Float64s
    errors: Float64s
    permutations: int


@torch.no_grad()
def explain(
    model: LookupModel,
    columns: LogSchema,
    batch: Batch,
    *,
    permutations: int = 32,
    seed: int = 0,
    deadline: float | None = None,
) -> Explanation:
    """Divide the logit of each row among its columns: Shapley values against a row of which nothing is known.

    This reference row has, in each field, a value that training has never seen, whose vector is the field's fallback
    vector, or zero if the table has none; in each list only such a value; and as each number the mean in training by
    the model's `NumberEncoder`, "missing" if that has no means, or 0 if the model has none. A column contributes how
    much the logit changes, on average over all orders of the columns, when it takes the row's value after the columns
    before it have taken theirs. The vector of a pair is that of an unknown combination until both parts are known. Two
    columns that are made of one, such as hour and weekday, have a contribution each.

    Up to 10 columns, all their subsets are evaluated, and the contributions are exact. With more, orders are drawn, the
    same ones for each row, each with its reverse (Castro, Gómez and Tejada, 2009; Mitchell, Cooper, Frank and Holmes,
    2022): `permutations` · (columns + 1) evaluations a row, in float64. The logits can differ from `predict`'s by
    rounding.

    Args:
        model: A `ClickModel`, or an export's; it is left in evaluation mode, and otherwise unchanged.
        columns: The columns that it expects, as `TrainedModel.columns` or `Log.schema`.
        batch: The rows.
        permutations: How many orders, even and ≥ 4. The standard errors fall with its root.
        seed: What the orders are drawn with.
        deadline: Value of `time.monotonic()` at which an unfinished explanation is given up; None: never.

    Raises:
        UserError: `permutations` is odd or too small.
        ValueError: The batch has other columns.
        TimeoutError: The deadline has passed.
        MissingNumberError: A number is missing that the model needs.
        FloatingPointError: The model's weights are not finite.

    Examples:
        >>> from sparsegroup.data import SyntheticConfig, synthetic_log
        >>> from sparsegroup.serving import explain
        >>> from sparsegroup.training import Config
        >>> log = synthetic_log(SyntheticConfig(rows=100), seed=0)
        >>> model, _ = Config.of(model="fm").build(log)
        >>> found = explain(model, log.schema, next(log.batches(0, 3, 3)))
        >>> gap = found.reference + found.contributions.sum(1) - found.logits
        >>> found.contributions.shape, bool((abs(gap) < 1e-9).all())
        ((3, 8), True)
    """
    if permutations < 4 or permutations % 2:
        raise UserError(f"`permutations` must be even and >= 4, got {permutations}", "permutations")
    if model.objective.outputs > 1:
        raise UserError(f"a model of one output can be explained, and {model.objective} has {model.objective.outputs}")
    names = (*columns.fields, *columns.numbers)
    reference = _reference_row(model.network, columns)
    shape = (reference.keys.shape[1], len(columns.lists), len(columns.numbers))
    if (given := (batch.keys.shape[1], len(batch.bags), batch.numbers.shape[1])) != shape:
        raise ValueError(f"fields of one value, lists and numbers must be {shape} as in columns, got {given}")
    is_exact = len(names) <= EXACT
    orders = torch.empty(0) if is_exact else _antithetic_orders(len(names), permutations, seed)
    rows = 1 << len(names) if is_exact else permutations * (len(names) + 1)
    parts = [_parts(batch[row : row + 1], rows) for row in range(len(batch))]

    def evaluated() -> Iterator[Batch]:
        yield reference
        for row, parts_of_row in enumerate(parts):
            both = concatenated([reference, batch[row : row + 1]])
            for part in parts_of_row:
                if deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError("the explanation is not finished in time")
                known = _subsets(part, len(names)) if is_exact else _beginnings(part, orders)
                yield _rows_of(both, columns, known)

    stream = logits_in_float64(model, evaluated())
    (base,) = next(stream).tolist()
    logits, contributions, errors = (np.zeros((len(batch), *width)) for width in ((), (len(names),), (len(names),)))
    for row in range(len(batch)):
        values = torch.cat([next(stream) for _ in parts[row]])
        changes = _exact_changes(values, len(names)) if is_exact else _changes_by_pair(values, orders)
        logits[row], contributions[row] = values[-1], changes.mean(0)
        errors[row] = 0 if is_exact else changes.std(0) / len(changes) ** 0.5
    check_logits(model, batch, torch.from_numpy(logits), 0)
    return Explanation(names, base, logits, contributions, errors, 0 if is_exact else permutations)


def _parts(row: Batch, evaluations: int) -> list[Tensor]:
    """Return the numbers of a row's evaluations, in parts with at most `_VALUES` list values each."""
    values = sum(len(bag.keys) for bag in row.bags)
    size = max(1, min(EVALUATED, _VALUES // max(1, values)))
    return list(torch.split(torch.arange(evaluations), size))


def _reference_row(network: nn.Module, columns: LogSchema) -> Batch:
    """The reference row, as a batch; see `explain`."""
    fields = np.array([*columns.key_fields.values()], dtype=np.uint64)
    keys = torch.from_numpy(((fields << np.uint64(VALUE_BITS)) | np.uint64(_UNSEEN)).view(np.int64))
    is_list = torch.tensor([name in columns.lists for name in columns.fields], dtype=torch.bool)
    encoder = next((module for module in network.modules() if isinstance(module, NumberEncoder)), None)
    numbers = torch.zeros(len(columns.numbers), dtype=torch.float64) if encoder is None else encoder.means().cpu()
    lists = [columns.fields.index(name) for name in columns.lists]
    bags = tuple(Bags(keys[place : place + 1], torch.tensor([0, 1])) for place in lists)
    return Batch(keys[~is_list][None], numbers[None], torch.zeros(1), torch.zeros(1, dtype=torch.int64), bags=bags)


def _rows_of(both: Batch, columns: LogSchema, known: Tensor) -> Batch:
    """Rows `[m]` of which some columns are known, `[m, columns]` bool: of the second row there, else of the first."""
    fields, numbers = known[:, : len(columns.fields)].long(), known[:, len(columns.fields) :].long()
    single = [place for place, name in enumerate(columns.fields) if name not in columns.lists]
    bags = (bag[fields[:, columns.fields.index(name)]] for name, bag in zip(columns.lists, both.bags, strict=True))
    return Batch(
        both.keys.gather(0, fields[:, single]),
        both.numbers.gather(0, numbers),
        torch.zeros(len(known)),
        torch.zeros(len(known), dtype=torch.int64),
        bags=tuple(bags),
    )


def _subsets(numbers: Tensor, count: int) -> Tensor:
    """Return subsets of columns by their numbers `[m]`, `[m, count]` bool: 0 is empty, 2**count - 1 has all columns."""
    return (numbers[:, None] >> torch.arange(count) & 1).bool()


def _exact_changes(values: Tensor, count: int) -> Tensor:
    """Shapley values `[1, count]`: Σ_S |S|! (n - |S| - 1)! / n! (v(S ∪ i) - v(S)), of the values of all subsets."""
    subsets = _subsets(torch.arange(len(values)), count)
    sizes = subsets.sum(1, keepdim=True)
    weights = values.new_tensor([1 / (count * comb(count - 1, size)) for size in range(count)])
    joined, apart = weights[(sizes - 1).clamp(min=0)], weights[sizes.clamp(max=count - 1)]
    return (values @ torch.where(subsets, joined, -apart))[None]


def _antithetic_orders(count: int, permutations: int, seed: int) -> Tensor:
    """The place of each column in some orders, `[permutations, count]`: the second half are the first's reverses."""
    drawn = torch.rand(permutations // 2, count, generator=torch.Generator().manual_seed(seed)).argsort(1)
    return torch.cat([drawn, count - 1 - drawn])


def _beginnings(numbers: Tensor, orders: Tensor) -> Tensor:
    """Return beginnings of orders by their numbers `[m]`, `[m, count]` bool.

    Number i stands for the first i % (count + 1) columns of order i // (count + 1).
    """
    length = orders.shape[1] + 1
    return orders[numbers // length] < (numbers % length)[:, None]


def _changes_by_pair(values: Tensor, orders: Tensor) -> Tensor:
    """By how much each column changes the value, `[pairs, count]`, in an order and its reverse, on average."""
    changes = values.view(len(orders), -1).diff(dim=1).gather(1, orders)
    return changes.view(2, -1, orders.shape[1]).mean(0)


# Rows of a log


@dataclass(frozen=True)
class Contribution:
    """What a column contributes to the logit of a row."""

    column: str
    value: str | float  # several are separated by commas; "key …" if the text is unknown; NaN if a number is missing
    contribution: float
    error: float  # standard error; 0 if it is exact


@dataclass(frozen=True)
class ExplainedRow:
    """A row of a log, and why the model predicts what it does for it."""

    row: int  # place in the log, from 0
    label: float | None  # of a log with labels
    logit: float
    contributions: tuple[Contribution, ...]  # the largest first, by size


@dataclass(frozen=True)
class LogExplanation:
    """Some rows of a log, explained."""

    reference: float  # logit of the reference row
    permutations: int  # 0 if the contributions are exact
    rows: tuple[ExplainedRow, ...]
    objective: Objective  # what logits mean

    def prediction(self, logit: float) -> float:
        """The prediction, by default the probability, of a logit."""
        return float(self.objective.predict(torch.tensor(logit, dtype=torch.float64)))

    def as_plain(self) -> dict[str, Any]:
        """All of it for JSON; numbers that are not finite are None."""
        content: dict[str, Any] = {**asdict(self), "objective": str(self.objective)}
        for row in content["rows"]:
            row[self.objective.prediction] = self.prediction(row["logit"])
        found: dict[str, Any] = finite(content)
        return found


def explain_rows(
    trained: TrainedModel, log: Log, rows: Sequence[range], *, permutations: int = 32, seed: int = 0
) -> LogExplanation:
    """Explain rows of a log, each once and in its order; see `explain`.

    Args:
        trained: The model.
        log: The log; it is read up to the last of the rows, and once more for the texts of values.
        rows: Places in the log, from 0, as `predicted_rows` gives them.
        permutations, seed: See `explain`.

    Raises:
        ClickLogError: The log has other columns, or no such row, or cannot be read.
        UserError, MissingNumberError, FloatingPointError: As `explain`.
    """
    trained.columns.check_fits(log.schema, log.name)
    places, batch = _rows_at(log, rows)
    with numbers_named(log):
        found = explain(trained.model, trained.columns, batch, permutations=permutations, seed=seed)
    texts = _texts(trained, log, batch, int(places[-1]))
    explained = []
    for place, row in enumerate(places.tolist()):
        parts = [
            Contribution(column, value, contribution, error)
            for column, value, contribution, error in zip(
                found.columns,
                _values_in(batch[place : place + 1], log, texts),
                found.contributions[place].tolist(),
                found.errors[place].tolist(),
                strict=True,
            )
        ]
        parts.sort(key=lambda one: -abs(one.contribution))
        label = float(batch.labels[place]) if log.labelled else None
        explained.append(ExplainedRow(row, label, float(found.logits[place]), tuple(parts)))
    return LogExplanation(found.reference, found.permutations, tuple(explained), trained.model.objective)


def _rows_at(log: Log, rows: Sequence[range]) -> tuple[Int64s, Batch]:
    """The places `[n]`, ascending, and the rows there."""
    total = len(log)
    (end,) = log.batches(total - 1, total, 1)
    first, last, most = min(map(min, rows)), max(map(max, rows)), int(log.places(total - 1, end)[0])
    if first < 0 or last > most:
        raise ClickLogError(f"{log.name} has no row {last if last > most else first}: its rows are 0 to {most}")
    wanted = np.unique(np.concatenate([np.arange(part.start, part.stop, part.step) for part in rows]))
    begin, found, parts = max(first - (most - total + 1), 0), [], []  # rows left out before it are that number at most
    for batch in log.batches(begin, min(last + 1, total), EVALUATED):
        places = log.places(begin, batch)
        begin += len(batch)
        chosen = np.flatnonzero(np.isin(places, wanted))
        found.append(places[chosen])
        parts.append(batch[torch.from_numpy(chosen)])
    there = np.concatenate(found)
    if len(absent := np.setdiff1d(wanted, there)):
        raise ClickLogError(f"{log.name}: row {absent[0]} was left out: it is bad or blank")
    return there, concatenated(parts)


def _texts(trained: TrainedModel, log: Log, batch: Batch, last: int) -> dict[int, str]:
    """Key → its text, of the keys of rows up to place `last`, where it is known."""
    keys = np.unique(torch.cat([batch.keys.flatten(), *(bag.keys for bag in batch.bags)]).numpy())
    texts, source = log.values_of(keys, last + 1), trained.vocabulary or trained.names
    unnamed = keys[~np.isin(keys, list(texts))]
    return texts if source is None or not len(unnamed) else texts | names_of(source, unnamed)


def _values_in(row: Batch, log: Log, texts: dict[int, str]) -> list[str | float]:
    """The values of a batch of one row, in the order of `Explanation.columns`."""
    single, bags = iter(row.keys[0].tolist()), dict(zip(log.lists, row.bags, strict=True))
    values: list[str | float] = []
    for name in log.fields:
        keys = bags[name].keys.tolist() if name in bags else [next(single)]
        values.append(", ".join(texts.get(key, f"key {key}") for key in keys))
    return [*values, *row.numbers[0].tolist()]
