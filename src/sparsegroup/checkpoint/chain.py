"""Reading checkpoints apart from what is to be loaded into: what one builds on, and whether it is as it was written."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from sparsegroup.checkpoint.checkpoint_error import CheckpointError
from sparsegroup.checkpoint.checkpoint_manifest import CheckpointManifest, check_files, read_manifest
from sparsegroup.checkpoint.plain import from_plain

STATE = "state.safetensors"
DAMAGE = (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, SafetensorError, RuntimeError)
"""What reading a damaged file may raise."""


def chain_of(folder: Path) -> list[tuple[Path, CheckpointManifest]]:
    """A checkpoint behind those that it changes, from the one with all rows on.

    Raises:
        CheckpointError: One is missing, or its manifest is damaged.
    """
    chain = [(folder, read_manifest(folder))]
    while (parent := chain[0][1].parent) is not None:
        name, id = parent
        before = folder.parent / name
        try:
            manifest = read_manifest(before)
        except CheckpointError as error:
            raise CheckpointError(f"{folder}: holds changes to {name}, which cannot be read: {error}") from error
        if manifest.id != id:
            raise CheckpointError(f"{folder}: holds changes to another {name} than the one beside it")
        if before in [path for path, _ in chain]:
            raise CheckpointError(f"{folder}: holds changes to {name}, which holds changes to it")
        chain.insert(0, (before, manifest))
    return chain


def verified(folder: Path) -> list[tuple[Path, CheckpointManifest]]:
    """`chain_of` a checkpoint, all of whose files are as they were written.

    Raises:
        CheckpointError: A file is missing or damaged.
    """
    chain = chain_of(folder)
    for path, manifest in chain:
        check_files(path, manifest)
    return chain


def contents(folder: str | Path) -> tuple[CheckpointManifest, Any]:
    """The manifest of a checkpoint and what was kept as `extra`; its rows are not looked at.

    Raises:
        CheckpointError: As `load_checkpoint`.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    try:
        return manifest, from_plain(manifest.state["extra"], load_file(folder / STATE))
    except DAMAGE as error:
        raise CheckpointError(f"{folder}: damaged ({error})") from error
