"""Exports as they lie on disk: read, checked, and a chain of deltas followed to what it leads to."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sparsegroup.artifact.manifest import chain_of
from sparsegroup.artifact.tensor_file import read_tensors
from sparsegroup.serving.frozen import Embeddings, ExportError, QuantizedVectors, load_embeddings
from sparsegroup.serving.frozen_model import FrozenModel, ServingModel, tables_of
from sparsegroup.serving.manifest import (
    EXPORT,
    MANIFEST,
    NETWORK,
    TABLE,
    TOMBSTONES,
    UPSERTS,
    ExportContent,
    ExportManifest,
    read_manifest,
)
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.training.network_shapes import check_network_shapes
from sparsegroup.training.run_folder import VOCABULARY


@dataclass(frozen=True)
class Difference:
    """What makes new embeddings of old ones: keys set, with the new fallback vectors, and keys `[k]` removed."""

    upserts: Embeddings
    tombstones: Tensor


def difference(old: Embeddings, new: Embeddings) -> Difference:
    """From `old` to `new`, which have one format. Vectors are compared by their bits."""
    place, known = _find(old.keys, new.keys)
    same = torch.zeros(len(new), dtype=torch.bool)
    before, after = old[place[known]], new[known]
    same[known] = torch.stack([a.eq(b).all(1) for a, b in zip(_bits(before), _bits(after), strict=True)]).all(0)
    return Difference(new[~same], old.keys[~_find(new.keys, old.keys)[1]])


def merge(old: Embeddings, change: Difference) -> Embeddings:
    """`old` with the tombstones removed and the upserts set. A tombstone of a key that is not there does nothing."""
    gone = torch.unique(torch.cat([change.tombstones, change.upserts.keys]))
    kept = old[~_find(gone, old.keys)[1]]
    keys, order = torch.cat([kept.keys, change.upserts.keys]).sort()
    vectors = torch.cat([kept.vectors.vectors, change.upserts.vectors.vectors])[order]
    scales, scale = (kept.vectors.scale, change.upserts.vectors.scale), None
    if scales[0] is not None and scales[1] is not None:
        scale = torch.cat([scales[0], scales[1]])[order]
    return Embeddings(keys, QuantizedVectors(vectors, scale), change.upserts.fallback)


def _find(keys: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Where each of `wanted` is in the ascending `keys`, and whether it is there."""
    if not len(keys):
        return torch.zeros_like(wanted), torch.zeros(len(wanted), dtype=torch.bool)
    place = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    return place, keys[place] == wanted


def _bits(embeddings: Embeddings) -> list[Tensor]:
    vectors, scale = embeddings.vectors.vectors, embeddings.vectors.scale
    parts = [vectors] if scale is None else [vectors, scale.unsqueeze(1)]
    return [part.contiguous().view(torch.uint8) for part in parts]


@dataclass(frozen=True)
class Export:
    """What a server needs. `model` and `serving_model` are those of trained models.

    Attributes:
        folder: Where it lies.
        manifest: The manifest of the folder.
        tables: Name → live rows of a table.
        network: The `state_dict` of all but the tables.
        vocabularies: Files of key, field and value, where they were kept; of a chain, the newest last.
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

    def model(self) -> FrozenModel:
        """The model that it serves.

        Raises:
            ExportError: The weights do not fit the settings.
        """
        columns, config = self.manifest.columns_and_config()
        try:
            check_network_shapes(config, columns, self.network)
            with torch.random.fork_rng(devices=()):  # it is initialized before its weights are loaded
                built, _ = config.build_for(columns)
        except SettingsError as error:
            raise ExportError(f"{self.folder / MANIFEST}: damaged (config.{error})") from error
        found = {name: table.dim for name, table in tables_of(built).items()}
        if found != (given := {name: rows.dim for name, rows in self.tables.items()}):
            raise ExportError(f"{self.folder}: damaged (its tables are {given}, those of its settings {found})")
        model = FrozenModel.of(built, self.tables)
        try:
            model.load_other_weights(self.network)
        except ExportError as error:
            raise ExportError(f"{self.folder / NETWORK}: does not fit the settings ({error})") from error
        return model

    def serving_model(self) -> ServingModel:
        """The model that the files `model.onnx` and `model.pt2` are made of."""
        model = self.model()
        return ServingModel(model.embedding, model.network, self.manifest.columns_and_config()[0])


def read_export(folder: str | Path) -> Export:
    """The export in a folder; of a delta, the one that it leads to, found by the paths that deltas record.

    All files are checked against the manifests.

    Raises:
        ExportError: No export; a damaged file, by name; a delta whose base is another than it was made for.
    """
    whole, *deltas = chain_of(Path(folder), EXPORT)
    export = _read_whole(*whole)
    for delta in deltas:
        export = _applied(export, *delta)
    return export


def read_trained(folder: str | Path) -> Export:
    """As `read_export`, of a trained model: it has the columns of a log and settings."""
    export = read_export(folder)
    try:
        export.manifest.columns_and_config()
    except ExportError as error:
        raise ExportError(f"{folder}: {error}") from error
    return export


def leads_through(folder: Path, other: Path) -> bool:
    """Whether an export, or what a delta builds on, lies in the folder `other`."""
    return any(path.resolve() == other.resolve() for path, _ in chain_of(folder, EXPORT))


def _read_whole(folder: Path, manifest: ExportManifest) -> Export:
    _verify_files(folder, manifest, (*(table.file for table in manifest.tables.values()), NETWORK))
    rows = {name: manifest.files[table.file] for name, table in manifest.tables.items()}
    if ExportContent(tables=rows, network=manifest.files[NETWORK]) != manifest.content:
        raise ExportError(f"{folder}: damaged (the manifest's files are not its content)")
    tables = {}
    for name, table in manifest.tables.items():
        tables[name] = load_embeddings(folder / table.file, table.dim, manifest.dtype)
        _check_count(folder, f"tables.{name}.live_rows", table.live_rows, len(tables[name]))
    network = read_tensors(folder / NETWORK, ExportError)
    return Export(folder, manifest, tables, network, _vocabulary(folder, manifest))


def apply(export: Export, folder: Path) -> Export:
    """What a delta makes of an export, in memory."""
    manifest = read_manifest(folder)
    if manifest.parent is None:
        raise ExportError(f"{folder}: a whole export, no delta")
    if manifest.parent.id != export.manifest.id:
        raise ExportError(
            f"{folder}: follows export {manifest.parent.id}, not {export.manifest.id}, which {export.folder} leads to"
        )
    return _applied(export, folder, manifest)


def _applied(export: Export, folder: Path, manifest: ExportManifest) -> Export:
    _verify_files(folder, manifest, (UPSERTS, TOMBSTONES, NETWORK))
    base = export.embeddings
    for what, ours, theirs in (
        (f"tables.{TABLE}.dim", manifest.tables[TABLE].dim, base.dim),
        ("dtype", manifest.dtype, export.manifest.dtype),
        ("columns", manifest.columns, export.manifest.columns),
    ):
        if ours != theirs:
            raise ExportError(f"{folder / MANIFEST}: damaged ({what}: {ours} cannot follow {theirs})")
    upserts = load_embeddings(folder / UPSERTS, manifest.tables[TABLE].dim, manifest.dtype)
    tombstones = read_tensors(folder / TOMBSTONES, ExportError).get("keys")
    if tombstones is None or tombstones.dtype != torch.int64 or tombstones.ndim != 1:
        raise ExportError(f"{folder / TOMBSTONES}: damaged (keys must be int64 [k])")
    merged = merge(base, Difference(upserts, tombstones))
    if manifest.changes is not None:
        _check_count(folder, "changes.upserts", manifest.changes.upserts, len(upserts))
        _check_count(folder, "changes.tombstones", manifest.changes.tombstones, len(tombstones))
    _check_count(folder, f"tables.{TABLE}.live_rows", manifest.tables[TABLE].live_rows, len(merged))
    vocabularies = (*export.vocabularies, *_vocabulary(folder, manifest))
    return Export(folder, manifest, {TABLE: merged}, read_tensors(folder / NETWORK, ExportError), vocabularies)


def _verify_files(folder: Path, manifest: ExportManifest, needed: tuple[str, ...]) -> None:
    if missing := [name for name in needed if name not in manifest.files]:
        raise ExportError(f"{folder}: damaged (the manifest does not name {missing[0]})")
    manifest.check_files(folder, ExportError)


def _check_count(folder: Path, field: str, said: int, found: int) -> None:
    if said != found:
        raise ExportError(f"{folder / MANIFEST}: damaged ({field}: {said:,}, but the files have {found:,})")


def _vocabulary(folder: Path, manifest: ExportManifest) -> tuple[Path, ...]:
    return (folder / VOCABULARY,) if VOCABULARY in manifest.files else ()
