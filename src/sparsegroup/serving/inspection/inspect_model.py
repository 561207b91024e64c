"""What a trained model is made of: its sizes, which features it kept, and what λ did."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from sparsegroup.artifact.validation import finite
from sparsegroup.data.keys import fields_of
from sparsegroup.data.local_files import names_of
from sparsegroup.kernels.step import Regularizer
from sparsegroup.reporting.formatting import target_words
from sparsegroup.reporting.run_record import LargestFeature
from sparsegroup.serving.finite_rows import check_rows
from sparsegroup.serving.frozen_table import FrozenTable
from sparsegroup.serving.inspection.histogram import Bins, Histogram, as_shown
from sparsegroup.serving.inspection.row_scan import RowStatistics, read_rows
from sparsegroup.serving.inspection.threshold import Threshold, sigma_of
from sparsegroup.serving.trained_model import Kind, TrainedModel
from sparsegroup.table import FieldCount, FieldTables
from sparsegroup.table.table import Table, TableMemory
from sparsegroup.training.largest_features import Largest

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
