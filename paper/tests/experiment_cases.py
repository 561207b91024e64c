"""A tiny data set for the experiments, and what they do written out plainly."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from sparsegroup.data import Batch, Log, MemoryLog, SyntheticConfig, synthetic_log
from sparsegroup.training import Config, Trainer, predict
from sparsegroup_paper.datasets import PLAIN, Dataset
from sparsegroup_paper.runs import Outcome

BASE = Config.of(**PLAIN | {"model": "dcn", "dim": 4, "hidden": [8], "batch_size": 135, "lr": 1e-2})
"""Whole batches make up the 2,700 training rows of the tiny log, and nine tenths of them."""


def tiny_log(rows=3_000, seed=1) -> MemoryLog:
    return synthetic_log(SyntheticConfig(rows=rows, cardinalities=(10, 50, 300), informative=0.4), seed=seed)


def click_log(path, rows=2_000):
    """A raw log in CSV whose label is a function of `color`."""
    lines = ["label,id,ts,color,size"]
    lines += [f"{int(i % 7 in (1, 3))},{i},{i},c{i % 7},{i * 2654435761 % 97}" for i in range(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


class Done(NamedTuple):
    """A command that ended."""

    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


@dataclass(frozen=True)
class InMemory(Dataset):
    """A data set that is a log at hand; for one process."""

    log: Log | None = None

    def open(self):
        return self.log


def dataset_of(log, config=BASE):
    return InMemory("tiny", None, len(log), config, log)


@dataclass
class OneBatchLog(Log):
    """A log of all that a batch may hold."""

    batch: Batch
    train_rows: int
    fields: tuple[str, ...]
    lists: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    name: str = "batch"

    def __len__(self):
        return len(self.batch)

    def batches(self, start, stop, size):
        for begin in range(start, stop, size):
            yield self.batch[begin : min(begin + size, stop)]


def trained(log, config, seed=0, train_rows=None):
    """Plain training: metrics on the rows after those trained on, and the model."""
    model, optimizer = config.replace(seed=seed).build(log)
    stop, end = (log.train_rows, len(log)) if train_rows is None else (train_rows, log.train_rows)
    size = config.training.batch_size
    target = config.optimizer.target(optimizer, -(-stop // size))
    Trainer(model.embedding, model.network, optimizer, target=target).fit(log.batches(0, stop, size))
    return predict(model, log.batches(stop, end, 4096)).metrics(), model


def counted(log, rows):
    return Counter(log.keys[:rows].flatten().tolist())


def pruned_by_hand(log, config, keep, share, stop, end):
    """Train on the first whole batches, prune, train on the others, prune.

    Returns:
        AUC on rows `stop` to `end`, live rows, and the model.
    """
    model, optimizer = config.build(log)
    size = config.training.batch_size
    first = stop if share == 0 else round((1 - share) * stop / size) * size
    for begin, until in ((0, first), (first, stop)):
        if begin < until:
            Trainer(model.embedding, model.network, optimizer, window=100 * size).fit(log.batches(begin, until, size))
            keep_largest(model, round(keep * model.embedding.num_seen))
    return predict(model, log.batches(stop, end, 4096)).metrics().auc, model.embedding.num_live, model


def vectors_of(model):
    """Key → vector of the live rows."""
    parts = (zip(keys.tolist(), vectors, strict=True) for keys, vectors in model.embedding.items())
    return {key: vector for part in parts for key, vector in part}


def keep_largest(model, count):
    rows = sorted((-float(torch.linalg.vector_norm(vector)), key) for key, vector in vectors_of(model).items())
    dropped = torch.tensor([key for _, key in rows[count:]], dtype=torch.int64)
    model.embedding.assign(dropped, torch.zeros(len(dropped), model.embedding.dim))


def parts_of(model):
    """Key → vector of the live rows, and name → values of the network's parameters."""
    vectors = {key: tuple(vector.tolist()) for key, vector in vectors_of(model).items()}
    return vectors, {name: tuple(p.detach().flatten().tolist()) for name, p in model.network.named_parameters()}


def outcome(auc=0.7, rate=0.1, **others: Any) -> Outcome:
    values: dict[str, Any] = {
        "log_loss": 0.5,
        "parameter_rate": rate,
        "live": round(1000 * rate),
        "seen": 1000,
        "seconds": 1.0,
        "resampled": np.full(8, auc, np.float32),
    }
    return Outcome(auc, feature_rate=rate, **(values | others))


def records(table):
    """Each row by the columns' names."""
    names = [column.name for column in table.columns]
    assert len(set(names)) == len(names)
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def result_of(worker, run) -> Outcome:
    ((same, result),) = worker.carry_out([run])
    assert same == run
    return result


def assert_same(ours, theirs):
    """Equal but for the time it took."""
    for name, value in vars(replace(theirs, seconds=ours.seconds)).items():
        np.testing.assert_array_equal(getattr(ours, name), value, err_msg=name)


def assert_all_same(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        for outcome_of_one, outcome_of_other in zip(one.outcomes, other.outcomes, strict=True):
            assert_same(outcome_of_one, outcome_of_other)
