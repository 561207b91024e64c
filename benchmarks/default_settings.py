"""What is each default of `sparsegroup train LOG` worth? Runs that differ from it in one setting, log by log.

On each log of the panel of `out_of_the_box.py`, and on made-up logs of a family, the order of the training rows, the
network, the optimizer with its learning rates, its ε, the trials, the batch size and the size are each given another
value: test AUC, log loss and calibration, the mean over seeds.

    python benchmarks/default_settings.py --data FOLDER
    python benchmarks/default_settings.py --data FOLDER --of order
"""

import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

import common
from out_of_the_box import QUICK_ROWS, ROWS, typed_logs
from panel.family import family_logs
from panel.logs import PanelLog, shared_logs
from panel.ours import own_run
from sparsegroup.training.metrics import evaluate

DEFAULT = "where nothing is said"
METRICS = ("auc", "log_loss", "calibration")
OTHERS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "order": {
        "the log's order": ("--shuffle-buffer", "0"),
        "blocks of 10,000": ("--shuffle-buffer", "10000"),
        "blocks of 100,000": ("--shuffle-buffer", "100000"),
        "all shuffled": ("--shuffle-buffer", "1000000000"),
    },
    "model": {name: ("--model", name) for name in ("lr", "fm", "deepfm", "xdeepfm", "mlp", "opnn", "dcn", "dcnv2")},
    "optimizer": {
        "Adagrad, .03 everywhere": ("--optimizer", "adagrad", "--lr", "0.03"),
        "Adagrad, .1 everywhere": ("--optimizer", "adagrad", "--lr", "0.1"),
        "Adam": ("--optimizer", "adam"),
    },
    "eps": {f"ε of {eps}": ("--set", f"optimizer.eps={eps}") for eps in ("1.0e-10", "1.0e-4", "4.0e-4")},
    "selection": {
        "no trials": ("--selection", "never"),
        "no pairs": ("--pairs", "none"),
        "recalibrated": ("--recalibrate",),
    },
    "batch": {f"batches of {size}": ("--batch-size", str(size)) for size in (128, 512, 2048)},
    "size": {
        "a tenth of the features": ("--target-rate", "0.1"),
        "all features": ("--target-rate", "1"),
    },
}
"""Setting → what it is instead → options of `train`."""


def figures_of(log: PanelLog, options: Sequence[str], seeds: int) -> dict[str, float]:
    """Test metrics of runs with these options, the mean over seeds."""
    _, test, _, label = log.frames
    labels = test[label].to_numpy()
    with tempfile.TemporaryDirectory() as folder:
        runs = [own_run(log, seed, Path(folder) / str(seed), options) for seed in range(seeds)]
    each = [evaluate(labels, run.probabilities) for run in runs]
    return {metric: float(np.mean([getattr(one, metric) for one in each])) for metric in METRICS}


def measure(given: Namespace) -> Iterator[common.Figures]:
    ways = {DEFAULT: (), **{name: options for setting in given.of for name, options in OTHERS[setting].items()}}
    with tempfile.TemporaryDirectory() as folder:
        made_up = next(iter(typed_logs(Path(folder), QUICK_ROWS if given.quick else ROWS)))
        shared = shared_logs(given.data) if given.data else []
        for log in chain([made_up], shared, [] if given.quick else family_logs(Path(folder))):
            found = {name: figures_of(log, options, given.seeds) for name, options in ways.items()}
            yield {f"{log.name}, {name}": figures for name, figures in found.items()}


def main(argv: Sequence[str] | None = None) -> None:
    of = {"nargs": "+", "choices": OTHERS, "default": list(OTHERS), "help": "default: all"}
    options = common.DATA | {"--of": of}
    common.run(measure, __doc__, "the made-up log alone, short", between=", ", seeds=1, options=options, argv=argv)


if __name__ == "__main__":
    main()
