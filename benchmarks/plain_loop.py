"""What benchmarks of training share: plain settings, ours, and a plain loop over `nn.Embedding` with torch's Adam."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from sparsegroup.data import Log, PreparedLog, SyntheticConfig, open_log, synthetic_log
from sparsegroup.models import DCN
from sparsegroup.optim import GroupOptimizer
from sparsegroup.training import Callback, ClickModel, Config, HistoryPoint, Trainer, predict
from sparsegroup.training.model import LookupModel
from sparsegroup.training.predictions import PredictionWindow
from sparsegroup.training.selection.sizes import ModelScore, train_and_test

PLAIN = {
    "model": "dcn",
    "number_buckets": 0,
    "standardize": False,
    "base_rate": False,
    "batch_size": 512,
    "shuffle_buffer": 0,
}
"""Explicit settings, so that a benchmark measures the same if a default changes."""


def quality_log(given: Namespace) -> Log:
    """The log that is given to a benchmark of quality, or a short made-up one with --quick."""
    if given.quick:
        return synthetic_log(SyntheticConfig(rows=5_000))
    return open_log(given.log) if given.log else sys.exit("a log is needed, or --quick")


LOG: dict[str, dict[str, Any]] = {"log": {"type": Path, "nargs": "?", "help": "a raw or prepared log, or --quick"}}


class Trained(NamedTuple):
    """Ours, and what a training came to."""

    model: ClickModel
    optimizer: GroupOptimizer
    score: ModelScore
    history: list[HistoryPoint]

    @property
    def samples_per_s(self) -> float:
        """Without the evaluation."""
        return self.history[-1].samples / self.history[-1].seconds


class _Watch(Callback):
    """Keeps the trainer that it follows, and so its history."""

    trainer: Trainer

    def on_begin(self, trainer: Trainer) -> None:
        self.trainer = trainer


def trained(log: Log, config: Config, callbacks: Sequence[Callback] = ()) -> Trained:
    """Train on a log and measure the test rows."""
    model, optimizer = config.build(log)
    watch = _Watch()
    score = train_and_test(config, model, optimizer, log, callbacks=[watch, *callbacks])
    return Trained(model, optimizer, score, watch.trainer.history)


def tested(model: LookupModel, log: Log) -> PredictionWindow:
    """What a model says of the test rows."""
    return predict(model, log.batches(log.train_rows, len(log), 4096))


class Ids(IterableDataset[tuple[Tensor, Tensor, Tensor]]):
    """The first samples of a log in batches, with ids for a table of `rows` rows."""

    def __init__(self, folder: Path, samples: int, rows: int, batch: int) -> None:
        self.folder, self.samples, self.rows, self.batch = folder, samples, rows, batch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for batch in PreparedLog(self.folder).batches(0, self.samples, self.batch):
            yield batch.keys % self.rows, batch.numbers, batch.labels


class PlainModel(nn.Module):
    """DCN over `nn.Embedding`."""

    def __init__(self, log: PreparedLog, rows: int, dim: int, *, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(rows, dim, sparse=sparse)
        nn.init.normal_(self.embedding.weight, std=0.01)
        self.network = DCN(len(log.fields), dim, len(log.numbers))

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        logits: Tensor = self.network(self.embedding(ids), numbers if numbers.shape[1] else None)
        return logits


def train_plainly(model: PlainModel, data: Ids, lr: float, *, sparse: bool) -> float:
    """Train on the data in order, by SparseAdam or Adam for the embeddings and fused Adam for the network.

    Returns:
        Samples per second.
    """
    dense = torch.optim.Adam(model.network.parameters(), lr=lr, fused=True)
    kind = torch.optim.SparseAdam if sparse else torch.optim.Adam
    table = kind(model.embedding.parameters(), lr=lr, **({} if sparse else {"fused": True}))
    begin, samples = perf_counter(), 0
    for ids, numbers, labels in DataLoader(data, batch_size=None, num_workers=1, prefetch_factor=8):
        for optimizer in (dense, table):
            optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(ids, numbers), labels).backward()
        for optimizer in (dense, table):
            optimizer.step()
        samples += len(labels)
    return samples / (perf_counter() - begin)
