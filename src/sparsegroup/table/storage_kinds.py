"""What a table of some settings is composed of."""

from sparsegroup.table.directory import Directory
from sparsegroup.table.host_storage import HostStorage
from sparsegroup.table.row_storage import RowStorage
from sparsegroup.table.row_uses import RowUses
from sparsegroup.table.table_config import TableConfig


def new_storage(config: TableConfig) -> RowStorage:
    """An empty storage where the table's rows are to be."""
    if not config.on_device:
        return HostStorage(config)
    from sparsegroup.table.device_storage import DeviceStorage  # needs Triton

    return DeviceStorage(config)


def new_directory(config: TableConfig, buckets: int | None = None) -> Directory:
    """A directory without keys, whose index begins with so many buckets, or few."""
    return Directory(
        config.max_rows,
        config.huge_pages,
        buckets,
        field_bits=config.field_bits,
        sketch_bytes=config.sketch_bytes,
        uses=None if config.unit is None else RowUses(config.unit == "steps"),
        is_watched=config.drops_rows,
    )
