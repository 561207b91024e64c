"""Models with tables on several ranks, and in `torch.distributed.checkpoint`."""

from sparsegroup.distributed.data_parallel import data_parallel
from sparsegroup.distributed.table_load_planner import TableLoadPlanner
from sparsegroup.table.sharded.exchange import ExchangeError

__all__ = ["ExchangeError", "TableLoadPlanner", "data_parallel"]
