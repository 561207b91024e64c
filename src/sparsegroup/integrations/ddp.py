"""`DistributedDataParallel` around a model with sharded tables."""

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sparsegroup.table.field_tables import tables_in


def data_parallel(model: nn.Module, **options: Any) -> DistributedDataParallel:
    """`DistributedDataParallel` for all of a model but the rows of its tables, which belong to one rank each.

    The fallback vectors of a table are averaged with the other parameters.

    Args:
        model: Whose tables have a `process_group`, or are each rank's own by `per_rank`.
        **options: Arguments of `DistributedDataParallel`.

    Raises:
        ValueError: A table lies on one rank alone: it would part from those of the others.
    """
    ignored = []
    for name, table in tables_in(model).items():
        if table.across is None and not table.per_rank:
            raise ValueError(
                f"the table {name or 'itself'!r} would part from those of the other ranks: make it with process_group="
                "torch.distributed.group.WORLD, or with per_rank=True if each rank shall have its own"
            )
        ignored.append(f"{name}.weight" if name else "weight")
    ignore: Any = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
    ignore(model, ignored)
    return DistributedDataParallel(model, **options)
