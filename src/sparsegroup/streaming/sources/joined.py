"""Impressions and clicks that arrive apart, as rows with a label."""

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from sparsegroup.artifact.folder import write_atomically
from sparsegroup.data.raw.files import LINE, BadRow, LogPaths, RawFile, listed
from sparsegroup.data.schema import LogFormat
from sparsegroup.data.values import as_seconds, stacked, stripped, texts_of
from sparsegroup.streaming.sources.source import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    Block,
    EndOfStream,
    Source,
    StreamError,
    block_of,
)

Late = Literal["drop", "positive"]
"""What becomes of a click that comes after its impression was given with label 0: nothing, or another row, with 1."""

_AT, _NUMBER, _USED, _CLICK = "\x00at", "\x00number", "\x00used", "\x00click"
"""Columns of times in seconds, of the numbers of impressions and clicks, and of whether a click has an impression."""

_DAY = 24 * 3600
_GRACE = 5.0
"""Seconds in which a source that was just opened gives rows, if it has any."""
_PATIENCE = 30.0
"""Seconds for which the source that is behind is waited for although it gives nothing of what waits there."""
_TURN = 0.05
"""Seconds for which one source is waited for before the other one is looked at again."""
_MOST_BAD = 1000
"""Bad rows that wait for a block of good ones."""
_EVER = -(1 << 62)

_logger = logging.getLogger(__name__)


@dataclass
class _Impressions:
    """Rows of a block that were read and are not all given; `first` is the number of the first of these."""

    first: int
    frame: pl.DataFrame
    origin: str

    def __post_init__(self) -> None:
        self.times: npt.NDArray[np.int64] = self.frame[_AT].to_numpy()
        self.earliest = int(self.times.min())

    @property
    def end(self) -> int:
        """Number of the row after the last."""
        return self.first + len(self.frame)

    def after(self, number: int) -> "_Impressions":
        """The rows from this number on."""
        return _Impressions(number, self.frame.slice(number - self.first), self.origin)


class _Event(NamedTuple):
    """What has happened: a block of impressions or clicks was read, or rows were given; see `JoinedSource`.

    Attributes:
        kind: "impressions", "clicks" or "given".
        span: The source's span; of rows that were given, the number of the row after the last.
        read_at: When the block was read.
        clock: The log's clock after it.
        kept: From which time on clicks were kept after it.
        earliest, latest: Times of the block's rows.
        end: Number of the impression after the block's last one.
        rows: How many rows the block has.
    """

    kind: str
    span: Any
    read_at: float
    clock: int
    kept: int
    earliest: int = 0
    latest: int = 0
    end: int = 0
    rows: int = 0


class JoinedSource(Source):
    """Impressions, each with label 1 if a click with the same key came in time, else 0.

    The clock is the latest time that was read in either source, so that the rows depend on nothing but the blocks that
    were read, in their order. An impression of time t waits until the clock is beyond t + `window`; its label is 1 if
    a click of a time in [t, t + `window`] was read until then. With `late="positive"`, an impression with label 0 is
    given again with label 1, once, when a later click is read or if it was read already. Impressions are given in the
    order in which they were read.

    The source whose times are behind is read first, as long as something waits there. Each source should be about in
    the order of time, which several partitions of a topic are only once they have been caught up with: a click that is
    read when its impression was given is late, also if its time is not.

    Memory holds the impressions and clicks of the last `window` seconds, and with `late="positive"` the impressions
    with label 0 of `late_window` seconds more. A position remembers the blocks that these are from, and they are read
    again when reading resumes: both sources must keep their rows for so long, and of a source that can be read once
    these rows are lost. Clicks of the last window may be counted twice then.

    Times are whole or decimal numbers, in s, ms, µs or ns since 1970, as their size shows; or ISO 8601. Rows without a
    time or a key, and rows of a time more than a day after they were read, are bad rows.

    Args:
        impressions: Rows without a label.
        clicks: Rows of which `on` and the time are used.
        on: Columns that are the key, in both.
        window: How long an impression waits for its click, in seconds.
        time: Column of the impressions' times; by default the one that is the time of the log's format.
        click_time: Column of the clicks' times; by default it has the same name.
        label: Name of the column of labels that is added.
        late: What becomes of clicks that come later.
        late_window: How many seconds after the window they count, for "positive"; by default as long as the window,
            and at least an hour.

    Attributes:
        clicks_late: How many clicks came later, and gave another row.
        clicks_unmatched: How many clicks had no impression in time.
    """

    def __init__(
        self,
        impressions: Source,
        clicks: Source,
        on: Sequence[str],
        window: float,
        *,
        time: str | None = None,
        click_time: str | None = None,
        label: str = "label",
        late: Late = "drop",
        late_window: float | None = None,
    ) -> None:
        on = [on] if isinstance(on, str) else list(on)
        if not on:
            raise StreamError("`on` names one column at least, by which clicks are joined to impressions", "on")
        if not window >= 0:
            raise StreamError(f"`window` is a number of seconds >= 0, got {window}", "window")
        if late not in ("drop", "positive"):
            raise StreamError(f"`late` is drop or positive, got {late!r}", "late")
        self.name = f"{impressions.name} with clicks of {clicks.name}"
        self.is_replayable = impressions.is_replayable and clicks.is_replayable
        self._sources = {"impressions": impressions, "clicks": clicks}
        self._on, self._window, self._label, self._is_positive = on, window, label, late == "positive"
        self._given_times = {"impressions": time, "clicks": click_time or time}
        self._times: dict[str, str] = {}
        self._late_window = max(window, 3600.0) if late_window is None else late_window
        self._options = {
            "on": on,
            "window": float(window),
            "time": time,
            "click_time": click_time or time,
            "label": label,
            "late": late,
            "late_window": float(self._late_window),
        }
        self._format: LogFormat | None = None
        self._forget()

    @property
    def identity(self) -> Mapping[str, Any]:
        """See `Source.identity`: both sources, and the options that decide which rows are given."""
        return {**{side: source.identity for side, source in self._sources.items()}, **self._options}

    def difference_from(self, identity: Mapping[str, Any]) -> str:
        """See `Source.difference_from`."""
        if set(identity) != set(self.identity):
            return super().difference_from(identity)
        found = [source.difference_from(identity[side]) for side, source in self._sources.items()]
        for name, now in self._options.items():
            if now != identity[name]:
                found.append(f"`{name}` was {identity[name]!r} and is {now!r}")
        return next(filter(None, found), "")

    def _forget(self) -> None:
        """Begin with nothing."""
        self._clock = self._kept = _EVER
        self._waiting: deque[_Impressions] = deque()
        self._read = self._given = self._clicks_read = 0
        keys = dict.fromkeys(self._on, pl.String)
        self._clicks = pl.DataFrame(schema={**keys, _AT: pl.Int64, _CLICK: pl.Int64, _USED: pl.Boolean})
        self._negatives = pl.DataFrame(schema={**keys, _AT: pl.Int64, _NUMBER: pl.Int64})
        self._remembered: deque[_Impressions] = deque()
        self._late: list[pl.DataFrame] = []
        self._bad: list[BadRow] = []
        self._events: list[_Event] = []
        self._since: list[_Event] = []
        self._most_events, self._most_negatives = 64, BLOCK_ROWS
        self._positions: dict[str, Any] = dict.fromkeys(self._sources)
        self._seen = dict.fromkeys(self._sources, _EVER)
        self._ended: set[str] = set()
        self._stalled: dict[str, float] = {}
        self._opened_at = time.monotonic()
        self.clicks_late = self.clicks_unmatched = 0

    def open(self, format: LogFormat, position: Any = None) -> None:
        """See `Source.open`. Blocks that impressions and clicks wait from are read again."""
        if self._label not in format.label_columns:
            raise StreamError(
                f"{self.name}: the labels are in the column {self._label!r}, and the format has them in "
                f"{format.label_columns[0]!r}"
            )
        if position is not None and not (isinstance(position, Mapping) and "events" in position):
            raise StreamError(f"{self.name}: the position {position!r} is not one of joined sources")
        self._forget()
        self._format = format
        own = None if format.time is None else format.sources.get(format.time, format.time)
        for side, given in self._given_times.items():
            name = given or own
            if name is None:
                raise StreamError(f"{self.name}: no column is known to be the time; name it with `time`", "time")
            self._times[side] = name
        raw = [name for name in format.raw if name != self._label]
        names = {"impressions": [*raw, *self._on, self._times["impressions"]]}
        names["clicks"] = [*self._on, self._times["clicks"]]
        formats = {side: _format_of(names[side], format.kinds) for side in self._sources}
        if position is not None:
            self._positions = {side: position[side] for side in self._sources}
        for side, source in self._sources.items():
            source.open(formats[side], self._positions[side])
        if position is None:
            return
        events = position["events"] if self.is_replayable else ()  # else what waits is lost
        for event in (_Event(*event) for event in events):
            if event.kind == "given":
                self._kept = event.kept
                self._rows_until(event.span)
            else:
                self._clock, self._read = event.clock, event.end - event.rows
                self._take(event.kind, self._sources[event.kind].again(event.span), event.read_at)
                self._kept = event.kept
            self._events.append(event)
        self._clock, self._kept = position["clock"], position["kept"]
        self._read = position["read"]
        self._given = position["given"] if self.is_replayable else self._read
        self.clicks_late, self.clicks_unmatched = position["late"], position["unmatched"]
        self._since, self._bad, self._late = [], [], []
        self._positions = {side: position[side] for side in self._sources}
        for side, source in self._sources.items():
            source.open(formats[side], self._positions[side])
        self._opened_at = time.monotonic()

    def read(self, timeout: float) -> Block | None:
        """See `Source.read`."""
        end = time.monotonic() + timeout
        while True:
            if self._late or len(self._bad) >= _MOST_BAD:
                return self._give(self._given)
            ready = self._ready()
            if not ready and len(self._ended) == len(self._sources):
                if not (self._waiting or self._bad):
                    raise EndOfStream
                rest = self._waiting[-1].end if self._waiting else self._given
                return self._give(min(rest, self._given + BLOCK_ROWS))
            if ready and self._seen["clicks"] >= self._clock:
                return self._give(ready)
            found = self._next_of(["clicks"] if ready else self._by_time(), end, waits=not ready)
            if found is not None:
                self._take(*found, time.time())
            elif ready and not self._is_waited_for("clicks"):
                return self._give(ready)
            elif time.monotonic() >= end:
                return None

    def again(self, span: Any) -> Block:
        """See `Source.again`."""
        events, given = span
        for side, inner, read_at in events:
            self._take(side, self._sources[side].again(inner), read_at)
        return self._give(given)

    # What is read

    def _by_time(self) -> list[str]:
        """The sources, the one that is behind first."""
        return sorted(self._sources, key=lambda side: self._seen[side])

    def _next_of(self, sides: Sequence[str], end: float, *, waits: bool) -> tuple[str, Block] | None:
        """The next block of the first source that has one; no source overtakes one that is waited for.

        `waits`: whether to wait a little if none has any.
        """
        sides = [side for side in sides if side not in self._ended]
        for side in sides:
            if (block := self._read_of(side, 0.0)) is not None:
                return side, block
            if self._is_waited_for(side):
                break
        else:
            if not waits:
                return None
        left = min(end - time.monotonic(), _TURN)
        first = next((side for side in sides if side not in self._ended), None)
        block = self._read_of(first, left) if first is not None and left > 0 else None
        return None if first is None or block is None else (first, block)

    def _read_of(self, side: str, timeout: float) -> Block | None:
        if side in self._ended:
            return None
        try:
            block = self._sources[side].read(timeout)
        except EndOfStream:
            self._ended.add(side)
            return None
        if block is not None:
            self._stalled.pop(side, None)
        return block

    def _is_waited_for(self, side: str) -> bool:
        """Whether a source that has just given nothing has rows that the other one must not overtake."""
        now = time.monotonic()
        if side in self._ended:
            return False
        if self._seen[side] == _EVER and now - self._opened_at < _GRACE:
            return True
        if not any(self._sources[side].lag().values()):
            self._stalled.pop(side, None)
            return False
        since = self._stalled.setdefault(side, now)
        if since >= 0 and now - since > _PATIENCE:
            self._stalled[side] = -1.0
            _logger.warning(
                "%s gives nothing of what waits there; it is no longer waited for", self._sources[side].name
            )
        return self._stalled[side] >= 0

    def _take(self, side: str, block: Block, read_at: float) -> None:
        """Add the rows of a block."""
        assert block.texts is not None
        bad: list[BadRow] = []
        frame = self._valid(texts_of(block.texts(bad), [*self._on, self._times[side]]), side, read_at, bad)
        self._bad += [(line, reason, f"{block.origin}: {text}") for line, reason, text in bad]
        self._positions[side] = block.position
        earliest = latest = _EVER
        if len(frame):
            times = frame[_AT].to_numpy()
            earliest, latest = int(times.min()), int(times.max())
            self._clock = max(self._clock, latest)
            self._seen[side] = max(self._seen[side], latest)
            if side == "impressions":
                self._waiting.append(_Impressions(self._read, frame, block.origin))
                self._read += len(frame)
            else:
                self._add_clicks(frame)
        else:
            self._seen[side] = max(self._seen[side], _EVER + 1)
        oldest = min((part.earliest for part in self._waiting), default=self._clock)
        self._kept = max(self._kept, min(int(self._clock - self._window), oldest))
        event = _Event(side, block.span, read_at, self._clock, self._kept, earliest, latest, self._read, len(frame))
        self._since.append(event)

    def _valid(self, frame: pl.DataFrame, side: str, read_at: float, bad: list[BadRow]) -> pl.DataFrame:
        """The rows with a key and a time, in seconds."""
        name, latest = self._times[side], int(read_at) + _DAY
        checks = [(pl.col(one).is_null(), one, f"no {one!r}, by which clicks are joined") for one in self._on]
        checks.append((pl.col(_AT).is_null(), name, f"{name!r} is no time"))
        checks.append((pl.col(_AT) > latest, name, f"{name!r} is more than a day after the row was read"))
        frame = frame.with_columns(_seconds(name).alias(_AT))
        if (
            not frame[_AT].null_count()
            and (frame[_AT] <= latest).all()
            and not any(frame[one].null_count() for one in self._on)
        ):
            return frame
        for wrong, column, reason in checks:
            rows = frame.filter(wrong)
            if len(rows):
                bad += [
                    (line, reason, f"{column}={text or ''}") for line, text in rows.select(LINE, column).iter_rows()
                ]
                frame = frame.filter(~wrong)
        return frame

    def _add_clicks(self, frame: pl.DataFrame) -> None:
        """Keep clicks, forget what no impression waits for, and find impressions that were given without them."""
        count = len(frame)
        numbers = pl.int_range(self._clicks_read, self._clicks_read + count, eager=True).alias(_CLICK)
        new = frame.select(*self._on, _AT).with_columns(numbers, pl.lit(False).alias(_USED))
        self._clicks_read += count
        late = self._late_matches(new)
        if late is not None:
            new = new.with_columns(pl.col(_CLICK).is_in(late.to_list()).alias(_USED))
        kept = pl.concat([self._clicks, new])
        gone = kept.filter(pl.col(_AT) < self._kept)
        self.clicks_unmatched += len(gone) - int(gone[_USED].sum())
        self._clicks = kept.filter(pl.col(_AT) >= self._kept) if len(gone) else kept

    def _late_matches(self, clicks: pl.DataFrame) -> pl.Series | None:
        """Queue the impressions that were given with label 0 before these clicks came; the clicks' numbers."""
        if not self._is_positive:
            return None
        horizon = self._clock - self._window - self._late_window
        while self._remembered and int(self._remembered[0].times.max()) < horizon:
            self._remembered.popleft()
        if len(self._negatives) > self._most_negatives:
            self._negatives = self._negatives.filter(pl.col(_AT) >= horizon)
            self._most_negatives = 2 * len(self._negatives) + BLOCK_ROWS
        found = self._negatives.join(clicks, on=self._on, suffix="\x00of click").filter(
            pl.col(f"{_AT}\x00of click") >= pl.col(_AT), pl.col(_AT) >= horizon
        )
        numbers = found[_NUMBER].unique().sort()
        if not len(numbers):
            return None
        self._negatives = self._negatives.filter(~pl.col(_NUMBER).is_in(numbers.to_list()))
        wanted = numbers.to_numpy()
        for part in self._remembered:
            own = wanted[(wanted >= part.first) & (wanted < part.end)]
            if len(own):
                self._late.append(part.frame[own - part.first].with_columns(pl.lit("1").alias(self._label)))
        self.clicks_late += len(numbers)
        return found[_CLICK].unique()

    # What is given

    def _ready(self) -> int:
        """Number of the impression after the last one that waits no longer, of `BLOCK_ROWS` at most; 0 if all wait."""
        until = 0
        for part in self._waiting:
            waits = part.times + self._window >= self._clock
            until = part.first + int(waits.argmax()) if waits.any() else part.end
            if until < part.end or until - self._given >= BLOCK_ROWS:
                break
        return min(until, self._given + BLOCK_ROWS) if until > self._given else 0

    def _rows_until(self, number: int) -> tuple[list[pl.DataFrame], str]:
        """Late rows and the impressions up to this number, labelled; and where the first of these is from.

        An impression whose click was already read, but is of a time after its window, is there twice.
        """
        frames, late = list(self._late), list[pl.DataFrame]()
        self._late, origin = [], ""
        while self._waiting and self._waiting[0].first < number:
            part = self._waiting.popleft()
            own = (
                part
                if part.end <= number
                else _Impressions(part.first, part.frame.head(number - part.first), part.origin)
            )
            if part.end > number:
                self._waiting.appendleft(part.after(number))
            labels, is_late = self._labels_of(own)
            frames.append(own.frame.with_columns(labels))
            if is_late.any():
                late.append(own.frame.filter(pl.Series(is_late)).with_columns(pl.lit("1").alias(self._label)))
            origin = origin or part.origin
        self._given = max(self._given, number)
        return frames + late, origin

    def _labels_of(self, part: _Impressions) -> tuple[pl.Series, npt.NDArray[np.bool_]]:
        """Labels of impressions by the clicks that are kept, and which have one that is late."""
        numbers = pl.int_range(part.first, part.end, eager=True).alias(_NUMBER)
        rows = part.frame.select(*self._on, _AT).with_columns(numbers)
        at, until = pl.col(f"{_AT}\x00of click"), pl.col(_AT) + self._window
        longest = until + self._late_window if self._is_positive else until
        found = rows.join(self._clicks, on=self._on, suffix="\x00of click").filter(
            at >= pl.col(_AT), at <= longest, at >= self._kept
        )
        clicked, is_late = np.zeros((2, len(rows)), np.bool_)
        if len(found):
            in_time = found.select(at <= until).to_series().to_numpy()
            places = found[_NUMBER].to_numpy() - part.first
            clicked[places[in_time]] = True
            is_late[places[~in_time]] = True
            is_late &= ~clicked
            self.clicks_late += int(is_late.sum())
            used = pl.col(_CLICK).is_in(found[_CLICK].unique().to_list())
            self._clicks = self._clicks.with_columns(pl.col(_USED) | used)
        remain = ~clicked & ~is_late
        if self._is_positive and remain.any():
            self._negatives = pl.concat([self._negatives, rows.filter(pl.Series(remain))])
            if self._negatives.n_chunks() > 64:
                self._negatives = self._negatives.rechunk()
            self._remembered.append(part)
        return pl.Series(self._label, np.where(clicked, "1", "0").tolist(), pl.String), is_late

    def _give(self, number: int) -> Block:
        """The block of the impressions up to this number."""
        assert self._format is not None, "open comes before read"
        frames, origin = self._rows_until(number)
        span = [[[event.kind, event.span, event.read_at] for event in self._since], number]
        self._events += [*self._since, _Event("given", number, 0.0, self._clock, self._kept)]
        bad, self._since, self._bad = self._bad, [], []
        if len(self._events) > self._most_events:
            self._trim()
            self._most_events = 2 * len(self._events) + 64
        columns = [*self._format.raw, LINE]
        empty = pl.DataFrame(schema={**dict.fromkeys(self._format.raw, pl.String), LINE: pl.Int64})
        frame = stacked([frame.select(columns) for frame in frames]) if frames else empty
        texts = partial(_rows, frame, bad)
        return block_of(texts, self._format, span, self._position(), time.time(), origin or self.name)

    def _position(self) -> dict[str, Any]:
        return {
            **self._positions,
            "events": list(self._events),
            "read": self._read,
            "given": self._given,
            "clock": self._clock,
            "kept": self._kept,
            "late": self.clicks_late,
            "unmatched": self.clicks_unmatched,
        }

    def _trim(self) -> None:
        """Forget the events that nothing depends on any more.

        Impressions are remembered while they wait or a late click may come; clicks, while they are kept for impressions
        that wait or come, or may be why one that is remembered has label 1.
        """
        horizon = self._clock - self._window - self._late_window if self._is_positive else float("inf")
        kept = [
            event
            for event in self._events
            if event.kind == "impressions" and event.rows and (event.end > self._given or event.latest >= horizon)
        ]
        oldest = min([self._kept, *(event.earliest for event in kept)])
        first = kept[0] if kept else None
        remembered, events, is_after_first = set(map(id, kept)), [], False
        for event in self._events:
            is_after_first = is_after_first or event is first
            is_click = event.kind == "clicks" and event.rows and event.latest >= oldest
            if id(event) in remembered or is_click or (event.kind == "given" and is_after_first):
                events.append(event)
        self._events = events

    # What it knows

    def lag(self) -> Mapping[str, float]:
        """What waits in both sources."""
        found: dict[str, float] = {}
        for source in self._sources.values():
            for unit, amount in source.lag().items():
                found[unit] = found.get(unit, 0) + amount
        return found

    def acknowledge(self, position: Any) -> None:
        """Tell both sources."""
        for side, source in self._sources.items():
            if position[side] is not None:
                source.acknowledge(position[side])

    def stop(self) -> None:
        """See `Source.stop`."""
        for source in self._sources.values():
            source.stop()

    def close(self) -> None:
        """Close both sources."""
        for source in self._sources.values():
            source.close()

    def first_rows(self, path: Path, rows: int, patience: float) -> LogPaths:
        """See `Source.first_rows`. Of these rows, an impression with the key of any click has label 1."""
        heads: dict[str, pl.DataFrame] = {}
        for side, source in self._sources.items():
            with TemporaryDirectory() as folder:
                heads[side] = _texts_in(source.first_rows(Path(folder), rows, patience), folder)
        impressions, clicks = heads["impressions"], heads["clicks"]
        for side, head in heads.items():
            for name in (*self._on, self._given_times[side]):
                if name is not None and name not in head.columns:
                    raise StreamError(
                        f"{self._sources[side].name}: no column {name!r}; the columns are {', '.join(head.columns)}"
                    )
        if self._label in impressions.columns:
            raise StreamError(
                f"{self._sources['impressions'].name}: has a column {self._label!r}; give the labels another name by "
                "`label`",
                "label",
            )
        keys = clicks.select(self._on).unique().with_columns(pl.lit("1").alias(self._label))
        labelled = impressions.join(keys, on=self._on, how="left", maintain_order="left")
        labelled = labelled.with_columns(pl.col(self._label).fill_null("0"))
        path.mkdir(parents=True, exist_ok=True)
        sample = labelled.select(pl.all().str.replace_all(r"[\r\n]", " "))
        write_atomically(path / "rows.csv", sample.write_csv)
        return str(path / "rows.csv")


def _format_of(names: Sequence[str], kinds: Mapping[str, str] = MappingProxyType({})) -> LogFormat:
    """Return a format that reads these columns, of some kinds, and derives no field."""
    names = list(dict.fromkeys(names))
    made = {str(number): name for number, name in enumerate(names)}  # a field may not be called "time", as a column may
    return LogFormat("log", "", tuple(made), sources=made, labelled=False, separator="", kinds=kinds)


def _texts_in(log: LogPaths, root: str) -> pl.DataFrame:
    """Return all rows of a small log below a folder as texts."""
    frames: list[pl.DataFrame] = []
    for file in listed(log, root=root):
        names = [name for name in file.head.columns if name]
        format = _format_of(names, dict.fromkeys(names, "category"))
        frames += [texts_of(frame.select(names), names) for frame in _frames(file, format)]
    return pl.concat(frames, how="diagonal")


def _frames(file: RawFile, format: LogFormat) -> list[pl.DataFrame]:
    format = LogFormat(**{**vars(format), "separator": file.head.separator or ","})
    return [file.full_frame(chunk, format, []) for chunk in file.chunks(format, 0, 1, BLOCK_BYTES)]


def _rows(frame: pl.DataFrame, found: Sequence[BadRow], bad: list[BadRow]) -> pl.DataFrame:
    bad.extend(found)
    return frame


def _seconds(name: str) -> pl.Expr:
    """Whole seconds since 1970 of numbers in any unit, or of ISO 8601; null where they cannot be read."""
    text = stripped(name)
    number = pl.coalesce(
        text.cast(pl.Int64, strict=False), text.cast(pl.Float64, strict=False).floor().cast(pl.Int64, strict=False)
    )
    size = number.abs()
    seconds: Any = pl.when(size < 10**11).then(number)
    for digits, unit in ((14, 10**3), (17, 10**6), (20, 10**9)):
        seconds = seconds.when(size < min(10**digits, (1 << 63) - 1)).then(number // unit)
    return pl.coalesce(seconds.otherwise(None), as_seconds(name, "iso")[0])
