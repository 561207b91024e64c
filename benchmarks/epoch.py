"""One pass of DCN over a prepared log, Parquet in, test AUC out: Group Adam on a growing table.

On a slice of it, in the same run: the same network with `nn.Embedding(sparse=True)` and SparseAdam behind a torch
DataLoader over the same Parquet (keys taken modulo the rows of its table), and with dense Adam. Every stage of ours is
timed on the slice, too, by calling it alone.

    sparsegroup synthesize criteo LOG
    python benchmarks/epoch.py LOG
"""

import resource
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import timing
from sparsegroup.data import PreparedLog
from sparsegroup.data.batches import Batch
from sparsegroup.data.shapes import DATASETS
from sparsegroup.data.synthesize import synthesize
from sparsegroup.kernels.threads import set_num_threads
from sparsegroup.models import DCN
from sparsegroup.training import Config, Progress, train

BATCH, DIM = 512, 8
CONFIG = Config.of(model="dcn", dim=DIM, lr=1e-3, l21=1e-4, batch_size=BATCH)
MARKS = (1_000_000, 10_000_000, 46_000_000)


class Slice(IterableDataset[tuple[Tensor, Tensor, Tensor]]):
    """The first rows of a log in batches, with ids for a table of `rows` rows."""

    def __init__(self, folder: Path, samples: int, rows: int) -> None:
        self.folder, self.samples, self.rows = folder, samples, rows

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for batch in PreparedLog(self.folder).batches(0, self.samples, BATCH):
            yield batch.keys % self.rows, batch.numbers, batch.labels


class Beginning(PreparedLog):
    """The first rows of a log, with a test set of one batch."""

    def __init__(self, log: PreparedLog, rows: int) -> None:
        super().__init__(log.folder)
        self.manifest = replace(self.manifest, rows=rows + BATCH, train_rows=rows)


class Embedded(nn.Module):
    """The same network over `nn.Embedding`."""

    def __init__(self, log: PreparedLog, rows: int, *, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(rows, DIM, sparse=sparse)
        nn.init.normal_(self.embedding.weight, std=0.01)
        self.network = DCN(len(log.fields), DIM, len(log.numbers))

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        return self.network(self.embedding(ids), numbers)


def samples_per_second(model: Embedded, optimizers: list[torch.optim.Optimizer], data: Slice) -> float:
    """Of a plain training loop."""
    begin, samples = perf_counter(), 0
    for ids, numbers, labels in DataLoader(data, batch_size=None, num_workers=1, prefetch_factor=8):
        for optimizer in optimizers:
            optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(ids, numbers), labels).backward()
        for optimizer in optimizers:
            optimizer.step()
        samples += len(labels)
    return samples / (perf_counter() - begin)


def theirs(log: PreparedLog, samples: int, rows: int, *, sparse: bool) -> float:
    torch.manual_seed(0)
    model = Embedded(log, rows, sparse=sparse)
    dense = torch.optim.Adam(model.network.parameters(), lr=CONFIG.optimizer.lr, fused=True)
    kind = torch.optim.SparseAdam if sparse else torch.optim.Adam
    table = kind(model.embedding.parameters(), lr=CONFIG.optimizer.lr, **({} if sparse else {"fused": True}))
    return samples_per_second(model, [dense, table], Slice(log.folder, samples, rows))


def ours(log: PreparedLog, stop: int) -> tuple[float, dict[str, float]]:
    """Samples per second of the pass, and what it came to."""
    model, optimizer = CONFIG.build(log)
    begin = perf_counter()
    speeds: dict[str, float] = {}
    last = [0, begin]

    def note(point: Progress) -> None:
        for mark in MARKS:
            if last[0] < mark <= point.samples + stop // 50 and f"samples_per_s_at_{mark // 1_000_000}m" not in speeds:
                now = perf_counter()
                speeds[f"samples_per_s_at_{mark // 1_000_000}m"] = (point.samples - last[0]) / (now - last[1])
        last[:] = point.samples, perf_counter()

    trained = train(
        model,
        optimizer,
        log if stop == log.train_rows else Beginning(log, stop),
        batch_size=BATCH,
        on_progress=note,
    )
    seconds = perf_counter() - begin
    return stop / (last[1] - begin), speeds | {
        "seconds": seconds,
        "test_auc": trained.test.auc,
        "features_seen": float(model.embedding.num_seen),
        "feature_rate": trained.feature_rate,
        "table_bytes": float(model.embedding.memory().total),
    }


def stages(log: PreparedLog, samples: int) -> dict[str, float]:
    """ms per batch of each stage of ours, in a loop of its own."""
    model, optimizer = CONFIG.build(log)
    loss = nn.functional.binary_cross_entropy_with_logits
    taken = dict.fromkeys(("read", "lookup", "forward", "backward", "update"), 0.0)
    batches = iter(log.batches(0, samples, BATCH))
    count = 0
    while True:
        t0 = perf_counter()
        batch: Batch | None = next(batches, None)
        if batch is None:
            break
        t1 = perf_counter()
        optimizer.zero_grad()
        vectors = model.embedding(batch.keys)
        t2 = perf_counter()
        value = loss(model.network(vectors, batch.numbers if log.numbers else None), batch.labels)
        t3 = perf_counter()
        value.backward()
        t4 = perf_counter()
        optimizer.step()
        t5 = perf_counter()
        for name, seconds in zip(taken, (t1 - t0, t2 - t1, t3 - t2, t4 - t3, t5 - t4), strict=True):
            taken[name] += seconds
        count += 1
    return {f"ms_{name}": 1e3 * seconds / count for name, seconds in taken.items()}


def main() -> None:
    parser = timing.parser(__doc__, quick="a synthetic log of 200,000 rows, made for it")
    parser.add_argument("log", type=Path, nargs="?", help="a prepared log; not wanted with --quick")
    parser.add_argument("--slice", type=int, help="samples of the comparisons; default: 1,000,000")
    parser.add_argument("--rows", type=int, help="of the others' tables; default: the log's features")
    arguments = parser.parse_args()
    if arguments.log is None and not arguments.quick:
        parser.error("a prepared log is wanted, or --quick")
    set_num_threads(arguments.threads)  # of the table; the network of ours takes one
    torch.set_num_threads(1)
    print(timing.machine())
    with tempfile.TemporaryDirectory() as folder:
        log = (
            synthesize(DATASETS["criteo"], 200_000, Path(folder, "log"))
            if arguments.log is None
            else PreparedLog(arguments.log)
        )
        samples = min(arguments.slice or (100_000 if arguments.quick else 1_000_000), log.train_rows)
        rows = arguments.rows or max(log.features, 1)
        with timing.undisturbed():
            speed, figures = ours(log, log.train_rows)
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"{log.train_rows:,} samples in {figures['seconds']:.0f} s: {speed:,.0f}/s, peak {peak / 2**30:.2f} GiB")
        print(", ".join(f"{name} {value:,.4g}" for name, value in figures.items()), flush=True)
        with timing.undisturbed():
            ours_there, _ = ours(log, samples) if samples < log.train_rows else (speed, {})
            parts = stages(log, samples)
            torch.set_num_threads(arguments.threads)
            sparse = theirs(log, samples, rows, sparse=True)
            dense = theirs(log, min(samples, 100 * BATCH), rows, sparse=False)
    print(f"the first {samples:,} samples: ours {ours_there:,.0f}/s, SparseAdam {sparse:,.0f}/s", end="")
    print(f" (ratio {ours_there / sparse:.2f}), dense Adam {dense:,.0f}/s (ratio {ours_there / dense:.0f})")
    print("ours by stage, ms a batch: " + ", ".join(f"{name[3:]} {part:.3f}" for name, part in parts.items()))
    figures |= {"samples_per_s": speed, "peak_bytes": float(peak), "samples_per_s_slice": ours_there}
    figures |= {"samples_per_s_sparse_adam": sparse, "samples_per_s_dense_adam": dense}
    figures |= {"speedup_vs_sparse_adam": ours_there / sparse, "speedup_vs_dense_adam": ours_there / dense, **parts}
    timing.write_json(arguments.json, figures)


if __name__ == "__main__":
    sys.exit(main())
