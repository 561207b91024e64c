"""What a table's memory comes to over a pass that offers 33.8M features, and what each way to save some costs.

A synthetic log of Criteo's fields whose 12M rows bring as many features as the real one's 45.8M; the first 6/7 are
trained on, by DCN with d = 8, Group Adam, 2,048 samples a batch. The contenders take the same pass one after the other,
each in a process of its own:

    all           every feature keeps its row
    lasso         the paper's lasso at a constant λ21
    recipe        3 % asked for, `--target-rate .03 --lr 1e-3 --no-fallback`
    unseen        the recipe; dead features that have not come for 500 steps lose their row
    admit_2, 5    the recipe; a row at the second, at the fifth occurrence, counted in 64 MB
    admit_2_exact the same, counted exactly
    quarter       the recipe under `--max-table-bytes` of a quarter of what `all` took
    tenth         under a tenth
    tenth_admit_2 under a tenth, with a row at the second occurrence

Table bytes are looked at after each batch; memory is the peak of the whole process, libraries, compiled network and the
reading of the log included.

    python benchmarks/memory.py              # 8 GiB of memory, and 3 GB of disk for the log
    python benchmarks/memory.py --log LOG    # another prepared log
"""

import argparse
import multiprocessing
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import plain_loop
import timing
from sparsegroup.data import PreparedLog
from sparsegroup.kernels.cpu.threads import set_num_threads
from sparsegroup.training import Config, TrainedBatch, Trainer
from sparsegroup.training.selection.sizes import train_and_test
from sparsegroup_paper.public_shapes import DATASETS, synthesize

ROWS, QUICK_ROWS, BATCH, RATE, UNSEEN, SKETCH = 12_000_000, 300_000, 2_048, 0.03, 500, "64MB"
POINTS = (0.25, 0.5, 0.75)
"""Of the pass, at which the table's bytes are given."""

PLAIN = {"model": "dcn", "dim": 8, "lr": 1e-3, "batch_size": BATCH}
RECIPE = {**PLAIN, "target_rate": RATE, "fallback": False}


def contenders(everything: float) -> dict[str, dict[str, Any]]:
    """Settings by name; `everything` is what all features take, in bytes."""
    return {
        "lasso": {**PLAIN, "l21": 1e-4},
        "recipe": RECIPE,
        "unseen": {**RECIPE, "evict_unseen": UNSEEN},
        "admit_2_exact": {**RECIPE, "admit_after": 2},
        "admit_2": {**RECIPE, "admit_after": 2, "admit_sketch": SKETCH},
        "admit_5": {**RECIPE, "admit_after": 5, "admit_sketch": SKETCH},
        "quarter": {**RECIPE, "max_table_bytes": int(everything / 4)},
        "tenth": {**RECIPE, "max_table_bytes": int(everything / 10)},
        "tenth_admit_2": {**RECIPE, "max_table_bytes": int(everything / 10), "admit_after": 2},
    }


def one_pass(settings: Mapping[str, Any], folder: Path, threads: int) -> dict[str, float]:
    """A pass with these settings, and what it came to."""
    set_num_threads(threads)
    torch.set_num_threads(1)
    log, config = PreparedLog(folder), Config.of(**plain_loop.PLAIN | settings)
    model, optimizer = config.build(log)
    sizes: list[int] = []

    class Sizes(plain_loop.Watch):
        def on_batch(self, trainer: Trainer, trained: TrainedBatch) -> None:
            sizes.append(model.embedding.memory().total)

    watch = Sizes()
    trained = train_and_test(config.replace(batch_size=BATCH), model, optimizer, log, callbacks=[watch])
    table, last = model.embedding, watch.trainer.history[-1]
    figures = {
        "test_auc": trained.test.auc,
        "test_log_loss": trained.test.log_loss,
        "calibration": trained.test.calibration,
        "feature_rate": trained.feature_rate,
        "features_seen": float(table.num_seen),
        "rows": float(table.num_rows),
        "table_bytes": float(sizes[-1]),
        "most_table_bytes": float(max(sizes)),
        "peak_bytes": float(timing.peak_memory()),
        "samples_per_s": last.samples / last.seconds,
        "evicted": float(table.num_evicted),
        "refused": float(table.num_refused),
    }
    for share in POINTS:
        figures[f"table_bytes_at_{share:.0%}"] = float(sizes[int(share * len(sizes))])
    limit = config.model.max_table_bytes
    if limit is not None and max(sizes) > int(limit):
        raise AssertionError(f"{max(sizes):,} bytes are more than {limit:,}")
    return figures


def show(found: Mapping[str, dict[str, float]]) -> None:
    columns = ("test_auc", "feature_rate", *(f"table_bytes_at_{share:.0%}" for share in POINTS))
    columns += ("table_bytes", "most_table_bytes", "peak_bytes", "samples_per_s")
    lines = (
        (name, *(f"{figures[key] / 1e6:,.0f} MB" if "bytes" in key else f"{figures[key]:,.5g}" for key in columns))
        for name, figures in found.items()
    )
    timing.show(f"{found['all']['features_seen']:,.0f} features seen in training", ("", *columns), lines)


def run(folder: Path, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """All contenders, one after the other."""

    def in_a_process(settings: Mapping[str, Any]) -> dict[str, float]:
        """A pass in a new process, whose peak of memory is its own."""
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(one_pass, dict(settings), folder, arguments.threads).result()

    found = {"all": in_a_process({**PLAIN, "l21": 0.0})}
    for name, settings in contenders(found["all"]["most_table_bytes"]).items():
        if arguments.only and name not in arguments.only:
            continue
        found[name] = in_a_process(settings)
        print(name, {key: round(value, 4) for key, value in found[name].items()}, flush=True)
        timing.write_json(
            arguments.json, {f"{one}_{key}": value for one, part in found.items() for key, value in part.items()}
        )
    return found


def main() -> None:
    parser = timing.parser(__doc__, quick=f"a log of {QUICK_ROWS:,} rows")
    parser.add_argument("--log", type=Path, help="a prepared log, in place of the one that is made")
    parser.add_argument("--only", nargs="*", help="contenders, beside `all`; default: all of them")
    arguments = parser.parse_args()
    print(timing.machine())
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.log or Path(temporary, "log")
        if arguments.log is None:
            rows = QUICK_ROWS if arguments.quick else ROWS
            shape = DATASETS["criteo"]
            synthesize(shape if arguments.quick else replace(shape, full_rows=rows), rows, folder)
        with timing.undisturbed():
            show(run(folder, arguments))


if __name__ == "__main__":
    sys.exit(main())
