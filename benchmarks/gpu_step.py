"""Steps on a GPU: of a dense tensor, of sparse gradients, of a table, and a whole training step, in one run.

*dense* is one weight of 64M × 16; *sparse* an `nn.Embedding(sparse=True)` and *table* a `HashEmbedding`, with 64k and
1M distinct rows in a step (*zipf*: 256k keys, 64k of them distinct); *end to end* a DCN over 26 fields and 13 numbers,
d = 16; *train* a pass of the same as `sparsegroup train` makes it, over a prepared log in Criteo's shape whose keys are
new to the table, on the GPU and on the host's `--threads`. They are compared with torch.optim.Adam(fused=True),
torch.optim.SparseAdam, and with the bytes that a step must move, at the speed at which the device copies 4 GiB.

Times are medians between two events on the device, after a warm-up. Before each repetition 4 GiB are read, so that the
second-level cache holds nothing of the step, and the host is done with its part before the device starts. (SparseAdam
waits for the device, so its times include the host's part.) Bytes that must move: for each element of a dense float32
weight 28 (x, g and two moments read; x and the moments written), 36 with u; for each row of d elements 36 d and its
number, 8, in a table also its key's place, 4.

    python benchmarks/gpu_step.py            # on a GPU; the weight of 64M × 16 takes 24 GiB of its memory
    python benchmarks/gpu_step.py --quick    # without one, in Triton's interpreter: that it runs, not how fast
"""

import gc
import os
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn

import common
from plain_loop import trained
from sparsegroup import GroupAdam, HashEmbedding, param_groups
from sparsegroup.data.synthetic import bounded_zipf
from sparsegroup.kernels.cpu.threads import set_num_threads
from sparsegroup.kernels.gpu import runtime
from sparsegroup.models import DCN
from sparsegroup.training import Config
from sparsegroup_paper.public_shapes import DATASETS, synthesize

LR, L21, ZIPF, DIM, FIELDS, NUMBERS = 1e-3, 1e-4, 1.05, 16, 26, 13
Run = Callable[[], object]
Figures = dict[str, float]
adam = partial(torch.optim.Adam, lr=LR, fused=True)
regularized = partial(GroupAdam, lr=LR, l21=L21)
DENSE: Mapping[str, tuple[int, Callable[[list[nn.Parameter]], torch.optim.Optimizer]]] = {
    "adam": (28, adam),
    "unregularized": (28, partial(GroupAdam, lr=LR)),
    "regularized": (36, regularized),
    "bf16_state_regularized": (26, partial(regularized, state_dtype=torch.bfloat16)),
}
"""Name → bytes that must move for an element, and the optimizer."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    copied: int = 4 << 30  # bytes of the copy
    dense: int = 64 << 20  # rows of the dense weight
    elements: int = 128 << 20  # of the weights of an embedding, unless `rows` are more
    rows: int = 4 << 20  # of a table; of an embedding, at least
    dims: tuple[int, ...] = (8, 16, 64, 128)
    touched: tuple[int, ...] = (64 << 10, 1 << 20)  # rows of a step
    zipf: tuple[int, int] = (256 << 10, 64 << 10)  # keys of the batch in which keys repeat; how many are distinct
    values: int = 200_000  # of each field, end to end
    batches: tuple[int, ...] = (4096, 16384)
    steps: int = 50  # of a repetition, end to end
    log_rows: int = 1_000_000  # that are trained on
    repeats: int = 30  # of which the median is taken


QUICK = replace(
    Sizes(), dense=4 << 20, dims=(16, 64), touched=(64 << 10,), batches=(4096,), log_rows=500_000, repeats=10
)
REHEARSAL = Sizes(1 << 16, 96, 1 << 12, 128, (8,), (8,), (80, 8), 20, (4,), 2, log_rows=40, repeats=1)


class HostEvent:
    """The host's clock in place of a device's."""

    def record(self) -> None:
        self.time = perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, later: "HostEvent") -> float:
        return 1e3 * (later.time - self.time)


class Bench:
    """Times on the device, with the host's clock on the CPU; `bandwidth` is that of torch's copy, read and written."""

    def __init__(self, device: torch.device, sizes: Sizes) -> None:
        self.device, self.sizes = device, sizes
        self._event = partial(torch.cuda.Event, enable_timing=True) if device.type == "cuda" else HostEvent
        self._other = torch.randn(sizes.copied // 4, device=device)
        target = torch.empty_like(self._other)
        self.bandwidth = 1e3 * 2 * sizes.copied / self.ms(lambda: target.copy_(self._other))

    def normal(self, *shape: int, std: float) -> Tensor:
        return torch.empty(shape, device=self.device).normal_(std=std)

    def ms(self, run: Run) -> float:
        """Median time of the device."""
        return self.in_turns({"": run}, self._other.sum)[""]

    def in_turns(self, runs: Mapping[str, Run], before: Run) -> dict[str, float]:
        """Median times of the device of several that take turns; `before` is called before each."""
        for run in runs.values():
            for _ in range(min(3, self.sizes.repeats)):
                run()
        times: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(self.sizes.repeats):
            for name, run in runs.items():
                start, end = self._event(), self._event()
                before()
                start.record()
                run()
                end.record()
                end.synchronize()
                times[name].append(start.elapsed_time(end))
        return {name: float(np.median(taken)) for name, taken in times.items()}

    def share(self, moved: float, ms: float) -> float:
        """The share of the bandwidth at which `moved` bytes take `ms`."""
        return 1e3 * moved / ms / self.bandwidth


def dense(bench: Bench) -> Figures:
    """One large weight."""
    rows = bench.sizes.dense
    figures: Figures = {"dense_rows": rows}
    times: dict[str, float] = {}
    for name, (moved, make) in DENSE.items():
        gc.collect()
        weight = nn.Parameter(bench.normal(rows, DIM, std=0.1))
        weight.grad = bench.normal(rows, DIM, std=0.01)
        times[name] = bench.ms(make([weight]).step)
        figures |= {
            f"dense_ms_{name}": times[name],
            f"dense_share_{name}": bench.share(moved * rows * DIM, times[name]),
            f"dense_ratio_{name}": times[name] / times["adam"],
        }
    return figures


def sparse(bench: Bench) -> Figures:
    """Sparse gradients of distinct rows, as autograd gives them."""
    figures: Figures = {}
    for dim in bench.sizes.dims:
        rows = max(bench.sizes.rows, bench.sizes.elements // dim)
        for touched in (min(count, rows) for count in bench.sizes.touched):
            embedding = nn.Embedding(rows, dim, sparse=True, device=bench.device)
            embedding(torch.randperm(rows, device=bench.device)[:touched]).backward(
                bench.normal(touched, dim, std=0.01)
            )
            ours = bench.ms(regularized(embedding.parameters()).step)
            theirs = bench.ms(torch.optim.SparseAdam(embedding.parameters(), lr=LR).step)
            figures |= {
                f"sparse_ms_step_{touched}_d{dim}": ours,
                f"sparse_share_step_{touched}_d{dim}": bench.share((36 * dim + 8) * touched, ours),
                f"sparse_ratio_{touched}_d{dim}": ours / theirs,
            }
    return figures


def keys_of(ids: Tensor) -> Tensor:
    """64-bit keys, distinct for distinct ids (an odd factor mod 2^64)."""
    return ids * 0x5851F42D4C957F2D


def fill(embedding: HashEmbedding, optimizer: GroupAdam, rows: int) -> None:
    """Give ids below `rows` their rows, after a first step, which allocates the optimizer's state."""
    embedding(keys_of(torch.arange(1))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for keys in keys_of(torch.arange(rows)).split(1 << 18):
            embedding(keys)
    assert embedding.num_rows == rows, "the table does not hold every key once"


def zipf(rng: np.random.Generator, count: int, *shape: int) -> Tensor:
    """Ranks below `count`, drawn from a Zipf distribution."""
    return torch.from_numpy(bounded_zipf(rng.random(shape), count, ZIPF))


def table(bench: Bench) -> Figures:
    """A table that holds all its rows."""
    figures: Figures = {}
    for dim in bench.sizes.dims:
        rows = bench.sizes.rows
        embedding = HashEmbedding(dim, device=bench.device)
        optimizer = regularized(embedding.parameters())
        fill(embedding, optimizer, rows)
        batches = {str(count): torch.randperm(rows)[:count] for count in bench.sizes.touched}
        drawn, distinct = bench.sizes.zipf
        once = torch.randperm(rows)[:distinct]
        again = once[zipf(np.random.default_rng(1), distinct, drawn - distinct)]
        for name, ids in (batches | {"zipf": torch.cat([once, again])[torch.randperm(drawn)]}).items():
            keys = keys_of(ids)
            optimizer.zero_grad()
            embedding(keys).backward(bench.normal(len(keys), dim, std=0.01))
            step = bench.ms(optimizer.step)
            moved = (4 * dim + 12) * len(ids) + 32 * dim * len(ids.unique())
            figures |= {
                f"table_ms_step_{name}_d{dim}": step,
                f"table_share_step_{name}_d{dim}": bench.share(moved, step),
            }
    return figures


def training(
    embedding: nn.Module, network: nn.Module, optimizers: list[torch.optim.Optimizer], keys: Tensor, *inputs: Tensor
) -> Run:
    """A step with each batch of keys; a table looks up those of the next batch at the same time."""
    numbers, labels = inputs

    def run() -> None:
        for index in range(len(keys)):
            for optimizer in optimizers:
                optimizer.zero_grad()
            logits = network(embedding(keys[index]), numbers)
            if isinstance(embedding, HashEmbedding):
                embedding.prefetch(keys[(index + 1) % len(keys)])
            nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
            for optimizer in optimizers:
                optimizer.step()

    return run


def end_to_end(bench: Bench) -> Figures:
    """Forward, backward and step of a click model, the host's part included."""
    sizes, figures = bench.sizes, {}
    for batch in sizes.batches:
        rows = FIELDS * sizes.values
        drawn = zipf(np.random.default_rng(2), sizes.values, sizes.steps, batch, FIELDS)
        ids = drawn + sizes.values * torch.arange(FIELDS)
        inputs = bench.normal(batch, NUMBERS, std=1), (bench.normal(batch, std=1) > 0).float()
        first, second = (DCN(FIELDS, DIM, NUMBERS).to(bench.device) for _ in range(2))
        hashed = HashEmbedding(DIM, device=bench.device)
        optimizer = GroupAdam(param_groups(nn.ModuleList([hashed, first]), l21=L21), lr=LR)
        fill(hashed, optimizer, rows)
        plain = nn.Embedding(rows, DIM, sparse=True, device=bench.device)
        nn.init.normal_(plain.weight, std=0.01)
        theirs = [torch.optim.SparseAdam(plain.parameters(), lr=LR), adam(second.parameters())]
        runs = {
            "ours": training(hashed, first, [optimizer], keys_of(ids), *inputs),
            "sparse_adam": training(plain, second, theirs, ids.to(bench.device), *inputs),
        }
        wait = torch.cuda.synchronize if bench.device.type == "cuda" else lambda: None
        speed = {name: 1e3 * sizes.steps * batch / ms for name, ms in bench.in_turns(runs, wait).items()}
        figures |= {f"samples_per_s_{name}_{batch}": samples for name, samples in speed.items()}
        figures |= {
            f"end_to_end_speedup_{batch}": speed["ours"] / speed["sparse_adam"],
            f"end_to_end_rows_{batch}": rows,
        }
    return figures


def train(bench: Bench) -> Figures:
    """A pass over a prepared log by the trainer, reading included; the second one, when all is compiled."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        log = synthesize(DATASETS["criteo"], bench.sizes.log_rows, Path(folder, "log"))
        for batch in bench.sizes.batches:
            config = Config.of(model="dcn", dim=DIM, lr=LR, l21=L21, batch_size=batch, compile="never", fallback=True)
            speed = {}
            for name, device in (("gpu", bench.device.type), ("host", "cpu")):
                on_device = config.replace(device=device).resolved_for(log)
                for _ in range(2):
                    done = trained(log, on_device)
                speed[name] = figures[f"train_samples_per_s_{name}_{batch}"] = done.samples_per_s
                figures[f"train_loss_{name}_{batch}"] = done.history[-1].log_loss
            figures[f"train_speedup_{batch}"] = speed["gpu"] / speed["host"]
    return figures


def measure(given: Namespace) -> Iterator[common.Figures]:
    rehearses = not torch.cuda.is_available()
    if rehearses and not given.quick:
        sys.exit("This benchmark needs a GPU that torch can use, and Triton; --quick runs it without.")
    if rehearses:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
        np.seterr(all="ignore")
        print("A rehearsal in Triton's interpreter, with the host's clock: all figures are meaningless.")
    torch.manual_seed(1)
    torch.set_num_threads(given.threads)
    set_num_threads(given.threads)
    with runtime.rehearsal() if rehearses else nullcontext(), common.undisturbed():
        device = torch.device("cpu" if rehearses else "cuda")
        bench = Bench(device, REHEARSAL if rehearses else QUICK if given.quick else Sizes())
        name = "the CPU" if rehearses else torch.cuda.get_device_name()
        yield {"device": name, "copy_gb_per_second": bench.bandwidth / 1e9}
        for part in (dense, sparse, table, end_to_end, train):
            gc.collect()
            if not rehearses:
                torch.cuda.empty_cache()
            yield part(bench)


if __name__ == "__main__":
    common.run(measure, __doc__, quick="4M × 16, 64k rows, d = 16 and 64, batches of 4096, fewer repetitions")
