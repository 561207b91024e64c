"""Deltas: the changes since an earlier export, and their application."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sparsegroup.artifact.manifest import Parent, chain_of
from sparsegroup.artifact.tensor_file import write_tensors
from sparsegroup.serving.evaluation import TestRows
from sparsegroup.serving.exporting import Draft, check_request, completed, draft_of, save_vocabulary, snapshot_of
from sparsegroup.serving.manifest import (
    EXPORT,
    TOMBSTONES,
    UPSERTS,
    DeltaCounts,
    ExportManifest,
    check_free,
    file_of,
)
from sparsegroup.serving.opening import Export, TrainedModel, apply, read_export
from sparsegroup.serving.rows import Difference, Embeddings, ExportError, difference, has_same_bits
from sparsegroup.settings.declared import ADMISSION_SETTINGS
from sparsegroup.settings.names import Dtype, KeyFormat, ProgramName
from sparsegroup.training.build import ModelConfig


def export_delta(
    trained: TrainedModel,
    out: str | Path,
    since: str | Path,
    dtype: Dtype | None = None,
    *,
    keys: KeyFormat | None = None,
    test: TestRows | None = None,
    overwrite: bool = False,
) -> ExportManifest:
    """Write what leads from an earlier export, or delta, to the export of a trained model.

    Args:
        trained: The model.
        out: The folder.
        since: The export or delta to follow.
        dtype, keys: Its formats, which are the default.
        test: The rows to test it on; a delta holds no models.
        overwrite: Replace an existing export.

    Raises:
        ExportError: As `export_trained`; `since` has another format, other columns or another network, is damaged, or
            is not of a trained model; its fingerprints have too few bits for the rows that there are now.
    """
    out, since = Path(out), Path(since)
    check_free(out, overwrite)
    check_request(trained.columns, (), test)
    base = read_export(since)
    base.columns_and_config()
    if any(path.resolve() == out.resolve() for path, _ in chain_of(since, EXPORT)):
        raise ExportError(f"{out}: a delta cannot take the place of an export that it builds on")
    if dtype is not None and dtype != base.manifest.dtype:
        raise ExportError(f"{since}: its vectors are {base.manifest.dtype}; a delta to {dtype} cannot be made")
    if keys is not None and keys != base.manifest.keys:
        raise ExportError(f"{since}: its keys are {base.manifest.keys}; a delta to {keys} cannot be made")
    trained.check_rows()
    draft = draft_of(trained, snapshot_of(trained, base.manifest.dtype, base.manifest.keys, base.tables))
    if (what := obstacle(base, draft.manifest, draft.rows)) is not None:
        raise ExportError(f"{since}: has {what}; no delta leads from it to this model. Export that as a whole")

    with draft.writing(out, overwrite) as (folder, manifest):
        for table in manifest.tables.values():
            (folder / table.file).unlink()  # the id is that of the whole export
        changes = {name: difference(base.tables[name], rows) for name, rows in draft.rows.items()}
        save_vocabulary(draft.vocabularies, [change.upserts for change in changes.values()], folder)
        parent = Parent(base.manifest.id, Path(os.path.relpath(since, out)).as_posix())
        manifest = write_changes(folder, manifest, parent, changes)
        return completed(folder, manifest, draft.add_models(folder, manifest, trained.model, test=test))


def write_changes(
    folder: Path, manifest: ExportManifest, parent: Parent, changes: Mapping[str, Difference]
) -> ExportManifest:
    """Write the upserts and tombstones of each table; returns an export's manifest as that of a delta to it."""
    for name, change in changes.items():
        change.upserts.save(folder / file_of(name, UPSERTS))
        write_tensors(folder / file_of(name, TOMBSTONES), {"keys": change.tombstones.contiguous()})
    counts = DeltaCounts(
        upserts=sum(len(change.upserts) for change in changes.values()),
        tombstones=sum(len(change.tombstones) for change in changes.values()),
    )
    return replace(manifest, kind="delta", parent=parent, changes=counts)


def apply_deltas(
    base: str | Path,
    deltas: Sequence[str | Path],
    out: str | Path,
    formats: Collection[ProgramName] = (),
    *,
    test: TestRows | None = None,
    threads: int = 1,
    overwrite: bool = False,
) -> ExportManifest:
    """Write the export that deltas lead to, one after the other, from `base`: byte for byte the one made directly.

    Args:
        base: An export, or a delta whose base is still in its place.
        deltas: Folders, in order.
        out: The folder.
        formats, test, threads: See `export_trained`.
        overwrite: Replace an existing export.

    Raises:
        ExportError: As `export_trained`; a delta that is damaged, does not follow its predecessor, or leads to other
            rows than it describes; an export of another module. Nothing is written.
    """
    check_free(Path(out), overwrite)
    result = read_export(base)
    result.columns_and_config()
    result = apply(result, *map(Path, deltas))
    manifest = replace(result.manifest, kind="export", parent=None, changes=None)
    check_request(manifest.columns_and_config()[0], formats, test)
    draft = Draft(manifest, result.tables, result.model(), result.vocabularies)
    with draft.writing(Path(out), overwrite) as (folder, manifest):
        save_vocabulary(draft.vocabularies, draft.rows.values(), folder)
        return completed(folder, manifest, draft.add_models(folder, manifest, None, formats, test, threads))


def obstacle(base: Export, new: ExportManifest, rows: Mapping[str, Embeddings]) -> str | None:
    """Why no delta leads from one export to another, as what the first one has: "another network"; None if one does."""
    old = base.manifest
    dims = [{name: table.dim for name, table in one.tables.items()} for one in (new, old)]
    bits = dims[0] == dims[1] and all(has_same_bits(rows[name], tables) for name, tables in base.tables.items())
    differs = {
        "another format of vectors": new.dtype != old.dtype,
        "another format of keys": new.keys != old.keys,
        "other columns": new.columns != old.columns,
        "another network": _network_of(new) != _network_of(old),
        "other tables": dims[0] != dims[1],
        "fingerprints of too few bits for the present number of rows": not bits,
    }
    return next((what for what, is_so in differs.items() if is_so), None)


def _network_of(manifest: ExportManifest) -> ModelConfig:
    """The settings that determine the network: without the rules for when a feature gets a row."""
    plain = {name: ModelConfig.model_fields[name].default for name in ADMISSION_SETTINGS}
    return manifest.columns_and_config()[1].model.model_copy(update=plain)
