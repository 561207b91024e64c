"""What a table of some settings is composed of."""

from sparsegroup.table.admission import EveryKey
from sparsegroup.table.directory import Directory
from sparsegroup.table.distinct_count import DistinctCount
from sparsegroup.table.host_storage import HostStorage
from sparsegroup.table.row_storage import RowStorage
from sparsegroup.table.row_uses import RowUses
from sparsegroup.table.table_config import TableConfig

_SKETCHED = 16
"""A table of limited bytes counts occurrences in so small a part of them."""


def new_storage(config: TableConfig) -> RowStorage:
    """An empty storage where the table's rows are to be."""
    if not config.on_device:
        return HostStorage(config)
    from sparsegroup.table.device_storage import DeviceStorage  # needs Triton

    return DeviceStorage(config)


def new_directory(config: TableConfig, buckets: int | None = None) -> Directory:
    """A directory without keys.

    Args:
        config: The table's.
        buckets: How many its index begins with; None for few.
    """
    sketch_bytes: int | None = getattr(config.admission, "sketch_bytes", None)
    if sketch_bytes is None and config.max_bytes is not None and not isinstance(config.admission, EveryKey):
        sketch_bytes = max(4096, config.max_bytes // _SKETCHED)
    estimates = config.max_bytes is not None or sketch_bytes is not None
    return Directory(
        config.max_rows,
        config.huge_pages,
        buckets,
        sketch_bytes=sketch_bytes,
        estimate=DistinctCount(config.field_bits) if estimates else None,
        uses=None if config.unit is None else RowUses(config.unit == "steps"),
        is_watched=config.drops_rows,
    )
