"""Several epochs: how good is the model on new rows after each, by what becomes of the embeddings after the first?

Each way of `--after-first-epoch` trains three epochs on the training rows, in the order of time, and predicts the test
rows after each: with all features, by Adagrad at a learning rate of .03, and with the recipe of the guide at a feature
rate (`TargetRate`, hard threshold, fallback vectors), which has that rate at the end of each epoch.

    python benchmarks/epochs.py avazu.csv
"""

from argparse import Namespace
from collections.abc import Iterator

import numpy as np
import torch

import common
from plain_loop import LOG, PLAIN, quality_log
from sparsegroup.data import Log
from sparsegroup.training import Config
from sparsegroup.training.plan import EpochPlan

WAYS = ("train", "reset", "freeze")
SIZES = {"all": {"optimizer": "adagrad", "lr": 0.03, "l21": 0.0}, "0.1": {"target_rate": 0.1}}


def after_each(log: Log, config: Config, epochs: int, way: str) -> list[tuple[float, float]]:
    """AUC and log loss on the test rows after each epoch."""
    model, optimizer = config.build(log)
    held, batch = len(log) - log.train_rows, config.training.batch_size
    plan = EpochPlan(log.train_rows, batch, epochs, validation_rows=held, after_first_epoch=way)
    trainer = config.trainer(model, optimizer, plan)
    trainer.fit(**plan.arguments(log))
    points = [point for point in trainer.history if point.validation_log_loss is not None]
    return [(point.validation_auc, point.validation_log_loss) for point in points]


def measure(given: Namespace) -> Iterator[common.Figures]:
    torch.set_num_threads(1)
    log, epochs = quality_log(given), 2 if given.quick else 3
    found: dict[str, dict[str, float]] = {}
    for size, settings in SIZES.items():
        for way in WAYS:
            config = Config.of(**PLAIN | settings)
            points = [after_each(log, config.replace(seed=seed), epochs, way) for seed in range(given.seeds)]
            found[f"{size}.{way}"] = {
                f"{name}_{epoch}": value
                for epoch, means in enumerate(np.mean(points, axis=0).tolist(), start=1)
                for name, value in zip(("auc", "log_loss"), means, strict=True)
            }
    yield {"seeds": given.seeds, **found}


if __name__ == "__main__":
    common.run(measure, __doc__, "a short made-up log, one seed, two epochs", seeds=5, options=LOG)
