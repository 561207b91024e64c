"""Deltas: the changes since an earlier export, and their application."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sparsegroup.artifact.manifest import Parent, chain_of
from sparsegroup.artifact.tensor_file import write_tensors
from sparsegroup.serving.evaluation import TestRows
from sparsegroup.serving.exporting import Draft, check_request, completed, draft_of, keys_of, save_vocabulary
from sparsegroup.serving.frozen import ExportError
from sparsegroup.serving.manifest import (
    EXPORT,
    TOMBSTONES,
    UPSERTS,
    DeltaCounts,
    ExportManifest,
    check_free,
    file_of,
)
from sparsegroup.serving.opening import TrainedModel
from sparsegroup.serving.reading import Difference, apply, difference, read_export
from sparsegroup.settings.declared import ADMISSION_SETTINGS
from sparsegroup.settings.names import Dtype, ProgramName
from sparsegroup.training.build import ModelConfig


def export_delta(
    trained: TrainedModel,
    out: str | Path,
    since: str | Path,
    dtype: Dtype | None = None,
    *,
    test: TestRows | None = None,
    overwrite: bool = False,
) -> ExportManifest:
    """Write what leads from an earlier export, or delta, to the export of a trained model.

    Args:
        trained: The model.
        out: The folder.
        since: The export or delta to follow.
        dtype: Its format, which is the default.
        test: The rows to test it on; a delta holds no models.
        overwrite: Replace an existing export.

    Raises:
        ExportError: As `export_trained`; `since` has another format, other columns or another network, is damaged, or
            is not of a trained model.
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
    draft = draft_of(trained, base.manifest.dtype)
    if (what := obstacle(base.manifest, draft.manifest)) is not None:
        raise ExportError(f"{since}: has {what}; no delta leads from it to this model. Export that as a whole")

    with draft.writing(out, overwrite) as (folder, manifest):
        for table in manifest.tables.values():
            (folder / table.file).unlink()  # the id is that of the whole export
        changes = {name: difference(base.tables[name], rows) for name, rows in draft.rows.items()}
        save_vocabulary(draft.vocabularies, keys_of({name: change.upserts for name, change in changes.items()}), folder)
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
        ExportError: As `export_trained`; a delta that is damaged or does not follow its predecessor; an export
            of another module. Nothing is written.
    """
    check_free(Path(out), overwrite)
    result = read_export(base)
    result.columns_and_config()
    for delta in deltas:
        result = apply(result, Path(delta))
    manifest = replace(result.manifest, kind="export", parent=None, changes=None)
    check_request(manifest.columns_and_config()[0], formats, test)
    draft = Draft(manifest, result.tables, result.model(), result.vocabularies)
    with draft.writing(Path(out), overwrite) as (folder, manifest):
        save_vocabulary(draft.vocabularies, keys_of(draft.rows), folder)
        return completed(folder, manifest, draft.add_models(folder, manifest, None, formats, test, threads))


def obstacle(base: ExportManifest, new: ExportManifest) -> str | None:
    """Why no delta leads from one export to another, as what the first one has: "another network"; None if one does."""
    dims = [{name: table.dim for name, table in one.tables.items()} for one in (new, base)]
    differs = {
        "another format of vectors": new.dtype != base.dtype,
        "other columns": new.columns != base.columns,
        "another network": _network_of(new) != _network_of(base),
        "other tables": dims[0] != dims[1],
    }
    return next((what for what, is_so in differs.items() if is_so), None)


def _network_of(manifest: ExportManifest) -> ModelConfig:
    """The settings that determine the network: without the rules for when a feature gets a row."""
    plain = {name: ModelConfig.model_fields[name].default for name in ADMISSION_SETTINGS}
    return manifest.columns_and_config()[1].model.model_copy(update=plain)
