"""What every source of arriving rows offers: blocks of rows that can be read again, and positions between them."""

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import polars as pl

from sparsegroup.data.raw.encode import EncodedRows, encode_frame
from sparsegroup.data.raw.files import BadRow, LogPaths
from sparsegroup.data.schema import LogFormat
from sparsegroup.errors import UserError

BLOCK_BYTES = 1 << 20
"""About how many bytes of text a block has at most."""
BLOCK_ROWS = 10_000
"""How many rows a block has at most; of a Parquet or Arrow file, 65,536."""

Lost = Literal["error", "skip"]
"""What to do about rows that a broker has deleted before they were read."""

Texts = Callable[[list[BadRow]], pl.DataFrame]
"""Parses rows: the format's raw columns as texts, empty values as null, and the column `LINE`; the list receives the
rows that cannot be parsed."""


class StreamError(UserError):
    """Rows that cannot be read, or not again: the message names the source, the place in it, and what to do."""


class EndOfStream(Exception):  # noqa: N818, it is no error
    """There can be no more rows."""


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a source, read but not parsed.

    Attributes:
        span: JSON from which `Source.again` reads the same rows again.
        position: JSON: where the source is after these rows.
        read_at: When they were read, seconds since 1970.
        origin: The file, partition or stream, for messages.
        encode: Parses and hashes the rows. It is pure and can run in any thread. `EncodedRows.bad` has the rows that
            cannot be used: their line in a file, or their offset or number in a stream; the reason; and their text.
            Raises ClickLogError for a damaged Parquet or Arrow file.
        texts: Only parses them, as far as another source needs it.
    """

    span: Any
    position: Any
    read_at: float
    origin: str
    encode: Callable[[], EncodedRows]
    texts: Texts | None = None


def encoded_texts(texts: Texts, format: LogFormat) -> EncodedRows:
    """Parse and hash rows."""
    bad: list[BadRow] = []
    return encode_frame(texts(bad), format, bad)


def block_of(texts: Texts, format: LogFormat, span: Any, position: Any, read_at: float, origin: str) -> Block:
    """A block of rows that `texts` parses; it must be pure."""
    return Block(span, position, read_at, origin, partial(encoded_texts, texts, format), texts)


class Source(ABC):
    """Rows that keep arriving, in one order; one thread reads it.

    `open` says where reading begins. `read` gives the next rows, and `again` the rows of a span that `read` has given
    before, also in another process: both leave the position after the rows. So who remembers a position and the spans
    since then reads the same rows in the same order after a restart.

    Attributes:
        name: The source, for messages.
        is_replayable: Whether `again` can read rows again.
    """

    name: str
    is_replayable: bool = True

    @property
    def identity(self) -> Mapping[str, Any]:
        """Facts that identify the source, for JSON, without secrets. A position is valid only for the same source."""
        return {"source": self.name}

    def difference_from(self, identity: Mapping[str, Any]) -> str:
        """Return a description of the difference from the source with an identity; "" for the same source."""
        before, now = (json.dumps(one, ensure_ascii=False, sort_keys=True) for one in (identity, self.identity))
        return "" if before == now else f"the source was {before} and is {now}"

    @abstractmethod
    def first_rows(self, path: Path, rows: int, patience: float) -> LogPaths:
        """A log of the first rows, that `open_log` reads, from which the format and settings can be inferred.

        It waits for the first row. The position does not move.

        Args:
            path: A folder to be made, which then holds these rows and nothing else.
            rows: How many rows are enough; sources stop at 32 MB of text before.
            patience: How long to wait for them after the first, in seconds.

        Raises:
            StreamError, ClickLogError: The source cannot be read.
        """

    @abstractmethod
    def open(self, format: LogFormat, position: Any = None) -> None:
        """Begin after `position`, or with the oldest rows that are there.

        Raises:
            StreamError: The position is another source's.
        """

    @abstractmethod
    def read(self, timeout: float) -> Block | None:
        """The next rows, one or a bad one at least; None if none has arrived within `timeout` seconds.

        Raises:
            EndOfStream: There can be no more.
            StreamError, ClickLogError: Rows are lost, or a file is damaged.
        """

    @abstractmethod
    def again(self, span: Any) -> Block:
        """The rows of a block that was read before, in an equal block.

        Raises:
            StreamError: They are no longer there, or have changed.
        """

    def lag(self) -> Mapping[str, float]:
        """What is known of what has arrived and is not read: "rows", or "bytes" and "files". Any thread can call it."""
        return {}

    def acknowledge(self, position: Any) -> None:  # noqa: B027, most need no notice
        """Rows up to this position are in a checkpoint. Kafka shows that to its monitors; others do nothing."""

    def stop(self) -> None:  # noqa: B027, most wait for nothing
        """Let a call of `again` that waits for a server end with a StreamError. Any thread can call it."""

    @abstractmethod
    def close(self) -> None:
        """End connections and threads."""


class Away:
    """Whether a server is away: one warning when it goes, one message when it is back."""

    def __init__(self, name: str, logger: logging.Logger) -> None:
        self._name, self._logger = name, logger
        self.is_away = False

    def gone(self, why: object) -> None:
        """It cannot be reached."""
        if not self.is_away:
            self._logger.warning("%s cannot be reached (%s); waiting for it", self._name, " ".join(str(why).split()))
        self.is_away = True

    def back(self) -> None:
        """It has answered."""
        if self.is_away:
            self._logger.warning("%s can be reached again", self._name)
        self.is_away = False


def checked_lost(lost: str, name: str) -> Lost:
    """The value of the option `lost`; StreamError if it is none."""
    if lost not in get_args(Lost):
        raise StreamError(f"`lost` of {name} is error or skip, got {lost!r}", "lost")
    return "skip" if lost == "skip" else "error"
