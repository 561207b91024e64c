"""How far the values of each column have moved since some rows of reference."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.data.batches import Batch
from sparsegroup.data.keys import Int64s
from sparsegroup.data.log import Log

Float64s = npt.NDArray[np.float64]

_COMMON = 20


@dataclass(frozen=True)
class Drift:
    """How far a column has moved.

    Attributes:
        psi: Population stability index: of shares p and q of the later and the earlier rows, Σ (p - q) ln(p / q), over
            the 20 most frequent values of the earlier rows and all others together, or over tenths of the earlier
            rows' numbers and missing ones; half a row is added to each.
        unseen: Share of the later values that neither the earlier rows nor `contains` have; 0 of a number.
    """

    psi: float
    unseen: float


class Reference:
    """The earlier rows that later ones are compared with.

    Args:
        log: The log whose columns they have.
        rows: The earlier rows.
        contains: Returns which keys, `[n]` int64, were known before these rows, such as the method of a table; None:
            no key was.
    """

    def __init__(self, log: Log, rows: Batch, contains: Callable[[Tensor], Tensor] | None = None) -> None:
        self._log, self._made_of, self._contains = log, log.made_of(), contains
        names = [name for parts in self._made_of.values() for name in parts]
        self._parts: dict[str, _Values | _Numbers] = {
            name: _Values(values_of(name, log, rows)[0]) if name in log.fields else _Numbers(_numbers(name, log, rows))
            for name in names
        }

    def drift(self, rows: Batch) -> dict[str, Drift]:
        """Column of the source → how far later rows have moved; of several parts, the one that has moved farthest."""
        found = {}
        for column, names in self._made_of.items():
            moved = [self._moved(name, rows) for name in names]
            found[column] = Drift(max(one.psi for one in moved), max(one.unseen for one in moved))
        return found

    def _moved(self, name: str, rows: Batch) -> Drift:
        part = self._parts[name]
        if isinstance(part, _Values):
            return part.drift(values_of(name, self._log, rows)[0], self._contains)
        return part.drift(_numbers(name, self._log, rows))


def values_of(name: str, log: Log, batch: Batch) -> tuple[Int64s, Int64s]:
    """The keys `[m]` of a field in a batch, and the row `[m]` of each."""
    if name in log.lists:
        bags = batch.bags[log.lists.index(name)]
        return bags.keys.numpy(), np.repeat(np.arange(len(bags)), np.diff(bags.offsets.numpy()))
    single = log.schema.single
    return batch.keys[:, single.index(name)].numpy(), np.arange(len(batch))


def _numbers(name: str, log: Log, batch: Batch) -> Float64s:
    found: Float64s = batch.numbers[:, log.numbers.index(name)].double().numpy()
    return found


class _Values:
    """The values of a field, earlier."""

    def __init__(self, keys: Int64s) -> None:
        self._values, counts = np.unique(keys, return_counts=True)
        self._common = np.sort(self._values[np.argsort(-counts, kind="stable")[:_COMMON]])
        self._counts = self._counted(keys)

    def drift(self, keys: Int64s, contains: Callable[[Tensor], Tensor] | None) -> Drift:
        is_known = _are_in(self._values, keys)
        if contains is not None:
            is_known = is_known | contains(torch.from_numpy(keys)).numpy()
        unseen = float((~is_known).mean()) if len(keys) else 0.0
        return Drift(_psi(self._counts, self._counted(keys)), unseen)

    def _counted(self, keys: npt.NDArray[np.generic]) -> Int64s:
        """How often each common key occurs, and, last, all others together."""
        known = _are_in(self._common, keys)
        place = np.searchsorted(self._common, keys)
        return np.bincount(np.where(known, place, len(self._common)), minlength=len(self._common) + 1)


def _are_in(values: Int64s, keys: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    """Which keys are among values, ascending."""
    if not len(values):
        return np.zeros(len(keys), np.bool_)
    found: npt.NDArray[np.bool_] = values[np.searchsorted(values, keys).clip(max=len(values) - 1)] == keys
    return found


class _Numbers:
    """The values of a number, earlier."""

    def __init__(self, numbers: Float64s) -> None:
        known = numbers[np.isfinite(numbers)]
        self._edges = np.unique(np.quantile(known, np.arange(1, 10) / 10)) if len(known) else np.zeros(0)
        self._counts = self._counted(numbers)

    def drift(self, numbers: npt.NDArray[Any]) -> Drift:
        return Drift(_psi(self._counts, self._counted(numbers)), 0.0)

    def _counted(self, numbers: npt.NDArray[Any]) -> Int64s:
        """How many numbers each tenth has, and, last, how many are missing."""
        edges = self._edges
        tenths = np.where(np.isfinite(numbers), np.searchsorted(edges, numbers), len(edges) + 1)
        return np.bincount(tenths, minlength=len(edges) + 2)


def _psi(before: Int64s, after: Int64s) -> float:
    there = before + after > 0
    q, p = ((one[there] + 0.5) / (one[there] + 0.5).sum() for one in (before, after))
    return float(((p - q) * np.log(p / q)).sum())
