"""The state after the best epoch, in a folder that goes when the training is over."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from sparsegroup.artifact.folder import remove_folder
from sparsegroup.checkpoint import load_checkpoint, save_checkpoint
from sparsegroup.optim import SizeTarget


class TemporaryBest:
    """A `BestState` in the system's temporary folder: on disk, so that memory holds one model. To be entered.

    Args:
        model: With its tables.
        optimizers: Those of its parameters.
        scheduler: What sets the learning rate, or None.
        target: What sets λ21, or None.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        scheduler: LRScheduler | None,
        target: SizeTarget | None,
    ) -> None:
        self._model, self._optimizers, self._scheduler, self._target = model, optimizers, scheduler, target
        self._count = 0
        self._kept: Path | None = None

    def __enter__(self) -> Self:
        self._folder = TemporaryDirectory(prefix="sparsegroup-best-")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def keep(self) -> None:
        """See `BestState`.

        Raises:
            CheckpointError, OSError: It cannot be written; the one before stays.
        """
        before, self._count = self._kept, self._count + 1
        place = Path(self._folder.name) / str(self._count)
        target = None if self._target is None else self._target.state_dict()
        save_checkpoint(place, self._model, self._optimizers, self._scheduler, extra=target)
        self._kept = place
        if before is not None:
            remove_folder(before)

    def restore(self) -> None:
        """See `BestState`; random numbers go on from where they are.

        Raises:
            CheckpointError: It cannot be read.
        """
        assert self._kept is not None
        loaded = load_checkpoint(self._kept, self._model, self._optimizers, self._scheduler, rng=False)
        if self._target is not None:
            self._target.load_state_dict(loaded.extra)
