"""A click model on several processes, on one host or on several: the table's rows are divided among them.

torchrun --nproc-per-node 2 examples/several_ranks.py
"""

import argparse
from datetime import timedelta
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sparsegroup import GroupAdam, HashEmbedding, param_groups
from sparsegroup.data import SyntheticConfig, synthetic_log
from sparsegroup.integrations import data_parallel
from sparsegroup.models import DCN


class ClickModel(nn.Module):
    """DCN over a table that lies on all ranks; logits."""

    def __init__(self, fields: int, wire: torch.dtype | None) -> None:
        super().__init__()
        self.table = HashEmbedding(16, process_group=dist.group.WORLD, wire_dtype=wire)
        self.network = DCN(fields, 16, 0)

    def forward(self, keys: Tensor) -> Tensor:
        logits: Tensor = self.network(self.table(keys))
        return logits


def train(steps: int, batch: int, wire: torch.dtype | None) -> str:
    """Train on `batch` samples of each rank in each step; says how it went on this rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    log = synthetic_log(SyntheticConfig(rows=2 * steps * batch * ranks))
    torch.manual_seed(0)
    model = ClickModel(len(log.fields), wire)
    optimizer = GroupAdam(param_groups(model, l21=1e-4), lr=3e-3)
    parallel = data_parallel(model)
    losses, seconds = [], []
    for whole in log.batches(0, steps * batch * ranks, batch * ranks):
        begin = perf_counter()
        own = whole[rank * batch : (rank + 1) * batch]
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(parallel(own.keys), own.labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(perf_counter() - begin)
    assert model.table.across is not None
    sent = model.table.across.shards.traffic.sent / steps / batch
    return (
        f"rank {rank} of {ranks}: {model.table.num_rows:,} rows, loss {losses[0]:.3f} to {losses[-1]:.3f}, "
        f"{1e3 * median(seconds):.1f} ms a step, {sent:.0f} bytes sent per sample"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=1024, help="samples of each rank; default: %(default)s")
    parser.add_argument("--bfloat16", action="store_true", help="vectors and gradients travel in two bytes a number")
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=2))  # a rank that is silent for longer is an error
    print(train(given.steps, given.batch, torch.bfloat16 if given.bfloat16 else None))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
