"""`manifest.json`, which says what an export holds. It is written last: a folder without it is none."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, ConfigDict, PlainSerializer, TypeAdapter, ValidationError

from sparsegroup.artifact.file_facts import FileFacts
from sparsegroup.artifact.manifest import FolderFormat, Manifest, Plain, digest
from sparsegroup.names import Dtype
from sparsegroup.serving.export_error import ExportError
from sparsegroup.training import Config
from sparsegroup.training.input_columns import Columns
from sparsegroup.yaml_settings import StrictSettings, checked

MANIFEST = "manifest.json"
EMBEDDINGS = "embeddings.safetensors"
NETWORK = "network.safetensors"
ONNX = "model.onnx"
PROGRAM = "model.pt2"
UPSERTS = "upserts.safetensors"
TOMBSTONES = "tombstones.safetensors"

Number = Annotated[
    float,
    BeforeValidator(lambda value: math.nan if value is None else value),
    PlainSerializer(lambda value: value if math.isfinite(value) else None),
]
"""JSON has no NaN: an AUC of one class is null."""


class ExportContent(StrictSettings):
    """The two files that a full export is made of; a delta names what it leads to."""

    embeddings: FileFacts
    network: FileFacts


class FieldRows(StrictSettings):
    """Features of a field: those in the export, and those that training has seen."""

    live: int
    seen: int


class SizesBefore(StrictSettings):
    """Sizes before the export, in bytes.

    Attributes:
        dense: Bytes of a float32 vector for each feature seen.
        table: Bytes of the table in training: index, vectors, optimizer's state.
    """

    dense: int
    table: int


class PathScores(StrictSettings):
    """Scores of one way to compute the probabilities of the test rows.

    Attributes:
        auc: NaN (null) where only one class is present.
        log_loss: In nats.
        max_abs_difference: The largest difference of a probability to the export's in PyTorch.
    """

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
    rows: int
    scores: Mapping[str, PathScores]


class DeltaCounts(StrictSettings):
    """How many keys a delta sets and removes."""

    upserts: int
    tombstones: int


@dataclass(frozen=True, kw_only=True)
class ExportManifest(Manifest):
    """What an export or a delta holds. Its id is XXH3_64 over what the model computes: format of the vectors, columns,
    network and the content's checksums; that of a delta is the id of the export it leads to. A delta's parent is the
    export or delta that it is to be applied to.

    Attributes:
        kind: "export" is whole, "delta" the way to one.
        source: What was exported.
        dtype: Format of the vectors.
        dim: Length of a vector.
        columns: fields, lists, numbers, hash: what the model expects of its logs.
        config: Settings it was trained with.
        live_rows: Keys in the export, a delta's result included.
        features_seen: Distinct keys that training has seen.
        feature_rate: Live rows over features seen.
        zero_rows: Rows that were live in training, and are all zeros in this format; they are left out.
        fields: Each field's rows.
        before: Sizes before.
        content: See `ExportContent`.
        test: If there was a test log.
        changes: What a delta changes.
    """

    kind: Literal["export", "delta"]
    source: str
    dtype: Dtype
    dim: int
    columns: Mapping[str, Any]
    config: Mapping[str, Any]
    live_rows: int
    features_seen: int
    feature_rate: float
    zero_rows: int
    fields: Mapping[str, FieldRows]
    before: SizesBefore
    content: ExportContent
    test: TestResult | None = None
    changes: DeltaCounts | None = None

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    def as_plain(self) -> Plain:
        """See `Manifest.as_plain`."""
        content: Plain = _CHECKED.dump_python(self, mode="json")
        return {name: value for name, value in content.items() if name not in self.HEADER}

    @classmethod
    def from_plain(cls, content: Plain, **header: Any) -> Self:
        """See `Manifest.from_plain`."""
        try:
            manifest: Self = _CHECKED.validate_python({**content, **header})
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        manifest.columns_and_config()
        if manifest.id != manifest.expected_id():
            raise ValueError("its id is not that of its content")
        return manifest

    def columns_and_config(self) -> tuple[Columns, Config]:
        """What the model expects, and the settings that it was trained with.

        Raises:
            KeyError, TypeError, SettingsError: They are not there, or not what this version knows.
        """
        return Columns.from_dict(self.columns), checked(Config, self.config, MANIFEST)

    def expected_id(self) -> str:
        """`id` as it follows from the rest."""
        what = {
            "dtype": self.dtype,
            "dim": self.dim,
            "columns": dict(self.columns),
            "model": self.config["model"],
            "content": self.content.model_dump(),
        }
        return digest(what, escaped=False)

    def with_id(self) -> Self:
        """This with the id that follows from the rest."""
        return replace(self, id=self.expected_id())


_CHECKED: TypeAdapter[Any] = TypeAdapter(ExportManifest)


def _from_version_1(content: Plain) -> Plain:
    """The checksum was over unescaped text; `parent` was `follows`, and `version` the package's."""
    if content.pop("checksum") != digest(content, escaped=False):
        raise ValueError("its checksum is not that of its content")
    parent, version = content.pop("follows"), content.pop("version")
    return {**content, "parent": parent, "written_by": f"sparsegroup {version}"}


EXPORT = FolderFormat(
    name="export",
    file=MANIFEST,
    version=2,
    manifest=ExportManifest,
    error=ExportError,
    migrations={1: _from_version_1},
    missing=lambda folder: "no export",
)
"""The format of exports and deltas. Settings that were renamed since are migrated in `content["config"]`."""


def read_manifest(folder: Path) -> ExportManifest:
    """The manifest of an export or a delta.

    Raises:
        ExportError: There is none, it is damaged, or a newer version has written it.
    """
    return EXPORT.read(folder)
