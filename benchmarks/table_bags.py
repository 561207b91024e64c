"""One training step over bags of 1 to 39 keys, from keys to updated rows.

    ours            HashEmbeddingBag + GroupAdam with λ21 > 0: the lookup pools, and no vector for each key is made
    vectors         such a table's vectors, pooled by torch afterwards
    sparse_adam     nn.EmbeddingBag(sparse=True) + torch.optim.SparseAdam, ready-made ids
    fbgemm          FBGEMM's CPU table, exact Adagrad, ready-made ids

Keys and vectors are those of `table_step.py`, a tenth of them: 3.4M rows × 8, all there from the start. A batch has 998
bags of 1 to some 150 keys, 20 in the mean, and the result is their sums. The contenders take turns, all with the same
threads, and the figures are medians.

    python benchmarks/table_bags.py
    pip install --no-deps fbgemm-gpu-cpu==1.8.0     # for fbgemm; optional
"""

from argparse import Namespace
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

import common
from sparsegroup import GroupAdam, HashEmbedding, HashEmbeddingBag
from sparsegroup.bags import pool_ragged
from table_step import BATCH, CARDINALITIES, DIM, GROUP_ADAM, ROUNDS, Clicks, fbgemm_table, key

KEYS = BATCH * len(CARDINALITIES)
BAGS = KEYS // 20


class Vectors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = HashEmbedding(DIM)

    def forward(self, keys: Tensor, ends: Tensor) -> Tensor:
        return pool_ragged(self.table(keys), ends, len(ends) - 1, "sum")


def ours(module: HashEmbeddingBag | Vectors, clicks: Clicks, gradient: Tensor) -> Callable[[Tensor, Tensor], None]:
    """A training step of a table that holds every key, each stepped once."""
    optimizer = GroupAdam(module.parameters(), **GROUP_ADAM)

    def step(keys: Tensor, ends: Tensor) -> None:
        optimizer.zero_grad()
        module(keys, ends).backward(gradient[: len(ends) - 1])
        optimizer.step()

    for keys in clicks.all_keys(BAGS):
        step(keys, torch.arange(len(keys) + 1))
    return step


def sparse_adam(rows: int, gradient: Tensor) -> Callable[[Tensor, Tensor], None]:
    bag = nn.EmbeddingBag(rows, DIM, mode="sum", sparse=True, include_last_offset=True)
    optimizer = torch.optim.SparseAdam(bag.parameters())

    def step(ids: Tensor, ends: Tensor) -> None:
        optimizer.zero_grad()
        bag(ids, ends).backward(gradient)
        optimizer.step()

    return step


def measure(given: Namespace) -> Iterator[common.Figures]:
    scale, batches = (0.01, 80) if given.quick else (0.1, 400)
    torch.set_num_threads(given.threads)
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    clicks = Clicks.scaled(scale, rng)
    calls = batches // ROUNDS
    values = clicks.of_ranks(clicks.ranks(ROUNDS * (calls + 1), rng))
    order = rng.permutation(KEYS)  # a bag has values of any fields
    ids, keys = (one.view(-1, KEYS)[:, order] for one in (clicks.ids(values), key(np.arange(values.shape[-1]), values)))
    sizes = 1 + rng.multinomial(KEYS - BAGS, rng.dirichlet(np.ones(BAGS)), len(keys))
    ends = torch.from_numpy(np.pad(sizes.cumsum(1), ((0, 0), (1, 0))))
    gradient, rows = torch.randn(BAGS, DIM) / 100, int(clicks.cardinalities.sum())
    bag = HashEmbeddingBag(DIM, mode="sum", include_last_offset=True)
    steps = {"ours": ours(bag, clicks, gradient), "vectors": ours(Vectors(), clicks, gradient)}
    contenders: dict[str, Callable[[int], object]] = {
        name: lambda at, step=step: step(keys[at], ends[at]) for name, step in steps.items()
    }
    sparse, fbgemm = sparse_adam(rows, gradient), fbgemm_table(rows, "SUM")
    contenders["sparse_adam"] = lambda at: sparse(ids[at], ends[at])
    if fbgemm is not None:
        contenders["fbgemm"] = lambda at: fbgemm(ids[at], ends[at]).backward(gradient)
    with common.undisturbed():
        ms = common.median_ms(common.alternate(contenders, ROUNDS, dict.fromkeys(contenders, calls)))
    yield {f"speedup_vs_{name}": ms[name] / ms["ours"] for name in ms if name != "ours"} | {
        f"ms_{name}": taken for name, taken in ms.items()
    }


if __name__ == "__main__":
    common.run(measure, __doc__, quick="a hundredth of the keys, 80 batches")
