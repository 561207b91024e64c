"""Where an export may be written."""

from pathlib import Path
from urllib.parse import quote

from sparsegroup.serving.export_error import ExportError
from sparsegroup.serving.export_manifest import (
    EMBEDDINGS,
    MANIFEST,
    NETWORK,
    ONNX,
    PROGRAM,
    TOMBSTONES,
    UPSERTS,
)
from sparsegroup.training.run_dir import VOCABULARY

OWN = {
    *(MANIFEST, EMBEDDINGS, NETWORK, UPSERTS, TOMBSTONES, VOCABULARY, PROGRAM),
    *(ONNX, f"{ONNX}.data"),
}
"""Files of an export or delta, but for those of several tables."""

_PREFIX, _SUFFIX = EMBEDDINGS.split(".")


def file_of(table: str) -> str:
    """Name of the file with the rows of a module's table, or of one of a trained model that has several."""
    return f"{_PREFIX}-{quote(table, safe='')}.{_SUFFIX}"  # a module's name may hold a slash


def _is_own(name: str) -> bool:
    return name in OWN or (name.startswith(f"{_PREFIX}-") and name.endswith(f".{_SUFFIX}"))


def check_free(out: Path, overwrite: bool) -> None:
    """Whether a folder may be written to `out`.

    Raises:
        ExportError: Something is there, and it is not an export that may be overwritten.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if overwrite and not (out / MANIFEST).is_file():
        raise ExportError(f"{out}: holds no export that could be overwritten; give another folder")
    foreign = sorted(path.name for path in out.iterdir() if not _is_own(path.name)) if overwrite else []
    if foreign:
        raise ExportError(f"{out}: holds {foreign[0]}, which is no part of an export; move it, or give another folder")
    if not overwrite:
        raise ExportError(f"{out}: is not empty; give another folder, or `overwrite`", "overwrite")
