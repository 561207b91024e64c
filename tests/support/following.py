"""A callback made of functions, for tests."""

from collections.abc import Callable
from typing import Any

import pytest

from sparsegroup.training import Callback, TrainedBatch, Trainer


class CutOffError(Exception):
    """Stands for the process's end."""


class Each(Callback):
    """Calls what it is given with the trainer: after each batch, and between two epochs.

    `batch` comes before the point that a batch may end, `rest` after it.
    """

    def __init__(
        self,
        *,
        batch: Callable[[Trainer], object] | None = None,
        rest: Callable[[Trainer], object] | None = None,
        epoch: Callable[[Trainer], object] | None = None,
    ) -> None:
        self._batch, self._rest, self._epoch = batch, rest, epoch

    def on_batch(self, trainer: Trainer, trained: TrainedBatch) -> None:
        if self._batch is not None:
            self._batch(trainer)

    def between_batches(self, trainer: Trainer) -> None:
        follows = self._rest if trainer.progress.steps else self._epoch
        if follows is not None:
            follows(trainer)


class CutOff(Callback):
    """Lets the batch of a number, from 1, be the last thing that a process does."""

    def __init__(self, at: int) -> None:
        self._left = at

    def on_batch(self, trainer: Trainer, trained: TrainedBatch) -> None:
        self._left -= 1
        if not self._left:
            raise CutOffError


def cut_off_at(patch: pytest.MonkeyPatch, owner: Any, name: str, at: int = 1, *, after: bool = False) -> None:
    """Let the at-th call of a function of `owner`, or its end, be the last thing that a process does."""
    real: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def last(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at and not after:
            raise CutOffError
        result = real(*arguments, **keywords)
        if calls == at:
            raise CutOffError
        return result

    patch.setattr(owner, name, last)
