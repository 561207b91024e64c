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

    python benchmarks/memory.py    # 8 GiB of memory, and 3 GB of disk for the log
"""

import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import common
import plain_loop
from sparsegroup.data import PreparedLog
from sparsegroup.kernels.cpu.threads import set_num_threads
from sparsegroup.training import Callback, Config, TrainedBatch, Trainer
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


class Sizes(Callback):
    """The table's bytes after each batch."""

    def __init__(self) -> None:
        self.bytes: list[int] = []

    def on_batch(self, trainer: Trainer, trained: TrainedBatch) -> None:
        self.bytes.append(trainer.table.memory().total)


def one_pass(settings: Mapping[str, Any], folder: Path, threads: int) -> dict[str, float]:
    """A pass with these settings, and what it came to."""
    set_num_threads(threads)
    torch.set_num_threads(1)
    sizes, config = Sizes(), Config.of(**plain_loop.PLAIN | settings)
    done = plain_loop.trained(PreparedLog(folder), config, [sizes])
    table, test = done.model.embedding, done.score.test
    figures = {
        "test_auc": test.auc,
        "test_log_loss": test.log_loss,
        "calibration": test.calibration,
        "feature_rate": done.score.feature_rate,
        "features_seen": float(table.num_seen),
        "rows": float(table.num_rows),
        "table_bytes": float(sizes.bytes[-1]),
        "most_table_bytes": float(max(sizes.bytes)),
        "peak_bytes": float(common.peak_memory()),
        "samples_per_s": done.samples_per_s,
        "evicted": float(table.num_evicted),
        "refused": float(table.num_refused),
    }
    for share in POINTS:
        figures[f"table_bytes_at_{share:.0%}"] = float(sizes.bytes[int(share * len(sizes.bytes))])
    assert max(sizes.bytes) <= int(config.model.max_table_bytes or 1 << 62), "more bytes than the limit"
    return figures


def measure(given: Namespace) -> Iterator[common.Figures]:
    with tempfile.TemporaryDirectory() as place, common.undisturbed():
        folder, shape = Path(place, "log"), DATASETS["criteo"]
        if given.quick:
            synthesize(shape, QUICK_ROWS, folder)
        else:
            synthesize(replace(shape, full_rows=ROWS), ROWS, folder)
        everything = common.in_a_process(one_pass, {**PLAIN, "l21": 0.0}, folder, given.threads)
        yield {"all": everything}
        for name, settings in contenders(everything["most_table_bytes"]).items():
            yield {name: common.in_a_process(one_pass, settings, folder, given.threads)}


if __name__ == "__main__":
    common.run(measure, __doc__, f"a log of {QUICK_ROWS:,} rows", between="_")
