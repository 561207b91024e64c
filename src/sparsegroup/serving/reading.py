"""Exports on disk: read, checked, and a chain of deltas followed to the export that it leads to."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sparsegroup.artifact.manifest import chain_of
from sparsegroup.artifact.tensor_file import read_tensors
from sparsegroup.data.schema import LogSchema
from sparsegroup.serving.frozen import Embeddings, ExportError, load_embeddings
from sparsegroup.serving.frozen_model import ServingModel, frozen_copy, load_other_weights, tables_of
from sparsegroup.serving.manifest import (
    EXPORT,
    MANIFEST,
    NETWORK,
    TABLE,
    TOMBSTONES,
    UPSERTS,
    ExportManifest,
    read_manifest,
)
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.training import ClickModel, Config
from sparsegroup.training.run_folder import VOCABULARY


@dataclass(frozen=True)
class Difference:
    """The way from old embeddings to new ones: keys to set, with the new fallback vectors, and keys `[k]` to remove."""

    upserts: Embeddings
    tombstones: Tensor


def difference(old: Embeddings, new: Embeddings) -> Difference:
    """From `old` to `new`, which have one format. Vectors are compared by their bits."""
    remains, was_there = torch.isin(old.keys, new.keys), torch.isin(new.keys, old.keys)
    same = was_there.clone()
    same[was_there] = _bits(old[remains]).eq(_bits(new[was_there])).all(1)
    return Difference(new[~same], old.keys[~remains])


def _bits(rows: Embeddings) -> Tensor:
    """The bytes of vectors and scales, `[n, bytes]`."""
    parts = [rows.vectors] if rows.scale is None else [rows.vectors, rows.scale.unsqueeze(1)]
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], 1)


def merge(old: Embeddings, change: Difference) -> Embeddings:
    """`old` with the tombstones removed and the upserts set; tombstones of absent keys have no effect."""
    upserts = change.upserts.tensors()
    remaining = old[~torch.isin(old.keys, torch.cat([change.tombstones, change.upserts.keys]))].tensors()
    order = torch.cat([remaining["keys"], upserts["keys"]]).argsort()
    rows = {name: torch.cat([remaining[name], upserts[name]])[order] for name in remaining if name != "fallback"}
    return Embeddings(**{**upserts, **rows})


@dataclass(frozen=True)
class Export:
    """All that a server needs. `model` and `serving_model` exist for trained models only.

    Attributes:
        folder: The folder that was read.
        manifest: The manifest of the folder.
        tables: Name → live rows of a table.
        network: All other weights, by their names in the model's `state_dict`.
        vocabularies: Files of key, field and value, if they were kept; of a chain, the newest last.
    """

    folder: Path
    manifest: ExportManifest
    tables: Mapping[str, Embeddings]
    network: dict[str, Tensor]
    vocabularies: tuple[Path, ...] = ()

    @property
    def embeddings(self) -> Embeddings:
        """The live rows of a trained model with one table.

        Raises:
            ExportError: It has several.
        """
        if TABLE not in self.tables:
            raise ExportError(f"{self.folder}: has the tables {', '.join(self.tables)}, not one; take `tables`")
        return self.tables[TABLE]

    def columns_and_config(self) -> tuple[LogSchema, Config]:
        """See `ExportManifest.columns_and_config`."""
        try:
            return self.manifest.columns_and_config()
        except ExportError as error:
            raise ExportError(f"{self.folder}: {error}") from error

    def model(self) -> ClickModel:
        """The model that it serves.

        Raises:
            ExportError: The weights do not fit the settings.
        """
        columns, config = self.columns_and_config()
        try:
            config.check_shapes(columns, self.network)
            with torch.random.fork_rng(devices=()):  # it is initialized before its weights are loaded
                built, _ = config.build_for(columns, device="cpu")
        except SettingsError as error:
            raise ExportError(f"{self.folder / MANIFEST}: damaged (config.{error})") from error
        dims = {name: table.dim for name, table in tables_of(built).items()}
        if dims != (given := {name: rows.dim for name, rows in self.tables.items()}):
            raise ExportError(f"{self.folder}: damaged (its tables are {given}, those of its settings {dims})")
        model = frozen_copy(built, self.tables)
        try:
            load_other_weights(model, self.network)
        except ExportError as error:
            raise ExportError(f"{self.folder / NETWORK}: does not fit the settings ({error})") from error
        return model

    def serving_model(self) -> ServingModel:
        """The model that the files `model.onnx` and `model.pt2` are made of."""
        return ServingModel(self.model(), self.columns_and_config()[0])


def read_export(folder: str | Path) -> Export:
    """The export in a folder; of a delta, the export that it leads to, found by the paths that deltas record.

    All files are checked against the manifests.

    Raises:
        ExportError: No export; a damaged file, by name; a delta whose base is another than it was made for.
    """
    (folder, manifest), *deltas = chain_of(Path(folder), EXPORT)
    manifest.check_files(folder, ExportError)
    tables = {}
    for name, table in manifest.tables.items():
        tables[name] = load_embeddings(folder / table.file, table.dim, manifest.dtype)
        _check_count(folder, f"tables.{name}.live_rows", table.live_rows, len(tables[name]))
    vocabularies = (folder / VOCABULARY,) if VOCABULARY in manifest.files else ()
    export = Export(folder, manifest, tables, read_tensors(folder / NETWORK, ExportError), vocabularies)
    for delta, manifest in deltas:
        export = _applied(export, delta, manifest)
    return export


def apply(export: Export, folder: Path) -> Export:
    """The result of a delta on an export, in memory."""
    manifest = read_manifest(folder)
    if manifest.parent is None:
        raise ExportError(f"{folder}: a whole export, no delta")
    if manifest.parent.id != export.manifest.id:
        raise ExportError(
            f"{folder}: follows export {manifest.parent.id}, not {export.manifest.id}, which {export.folder} leads to"
        )
    return _applied(export, folder, manifest)


def _applied(export: Export, folder: Path, manifest: ExportManifest) -> Export:
    manifest.check_files(folder, ExportError)
    base, table = export.embeddings, manifest.tables[TABLE]
    for field, ours, theirs in (
        (f"tables.{TABLE}.dim", table.dim, base.dim),
        ("dtype", manifest.dtype, export.manifest.dtype),
        ("columns", manifest.columns, export.manifest.columns),
    ):
        if ours != theirs:
            raise ExportError(f"{folder / MANIFEST}: damaged ({field}: {ours} cannot follow {theirs})")
    upserts = load_embeddings(folder / UPSERTS, table.dim, manifest.dtype)
    tombstones = read_tensors(folder / TOMBSTONES, ExportError).get("keys")
    if tombstones is None or tombstones.dtype != torch.int64 or tombstones.ndim != 1:
        raise ExportError(f"{folder / TOMBSTONES}: damaged (keys must be int64 [k])")
    merged = merge(base, Difference(upserts, tombstones))
    assert manifest.changes is not None
    _check_count(folder, "changes.upserts", manifest.changes.upserts, len(upserts))
    _check_count(folder, "changes.tombstones", manifest.changes.tombstones, len(tombstones))
    _check_count(folder, f"tables.{TABLE}.live_rows", table.live_rows, len(merged))
    vocabularies = export.vocabularies + ((folder / VOCABULARY,) if VOCABULARY in manifest.files else ())
    return Export(folder, manifest, {TABLE: merged}, read_tensors(folder / NETWORK, ExportError), vocabularies)


def _check_count(folder: Path, field: str, recorded: int, found: int) -> None:
    if recorded != found:
        raise ExportError(f"{folder / MANIFEST}: damaged ({field}: {recorded:,}, but the files have {found:,})")
