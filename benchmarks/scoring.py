"""How fast an export scores a log, against its operators alone, the model that it was made of, and its training.

A synthetic log in Criteo's shape, of a million rows; DCN, d = 8, Group Adam by batches of 512, with fallback vectors.
The trained model and its exports predict the log by batches of 4,096 in turn; medians of samples per second.
"Operators" is an export without `FrozenTable.prefetch`, which has another thread look up the next batch.

    python benchmarks/scoring.py --json benchmarks/results/scoring.json
"""

import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch

import timing
from plain_loop import PLAIN, Watch
from sparsegroup.data import PreparedLog
from sparsegroup.kernels.cpu.threads import set_num_threads
from sparsegroup.serving.frozen import FrozenTable, live_rows
from sparsegroup.serving.frozen_model import frozen_copy
from sparsegroup.settings.names import Dtype, KeyFormat
from sparsegroup.table.field_tables import tables_in
from sparsegroup.training import Config, predict
from sparsegroup.training.model import LookupModel
from sparsegroup.training.predictions import EVALUATED
from sparsegroup.training.selection.sizes import train_and_test
from sparsegroup_paper.public_shapes import DATASETS, synthesize

CONFIG = Config.of(**PLAIN | {"dim": 8, "lr": 1e-3, "l21": 1e-4, "batch_size": 512, "fallback": True})
FORMATS: tuple[tuple[Dtype, KeyFormat], ...] = (("float32", "full"), ("int8", "full"), ("int4", "fingerprints"))


@contextmanager
def operators_alone() -> Iterator[None]:
    with patch.object(FrozenTable, "prefetch", lambda table, keys: None):
        yield


def samples_per_second(model: LookupModel, log: PreparedLog) -> float:
    return len(log) / timing.seconds(lambda: predict(model, log.batches(0, len(log), EVALUATED)))


def main() -> None:
    arguments = timing.parser(__doc__, quick="100,000 rows, one round").parse_args()
    rows, rounds = (100_000, 1) if arguments.quick else (1_000_000, 5)
    set_num_threads(arguments.threads)  # of the table; the network takes one
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, timing.undisturbed() as others:
        log = synthesize(DATASETS["criteo"], rows, Path(folder, "log"))
        model, optimizer = CONFIG.build(log)
        watch = Watch()
        train_and_test(CONFIG.replace(windows=1), model, optimizer, log, callbacks=[watch])
        trained = watch.trainer.history[-1]
        figures: dict[str, float | str] = {"training": trained.samples / trained.seconds}
        tables = tables_in(model)
        exports = {
            f"{dtype}_{keys}": frozen_copy(model, {name: live_rows(one, dtype, keys) for name, one in tables.items()})
            for dtype, keys in FORMATS
        }
        speeds: dict[str, list[float]] = {}
        for _ in range(rounds):
            speeds.setdefault("model", []).append(samples_per_second(model, log))
            for name, export in exports.items():
                speeds.setdefault(name, []).append(samples_per_second(export, log))
                with operators_alone():
                    speeds.setdefault(f"{name}_operators", []).append(samples_per_second(export, log))
        figures |= {name: statistics.median(found) for name, found in speeds.items()}
    for name in exports:
        ratios = [now / alone for now, alone in zip(speeds[name], speeds[f"{name}_operators"], strict=True)]
        figures[f"{name}_over_operators"] = statistics.median(ratios)
        figures[f"{name}_over_training"] = statistics.median(speeds[name]) * trained.seconds / trained.samples
    figures |= {"machine": timing.machine(), "others_cores": others.cores}
    columns = ("", "samples/s", "operators alone", "ratio", "against training")
    lines = [
        (
            name,
            *(f"{figures[f'{name}{part}']:,.0f}" for part in ("", "_operators")),
            *(f"{figures[f'{name}{part}']:.2f}" for part in ("_over_operators", "_over_training")),
        )
        for name in exports
    ]
    lines += [(name, f"{figures[name]:,.0f}", "", "", "") for name in ("model", "training")]
    timing.show(f"Scoring {rows:,} rows", columns, lines)
    timing.write_json(arguments.json, figures)


if __name__ == "__main__":
    main()
