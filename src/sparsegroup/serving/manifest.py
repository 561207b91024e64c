"""`manifest.json`: the content of an export. It is written last; a folder without it is no export."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from sparsegroup.artifact.manifest import FileFacts, FileName, FolderFormat, Manifest, Plain, digest
from sparsegroup.artifact.validation import Count, Number, finite
from sparsegroup.bags import BagMode
from sparsegroup.data.schema import LogSchema
from sparsegroup.reporting.run_record import ClassMetrics, Metrics, NumberMetrics, RankMetrics, TaskMetrics
from sparsegroup.serving.rows import ExportError
from sparsegroup.settings.names import Dtype, KeyFormat
from sparsegroup.settings.yaml_settings import checked
from sparsegroup.training import Config
from sparsegroup.training.run_folder import VOCABULARY

MANIFEST = "manifest.json"
EMBEDDINGS = "embeddings.safetensors"
NETWORK = "network.safetensors"
ONNX = "model.onnx"
PROGRAM = "model.pt2"
UPSERTS = "upserts.safetensors"
TOMBSTONES = "tombstones.safetensors"
TABLE = "embedding"
"""Name of a trained model's only table; if there are several, their names begin with it and a dot."""


@dataclass(frozen=True)
class ExportContent:
    """The files of a full export; a delta names the files of the export that it leads to."""

    tables: Mapping[str, FileFacts]
    network: FileFacts


@dataclass(frozen=True)
class ExportedTable:
    """A table in an export."""

    file: FileName
    dim: Count
    pooling: BagMode | None  # of bags of keys; None where single keys are looked up
    live_rows: Count  # keys in the export, or, of a delta, in its result
    features_seen: Count  # distinct keys that training has seen
    zero_rows: Count  # rows that were live in training and round to zero in this format; they are left out
    merged_rows: Count = 0  # rows that are left out because another one has the same fingerprint
    dropped_rows: Count = 0  # rows of the smallest norms, which are left out because of a limit of bytes
    false_hits: Number = 0.0  # share of absent keys of a field that get another key's vector, at most


@dataclass(frozen=True)
class TensorFacts:
    """An input or an output of a model: its name in ONNX, dtype ("int64"), and sizes, None for open ones."""

    name: str
    dtype: str
    shape: tuple[Count | None, ...]


@dataclass(frozen=True)
class ModelSignature:
    """The tensors in the arguments and in the result of a model, in order, and XXH3_64 of the program's code."""

    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    graph: str


@dataclass(frozen=True)
class FieldRows:
    """Number of features of a field: in the export, and seen in training."""

    live: Count
    seen: Count


@dataclass(frozen=True)
class SizesBefore:
    """Bytes before: of a float32 vector for each feature seen, and of the table with its optimizer's state."""

    dense: Count
    table: Count


@dataclass(frozen=True, kw_only=True)
class PathScores(Metrics):
    """Scores of one way to compute the test rows' probabilities, and the largest gap to the export in PyTorch."""

    max_abs_difference: Number


@dataclass(frozen=True, kw_only=True)
class NumberScores(NumberMetrics):
    """The same of predicted numbers; a difference is relative to the prediction where that is above 1."""

    max_abs_difference: Number


@dataclass(frozen=True, kw_only=True)
class RankScores(RankMetrics):
    """The same of scores that rank; a difference is relative to the score where that is above 1."""

    max_abs_difference: Number


@dataclass(frozen=True, kw_only=True)
class ClassScores(ClassMetrics):
    """The same of predicted probabilities of classes."""

    max_abs_difference: Number


@dataclass(frozen=True, kw_only=True)
class TaskScores(TaskMetrics):
    """The same of several tasks."""

    max_abs_difference: Number


AnyScores = PathScores | NumberScores | RankScores | ClassScores | TaskScores


@dataclass(frozen=True)
class TestResult:
    """Name and number of the test rows, and the scores of the model as it was trained, the export, and each file."""

    log: str
    rows: Count
    scores: Mapping[str, AnyScores]


@dataclass(frozen=True)
class Candidate:
    """A format that an export of a limited size could have, with as many of the largest rows as fit."""

    dtype: Dtype
    rows: Count
    bytes: Count  # of the files of embeddings and network
    loss: Number  # on the first half of the test rows


@dataclass(frozen=True)
class DeltaCounts:
    """How many keys a delta sets and removes, in all tables together."""

    upserts: Count
    tombstones: Count


@dataclass(frozen=True, kw_only=True, repr=False)
class ExportManifest(Manifest):
    """What an export or a delta holds.

    Its id is XXH3_64 over all that determines a prediction: the formats of vectors and keys, the tables' dimensions and
    pooling, the columns, the settings (see `settings_of_answers`), the signature, and the checksums of the content. A
    delta has the id of the export that it leads to; its parent is the export or delta that it is applied to.

    An export of a trained model has columns and settings, and one table, or several with `model.dims`; that of another
    module has a signature instead, unless it was not traced.

    Attributes:
        kind: "export" is whole, "delta" the way to one.
        source: What was exported.
        dtype: Format of the vectors.
        keys: "full", or "fingerprints" instead of them.
        tables: Name → table.
        columns: fields, lists, numbers, hash: what the model expects of its logs.
        config: Settings it was trained with.
        fields: Field → its rows.
        before: Sizes before.
        content: The files of the full export.
        signature: Inputs and outputs of another module.
        test: Scores on the test log, if there was one.
        changes: What a delta changes.
        candidates: The formats that were compared, if the export has a limit of bytes: the one of the lowest loss, this
            one, first.
    """

    kind: Literal["export", "delta"]
    source: str
    dtype: Dtype
    keys: KeyFormat = "full"
    tables: Mapping[str, ExportedTable]
    columns: Mapping[str, Any] | None = None
    config: Mapping[str, Any] | None = None
    fields: Mapping[str, FieldRows] = field(default_factory=dict)
    before: SizesBefore
    content: ExportContent
    signature: ModelSignature | None = None
    test: TestResult | None = None
    changes: DeltaCounts | None = None
    candidates: tuple[Candidate, ...] = ()

    def __repr__(self) -> str:
        rows = f"{self.live_rows:,} of {self.features_seen:,} features in {', '.join(self.tables)}"
        return f"<{self.kind} {self.id} of {self.source}: {rows}, {self.dtype}>"

    @property
    def live_rows(self) -> int:
        """Keys in the tables."""
        return sum(table.live_rows for table in self.tables.values())

    @property
    def features_seen(self) -> int:
        """Distinct keys that training has seen, by table."""
        return sum(table.features_seen for table in self.tables.values())

    @property
    def feature_rate(self) -> float:
        """Live rows over features seen; 0 if none was."""
        return self.live_rows / self.features_seen if self.features_seen else 0.0

    @property
    def zero_rows(self) -> int:
        """Rows that are left out because they are all zeros in this format."""
        return sum(table.zero_rows for table in self.tables.values())

    @property
    def dropped_rows(self) -> int:
        """Rows that are left out because of a limit of bytes."""
        return sum(table.dropped_rows for table in self.tables.values())

    @property
    def merged_rows(self) -> int:
        """Rows that are left out because another one has the same fingerprint."""
        return sum(table.merged_rows for table in self.tables.values())

    @property
    def false_hits(self) -> float:
        """The share of absent keys that get the vector of another key, in the field with the most; 0 of whole keys."""
        return max(table.false_hits for table in self.tables.values())

    def as_plain(self) -> Plain:
        """See `Manifest.as_plain`."""
        content: Plain = finite(super().as_plain())
        return content

    def check(self) -> None:
        """See `Manifest.check`."""
        is_delta = self.kind == "delta"
        if is_delta != (self.parent is not None) or is_delta != (self.changes is not None):
            raise ValueError(f"parent: kind is {self.kind!r}; a delta has a parent and changes, and no other has them")
        if not self.tables or self.content.tables.keys() != self.tables.keys():
            raise ValueError("content.tables: are not the tables")
        if is_delta:
            rows = {file_of(table, part) for table in self.tables for part in (UPSERTS, TOMBSTONES)}
        else:
            rows = {table.file for table in self.tables.values()}
        if missing := sorted({*rows, NETWORK} - self.files.keys()):
            raise ValueError(f"files: {missing[0]} is missing")
        if self.content.network != self.files[NETWORK] or (
            not is_delta and self.content != content_of(self.tables, self.files)
        ):
            raise ValueError("content: is not that of the files")
        if self.columns is not None:
            if self.config is None:
                raise ValueError("config is missing")
            columns, config = self.columns_and_config()
            if self.fields.keys() != set(names := config.model.vocabularies(columns).values()):
                raise ValueError(f"fields: the model has others, {', '.join(names)}")
        if self.id != self.expected_id():
            raise ValueError("id: is not that of the content")

    def columns_and_config(self) -> tuple[LogSchema, Config]:
        """The columns that a trained model expects, and the settings that it was trained with.

        Raises:
            ExportError: The export is of another module.
            ValueError: They are not what this version knows.
        """
        if self.columns is None or self.config is None:
            raise ExportError(
                f"an export of {self.source}, a module with {', '.join(self.tables)}, has no columns of a log and no "
                "settings of a run, which this takes; `sparsegroup.serving.load_export` opens it"
            )
        try:
            columns = LogSchema.from_dict(self.columns)
        except ValueError as error:
            raise ValueError(f"columns.{error}") from error
        return columns, checked(Config, self.config, "config")

    def expected_id(self) -> str:
        """Return the id that follows from the other attributes."""
        content: Plain = {
            "dtype": self.dtype,
            "keys": self.keys,
            "tables": {name: [table.dim, table.pooling] for name, table in self.tables.items()},
            "signature": None if self.signature is None else asdict(self.signature),
            "content": asdict(self.content),
        }
        if self.columns is not None:
            content |= {"columns": dict(self.columns), "config": settings_of_answers(self.config or {})}
        return digest(content)


_WITHOUT_EFFECT: Mapping[str, Collection[str] | None] = {
    "optimizer": None,
    "checkpoint": None,
    "tracking": None,
    "data": ("log", "test"),
}
"""Section → settings without effect on the predictions of a trained model; None for the whole section."""


def settings_of_answers(config: Mapping[str, Any]) -> Plain:
    """Return the settings that may change a prediction: all except training-only settings and the paths of logs.

    A new setting is included unless `_WITHOUT_EFFECT` lists it, so that no change is overlooked.
    """
    found: Plain = {}
    for section, settings in config.items():
        omitted = _WITHOUT_EFFECT.get(section, ())
        if omitted is not None:
            found[section] = {name: value for name, value in settings.items() if name not in omitted}
    return found


def content_of(tables: Mapping[str, ExportedTable], files: Mapping[FileName, FileFacts]) -> ExportContent:
    """The content of a full export with these files."""
    return ExportContent({name: files[table.file] for name, table in tables.items()}, files[NETWORK])


EXPORT = FolderFormat(
    name="export", file=MANIFEST, version=1, manifest=ExportManifest, error=ExportError, missing="no export"
)
"""The format of exports and deltas."""


def read_manifest(folder: Path) -> ExportManifest:
    """The manifest of an export or a delta.

    Raises:
        ExportError: There is none, it is damaged, or a newer version has written it.
    """
    return EXPORT.read(folder)


_OF_TABLES = (EMBEDDINGS, UPSERTS, TOMBSTONES)
_OWN = {MANIFEST, NETWORK, *_OF_TABLES, VOCABULARY, PROGRAM, ONNX, f"{ONNX}.data"}
"""Files of an export or delta except the rows of several tables."""


def file_of(table: str, part: str = EMBEDDINGS) -> str:
    """Name of the file with rows of a table, whose name may hold a slash.

    `part` is the name of the only table's file: `EMBEDDINGS`, or of a delta `UPSERTS` or `TOMBSTONES`.
    """
    prefix, suffix = part.split(".")
    return part if table == TABLE else f"{prefix}-{quote(table, safe='')}.{suffix}"


def check_free(out: Path, overwrite: bool) -> None:
    """Raise ExportError if no export may be written to `out`."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if overwrite and not (out / MANIFEST).is_file():
        raise ExportError(f"{out}: holds no export that could be overwritten; give another folder")
    own = _OWN | {path.name for part in _OF_TABLES for path in out.glob(part.replace(".", "-*."))}
    foreign = sorted(path.name for path in out.iterdir() if path.name not in own)
    if foreign and overwrite:
        raise ExportError(f"{out}: holds {foreign[0]}, which is no part of an export; move it, or give another folder")
    if not overwrite:
        raise ExportError(f"{out}: is not empty; give another folder, or `overwrite`", "overwrite")
