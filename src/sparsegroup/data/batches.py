"""Batches of samples: joined and cut to another size, and read ahead."""

import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from queue import Full, Queue
from typing import TypeVar

import torch
from torch import Tensor

from sparsegroup.errors import ClickLogError
from sparsegroup.kernels.gpu.runtime import sent

T = TypeVar("T")

LABEL, TIME, WEIGHT = "label", "time", "weight"
"""Columns of encoded rows, in addition to fields and numbers."""
MOST_WEIGHT = 1e18
"""Largest weight of a row. With larger weights, squared gradients are infinite in float32."""


@dataclass(frozen=True)
class Bags:
    """The values of a field that has several of them per row.

    Attributes:
        keys: `[m]` int64: the first row's, then the second row's, and so on.
        offsets: `[n + 1]` int64: row i has `keys[offsets[i] : offsets[i + 1]]`; the first is 0.
    """

    keys: Tensor
    offsets: Tensor

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: slice | Tensor) -> "Bags":
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            offsets = self.offsets[start : max(start, stop) + 1]
            return Bags(self.keys[offsets[0] : offsets[-1]], offsets - offsets[0])
        starts = self.offsets.index_select(0, rows)
        counts = self.offsets.index_select(0, rows + 1) - starts
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        places = torch.arange(int(offsets[-1]))
        places += (starts - offsets[:-1]).repeat_interleave(counts, output_size=len(places))
        return Bags(self.keys.index_select(0, places), offsets)


@dataclass(frozen=True)
class Batch:
    """Some rows of a log.

    Attributes:
        keys: `[n, fields]` int64, of the fields of one value.
        numbers: `[n, numbers]` float32.
        labels: `[n]` float32: 0 or 1, numbers, or numbers of classes; of several tasks `[n, tasks]`, NaN where one has
            none.
        times: `[n]` int64.
        weights: `[n]` float32, ≥ 0, or None where every row counts the same.
        bags: The values of each field of several values, in the order of the log's `lists`.
    """

    keys: Tensor
    numbers: Tensor
    labels: Tensor
    times: Tensor
    weights: Tensor | None = None
    bags: tuple[Bags, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def for_device(self, device: torch.device) -> "Batch":
        """The same with numbers, labels and weights on `device`; what is looked up stays where the index is."""
        if device == self.labels.device:
            return self
        numbers, labels = sent(self.numbers, device), sent(self.labels, device)
        weights = None if self.weights is None else sent(self.weights, device)
        return replace(self, numbers=numbers, labels=labels, weights=weights)

    def __getitem__(self, rows: slice | Tensor) -> "Batch":
        """The rows of a slice, or with the numbers `[m]` int64, in that order."""

        def some(column: Tensor) -> Tensor:
            return column[rows] if isinstance(rows, slice) else column.index_select(0, rows)  # a quarter of the time

        return Batch(
            some(self.keys),
            some(self.numbers),
            some(self.labels),
            some(self.times),
            None if self.weights is None else some(self.weights),
            tuple(bags[rows] for bags in self.bags),
        )


def rebatched(parts: Iterator[Batch], size: int) -> Iterator[Batch]:
    """The rows of `parts`, `size` at a time."""
    for batch in resized(parts, repeat(size)):
        if not len(batch):
            return
        yield batch


def complete(parts: Iterator[Batch], rows: int, name: str) -> Iterator[Batch]:
    """The batches of a log of that name. In the end it raises ClickLogError unless they had `rows` rows."""
    found = 0
    for part in parts:
        found += len(part)
        yield part
    if found != rows:
        raise ClickLogError(f"{name}: {found:,} rows were read where its length says {rows:,}")


def resized(parts: Iterator[Batch], sizes: Iterable[int]) -> Iterator[Batch]:
    """The rows of `parts`, in batches of the given sizes, as far as they go; some of these may be 0.

    Args:
        parts: Batches; without any there is none.
        sizes: How many rows each batch has.
    """
    if (part := next(parts, None)) is None:
        return
    place = 0
    for size in sizes:
        pieces = [part[place : place + size]]
        place, lacking = place + size, size - len(pieces[0])
        while lacking and (following := next(parts, None)) is not None:
            part, place = following, lacking
            pieces.append(part[:lacking])
            lacking -= len(pieces[-1])
        yield concatenated(pieces)


def concatenated(parts: Sequence[Batch]) -> Batch:
    """The rows of all parts, of which there is one at least, as one batch."""
    parts = [part for part in parts if len(part)] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    weights = [part.weights for part in parts if part.weights is not None]
    return Batch(
        torch.cat([part.keys for part in parts]),
        torch.cat([part.numbers for part in parts]),
        torch.cat([part.labels for part in parts]),
        torch.cat([part.times for part in parts]),
        weights=torch.cat(weights) if len(weights) == len(parts) else None,
        bags=tuple(map(_joined_bags, zip(*(part.bags for part in parts), strict=True))),
    )


def _joined_bags(parts: Sequence[Bags]) -> Bags:
    counts = torch.cat([bags.offsets.diff() for bags in parts])
    return Bags(torch.cat([bags.keys for bags in parts]), torch.cat([counts.new_zeros(1), counts.cumsum(0)]))


def read_ahead(items: Iterator[T], depth: int = 2) -> Iterator[T]:
    """The items, made by a thread that is up to `depth` of them ahead."""
    queue: Queue[T | BaseException | None] = Queue(depth)
    abandoned = threading.Event()

    def put(item: T | BaseException | None) -> None:
        while not abandoned.is_set():
            try:
                return queue.put(item, timeout=0.1)
            except Full:
                continue

    def produce() -> None:
        try:
            for item in items:
                put(item)
                if abandoned.is_set():
                    return
            put(None)
        except BaseException as error:  # it is raised where the items are used
            put(error)
        finally:
            if isinstance(items, Generator):  # what it holds, threads among it, ends with it
                items.close()

    thread = threading.Thread(target=produce, name="sparsegroup-reader", daemon=True)
    thread.start()
    try:
        while (item := queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        abandoned.set()
        thread.join()
