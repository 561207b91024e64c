"""Keeps the newest good model of a destination in service: fetches, builds, checks, and swaps one reference."""

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sparsegroup.errors import UserError
from sparsegroup.publishing import Subscriber, open_destination
from sparsegroup.server.metrics import Metrics
from sparsegroup.server.model import LoadedModel, ServedRelease
from sparsegroup.serving.manifest import MANIFEST
from sparsegroup.serving.opening import Export, read_export
from sparsegroup.serving.rows import ExportError

_logger = logging.getLogger(__name__)

_STOP_SECONDS = 5

_REMEMBERED = 100
"""Releases that have served, and refused ones, that are remembered."""

_LONGEST_WAIT = 300.0
"""Longest wait in seconds before a failed release is tried again. The waits double, beginning with `poll`."""


class RollbackError(UserError):
    """A release that cannot be rolled back to."""


@dataclass(frozen=True)
class Fetched:
    """A release and its export.

    Attributes:
        release, export: What is served, and its content.
        graph: The ONNX graph of an earlier export, without rows, if the source has one.
        state: What the source needs to fetch the next release from there.
    """

    release: ServedRelease
    export: Export
    graph: bytes | None = None
    state: Any = None


class ReleaseSource(Protocol):
    """Where models come from."""

    def newer(self, have: Fetched | None) -> int | None:
        """The number of the newest release, if it is not the one that `have` holds."""

    def fetch(self, have: Fetched | None, to: int | None = None) -> Fetched:
        """The newest release, or number `to`; what `have` holds need not be fetched again."""


class ExportFolder:
    """The export in a folder, which does not change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def newer(self, have: Fetched | None) -> int | None:
        """See `ReleaseSource`."""
        return 0 if have is None else None

    def fetch(self, have: Fetched | None, to: int | None = None) -> Fetched:
        """See `ReleaseSource`."""
        if to is not None:
            raise RollbackError(f"{self.folder} is one export, not a destination of releases: there is none before it")
        export = read_export(self.folder)
        manifest = export.manifest
        size = sum(file.bytes for file in manifest.files.values())
        return Fetched(ServedRelease(None, manifest.id, manifest.kind, size), export)


class Releases:
    """The releases of a destination.

    Args:
        destination: What `sparsegroup.publishing.open_destination` takes.
        cache: A folder for fetched files, see `sparsegroup.publishing.Subscriber`.
    """

    def __init__(self, destination: str, cache: Path | None = None) -> None:
        self._subscriber = Subscriber(open_destination(destination), cache)

    def newer(self, have: Fetched | None) -> int | None:
        """See `ReleaseSource`."""
        found = self._subscriber.newer(None if have is None else have.state)
        return None if found is None else found.number

    def fetch(self, have: Fetched | None, to: int | None = None) -> Fetched:
        """See `ReleaseSource`."""
        wanted = None
        if to is not None:
            place = self._subscriber.destination
            releases = {one.number: one for one in place.releases()}
            if (wanted := releases.get(to)) is None:
                kept = f"releases {min(releases)} to {max(releases)} are kept" if releases else "there is none"
                raise RollbackError(f"{place.name}: no release {to}; {kept}")
        served = self._subscriber.catch_up(None if have is None else have.state, wanted)
        one = served.release
        details = {"samples": one.samples, "learnt_until": one.learnt_until, "figures": dict(one.figures)}
        release = ServedRelease(one.number, one.id, one.kind, one.bytes, one.published, one.read_until, details)
        return Fetched(release, served.export, served.onnx, served)


def open_releases(destination: str, cache: Path | None = None) -> ReleaseSource:
    """The source at a destination of releases, or of a folder that holds one export.

    Raises:
        UserError: It is neither, or cannot be reached.
    """
    folder = Path(destination)
    if (folder / MANIFEST).is_file():
        return ExportFolder(folder)
    source = Releases(destination, cache)
    if source.newer(None) is None and "://" not in destination:
        what = "the folder of an export, or one that releases are published in"
        if not folder.exists() and folder.absolute().parent.is_dir():  # a publisher may start later
            _logger.warning("%s: no such folder yet; waiting for the first release", folder)
            return source
        if not folder.is_dir():
            raise ExportError(f"{folder}: no such folder; give {what}")
        if others := sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")):
            raise ExportError(f"{folder}: holds {others[0]}, but no release; give {what}")
    return source


class ReleaseFollower:
    """A model in service, and the thread that replaces it.

    `model` is one reference: a request takes it once and keeps it, so that a swap is between two requests. The model
    before is freed when the last request that has it ends.

    Args:
        source: Where releases come from.
        metrics: Receives counts.
        poll: Seconds between two looks for a newer release.
        threads, schema: See `LoadedModel`.

    Attributes:
        model: The model in service; None before the first one is loaded.
        pinned: The release that a rollback holds, or None.
    """

    def __init__(
        self,
        source: ReleaseSource,
        metrics: Metrics,
        *,
        poll: float = 1.0,
        threads: int = 1,
        schema: Path | None = None,
    ) -> None:
        self.model: LoadedModel | None = None
        self.pinned: int | None = None
        self._source, self._metrics, self._poll = source, metrics, poll
        self._threads, self._schema = threads, schema
        self._have: Fetched | None = None
        # Numbers of the releases that served, ascending, the model's last; a rollback removes the later ones.
        self._served: deque[int] = deque(maxlen=_REMEMBERED)
        self._refused: dict[int, str] = {}
        self._final: set[int] = set()  # refused because of their content, which does not change
        self._failed = _Failures()
        self._problem: str | None = None
        self._swapping, self._wake, self._ended = threading.Lock(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name="sparsegroup-follower", daemon=True)
        metrics.measure_age(lambda: self.age)

    @property
    def age(self) -> float | None:
        """Seconds since the last rows that the model has read, or since it was published; None if neither is known."""
        if self.model is None:
            return None
        release = self.model.release
        since = release.read_until if release.read_until is not None else release.published
        return None if since is None else time.time() - since

    def start(self) -> None:
        """Begin to follow, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a swap that it is at may end first, unless its destination keeps it waiting."""
        self._ended.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def load_newest(self) -> bool:
        """Fetch, check and serve the newest release. Return whether the model has changed.

        A failed release is skipped: permanently if its content is wrong, otherwise for a time that doubles.

        Raises:
            Exception: The release cannot be fetched, or fails its checks. The model in service remains.
        """
        with self._swapping:
            if self.pinned is not None:
                return False
            number = self._source.newer(self._have)
            if number is None or number in self._final or self._failed.must_wait(number):
                return False
            self._swap(number, None)
            return True

    def rollback(self, to: int | None = None) -> LoadedModel:
        """Serve an earlier release until `resume`: release `to`, or the release that served before the present model.

        Repeated rollbacks without a number go back further, and never return to a release that a rollback has left.

        Raises:
            RollbackError: There is no such release.
            Exception: As `load_newest`.
        """
        with self._swapping:
            now = None if self.model is None else self.model.release.number
            if to is None:
                if len(self._served) < 2:
                    raise RollbackError("no other release has served before this one; give its number")
                to = self._served[-2]
            if to in self._final:
                raise RollbackError(f"release {to} was refused: {self._refused.get(to, '')}")
            if to != now:
                self._swap(to, to)
            assert self.model is not None
            while self._served and self._served[-1] >= to:
                self._served.pop()
            self._served.append(to)
            self.pinned = to
            self._metrics.pinned.set(1)
            _logger.info(f"release {to} is held until it is resumed")
            return self.model

    def resume(self) -> None:
        """Follow the newest release again."""
        with self._swapping:
            self.pinned = None
            self._metrics.pinned.set(0)
        self._wake.set()

    def described(self) -> dict[str, Any]:
        """The model in service and how following goes, for JSON."""
        return {
            **({} if self.model is None else self.model.described()),
            "age_seconds": self.age,
            "pinned": self.pinned,
            "refused": {str(number): reason for number, reason in list(self._refused.items())},
            "problem": self._problem,
        }

    def _follow(self) -> None:
        # A lower priority would hold up requests: on busy cores the thread would wait with Python's lock held.
        while not self._ended.is_set():
            self._wake.clear()
            try:
                self.load_newest()
            except Exception as error:  # whatever a strange release raises, the one before serves on
                self._note(_text_of(error))
            else:
                self._note(None)
            if not self._ended.is_set():
                self._wake.wait(self._poll)

    def _note(self, problem: str | None) -> None:
        """Log a problem once, and that it has ended."""
        if problem is not None and problem != self._problem:
            _logger.warning(problem)
        self._problem = problem

    def _swap(self, number: int, to: int | None) -> None:
        begin = time.perf_counter()
        fetched = None
        try:
            fetched = self._source.fetch(self._have, to)
            number = fetched.release.number if fetched.release.number is not None else number
            if self.model is not None and fetched.release.id == self.model.release.id:  # published in another form
                self.model.release, self._have = fetched.release, fetched
                self._metrics.release.set(number)
                if self._served:
                    self._served[-1] = number
                return
            model = LoadedModel(
                fetched.export,
                fetched.release,
                self.model,
                graph=fetched.graph,
                threads=self._threads,
                schema=self._schema,
            )
            model.check()
        except Exception as error:
            reason = _text_of(error)
            if self._refused.get(number) != reason and (to is None or fetched is not None):
                self._metrics.failed_swaps.inc()
                self._refused[number] = reason
                while len(self._refused) > _REMEMBERED:
                    self._refused.pop(next(iter(self._refused)))
            if fetched is not None and _is_of_the_content(error):
                self._final.add(number)
            elif fetched is not None:
                self._failed.add(number, self._poll)
            raise
        seconds = time.perf_counter() - begin
        self._refused.pop(number, None)
        self._failed = _Failures()
        self.model, self._have = model, fetched
        if model.release.number is not None:
            self._served.append(number)
        self._metrics.swaps.inc()
        self._metrics.swap_seconds.observe(seconds)
        self._metrics.release.set(number)
        self._metrics.release_bytes.set(model.release.bytes)
        _logger.info(_shown(model, seconds))


def _shown(model: LoadedModel, seconds: float) -> str:
    release = model.release
    name = release.id if release.number is None else f"release {release.number} ({release.kind} {release.id})"
    rows = sum(map(len, model.export.tables.values()))
    return f"serving {name}: {rows:,} rows, {release.bytes:,} bytes, ready in {seconds:.2f} s"


@dataclass
class _Failures:
    """Failed attempts to load a release, each followed by a longer wait."""

    number: int | None = None
    wait: float = 0.0
    until: float = 0.0

    def must_wait(self, number: int) -> bool:
        """Return whether it is too early to try a release again."""
        return number == self.number and time.monotonic() < self.until

    def add(self, number: int, least: float) -> None:
        """Count a failure; the first wait is `least` seconds."""
        self.wait = min(2 * self.wait, _LONGEST_WAIT) if number == self.number else least
        self.number, self.until = number, time.monotonic() + self.wait


def _is_of_the_content(error: BaseException | None) -> bool:
    """Return whether a release would fail again: the error and all its causes are about content, not the machine."""
    while isinstance(error, ValueError):
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return error is None


def _text_of(error: BaseException) -> str:
    """An error in words; with its type if it is none of ours."""
    text = str(error)
    return text if isinstance(error, UserError | OSError) else f"{type(error).__name__}: {text}"
