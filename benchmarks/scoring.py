"""How fast an export scores a log, against its operators alone, the model that it was made of, and its training.

A synthetic log in Criteo's shape, of a million rows; DCN, d = 8, Group Adam by batches of 512, with fallback vectors.
The trained model and its exports predict the log by batches of 4,096 in turn; medians of samples per second.
"Operators" is an export without `FrozenTable.prefetch`, which has another thread look up the next batch.

    python benchmarks/scoring.py --json benchmarks/results/scoring.json
"""

import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import torch

import common
from plain_loop import PLAIN, trained
from sparsegroup.data import PreparedLog
from sparsegroup.kernels.cpu.threads import set_num_threads
from sparsegroup.serving.frozen import FrozenTable, live_rows
from sparsegroup.serving.frozen_model import frozen_copy
from sparsegroup.settings.names import Dtype, KeyFormat
from sparsegroup.table.field_tables import tables_in
from sparsegroup.training import Config, predict
from sparsegroup.training.model import LookupModel
from sparsegroup.training.predictions import EVALUATED
from sparsegroup_paper.public_shapes import DATASETS, synthesize

CONFIG = Config.of(**PLAIN | {"dim": 8, "lr": 1e-3, "l21": 1e-4, "batch_size": 512, "fallback": True})
FORMATS: tuple[tuple[Dtype, KeyFormat], ...] = (("float32", "full"), ("int8", "full"), ("int4", "fingerprints"))


def samples_per_second(model: LookupModel, log: PreparedLog) -> float:
    return len(log) / common.seconds(lambda: predict(model, log.batches(0, len(log), EVALUATED)))


def measure(given: Namespace) -> Iterator[common.Figures]:
    rows, rounds = (100_000, 1) if given.quick else (1_000_000, 5)
    set_num_threads(given.threads)  # of the table; the network takes one
    torch.set_num_threads(1)
    speeds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, common.undisturbed() as others:
        log = synthesize(DATASETS["criteo"], rows, Path(folder, "log"))
        done = trained(log, CONFIG.replace(windows=1))
        tables = tables_in(done.model)
        exports = {}
        for dtype, keys in FORMATS:
            rows_of = {name: live_rows(one, dtype, keys) for name, one in tables.items()}
            exports[f"{dtype}_{keys}"] = frozen_copy(done.model, rows_of)
        for _ in range(rounds):
            speeds.setdefault("model", []).append(samples_per_second(done.model, log))
            for name, export in exports.items():
                speeds.setdefault(name, []).append(samples_per_second(export, log))
                with patch.object(FrozenTable, "prefetch", lambda table, keys: None):
                    speeds.setdefault(f"{name}_operators", []).append(samples_per_second(export, log))
    figures = {"training": done.samples_per_s} | {name: common.median(found) for name, found in speeds.items()}
    for name in exports:
        ratios = [now / alone for now, alone in zip(speeds[name], speeds[f"{name}_operators"], strict=True)]
        figures[f"{name}_over_operators"] = common.median(ratios)
        figures[f"{name}_over_training"] = figures[name] / done.samples_per_s
    yield figures | {"others_cores": others.cores}


if __name__ == "__main__":
    common.run(measure, __doc__, quick="100,000 rows, one round")
