"""Synthetic click logs with the shape of real data sets, made in batches, at any size up to the real one.

After t rows a field with n values at full size N has introduced t^(ln n / ln N) of them (Heaps' law, through 1 value at
1 row and n values at N rows), or min(n, 256) if that is more. All other draws are Zipf among the introduced values.
Rows come in blocks of `BLOCK_ROWS`, each from a generator of its own, keyed by (seed, block number).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparsegroup.data.arrow_arrays import arrow_of, numpy_of
from sparsegroup.data.synthetic.log_shapes import DAY, FieldShape, LogShape
from sparsegroup.data.synthetic.truth import check_seed, effects, effects_of_values, keys_of_values, salt_of

BLOCK_ROWS = 1 << 14
"""Rows that share a random generator, and within which a field's new values come in random order."""

_CALIBRATION_BLOCKS = 8
_TABLE_STEPS = 1024

Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]


def synthetic_batches(shape: LogShape, rows: int, seed: int, batch_rows: int = 1 << 16) -> Iterator[pa.RecordBatch]:
    """The first `rows` rows of a synthetic log of that shape, with its whole time span squeezed into them.

    The columns are `label` uint8, `time` int64 in seconds, ascending, one int64 column of keys per field, and one
    float32 column per number, >= 0. The label is Bernoulli(sigmoid(base + `score`)), with the base that gives the
    shape's positive rate. The same shape, rows and seed give the same rows, whatever the `batch_rows`; with other
    `rows` the keys are the same, but for those that are read off the clock.

    Args:
        shape: Shape of the log.
        rows: Rows in all, from 1 to `shape.full_rows`.
        seed: >= 0.
        batch_rows: Rows of a batch; the last may have fewer.

    Returns:
        An iterator that holds about a batch in memory.

    Raises:
        ValueError: `rows`, `seed` or `batch_rows` out of range.

    Example:
        >>> from sparsegroup.data.synthetic.log_shapes import DATASETS
        >>> batch = next(synthetic_batches(DATASETS["avazu"], rows=1000, seed=0))
        >>> batch.num_rows, batch.schema.names[:4]
        (1000, ['label', 'time', 'hour', 'C1'])
    """
    if not 1 <= rows <= shape.full_rows:
        raise ValueError(f"rows must be from 1 to {shape.full_rows:,} ({shape.name} at full size), got {rows:,}")
    if batch_rows < 1:
        raise ValueError(f"batch_rows must be >= 1, got {batch_rows}")
    check_seed(seed)
    return _batches(shape, rows, seed, batch_rows)


def score(shape: LogShape, batch: pa.RecordBatch, seed: int) -> Float32s:
    """The logit of each row without the base: Σ effects of its features + Σ slope · number.

    Args:
        shape: Shape of the log.
        batch: Rows of it.
        seed: The log's.

    Returns:
        `[rows]` float32.

    Raises:
        ValueError: `seed` < 0.
    """
    total = np.zeros(batch.num_rows, dtype=np.float32)
    for field in shape.fields:
        total += effects(numpy_of(batch.column(field.name)), seed)
    for number, slope in zip(shape.numbers, shape.slopes, strict=True):
        total += np.float32(slope) * numpy_of(batch.column(number))
    return total


class _Block(NamedTuple):
    """`BLOCK_ROWS` rows: keys and numbers by column, and what the labels follow from."""

    keys: list[Int64s]
    numbers: list[Float32s]
    score: Float32s
    uniform: Float32s


def _batches(shape: LogShape, rows: int, seed: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
    base = np.float32(_base(shape, rows, seed))
    names = ["label", "time", *(field.name for field in shape.fields), *shape.numbers]
    parts: list[pa.RecordBatch] = []
    held = 0
    for number in range(-(-rows // BLOCK_ROWS)):
        time = _times(shape, number * BLOCK_ROWS, rows)
        block = _block(shape, seed, number, time)
        label = (block.uniform * (1 + np.exp(-base - block.score)) < 1).astype(np.uint8)
        columns = [label, time, *block.keys, *block.numbers]
        part = pa.RecordBatch.from_arrays([arrow_of(column) for column in columns], names=names)
        part = part.slice(0, rows - number * BLOCK_ROWS)
        while held + part.num_rows >= batch_rows:
            yield _joined([*parts, part.slice(0, batch_rows - held)])
            part = part.slice(batch_rows - held)
            parts, held = [], 0
        if part.num_rows:
            parts.append(part)
            held += part.num_rows
    if parts:
        yield _joined(parts)


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return parts[0] if len(parts) == 1 else pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


def _base(shape: LogShape, rows: int, seed: int) -> float:
    """The logit's constant for which a few blocks, spread over the log, have the positive rate on average.

    Each of them is taken to span the whole time, as a few blocks' times of the day would stand for no other's.
    """
    time = _times(shape, 0, BLOCK_ROWS)
    blocks = -(-rows // BLOCK_ROWS)
    sample = sorted({int((part + 0.5) / _CALIBRATION_BLOCKS * blocks) for part in range(_CALIBRATION_BLOCKS)})
    scores = np.concatenate([_block(shape, seed, number, time).score for number in sample]).astype(np.float64)
    low, high = -30.0 - scores.max(), 30.0 - scores.min()
    for _ in range(40):
        middle = (low + high) / 2
        too_many = np.mean(1 / (1 + np.exp(-middle - scores))) > shape.positive_rate
        low, high = (low, middle) if too_many else (middle, high)
    return float(low + high) / 2


def _times(shape: LogShape, first: int, rows: int) -> Int64s:
    """Unix times of the block of rows from `first` on, of `rows` that span the shape's days."""
    return shape.start + np.arange(first, first + BLOCK_ROWS) * (shape.days * DAY) // rows


def _block(shape: LogShape, seed: int, number: int, time: Int64s) -> _Block:
    generator = np.random.Generator(np.random.SFC64(np.random.SeedSequence((seed, number))))
    salt = salt_of(seed)
    keys = []
    total = np.zeros(BLOCK_ROWS, dtype=np.float32)
    for position, field in enumerate(shape.fields):
        if field.seconds:
            values = time // field.seconds % field.cardinality
        else:
            values = _drawn(field, number * BLOCK_ROWS, shape.full_rows, generator)
        column = keys_of_values(values, position)
        total += effects_of_values(column, values, salt)
        keys.append(column)
    numbers = []
    for slope in shape.slopes:
        # About a quarter is 0, as where a count is 0 or missing.
        amounts = generator.standard_exponential(BLOCK_ROWS, dtype=np.float32) * 1.5 - np.float32(0.45)
        np.maximum(amounts, 0, out=amounts)
        total += np.float32(slope) * amounts
        numbers.append(amounts)
    return _Block(keys, numbers, total, generator.random(BLOCK_ROWS, dtype=np.float32))


def _drawn(field: FieldShape, first: int, full_rows: int, generator: np.random.Generator) -> Int64s:
    """Value numbers of the block of rows from `first` on: each new one once in a random row, and Zipf draws."""
    known = field.introduced(first, full_rows)
    total = field.introduced(first + BLOCK_ROWS, full_rows)
    # The inverse of the distribution function, tabulated, and linear between.
    ranks, widths = _zipf_table(total, field.exponent)
    place = generator.random(BLOCK_ROWS) * _TABLE_STEPS
    step = place.astype(np.int64)
    place -= step
    place *= widths.take(step)
    place += ranks.take(step)
    values = place.astype(np.int64)
    if total > known:
        order = _shuffle(generator)
        fresh = np.flatnonzero(order < total - known)
        values[fresh] = order[fresh].astype(np.int64) + known
    return values


def _zipf_table(count: int, exponent: float) -> tuple[Float64s, Float64s]:
    """Quantiles of the density ∝ x^-exponent on [1, count + 1), less 1, at even steps, and their widths."""
    uniform = np.linspace(0, 1, _TABLE_STEPS + 1)
    power = 1 - exponent
    quantiles = (count + 1.0) ** uniform if not power else (1 + uniform * ((count + 1.0) ** power - 1)) ** (1 / power)
    return quantiles[:-1] - 1, np.diff(quantiles)


_ROWS = np.arange(BLOCK_ROWS, dtype=np.uint16)
_ROW_MASK = np.uint16(BLOCK_ROWS - 1)


def _shuffle(generator: np.random.Generator) -> npt.NDArray[np.uint16]:
    """The numbers below BLOCK_ROWS in an order random enough, far faster than a true permutation."""
    factor, offset, second = generator.integers(0, BLOCK_ROWS, 3, dtype=np.uint16)
    order: npt.NDArray[np.uint16] = (_ROWS * (factor | np.uint16(1)) + offset) & _ROW_MASK
    order ^= order >> np.uint16(7)
    order *= second | np.uint16(1)
    order &= _ROW_MASK
    order ^= order >> np.uint16(7)
    return order
