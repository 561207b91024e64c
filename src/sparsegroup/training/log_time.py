"""The time of the log that is trained on, for tables that go by it."""

from collections.abc import Iterable

from sparsegroup.data.batches import Batch
from sparsegroup.table import HashEmbedding


def tell_time(tables: Iterable[HashEmbedding], batch: Batch | None) -> None:
    """It is the time of `batch` now, that of the row in its middle, for tables whose policies count in seconds."""
    for table in tables:
        if batch is not None and len(batch) and table.table.config.unit == "seconds":
            table.set_time(int(batch.times.median()))
