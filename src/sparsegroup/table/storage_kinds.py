"""Which storage a table's rows lie in."""

from sparsegroup.table.host_storage import HostStorage
from sparsegroup.table.row_storage import RowStorage
from sparsegroup.table.table_config import TableConfig


def new_storage(config: TableConfig) -> RowStorage:
    """No rows yet: on the host, or on a device."""
    if not config.on_device:
        return HostStorage(config)
    from sparsegroup.table.device_storage import DeviceStorage  # needs Triton

    return DeviceStorage(config)
