"""Which class a table is of."""

from sparsegroup.table.records import TableConfig
from sparsegroup.table.table import Table


def new_table(config: TableConfig) -> Table:
    """An empty table: with rows on the host, or on a device."""
    if not config.on_device:
        return Table(config)
    from sparsegroup.table.device_table import DeviceTable  # needs Triton

    return DeviceTable(config)
