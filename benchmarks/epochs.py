"""Several epochs: how good is the model on new rows after each, by what becomes of the embeddings after the first?

Each way of `--after-first-epoch` trains some epochs on the training rows, in the order of time, and predicts the test
rows after each: with all features, by Adagrad at a learning rate of .03, and with the recipe of the guide at a feature
rate (`TargetRate`, hard threshold, fallback vectors), which has that rate at the end of each epoch.

    python benchmarks/epochs.py avazu.csv
"""

import argparse
import json
from pathlib import Path
from statistics import mean

import torch

import timing
from plain_loop import PLAIN
from sparsegroup.data import Log, open_log
from sparsegroup.training import Config
from sparsegroup.training.plan import EpochPlan

WAYS = ("train", "reset", "freeze")
SIZES = {"all": {"optimizer": "adagrad", "lr": 0.03, "l21": 0.0}, "0.1": {"target_rate": 0.1}}


def measured(log: Log, config: Config, epochs: int, way: str) -> list[tuple[float, float]]:
    """AUC and log loss on the test rows after each epoch."""
    model, optimizer = config.build(log)
    plan = EpochPlan(
        log.train_rows,
        config.training.batch_size,
        epochs,
        validation_rows=len(log) - log.train_rows,
        after_first_epoch=way,
    )
    trainer = config.trainer(model, optimizer, plan)
    trainer.fit(**plan.arguments(log))
    points = [point for point in trainer.history if point.validation_log_loss is not None]
    return [(point.validation_auc, point.validation_log_loss) for point in points]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path, help="a raw log, or a folder that `sparsegroup prepare` has written")
    parser.add_argument("--model", choices=("mlp", "opnn", "dcn"), default="dcn", help="default: %(default)s")
    parser.add_argument("--epochs", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    log = open_log(arguments.log)
    rows, lines = [], []
    for size, settings in SIZES.items():
        for way in WAYS:
            config = Config.of(**PLAIN | {"model": arguments.model, **settings})
            seeds = [config.replace(seed=seed) for seed in range(arguments.seeds)]
            points = [measured(log, one, arguments.epochs, way) for one in seeds]
            aucs, losses = ([mean(each) for each in zip(*of, strict=True)] for of in _parted(points))
            rows.append({"features": size, "way": way, "auc": aucs, "log_loss": losses})
            lines.append((size, way, *(f"{auc:.4f} / {loss:.4f}" for auc, loss in zip(aucs, losses, strict=True))))
    columns = ("features", "after the first epoch", *(f"epoch {epoch + 1}" for epoch in range(arguments.epochs)))
    timing.show(f"{arguments.log.name}: test AUC / log loss, {arguments.seeds} seeds", columns, lines)
    if arguments.json:
        arguments.json.write_text(json.dumps({"seeds": arguments.seeds, "points": rows}, indent=1) + "\n")


def _parted(points: list[list[tuple[float, float]]]) -> tuple[list[list[float]], list[list[float]]]:
    aucs, losses = ([[point[part] for point in one] for one in points] for part in (0, 1))
    return aucs, losses


if __name__ == "__main__":
    main()
