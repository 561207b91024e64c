"""The size asked for, against a constant λ21 and pruning, on 10M rows of the synthetic Criteo, at the same rates.

DCN, d = 8, Group Adam, lr 1e-3, 2,048 samples a batch, one pass over the first 6/7 of the rows, one seed. The lasso
with a constant λ21 is trained at three λ21; the recipe (`hard`, a ramp), with and without fallback vectors, and the
lasso under the same control are asked for the very rates that it ends with; so is Group Adagrad at a learning rate of
.03 with fallback vectors, `hard`, which is recommended, and lasso; Adam is pruned to them by norm, and fine-tuned on
the last 0 and 10 % of the samples. Bytes are those of the table at the end of training, with all that it remembers;
those of what is served follow from the rate.

    python benchmarks/size_at_scale.py    # 6 GiB of memory, and 2 GB of disk for the log
"""

import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import torch

import common
import plain_loop
from sparsegroup.data import PreparedLog
from sparsegroup.kernels.cpu.threads import set_num_threads
from sparsegroup.training import Config
from sparsegroup_paper.pruning import Learner, magnitude_pruning
from sparsegroup_paper.public_shapes import DATASETS, synthesize
from sparsegroup_paper.runs import Pruned

ROWS, QUICK_ROWS, BATCH = 10_000_000, 300_000, 2_048
L21S = (1e-4, 4e-4, 1.5e-3)
FINE_TUNED = (0.0, 0.1)
PLAIN = Config.of(
    **plain_loop.PLAIN | {"dim": 8, "optimizer": "adam", "lr": 1e-3, "l21": 0.0, "batch_size": BATCH, "fallback": False}
)


def one_pass(log: PreparedLog, config: Config) -> dict[str, float]:
    """A pass, and what it came to."""
    done = plain_loop.trained(log, config)
    return {
        "test_auc": done.score.test.auc,
        "test_log_loss": done.score.test.log_loss,
        "feature_rate": done.score.feature_rate,
        "table_bytes": float(done.model.embedding.memory().total),
        "samples_per_s": done.samples_per_s,
    }


def pruned(log: PreparedLog, rates: list[float]) -> Iterator[tuple[str, dict[str, float]]]:
    """Adam, pruned to each of the rates in each way; a pass in all, and its end once more for each of them."""
    learner = Learner(log, PLAIN)
    ways = [Pruned(rate, share) for rate in rates for share in FINE_TUNED]
    for way in magnitude_pruning(learner, ways, log.train_rows):
        found = plain_loop.tested(learner.model, log).metrics()
        yield (
            f"pruned_tuned_{way.fine_tune:.0%}_{rates.index(way.keep)}",
            {
                "test_auc": found.auc,
                "test_log_loss": found.log_loss,
                "feature_rate": learner.model.embedding.feature_rate,
                "table_bytes": float(learner.model.embedding.memory().total),
            },
        )


def all_of(log: PreparedLog) -> Iterator[tuple[str, dict[str, float]]]:
    """Every contender's name and figures."""
    yield "all", one_pass(log, PLAIN)
    yield "all_adagrad", one_pass(log, PLAIN.replace(optimizer="adagrad", lr=0.03))
    rates = []
    for number, l21 in enumerate(L21S):
        found = one_pass(log, PLAIN.replace(l21=l21))
        rates.append(found["feature_rate"])
        yield f"lasso_constant_{number}", found
    for number, rate in enumerate(rates):
        for name, settings in (
            ("recipe", {"penalty": "hard"}),
            ("recipe_fallback", {"penalty": "hard", "fallback": True}),
            ("lasso_asked", {"penalty": "lasso"}),
            ("recommended", {"penalty": "hard", "fallback": True, "optimizer": "adagrad", "lr": 0.03}),
            ("recommended_lasso", {"penalty": "lasso", "fallback": True, "optimizer": "adagrad", "lr": 0.03}),
        ):
            yield f"{name}_{number}", one_pass(log, PLAIN.replace(target_rate=rate, **settings))
    yield from pruned(log, rates)


def measure(given: Namespace) -> Iterator[common.Figures]:
    set_num_threads(given.threads)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, common.undisturbed():
        log = synthesize(DATASETS["criteo"], QUICK_ROWS if given.quick else ROWS, Path(folder, "log"))
        for name, found in all_of(log):
            yield {name: found}


if __name__ == "__main__":
    common.run(measure, __doc__, f"{QUICK_ROWS:,} rows", between="_")
