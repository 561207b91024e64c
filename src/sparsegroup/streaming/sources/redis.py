"""Rows of a Redis stream, whose entries map columns to texts."""

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from sparsegroup.addresses import public_address, without_secrets
from sparsegroup.data.raw.files import BadRow, LogPaths
from sparsegroup.data.schema import LogFormat
from sparsegroup.errors import require
from sparsegroup.publishing.destinations import REDIS_TIMEOUTS
from sparsegroup.streaming.sources.records import FieldWatch, Record, frame_of, write_csv
from sparsegroup.streaming.sources.source import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    Away,
    Block,
    Source,
    StreamError,
    block_of,
    checked_lost,
)

_PAUSE = 0.2
"""Seconds between attempts while the server is away."""
_BEGINNING = "0-0"

_logger = logging.getLogger(__name__)

_Entry = tuple[bytes, dict[bytes, bytes]]
"""Its id, and its fields."""


class RedisSource(Source):
    """Rows of a Redis stream, one per entry, whose fields are the columns.

    A position is {"id": that of the last entry, "rows": its number in the stream, from 1}. While the server is away
    it waits. Bad rows have their number, which is also a row's time where no column has one. With a server older than
    Redis 7 it cannot be known whether rows were deleted before they were read, nor how many wait.

    Args:
        url: The server and its database, such as `redis://host:6379/0`, as redis-py takes it.
        stream: The stream's key; it may not exist yet.
        lost: Whether rows that were deleted before they were read are an error, or skipped with a warning.

    Raises:
        MissingExtraError: redis is not installed.
        StreamError: The URL is not one of redis-py.
    """

    def __init__(self, url: str, stream: str, *, lost: str = "error") -> None:
        require("redis", "a source that reads Redis")
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._url = url
        self.name = f"{public_address(url).partition('?')[0]}/{stream}"
        self._stream, self._lost = stream, checked_lost(lost, self.name)
        try:
            self._client: Any = Redis.from_url(url, **{"protocol": 2, "retry": Retry(NoBackoff(), 0), **REDIS_TIMEOUTS})
        except ValueError as error:
            raise StreamError(f"{self.name}: {without_secrets(error, self._url)}") from error
        self._away, self._closed = Away(self.name, _logger), threading.Event()
        self._watch = FieldWatch(self.name)
        self._id, self._rows, self._added = _BEGINNING, 0, 0
        self._fetched = _BEGINNING
        self._waiting: deque[_Entry] = deque()
        self._format: LogFormat | None = None

    @property
    def identity(self) -> Mapping[str, Any]:
        """See `Source.identity`."""
        server = self._client.connection_pool.connection_kwargs
        facts = {"host": "localhost", "port": 6379, "db": 0} if "path" not in server else {"path": "", "db": 0}
        return {"stream": self._stream, **{name: server.get(name, default) for name, default in facts.items()}}

    def open(self, format: LogFormat, position: Any = None) -> None:
        """See `Source.open`."""
        found: Any = {"id": _BEGINNING, "rows": 0} if position is None else position
        if not isinstance(found, Mapping) or set(found) != {"id", "rows"}:
            raise StreamError(f"{self.name}: the position {position!r} is not one of a stream")
        self._format = format
        self._move(str(found["id"]), int(found["rows"]))

    def _move(self, last: str, rows: int) -> None:
        """Go behind the entry `last`, the stream's number `rows`."""
        if last != self._id:
            self._waiting.clear()
        if not self._waiting:
            self._fetched = last
        self._id, self._rows = last, rows

    def read(self, timeout: float) -> Block | None:
        """See `Source.read`."""
        end = time.monotonic() + timeout
        while not self._waiting:
            left = end - time.monotonic()
            if self._arrived():
                break
            if left <= 0:
                return None
            self._wait(left)
        entries: list[_Entry] = []
        size = 0
        while self._waiting and len(entries) < BLOCK_ROWS and size < BLOCK_BYTES:
            entries.append(self._waiting.popleft())
            size += sum(map(len, entries[-1][1].values()))
        return self._block(entries)

    def again(self, span: Any) -> Block:
        """See `Source.again`. It waits as long as the server is away."""
        first, last, count, number = span
        while (found := self._reply("xrange", self._stream, first, last, count + 1)) is None:
            if self._closed.wait(_PAUSE):
                raise StreamError(f"{self.name}: closed while rows were read again")
        entries = [(key, fields) for key, fields in found if fields is not None]
        if len(entries) != count or entries[0][0].decode() != first or entries[-1][0].decode() != last:
            raise StreamError(
                f"{self.name}: has {len(entries):,} of the {count:,} rows with the ids {first} to {last}, which are to "
                "be read again: was it trimmed?"
            )
        self._waiting.clear()
        self._rows = number - 1
        return self._block(entries)

    def _block(self, entries: Sequence[_Entry]) -> Block:
        assert self._format is not None, "open comes before read"
        first, last = entries[0][0].decode(), entries[-1][0].decode()
        span = [first, last, len(entries), self._rows + 1]
        texts = partial(_texts_of, entries, self._rows + 1, self._format, self._watch)
        self._id, self._rows = last, self._rows + len(entries)
        if not self._waiting:
            self._fetched = last
        position = {"id": last, "rows": self._rows}
        return block_of(texts, self._format, span, position, time.time(), self.name)

    # What arrives

    def _arrived(self) -> bool:
        """Fetch the entries that are there, and compare their number with how many the stream has had."""
        found = self._reply("pipeline")
        if found is None:
            return False
        info, reply = found
        entries = [(key, fields) for key, fields in reply[0][1] if fields is not None] if reply else []
        self._fetched = entries[-1][0].decode() if entries else self._fetched
        if info is not None and "entries-added" in info:
            self._added = int(info["entries-added"])
            if self._is_another(self._added - int(info["length"])):
                return False
        self._waiting.extend(entries)
        return bool(entries)

    def _is_another(self, deleted: int) -> bool:
        """Raise or warn about rows that were deleted before they were read; whether the stream begins again."""
        if self._id == _BEGINNING:
            self._rows = deleted
        elif self._added < self._rows:
            what = f"has had {self._added:,} rows, and {self._rows:,} were read: it was created again"
            self._lose(what, "read it from its beginning by `lost=skip`")
            self._id, self._fetched, self._rows = _BEGINNING, _BEGINNING, 0
            return True
        elif deleted > self._rows:
            what = f"{deleted - self._rows:,} rows after the id {self._id} were deleted before they were read"
            self._lose(what, "trim it later, or continue without them by `lost=skip`")
            self._rows = deleted
        return False

    def _lose(self, what: str, how: str) -> None:
        if self._lost == "error":
            raise StreamError(f"{self.name}: {what}; {how}", "lost")
        _logger.warning("%s: %s; reading continues", self.name, what)

    def _wait(self, timeout: float) -> None:
        """Wait for the next entry."""
        milliseconds = max(int(min(timeout, 1.0) * 1000), 1)
        if self._reply("xread", {self._stream: self._fetched}, 1, milliseconds) is None:
            time.sleep(min(timeout, _PAUSE))

    def _reply(self, command: str, *arguments: Any) -> Any:
        """The server's reply; None if it is away."""
        from redis import exceptions

        try:
            reply = self._pipelined() if command == "pipeline" else getattr(self._client, command)(*arguments)
        except (exceptions.AuthenticationError, exceptions.AuthorizationError) as error:
            raise StreamError(f"{self.name}: {without_secrets(error, self._url)}") from error
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
            self._away.gone(without_secrets(error, self._url))
            return None
        except exceptions.ResponseError as error:
            raise StreamError(f"{self.name}: {without_secrets(error, self._url)}") from error
        self._away.back()
        return reply

    def _pipelined(self) -> tuple[Any, Any]:
        """What is known of the stream, None if there is none, and its next entries, as of the same moment."""
        from redis import exceptions

        pipeline = self._client.pipeline(transaction=True)
        pipeline.xinfo_stream(self._stream)
        pipeline.xread({self._stream: self._fetched}, count=BLOCK_ROWS)
        info, reply = pipeline.execute(raise_on_error=False)
        if isinstance(info, exceptions.ResponseError) and "no such key" in str(info):
            info = None
        for one in (reply, info):
            if isinstance(one, Exception):
                raise one
        return info, reply

    # What it knows

    def lag(self) -> Mapping[str, float]:
        """Rows that had arrived when it was last read, and were not given."""
        return {"rows": max(self._added - self._rows, 0)}

    def stop(self) -> None:
        """See `Source.stop`."""
        self._closed.set()

    def close(self) -> None:
        """Leave the server."""
        self._client.close()

    def first_rows(self, path: Path, rows: int, patience: float) -> LogPaths:
        """See `Source.first_rows`."""
        records: list[Record] = []
        end, last = float("inf"), _BEGINNING
        while len(records) < rows and time.monotonic() < end:
            reply = self._reply("xread", {self._stream: last}, rows, 200)
            if reply is None:
                time.sleep(_PAUSE)
            for key, fields in reply[0][1] if reply else ():
                last = key.decode()
                record = _record(fields or {})
                records += [] if isinstance(record, str) else [record]
            if records:
                end = min(end, time.monotonic() + patience)
        return write_csv(path, records[:rows])


def _record(fields: Mapping[bytes, bytes]) -> Record | str:
    try:
        return {name.decode(): value.decode() for name, value in fields.items()}
    except UnicodeDecodeError:
        return "invalid UTF-8"


def _texts_of(
    entries: Sequence[_Entry], number: int, format: LogFormat, watch: FieldWatch, bad: list[BadRow]
) -> pl.DataFrame:
    rows = (
        (place, _record(fields), b", ".join(b"%b=%b" % field for field in fields.items()))
        for place, (_, fields) in enumerate(entries, number)
    )
    return frame_of(rows, format, bad, watch)
