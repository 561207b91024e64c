"""Rows with numbers, and readers that are killed, for the tests of sources."""

import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from data_cases import CSV, assert_same
from sparsegroup.data.batches import Batch, concatenated
from sparsegroup.data.schema import LogFormat
from sparsegroup.streaming.sources import Block, EndOfStream, Source


def row(number: int) -> bytes:
    """The row with this number, as a line of CSV."""
    return f"{number % 2},v{number % 7},日{number % 3},{number},{number // 2}\n".encode()


def record(number: int) -> dict[str, Any]:
    """The same row, as an object."""
    return {"label": number % 2, "a": f"v{number % 7}", "b": f"日{number % 3}", "n": number, "t": number // 2}


def numbers_of(blocks: Sequence[Block]) -> list[int]:
    """The numbers of the rows of some blocks."""
    return [int(number) for block in blocks for number in block.encode().batch.numbers[:, 0]]


def batch_of(blocks: Sequence[Block]) -> Batch:
    return concatenated([block.encode().batch for block in blocks])


def assert_read_again(source: Source, blocks: Sequence[Block]) -> None:
    """The source gives the same blocks for their spans, after these have been JSON."""
    for block in blocks:
        again = source.again(json.loads(json.dumps(block.span)))
        assert (again.span, again.origin) == (block.span, block.origin)
        ours, theirs = again.encode(), block.encode()
        assert ours.bad == theirs.bad
        assert_same(ours.batch, theirs.batch)


def drained(source: Source, rows: int | None = None, patience: float = 20.0) -> list[Block]:
    """The blocks of a source until it has given so many rows, or all that is there now."""
    blocks: list[Block] = []
    found, end = 0, time.monotonic() + patience
    while rows is None or found < rows:
        try:
            block = source.read(0.0 if rows is None else 0.1)
        except EndOfStream:
            break
        if block is not None:
            blocks.append(block)
            encoded = block.encode()
            found += len(encoded.batch) + len(encoded.bad)
        elif rows is None:
            break
        assert time.monotonic() < end, f"{found} rows where {rows} were expected"
    return blocks


class Reader:
    """A trainer that journals spans, checkpoints positions, and is killed: it keeps every row that it has learnt.

    Attributes:
        blocks: What was read, once each.
    """

    def __init__(self, make: Callable[[], Source], format: LogFormat = CSV, seed: int = 0) -> None:
        self._make, self._format, self._random = make, format, random.Random(seed)
        self.blocks: list[Block] = []
        self._position: Any = None
        self._from = 0
        self.source = self._opened()

    def _opened(self) -> Source:
        source = self._make()
        source.open(self._format, json.loads(json.dumps(self._position)))
        assert_read_again(source, self.blocks[self._from :])
        return source

    def read(self, most: int) -> None:
        for _ in range(most):
            if (block := self.source.read(0.0)) is None:
                return
            self.blocks.append(block)

    def checkpoint(self) -> None:
        """Remember a position, of any block since the last one."""
        if len(self.blocks) > self._from:
            self._from = self._random.randint(self._from + 1, len(self.blocks))
            self._position = self.blocks[self._from - 1].position
            self.source.acknowledge(self._position)

    def kill(self) -> None:
        self.source.close()
        self.source = self._opened()

    @property
    def numbers(self) -> list[int]:
        return numbers_of(self.blocks)
