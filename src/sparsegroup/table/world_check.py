"""Tables in a distributed world: each rank has rows of its own, which nothing keeps equal."""

import torch.distributed as dist


def check_world(per_rank: bool) -> None:
    """Raise RuntimeError where a table would be trained on several ranks without `per_rank`, which says it is meant so.

    A rank's table knows the rows of its own keys by its own numbers: neither DistributedDataParallel nor `all_reduce`
    can keep the tables of several ranks equal.
    """
    if per_rank or not dist.is_available() or not dist.is_initialized():
        return
    world = dist.get_world_size()
    if world > 1:
        raise RuntimeError(
            f"a HashEmbedding is trained on rank {dist.get_rank()} of {world}: each rank would train a table of its "
            "own, and these would diverge without a word, because DistributedDataParallel leaves tables alone and row "
            "numbers of different ranks mean different keys. One table on all ranks: HashEmbedding(..., "
            "process_group=torch.distributed.group.WORLD). If each rank shall have a table of its own (it trains a "
            "model of its own, or has keys of its own), say so: HashEmbedding(..., per_rank=True), or "
            "table.per_rank = True"
        )
