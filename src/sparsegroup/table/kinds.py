"""Which class a table is of."""

from sparsegroup.table.table import Table
from sparsegroup.table.table_config import TableConfig


def new_table(config: TableConfig) -> Table:
    """An empty table: with rows on the host, or on a device."""
    if not config.on_device:
        return Table(config)
    from sparsegroup.table.device_table import DeviceTable  # needs Triton

    return DeviceTable(config)
