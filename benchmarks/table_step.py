"""One training step of a table that holds all its rows already, from keys to updated rows, against what one would pick.

    ours            HashEmbedding + GroupAdam with λ21 > 0, raw 64-bit keys, hashing included
    sparse_adam     nn.Embedding(sparse=True) + torch.optim.SparseAdam, ready-made ids
    fbgemm          FBGEMM's CPU table, exact Adagrad, ready-made ids, as bags of one id each (its fastest way)
    fbgemm_sequence the same table without pooling
    dense_adam      nn.Embedding + torch.optim.Adam(fused=True), ready-made ids
    bare            ours as memory sees it: the distinct keys' index lines read, their rows read and written, prefetched

The table is Criteo's as the community embeds it: 39 fields, 33.8M rows, d = 8, batches of 512 × 39 keys, none twice.
In a field of cardinality c the rank of a value is ⌊((c^(1-a) - 1) U + 1)^(1/(1-a))⌋ - 1, a = 1.05, U uniform; a random
permutation takes ranks to values. Timed are zero_grad, forward, backward from the same ready-made gradient, and step.
The contenders take turns, all with the same threads, and the figures are medians. All of it runs twice, each time in a
process of its own: with huge pages for everybody, and without (`…_small_pages`).

`ratio_…_to_joint` compare steps over 4,096 × 26 keys with a step of one lookup of all of them (`ms_joint`): with a
lookup for each of the 26 fields, and with micro-batches that accumulate the gradient.

`target_…` is the cost of `TargetRate` on the table with huge pages: setting λ21 by a sample of 65,536 rows and of
8,192, looking at all rows, and a sweep over all of them. `target_share_of_pass` is fifty samples and one of each of the
last two, over a pass of 88,000 steps, 45M samples, with 3 ms more for each network step.

    python benchmarks/table_step.py          # 17 GiB of memory
    pip install --no-deps fbgemm-gpu-cpu==1.8.0     # for fbgemm; optional
"""

from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn

import common
from sparsegroup import GroupAdam, HashEmbedding, TargetRate
from sparsegroup.kernels.cpu.jit import load, prefetch, store
from sparsegroup.table.directory.buckets import AHEAD, bucket_address, find, hash_of, home, secret_of, sizes_of

DIM, BATCH, ZIPF = 8, 512, 1.05
# fmt: off
CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572, *[64] * 13,
)
# fmt: on
ROW_BYTES = 4 * DIM * 4  # x | u | first moment | second moment
ROUNDS = 8
GROUP_ADAM = {"lr": 1e-3, "l21": 1e-4}
SAMPLES, FIELDS, MICRO_BATCHES = 4096, 26, (2, 4, 8)
PAGES = {"huge": "1", "small": "0"}


@dataclass(frozen=True)
class Clicks:
    """Where the keys come from: `values[f][r]` is the value of rank r in field f."""

    values: list[np.ndarray]

    @classmethod
    def scaled(cls, scale: float, rng: np.random.Generator) -> "Clicks":
        return cls([rng.permutation(max(min(c, 3), round(c * scale))) for c in CARDINALITIES])

    @property
    def cardinalities(self) -> np.ndarray:
        return np.array([len(values) for values in self.values])

    def ranks(self, batches: int, rng: np.random.Generator) -> np.ndarray:
        """Ranks, [batches, 512, 39]."""
        c = self.cardinalities
        u = rng.random((batches, BATCH, len(c)))
        ranks = np.floor(((c ** (1 - ZIPF) - 1) * u + 1) ** (1 / (1 - ZIPF))) - 1
        return np.minimum(ranks.astype(np.int64), c - 1)

    def of_ranks(self, ranks: np.ndarray) -> np.ndarray:
        return np.stack([values[ranks[..., field]] for field, values in enumerate(self.values)], axis=-1)

    def ids(self, values: np.ndarray) -> Tensor:
        """Rows of a table that holds one field after the other."""
        return torch.from_numpy(values + np.cumsum([0, *self.cardinalities[:-1]]))

    def all_keys(self, size: int = 1 << 20) -> Iterator[Tensor]:
        """The key of every value, in pieces of `size` keys."""
        for field, c in enumerate(self.cardinalities):
            for start in range(0, c, size):
                yield key(field, np.arange(start, min(start + size, c)))


def key(field: np.ndarray | int, value: np.ndarray) -> Tensor:
    """64-bit keys: the field in the top 8 bits, the value hashed into the others (an odd factor mod 2^56)."""
    return torch.from_numpy((field << np.int64(56)) | (value * np.int64(0x5851F42D4C957F2D) & np.int64((1 << 56) - 1)))


def ours(clicks: Clicks, huge: bool) -> tuple[HashEmbedding, GroupAdam]:
    """A table that holds every key, each stepped once."""
    table = HashEmbedding(DIM, huge_pages=huge)
    optimizer = GroupAdam(table.parameters(), **GROUP_ADAM)
    for keys in clicks.all_keys(1 << 19):
        optimizer.zero_grad()
        table(keys).backward(1e-3 * torch.randn(len(keys), DIM))
        optimizer.step()
    assert table.num_rows == clicks.cardinalities.sum(), "the table does not hold every key once"
    return table, optimizer


def embedding(rows: int, *, sparse: bool) -> nn.Embedding:
    return nn.Embedding.from_pretrained(torch.rand(rows, DIM) / 100, freeze=False, sparse=sparse)


def training_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Tensor, gradient: Tensor
) -> Callable[[int], None]:
    def step(index: int) -> None:
        optimizer.zero_grad()
        model(batches[index]).backward(gradient)
        optimizer.step()

    return step


def fbgemm_table(rows: int, mode: str) -> nn.Module | None:
    """FBGEMM's table of a pooling mode, whose backward is also the update; None if it is not installed."""
    try:
        from fbgemm_gpu import split_embedding_configs
        from fbgemm_gpu import split_table_batched_embeddings_ops_common as choices
        from fbgemm_gpu import split_table_batched_embeddings_ops_training as ops
    except ImportError:
        print("fbgemm: not installed, left out")
        return None
    table: nn.Module = ops.SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, DIM, choices.EmbeddingLocation.HOST, ops.ComputeDevice.CPU)],
        optimizer=split_embedding_configs.EmbOptimType.EXACT_ADAGRAD,
        learning_rate=1e-3,
        eps=1e-8,
        pooling_mode=choices.PoolingMode[mode],
        bounds_check_mode=choices.BoundsCheckMode.NONE,
    )
    table.weights_host.data.uniform_(0, 0.01)
    return table


def fbgemm_steps(rows: int, ids: Tensor, gradient: Tensor) -> dict[str, Callable[[int], None]]:
    """FBGEMM's table as bags of one id, and as a sequence: both give [ids, d]."""
    bags, sequence = fbgemm_table(rows, "SUM"), fbgemm_table(rows, "NONE")
    if bags is None or sequence is None:
        return {}
    offsets, gradient = torch.arange(ids[0].numel() + 1), gradient.reshape(-1, DIM)

    def step(table: nn.Module) -> Callable[[int], None]:
        return lambda index: table(ids[index].view(-1), offsets).backward(gradient)

    sequence.weights_host, sequence.momentum1_host = bags.weights_host, bags.momentum1_host
    return {"fbgemm": step(bags), "fbgemm_sequence": step(sequence)}


@njit
def _locate(keys, state, index, pages, shift, row_bytes, places):  # type: ignore[no-untyped-def]
    """Where the index looks for each key first, and where its row is."""
    sizes, secret = sizes_of(state), secret_of(state)
    for i in range(len(keys)):
        hashed = hash_of(keys[i], secret)
        row = find(keys[i], hashed, sizes, index)
        places[i, 0] = bucket_address(home(hashed, sizes), index)
        places[i, 1] = pages[row >> shift] + (row & ((1 << shift) - 1)) * row_bytes


@njit
def _touch(places, row_bytes):  # type: ignore[no-untyped-def]
    total = 0
    for i in range(len(places)):
        if i + AHEAD < len(places):
            prefetch(places[i + AHEAD, 0])
            for at in range(0, row_bytes, 64):
                prefetch(places[i + AHEAD, 1] + at)
        total += load(places[i, 0])
        for at in range(0, row_bytes, 64):
            store(places[i, 1] + at, load(places[i, 1] + at))
    return total


def bare_access(table: HashEmbedding, batches: Tensor) -> Callable[[int], None]:
    index, rows = table.table.directory.index, table.table.storage.rows
    places = []
    for batch in batches:
        keys = batch.unique().numpy()
        places.append(np.empty((len(keys), 2), np.int64))
        pages = rows.pages.addresses, rows.shift, rows.row_bytes
        _locate(keys, index.state, index.pages, *pages, places[-1])
    return lambda number: _touch(places[number], rows.row_bytes)


def stages(table: HashEmbedding, optimizer: GroupAdam, batches: Tensor, gradient: Tensor) -> dict[str, float]:
    """Median ms of the stages of our step."""
    marks = []
    for keys in batches:
        optimizer.zero_grad()
        start = perf_counter()
        output = table(keys)
        looked_up = perf_counter()
        output.backward(gradient)
        left = perf_counter()
        optimizer.step()
        marks.append((start, looked_up, left, perf_counter()))
    medians = 1e3 * np.median(np.diff(marks), axis=0)
    return dict(zip(("forward", "backward", "step"), medians.tolist(), strict=True))


def lookup_ratios(table: HashEmbedding, optimizer: GroupAdam, keys: Tensor) -> dict[str, float]:
    """Time of several lookups in a step over that of one lookup of the same keys, `[batches, SAMPLES, FIELDS]`."""
    by_field = [[field.contiguous() for field in batch.unbind(1)] for batch in keys]
    gradient = torch.randn(SAMPLES, FIELDS, DIM) / 100
    of_fields = [field.contiguous() for field in gradient.unbind(1)]

    def of_parts(count: int) -> Callable[[int], None]:
        def step(index: int) -> None:
            optimizer.zero_grad()
            for some, slopes in zip(keys[index].chunk(count), gradient.chunk(count), strict=True):
                table(some).backward(slopes)
            optimizer.step()

        return step

    def fields(index: int) -> None:
        optimizer.zero_grad()
        torch.autograd.backward([table(some) for some in by_field[index]], of_fields)
        optimizer.step()

    contenders = {"joint": of_parts(1), "lookups": fields} | {
        f"{count}_micro_batches": of_parts(count) for count in MICRO_BATCHES
    }
    ms = common.median_ms(common.alternate(contenders, ROUNDS, dict.fromkeys(contenders, len(keys) // ROUNDS - 1)))
    return {"ms_joint": ms["joint"]} | {
        f"ratio_{name}_to_joint": ms[name] / ms["joint"] for name in ms if name != "joint"
    }


def target_costs(optimizer: GroupAdam, step_ms: float) -> dict[str, float]:
    """Median ms of what `TargetRate` does, and its share of a pass."""
    steps = 88_000
    targets = {size: TargetRate(optimizer, 0.03, steps=steps, ramp=0, sample=size) for size in (65_536, 8_192)}

    def control(target: TargetRate) -> None:
        target.seed += 1  # another sample
        target.set_l21(target.sample)

    contenders: dict[str, Callable[[int], object]] = {
        f"sample_{size}": lambda _, target=target: control(target) for size, target in targets.items()
    }
    contenders["all_rows"] = lambda _: targets[65_536].set_l21(0)
    contenders["sweep"] = lambda _: optimizer.sweep(zero_untrained=True)
    ms = common.median_ms(common.alternate(contenders, 3, dict.fromkeys(contenders, 1)))
    cost = 50 * ms["sample_65536"] + ms["all_rows"] + ms["sweep"]
    figures = {f"target_ms_{name}": taken for name, taken in ms.items()}
    return figures | {"target_ms_step": step_ms, "target_share_of_pass": cost / (steps * (step_ms + 3.0))}


def with_pages(pages: str, scale: float, batches: int, threads: int) -> dict[str, float]:
    """The run with one kind of pages, in this process."""
    torch.set_num_threads(threads)
    rng = np.random.default_rng(1)
    torch.manual_seed(1)
    clicks = Clicks.scaled(scale, rng)
    per_round = -(-batches // ROUNDS)
    values = clicks.of_ranks(clicks.ranks(ROUNDS * (per_round + 1) + batches, rng))
    ids, keys = clicks.ids(values), key(np.arange(values.shape[-1]), values)
    gradient = torch.randn(*values.shape[1:], DIM) / 100
    rows, distinct = int(clicks.cardinalities.sum()), float(np.mean([len(batch.unique()) for batch in ids]))
    table, optimizer = ours(clicks, pages == "huge")
    contenders = {"ours": training_step(table, optimizer, keys, gradient), "bare": bare_access(table, keys)}
    sparse, dense = embedding(rows, sparse=True), embedding(rows, sparse=False)
    contenders["sparse_adam"] = training_step(sparse, torch.optim.SparseAdam(sparse.parameters()), ids, gradient)
    contenders |= fbgemm_steps(rows, ids, gradient)
    adam = torch.optim.Adam(dense.parameters(), fused=True)
    contenders["dense_adam"] = training_step(dense, adam, ids, gradient)
    turns = dict.fromkeys(contenders, per_round) | {"dense_adam": min(2, per_round)}
    with common.undisturbed():
        ms = common.median_ms(common.alternate(contenders, ROUNDS, turns))
        parts = stages(table, optimizer, keys[-batches:], gradient)
        many = clicks.of_ranks(clicks.ranks(SAMPLES // BATCH * 4 * ROUNDS, rng)).reshape(4 * ROUNDS, SAMPLES, -1)[
            ..., :FIELDS
        ]
        ratios = lookup_ratios(table, optimizer, key(np.arange(FIELDS), many))
        least = 1e3 * 2 * distinct * ROW_BYTES / common.copy_bandwidth(1 << 28)
        costs = target_costs(optimizer, ms["ours"]) if pages == "huge" else {}
    figures = {f"speedup_vs_{name}": ms[name] / ms["ours"] for name in ms if name != "ours"}
    figures |= {"ms_per_batch": ms["ours"]} | {f"ms_{name}": ms[name] for name in ms if name != "ours"}
    figures |= {f"ms_stage_{name}": part for name, part in parts.items()}
    return figures | ratios | costs | {"ms_floor": least, "distinct_keys": distinct}


def measure(given: Namespace) -> Iterator[common.Figures]:
    scale, batches = (0.01, 80) if given.quick else (1.0, 200)
    for pages, switch in PAGES.items():
        # The kind of pages is chosen when NumPy and torch are imported; HashEmbedding has its argument.
        switches = {"NUMPY_MADVISE_HUGEPAGE": switch, "THP_MEM_ALLOC_ENABLE": switch}
        found = common.in_a_process(with_pages, pages, scale, batches, given.threads, **switches)
        yield {name + ("" if pages == "huge" else "_small_pages"): figure for name, figure in found.items()}


if __name__ == "__main__":
    common.run(measure, __doc__, quick="a hundredth of the rows, 80 batches")
