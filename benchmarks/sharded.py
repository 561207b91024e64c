"""A table on several ranks: bytes on the wire, one rank against two, and AUC with bfloat16 on the wire.

DCN over the fields of a synthetic log of Criteo's shape, Group Adam, gloo; each rank is a process with one thread on
one core. `bytes` counts the bytes sent to other ranks against the least that can be sent. `scaling` times steps on one
rank and on two, which take turns. `auc` trains with float32 and with bfloat16 on the wire, with several seeds.

    python benchmarks/sharded.py --data FOLDER    # the page docs/results/several-ranks; 10 minutes
"""

import json
import multiprocessing
import os
import re
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

import common
from panel.logs import shared_logs
from sparsegroup import GroupAdam, HashEmbedding, param_groups
from sparsegroup.data import Log, SyntheticConfig, open_log, synthetic_log
from sparsegroup.integrations import data_parallel
from sparsegroup.kernels.cpu.threads import set_num_threads
from sparsegroup.models import DCN
from sparsegroup.training import evaluate
from sparsegroup_paper.public_shapes import DATASETS, synthetic_batches

PAGE = Path(__file__).parents[1] / "docs" / "results" / "several-ranks"
SHAPE = DATASETS["criteo"]
PATIENCE = 600
"""Seconds that a call may take."""


Call = Callable[..., list[Any]]


@contextmanager
def ranks_of(count: int) -> Iterator[Call]:
    """Calls a function on all of so many processes with gloo between them, for their results.

    Rank r is on core r, modulo the number of cores.
    """
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        parts = [(rank, count, folder) for rank in range(count)]
        pools = [stack.enter_context(ProcessPoolExecutor(1, spawn, _join, part)) for part in parts]

        def call(function: Callable[..., Any], *arguments: Any) -> list[Any]:
            futures = [pool.submit(function, *arguments) for pool in pools]
            return [future.result(PATIENCE) for future in futures]

        yield call


def _join(rank: int, ranks: int, folder: str) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(str(Path(folder) / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=PATIENCE))


class ShardedModel(nn.Module):
    """DCN over a table; logits."""

    def __init__(self, fields: int, numbers: int, wire: torch.dtype | None, sharded: bool, seed: int) -> None:
        super().__init__()
        group = dist.group.WORLD if sharded else None
        self.table = HashEmbedding(16, seed=seed, process_group=group, wire_dtype=wire, per_rank=not sharded)
        self.network = DCN(fields, 16, numbers)

    def forward(self, keys: Tensor, numbers: Tensor) -> Tensor:
        logits: Tensor = self.network(self.table(keys), numbers if numbers.shape[1] else None)
        return logits


class Steps(NamedTuple):
    """Some steps of one rank."""

    seconds: list[float]  # of each
    sent: int  # bytes of keys, vectors and gradients that the table has sent to other ranks
    distinct: int  # distinct keys looked up, summed over steps
    away: int  # the distinct keys whose rows are on other ranks


class Training:
    """One rank's part of a training on the arrays that `write_log` has written; the table has all of their keys.

    It is divided among the ranks; without `sharded` each rank trains a separate model. Vectors and gradients travel in
    the dtype `wire`, or that of the table.
    """

    def __init__(self, folder: Path, sharded: bool, wire: torch.dtype | None) -> None:
        torch.manual_seed(0)
        self.ranks, self.rank = dist.get_world_size(), dist.get_rank()
        self.arrays = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("keys", "numbers", "labels")]
        self.model = ShardedModel(len(SHAPE.fields), len(SHAPE.numbers), wire, sharded, 1)
        self.optimizer = GroupAdam(param_groups(self.model, l21=1e-4), lr=1e-3)
        self.parallel: nn.Module = data_parallel(self.model) if sharded and self.ranks > 1 else self.model
        with torch.no_grad():
            for first in range(0, len(self.arrays[0]), 8192 * self.ranks):
                self.model.table(self._rows(first, 8192)[0])
        self.steps(0, 2, 64)

    def _rows(self, first: int, batch: int) -> list[Tensor]:
        """This rank's part of the batch that starts with row `first`."""
        rows = slice(first + self.rank * batch, first + (self.rank + 1) * batch)
        return [torch.from_numpy(array[rows].copy()) for array in self.arrays]

    def steps(self, first: int, count: int, batch: int) -> Steps:
        """Train on `count` batches from number `first` on, `batch` rows of each on each rank."""
        whole = batch * self.ranks
        batches = [
            self._rows(index % (len(self.arrays[0]) // whole) * whole, batch) for index in range(first, first + count)
        ]
        across = self.model.table.across
        sent = 0 if across is None else across.shards.traffic.sent
        marks = [perf_counter()]
        for keys, numbers, labels in batches:
            self.optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(self.parallel(keys, numbers), labels).backward()
            self.optimizer.step()
            marks.append(perf_counter())
        seconds = np.diff(marks).tolist()
        distinct = [np.unique(keys.numpy()) for keys, *_ in batches]
        total = sum(map(len, distinct))
        if across is None:
            return Steps(seconds, 0, total, 0)
        away = sum(int((across.shards.routing.ranks_of(keys) != self.rank).sum()) for keys in distinct)
        return Steps(seconds, across.shards.traffic.sent - sent, total, away)


training_of = cache(Training)


def run(folder: Path, sharded: bool, first: int, count: int, batch: int, wire: torch.dtype | None = None) -> Steps:
    """On a rank: some steps of a training, which is created at the first call."""
    return training_of(folder, sharded, wire).steps(first, count, batch)


def write_log(folder: Path, rows: int) -> None:
    """Rows of a synthetic log with Criteo's fields, as arrays."""
    parts = []
    for batch in synthetic_batches(SHAPE, rows, 0):
        keys = np.stack([batch.column(field.name).to_numpy() for field in SHAPE.fields], 1)
        numbers = np.stack([batch.column(name).to_numpy() for name in SHAPE.numbers], 1)
        labels = batch.column("label").to_numpy()
        parts.append((keys.astype(np.int64), np.log1p(numbers).astype(np.float32), labels.astype(np.float32)))
    for name, arrays in zip(("keys", "numbers", "labels"), zip(*parts, strict=True), strict=True):
        np.save(folder / f"{name}.npy", np.concatenate(arrays))


def count_bytes(folder: Path, rows: int, worlds: Iterable[int], steps: int) -> dict[str, float]:
    """Bytes sent to other ranks, and the least that can be sent: a key, its vector and its gradient, once a step."""
    figures: dict[str, float] = {}
    for count in worlds:
        with ranks_of(count) as call:
            for name, wire, size in (("float32", None, 4), ("bfloat16", torch.bfloat16, 2)):
                batch = min(2048, rows // (2 * count))
                done = call(run, folder, True, 0, steps, batch, wire)
                samples = count * batch * steps
                sent, least = (sum(one.sent for one in done), sum(one.away for one in done) * (8 + 2 * 16 * size))
                figures |= {
                    f"bytes.{count}_ranks.{name}.per_sample": sent / samples,
                    f"bytes.{count}_ranks.{name}.least_per_sample": least / samples,
                    f"bytes.{count}_ranks.{name}.ratio": sent / least,
                    f"bytes.{count}_ranks.{name}.distinct_per_sample": sum(one.distinct for one in done) / samples,
                }
    return figures


def scaling(folder: Path, batches: Sequence[int], rounds: int, steps: int) -> dict[str, float]:
    """Samples per second of two ranks in units of one: medians and quartiles over rounds, in which they take turns."""
    found: dict[str, list[float]] = {}
    with common.undisturbed() as others, ranks_of(1) as one, ranks_of(2) as two:

        def seconds(call: Call, sharded: bool, turn: int, batch: int) -> float:
            done = call(run, folder, sharded, turn * steps, steps, batch)
            return max(float(np.median(rank.seconds)) for rank in done)

        for turn in range(rounds):
            for batch in batches:
                alone = seconds(one, False, turn, batch)
                for name, value in (
                    ("ms_alone", 1e3 * alone),
                    ("ms_one_rank", 1e3 * seconds(one, True, turn, batch)),
                    ("weak", 2 * alone / seconds(two, True, turn, batch)),
                    ("strong", alone / seconds(two, True, turn, batch // 2)),
                    ("apart", 2 * alone / seconds(two, False, turn, batch)),
                ):
                    found.setdefault(f"scaling.{name}_{batch}", []).append(value)
    quantiles = {"_low": 0.25, "": 0.5, "_high": 0.75}
    figures = {
        name + at: float(np.quantile(values, q)) for name, values in found.items() for at, q in quantiles.items()
    }
    return figures | {"others_cores": others.cores}


def predictions(file: Path, wire: torch.dtype | None, seed: int) -> Tensor:
    """On a rank: one pass over the training rows of a log that `save_log` has written; its test probabilities."""
    keys, numbers, labels, train_rows = torch.load(file)
    ranks, rank, trained, batch = dist.get_world_size(), dist.get_rank(), int(train_rows), 32
    torch.manual_seed(seed)
    model = ShardedModel(keys.shape[1], numbers.shape[1], wire, True, seed)
    optimizer = GroupAdam(param_groups(model, l21=1e-4), lr=3e-3)
    parallel = data_parallel(model)
    for first in range(0, trained // (batch * ranks) * batch * ranks, batch * ranks):
        rows = slice(first + rank * batch, first + (rank + 1) * batch)
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(parallel(keys[rows], numbers[rows]), labels[rows]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        part = slice(*(trained + (len(labels) - trained) * at // ranks for at in (rank, rank + 1)))
        return model(keys[part], numbers[part]).sigmoid()


def save_log(log: Log, file: Path) -> None:
    rows = next(log.batches(0, len(log), len(log)))
    torch.save([rows.keys, rows.numbers, rows.labels, torch.tensor(log.train_rows)], file)


def auc_differences(logs: Mapping[str, Log], seeds: int) -> dict[str, float]:
    """Test AUC with float32 on the wire, and the paired difference of bfloat16; each seed draws the initialization."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, ranks_of(2) as call:
        for name, log in logs.items():
            file = Path(folder, f"{name}.pt")
            save_log(log, file)
            _, _, labels, trained = torch.load(file)

            def auc(wire: torch.dtype | None, seed: int, file: Path, tested: np.ndarray) -> float:
                return evaluate(tested, torch.cat(call(predictions, file, wire, seed)).double().numpy()).auc

            tested = labels[int(trained) :].numpy()
            aucs = np.array(
                [[auc(wire, seed, file, tested) for wire in (None, torch.bfloat16)] for seed in range(seeds)]
            )
            differences = aucs[:, 1] - aucs[:, 0]
            figures |= {
                f"auc.{name}.auc": float(aucs[:, 0].mean()),
                f"auc.{name}.difference": float(differences.mean()),
                f"auc.{name}.standard_error": float(differences.std(ddof=1) / np.sqrt(seeds)),
                f"auc.{name}.seeds": float(seeds),
            }
    return figures


TEXT = """# Several ranks, measured

The bytes that a `HashEmbedding` divided among [several ranks](../../distributed.md) sends, and how fast two ranks are
on two cores. `python benchmarks/sharded.py --data FOLDER` writes this page: DCN over the 26 fields and 13 numbers of a
synthetic log of Criteo's shape (Zipf keys), vectors of 16 numbers, Group Adam, `DistributedDataParallel` for the
network, gloo. Each rank is a process with one thread on one core. More than four ranks, and hosts joined by a network,
have not been measured.

Machine: {machine}.

## Bytes on the wire

The least that can be sent: each distinct key of a rank's batch whose row is on another rank goes there (8 bytes), its
vector returns, and its gradient goes, with 4 bytes a number (2 in bfloat16). A rank sends at most {most:.4f} times
that, with the headers of exchanges. The network's gradients are not counted. 2,048 samples on each rank; larger batches
have fewer distinct keys a sample.

{bytes}

## bfloat16 on the wire

`wire_dtype=torch.bfloat16` rounds vectors and gradients before they are sent. Test AUC after one pass on two ranks,
batches of 2 × 32, and the difference with the same seed, which draws the initialization: mean ± standard error over
{seeds:.0f} seeds.

{auc}

## From one process to two

Samples per second of two ranks on two cores, in units of one process without a group on one core; they take turns,
medians over rounds (quartiles in brackets). *Weak*: each rank has the batch of the one process; *strong*: half of it.
*Apart*: two processes train separate models without any communication, which is the limit of the machine. *One rank*: a
group of one, in units of the process without a group. Other processes used {others_cores:.1f} cores.

{scaling}
"""
BYTES = {"distinct_per_sample": 2, "least_per_sample": 2, "per_sample": 2, "ratio": 4}
"""Figures of the table of bytes, with their digits."""


def page_of(figures: Mapping[str, Any]) -> str:
    """The page of the documentation."""

    def named(prefix: str, suffix: str) -> Iterator[str]:
        found = (name for name in figures if name.startswith(prefix) and name.endswith(suffix))
        return (name.removeprefix(prefix).removesuffix(suffix) for name in found)

    def ratio(name: str) -> str:
        return f"{figures[name]:.2f} ({figures[f'{name}_low']:.2f} – {figures[f'{name}_high']:.2f})"

    sent = [
        (
            case.replace("_", " ").replace(".", ", "),
            *(f"{figures[f'bytes.{case}.{name}']:.{digits}f}" for name, digits in BYTES.items()),
        )
        for case in named("bytes.", ".ratio")
    ]
    aucs = [
        (
            log.replace("_", "\\_"),
            f"{figures[f'auc.{log}.auc']:.4f}",
            f"{figures[f'auc.{log}.difference']:+.5f} ± {figures[f'auc.{log}.standard_error']:.5f}",
        )
        for log in named("auc.", ".difference")
    ]
    scaled = []
    for batch in (name.removeprefix("scaling.weak_") for name in figures if re.fullmatch(r"scaling\.weak_\d+", name)):
        alone, one_rank = (figures[f"scaling.{name}_{batch}"] for name in ("ms_alone", "ms_one_rank"))
        ratios = (ratio(f"scaling.{kind}_{batch}") for kind in ("weak", "strong", "apart"))
        scaled.append((f"{int(batch):,}", f"{alone:.2f}", f"{alone / one_rank:.2f}", *ratios))
    return TEXT.format(
        machine=figures["machine"],
        others_cores=figures["others_cores"],
        most=max(value for name, value in figures.items() if name.startswith("bytes.") and name.endswith(".ratio")),
        bytes=common.markdown(("", "distinct keys a sample", "least bytes a sample", "sent", "ratio"), sent),
        seeds=figures["auc.synthetic.seeds"],
        auc=common.markdown(("log", "AUC, float32", "bfloat16 − float32"), aucs),
        scaling=common.markdown(("batch", "ms, one process", "one rank", "weak", "strong", "apart"), scaled),
    )


def measure(given: Namespace) -> Iterator[common.Figures]:
    quick, figures = given.quick, dict[str, float]()
    with tempfile.TemporaryDirectory() as name:
        folder, rows = Path(name), 1 << (12 if quick else 17)
        write_log(folder, rows)
        figures |= count_bytes(folder, rows, (2,) if quick else (2, 4), 4 if quick else 16)
        figures |= scaling(folder, (64, 256), 1, 4) if quick else scaling(folder, (512, 2048, 8192), 5, 16)
    logs: dict[str, Log] = {"synthetic": synthetic_log(SyntheticConfig(rows=2_000 if quick else 75_000))}
    for log in shared_logs(given.data) if given.data else ():
        if log.name in ("criteo_sample", "avazu_sample"):
            logs[log.name] = open_log(log.path)
    figures |= auc_differences(logs, 2 if quick else 8)
    yield figures
    page = given.report or (None if quick else PAGE)
    if page is not None:
        page.mkdir(parents=True, exist_ok=True)
        written = figures | {"machine": common.machine()}
        (page / "results.json").write_text(json.dumps(written, indent=1) + "\n")
        (page / "index.md").write_text(page_of(written))


def main(argv: Sequence[str] | None = None) -> None:
    report = {"type": Path, "help": "folder of the page; default: docs/results/several-ranks"}
    options = common.DATA | {"--report": report}
    common.run(measure, __doc__, "a short log, two seeds, few steps, and no page", options=options, argv=argv)


if __name__ == "__main__":
    main()
