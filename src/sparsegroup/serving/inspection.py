"""A look into a trained model: its sizes, its largest features and the effect of λ."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup import prox
from sparsegroup.artifact.validation import finite
from sparsegroup.data.keys import fields_of
from sparsegroup.data.local_files import names_of
from sparsegroup.kernels.rounding import array_was_updated
from sparsegroup.kernels.step import Regularizer
from sparsegroup.optim.step import VANISHING_LR
from sparsegroup.penalties import PracticalNorm
from sparsegroup.reporting.formatting import target_words
from sparsegroup.reporting.run_record import ColumnFigures, Interaction, LargestFeature, Segment, field_rows
from sparsegroup.rules import Rule, bind
from sparsegroup.serving.opening import SCANNED, Kind, RowSource, TrainedModel
from sparsegroup.table import FieldCount, FieldTables
from sparsegroup.table.rows.rows import WEIGHT
from sparsegroup.table.table import TableMemory
from sparsegroup.training.assessment.features import Largest
from sparsegroup.training.run_folder import RunFolder

Float64s = npt.NDArray[np.float64]
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
NEAR = 0.1
"""Rows whose measure differs from 1 by at most this are near the threshold."""
_soft_threshold = bind(prox.soft_threshold, np)


def quantiles_of(values: Float64s) -> dict[float, float]:
    """Share of the values → the smallest value that this share is at most; NaN if there are none."""
    if not len(values):
        return dict.fromkeys(QUANTILES, math.nan)
    return dict(zip(QUANTILES, np.quantile(values, QUANTILES, method="inverted_cdf").tolist(), strict=True))


@dataclass(frozen=True)
class Histogram:
    """Counts between edges: `counts[i]` values from `edges[i]` to `edges[i + 1]`."""

    edges: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()

    @classmethod
    def of(cls, values: Float64s, edges: Float64s) -> "Histogram":
        """Counts of values, of which those outside are in the first or last bin."""
        counts, _ = np.histogram(values.clip(edges[0], edges[-1]), edges)
        return cls(tuple(edges.tolist()), tuple(counts.tolist()))

    @classmethod
    def logarithmic(cls, values: Float64s, most: int = 24) -> "Histogram":
        """Counts of positive values in at most `most` bins, or one a decade; powers of 10 are edges."""
        if not len(values):
            return cls()
        low, high = np.log10([values.min(), values.max()]).clip(-46, 39)  # the range of float32
        for per_decade in (20, 10, 5, 4, 2, 1):
            first, last = math.floor(low * per_decade), math.floor(high * per_decade) + 1
            if last - first <= most:
                break
        return cls.of(values, 10.0 ** (np.arange(first, last + 1) / per_decade))


@dataclass(frozen=True)
class Threshold:
    """What decides whether a row is zero: it is, if its measure is at most 1.

    With z = u - σ x and s = -sign(z) max(|z| - λ1, 0), the measure is ‖s‖ / (√d λ21), or max |z| / λ1 if λ21 = 0.
    A zero row's z is u, which needs no σ. σ is that of the next step if its gradient is zero; for a rule that does not
    decay its moments, that of the row's last update.
    """

    regularizer: Regularizer
    rule: Rule
    scalars: tuple[float, ...] | None  # of the rule's next step; None if σ is not known

    @classmethod
    def of(cls, rule: Rule, hyperparameters: Mapping[str, Any], steps: int | None) -> "Threshold | None":
        """None if there is no threshold, or its measure needs a σ that is not stored."""
        regularizer, lr = Regularizer.of(hyperparameters), float(hyperparameters["lr"])
        if not (regularizer.l1 > 0 if regularizer.l21 == 0 else isinstance(regularizer.norm, PracticalNorm)):
            return None
        is_known = lr >= VANISHING_LR and (steps is not None or not rule.counts_steps)
        return cls(regularizer, rule, rule.host_scalars(hyperparameters, (steps or 0) + 1, lr) if is_known else None)

    @property
    def measure(self) -> str:
        """In the paper's letters."""
        return "‖s‖ / (√d λ21)" if self.regularizer.l21 > 0 else "max |z| / λ1"

    def sigma(self, state: Sequence[Float64s], shape: tuple[int, ...]) -> Float64s:
        """σ of rows `[n, dim]` with this state, in the order of the rule's."""
        assert self.scalars is not None
        gradients = [np.zeros(shape)] * (2 if self.rule.has_second_input else 1)
        _, sigma, *_ = bind(self.rule.update, np)(*gradients, *state, *self.scalars)
        return np.broadcast_to(np.asarray(sigma, np.float64), shape)

    def measured(self, z: Float64s) -> Float64s:
        """The measure `[n]` of rows with `z` `[n, dim]`."""
        l1, l21 = self.regularizer.l1, self.regularizer.l21
        if l21 == 0:
            largest: Float64s = np.abs(z).max(axis=1) / l1
            return largest
        norms: Float64s = np.sqrt(np.square(_soft_threshold(z, l1, 0.0)).sum(axis=1))
        return norms / (math.sqrt(z.shape[1]) * l21)

    def kept(self, measure: float) -> float:
        """k, the factor in [0, 1] that a live row of this measure is shrunk by; 0 if λ has grown since."""
        if self.regularizer.l21 == 0 or math.isnan(measure):
            return math.nan
        if measure <= 1:
            return 0.0
        penalty = self.regularizer.penalty
        return 1 - float(bind(penalty.shrinkage, np)(measure, 1.0, 0.0, 1.0, *penalty.scalars()))


@dataclass(frozen=True)
class RowStatistics:
    """The result of a pass over the rows."""

    largest: Largest
    zero_rows: int
    zero_elements: int  # of live rows
    live_elements: int
    norms: Float64s  # ‖x‖ of the live rows
    zero: Float64s  # the threshold's measure of zero rows, ≤ 1 unless λ has changed since
    live: Float64s  # the measure of live rows, > 1 unless λ or σ has changed since


def read_rows(tables: Iterable[RowSource], top: int, threshold: Threshold | None) -> RowStatistics:
    """Go over all rows once. Rows that were never updated, such as one set by hand, have no measure."""
    largest, zero_rows, zero_elements, live_elements = Largest(top), 0, 0, 0
    norms, zero, live = [], [], []
    for table in tables:
        against = threshold if "u" in table.state_names else None
        has_sigma = against is not None and against.scalars is not None
        has_sigma = has_sigma and set(against.rule.state) <= set(table.state_names)  # type: ignore[union-attr]
        parts = [WEIGHT] if against is None else [WEIGHT, "u", *(against.rule.state if has_sigma else ())]
        for keys, (weights, *others) in table.scan_rows(parts, SCANNED):
            x, is_live = weights.astype(np.float64), (weights != 0).any(axis=1)
            zero_rows += int((~is_live).sum())
            zero_elements += int((x[is_live] == 0).sum())
            live_elements += x[is_live].size
            norms.append(np.sqrt(np.square(x[is_live]).sum(axis=1)))
            largest.add(keys[is_live], norms[-1])
            if against is None:
                continue
            updated = array_was_updated(others[0]).any(axis=1)
            u, *state = (part.astype(np.float64) for part in others)
            zero.append(against.measured(u[~is_live & updated]))
            if has_sigma:
                at = is_live & updated
                sigma = against.sigma([part[at] for part in state], x[at].shape)
                live.append(against.measured(u[at] - sigma * x[at]))
    joined = (np.concatenate([np.empty(0), *parts]) for parts in (norms, zero, live))
    return RowStatistics(largest, zero_rows, zero_elements, live_elements, *joined)


@dataclass(frozen=True)
class OptimizerSummary:
    """What the model was trained with; the penalties are the embeddings'."""

    name: str
    lr: float
    l1: float
    l21: float | None  # in force; None of an export whose target has set it, which does not record it
    l2: float
    norm: str
    penalty: str
    target: str | None = None  # the requested size, such as "target rate 0.1"; None if λ21 was constant

    @property
    def zeroes(self) -> bool:
        """Whether some λ makes rows or elements exactly zero."""
        return self.l1 > 0 or self.l21 is None or self.l21 > 0


@dataclass(frozen=True)
class Sizes:
    """Bytes in memory, of the vectors of the live rows and of all features seen, and by file or folder."""

    table: TableMemory
    network: int
    network_parameters: int
    live_vectors: int
    dense_table: int
    files: Mapping[str, int]


@dataclass(frozen=True)
class Distances:
    """How far rows are from the threshold."""

    rows: int  # that could be measured
    quantiles: Mapping[float, float]  # share of the rows → measure
    near: int  # rows whose measure is within 10 % of the threshold, 1
    histogram: Histogram  # of the measure; of live rows, of 1 / measure

    @classmethod
    def of(cls, measures: Float64s, *, live: bool) -> "Distances | None":
        """The distances of zero or live rows; None if none could be measured."""
        if not len(measures):
            return None
        near = measures <= 1 + NEAR if live else (measures >= 1 - NEAR) & (measures <= 1)
        with np.errstate(divide="ignore"):
            histogram = Histogram.of(1 / measures if live else measures, np.linspace(0, 1, 21))
        return cls(len(measures), quantiles_of(measures), int(near.sum()), histogram)


@dataclass(frozen=True)
class RegularizationEffect:
    """What λ did to the rows of the table; None where it is not known."""

    zero_rows: int
    zero_elements: int  # elements of live rows that are exactly zero
    live_elements: int  # all elements of live rows
    measure: str | None  # a row is zero while this is at most 1
    zero: Distances | None  # how far zero rows are from becoming live again
    live: Distances | None  # how far live rows are from being zeroed, if their next step has no gradient
    kept: Mapping[float, float] | None  # share of the live rows → k, the factor that they are shrunk by

    @classmethod
    def of(cls, rows: RowStatistics, threshold: Threshold | None) -> "RegularizationEffect":
        """The effect on some rows."""
        zero, live, kept = Distances.of(rows.zero, live=False), Distances.of(rows.live, live=True), None
        if live is not None and threshold is not None and threshold.regularizer.l21 > 0:
            kept = {share: threshold.kept(measure) for share, measure in live.quantiles.items()}
        measure = None if threshold is None or (zero is None and live is None) else threshold.measure
        return cls(rows.zero_rows, rows.zero_elements, rows.live_elements, measure, zero, live, kept)


@dataclass(frozen=True)
class Inspection:
    """The content of `inspect`."""

    path: str
    kind: Kind
    model: str
    dim: int
    dims: Mapping[str, int]  # field → length of its vectors, of fields that have another than `dim`
    samples: int | None  # trained on; None if that is not recorded
    optimizer: OptimizerSummary
    sizes: Sizes
    features_seen: int
    live_rows: int
    fields: Mapping[str, FieldCount]
    norms: Histogram  # ‖x‖ of the live rows, in logarithmic bins
    norm_quantiles: Mapping[float, float]  # share of the live rows → ‖x‖
    top: tuple[LargestFeature, ...]  # the features of the largest ‖x‖
    regularized: RegularizationEffect
    columns: tuple[ColumnFigures, ...] = ()  # of the first test rows of a run, see `Summary`
    interactions: tuple[Interaction, ...] = ()  # of these
    segments: tuple[Segment, ...] = ()  # values for which the model is surely wrong there

    @property
    def total(self) -> FieldCount:
        """All fields together."""
        return field_rows(self.fields)[0].count

    def as_plain(self) -> dict[str, Any]:
        """All of it for JSON; numbers that are not finite are None."""
        rate = self.live_rows / self.features_seen if self.features_seen else None
        content: dict[str, Any] = finite({"feature_rate": rate, **asdict(self)})
        return content


def inspect(trained: TrainedModel, top: int = 10) -> Inspection:
    """Look into a trained model, reading its rows twice; takes up to 16 bytes for each.

    Args:
        trained: The model; not changed.
        top: How many of the features with the largest ‖x‖ to list.

    Raises:
        ValueError: `top` is negative.
        RunError: Rows are not finite.
    """
    if top < 0:
        raise ValueError(f"top must be >= 0, got {top}")
    trained.check_rows(state=True)
    settings, options, tables = trained.config.optimizer, trained.config.model, trained.rows.values()
    l21 = trained.l21 if settings.has_target else settings.l21
    in_force = {**settings.arguments, "l21": l21 or 0.0}
    threshold = Threshold.of(settings.rule, in_force, trained.steps)
    found = read_rows(tables, top, threshold)
    fields, embedding = trained.field_counts(), trained.model.embedding
    names = options.features(trained.columns)
    bytes_of = {name: 4 * options.dims.get(name, options.vector_dim) for name in names}
    up = embedding.up.parameters() if isinstance(embedding, FieldTables) else ()
    network = [*trained.model.network.parameters(), *up]
    largest, source = found.largest, trained.vocabulary or trained.names
    values = names_of(source, largest.keys) if source is not None and len(largest.keys) else {}
    run = RunFolder(trained.path)
    summary = run.summary() if trained.kind == "run" and not run.follows_a_stream else None
    return Inspection(
        path=str(trained.path),
        kind=trained.kind,
        model=options.name,
        dim=options.vector_dim,
        dims={name: dim for name, dim in options.dims.items() if dim != options.vector_dim},
        samples=trained.samples,
        optimizer=OptimizerSummary(
            settings.name,
            float(in_force["lr"]),
            settings.l1,
            l21,
            settings.l2,
            settings.norm,
            str(settings.penalty),
            target_words(settings.target_rate, settings.target_bytes),
        ),
        sizes=Sizes(
            TableMemory.total_of(table.memory() for table in tables),
            sum(parameter.nbytes for parameter in network),
            sum(parameter.numel() for parameter in network),
            sum(counts.live * bytes_of[name] for name, counts in fields.items()),
            sum(counts.seen * bytes_of[name] for name, counts in fields.items()),
            _files(trained.path),
        ),
        features_seen=sum(counts.seen for counts in fields.values()),
        live_rows=len(found.norms),
        fields=fields,
        norms=Histogram.logarithmic(found.norms),
        norm_quantiles=quantiles_of(found.norms),
        top=tuple(
            LargestFeature(names[field], key, values.get(key), norm)
            for field, key, norm in zip(
                fields_of(largest.keys), largest.keys.tolist(), largest.values.tolist(), strict=True
            )
        ),
        regularized=RegularizationEffect.of(found, threshold),
        columns=() if summary is None else summary.columns,
        interactions=() if summary is None else summary.interactions,
        segments=() if summary is None else summary.segments,
    )


def _files(path: Path) -> dict[str, int]:
    """Bytes of each file and folder of a model's folder, except hidden ones, which are being written."""
    sizes = {}
    for entry in sorted(path.iterdir()):
        if not entry.name.startswith("."):
            inside = [entry] if entry.is_file() else [file for file in entry.rglob("*") if file.is_file()]
            sizes[entry.name + ("/" if entry.is_dir() else "")] = sum(file.stat().st_size for file in inside)
    return sizes
