"""Sharded tables in the place of TorchRec's `EmbeddingCollection`, for `DistributedModelParallel`."""

from sparsegroup.extras import MissingExtraError

try:
    import fbgemm_gpu  # noqa: F401
    import torchrec.distributed  # noqa: F401
except ImportError as error:
    raise MissingExtraError(
        "sparsegroup.distributed.torchrec needs torchrec and fbgemm_gpu, which cannot be imported here "
        f"({error}): pip install torchrec; on the CPU, pip install fbgemm-gpu-cpu, and pip install --no-deps torchrec"
    ) from error

from sparsegroup.distributed.torchrec.collection_sharder import HashEmbeddingCollectionSharder
from sparsegroup.distributed.torchrec.table_sharding import TableSharding, plan_tables

__all__ = ["HashEmbeddingCollectionSharder", "TableSharding", "plan_tables"]
