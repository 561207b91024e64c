"""A run's points in TensorBoard."""

from pathlib import Path
from time import sleep, time
from typing import TYPE_CHECKING

from sparsegroup.errors import require
from sparsegroup.reporting.run_record import HistoryPoint, Summary
from sparsegroup.settings.declared import Settings
from sparsegroup.training.callbacks.figures import final_scalars, flat_settings, scalars
from sparsegroup.training.trainer import Callback, Trainer

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardCallback(Callback):
    """Writes the points of the history for TensorBoard, over the samples trained on: `progressive/auc` and so on.

    A run in a folder adds its settings as hyperparameters, with metrics such as `test/auc`. When training begins or is
    resumed, the whole history is written and replaces what the folder held: no point appears twice.

    Args:
        folder: For the event files of one run; made when training begins.

    Raises:
        MissingExtraError: The extra `tensorboard` is not installed.

    Examples:
        >>> from sparsegroup.training import TensorBoardCallback
        >>> callback = TensorBoardCallback("runs/mine/tensorboard")  # doctest: +SKIP
        >>> trainer = Trainer(table, network, optimizer, callbacks=[callback])  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path) -> None:
        require("tensorboard", type(self).__name__)
        self.folder = Path(folder)
        self._settings: dict[str, str | int | float | bool] = {}
        self._writer: SummaryWriter | None = None
        self._samples = -1

    def on_run_begin(self, folder: Path, config: Settings) -> None:
        self._settings = flat_settings(config)

    def on_begin(self, trainer: Trainer) -> None:
        _await_later_second(self.folder)
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.folder), purge_step=0)
        for point in trainer.history:
            self.on_point(trainer, point)

    def on_point(self, trainer: Trainer, point: HistoryPoint) -> None:
        if self._writer is None or point.samples <= self._samples:
            return
        when = time() - (trainer.seconds - point.seconds)
        for name, value in scalars(point).items():
            self._writer.add_scalar(f"progressive/{name}", value, point.samples, walltime=when)
        self._writer.flush()
        self._samples = point.samples

    def on_end(self, trainer: Trainer) -> None:
        if self._writer is not None:
            self._writer.close()  # opens another file if there is more to write

    def on_run_end(self, folder: Path, summary: Summary | None) -> None:
        if self._writer is not None and summary is not None:
            _await_later_second(self.folder)
            metrics = final_scalars(summary)
            self._writer.add_hparams(self._settings, metrics, run_name=".", global_step=summary.samples)
            self._writer.close()


def _await_later_second(folder: Path) -> None:
    """Wait until a new event file's name sorts behind all that `folder` holds: at most a second.

    TensorBoard reads the files in the order of their names, `events.out.tfevents.SECONDS.HOST.PROCESS.NUMBER`, the
    last two as text, and a purge at the beginning of one removes all that was read before it.
    """
    seconds = [path.name.split(".")[3] for path in folder.glob("events.out.tfevents.*")]
    latest = max((int(second) for second in seconds if second.isdigit()), default=0)
    if latest - time() > 60:
        return  # from a clock that was ahead: nothing to wait for
    while int(time()) <= latest:
        sleep(0.01)
