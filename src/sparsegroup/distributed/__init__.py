"""What models with tables need of `torch.distributed.checkpoint`."""

from sparsegroup.distributed.table_load_planner import TableLoadPlanner

__all__ = ["TableLoadPlanner"]
