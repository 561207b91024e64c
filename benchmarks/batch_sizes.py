"""Samples per second and test AUC against the batch size: ours beside the plain loop, with a small and a wide network.

Both train DCN on the same samples of a prepared log, in order, once: `HashEmbedding` with Group Adam and a feature rate
that is asked for, and `nn.Embedding(sparse=True)` with SparseAdam behind a DataLoader, whose embeddings are then pruned
to the same rate by their norm. Both have the same learning rate, √(batch / 512) times .001. Nothing is compiled.

The share of the peak counts the network's products alone (2 operations a weight forward, 4 backward), in units of what
torch's product of two large matrices reaches on all cores.

    sparsegroup-paper synthesize criteo LOG --rows 5000000
    python benchmarks/batch_sizes.py LOG
"""

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

import timing
from batch_page import page_of, plot_sizes
from plain import PLAIN
from plain_loop import Ids, PlainModel, train_plainly
from sparsegroup.data import PreparedLog
from sparsegroup.data.batches import Batch
from sparsegroup.data.log import LogView
from sparsegroup.kernels.cpu.threads import set_num_threads
from sparsegroup.training import Config
from sparsegroup.training.plan import EpochPlan
from sparsegroup.training.trainer import trainer_for
from sparsegroup_paper.public_shapes import DATASETS, synthesize

ROOT = Path(__file__).parents[1]
DIM, RATE = 8, 0.1
NETWORKS = {"small": (64, 64), "wide": (1024, 512, 256)}
BATCHES = (128, 512, 2048, 8192, 32768)


class Part(LogView):
    """The first rows of a log, and its test rows."""

    def __init__(self, log: PreparedLog, rows: int) -> None:
        super().__init__(log)
        self.train_rows = rows

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        return self.log.batches(start, stop, size)


def rate_of(batch: int) -> float:
    """The learning rate."""
    return 1e-3 * (batch / 512) ** 0.5


def cpu_seconds() -> float:
    """Taken by this process and its ended children."""
    return sum(os.times()[:4])


def ours(log: PreparedLog, samples: int, tested: int, batch: int, hidden: Sequence[int]) -> dict[str, float]:
    """Speed, busy share, AUC; and how much faster evaluation is than training."""
    config = Config.of(
        **PLAIN | {"optimizer": "adam", "dim": DIM, "lr": rate_of(batch), "target_rate": RATE, "batch_size": batch},
        compile="never",
        hidden=hidden,
    )
    part = Part(log, samples)
    model, optimizer = config.build(part)
    plan = EpochPlan(samples, batch)
    trainer = trainer_for(config, model, optimizer, plan)
    begin, busy = perf_counter(), cpu_seconds()
    trainer.fit(plan.batches(part, 0))
    seconds = perf_counter() - begin
    busy = (cpu_seconds() - busy) / seconds / (os.cpu_count() or 1)
    assert trainer.target is not None
    trainer.target.settle()
    begin = perf_counter()
    metrics = trainer.evaluate(log.batches(log.train_rows, log.train_rows + tested, 4096))
    evaluated = tested / (perf_counter() - begin)
    return {
        "samples_per_s": samples / seconds,
        "busy": busy,
        "auc": metrics.auc,
        "feature_rate": model.embedding.feature_rate,
        "features": float(model.embedding.num_seen),
        "evaluated_per_s": evaluated,
    }


@torch.no_grad()
def pruned_auc(model: PlainModel, log: PreparedLog, data: Ids, features: int, tested: int) -> float:
    """Test AUC with as many features as ours has; those of the largest norm among the trained."""
    weight = model.embedding.weight
    seen = torch.zeros(len(weight), dtype=torch.bool)
    for ids, _, _ in data:
        seen[ids.flatten()] = True
    norms = torch.where(seen, weight.norm(dim=1), -1.0)
    gone = torch.ones(len(weight), dtype=torch.bool)
    gone[norms.topk(min(features, len(norms))).indices] = False
    weight[gone] = 0
    model.eval()
    found, labels = [], []
    for batch in log.batches(log.train_rows, log.train_rows + tested, 4096):
        found.append(model(batch.keys % len(weight), batch.numbers))
        labels.append(batch.labels)
    return float(roc_auc_score(torch.cat(labels).numpy(), torch.cat(found).numpy()))


def theirs(
    log: PreparedLog, samples: int, tested: int, batch: int, hidden: Sequence[int], features: int, kept: int
) -> dict[str, float]:
    """Speed, busy share and AUC of the plain loop."""
    torch.manual_seed(0)
    model = PlainModel(log, features, DIM, sparse=True, hidden=hidden)
    data = Ids(log.folder, (0, samples), features, batch)
    before = cpu_seconds()
    speed = train_plainly(model, data, rate_of(batch), sparse=True)
    busy = (cpu_seconds() - before) * speed / samples / (os.cpu_count() or 1)
    return {"samples_per_s": speed, "busy": busy, "auc": pruned_auc(model, log, data, kept, tested)}


def flop_per_sample(log: PreparedLog, hidden: Sequence[int]) -> float:
    """Operations of the network's products, forward and backward."""
    network = PlainModel(log, 1, DIM, sparse=False, hidden=hidden).network
    return 6.0 * sum(one.numel() for name, one in network.named_parameters() if not name.endswith("bias"))


def peak_flops(cores: int) -> float:
    """Floating-point operations per second of a product of two large matrices."""
    before = torch.get_num_threads()
    torch.set_num_threads(cores)
    size = 2048
    one, other = torch.randn(size, size), torch.randn(size, size)
    taken = min(timing.seconds(torch.mm, one, other) for _ in range(10))
    torch.set_num_threads(before)
    return 2.0 * size**3 / taken


def measure(log: PreparedLog, samples: int, tested: int, batches: Sequence[int], rounds: int) -> dict[str, float]:
    """All figures, by network, batch and contender: medians over rounds, in which they take turns."""
    rows = max(log.features, 1)
    cores = os.cpu_count() or 1
    ours(log, min(8192, log.train_rows), tested, 512, NETWORKS["small"])  # kernels are compiled
    figures: dict[str, float] = {"peak_gflops": peak_flops(cores) / 1e9, "samples": float(samples)}
    for network, hidden in NETWORKS.items():
        flop = flop_per_sample(log, hidden)
        figures[f"{network}.flop_per_sample"] = flop
        for batch in batches:
            # A wide network takes as long for fewer samples; AUC is then of a shorter training, for both.
            some = samples if network == "small" else samples // 8
            some -= some % batch
            if not some:
                continue
            own, other = [], []
            for _ in range(rounds):
                own.append(ours(log, some, tested, batch, hidden))
                kept = round(own[-1]["feature_rate"] * own[-1]["features"])
                other.append(theirs(log, some, tested, batch, hidden, rows, kept))
            for name, found in (("ours", own), ("theirs", other)):
                for key in found[0]:
                    figures[f"{network}.{batch}.{name}.{key}"] = float(np.median([one[key] for one in found]))
            speed = figures[f"{network}.{batch}.ours.samples_per_s"]
            figures[f"{network}.{batch}.speedup"] = speed / figures[f"{network}.{batch}.theirs.samples_per_s"]
            figures[f"{network}.{batch}.share_of_peak"] = speed * flop / (figures["peak_gflops"] * 1e9)
            print(f"{network}, {batch}: {speed:,.0f}/s, {figures[f'{network}.{batch}.speedup']:.2f} times", flush=True)
    return figures


def main(argv: Sequence[str] | None = None) -> None:
    parser = timing.parser(__doc__, quick="a synthetic log of 40,000 rows, made for it; two batch sizes, no report")
    parser.add_argument("log", type=Path, nargs="?", help="a prepared log; not wanted with --quick")
    parser.add_argument("--samples", type=int, default=2_000_000, help="to train on; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--report", type=Path, help="folder of the page; default: docs/results/batch-sizes")
    given = parser.parse_args(argv)
    if given.log is None and not given.quick:
        parser.error("a prepared log is wanted, or --quick")
    set_num_threads(given.threads)
    torch.set_num_threads(1)
    machine = timing.machine()
    print(machine, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        made = given.log is None
        log = synthesize(DATASETS["criteo"], 40_000, Path(folder, "log")) if made else PreparedLog(given.log)
        samples = min(given.samples, log.train_rows)
        tested = min(400_000, len(log) - log.train_rows)
        batches, rounds = ((128, 2048), 1) if given.quick else (BATCHES, given.rounds)
        with timing.undisturbed() as others:
            figures: dict[str, float | str] = {**measure(log, samples, tested, batches, rounds)}
    figures |= {"machine": machine, "others_cores": others.cores}
    report = given.report or (None if given.quick else ROOT / "docs" / "results" / "batch-sizes")
    if report is not None:
        report.mkdir(parents=True, exist_ok=True)
        (report / "results.json").write_text(json.dumps(figures, indent=1) + "\n")
        (report / "index.md").write_text(page_of(figures))
        plot_sizes(figures, report / "sizes.png")
    timing.write_json(given.json, figures)


if __name__ == "__main__":
    main()
