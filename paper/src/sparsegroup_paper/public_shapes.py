"""Made-up click logs with the shape of the public data sets, at any size up to the real one, as prepared logs.

After t rows a field with n values at full size N has introduced t^(ln n / ln N) of them (Heaps' law, through 1 value at
1 row and n values at N rows), or min(n, 256) if that is more. All other draws are Zipf among the introduced values.
Which features have an effect on the label, and how large it is, follows from the key and the seed: see `effects`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from math import exp, log
from pathlib import Path
from statistics import NormalDist
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparsegroup.artifact.folder import new_folder, write_atomically
from sparsegroup.artifact.manifest import facts_of
from sparsegroup.data.batches import LABEL
from sparsegroup.data.keys import VALUE_BITS
from sparsegroup.data.local_files import arrow_of, check_name, parquet_ends, parquet_writer
from sparsegroup.data.prepared_log import PREPARED_LOG, LogManifest, PreparedLog, count_features, spans_of
from sparsegroup.data.schema import LogSchema
from sparsegroup.data.synthetic import (
    BLOCK,
    DAY,
    FACTORS,
    FIELD_OFFSET,
    HALF_SHIFT,
    VALUE_MASK,
    calibrated_base,
    keys_of_values,
    salt_of,
)
from sparsegroup.errors import ClickLogError

_BATCH = 4 * BLOCK
_BATCHES_PER_FILE = 16
_TABLE_STEPS = 1024

_EFFECT = 0.33  # standard deviation of an informative feature's effect on the logit
# Values are numbered in the order in which the log introduces them, so low numbers are frequent: value v is informative
# with chance _HEAD_CHANCE / sqrt(1 + v / _HEAD_VALUES).
_HEAD_CHANCE, _HEAD_VALUES = 0.6, 1000

Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]


@dataclass(frozen=True)
class FieldShape:
    """A categorical field.

    Attributes:
        cardinality: Distinct values at the data set's full size.
        exponent: a of the Zipf law P(rank r) ∝ about r^-a among the values introduced so far.
        seconds: If > 0, the value is not drawn but read off the clock: (time // seconds) mod cardinality.
    """

    name: str
    cardinality: int
    exponent: float = 1.0
    seconds: int = 0

    def introduced(self, rows: int, full_rows: int) -> int:
        """How many values the first `rows` of `full_rows` rows may hold."""
        if not rows:
            return 0
        heaps = exp(log(self.cardinality) * log(rows) / log(full_rows))
        return round(min(self.cardinality, max(heaps, 256)))


@dataclass(frozen=True)
class LogShape:
    """The shape of a data set: its categorical fields in the order of their numbers in the keys, and its numbers.

    `full_rows` and `full_features` are the real one's, the latter as published. The log spans `days` from `start`, Unix
    time in seconds; `positive_rate` of its labels are 1; `slopes` are the numbers' effects on the logit, per unit.
    """

    name: str
    fields: tuple[FieldShape, ...]
    positive_rate: float
    full_rows: int
    full_features: int
    start: int
    days: int
    numbers: tuple[str, ...] = ()
    slopes: tuple[float, ...] = ()


# fmt: off
_CRITEO = LogShape(
    name="criteo",
    fields=tuple(FieldShape(f"C{number}", n) for number, n in enumerate((
        1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
        27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
    ), start=1)),
    positive_rate=0.256,
    full_rows=45_840_617,
    full_features=33_800_000,
    start=1_401_580_800,  # 2014-06-01: Criteo says 7 days, not which
    days=7,
    numbers=tuple(f"I{number}" for number in range(1, 14)),
    slopes=(0.12, 0.0, -0.1, 0.0, 0.08, 0.0, -0.12, 0.0, 0.1, 0.0, -0.08, 0.0, 0.0),
)
_AVAZU = LogShape(
    name="avazu",
    fields=(
        FieldShape("hour", 24, seconds=3600),
        *(FieldShape(name, n) for name, n in (
            ("C1", 7), ("banner_pos", 7), ("site_id", 4737), ("site_domain", 7745), ("site_category", 26),
            ("app_id", 8552), ("app_domain", 559), ("app_category", 36),
        )),
        FieldShape("device_id", 2_686_408, exponent=1.5),  # four in five real rows have the same device
        *(FieldShape(name, n) for name, n in (
            ("device_ip", 6_729_486), ("device_model", 8251), ("device_type", 5), ("device_conn_type", 4),
            ("C14", 2626), ("C15", 8), ("C16", 9), ("C17", 435), ("C18", 4), ("C19", 68), ("C20", 172), ("C21", 60),
        )),
    ),
    positive_rate=0.17,
    full_rows=40_428_967,
    full_features=9_400_000,
    start=1_413_849_600,  # 2014-10-21
    days=10,
)
_IPINYOU = LogShape(
    name="ipinyou",
    # Only the total is published. How IP, domain and slotid share it is a guess.
    fields=(
        FieldShape("weekday", 7, seconds=DAY), FieldShape("hour", 24, seconds=3600), FieldShape("IP", 820_000),
        FieldShape("region", 35, 0.4), FieldShape("city", 370, 0.4), FieldShape("adexchange", 5, 0.4),
        FieldShape("domain", 52_000), FieldShape("slotid", 160_300),
        *(FieldShape(name, n, 0.4) for name, n in (
            ("slotwidth", 21), ("slotheight", 14), ("slotvisibility", 11), ("slotformat", 4), ("creative", 155),
            ("advertiser", 9), ("useragent", 40), ("slotprice", 5),
        )),
    ),
    positive_rate=0.00075,
    full_rows=19_495_974,
    full_features=1_033_000,
    start=1_370_476_800,  # 2013-06-06
    days=10,
)
# fmt: on

DATASETS: Mapping[str, LogShape] = MappingProxyType({shape.name: shape for shape in (_CRITEO, _AVAZU, _IPINYOU)})
"""Name → shape of the real data sets."""


def synthesize(
    shape: LogShape, rows: int, folder: Path, seed: int = 0, on_progress: Callable[[int], None] | None = None
) -> PreparedLog:
    """Write a synthetic log of `rows` rows; the last seventh (Criteo) or tenth is the test set.

    The folder is empty, or a new one (else ClickLogError); `rows` are from 1 to `shape.full_rows` (else ValueError).
    `on_progress` is called with the rows written so far.
    """
    check_name(folder)
    batches = synthetic_batches(shape, rows, seed)  # arguments out of range leave no folder
    with new_folder(folder):
        if any(folder.iterdir()):
            raise ClickLogError(f"{folder}: is not empty")
        try:
            files, positives = _write(batches, folder, on_progress or (lambda rows: None))
            fields = tuple(field.name for field in shape.fields)
            train_rows = rows * 6 // 7 if shape.name == "criteo" else rows - rows // 10
            everything, training = (
                count_features(folder, files, LogSchema(fields, (), ()), n) for n in (rows, train_rows)
            )
            manifest = LogManifest(
                dataset=f"synthetic-{shape.name}",
                fields=fields,
                numbers=tuple(shape.numbers),
                lists=(),
                rows=rows,
                train_rows=train_rows,
                positives=positives,
                parts=files,
                spans={name: spans_of(folder / name, parquet_ends(folder / name)) for name in files},
                files={name: facts_of(folder / name) for name in files},
                features={name: (everything[name], training[name]) for name in fields},
                hash="none",
                source={"synthetic": shape.name, "rows": rows, "seed": seed},
            )
            PREPARED_LOG.write(folder, manifest)
        except BaseException:
            for part in folder.iterdir():
                part.unlink()
            raise
    return PreparedLog(folder)


def _write(
    batches: Iterator[pa.RecordBatch], folder: Path, on_progress: Callable[[int], None]
) -> tuple[dict[str, int], int]:
    """Write the files of a log, and tell the rows of each by name, and the positive rows in all."""
    files: dict[str, int] = {}
    positives = 0

    def write_part(path: Path) -> None:
        with parquet_writer(path, group[0].schema, compression="lz4") as writer:
            for batch in group:
                writer.write_batch(batch)

    while group := list(islice(batches, _BATCHES_PER_FILE)):
        name = f"part-{len(files):05}.parquet"
        write_atomically(folder / name, write_part)
        files[name] = sum(batch.num_rows for batch in group)
        positives += sum(int(np.from_dlpack(batch.column(LABEL)).sum()) for batch in group)
        on_progress(sum(files.values()))
    return files, positives


def synthetic_batches(shape: LogShape, rows: int, seed: int) -> Iterator[pa.RecordBatch]:
    """The first `rows` rows of a synthetic log of that shape, with its whole time span squeezed into them.

    The columns are `label` uint8, `time` int64 in seconds, ascending, one int64 column of keys per field, and one
    float32 column per number, >= 0. The label is Bernoulli(sigmoid(base + Σ effects of the features + Σ slope ·
    number)), with the base that gives the shape's positive rate. With other `rows` the keys are the same, except those
    that are read off the clock. Batches have 65,536 rows, the last one fewer; about one is in memory.

    Raises:
        ValueError: `rows` or `seed` out of range.

    Example:
        >>> batch = next(synthetic_batches(DATASETS["avazu"], rows=1000, seed=0))
        >>> batch.num_rows, batch.schema.names[:4]
        (1000, ['label', 'time', 'hour', 'C1'])
    """
    if not 1 <= rows <= shape.full_rows:
        raise ValueError(f"rows must be from 1 to {shape.full_rows:,} ({shape.name} at full size), got {rows:,}")
    return _batches(shape, rows, seed, salt_of(seed))


def _batches(shape: LogShape, rows: int, seed: int, salt: np.uint64) -> Iterator[pa.RecordBatch]:
    def times(first: int, rows: int) -> Int64s:
        """Unix times of the block of rows from `first`, of `rows` that span the shape's days."""
        return shape.start + np.arange(first, first + BLOCK) * (shape.days * DAY) // rows

    # Each block that calibrates spans the whole time: a few blocks' times of the day represent no others.
    whole = times(0, BLOCK)
    base = calibrated_base(rows, shape.positive_rate, lambda number: _block(shape, seed, salt, number, whole)[1])
    names = ["label", "time", *(field.name for field in shape.fields), *shape.numbers]
    for first in range(0, rows, _BATCH):
        parts = []
        for start in range(first, min(first + _BATCH, rows), BLOCK):
            time = times(start, rows)
            columns, score, uniform = _block(shape, seed, salt, start // BLOCK, time)
            label = (uniform * (1 + np.exp(-np.float32(base) - score)) < 1).astype(np.uint8)
            part = pa.RecordBatch.from_arrays([arrow_of(column) for column in (label, time, *columns)], names=names)
            parts.append(part.slice(0, rows - start))
        yield pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


def _block(
    shape: LogShape, seed: int, salt: np.uint64, number: int, time: Int64s
) -> tuple[list[Int64s | Float32s], Float32s, Float32s]:
    """A block of rows: columns of keys and numbers, the logit without its base, and what the labels are drawn with."""
    generator = np.random.Generator(np.random.SFC64(np.random.SeedSequence((seed, number))))
    columns: list[Int64s | Float32s] = []
    total = np.zeros(BLOCK, dtype=np.float32)
    for position, field in enumerate(shape.fields):
        if field.seconds:
            values = time // field.seconds % field.cardinality
        else:
            values = _draw(field, number * BLOCK, shape.full_rows, generator)
        keys = keys_of_values(values, position)
        total += _effects(keys, values, salt)
        columns.append(keys)
    for slope in shape.slopes:
        # About a quarter is 0, as if a count were 0 or missing.
        amounts = generator.standard_exponential(BLOCK, dtype=np.float32) * 1.5 - np.float32(0.45)
        np.maximum(amounts, 0, out=amounts)
        total += np.float32(slope) * amounts
        columns.append(amounts)
    return columns, total, generator.random(BLOCK, dtype=np.float32)


def _draw(field: FieldShape, first: int, full_rows: int, generator: np.random.Generator) -> Int64s:
    """Value numbers of the block of rows from `first`: each new one once in a random row, and Zipf draws."""
    known = field.introduced(first, full_rows)
    total = field.introduced(first + BLOCK, full_rows)
    # The inverse of the distribution function of the density ∝ x^-exponent on [1, total + 1), less 1: tabulated at even
    # steps, and linear between.
    uniform, power = np.linspace(0, 1, _TABLE_STEPS + 1), 1 - field.exponent
    ends = (total + 1.0) ** uniform if not power else (1 + uniform * ((total + 1.0) ** power - 1)) ** (1 / power)
    ranks, widths = ends[:-1] - 1, np.diff(ends)
    place = generator.random(BLOCK) * _TABLE_STEPS
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


def _shuffle(generator: np.random.Generator) -> npt.NDArray[np.uint16]:
    """The numbers below BLOCK in an order random enough, far faster than a true permutation."""
    mask = np.uint16(BLOCK - 1)
    factor, offset, second = generator.integers(0, BLOCK, 3, dtype=np.uint16)
    order: npt.NDArray[np.uint16] = (np.arange(BLOCK, dtype=np.uint16) * (factor | np.uint16(1)) + offset) & mask
    order ^= order >> np.uint16(7)
    order *= second | np.uint16(1)
    order &= mask
    order ^= order >> np.uint16(7)
    return order


def effects(keys: Int64s, seed: int) -> Float32s:
    """The features' effects on the logit in the log of a seed, `[n]`: N(0, .33²) for informative ones, else 0."""
    salt, keys = salt_of(seed), np.asarray(keys, dtype=np.int64)
    values = keys.view(np.uint64) & VALUE_MASK  # from here the inverse of `keys_of_values`
    for factor in reversed(FACTORS):
        values ^= values >> HALF_SHIFT
        values *= np.uint64(pow(factor, -1, 1 << VALUE_BITS))
        values &= VALUE_MASK
    values -= ((keys.view(np.uint64) >> np.uint64(VALUE_BITS)) + np.uint64(1)) * np.uint64(FIELD_OFFSET)
    values &= VALUE_MASK
    return _effects(keys, values.view(np.int64), salt)


@cache
def _normal_quantiles() -> Float32s:
    count = 1 << 14
    inverse = NormalDist(sigma=_EFFECT).inv_cdf
    return np.array([inverse((step + 0.5) / count) for step in range(count)], dtype=np.float32)


def _effects(keys: Int64s, values: Int64s, salt: np.uint64) -> Float32s:
    """`effects` of keys whose value numbers are known."""
    bits = keys.view(np.uint64) ^ salt
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(32)
    bits *= np.uint64(0x94D049BB133111EB)
    # The high 32 bits decide whether there is an effect, 14 bits mixed from both halves how large it is.
    # u 2^32 for a uniform u; u < _HEAD_CHANCE / sqrt(1 + v / _HEAD_VALUES), without its root and quotient.
    chance = (bits >> np.uint64(32)).astype(np.float64)
    chance *= chance
    chance *= values + float(_HEAD_VALUES)
    informative = chance < _HEAD_CHANCE**2 * _HEAD_VALUES * 2.0**64
    quantiles = _normal_quantiles()
    bits >>= np.uint64(18)
    bits &= np.uint64(len(quantiles) - 1)
    effect: Float32s = quantiles.take(bits.view(np.int64))
    effect *= informative
    return effect
