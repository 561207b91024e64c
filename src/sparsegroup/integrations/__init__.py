"""Models with tables in `torch.distributed.checkpoint`, `DistributedDataParallel` and TorchRec."""

from sparsegroup.integrations.distributed import TableLoadPlanner, data_parallel

__all__ = ["TableLoadPlanner", "data_parallel"]
