"""From the blocks of a source to full batches: read ahead, journaled, and counted to the row."""

import json
import logging
import math
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Full, Queue
from time import monotonic
from typing import Any

from sparsegroup.artifact.folder import name_errors, write_atomically
from sparsegroup.data.batches import Batch, concatenated
from sparsegroup.data.raw.encode import EncodedRows
from sparsegroup.errors import RunError
from sparsegroup.streaming.sources.source import Block, EndOfStream, Source

_logger = logging.getLogger(__name__)
_POLL, _LAG_EVERY = 0.2, 1.0
"""Seconds for which a source is read at a time; and between two looks at what waits in it."""


class BlockReader:
    """Reads and encodes the blocks of an open source in threads, a bounded number ahead: back-pressure, not memory.

    Args:
        source: The source, opened.
        again: The spans to read first: of blocks that were taken before.
        threads: That parse and hash.
        ahead: Blocks that wait at most.

    Attributes:
        lag: What the source said last of the rows that wait in it.
        is_over: Whether the source has ended and all of it was given.
    """

    def __init__(self, source: Source, again: Sequence[Any] = (), *, threads: int = 1, ahead: int = 4) -> None:
        self.lag: Mapping[str, float] = {}
        self.is_over = False
        self._source, self._again = source, list(again)
        self._queue: Queue[tuple[Block, Future[EncodedRows]] | BaseException | None] = Queue(ahead)
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(threads, "sparsegroup-encoder")
        self._thread = threading.Thread(target=self._read, name="sparsegroup-source", daemon=True)
        self._thread.start()

    def next(self, timeout: float) -> tuple[Block, EncodedRows] | None:
        """The next block with its rows; None if none came within `timeout` seconds, or there are no more (`is_over`).

        Raises:
            ClickLogError, OSError: What the source raised, after the blocks before.
        """
        try:
            found = self._queue.get(timeout=timeout)
        except Empty:
            return None
        if isinstance(found, BaseException):
            self.is_over = True
            raise found
        if found is None:
            self.is_over = True
            return None
        block, encoded = found
        return block, encoded.result()

    def close(self, patience: float = 10.0) -> bool:
        """End the threads. The source remains open.

        Args:
            patience: Seconds to wait for a read in progress, so that a hanging store does not delay the end.

        Returns:
            Whether the reading thread has ended. If not, it may still use the source.
        """
        self._closed.set()
        self._thread.join(patience)
        has_ended = not self._thread.is_alive()
        self._pool.shutdown(wait=has_ended, cancel_futures=True)
        return has_ended

    def _read(self) -> None:
        looked_at = -math.inf
        try:
            for span in self._again:
                if self._closed.is_set():
                    return
                self._put(self._source.again(span))
            while not self._closed.is_set():
                block = self._source.read(_POLL)
                if monotonic() - looked_at >= _LAG_EVERY:
                    self.lag, looked_at = self._source.lag(), monotonic()
                if block is not None:
                    self._put(block)
        except EndOfStream:
            self._put(None)
        except BaseException as error:  # it is raised where the blocks are taken
            self._put(error)

    def _put(self, found: Block | BaseException | None) -> None:
        item = (found, self._pool.submit(found.encode)) if isinstance(found, Block) else found
        while not self._closed.is_set():
            with suppress(Full):
                return self._queue.put(item, timeout=_POLL)


class Journal:
    """Which blocks a training has taken, in order, so that it takes the same ones when it is resumed.

    A line of a file for each block: its number and its span. A line is written before the block is learnt; a last line
    that was cut off is no line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = path.stat().st_size if path.exists() else 0
        self._last = 0  # number of the last block that it has

    def spans_after(self, block: int) -> list[Any]:
        """The spans of the blocks behind number `block`.

        Raises:
            RunError: The journal is damaged.
        """
        found, wanted, size = [], block + 1, 0
        for line in self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else ():
            if not line.endswith(b"\n"):
                break
            size += len(line)
            try:
                number, span = json.loads(line)
            except ValueError as error:
                raise RunError(f"{self.path}: damaged ({error})") from error
            if number == wanted:
                found.append(span)
                wanted += 1
            elif number > wanted:
                raise RunError(f"{self.path}: damaged (block {wanted} is missing before block {number})")
        if self.path.exists() and self.path.stat().st_size > size:
            os.truncate(self.path, size)
        self._size, self._last = size, wanted - 1
        return found

    def append(self, number: int, span: Any) -> None:
        """Note a block, unless it was noted before; OSError if the disk is full, and nothing is noted."""
        if number <= self._last:
            return
        line = json.dumps([number, span]).encode() + b"\n"
        with name_errors(self.path), self.path.open("ab") as file:
            file.truncate(self._size)
            file.write(line)
        self._size, self._last = self._size + len(line), number

    def forget(self, block: int) -> None:
        """Drop the blocks up to number `block`."""
        kept = [line for line in self.path.read_bytes().splitlines(keepends=True) if json.loads(line)[0] > block]
        write_atomically(self.path, lambda path: path.write_bytes(b"".join(kept)))
        self._size = sum(map(len, kept))


@dataclass(frozen=True)
class Place:
    """A place in a stream, between two rows: behind `skip` rows of the block that follows number `block`.

    `position` is that of the source after block number `block`, None is the beginning; `read_at` is when the block of
    the row before was read.
    """

    block: int = 0
    position: Any = None
    skip: int = 0
    read_at: float | None = None


class FullBatches:
    """Cuts the rows of blocks into batches of one size, and knows the place of each number of rows.

    Args:
        size: Rows of a batch.
        begin: The place of the first row that is added.
    """

    def __init__(self, size: int, begin: Place = Place()) -> None:
        self.size = size
        self._parts: deque[Batch] = deque()
        self._first = 0  # rows of the first part that are given
        self._skip = begin.skip
        self.rows = 0
        """Rows that were added, without those skipped, which another training has learnt."""
        # Rows up to there, block, position, when it was read
        self._ends = deque([(-begin.skip, begin.block, begin.position, begin.read_at)])

    def add(self, block: Block, rows: Batch) -> int:
        """The next block, whose number is returned; RunError if it lacks rows that another training has learnt."""
        number = self._ends[-1][1] + 1
        if len(rows) < self._skip:
            raise RunError(
                f"{block.origin}: has {len(rows):,} rows where {self._skip:,} were learnt before: it has changed since"
            )
        kept, self._skip = rows[self._skip :], 0
        if len(kept):
            self._parts.append(kept)
        self.rows += len(kept)
        self._ends.append((self.rows, number, block.position, block.read_at))
        return number

    @property
    def waiting(self) -> int:
        """Rows that are in no batch yet."""
        return sum(map(len, self._parts)) - self._first

    def full(self, *, rest: bool = False) -> Iterator[Batch]:
        """The batches that are full by now; with `rest`, also the last rows."""
        while (waiting := self.waiting) >= self.size or (rest and waiting):
            yield self._take(min(self.size, waiting))

    def _take(self, count: int) -> Batch:
        pieces, lacking = [], count
        while lacking:
            part = self._parts[0]
            piece = part[self._first : self._first + lacking]
            pieces.append(piece)
            lacking -= len(piece)
            self._first += len(piece)
            if self._first == len(part):
                self._parts.popleft()
                self._first = 0
        return concatenated(pieces)

    def place(self, rows: int) -> Place:
        """The place behind the first `rows` rows that were added; earlier places are forgotten."""
        while len(self._ends) > 1 and self._ends[1][0] <= rows:
            self._ends.popleft()
        end, block, position, read_at = self._ends[0]
        skip = rows - end
        return Place(block, position, skip, self._ends[1][3] if skip and len(self._ends) > 1 else read_at)
