"""Several epochs: how good is the model on new rows after each, by what becomes of the embeddings after the first?

Each way of `--after-first-epoch` trains some epochs on the training rows, in the order of time, and predicts the test
rows after each: with all features, by Adagrad at a learning rate of .03, and with the recipe of the guide at a feature
rate (`TargetRate`, hard threshold, fallback vectors), which has that rate at the end of each epoch.

    python benchmarks/epochs.py avazu.csv
"""

import numpy as np
import torch

import timing
from plain_loop import PLAIN, quality_log
from sparsegroup.data import Log
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
    parser = timing.parser(__doc__, "a short made-up log, one seed, two epochs", seeds=5)
    parser.add_argument("log", nargs="?", help="a raw log, or a folder that `sparsegroup prepare` has written")
    parser.add_argument("--model", choices=("mlp", "opnn", "dcn"), default="dcn", help="default: %(default)s")
    parser.add_argument("--epochs", type=int, default=3, help="default: %(default)s")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    log = quality_log(parser, arguments)
    seeds, epochs = (1, 2) if arguments.quick else (arguments.seeds, arguments.epochs)
    figures: dict[str, float] = {"seeds": seeds}
    lines = []
    for size, settings in SIZES.items():
        for way in WAYS:
            config = Config.of(**PLAIN | {"model": arguments.model, **settings})
            points = [measured(log, config.replace(seed=seed), epochs, way) for seed in range(seeds)]
            means = np.mean(points, axis=0).tolist()
            for epoch, (auc, loss) in enumerate(means, start=1):
                figures |= {f"{size}.{way}.auc_{epoch}": auc, f"{size}.{way}.log_loss_{epoch}": loss}
            lines.append((size, way, *(f"{auc:.4f} / {loss:.4f}" for auc, loss in means)))
    columns = ("features", "after the first epoch", *(f"epoch {epoch + 1}" for epoch in range(epochs)))
    timing.show(f"{log.name}: test AUC / log loss, {seeds} seeds", columns, lines)
    timing.write_json(arguments.json, figures)


if __name__ == "__main__":
    main()
