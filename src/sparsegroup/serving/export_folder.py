"""Folders that appear whole or not at all, and what tells whether their files are still what they were."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparsegroup.artifact.disk import checksum, sync
from sparsegroup.serving.export_error import ExportError
from sparsegroup.serving.export_manifest import (
    EMBEDDINGS,
    MANIFEST,
    NETWORK,
    ONNX,
    PROGRAM,
    TOMBSTONES,
    UPSERTS,
    FileInfo,
)
from sparsegroup.training.run_dir import VOCABULARY

OWN = {
    *(MANIFEST, EMBEDDINGS, NETWORK, UPSERTS, TOMBSTONES, VOCABULARY, PROGRAM),
    *(ONNX, f"{ONNX}.data"),
}
"""Files of an export or delta."""


def check_free(out: Path, overwrite: bool) -> None:
    """Whether a folder may be written to `out`.

    Raises:
        ExportError: Something is there, and it is not an export that may be overwritten.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if overwrite and not (out / MANIFEST).is_file():
        raise ExportError(f"{out}: holds no export that could be overwritten; give another folder")
    foreign = sorted({path.name for path in out.iterdir()} - OWN) if overwrite else []
    if foreign:
        raise ExportError(f"{out}: holds {foreign[0]}, which is no part of an export; move it, or give another folder")
    if not overwrite:
        raise ExportError(f"{out}: is not empty; give another folder, or `overwrite`", "overwrite")


@contextmanager
def new_folder(out: Path, overwrite: bool = False) -> Iterator[Path]:
    """A folder to write into that becomes `out` when all has gone well, and else leaves nothing behind.

    Raises:
        ExportError: As `check_free`.
    """
    out = out.absolute()
    check_free(out, overwrite)
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished, old = (out.with_name(f".{out.name}.{what}-{os.getpid()}") for what in ("new", "old"))
    try:
        unfinished.mkdir()
        yield unfinished
        for path in unfinished.iterdir():
            path.chmod(unfinished.stat().st_mode & 0o666)  # safetensors makes files that their owner alone can read
            sync(path)
        sync(unfinished)
        if out.exists():
            out.rename(old)
        try:
            unfinished.rename(out)
        except OSError:
            if old.exists():
                old.rename(out)
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        if out.exists():
            shutil.rmtree(old, ignore_errors=True)


def describe(path: Path) -> FileInfo:
    """Size and checksum of a file."""
    return FileInfo(bytes=path.stat().st_size, xxh3_64=checksum(path))


def verify(path: Path, expected: FileInfo) -> None:
    """Whether a file is what its manifest says.

    Raises:
        ExportError: It is missing, has another size, or another checksum.
    """
    try:
        found = describe(path)
    except OSError as error:
        raise ExportError(f"{path}: missing or unreadable ({error.strerror})") from error
    if found.bytes != expected.bytes:
        raise ExportError(f"{path}: damaged ({found.bytes:,} bytes, the manifest says {expected.bytes:,})")
    if found != expected:
        raise ExportError(f"{path}: damaged (its checksum is {found.xxh3_64}, the manifest says {expected.xxh3_64})")
