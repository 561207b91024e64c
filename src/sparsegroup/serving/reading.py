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
    file_of,
    read_manifest,
)
from sparsegroup.settings.names import Dtype
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
    if not len(old):
        return Difference(new, old.keys)
    place, is_there = _find(old.keys, new.keys)
    remains = torch.zeros(len(old), dtype=torch.bool)
    remains[place[is_there]] = True
    changed = ~is_there
    for ours, theirs in zip(_words(old), _words(new), strict=True):
        for column in range(ours.shape[1]):  # one column after the other: no copy of both tables
            changed |= ours[:, column].index_select(0, place) != theirs[:, column]
    return Difference(new[changed], old.keys[~remains])


def _words(rows: Embeddings) -> list[Tensor]:
    """The bits of vectors and scales as integers, `[n, words]`, of as many bytes as divide a row's."""
    parts = [rows.vectors] if rows.scale is None else [rows.vectors, rows.scale.unsqueeze(1)]
    found = []
    for part in (part.contiguous() for part in parts):
        row_bytes = part.shape[1] * part.element_size()
        size = next(
            size for size in (torch.int64, torch.int32, torch.int16, torch.int8) if row_bytes % size.itemsize == 0
        )
        found.append(part.view(size))
    return found


def _find(keys: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The place of each of `wanted` among ascending keys, and whether it is there; if not, the place is any."""
    if not len(keys):
        return torch.zeros(len(wanted), dtype=torch.int64), torch.zeros(len(wanted), dtype=torch.bool)
    place = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
    return place, keys[place] == wanted


def merge(old: Embeddings, change: Difference) -> Embeddings:
    """`old` with the tombstones removed and the upserts set; tombstones of absent keys have no effect."""
    upserts = change.upserts
    remains = torch.ones(len(old), dtype=torch.bool)
    for keys in (change.tombstones, upserts.keys):
        place, is_there = _find(old.keys, keys)
        remains[place[is_there]] = False
    rows = old[remains]
    # In the result, a row comes after the upserts below its key, and an upsert after the rows below its.
    at = torch.searchsorted(rows.keys, upserts.keys) + torch.arange(len(upserts))
    is_new = torch.zeros(len(rows) + len(upserts), dtype=torch.bool)
    is_new[at] = True

    def joined(kept: Tensor, new: Tensor) -> Tensor:
        result = kept.new_empty(len(is_new), *kept.shape[1:])
        result[~is_new], result[is_new] = kept, new
        return result

    scale = None
    if rows.scale is not None and upserts.scale is not None:
        scale = joined(rows.scale, upserts.scale)
    return Embeddings(joined(rows.keys, upserts.keys), joined(rows.vectors, upserts.vectors), scale, upserts.fallback)


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
            built, _ = config.build_for(columns, device="cpu", draws=False)
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
    before = export.manifest
    for field, ours, theirs in (
        ("dtype", manifest.dtype, before.dtype),
        ("columns", manifest.columns, before.columns),
        ("tables", sorted(manifest.tables), sorted(before.tables)),
        *(
            (f"tables.{name}.dim", table.dim, export.tables[name].dim)
            for name, table in manifest.tables.items()
            if name in export.tables
        ),
    ):
        if ours != theirs:
            raise ExportError(f"{folder / MANIFEST}: damaged ({field}: {ours} cannot follow {theirs})")
    changes = {name: _read_change(folder, name, table.dim, manifest.dtype) for name, table in manifest.tables.items()}
    merged = {name: merge(export.tables[name], change) for name, change in changes.items()}
    assert manifest.changes is not None
    for field, recorded, found in (
        ("changes.upserts", manifest.changes.upserts, sum(len(change.upserts) for change in changes.values())),
        ("changes.tombstones", manifest.changes.tombstones, sum(len(change.tombstones) for change in changes.values())),
        *((f"tables.{name}.live_rows", table.live_rows, len(merged[name])) for name, table in manifest.tables.items()),
    ):
        _check_count(folder, field, recorded, found)
    vocabularies = export.vocabularies + ((folder / VOCABULARY,) if VOCABULARY in manifest.files else ())
    return Export(folder, manifest, merged, read_tensors(folder / NETWORK, ExportError), vocabularies)


def _read_change(folder: Path, table: str, dim: int, dtype: Dtype) -> Difference:
    upserts = load_embeddings(folder / file_of(table, UPSERTS), dim, dtype)
    path = folder / file_of(table, TOMBSTONES)
    tombstones = read_tensors(path, ExportError).get("keys")
    if tombstones is None or tombstones.dtype != torch.int64 or tombstones.ndim != 1:
        raise ExportError(f"{path}: damaged (keys must be int64 [k])")
    return Difference(upserts, tombstones)


def _check_count(folder: Path, field: str, recorded: int, found: int) -> None:
    if recorded != found:
        raise ExportError(f"{folder / MANIFEST}: damaged ({field}: {recorded:,}, but the files have {found:,})")
