"""A folder and those that it builds on, followed by the parents that manifests name."""

import os
from pathlib import Path

from sparsegroup.artifact.manifest import AnyManifest, FolderFormat
from sparsegroup.artifact.validation import shortened


def chain_of(folder: Path, of: FolderFormat[AnyManifest]) -> list[tuple[Path, AnyManifest]]:
    """All that a folder builds on, the first of which builds on none, and the folder last.

    Raises the format's error if a folder is missing, its manifest is damaged, or it is not the one that was built on.
    """
    chain = [(folder, of.read(folder))]
    places = {folder.resolve()}
    while (parent := chain[0][1].parent) is not None:
        after = chain[0][0]
        who = str(folder) if after == folder else f"{folder}: {after}"
        try:
            before = _seen_from(after, parent.path)
            manifest = of.read(before)
        except of.error as error:
            raise of.error(f"{who}: builds on {before.name}, which cannot be read: {error}") from error
        except (OSError, ValueError) as error:  # too long, or characters that no name has
            why = error.strerror if isinstance(error, OSError) else error
            raise of.error(f"{after / of.file}: damaged (parent.path: {why}, got {shortened(parent.path)})") from error
        if manifest.id != parent.id:
            raise of.error(f"{who}: builds on {of.name} {parent.id}, but in {before} there is {manifest.id}")
        if before.resolve() in places:
            raise of.error(f"{who}: builds on {before.name}, which builds on it")
        try:
            chain[0][1].check_parent(manifest)
        except ValueError as error:
            raise of.error(f"{who}: does not fit {before.name}, which it builds on: {error}") from error
        places.add(before.resolve())
        chain.insert(0, (before, manifest))
    return chain


def verified_chain(folder: Path, of: FolderFormat[AnyManifest]) -> list[tuple[Path, AnyManifest]]:
    """`chain_of` a folder; also raises if a file of one of them is missing or damaged."""
    chain = chain_of(folder, of)
    for path, manifest in chain:
        manifest.check_files(path, of.error)
    return chain


def _seen_from(folder: Path, path: str) -> Path:
    """The path without "..", unless a link on the way leads elsewhere."""
    seen = folder / path
    short = Path(os.path.normpath(seen))
    return short if short.resolve() == seen.resolve() else seen
