"""Deltas: what changed since an earlier export, and how to apply it."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sparsegroup.artifact.folder import atomic_folder
from sparsegroup.artifact.manifest import Parent, facts_of, facts_of_files
from sparsegroup.artifact.tensor_file import write_tensors
from sparsegroup.serving.exporting import (
    ExportDraft,
    ExportRequest,
    draft_of,
    make_and_test,
    save_network,
    save_vocabulary,
    write_export,
)
from sparsegroup.serving.frozen import ExportError
from sparsegroup.serving.manifest import (
    EMBEDDINGS,
    EXPORT,
    NETWORK,
    TABLE,
    TOMBSTONES,
    UPSERTS,
    DeltaCounts,
    ExportContent,
    ExportManifest,
    check_free,
)
from sparsegroup.serving.opening import TrainedModel
from sparsegroup.serving.reading import apply, difference, leads_through, read_trained
from sparsegroup.settings.names import Dtype
from sparsegroup.training.model_config import WHEN_FEATURES_HAVE_ROWS, ModelConfig
from sparsegroup.training.run_dir import VOCABULARY


def export_delta(
    trained: TrainedModel,
    out: str | Path,
    since: str | Path,
    dtype: Dtype | None = None,
    wanted: ExportRequest | None = None,
    *,
    overwrite: bool = False,
) -> ExportManifest:
    """Write what leads from an earlier export, or delta, to the export of a trained model.

    Args:
        trained: The model.
        out: The folder.
        since: The export or delta to follow.
        dtype: Its format, which is the default.
        wanted: The test set; there are no models in a delta.
        overwrite: Replace an export that is there.

    Raises:
        ExportError: As `export_trained`; `since` has another format, other columns or another network, is damaged, or
            is not of a trained model.
    """
    out, since, wanted = Path(out), Path(since), wanted or ExportRequest()
    check_free(out, overwrite)
    wanted.check(trained.columns)
    base = read_trained(since)
    if leads_through(since, out):
        raise ExportError(f"{out}: a delta cannot take the place of an export that it builds on")
    if dtype is not None and dtype != base.manifest.dtype:
        raise ExportError(f"{since}: its vectors are {base.manifest.dtype}; a delta to {dtype} cannot be made")
    parts = draft_of(trained, base.manifest.dtype)
    _check_kinship(base.manifest, parts.draft, since)
    change = difference(base.embeddings, parts.tables[TABLE])
    check_free(out, overwrite)
    with atomic_folder(out.absolute(), replace=overwrite) as folder:
        whole = folder / EMBEDDINGS
        parts.tables[TABLE].save(whole)
        save_network(parts.model, folder / NETWORK)
        content = ExportContent(tables={TABLE: facts_of(whole)}, network=facts_of(folder / NETWORK))
        whole.unlink()
        change.upserts.save(folder / UPSERTS)
        write_tensors(folder / TOMBSTONES, {"keys": change.tombstones.contiguous()})
        if parts.vocabularies:
            save_vocabulary(parts.vocabularies, change.upserts.keys, folder / VOCABULARY)
        manifest = replace(
            parts.draft,
            kind="delta",
            content=content,
            files=facts_of_files(folder),
            parent=Parent(base.manifest.id, Path(os.path.relpath(since, out)).as_posix()),
            changes=DeltaCounts(upserts=len(change.upserts), tombstones=len(change.tombstones)),
            test=make_and_test(parts, folder, ExportRequest(test=wanted.test)),
        )
        return EXPORT.write(folder, manifest.with_id())


def apply_deltas(
    base: str | Path,
    deltas: Sequence[str | Path],
    out: str | Path,
    wanted: ExportRequest | None = None,
    *,
    overwrite: bool = False,
) -> ExportManifest:
    """Write the export that deltas lead to, one after the other, from `base`: byte for byte the one made at once.

    Args:
        base: An export, or a delta whose base is where it was.
        deltas: Folders, in order.
        out: The folder.
        wanted: What else to write, and a test set.
        overwrite: Replace an export that is there.

    Raises:
        ExportError: As `export_trained`; a delta that is damaged or does not follow what is before it; an export of
            another module. Nothing is written.
    """
    wanted = wanted or ExportRequest()
    check_free(Path(out), overwrite)
    result = read_trained(base)
    for delta in deltas:
        result = apply(result, Path(delta))
    draft = replace(result.manifest, kind="export", parent=None, changes=None)
    parts = ExportDraft(draft, result.tables, result.model(), result.vocabularies)
    wanted.check(draft.columns_and_config()[0])
    return write_export(parts, Path(out), wanted, overwrite=overwrite)


def _check_kinship(base: ExportManifest, new: ExportManifest, since: Path) -> None:
    if len(base.tables) > 1 or len(new.tables) > 1:
        raise ExportError(
            f"{since}: a delta is of one table, and with model.dims there are several; export the model as a whole"
        )
    for what, ours, theirs in (
        ("other columns", new.columns, base.columns),
        ("another network", _network_of(new), _network_of(base)),
        ("another dimension", _dims_of(new), _dims_of(base)),
    ):
        if ours != theirs:
            raise ExportError(f"{since}: has {what}; no delta leads from it to this model. Export that as a whole")


def _dims_of(manifest: ExportManifest) -> dict[str, int]:
    return {name: table.dim for name, table in manifest.tables.items()}


def _network_of(manifest: ExportManifest) -> ModelConfig:
    """The model's settings, but for when a feature has its row, which a server need not know."""
    plain = {name: ModelConfig.model_fields[name].default for name in WHEN_FEATURES_HAVE_ROWS}
    return manifest.columns_and_config()[1].model.model_copy(update=plain)
