"""What a trained model is made of: its sizes, which features it kept, and what λ did."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
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
from sparsegroup.reporting.run_record import LargestFeature
from sparsegroup.rules import Rule, bind
from sparsegroup.serving.frozen import FrozenTable
from sparsegroup.serving.opening import Kind, RowSource, TrainedModel, check_rows
from sparsegroup.table import FieldCount, FieldTables
from sparsegroup.table.rows.rows import WEIGHT
from sparsegroup.table.table import Table, TableMemory
from sparsegroup.training.largest_features import Largest

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]


_DECADES = (-46, 39)
"""Powers of 10 around what float32 holds above 0."""
_PER_DECADE = 20


@dataclass(frozen=True)
class Histogram:
    """Counts between edges: `counts[i]` values from `edges[i]` to `edges[i + 1]`."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


class Bins:
    """Counts values; those outside the edges are in the first or last bin.

    Args:
        edges: `[bins + 1]`, ascending.
    """

    def __init__(self, edges: npt.NDArray[Any]) -> None:
        self.edges: Float64s = edges.astype(np.float64)
        self.counts = np.zeros(len(edges) - 1, np.int64)
        self.low, self.high = math.inf, -math.inf

    @property
    def total(self) -> int:
        """Values so far."""
        return int(self.counts.sum())

    def add(self, values: Float64s) -> None:
        """Count `values` `[n]`."""
        if not len(values):
            return
        at = np.searchsorted(self.edges, values, side="right") - 1
        self.counts += np.bincount(np.clip(at, 0, len(self.counts) - 1), minlength=len(self.counts))
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))

    def quantile(self, share: float) -> float:
        """A value that `share` of the values are at most, to within the width of its bin; NaN if there are none."""
        if not self.total:
            return math.nan
        rank = share * self.total
        before = np.concatenate([[0], np.cumsum(self.counts)])
        at = int(np.clip(np.searchsorted(before, rank, side="left") - 1, 0, len(self.counts) - 1))
        if not self.counts[at]:  # share 0, and nothing in the first bins
            return self.low
        inside = (rank - before[at]) / self.counts[at]
        value = float(self.edges[at] + inside * (self.edges[at + 1] - self.edges[at]))
        return min(max(value, self.low), self.high)

    def joined(self, group: int) -> Histogram:
        """Each `group` bins as one, which must divide their number."""
        counts = self.counts.reshape(-1, group).sum(axis=1)
        return Histogram(tuple(map(float, self.edges[::group])), tuple(map(int, counts)))


def shares() -> Bins:
    """A thousand bins from 0 to 1."""
    return Bins(np.linspace(0, 1, 1001))


def magnitudes() -> Bins:
    """Logarithmic ones, for all that float32 holds above 0."""
    first, last = _DECADES
    return Bins(10.0 ** (np.arange((last - first) * _PER_DECADE + 1) / _PER_DECADE + first))


def as_shown(bins: Bins, most: int = 24) -> Histogram:
    """The part of `magnitudes` that holds something, in at most `most` bins; each power of 10 in it is an edge.

    Only where that is more than `most` decades, there are more.
    """
    filled = np.flatnonzero(bins.counts)
    if not len(filled):
        return Histogram((), ())
    for group in (1, 2, 4, 5, 10, 20):
        first, last = int(filled[0]) // group, int(filled[-1]) // group + 1
        if last - first <= most:
            break
    whole = bins.joined(group)
    return Histogram(whole.edges[first : last + 1], whole.counts[first:last])


_soft_threshold = bind(prox.soft_threshold, np)


@dataclass(frozen=True)
class Sigma:
    """σ of rows, as a step without a gradient would find it: the optimizer's next, its moments as they are stored.

    For a rule that does not decay its moments, σ is that of the row's last update.

    Attributes:
        rule: The base optimizer.
        scalars: The scalars of its next step.
    """

    rule: Rule
    scalars: tuple[float, ...]

    def __call__(self, state: Sequence[Float64s], shape: tuple[int, ...]) -> Float64s:
        """σ of rows `[n, dim]` whose state is `state`, in the order of the rule's."""
        nothing = np.zeros(shape)
        gradients = [nothing, nothing] if self.rule.has_second_input else [nothing]
        _, sigma, *_ = bind(self.rule.update, np)(*gradients, *state, *self.scalars)
        return np.broadcast_to(np.asarray(sigma, np.float64), shape)


def sigma_of(rule: Rule, hyperparameters: Mapping[str, Any], steps: int | None) -> Sigma | None:
    """σ of a table's rows after so many steps of its optimizer; None where it cannot be told.

    Args:
        rule: The base optimizer.
        hyperparameters: The values in the table's param group.
        steps: None if they are not known, which matters to rules that count them.
    """
    lr = float(hyperparameters["lr"])
    if lr < VANISHING_LR or (steps is None and rule.counts_steps):
        return None
    return Sigma(rule, rule.host_scalars(hyperparameters, (steps or 0) + 1, lr))


@dataclass(frozen=True)
class Threshold:
    """What decides whether a row is zero: it is, where its measure is at most 1.

    With z = u - σ x and s = -sign(z) max(|z| - λ1, 0), the measure is ‖s‖ / (√d λ21), or max |z| / λ1 where λ21 = 0.
    A zero row's z is u, which needs no σ.

    Attributes:
        regularizer: The table's regularizer; λ1 or λ21 is positive, the norm "s" unless λ21 = 0.
        sigma: σ of rows that are not zero, or None.
    """

    regularizer: Regularizer
    sigma: Sigma | None

    @classmethod
    def of(cls, regularizer: Regularizer, sigma: Sigma | None) -> "Threshold | None":
        """None where the measure would need a σ that is not kept, or there is no threshold."""
        has_one = regularizer.l1 > 0 if regularizer.l21 == 0 else isinstance(regularizer.norm, PracticalNorm)
        return cls(regularizer, sigma) if has_one else None

    @property
    def measure(self) -> str:
        """In the paper's letters."""
        return "‖s‖ / (√d λ21)" if self.regularizer.l21 > 0 else "max |z| / λ1"

    def measured(self, z: Float64s) -> Float64s:
        """The measure `[n]` of rows with `z` `[n, dim]`."""
        l1, l21 = self.regularizer.l1, self.regularizer.l21
        if l21 == 0:
            largest: Float64s = np.abs(z).max(axis=1) / l1
            return largest
        norms: Float64s = np.sqrt(np.square(_soft_threshold(z, l1, 0.0)).sum(axis=1))
        return norms / (math.sqrt(z.shape[1]) * l21)

    def kept(self, measure: float) -> float:
        """k, the factor in [0, 1] that a live row of this measure is shrunk by; 0 where λ has grown since."""
        if self.regularizer.l21 == 0 or math.isnan(measure):
            return math.nan
        if measure <= 1:
            return 0.0
        penalty = self.regularizer.penalty
        return 1 - float(bind(penalty.shrinkage, np)(measure, 1.0, 0.0, 1.0, *penalty.scalars()))


def ever_updated(u: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which rows `[n]` a step has been taken on, told from u `[n, dim]`: those never updated have +0 throughout."""
    return np.asarray(array_was_updated(u).any(axis=1))


NEAR = 0.1
"""Rows whose measure is so close to 1 are near the threshold."""

_BATCH = 1 << 16


@dataclass
class RowStatistics:
    """What a pass over the rows has found.

    Attributes:
        live: Rows that are not zero.
        zero: Rows that are.
        zero_elements: Elements of live rows that are zero.
        live_elements: Elements of live rows.
        norms: ‖x‖ of the live rows.
        largest: The live rows of the largest ‖x‖.
        measured_zero: The threshold's measure of zero rows, ≤ 1 but where λ has changed since.
        measured_live: 1 / measure of live rows, < 1 but where λ or σ has changed since.
        near_zero: Zero rows whose measure is in [0.9, 1].
        near_live: Live rows whose measure is at most 1.1.
    """

    largest: Largest
    live: int = 0
    zero: int = 0
    zero_elements: int = 0
    live_elements: int = 0
    norms: Bins = field(default_factory=magnitudes)
    measured_zero: Bins = field(default_factory=shares)
    measured_live: Bins = field(default_factory=shares)
    near_zero: int = 0
    near_live: int = 0


def read_rows(tables: Iterable[RowSource], top: int, threshold: Threshold | None) -> RowStatistics:
    """Go over all rows of some tables once.

    Rows that were never updated, such as one that was set by hand, have no measure.

    Args:
        tables: Not changed.
        top: How many of the largest rows to keep.
        threshold: To measure by; a table without u is not measured.
    """
    seen = RowStatistics(Largest(top))
    for table in tables:
        _read_table(table, threshold, seen)
    return seen


def _read_table(table: RowSource, threshold: Threshold | None, seen: RowStatistics) -> None:
    if "u" not in table.state_names:
        threshold = None
    sigma = None if threshold is None else threshold.sigma
    if sigma is not None and not set(sigma.rule.state) <= set(table.state_names):
        sigma = None
    parts = [WEIGHT, *(["u"] if threshold else []), *(sigma.rule.state if sigma else [])]
    for keys, (weights, *others) in table.scan_rows(parts, _BATCH):
        x = weights.astype(np.float64)
        live = (weights != 0).any(axis=1)
        seen.live += int(live.sum())
        seen.zero += int((~live).sum())
        seen.zero_elements += int((weights[live] == 0).sum())
        seen.live_elements += weights[live].size
        norms = np.sqrt(np.square(x[live]).sum(axis=1))
        seen.norms.add(norms)
        seen.largest.add(keys[live], norms)
        if threshold is None:
            continue
        updated = ever_updated(others[0])
        u, *state = (part.astype(np.float64) for part in others)
        at = ~live & updated
        measures = threshold.measured(u[at])
        seen.measured_zero.add(measures)
        seen.near_zero += int(((measures >= 1 - NEAR) & (measures <= 1)).sum())
        if sigma is not None:
            at = live & updated
            scale = sigma([part[at] for part in state], x[at].shape)
            measures = threshold.measured(u[at] - scale * x[at])
            with np.errstate(divide="ignore"):
                seen.measured_live.add(1 / measures)
            seen.near_live += int((measures <= 1 + NEAR).sum())


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class OptimizerSummary:
    """What the model was trained with; the penalties hold for the embeddings.

    Attributes:
        l21: λ21 in force; None of an export whose target has set it, which does not record it.
        target: The size that was requested, such as "target rate 0.1"; None if λ21 was constant.
    """

    name: str
    lr: float
    l1: float
    l21: float | None
    l2: float
    norm: str
    penalty: str
    target: str | None = None

    @property
    def zeroes(self) -> bool:
        """Whether some λ makes rows or elements exactly zero."""
        return self.l1 > 0 or self.l21 is None or self.l21 > 0


@dataclass(frozen=True)
class Sizes:
    """Bytes.

    Attributes:
        table: Bytes of the table in memory.
        network: Bytes of the network's parameters, with what makes vectors of several sizes one.
        network_parameters: So many numbers.
        live_vectors: Bytes of the vectors of live rows alone.
        dense_table: Bytes of a table with a vector for each feature seen.
        files: Name of each file or folder beside the model → its size.
    """

    table: TableMemory
    network: int
    network_parameters: int
    live_vectors: int
    dense_table: int
    files: Mapping[str, int]


@dataclass(frozen=True)
class Distances:
    """How far rows are from the threshold.

    Attributes:
        rows: That could be measured.
        quantiles: Share of the rows → measure, to within 0.001 (of live rows: of 1 / measure).
        near: Rows whose measure is within 10 % of the threshold, 1.
        histogram: How often the measure has which value; for live rows, 1 / measure.
    """

    rows: int
    quantiles: Mapping[float, float]
    near: int
    histogram: Histogram


@dataclass(frozen=True)
class RegularizationEffect:
    """What λ did to the rows that the table has.

    Attributes:
        zero_rows: Rows that are exactly zero.
        zero_elements: Elements of live rows that are exactly zero.
        live_elements: Elements of live rows.
        measure: What is compared with 1: in a row of more, something is left.
        zero: How far zero rows are from coming back; None where it is not known.
        live: How far live rows are from being zeroed, if their next step has no gradient; None where it is not known.
        kept: Share of the live rows → k, the factor that they are shrunk by; None where it is not known.
    """

    zero_rows: int
    zero_elements: int
    live_elements: int
    measure: str | None
    zero: Distances | None
    live: Distances | None
    kept: Mapping[float, float] | None


@dataclass(frozen=True)
class Inspection:
    """What `inspect` finds.

    Attributes:
        path: The path of the model.
        kind: What it lies in.
        model: Name of the network.
        dim: Length of a vector.
        dims: Field → that of its vectors, of fields that have another.
        samples: Trained on; None where that is not recorded.
        optimizer: What it was trained with.
        sizes: In bytes.
        features_seen: Distinct features seen in training.
        live_rows: Rows with a non-zero vector.
        fields: Field → its rows.
        norms: ‖x‖ of the live rows, in logarithmic bins.
        norm_quantiles: Share of the live rows → ‖x‖, to within 12 %.
        top: The features of the largest ‖x‖.
        regularized: What λ did.
    """

    path: str
    kind: Kind
    model: str
    dim: int
    dims: Mapping[str, int]
    samples: int | None
    optimizer: OptimizerSummary
    sizes: Sizes
    features_seen: int
    live_rows: int
    fields: Mapping[str, FieldCount]
    norms: Histogram
    norm_quantiles: Mapping[float, float]
    top: tuple[LargestFeature, ...]
    regularized: RegularizationEffect

    @property
    def total(self) -> FieldCount:
        """All fields together."""
        names = ("seen", "rows", "live")
        return FieldCount(*(sum(getattr(rows, name) for rows in self.fields.values()) for name in names))

    def as_json(self) -> str:
        """All of it; what is not a finite number is null."""
        content = {"feature_rate": self.live_rows / self.features_seen if self.features_seen else None, **asdict(self)}
        return json.dumps(finite(content), indent=1, ensure_ascii=False, allow_nan=False)


def inspect(trained: TrainedModel, top: int = 10) -> Inspection:
    """Look into a trained model, reading its rows twice.

    Args:
        trained: The model; not changed.
        top: How many of the features with the largest ‖x‖ to list.

    Raises:
        ValueError: `top` is negative.
        RunError: Rows are not finite.
    """
    if top < 0:
        raise ValueError(f"top must be >= 0, got {top}")
    check_rows(trained.path, trained.model.rows, state=True)
    settings = trained.config.optimizer
    rows: list[Table | FrozenTable] = [*trained.model.rows.values()]
    arguments = settings.arguments
    l21 = trained.l21 if settings.has_target else settings.l21
    in_force = {**arguments, "l21": l21 or 0.0}
    threshold = Threshold.of(Regularizer.of(in_force), sigma_of(settings.rule, in_force, trained.steps))
    found = read_rows(rows, top, threshold)
    fields = trained.field_counts()
    features_seen = sum(field.seen for field in fields.values())
    vectors, options = trained.vector_bytes(), trained.config.model
    embedding = trained.model.embedding
    network = [
        *trained.model.network.parameters(),
        *(embedding.up.parameters() if isinstance(embedding, FieldTables) else ()),
    ]
    return Inspection(
        path=str(trained.path),
        kind=trained.kind,
        model=options.name,
        dim=options.vector_dim,
        dims={name: size for name, size in options.dims.items() if size != options.vector_dim},
        samples=trained.samples,
        optimizer=OptimizerSummary(
            settings.name,
            float(arguments["lr"]),
            settings.l1,
            l21,
            settings.l2,
            settings.norm,
            str(settings.penalty),
            target_words(settings.target_rate, settings.target_bytes),
        ),
        sizes=Sizes(
            TableMemory.total_of(one.memory() for one in rows),
            sum(parameter.numel() * parameter.element_size() for parameter in network),
            sum(parameter.numel() for parameter in network),
            sum(counts.live * vectors[name] for name, counts in fields.items()),
            sum(counts.seen * vectors[name] for name, counts in fields.items()),
            _files(trained.path),
        ),
        features_seen=features_seen,
        live_rows=found.live,
        fields=fields,
        norms=as_shown(found.norms),
        norm_quantiles={share: found.norms.quantile(share) for share in QUANTILES},
        top=_features(found.largest, trained),
        regularized=_regularized(found, threshold),
    )


def _regularized(seen: RowStatistics, threshold: Threshold | None) -> RegularizationEffect:
    zero = _distances(seen.measured_zero, seen.near_zero)
    live = _distances(seen.measured_live, seen.near_live)
    kept = None
    if live is not None:
        live = Distances(live.rows, _of_inverse(seen.measured_live), live.near, live.histogram)
        if threshold is not None and threshold.regularizer.l21 > 0:
            kept = {share: threshold.kept(measure) for share, measure in live.quantiles.items()}
    known = threshold is not None and (zero is not None or live is not None)
    measure = threshold.measure if threshold is not None and known else None
    return RegularizationEffect(seen.zero, seen.zero_elements, seen.live_elements, measure, zero, live, kept)


def _distances(bins: Bins, near: int) -> Distances | None:
    if not bins.total:
        return None
    return Distances(bins.total, {share: bins.quantile(share) for share in QUANTILES}, near, bins.joined(50))


def _of_inverse(bins: Bins) -> dict[float, float]:
    """Quantiles of what these are the inverse of."""
    inverse = {share: bins.quantile(1 - share) for share in QUANTILES}
    return {share: 1 / value if value else math.inf for share, value in inverse.items()}


def _features(largest: Largest, trained: TrainedModel) -> tuple[LargestFeature, ...]:
    values: dict[int, str] = {}
    if (source := trained.vocabulary or trained.names) is not None and len(largest.keys):
        values = names_of(source, largest.keys)
    names = [trained.columns.fields[number] for number in fields_of(largest.keys)]
    rows = zip(names, largest.keys.tolist(), largest.values.tolist(), strict=True)
    return tuple(LargestFeature(field, key, values.get(key), norm) for field, key, norm in rows)


def _files(path: Path) -> dict[str, int]:
    """What lies in the model's folder, a folder in it as a whole; what is hidden is being written."""
    sizes = {}
    for entry in sorted(path.iterdir()):
        if entry.name.startswith("."):
            continue
        inside = [entry] if entry.is_file() else [file for file in entry.rglob("*") if file.is_file()]
        sizes[entry.name + ("/" if entry.is_dir() else "")] = sum(file.stat().st_size for file in inside)
    return sizes
