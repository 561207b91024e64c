"""Trained models and exports, opened: read from their folders, checked, a chain of deltas followed to its end."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sparsegroup.artifact.manifest import chain_of
from sparsegroup.artifact.tensor_file import facts_of_tensors, read_tensors
from sparsegroup.checkpoint import load_checkpoint
from sparsegroup.checkpoint.load import saved_state
from sparsegroup.checkpoint.manifest import MANIFEST as CHECKPOINT
from sparsegroup.data.schema import LogSchema
from sparsegroup.serving.frozen import FrozenTable
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
from sparsegroup.serving.rows import Difference, Embeddings, ExportError, has_same_bits, load_embeddings, merge
from sparsegroup.settings.yaml_settings import SettingsError, checked
from sparsegroup.table import FieldCount
from sparsegroup.table.field_tables import tables_in
from sparsegroup.table.rows.rows import WEIGHT
from sparsegroup.table.table import Table
from sparsegroup.training import ClickModel, Config, RunError
from sparsegroup.training.baseline import Baseline, baseline_of
from sparsegroup.training.run_folder import NAMES, VOCABULARY, RunFolder, find_run
from sparsegroup.training.state import CheckpointMetadata


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
        tables[name] = load_embeddings(folder / table.file, table.dim, manifest.dtype, manifest.keys)
        _check_count(folder, f"tables.{name}.live_rows", table.live_rows, len(tables[name]))
    vocabularies = (folder / VOCABULARY,) if VOCABULARY in manifest.files else ()
    export = Export(folder, manifest, tables, _read_network(folder), vocabularies)
    for delta, manifest in deltas:
        export = _applied(export, delta, manifest)
    return _checked(export)


def apply(export: Export, *folders: Path) -> Export:
    """Return the export that results from applying deltas in order, in memory.

    Raises:
        ExportError: A folder is no delta, does not follow the one before it, is damaged, or leads to other rows than
            its manifest describes.
    """
    for folder in folders:
        manifest = read_manifest(folder)
        if manifest.parent is None:
            raise ExportError(f"{folder}: a whole export, no delta")
        if manifest.parent.id != export.manifest.id:
            raise ExportError(
                f"{folder}: follows export {manifest.parent.id}, not {export.manifest.id}, which {export.folder} "
                "leads to"
            )
        export = _applied(export, folder, manifest)
    return _checked(export)


def _applied(export: Export, folder: Path, manifest: ExportManifest) -> Export:
    """Return the result of a delta. The caller compares the rows with the manifest by `_checked`."""
    manifest.check_files(folder, ExportError)
    before = export.manifest
    for field, ours, theirs in (
        ("dtype", manifest.dtype, before.dtype),
        ("keys", manifest.keys, before.keys),
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
    changes = {name: _read_change(folder, name, table.dim, manifest) for name, table in manifest.tables.items()}
    for name, change in changes.items():
        if not has_same_bits(change.upserts, export.tables[name]):
            raise ExportError(f"{folder / file_of(name, UPSERTS)}: damaged (bits: what it follows has others)")
    merged = {name: merge(export.tables[name], change) for name, change in changes.items()}
    assert manifest.changes is not None
    for field, recorded, found in (
        ("changes.upserts", manifest.changes.upserts, sum(len(change.upserts) for change in changes.values())),
        ("changes.tombstones", manifest.changes.tombstones, sum(len(change.tombstones) for change in changes.values())),
        *((f"tables.{name}.live_rows", table.live_rows, len(merged[name])) for name, table in manifest.tables.items()),
    ):
        _check_count(folder, field, recorded, found)
    vocabularies = export.vocabularies + ((folder / VOCABULARY,) if VOCABULARY in manifest.files else ())
    return Export(folder, manifest, merged, _read_network(folder), vocabularies)


def _checked(export: Export) -> Export:
    """Return the export. ExportError: the rows after a delta have other digests than the delta's manifest.

    The digests of a whole export's files have been checked before.
    """
    if export.manifest.kind == "delta":
        for name, recorded in export.manifest.content.tables.items():
            if facts_of_tensors(export.tables[name].tensors()) != recorded:
                raise ExportError(
                    f"{export.folder / MANIFEST}: damaged (content.tables.{name}: the delta leads to other rows)"
                )
    return export


def _read_network(folder: Path) -> dict[str, Tensor]:
    """Read the weights outside of tables. A buffer, such as a mask, may hold infinite values, but no NaN."""
    path = folder / NETWORK
    weights = read_tensors(path, ExportError)
    for name, values in weights.items():
        if bool(values.isnan().any()):
            raise ExportError(f"{path}: {name} holds values that are not numbers; export an earlier checkpoint")
    return weights


def _read_change(folder: Path, table: str, dim: int, manifest: ExportManifest) -> Difference:
    upserts = load_embeddings(folder / file_of(table, UPSERTS), dim, manifest.dtype, manifest.keys)
    path = folder / file_of(table, TOMBSTONES)
    tombstones = read_tensors(path, ExportError).get("keys")
    if tombstones is None or tombstones.dtype != torch.int64 or tombstones.ndim != 1:
        raise ExportError(f"{path}: damaged (keys must be int64 [k])")
    return Difference(upserts, tombstones)


def _check_count(folder: Path, field: str, recorded: int, found: int) -> None:
    if recorded != found:
        raise ExportError(f"{folder / MANIFEST}: damaged ({field}: {recorded:,}, but the files have {found:,})")


SCANNED = 1 << 16
"""Rows of one read."""


RowSource = FrozenTable | Table
"""A table, in training or of an export, whose rows can be read."""

Kind = Literal["run", "checkpoint", "export"]


@dataclass(frozen=True)
class TrainedModel:
    """A trained model with its settings and columns.

    Attributes:
        path: Its folder.
        kind: What the folder is.
        config: Settings it was trained with.
        columns: The columns that it expects of its logs.
        model: The model, in evaluation mode: an export's as served, otherwise as trained, with the
            optimizer's state in its tables' rows.
        vocabulary: Parquet file of key, field and value, if one was kept.
        names: The same of the features of the largest vectors; None of an export.
        baseline: The run's logistic regression, if there was one; None of an export.
        samples: Trained on, in all; None if that is not known.
        steps: The step count of the tables' optimizer; None if there is none.
        l21: The tables' λ21 in force, which a target changes; None of an export.
        manifest: The manifest of an export, which knows what training has seen, unlike its tables.
    """

    path: Path
    kind: Kind
    config: Config
    columns: LogSchema
    model: ClickModel
    vocabulary: Path | None
    samples: int | None = None
    steps: int | None = None
    l21: float | None = None
    manifest: ExportManifest | None = None
    names: Path | None = None
    baseline: Baseline | None = None

    @property
    def rows(self) -> dict[str, RowSource]:
        """The rows of each table, to be read, by its name."""
        tables = tables_of(self.model)
        return {name: table if isinstance(table, FrozenTable) else table.table for name, table in tables.items()}

    def check_rows(self, *, state: bool = False) -> None:
        """Raise RunError unless the vectors of all rows are finite, and with `state` the rest of the rows."""
        for name, table in self.rows.items():
            rows = wrong = 0
            for keys, arrays in table.scan_rows([WEIGHT, *(table.state_names if state else ())], SCANNED):
                rows += len(keys)
                finite = np.logical_and.reduce([np.isfinite(array).all(axis=1) for array in arrays])
                wrong += len(keys) - int(finite.sum())
            if wrong:
                raise RunError(
                    f"{self.path}: {wrong:,} of {rows:,} rows of the table {name!r} are not finite: training has "
                    "diverged; take an earlier checkpoint"
                )

    def field_counts(self) -> dict[str, FieldCount]:
        """Field → its rows, and its features that training has seen."""
        found = self.model.embedding.field_counts()
        nothing = FieldCount(0, 0, 0)
        names = self.config.model.vocabularies(self.columns)
        counts = {name: found.get(number, nothing) for number, name in names.items()}
        if self.manifest is None:
            return counts
        seen = self.manifest.fields
        return {name: FieldCount(seen[name].seen, rows.rows, rows.live) for name, rows in counts.items()}


def open_trained(path: str | Path, *, sweep: bool = False) -> TrainedModel:
    """The model in the folder `path`.

    Args:
        path: A run, a checkpoint or an export; or a folder of runs named by time, for the latest.
        sweep: Apply the closed form to all rows once more (`GroupOptimizer.sweep`), so that a λ that changed reaches
            rows that no batch has touched since. No effect on an export.

    Raises:
        RunError, CheckpointError: It holds no model, or a damaged one.
    """
    path = Path(path)
    if (path / MANIFEST).is_file():
        export = read_export(path)
        columns, config = export.columns_and_config()
        names = export.vocabularies[0] if len(export.vocabularies) == 1 else None
        return TrainedModel(path, "export", config, columns, export.model(), names, manifest=export.manifest)
    if (path / CHECKPOINT).is_file():
        return _open_checkpoint(path, "checkpoint", path, path.parent.parent / VOCABULARY, sweep)
    run = RunFolder(find_run(path))
    run.finished_config()
    return _open_checkpoint(run.path, "run", run.last_checkpoint(), run.path / VOCABULARY, sweep)


def _open_checkpoint(path: Path, kind: Kind, checkpoint: Path, vocabulary: Path, sweep: bool) -> TrainedModel:
    RunFolder(vocabulary.parent).check_names()
    saved = saved_state(checkpoint)
    extra = CheckpointMetadata.of(saved.extra, checkpoint)
    config, columns = checked(Config, extra.config, str(checkpoint)), extra.columns
    try:
        config.check_shapes(columns, saved.model)
        model, optimizer = config.build_for(columns, device="cpu", draws=False)
    except SettingsError as error:
        raise RunError(f"{checkpoint}: damaged (state.extra.config.{error})") from error
    load_checkpoint(checkpoint, model, optimizer, rng=False)
    if sweep:
        optimizer.sweep(zero_untrained=True)
    entries = [optimizer.state.get(table.weight) for table in tables_in(model).values()]
    return TrainedModel(
        path,
        kind,
        config,
        columns,
        model.eval(),
        vocabulary if vocabulary.is_file() else None,
        samples=extra.samples,
        steps=max(int(entry["step"]) if entry else 0 for entry in entries),
        l21=float(optimizer.param_groups[0]["l21"]),
        baseline=baseline_of(extra, checkpoint, model.network, config.objective),
        names=names if (names := vocabulary.with_name(NAMES)).is_file() else None,
    )
