"""`manifest.json`, which says what an export holds. It is written last: a folder without it is none."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import xxhash
from pydantic import BeforeValidator, PlainSerializer, ValidationError

from sparsegroup.names import Dtype
from sparsegroup.serving.export_error import ExportError
from sparsegroup.training import Config
from sparsegroup.training.input_columns import Columns
from sparsegroup.yaml_settings import SettingsError, StrictSettings, checked

MANIFEST = "manifest.json"
EMBEDDINGS = "embeddings.safetensors"
NETWORK = "network.safetensors"
ONNX = "model.onnx"
PROGRAM = "model.pt2"
UPSERTS = "upserts.safetensors"
TOMBSTONES = "tombstones.safetensors"
FORMAT = 1

Number = Annotated[
    float,
    BeforeValidator(lambda value: math.nan if value is None else value),
    PlainSerializer(lambda value: value if math.isfinite(value) else None),
]
"""JSON has no NaN: an AUC of one class is null."""


class FileInfo(StrictSettings):
    """A file: its size, and XXH3_64 of its bytes in hexadecimal."""

    bytes: int
    xxh3_64: str


class ExportContent(StrictSettings):
    """The two files that a full export is made of; a delta names what it leads to."""

    embeddings: FileInfo
    network: FileInfo


class FieldRows(StrictSettings):
    """Features of a field: those in the export, and those that training has seen."""

    live: int
    seen: int


class SizesBefore(StrictSettings):
    """Sizes before the export, in bytes.

    Attributes:
        dense: Of a float32 vector for each feature seen.
        table: Of the table in training: index, vectors, optimizer's state.
    """

    dense: int
    table: int


class PathScores(StrictSettings):
    """Of one way to compute the probabilities of the test rows.

    Attributes:
        auc: NaN (null) where only one class is present.
        log_loss: In nats.
        max_abs_difference: Of a probability to the export's in PyTorch.
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


class DeltaBase(StrictSettings):
    """The export that a delta is to be applied to: its id, and where it was, seen from the delta's folder."""

    id: str
    path: str


class DeltaCounts(StrictSettings):
    """How many keys a delta sets and removes."""

    upserts: int
    tombstones: int


class ExportManifest(StrictSettings):
    """What a folder holds.

    Attributes:
        format: Version of the folder's layout.
        kind: "export" is whole, "delta" the way to one.
        id: XXH3_64 over what the model computes: format of the vectors, columns, network and the content's checksums;
            of a delta, that of the export it leads to.
        version: Of the package.
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
        files: Of the folder, except this one.
        test: If there was a test log.
        follows, changes: Of a delta.
    """

    format: int = FORMAT
    kind: Literal["export", "delta"]
    id: str
    version: str
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
    files: Mapping[str, FileInfo]
    test: TestResult | None = None
    follows: DeltaBase | None = None
    changes: DeltaCounts | None = None

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.bytes for file in self.files.values())

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
        return _digest(what)

    def with_id(self) -> Self:
        """This with the id that follows from the rest."""
        return self.model_copy(update={"id": self.expected_id()})

    def write(self, folder: Path) -> None:
        """Complete the folder."""
        content = self.model_dump(mode="json")
        text = json.dumps({**content, "checksum": _digest(content)}, indent=1, ensure_ascii=False, allow_nan=False)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> ExportManifest:
    """The manifest of an export or a delta.

    Raises:
        ExportError: There is none, it is damaged, or of another version.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise ExportError(f"{folder}: no export ({MANIFEST} is missing)")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is no object")
        if content.get("format") != FORMAT:
            raise ExportError(f"{path}: format {content.get('format')}, this version reads {FORMAT}")
        checksum = content.pop("checksum", None)
        if checksum != _digest(content):
            raise ValueError("its checksum is not that of its content")
        manifest = ExportManifest.model_validate(content)
        manifest.columns_and_config()
        if manifest.id != manifest.expected_id():
            raise ValueError("its id is not that of its content")
    except ExportError:
        raise
    except ValidationError as error:
        first = error.errors()[0]
        raise ExportError(f"{path}: damaged ({'.'.join(map(str, first['loc']))}: {first['msg']})") from error
    except (OSError, ValueError, KeyError, TypeError, SettingsError) as error:
        raise ExportError(f"{path}: damaged ({error})") from error
    return manifest


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return xxhash.xxh3_64_hexdigest(text.encode())
