"""`manifest.json`, which says what an export holds. It is written last: a folder without it is none."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote

from pydantic import TypeAdapter

from sparsegroup.artifact.manifest import FileFacts, FileName, FolderFormat, Manifest, Plain, digest
from sparsegroup.artifact.validation import Count, Number
from sparsegroup.bags import BagMode
from sparsegroup.data.schema import LogSchema
from sparsegroup.serving.frozen import ExportError
from sparsegroup.settings.names import Dtype
from sparsegroup.settings.yaml_settings import StrictSettings, checked
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
"""Name of a trained model's only table; several begin with it and a dot."""


class ExportContent(StrictSettings):
    """The files that a full export is made of; a delta names what it leads to."""

    tables: Mapping[str, FileFacts]
    network: FileFacts


class ExportedTable(StrictSettings):
    """A table in an export.

    Attributes:
        file: Name of the file with its live rows.
        dim: Length of a vector.
        pooling: What becomes of the vectors of a bag of keys; None where the table is asked for single keys.
        live_rows: Keys in the export, a delta's result included.
        features_seen: Distinct keys that training has seen.
        zero_rows: Rows that were live in training, and are all zeros in this format; they are left out.
    """

    file: FileName
    dim: Count
    pooling: BagMode | None = None
    live_rows: Count
    features_seen: Count
    zero_rows: Count


class TensorFacts(StrictSettings):
    """An input or an output of a model: its name in ONNX, dtype ("int64"), and sizes, None where any will do."""

    name: str
    dtype: str
    shape: tuple[Count | None, ...]


class ModelSignature(StrictSettings):
    """What a model takes and gives, flat and in order.

    Attributes:
        inputs: The tensors in the arguments.
        outputs: The tensors in the result.
        graph: XXH3_64 of the program's code.
    """

    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    graph: str


class FieldRows(StrictSettings):
    """Features of a field: those in the export, and those that training has seen."""

    live: Count
    seen: Count


class SizesBefore(StrictSettings):
    """Bytes before: of a float32 vector for each feature seen, and of the table with its optimizer's state."""

    dense: Count
    table: Count


class PathScores(StrictSettings):
    """Scores of one way to compute the test rows' probabilities: AUC is null with one class, gaps are to PyTorch's."""

    auc: Number
    log_loss: Number
    max_abs_difference: Number


class TestResult(StrictSettings):
    """What the test rows gave.

    Attributes:
        log: Where they come from.
        rows: How many.
        scores: "training" is the model as it was trained, "export" the exported one in PyTorch, "onnx" and "program"
            the files that were run.
    """

    log: str
    rows: Count
    scores: Mapping[str, PathScores]


class DeltaCounts(StrictSettings):
    """How many keys a delta sets and removes."""

    upserts: Count
    tombstones: Count


@dataclass(frozen=True, kw_only=True, repr=False)
class ExportManifest(Manifest):
    """What an export or a delta holds.

    Its id is XXH3_64 over what the model computes: format of the vectors, columns, network and the content's checksums;
    that of a delta is the id of the export it leads to. A delta's parent is the export or delta that it is to be
    applied to.

    A trained model's has columns and settings, and one table, or several with `model.dims`; that of another module has
    a signature instead, unless it was not traced.

    Attributes:
        kind: "export" is whole, "delta" the way to one.
        source: What was exported.
        dtype: Format of the vectors.
        tables: Name → table.
        columns: fields, lists, numbers, hash: what the model expects of its logs.
        config: Settings it was trained with.
        fields: Each field's rows.
        before: Sizes before.
        content: See `ExportContent`.
        signature: What another module takes and gives.
        test: If there was a test log.
        changes: What a delta changes.
    """

    kind: Literal["export", "delta"]
    source: str
    dtype: Dtype
    tables: Mapping[str, ExportedTable]
    columns: Mapping[str, Any] | None = None
    config: Mapping[str, Any] | None = None
    fields: Mapping[str, FieldRows] = field(default_factory=dict)
    before: SizesBefore
    content: ExportContent
    signature: ModelSignature | None = None
    test: TestResult | None = None
    changes: DeltaCounts | None = None

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
        """Rows that are all zeros in this format, and so are left out."""
        return sum(table.zero_rows for table in self.tables.values())

    @property
    def has_columns(self) -> bool:
        """Whether it is of a trained model, which reads logs."""
        return self.columns is not None

    def as_plain(self) -> Plain:
        """See `Manifest.as_plain`."""
        content: Plain = _PLAIN.dump_python(self, mode="json")
        return {name: value for name, value in content.items() if name not in self.HEADER}

    def check(self) -> None:
        """See `Manifest.check`."""
        if (self.kind == "delta") != (self.parent is not None) or (self.changes is None) != (self.parent is None):
            raise ValueError(f"parent: kind is {self.kind!r}; a delta has a parent and changes, and no other has them")
        if not self.tables or self.content.tables.keys() != self.tables.keys():
            raise ValueError("content.tables: are not the tables")
        if self.kind == "delta" and self.tables.keys() != {TABLE}:
            raise ValueError(f"tables: a delta has one, {TABLE}")
        if self.has_columns:
            if self.config is None:
                raise ValueError("config is missing")
            columns, _ = self.columns_and_config()
            if self.fields.keys() != set(columns.fields):
                raise ValueError(f"fields: are not those of the columns, {', '.join(columns.fields)}")
        if self.id != self.expected_id():
            raise ValueError("id: is not that of the content")

    def columns_and_config(self) -> tuple[LogSchema, Config]:
        """What the model expects, and the settings that it was trained with.

        Raises:
            ExportError: It has none.
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
        """`id` as it follows from the rest."""
        content: Plain = {
            "dtype": self.dtype,
            "tables": {name: [table.dim, table.pooling] for name, table in self.tables.items()},
            "signature": None if self.signature is None else self.signature.model_dump(),
            "content": self.content.model_dump(),
        }
        if self.columns is not None:
            content |= {"columns": dict(self.columns), "model": (self.config or {})["model"]}
        return digest(content)

    def with_id(self) -> Self:
        """This with the id that follows from the rest."""
        return replace(self, id=self.expected_id())


_PLAIN: TypeAdapter[Any] = TypeAdapter(ExportManifest)


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


OWN = {MANIFEST, EMBEDDINGS, NETWORK, UPSERTS, TOMBSTONES, VOCABULARY, PROGRAM, ONNX, f"{ONNX}.data"}
"""Files of an export or delta, but for those of several tables."""

_PREFIX, _SUFFIX = EMBEDDINGS.split(".")


def file_of(table: str) -> str:
    """Name of the file with the rows of a module's table, or of one of a trained model that has several."""
    return f"{_PREFIX}-{quote(table, safe='')}.{_SUFFIX}"  # a module's name may hold a slash


def check_free(out: Path, overwrite: bool) -> None:
    """Whether a folder may be written to `out`."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if overwrite and not (out / MANIFEST).is_file():
        raise ExportError(f"{out}: holds no export that could be overwritten; give another folder")
    own = OWN | {path.name for path in out.glob(f"{_PREFIX}-*.{_SUFFIX}")}
    foreign = sorted(path.name for path in out.iterdir() if path.name not in own)
    if foreign and overwrite:
        raise ExportError(f"{out}: holds {foreign[0]}, which is no part of an export; move it, or give another folder")
    if not overwrite:
        raise ExportError(f"{out}: is not empty; give another folder, or `overwrite`", "overwrite")
