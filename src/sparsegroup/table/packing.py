"""Dead rows on their way out of a table's rows and back, and what an optimizer does with them while they are packed."""

from collections.abc import Iterator, Sequence

import numpy as np

from sparsegroup.optim.stored import RowStep
from sparsegroup.table.buckets import ABSENT
from sparsegroup.table.directory import Directory
from sparsegroup.table.packed_rows import AT_A_TIME, PackedRows
from sparsegroup.table.row_locations import Int64s
from sparsegroup.table.row_storage import Floats, RowMemory, RowStorage
from sparsegroup.table.storage_kinds import new_storage
from sparsegroup.table.table_config import TableConfig

_KEYS_AT_A_TIME, _MOST_PASSES = 1 << 20, 16
"""At least so many keys are found by their row at a time, and the index is gone through at most so often for it."""


def pack_dead(directory: Directory, storage: RowStorage) -> None:
    """Set all dead rows aside; the others are renumbered.

    Raises:
        MemoryError: The system has no more; nothing has changed.
    """
    packed, memory, count = directory.packed, storage.rows, directory.num_rows
    assert packed is not None
    live = np.empty(count, np.bool_)
    for first in range(0, count, AT_A_TIME):
        last = min(first + AT_A_TIME, count)
        live[first:last] = memory.live(first, last)
    dead = count - int(np.count_nonzero(live))
    packed.close_gaps()
    if not packed.count:
        packed.lay_out(memory.initial)
    packed.reserve(dead)
    keys, rows = directory.take_out(live)
    order = np.argsort(rows)
    for first in range(0, dead, AT_A_TIME):
        some = order[first : first + AT_A_TIME]
        packed.add(keys[some], memory.read_whole(rows[some]), directory.steps)
    memory.compact(live)


def bring_back(directory: Directory, storage: RowStorage, keys: Int64s) -> Int64s:
    """Give those of the distinct `keys` that are packed their row again, behind all others.

    Args:
        keys: `[n]`.

    Returns:
        Their rows, `[n]`, `ABSENT` where a key is not packed.

    Raises:
        MemoryError: The system has no more; nothing has changed.
    """
    numbers = np.full(len(keys), ABSENT)
    packed = directory.packed
    if packed is None or not packed.count:
        return numbers
    slots = packed.find(keys)
    places = np.flatnonzero(slots != ABSENT)
    if len(places):
        numbers[places] = directory.num_rows + np.arange(len(places))
        _reserve(directory, storage, len(places))
        _append(directory, storage, keys[places], packed.take(slots[places]))
    return numbers


def bring_all_back(directory: Directory, storage: RowStorage) -> None:
    """Give all rows that are packed their place among the others again, in their order.

    Raises:
        MemoryError: The system has no more; nothing has changed.
    """
    packed = directory.packed
    if packed is None or not packed.count:
        return
    keys = packed.keys()
    _reserve(directory, storage, len(keys))
    for first in range(0, len(keys), AT_A_TIME):
        some = keys[first : first + AT_A_TIME]
        _append(directory, storage, some, packed.take(packed.find(some)))
    packed.lay_out({})


def _reserve(directory: Directory, storage: RowStorage, count: int) -> None:
    storage.rows.reserve(directory.num_rows + count)
    directory.index.reserve(directory.num_rows + count)


def _append(directory: Directory, storage: RowStorage, keys: Int64s, rows: Floats) -> None:
    """Add rows that there is room for."""
    numbers = directory.num_rows + np.arange(len(keys))
    storage.rows.write_whole(numbers, rows)
    directory.index.insert(keys, numbers)
    directory.index.settle(len(keys))
    directory.came(len(keys))


def critical_l21(
    config: TableConfig, directory: Directory, storage: RowStorage, rows: Int64s | None, request: RowStep
) -> Floats:
    """See `sparsegroup.table.row_storage.RowStorage.critical_l21`; packed rows come behind the others."""
    count, packed = directory.num_rows, directory.packed
    if packed is None or not packed.count:
        return storage.critical_l21(rows, count, request)
    if rows is None:
        return np.concatenate(
            [storage.critical_l21(None, count, request), _critical(config, packed, packed.slots(), request)]
        )
    out = np.empty(len(rows))
    aside = rows >= count
    out[~aside] = storage.critical_l21(rows[~aside], count, request)
    out[aside] = _critical(config, packed, packed.slots()[rows[aside] - count], request)
    return out


def _critical(config: TableConfig, packed: PackedRows, slots: Int64s, request: RowStep) -> Floats:
    out = np.empty(len(slots))
    for first in range(0, len(slots), AT_A_TIME):
        some = slots[first : first + AT_A_TIME]
        out[first : first + len(some)] = _unpacked(config, packed, some).critical_l21(None, len(some), request)
    return out


def sweep(config: TableConfig, directory: Directory, storage: RowStorage, request: RowStep, *, drops: bool) -> bool:
    """Apply the closed form to the rows that are packed; those that come to life get their place again.

    Args:
        config, directory, storage: The table's.
        request, drops: See `RowStorage.sweep`.

    Returns:
        Whether rows have changed that are still packed.
    """
    packed = directory.packed
    if packed is None or not packed.count:
        return False
    keys, any_changed = packed.keys(), False
    for first in range(0, len(keys), AT_A_TIME):
        some = keys[first : first + AT_A_TIME]
        slots = packed.find(some)
        block = _unpacked(config, packed, slots)
        changed = block.sweep(len(some), request, drops=drops)
        live = block.rows.live(0, len(some))
        still = changed[~live[changed]]
        packed.write(slots[still], some[still], block.rows.read_whole(still), directory.steps)
        any_changed |= len(still) > 0
        born = np.flatnonzero(live)
        _reserve(directory, storage, len(born))
        packed.take(slots[born])
        _append(directory, storage, some[born], block.rows.read_whole(born))
        storage.count_new(len(born))
    return any_changed


def _unpacked(config: TableConfig, packed: PackedRows, slots: Int64s) -> RowStorage:
    """A storage of its own that holds the rows of some slots."""
    storage = new_storage(config)
    storage.lay_out(packed.initial, 0, None)
    storage.rows.reserve(len(slots))
    storage.rows.write_whole(np.arange(len(slots)), packed.read_whole(slots))
    return storage


def scan(
    directory: Directory, memory: RowMemory, parts: Sequence[str], batch_size: int
) -> Iterator[tuple[Int64s, list[Floats]]]:
    """Keys `[n]` of all rows and some of their parts, `[n, dim]` each, at most `batch_size` ≥ 4 at a time.

    They come in the order of the rows, which is that in which their keys came, packed ones last.
    """
    count, at_a_time = directory.num_rows, max(_KEYS_AT_A_TIME, directory.num_rows // _MOST_PASSES)
    for begin in range(0, count, at_a_time):
        end = min(begin + at_a_time, count)
        known = directory.index.keys_of_rows(begin, end)
        for first in range(begin, end, batch_size):
            rows = np.arange(first, min(first + batch_size, end))
            yield known[rows - begin], [memory.read(part, rows) for part in parts]
    packed = directory.packed
    if packed is not None:
        keys = packed.keys()
        for first in range(0, len(keys), batch_size):
            rows = np.arange(first, min(first + batch_size, len(keys)))
            yield keys[rows], [packed.read(part, rows) for part in parts]
