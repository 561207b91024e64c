"""What an export is tested on: rows of a log, or made up ones; and what came of it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sparsegroup.data.batches import Bags, Batch
from sparsegroup.data.log import Log
from sparsegroup.data.open import open_log
from sparsegroup.data.raw.file_listing import LogPaths, is_same, shown
from sparsegroup.data.schema import LogSchema
from sparsegroup.serving.frozen import ExportError
from sparsegroup.serving.manifest import PathScores
from sparsegroup.training import Config
from sparsegroup.training.checks import check_logits, numbers_named
from sparsegroup.training.evaluation import EVALUATED
from sparsegroup.training.metrics import evaluate

Scorer = Callable[[Batch], npt.NDArray[np.floating]]
TOLERANCE = 1e-5
"""How far two ways to compute the same probability may be apart."""


@dataclass(frozen=True)
class TestRows:
    """Rows `start` to `stop` of a log."""

    __test__ = False  # no test of pytest's

    log: Log
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def batches(self) -> Iterator[Batch]:
        """The rows, in order."""
        yield from self.log.batches(self.start, self.stop, EVALUATED)


def open_test_rows(
    path: LogPaths, config: Config, threads: int = 1, on_progress: Callable[[int, int | None], None] | None = None
) -> TestRows:
    """The test rows of a log, read in the format of the log that a model was trained on.

    The model's own log, and a prepared one, give the rows that training left for the test, if it left any; any other
    log is a test set as a whole.

    Args:
        path: A raw log, or a folder that `prepare` has written, see `open_log`.
        config: The model's settings.
        threads, on_progress: How to read a raw log, see `RawLog`.

    Raises:
        ClickLogError, OSError: It cannot be read.
        ExportError: It has no labels.
        LogOptionError: The settings do not go with it.
    """
    data = config.data
    own = data.log is not None and is_same(path, data.log)
    log = open_log(
        path,
        data.test if own else None,
        sort_files=data.sort_files if own else "name",
        like=data.format_options,
        whole=not own,
        on_bad_row=data.on_bad_row,
        max_bad=data.max_bad,
        threads=threads,
        on_progress=on_progress,
    )
    if not log.labelled:
        raise ExportError(f"{shown(path)}: has no labels, which a test set needs")
    return TestRows(log, log.train_rows if log.train_rows < len(log) else 0, len(log))


class RandomRows:
    """Rows to compare models on where there is no log: of the embeddings' keys and as many absent ones."""

    def __init__(self, keys: Tensor, columns: LogSchema, rows: int = 512) -> None:
        self._columns, self._rows = columns, rows
        self._generator = torch.Generator().manual_seed(0)
        self._keys = keys

    def __len__(self) -> int:
        return self._rows

    def batches(self) -> Iterator[Batch]:
        """All of them, and the first alone."""
        columns, rows, generator = self._columns, self._rows, self._generator
        bags = []
        for _ in columns.lists:
            offsets = torch.zeros(rows + 1, dtype=torch.int64)
            offsets[1:] = torch.randint(0, 4, (rows,), generator=generator).cumsum(0)
            bags.append(Bags(self._some_keys(int(offsets[-1])), offsets))
        batch = Batch(
            self._some_keys(rows, len(columns.fields) - len(columns.lists)),
            torch.randn(rows, len(columns.numbers), generator=generator),
            torch.zeros(rows),
            torch.zeros(rows, dtype=torch.int64),
            bags=tuple(bags),
        )
        yield batch
        yield batch[:1]

    def _some_keys(self, *shape: int) -> Tensor:
        absent = torch.randint(-(1 << 63), (1 << 63) - 1, shape, generator=self._generator)
        if not len(self._keys):
            return absent
        present = self._keys[torch.randint(0, len(self._keys), shape, generator=self._generator)]
        return torch.where(torch.rand(shape, generator=self._generator) < 0.5, present, absent)


def compare(rows: TestRows | RandomRows, scorers: Mapping[str, Scorer], model: nn.Module) -> Mapping[str, PathScores]:
    """What each of several models gives on the same rows; differences are to the one named "export"."""
    gaps = dict.fromkeys(scorers, 0.0)
    probabilities: dict[str, list[npt.NDArray[np.float64]]] = {name: [] for name in scorers}
    labels, weights = [], []
    for batch in rows.batches():
        labels.append(batch.labels.numpy())
        if batch.weights is not None:
            weights.append(batch.weights.numpy())
        for name, score in scorers.items():
            scored = score(batch).astype(np.float64)
            probabilities[name].append(scored)
            if np.isnan(scored).any():
                if isinstance(rows, TestRows):  # a number that the model needs is missing in the log: that is named
                    with numbers_named(rows.log, rows.start), suppress(FloatingPointError):
                        check_logits(model, batch, torch.from_numpy(scored), sum(map(len, labels[:-1])))
                raise ExportError(f"{name} gives a probability that is no number in the rows of the test")
        for name in scorers:
            gap = np.abs(probabilities[name][-1] - probabilities["export"][-1])
            gaps[name] = max(gaps[name], float(gap.max(initial=0.0)))
    if not labels:
        raise ExportError("the test log has no rows")
    every = np.concatenate(labels)
    counts = np.concatenate(weights) if weights else None
    found = {}
    for name, parts in probabilities.items():
        metrics = evaluate(every, np.concatenate(parts), counts)
        found[name] = PathScores(auc=metrics.auc, log_loss=metrics.log_loss, max_abs_difference=gaps[name])
    return found


def check_agreement(scores: Mapping[str, PathScores], exact: bool) -> None:
    """Whether the files compute what PyTorch does, and in float32 what the trained model does."""
    for name, score in scores.items():
        if (name != "training" or exact) and not score.max_abs_difference <= TOLERANCE:
            raise ExportError(
                f"{name} and the export in PyTorch differ by {score.max_abs_difference:.3g}, more than {TOLERANCE:g}; "
                "please report it"
            )
