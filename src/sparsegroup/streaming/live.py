"""What a training that follows a stream records of itself while it runs, for people and for monitors."""

import json
import logging
import math
import os
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from sparsegroup.artifact.folder import name_errors, write_atomically
from sparsegroup.artifact.validation import STRICT, AnyReal, Number, Real, finite
from sparsegroup.data.batches import Batch, concatenated
from sparsegroup.data.kinds import ColumnKind
from sparsegroup.data.raw.encode import EncodedRows
from sparsegroup.data.raw.raw_log import RawLog
from sparsegroup.errors import RunError
from sparsegroup.objectives import Objective
from sparsegroup.reporting.run_record import HistoryPoint
from sparsegroup.streaming.sources.source import Block
from sparsegroup.training.assessment.drift import Reference
from sparsegroup.training.metrics import has_sums
from sparsegroup.training.run_folder import METRICS
from sparsegroup.training.state import StreamState

if TYPE_CHECKING:
    from sparsegroup.streaming.publication import Publication

_logger = logging.getLogger(__name__)

LIVE, STATUS, BAD_ROWS = "live.jsonl", "status.json", "bad_rows.jsonl"
"""Files of a run that follows a stream: a line for each point of the history that was looked at, how it is now, and the
rows that were left out."""

WINDOW = 10_000
"""Rows of a point of the history, about."""

_STATUS_EVERY, _LOOK_EVERY = 1.0, 5.0
"""Seconds between two writes of the status, and between two looks at the columns."""

_REFERENCE_ROWS = 20_000

MOST_BYTES = 64 << 20
"""Size from which on a file of lines becomes `NAME.old.jsonl`, in place of an earlier one, and begins again."""

_MOST_LINE = 1 << 14
"""Bytes of a line that are expected at most."""


@dataclass(frozen=True)
class LivePoint:
    """A point of the history, and how the rows since the last one compare with the first rows.

    Attributes:
        point: The point.
        at: When it was made, in seconds since 1970.
        learnt_until: The latest time in the learnt rows; None if the log has no column of times.
        mean_label: Mean label of the rows since the last point, such as the click rate; None of classes or an order.
        new_features: Share of these rows' features that no row before had.
        drift, unseen: Column → its `Drift`.
    """

    __pydantic_config__: ClassVar = STRICT

    point: HistoryPoint
    at: Real
    learnt_until: AnyReal | None
    mean_label: AnyReal | None
    new_features: AnyReal | None
    drift: Mapping[str, Number]
    unseen: Mapping[str, Number]

    @property
    def samples(self) -> int:
        """Rows learnt up to there."""
        return self.point.samples


class LiveRecord:
    """The record of a training in its folder.

    Nothing here changes what is learnt; a file that cannot be written is a warning.

    Args:
        folder: The folder of the run.
        log: The first rows, which later ones are compared with.
        objective: What is learnt.

    Attributes:
        learnt_until: The latest time in the learnt rows, in seconds since 1970; None if the log has no column of times.
        bad_rows: Reason → rows that were left out.
    """

    def __init__(self, folder: Path, log: RawLog, objective: Objective) -> None:
        self._folder, self._log, self._objective = folder, log, objective
        self.learnt_until: float | None = None
        self.bad_rows: Counter[str] = Counter()
        self._bad_by_block: deque[tuple[int, Counter[str]]] = deque()
        self._window: deque[Batch] = deque()
        self._reference: Reference | None = None
        # Times are always later ones.
        self._times = {name for name, kind in log.columns.items() if ColumnKind.of(kind).is_time}
        self._looked_at = self._written_at = -math.inf
        self._rows = self._seen = self._samples = 0
        self._rate: tuple[float, int, float] = (monotonic(), 0, 0.0)  # when, rows then, rows a second since before
        self._warned = False

    # Rows

    def note_rows(self, number: int, block: Block, encoded: EncodedRows) -> None:
        """A block has been taken; its bad rows are written down."""
        if not encoded.bad:
            return
        reasons = Counter(reason for _, reason, _ in encoded.bad)
        self.bad_rows += reasons
        self._bad_by_block.append((number, reasons))
        self._append(
            BAD_ROWS,
            (
                {"block": number, "origin": block.origin, "line": line, "reason": reason, "text": text}
                for line, reason, text in encoded.bad
            ),
        )

    def bad_rows_until(self, block: int) -> Counter[str]:
        """Reason → rows that were left out of the blocks up to this number; earlier numbers are forgotten."""
        while self._bad_by_block and self._bad_by_block[0][0] <= block:
            self._bad_by_block.popleft()
        return self.bad_rows - sum((one for _, one in self._bad_by_block), start=Counter())

    def note_batch(self, batch: Batch) -> None:
        """A batch has been learnt."""
        if self._log.timed and len(batch):
            self.learnt_until = max(self.learnt_until or -math.inf, float(batch.times.max()))
        self._window.append(batch)
        self._rows += len(batch)
        while self._rows - len(self._window[0]) >= _REFERENCE_ROWS:
            self._rows -= len(self._window.popleft())

    # Points

    def note_point(self, point: HistoryPoint) -> None:
        """A point has joined the history; every few seconds one is compared with the first rows."""
        self._append(METRICS, [asdict(point)])
        rows, new = point.samples - self._samples, point.features_seen - self._seen
        self._samples, self._seen = point.samples, point.features_seen
        batches = list(self._window)
        self._window.clear()
        self._rows = 0
        if monotonic() - self._looked_at < _LOOK_EVERY:
            return
        self._looked_at = monotonic()
        batch = concatenated(batches)
        moved = {name: one for name, one in self._first_rows.drift(batch).items() if name not in self._times}
        keys = rows * len(self._log.schema.single) + sum(len(bags.keys) for bags in batch.bags)
        line = LivePoint(
            point,
            time.time(),
            self.learnt_until,
            _mean_label(batch) if has_sums(self._objective) else None,
            new / keys if keys else None,
            {name: one.psi for name, one in moved.items()},
            {name: one.unseen for name, one in moved.items()},
        )
        self._append(LIVE, [{"samples": point.samples, **asdict(line)}])

    @property
    def _first_rows(self) -> Reference:
        if self._reference is None:
            rows = min(len(self._log), _REFERENCE_ROWS)
            self._reference = Reference(self._log, concatenated(list(self._log.batches(0, rows, rows))))
        return self._reference

    # How it is now

    def write_status(
        self,
        lag: Mapping[str, float],
        waiting: int,
        publication: "Publication | None",
        *,
        samples: int,
        late: Mapping[str, int] | None = None,
        ended: str | None = None,
    ) -> None:
        """Write how it is now, at most every second: rows learnt and waiting, their age, and the last release.

        `late` counts clicks of a join; `ended` says why the training has ended, "" if nothing went wrong.
        """
        now = monotonic()
        if now - self._written_at < _STATUS_EVERY and ended is None:
            return
        self._written_at = now
        when, before, rate = self._rate
        if now - when >= _LOOK_EVERY:
            rate = (samples - before) / (now - when)
            self._rate = (now, samples, rate)
        release = None if publication is None else publication.latest
        status: dict[str, Any] = {
            "at": time.time(),
            "ended": ended,
            "samples": samples,
            "rows_per_s": rate,
            "waiting": {"in_memory": waiting, **lag},
            "bad_rows": dict(self.bad_rows),
            "clicks": late,
            "learnt_until": self.learnt_until,
            "release": None if release is None else {**asdict(release), "files": None},
            "published": None
            if publication is None
            else {
                "releases": publication.releases,
                "bytes": publication.bytes,
                "refused": publication.refused,
                "why": publication.why,
                "every": publication.every,
            },
        }
        self._write(STATUS, json.dumps(finite(status), allow_nan=False) + "\n")

    # Resuming

    def load(self, stream: StreamState) -> None:
        """Continue from a checkpoint."""
        self.bad_rows, self.learnt_until = Counter(stream.bad_rows), stream.learnt_until

    def begin(self, history: Sequence[HistoryPoint]) -> None:
        """Count rows and features from the last point of a history on."""
        if history:
            self._samples, self._seen = history[-1].samples, history[-1].features_seen

    def cut(self, samples: int, block: int) -> None:
        """Drop the lines of rows that are learnt again: behind a number of samples, or of blocks.

        A last line without a newline was being written when the process was killed; it is dropped too.

        Raises:
            RunError: A line is damaged.
        """
        for name, key, last in ((METRICS, "samples", samples), (LIVE, "samples", samples), (BAD_ROWS, "block", block)):
            path, kept = self._folder / name, 0
            if not path.exists():
                continue
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if not line.endswith(b"\n") or _entry(path, number, line, key)[key] > last:
                        break
                    kept += len(line)
            os.truncate(path, kept)

    # Files

    def _append(self, name: str, lines: "Iterator[Any] | list[Any]") -> None:
        """Append whole lines, or if the disk is full, none."""
        text = "".join(json.dumps(finite(line), allow_nan=False) + "\n" for line in lines)
        path = self._folder / name
        try:
            if path.exists() and path.stat().st_size > MOST_BYTES:
                path.replace(path.with_suffix(".old.jsonl"))
            size = path.stat().st_size if path.exists() else 0
            try:
                with name_errors(path), path.open("a", encoding="utf-8") as file:
                    file.write(text)
            except OSError:
                os.truncate(path, size)
                raise
            self._warned = False
        except OSError as error:
            self._warn(name, error)

    def _write(self, name: str, text: str) -> None:
        try:
            write_atomically(self._folder / name, lambda path: path.write_text(text, encoding="utf-8"))
            self._warned = False
        except OSError as error:
            self._warn(name, error)

    def _warn(self, name: str, error: OSError) -> None:
        if not self._warned:
            _logger.warning("%s is not written: %s", self._folder / name, error)
        self._warned = True


def last_lines(path: Path, count: int) -> list[dict[str, Any]]:
    """Return the last lines of a file of JSON objects, without one that was cut off.

    Raises:
        RunError: A line is damaged.
    """
    if not path.exists():
        return []
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        begin = max(0, size - count * _MOST_LINE)
        file.seek(begin)
        lines = file.readlines()
    whole = [line for line in lines[1 if begin else 0 :] if line.endswith(b"\n")]
    return [_entry(path, None, line) for line in whole[-count:]]


def _entry(path: Path, number: int | None, line: bytes, key: str = "samples") -> dict[str, Any]:
    """Return the JSON object of a line that has a count of this name; without `number`, the line is looked for."""
    try:
        found = json.loads(line)
        if isinstance(found, dict) and type(found.get(key)) is int:
            return found
        error = ValueError(f"a JSON object with {key!r} was expected")
    except ValueError as damage:
        error = damage
    if number is None:
        with path.open("rb") as file:
            number = file.readlines().index(line) + 1
    raise RunError(f"{path}:{number}: damaged ({error}); delete the line, from which nothing is computed") from error


def _mean_label(batch: Batch) -> float:
    weights = torch.ones(len(batch)) if batch.weights is None else batch.weights
    total = float(weights.sum())
    return float((weights * batch.labels).sum()) / total if total else math.nan
