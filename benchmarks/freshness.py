"""What is freshness worth? The same rows scored by models of different age, while training follows the log.

A model with the settings of `sparsegroup follow` learns a log in the order of time, each row after it was predicted.
The last fifth of the rows is also predicted by copies of it that are renewed every minute, ten minutes, hour, six hours
and day of the log's own time, as if they had been published so often; a copy is between 0 and that old. Errors are
standard errors of the paired difference to the newest, over 50 blocks of consecutive rows.

    python benchmarks/freshness.py --data FOLDER --json freshness.json
"""

import math
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import torch
from torch import Tensor

import common
from sparsegroup.data import open_log
from sparsegroup.data.batches import Batch
from sparsegroup.data.log import Log
from sparsegroup.data.synthetic import write_clicks
from sparsegroup.serving.frozen import live_rows
from sparsegroup.serving.frozen_model import frozen_copy, tables_of
from sparsegroup.streaming.follow import stream_settings
from sparsegroup.training import Callback, ClickModel, Config, TrainedBatch, Trainer, predict
from sparsegroup.training.predictions import PredictionWindow

AGES = {"1 min": 60, "10 min": 600, "1 h": 3_600, "6 h": 21_600, "1 day": 86_400}
NEWEST = "each batch"
SHARE, BLOCKS, BATCH = 0.2, 50, 128


@dataclass
class Served:
    """A copy of the model, renewed at multiples of `every` seconds, and its predictions."""

    every: int
    window: PredictionWindow
    copy: ClickModel | None = None
    due: float = -math.inf
    logits: list[Tensor] = field(default_factory=list)

    def renew(self, model: ClickModel, now: float) -> None:
        if now >= self.due:
            rows = {name: live_rows(table, "float32") for name, table in tables_of(model).items()}
            self.copy, self.due = frozen_copy(model, rows), (now // self.every + 1) * self.every

    def predict(self, batch: Batch) -> None:
        assert self.copy is not None
        self.window.add(batch, torch.from_numpy(predict(self.copy, [batch]).logits()))


class Newest(Callback):
    """The predictions that are made before learning."""

    def __init__(self, window: PredictionWindow) -> None:
        self.window, self.is_on = window, False

    def on_batch(self, trainer: Trainer, trained: TrainedBatch) -> None:
        if self.is_on:
            self.window.add(trained.batch, trained.logits)


def write_news(path: Path, rows: int, seed: int = 0) -> None:
    """Clicks on items that live for hours: over five days 20,000 items appear, each shown less and less from then on.

    P(click) depends on the item, the user, and their section and segment.
    """
    draw, items, users, span = np.random.default_rng(seed), 20_000, 20_000, 5 * 86_400
    born, effect, section = np.sort(draw.uniform(0, span, items)), draw.normal(0, 1, items), draw.integers(0, 12, items)
    times = np.sort(draw.uniform(0, span, rows))
    ages = draw.exponential(4 * 3_600, rows)
    item = np.maximum(np.searchsorted(born, times - ages), 1) - 1
    user = (users * draw.random(rows) ** 2).astype(int)
    segment = user % 8
    logit = effect[item] + draw.normal(0, 0.5, users)[user] + draw.normal(0, 0.7, (12, 8))[section[item], segment] - 1.5
    named = {"item": item, "section": section[item], "user": user, "segment": segment}
    labels = (draw.random(rows) < 1 / (1 + np.exp(-logit))).astype(int)
    frame = pl.DataFrame({"ts": 1_740_960_000 + times.astype(int), **named, "label": labels})
    texts = [(pl.lit(name[:3]) + pl.col(name).cast(pl.String)).alias(name) for name in named]
    frame.with_columns(texts).write_csv(path)


def windows_by_age(log: Log) -> dict[str, PredictionWindow]:
    """Age → the predictions for the last fifth of a log."""
    config = stream_settings(Config.of(batch_size=BATCH)).resolved_for(log)
    model, optimizer = config.build(log)
    objective = model.objective
    newest = Newest(PredictionWindow(objective))
    served = {name: Served(every, PredictionWindow(objective)) for name, every in AGES.items()}
    trainer = Trainer(
        model.embedding,
        model.network,
        optimizer,
        objective=objective,
        target=config.optimizer.target(optimizer, None),
        callbacks=[newest],
    )
    first = round(len(log) * (1 - SHARE)) // BATCH * BATCH
    trainer.partial_fit(log.batches(0, first, BATCH))
    assert log.timed
    newest.is_on, now = True, 0.0
    for batch in log.batches(first, len(log), BATCH):
        for one in served.values():
            one.renew(model, now)
            one.predict(batch)
        trainer.partial_fit([batch])
        now = float(batch.times.max())
    return {NEWEST: newest.window, **{name: one.window for name, one in served.items()}}


def figures_of(windows: dict[str, PredictionWindow]) -> Iterator[tuple[str, dict[str, float]]]:
    """For each age its metrics, and the standard error of its log loss minus the newest's."""
    losses = {
        name: window.objective.deviance(window.labels().astype(np.float64), window.probabilities())
        for name, window in windows.items()
    }
    for name, window in windows.items():
        means = [block.mean() for block in np.array_split(losses[name] - losses[NEWEST], BLOCKS)]
        metrics, error = window.metrics(), float(np.std(means, ddof=1) / math.sqrt(BLOCKS))
        figures = {of: getattr(metrics, of) for of in ("auc", "log_loss", "calibration")}
        yield name.replace(" ", "_"), {**figures, "error": error}


def measure(given: Namespace) -> Iterator[common.Figures]:
    torch.set_num_threads(1)
    rows = 20_000 if given.quick else 500_000
    with TemporaryDirectory() as folder:
        made, news = Path(folder) / "made_up.csv", Path(folder) / "news.csv"
        write_clicks(made, rows, seed=0)
        write_news(news, rows)
        logs = {
            "news": open_log(news, label="label", test_fraction=0.0),
            "made_up": open_log(made, label="clicked", test_fraction=0.0),
        }
        if given.data is not None:
            logs["globo_clicks"] = open_log(given.data / "globo_clicks.csv.xz", label="label")
        for name, log in logs.items():
            yield {f"{name}_{age}": figures for age, figures in figures_of(windows_by_age(log))}


if __name__ == "__main__":
    common.run(measure, __doc__, "20,000 rows of the made-up logs", between="_", options=common.DATA)
