"""How a server takes over the releases of a model."""

import logging
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sparsegroup.artifact.folder import remove_folder, remove_leftovers
from sparsegroup.publishing.destinations import Destination, open_destination
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
    """Takes over the releases at a destination, by deltas where these are smaller. It may miss any number of them.

    Args:
        destination: A destination, or what `open_destination` takes.
        cache: A folder in which fetched files remain, so that a process that starts again fetches less, and begins with
            the newest complete release there while the destination cannot be reached. The files of older releases that
            are no longer published are removed. None: files are removed when they have been read. A local destination
            is read in its place.

    Examples:
        >>> from sparsegroup.publishing import Subscriber
        >>> subscriber = Subscriber("published")
        >>> subscriber.newer(None) is None  # nothing is published there yet
        True
    """

    def __init__(self, destination: Destination | str | Path, cache: Path | None = None) -> None:
        self.destination = destination if isinstance(destination, Destination) else open_destination(destination)
        self.cache = cache

    def newer(self, have: Served | None) -> Release | None:
        """The latest release, unless it is that of `have`; None if nothing is published yet. One small read.

        Raises:
            PublishError: The index is damaged or has been removed, or the destination cannot be reached.
        """
        releases = self._releases(have)
        if not releases and have is not None:
            raise PublishError(
                f"{self.destination.name}: nothing is published there any more; was it moved or removed?"
            )
        if not releases or (have is not None and _is_same(releases[-1], have.release)):
            return None
        return releases[-1]

    def catch_up(self, have: Served | None, to: Release | None = None) -> Served:
        """A release, read from what is fetched and from `have`. `have` does not change.

        Args:
            have: The release that is served now.
            to: The release to read, which may be older than `have`; None: the latest at that moment. While the latest
                cannot be read because others take its place, newer ones are tried.

        Raises:
            PublishError: Nothing is published there; `to` is no longer kept; a file is missing or damaged, by name; the
                destination cannot be reached.
            OSError: The disk is full.
        """
        seen: Release | None = None
        failed: PublishError | ExportError | None = None
        for _ in range(_PATIENCE):
            releases = self._releases(have)
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
                    self._tidy(releases)
                    return served
        raise PublishError(f"{self.destination.name}: release {wanted.number} cannot be read: {failed}") from failed

    def _releases(self, have: Served | None) -> tuple[Release, ...]:
        """The published releases; if they cannot be read and there is no model yet, those in the cache."""
        try:
            return self.destination.releases()
        except PublishError as error:
            if have is not None or not (cached := self._cached()):
                raise
            _logger.warning("%s; until then release %s of the cache is used", error, cached[-1].number)
            return cached

    def _cached(self) -> tuple[Release, ...]:
        """The releases in the cache that can be read without the destination."""
        try:
            known = () if self.cache is None else RELEASES.read(self.cache).releases
        except PublishError:
            return ()
        return tuple(self._readable(known))

    def _readable(self, releases: Iterable[Release]) -> Iterator[Release]:
        """The releases whose files are in the cache, from a whole export on."""
        found = set[int]()
        for release in releases:
            is_linked = release.kind == "export" or release.parent in found
            if is_linked and self.cache is not None and (self.cache / release.folder).is_dir():
                found.add(release.number)
                yield release

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

    def _tidy(self, releases: Sequence[Release]) -> None:
        """Remove from the cache what is no longer published, and what a killed process has left.

        The newest release that the cache holds completely remains, for a start without the destination.
        """
        if self.cache is None or not self.cache.is_dir():
            return
        remove_leftovers(self.cache)
        known = {one.number: one for one in self._cached() if one.number <= releases[-1].number}
        known |= {one.number: one for one in releases}
        readable = list(self._readable(known[number] for number in sorted(known)))
        last = next(iter(ways_to(readable[-1], readable, None)), []) if readable else []
        wanted = {release.folder for release in (*releases, *last)}
        kept = tuple(one for one in readable if one.folder in wanted)
        with suppress(OSError):  # a full disk: the next start needs the destination
            RELEASES.write(self.cache, ReleaseIndex(releases=kept))
        for path in self.cache.iterdir():
            if is_folder_of(path.name) and path.name not in wanted:
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
