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
from sparsegroup.data.keys import Int64s, fields_of
from sparsegroup.data.local_files import names_of
from sparsegroup.kernels.rounding import array_was_updated
from sparsegroup.kernels.step import Regularizer
from sparsegroup.optim.step import VANISHING_LR
from sparsegroup.penalties import PracticalNorm
from sparsegroup.reporting.formatting import count, exact, percent, size, target_words, trim_exponent
from sparsegroup.reporting.run_record import LargestFeature
from sparsegroup.rules import Rule, bind
from sparsegroup.serving.frozen import FrozenTable
from sparsegroup.serving.opening import SCANNED, Kind, RowSource, TrainedModel, check_rows
from sparsegroup.settings.names import model_title, optimizer_title
from sparsegroup.table import FieldCount, FieldTables
from sparsegroup.table.rows.rows import WEIGHT
from sparsegroup.table.table import Table, TableMemory
from sparsegroup.training.largest_features import Largest

Float64s = npt.NDArray[np.float64]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
NEAR = 0.1
"""Rows whose measure is so close to 1 are near the threshold."""
_DECADES = (-46, 39)
"""Powers of 10 around what float32 holds above 0."""
_PER_DECADE = 20
_soft_threshold = bind(prox.soft_threshold, np)


@dataclass(frozen=True)
class Histogram:
    """Counts between edges: `counts[i]` values from `edges[i]` to `edges[i + 1]`."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


class Bins:
    """Counts values between ascending edges, in bounded memory; those outside are in the first or last bin."""

    def __init__(self, edges: Float64s) -> None:
        self.edges = edges
        self.counts = np.zeros(len(edges) - 1, np.int64)
        self.low, self.high = math.inf, -math.inf

    @property
    def total(self) -> int:
        """Values so far."""
        return int(self.counts.sum())

    def add(self, values: Float64s) -> None:
        """Count `values` `[n]`."""
        if len(values):
            self.counts += np.histogram(values.clip(self.edges[0], self.edges[-1]), self.edges)[0]
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
    """The part of `magnitudes` that holds something, in at most `most` bins or one a decade; powers of 10 are edges."""
    filled = np.flatnonzero(bins.counts)
    if not len(filled):
        return Histogram((), ())
    for group in (1, 2, 4, 5, 10, 20):
        first, last = int(filled[0]) // group, int(filled[-1]) // group + 1
        if last - first <= most:
            break
    whole = bins.joined(group)
    return Histogram(whole.edges[first : last + 1], whole.counts[first:last])


@dataclass(frozen=True)
class Sigma:
    """σ of rows, as a step without a gradient would find it: the optimizer's next, its moments as they are stored.

    For a rule that does not decay its moments, σ is that of the row's last update.
    """

    rule: Rule
    scalars: tuple[float, ...]

    def __call__(self, state: Sequence[Float64s], shape: tuple[int, ...]) -> Float64s:
        """σ of rows `[n, dim]` whose state is `state`, in the order of the rule's."""
        gradients = [np.zeros(shape)] * (2 if self.rule.has_second_input else 1)
        _, sigma, *_ = bind(self.rule.update, np)(*gradients, *state, *self.scalars)
        return np.broadcast_to(np.asarray(sigma, np.float64), shape)


def sigma_of(rule: Rule, hyperparameters: Mapping[str, Any], steps: int | None) -> Sigma | None:
    """σ of a table's rows after so many steps of its optimizer; None where it is not known."""
    lr = float(hyperparameters["lr"])
    if lr < VANISHING_LR or (steps is None and rule.counts_steps):
        return None
    return Sigma(rule, rule.host_scalars(hyperparameters, (steps or 0) + 1, lr))


@dataclass(frozen=True)
class Threshold:
    """What decides whether a row is zero: it is, where its measure is at most 1.

    With z = u - σ x and s = -sign(z) max(|z| - λ1, 0), the measure is ‖s‖ / (√d λ21), or max |z| / λ1 where λ21 = 0.
    A zero row's z is u, which needs no σ.
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


@dataclass
class RowStatistics:
    """What a pass over the rows has found.

    Attributes:
        norms: ‖x‖ of the live rows.
        measured_zero: The threshold's measure of zero rows, ≤ 1 but where λ has changed since.
        measured_live: 1 / measure of live rows, < 1 but where λ or σ has changed since.
        near_zero, near_live: Rows whose measure is in [0.9, 1], and at most 1.1.
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
    """Go over all rows once; those never updated, such as one set by hand, and tables without u have no measure."""
    seen = RowStatistics(Largest(top))
    for table in tables:
        _read_table(table, threshold if "u" in table.state_names else None, seen)
    return seen


def _read_table(table: RowSource, threshold: Threshold | None, seen: RowStatistics) -> None:
    sigma = None if threshold is None else threshold.sigma
    if sigma is not None and not set(sigma.rule.state) <= set(table.state_names):
        sigma = None
    parts = [WEIGHT, *(["u"] if threshold else []), *(sigma.rule.state if sigma else [])]
    for keys, (weights, *others) in table.scan_rows(parts, SCANNED):
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
        updated = np.asarray(array_was_updated(others[0]).any(axis=1))
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
    """Bytes: in memory, of the vectors of live rows alone and of all features seen, and by file or folder."""

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
        rows: Rows that could be measured.
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
    """What λ did to the rows that the table has; None where it is not known.

    Attributes:
        zero_elements, live_elements: Elements of live rows: those exactly zero, and all.
        measure: What is compared with 1: in a row of more, something is left.
        zero: How far zero rows are from coming back.
        live: How far live rows are from being zeroed, if their next step has no gradient.
        kept: Share of the live rows → k, the factor that they are shrunk by.
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
        dims: Field → length of its vectors, of fields that have another than `dim`.
        samples: Trained on; None where that is not recorded.
        fields: Field → its rows.
        norms: ‖x‖ of the live rows, in logarithmic bins.
        norm_quantiles: Share of the live rows → ‖x‖, to within 12 %.
        top: The features of the largest ‖x‖.
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
    settings, options = trained.config.optimizer, trained.config.model
    rows: list[Table | FrozenTable] = [*trained.model.rows.values()]
    arguments = settings.arguments
    l21 = trained.l21 if settings.has_target else settings.l21
    in_force = {**arguments, "l21": l21 or 0.0}
    threshold = Threshold.of(Regularizer.of(in_force), sigma_of(settings.rule, in_force, trained.steps))
    found = read_rows(rows, top, threshold)
    fields, vectors, embedding = trained.field_counts(), trained.vector_bytes(), trained.model.embedding
    network = [
        *trained.model.network.parameters(),
        *(embedding.up.parameters() if isinstance(embedding, FieldTables) else ()),
    ]
    return Inspection(
        path=str(trained.path),
        kind=trained.kind,
        model=options.name,
        dim=options.vector_dim,
        dims={name: dim for name, dim in options.dims.items() if dim != options.vector_dim},
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
        features_seen=sum(counts.seen for counts in fields.values()),
        live_rows=found.live,
        fields=fields,
        norms=as_shown(found.norms),
        norm_quantiles={share: found.norms.quantile(share) for share in QUANTILES},
        top=_features(found.largest.keys, found.largest.values, trained),
        regularized=_regularized(found, threshold),
    )


def _regularized(seen: RowStatistics, threshold: Threshold | None) -> RegularizationEffect:
    zero = live = kept = None
    if seen.measured_zero.total:
        quantiles = {share: seen.measured_zero.quantile(share) for share in QUANTILES}
        zero = Distances(seen.measured_zero.total, quantiles, seen.near_zero, seen.measured_zero.joined(50))
    if seen.measured_live.total:
        inverse = {share: seen.measured_live.quantile(1 - share) for share in QUANTILES}
        quantiles = {share: 1 / value if value else math.inf for share, value in inverse.items()}
        live = Distances(seen.measured_live.total, quantiles, seen.near_live, seen.measured_live.joined(50))
        if threshold is not None and threshold.regularizer.l21 > 0:
            kept = {share: threshold.kept(measure) for share, measure in quantiles.items()}
    measure = None if threshold is None or (zero is None and live is None) else threshold.measure
    return RegularizationEffect(seen.zero, seen.zero_elements, seen.live_elements, measure, zero, live, kept)


def _features(keys: Int64s, norms: Float64s, trained: TrainedModel) -> tuple[LargestFeature, ...]:
    source = trained.vocabulary or trained.names
    values = names_of(source, keys) if source is not None and len(keys) else {}
    rows = zip(fields_of(keys), keys.tolist(), norms.tolist(), strict=True)
    return tuple(LargestFeature(trained.columns.fields[field], key, values.get(key), norm) for field, key, norm in rows)


def _files(path: Path) -> dict[str, int]:
    """What lies in the model's folder, a folder in it as a whole; what is hidden is being written."""
    sizes = {}
    for entry in sorted(path.iterdir()):
        if entry.name.startswith("."):
            continue
        inside = [entry] if entry.is_file() else [file for file in entry.rglob("*") if file.is_file()]
        sizes[entry.name + ("/" if entry.is_dir() else "")] = sum(file.stat().st_size for file in inside)
    return sizes


@dataclass(frozen=True)
class Section:
    """A part of what there is to say of a model, for terminal and page alike.

    Attributes:
        rows: Texts, then figures.
        columns: Their names; without any, rows are names and values.
        texts: How many of the columns are texts.
        bars: A share for each row, drawn behind it; empty for none.
        longest: Characters of a bar of share 1, in a terminal.
        note: How the figures are meant.
    """

    title: str
    rows: Sequence[tuple[str, ...]]
    columns: tuple[str, ...] = ()
    texts: int = 1
    bars: Sequence[float] = ()
    longest: int = 20
    note: str = ""


ALL = "all fields"


def title_of(inspection: Inspection) -> str:
    """Such as "DCN of dimension 8 (C3, C7: 4) with Group Adagrad, target rate 0.1"."""
    optimizer, own = inspection.optimizer, inspection.dims
    lambdas = [
        f"{name} = {exact(value)}"
        for name, value in (("λ1", optimizer.l1), ("λ21", optimizer.l21), ("λ2", optimizer.l2))
        if value and not (name == "λ21" and optimizer.target)
    ]
    if optimizer.target:
        lambdas.insert(0, optimizer.target)
    elif optimizer.l21:
        lambdas.append(f"{optimizer.penalty}, norm {optimizer.norm}")
    dims = [f"{', '.join(name for name in own if own[name] == dim)}: {dim}" for dim in sorted(set(own.values()))]
    others = f" ({'; '.join(dims)})" if dims else ""
    network = f"{model_title(inspection.model)} of dimension {inspection.dim}{others}"
    return ", ".join([f"{network} with {optimizer_title(optimizer.name)}", *(lambdas or ["no λ"])])


def lead_of(inspection: Inspection) -> str:
    """What was looked into."""
    trained = "" if inspection.samples is None else f", trained on {count(inspection.samples)} samples"
    return f"{inspection.kind.capitalize()} {inspection.path}{trained}, learning rate {exact(inspection.optimizer.lr)}"


def sections(inspection: Inspection) -> dict[str, Section]:
    """Title → section, in order; norms and features only where rows are live."""
    by_size = sorted(inspection.fields.items(), key=lambda field: (-field[1].seen, field[0]))
    fields = [(ALL, inspection.total), *by_size]
    found = [
        Section(
            "Feature rate",
            [
                (name, count(one.seen), count(one.rows), count(one.live), percent(share_of(one.live, one.seen)))
                for name, one in fields
            ],
            ("field", "seen", "rows", "live", "rate"),
            bars=[share_of(one.live, one.seen) for _, one in fields],
        )
    ]
    if norms := inspection.norms.counts:
        edges = [trim_exponent(f"{edge:.3g}") for edge in inspection.norms.edges]
        rows = list(zip(edges, edges[1:], map(count, norms), strict=False))
        bars = [rows / max(norms) for rows in norms]
        found.append(Section("Norms of the live rows", rows, ("‖x‖ from", "to", "rows"), bars=bars, longest=40))
    if top := inspection.top:
        named = any(feature.value is not None for feature in top)
        rows = [(feature.field, feature_name(feature), f"{feature.norm:.4g}") for feature in top]
        bars = [feature.norm / top[0].norm if top[0].norm else 0.0 for feature in top]
        columns = ("field", "value" if named else "key", "‖x‖")
        found.append(Section("Features of the largest norms", rows, columns, texts=2, bars=bars))
    found.append(Section("What λ did", _effects(inspection), note=note_of(inspection)))
    table, sizes = inspection.sizes.table, inspection.sizes
    rest = table.rows - sum(table.parts.values())
    memory = {"index": table.index, **table.parts, "rest of the last page": max(rest, 0)}
    memory |= ({"dropped keys": table.dropped} if table.dropped else {}) | {"table": table.total}
    part = percent(share_of(sizes.live_vectors, sizes.dense_table))
    files = [*sizes.files.items(), ("together", sum(sizes.files.values()))]
    found += [
        Section("Table in memory", [(name, size(used)) for name, used in memory.items()]),
        Section(
            "Model",
            [
                ("network", f"{size(sizes.network)}, {count(sizes.network_parameters)} parameters"),
                ("live vectors alone", f"{size(sizes.live_vectors)}, {part} of the dense table"),
                ("dense table of all features seen", size(sizes.dense_table)),
            ],
        ),
        Section("Files", [(name, size(used)) for name, used in files]),
    ]
    return {section.title: section for section in found}


def share_of(part: float, whole: float) -> float:
    """Their ratio; NaN of nothing."""
    return part / whole if whole else math.nan


def feature_name(feature: LargestFeature) -> str:
    """Its value, or its key where that is not known."""
    return str(feature.key) if feature.value is None else feature.value or "(missing)"


def _effects(inspection: Inspection) -> list[tuple[str, ...]]:
    """What λ did: what is meant, and the figure."""
    optimizer, effect, total = inspection.optimizer, inspection.regularized, inspection.total
    zeros = _of(effect.zero_rows, total.rows)
    gone = [("seen, but has no row any more", count(total.seen - total.rows))] if total.seen > total.rows else []
    if not optimizer.zeroes:
        what = "nothing is regularized: λ1, λ21 and λ2 are 0"
        if optimizer.l2 > 0:
            what = "λ2 shrinks vectors; it makes none zero"
        return [("regularization", what), ("rows that are exactly zero", zeros), *gone]
    found: list[tuple[str, ...]] = []
    if optimizer.target:
        l21 = "not recorded in an export" if optimizer.l21 is None else f"{optimizer.l21:.3g}"
        found += [
            (optimizer.target, f"{count(total.live)} of {count(total.seen)} features are live"),
            ("λ21 in force, set by the target", l21),
            ("penalty, norm", f"{optimizer.penalty}, {optimizer.norm}"),
        ]
    if inspection.kind == "export":  # it has the live rows only
        found.append(("features seen that have no vector", _of(total.seen - total.live, total.seen)))
    else:
        found += [("rows made exactly zero", zeros), *gone]
    if optimizer.l1 > 0:
        elements = percent(share_of(effect.zero_elements, effect.live_elements))
        found.append(("zeros among the elements of live rows", elements))
    if effect.zero is not None:
        found += [
            (f"{effect.measure} of zero rows, quartiles", _quartiles(effect.zero.quantiles)),
            ("zero rows within 10 % of coming back", _of(effect.zero.near, effect.zero.rows)),
        ]
    if effect.live is not None:
        found += [
            (f"{effect.measure} of live rows, quartiles", _quartiles(effect.live.quantiles)),
            ("live rows within 10 % of the threshold", _of(effect.live.near, effect.live.rows)),
        ]
    if effect.kept is not None:
        found.append(("live rows are shrunk by k, quartiles", _quartiles(effect.kept)))
    return found


def note_of(inspection: Inspection) -> str:
    """How the figures of what λ did are meant; empty where there is nothing to explain."""
    optimizer, effect = inspection.optimizer, inspection.regularized
    if not optimizer.zeroes:
        return ""
    if effect.measure is None:
        if inspection.kind == "export":
            lacks = "no λ21 and no optimizer state" if optimizer.l21 is None else "no optimizer state"
            return (
                f"How far rows are from the threshold is not known: an export holds {lacks}. "
                "Inspect the run or checkpoint that it was made of."
            )
        if optimizer.norm != "s":
            return f"How far rows are from the threshold is known for the norm s only, not for {optimizer.norm}."
        return "How far rows are from the threshold is not known: no row has been updated."
    said = f"A row is zero while {effect.measure} is at most 1."
    if effect.live is not None:
        said += " Of live rows it is what their next step finds if its gradient is zero, momentum left out."
    return said


def _quartiles(quantiles: Mapping[float, float]) -> str:
    """Such as "0.12, 0.16, 0.24"."""
    values = [quantiles[share] for share in (0.25, 0.5, 0.75)]
    return ", ".join(f"{value:,.0f}" if 1000 <= value < math.inf else f"{value:.3g}" for value in values)


def _of(part: int, whole: int) -> str:
    return f"{count(part)} of {count(whole)}, {percent(share_of(part, whole))}"
