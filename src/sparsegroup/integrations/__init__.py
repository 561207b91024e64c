"""Models with tables in `torch.distributed.checkpoint`, `DistributedDataParallel` and TorchRec."""

from sparsegroup.integrations.dcp import TableLoadPlanner
from sparsegroup.integrations.ddp import data_parallel

__all__ = ["TableLoadPlanner", "data_parallel"]
