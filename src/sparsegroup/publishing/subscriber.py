"""How a server takes over the releases of a model."""

import logging
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from sparsegroup.addresses import public_address
from sparsegroup.artifact.folder import remove_folder, remove_leftovers
from sparsegroup.artifact.manifest import digest
from sparsegroup.publishing.destinations import Destination, FolderDestination, open_destination
from sparsegroup.publishing.releases import RELEASES, PublishError, Release, ReleaseIndex, is_folder_of, ways_to
from sparsegroup.serving.manifest import ONNX
from sparsegroup.serving.onnx import graph_of, has_onnx
from sparsegroup.serving.opening import Export, apply, read_export
from sparsegroup.serving.rows import ExportError

_logger = logging.getLogger(__name__)

_PATIENCE = 5
"""Attempts to read a release while others are published and removed."""


@dataclass(frozen=True)
class Served:
    """A release in memory.

    Attributes:
        release: The release.
        export: The export that it leads to; its tensors are in no file, and it has no vocabularies.
        onnx: The graph of the `model.onnx` of the last whole export, for `serving.onnx.with_rows`; None if there is
            none, or the packages for ONNX are not installed.
    """

    release: Release
    export: Export
    onnx: bytes | None = None


class Subscriber:
    """Reader of the releases at a destination, which applies deltas if they are smaller, and may miss any releases.

    Args:
        destination: A destination, or an argument of `open_destination`.
        cache: A folder with a subfolder of fetched files for each destination. A restarted process fetches less, and
            starts with the last cached release if the destination cannot be reached. Files of releases that are no
            longer published are removed. None: files are removed after reading. A local destination is not cached.

    Examples:
        >>> from sparsegroup.publishing import Subscriber
        >>> subscriber = Subscriber("published")
        >>> subscriber.newer(None) is None  # nothing is published there yet
        True
    """

    def __init__(self, destination: Destination | str | Path, cache: Path | None = None) -> None:
        self._given = destination
        name = destination.name if isinstance(destination, Destination) else public_address(str(destination))
        self.cache = None if cache is None else cache / digest(name)

    @cached_property
    def destination(self) -> Destination:
        """Destination. An address is opened at the first use, which may need a network."""
        return self._given if isinstance(self._given, Destination) else open_destination(self._given)

    def newer(self, have: Served | None) -> Release | None:
        """Return the latest release; None if `have` is the latest, or nothing is published yet. One small read.

        Raises:
            PublishError: The index is damaged or removed, or the destination cannot be reached. Without `have`, only if
                the cache has no release.
        """
        try:
            releases = self.destination.releases()
        except (PublishError, OSError) as error:
            if have is not None or (cached := self._cached()) is None:
                raise
            releases = cached.releases()
            _logger.warning("%s; until then release %s of the cache is used", error, releases[-1].number)
        if not releases and have is not None:
            raise PublishError(
                f"{self.destination.name}: nothing is published there any more; was it moved or removed?"
            )
        if not releases or (have is not None and _is_same(releases[-1], have.release)):
            return None
        return releases[-1]

    def catch_up(self, have: Served | None, to: Release | None = None) -> Served:
        """Return a release, made from fetched files and from `have`, which does not change.

        Args:
            have: The release that is served now.
            to: The release to read, which may be older than `have`; None: the latest release. If the latest release is
                replaced during the read, a newer release is read.

        Raises:
            PublishError: Nothing is published; `to` has been removed; a named file is missing or damaged; or the
                destination cannot be reached. Without `have` and `to`, the last only if the cache has no release.
            OSError: The disk is full.
        """
        try:
            return self._caught_up(have, to)
        except (PublishError, OSError):
            if have is not None or to is not None or (cached := self._cached()) is None:
                raise
            return Subscriber(cached).catch_up(None)

    def _caught_up(self, have: Served | None, to: Release | None) -> Served:
        seen: Release | None = None
        failed: PublishError | ExportError | None = None
        for _ in range(_PATIENCE):
            releases = self.destination.releases()
            wanted = self._wanted(releases, to)
            if seen is not None and _is_same(wanted, seen):
                break
            seen = wanted
            for way in ways_to(wanted, releases, None if have is None else have.release.id):
                try:
                    served = self._read(wanted, way, have)
                except (PublishError, ExportError) as error:
                    failed = error
                else:
                    self._keep(wanted, releases)
                    return served
        raise PublishError(f"{self.destination.name}: release {wanted.number} cannot be read: {failed}") from failed

    def _cached(self) -> Destination | None:
        """Return the cache as a destination; None if it holds no release."""
        if self.cache is None:
            return None
        cached = FolderDestination(self.cache)
        try:
            return cached if cached.releases() else None
        except PublishError:
            return None

    def _wanted(self, releases: Sequence[Release], to: Release | None) -> Release:
        if not releases:
            raise PublishError(f"{self.destination.name}: nothing is published there yet")
        if to is None:
            return releases[-1]
        for release in releases:
            if _is_same(release, to):
                return release
        first = releases[0].number
        raise PublishError(f"{self.destination.name}: release {to.number} is no longer kept; the first is {first}")

    def _read(self, wanted: Release, way: Sequence[Release], have: Served | None) -> Served:
        export, onnx = (None, None) if have is None else (have.export, have.onnx)
        if not way:
            assert export is not None
            return Served(wanted, export, onnx)
        with self._place() as place:
            folders = [self.destination.fetch(release, Path(place)) for release in way]
            if way[0].kind == "export":
                export, onnx = read_export(folders[0]), _graph_in(folders[0])
                del folders[0]
            assert export is not None
            export = apply(export, *folders)
            if export.manifest.id != wanted.id:
                raise PublishError(f"{export.folder}: damaged (it holds {export.manifest.id}, not {wanted.id})")
            return Served(wanted, _in_memory(export), onnx)

    def _place(self) -> AbstractContextManager[str | Path]:
        if self.cache is None:
            return tempfile.TemporaryDirectory(prefix="sparsegroup-")
        self.cache.mkdir(parents=True, exist_ok=True)
        return nullcontext(self.cache)

    def _keep(self, wanted: Release, releases: Sequence[Release]) -> None:
        """Complete the cache, so that a release can be read from the cache alone. Remove unpublished files.

        If a model is published both as a delta and as a whole export, the form with fewer missing bytes is cached.
        """
        if self.cache is None or not self.cache.is_dir():
            return
        cache = self.cache
        ways = [way for one in releases if one.id == wanted.id for way in ways_to(one, releases, None)]
        way = min(ways, key=lambda way: sum(one.bytes for one in way if not (cache / one.folder).is_dir()))
        try:
            for one in way:
                if not (cache / one.folder).is_dir() and self.destination.fetch(one, cache).parent != cache:
                    return  # a local destination, whose files are in their place
            RELEASES.write(cache, ReleaseIndex(releases=tuple(way)))
        except (PublishError, OSError) as error:  # the next release is another attempt
            _logger.warning("%s: does not hold release %s (%s)", cache, wanted.number, error)
            return
        remove_leftovers(cache)
        published = {release.folder for release in releases}
        for path in cache.iterdir():
            if is_folder_of(path.name) and path.name not in published:
                remove_folder(path)


def _is_same(a: Release, b: Release) -> bool:
    return (a.number, a.id) == (b.number, b.id)


def _graph_in(folder: Path) -> bytes | None:
    path = folder / ONNX
    return graph_of(path.read_bytes()) if path.is_file() and has_onnx() else None


def _in_memory(export: Export) -> Export:
    """An export whose tensors are not mapped from files, which may be removed."""
    tables = {name: rows.clone() for name, rows in export.tables.items()}
    network = {name: tensor.clone() for name, tensor in export.network.items()}
    return replace(export, tables=tables, network=network, vocabularies=())
