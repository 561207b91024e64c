"""What `sparsegroup train` does."""

import logging
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from math import isnan, nan
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from sparsegroup.artifact.manifest import verified_chain
from sparsegroup.checkpoint import CheckpointError
from sparsegroup.checkpoint.manifest import CHECKPOINT
from sparsegroup.cli.app import UsageError, in_shell
from sparsegroup.cli.output import show
from sparsegroup.cli.progress import training_bar
from sparsegroup.cli.run_settings import log_name, open_config_log, setting_values, settings_file
from sparsegroup.cli.torchrun import Launch
from sparsegroup.data.log import Log
from sparsegroup.data.open import is_prepared
from sparsegroup.errors import UserError
from sparsegroup.reporting.formatting import duration, size
from sparsegroup.reporting.run_record import Metrics
from sparsegroup.settings.yaml_settings import checked, with_values
from sparsegroup.training import Callback, Config, RunError, RunStoppedError, Session, Summary, Trainer, load_run
from sparsegroup.training.callbacks.tracking import check_tracking
from sparsegroup.training.config import read_config
from sparsegroup.training.run_files import (
    CONFIG,
    FINISHED,
    RUN,
    SUMMARY,
    UNFINISHED,
    find_run,
    new_run_folder,
    point_latest,
    without_latest,
)
from sparsegroup.training.run_folder import (
    REPORT,
    config_of,
    is_free,
    last_checkpoint,
    lock_run,
    replace_run,
    run_beginning,
)

_logger = logging.getLogger(__name__)

_KEPT_SETTINGS = (
    "model.name",
    "model.dim",
    "model.dims",
    "model.hidden",
    "model.dropout",
    "model.fallback",
    "model.number_buckets",
    "model.standardize",
    "model.attention",
    "model.options",
    "training.seed",
)
"""What `--continue` cannot change."""


def train_run(
    log: Sequence[str] | None,
    settings: Mapping[str, Any],
    assignments: Sequence[str],
    out: Path | None,
    before: Path | None,
    *,
    overwrite: bool,
    threads: int,
    launch: Launch,
) -> None:
    """Train from the start, or with the weights of the run `before`; a job that torchrun has restarted resumes its run.

    Args:
        log: The log's paths, or a YAML file of settings that names one; None is a synthetic log.
        settings: Short name → value, of those that were given as options.
        assignments: `key=value` each, which come last.
        out, before, overwrite, threads, launch: The command's options, and how it was started.
    """
    with ExitStack() as unless_begun:

        def start() -> _RunPlan:
            values = setting_values(log, settings, assignments)
            return _plan_run(settings_file(log), values, out, before, unless_begun, overwrite, threads, launch)

        _execute(launch.ranks.broadcast_result(start, "the run that is begun"), launch, unless_begun)


def resume_run(folder: Path, threads: int, launch: Launch) -> None:
    """Complete a run that was cut off; of a folder of runs, the latest."""
    _execute(
        launch.ranks.broadcast_result(lambda: _plan_to_resume(find_run(folder), threads), "the run that is resumed"),
        launch,
    )


@dataclass(frozen=True)
class _RunPlan:
    """What is to be done with a run, on all ranks alike.

    Attributes:
        folder: Where it is to be in the end.
        place: Where it is trained.
        log: What on; None for one that is complete.
        config: The settings, of one that begins.
        before: The run that it goes on with.
        is_resumed: Whether it has begun before.
        is_named: Whether its folder is one of runs, named by the time.
    """

    folder: Path
    place: Path
    log: Log | None = None
    config: Config | None = None
    before: Path | None = None
    is_resumed: bool = False
    is_named: bool = False


def _execute(start: _RunPlan, launch: Launch, unless_begun: ExitStack | None = None) -> None:
    group = launch.process_group
    if start.log is None:
        if start.place != start.folder and not launch.ranks.rank:
            replace_run(start.place, start.folder)
        show(_figures(RUN.read(start.folder).summary, start.folder), f"{start.folder}: the run is complete")
        return
    if start.is_resumed:
        session = Session.resume(start.place, start.log, group)
    else:
        assert start.config is not None
        run = None if start.before is None else load_run(start.before, start.config, group)
        session = Session.begin(start.place, start.config, start.log, run, group, job=launch.job)
    if unless_begun is not None:
        unless_begun.pop_all()
    if start.is_named and not launch.ranks.rank:
        point_latest(start.folder)
    _log_summary(session, start.folder)
    _train(session, start.folder)


def _plan_run(
    settings: Path | None,
    values: dict[str, Any],
    out: Path | None,
    before: Path | None,
    unless_begun: ExitStack,
    overwrite: bool,
    threads: int,
    launch: Launch,
) -> _RunPlan:
    """How a run is to begin; `unless_begun` removes folders that were made for it."""
    if overwrite and out is None:
        raise UsageError("--overwrite needs --out: without it, each run gets a folder of its own, named by the time")
    before = None if before is None else find_run(before)
    if before is None:
        config = read_config(settings, values, "the command line")
    elif settings is not None:
        raise UsageError("--continue takes its settings from the run; give it a log, and change settings with --set")
    else:
        config = _continued_config(config_of(before), values)
    check_tracking(config.tracking)
    parent, out = Path("runs") / log_name(config), None if out is None else without_latest(out)
    if launch.is_restarted and (begun := _run_of_job(launch.job, parent if out is None else out)) is not None:
        return _plan_to_resume(begun, threads)
    if out is not None:
        return _plan_in(out, config, before, overwrite, threads)
    data = open_config_log(config, threads, as_before=before is not None)
    folder = unless_begun.enter_context(new_run_folder(parent))
    return _RunPlan(folder, folder, data, config, before, is_named=True)


def _plan_in(folder: Path, config: Config, before: Path | None, overwrite: bool, threads: int) -> _RunPlan:
    """How to begin in a folder that was asked for; a run that is to be replaced stays until the new one is complete."""
    if before is not None and os.path.realpath(folder) == os.path.realpath(before):
        raise UsageError(f"{folder} is the run to continue; give another --out, or use --resume if the run was cut off")
    taken = not is_free(folder)
    again = in_shell("train", "--resume", folder)
    if taken and (folder / FINISHED).is_dir():
        raise UsageError(f"{folder} holds a run that was cut off; {again} completes it")
    if taken and overwrite and not (folder / CONFIG).is_file():
        raise UsageError(f"{folder} holds no run to overwrite; give another --out")
    if taken and not overwrite:
        whole = (folder / SUMMARY).is_file() or not (folder / CONFIG).is_file()
        hint = "" if whole else f", or complete the run that was cut off with {again}"
        raise UsageError(f"{folder} is not empty; give another --out, or --overwrite{hint}")
    data = open_config_log(config, threads, as_before=before is not None)
    if taken:
        if (folder / UNFINISHED).is_dir():
            lock_run(folder / UNFINISHED).close()
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    return _RunPlan(folder, folder / UNFINISHED if taken else folder, data, config, before)


def _plan_to_resume(folder: Path, threads: int) -> _RunPlan:
    place = _place_of(folder)
    if place.name == FINISHED or _is_complete(place):
        return _RunPlan(folder, place)
    config, _ = run_beginning(place)
    check_tracking(config.tracking)
    return _RunPlan(folder, place, open_config_log(config, threads, as_before=True), is_resumed=True)


def _run_of_job(job: str | None, place: Path) -> Path | None:
    """The run that a job began before torchrun restarted it, in a folder or in a folder of runs; None if it had not."""
    inside = [folder for folder in place.glob("*/") if not folder.is_symlink()]  # `latest` leads to other runs later
    for folder in [place, *inside]:
        with suppress(UserError):  # another run that cannot be read
            if run_beginning(_place_of(folder))[1].job == job:
                return folder
    return None


def _place_of(folder: Path) -> Path:
    """Where the run is that was begun last in a folder: one that is to replace another lies in it."""
    if (folder / FINISHED).is_dir():
        return folder / FINISHED
    return folder / UNFINISHED if (folder / UNFINISHED / CONFIG).is_file() else folder


def _is_complete(folder: Path) -> bool:
    """Whether a run came to its end, and the model it ended with is still good; if not, it can be trained again."""
    if not (folder / SUMMARY).is_file():
        return False
    try:
        verified_chain(last_checkpoint(folder), CHECKPOINT)
    except (CheckpointError, RunError):
        return False
    return True


def _continued_config(before: Config, values: dict[str, Any]) -> Config:
    """The config of a run with other values, which must not change what it has learnt."""
    # The next log has its own test set, or none.
    log = values.get("data.log")
    if log is None:
        raise UsageError("--continue needs the log to train on next")
    content = before.as_dict()
    if values.get("model.name") == "auto":
        values = {key: value for key, value in values.items() if key != "model.name"}
    if is_prepared(log):  # the other log's format says nothing of a prepared one
        content["data"] = {}
    if {"data.schema", "data.dataset"} & values.keys():  # they say all of the format
        content["data"]["columns"] = None
    if values.get("optimizer.name", before.optimizer.name) != before.optimizer.name:  # whose rates these were
        values = {"optimizer.lr": None, "optimizer.network_lr": None, **values}
    content = with_values(content, {"data.test": None, **values})
    content["decided"] = [key for key in before.decided if key not in values]
    config = checked(Config, content, "the command line")
    for key in _KEPT_SETTINGS:
        section, name = key.split(".")
        ours, theirs = (getattr(getattr(one, section), name) for one in (before, config))
        if ours != theirs:
            raise UsageError(f"{key} cannot change to {theirs}: the run to continue has {ours}")
    return config


def _log_summary(session: Session, folder: Path) -> None:
    data = session.log
    plan = session.plan
    held_out = f" {plan.validation_rows:,} validation" if plan.validation_rows else ""
    parts = [
        f"{plan.rows:,} training{',' if held_out else ''}{held_out} and {len(data) - data.train_rows:,} test rows",
        f"{len(data.fields)} fields",
    ]
    if data.numbers:
        parts.append(f"{len(data.numbers)} numbers")
    if data.weighted:
        parts.append("weighted rows")
    if data.features is not None:
        parts.append(f"{data.features:,} features")
    if buffer := session.config.training.shuffle_buffer:
        parts.append("shuffled" if buffer >= plan.rows else f"shuffled in blocks of {buffer:,} rows")
    if plan.epochs > 1:
        parts.append(f"{plan.epochs} epochs")
    if earlier := session.trainer.samples - session.position:
        parts.append(f"continuing after {earlier:,} samples")
    _logger.info(f"{data.name}: {', '.join(parts)}; writing to {folder}")


class _Interruption(Callback):
    """Stops the training behind the batch under way on SIGINT or SIGTERM, so that it is saved.

    A second SIGINT, or one while nothing is trained, is a `KeyboardInterrupt`. A SIGTERM behind another signal is of no
    effect: torchrun sends one to its processes after their SIGINT.

    Attributes:
        signal: The first signal; None before.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._trainer: Trainer | None = None

    def on_begin(self, trainer: Trainer) -> None:
        """See `Callback`."""
        self._trainer = trainer

    def on_end(self, trainer: Trainer) -> None:
        """See `Callback`."""
        self._trainer = None

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle signals here meanwhile, except those that the process ignores, as one in a shell's background does."""
        before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
            before = {number: one for number, one in handlers.items() if one not in (signal.SIG_IGN, None)}
        for number in before:
            signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        if self.signal is None and self._trainer is not None:
            self.signal = number
            self._trainer.stop()
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        elif self.signal is None:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


def _train(session: Session, folder: Path) -> None:
    """Train to the end, and let the run take its place in `folder`."""
    config, interruption = session.config, _Interruption()
    left = session.plan.samples - session.position
    try:
        with (
            interruption.handled(),
            training_bar(left, f"{config.model.name.upper()}, {config.optimizer.name}") as (on_batch, on_progress),
        ):
            summary = session.train(on_batch=on_batch, on_progress=on_progress, callbacks=[interruption])
    except (RunStoppedError, KeyboardInterrupt) as error:
        saved = session.checkpoints.paths()
        at = f" at row {session.position:,} of {session.plan.samples:,}" if isinstance(error, RunStoppedError) else ""
        what = f"the last checkpoint is {saved[-1]}" if saved else "there is no checkpoint yet"
        _logger.warning(f"interrupted{at}; {what}; continue with {in_shell('train', '--resume', folder)}")
        raise typer.Exit(128 + (interruption.signal or signal.SIGINT)) from error
    if session.folder != folder:
        session.ranks.on_rank_0(lambda: replace_run(session.folder, folder), "the run's place")
    show(_figures(summary, folder), _outcome(summary, folder))


def _figures(summary: Summary, folder: Path) -> dict[str, Any]:
    """What `--json` says of a run."""
    nothing = Metrics(nan, nan, nan, nan)
    measured = {
        "test": summary.test or nothing,
        "baseline": summary.baseline or nothing,
        "validation": summary.validation or nothing,
    }
    names = (
        "epochs",
        "best_epoch",
        "validation_rows",
        "feature_rate",
        "live_rows",
        "features_seen",
        "table_bytes",
        "evicted_rows",
        "refused_rows",
    )
    return {
        "folder": str(folder),
        "report": str(folder / REPORT),
        "log": summary.log,
        "samples": summary.samples,
        "seconds": summary.seconds,
        "test_rows": summary.test_rows,
        **{f"{of}_{name}": value for of, metrics in measured.items() for name, value in asdict(metrics).items()},
        **{name: getattr(summary, name) for name in names},
        "bad_rows": sum(summary.bad_rows.values()),
        "warnings": "\n".join(summary.warnings) or None,
    }


def _outcome(summary: Summary, folder: Path) -> Table:
    table = Table(show_header=False, box=None)
    if summary.epochs > 1:
        best = "" if summary.best_epoch is None else f"  (the best, epoch {summary.best_epoch}, is kept)"
        table.add_row("epochs", f"{summary.epochs}{best}")
    if summary.validation is not None:
        of = summary.validation
        table.add_row("validation", f"AUC {of.auc:.4f}, log loss {of.log_loss:.4f}")
    if (test := summary.test) is not None:

        def beside(name: str) -> str:
            return "" if summary.baseline is None else f"  (baseline {getattr(summary.baseline, name):.4f})"

        only_one_class = isnan(test.auc)
        table.add_row("test AUC", "– (one class only)" if only_one_class else f"{test.auc:.4f}{beside('auc')}")
        table.add_row("test log loss", f"{test.log_loss:.4f}{beside('log_loss')}")
        if not only_one_class:
            table.add_row("norm. entropy", f"{test.normalized_entropy:.4f}{beside('normalized_entropy')}")
            told = beside("calibration") or "  (predicted over actual positives)"
            table.add_row("calibration", f"{test.calibration:.4f}{told}")
    rate = f"{summary.feature_rate:.4f}  ({summary.live_rows:,} of {summary.features_seen:,} features)"
    table.add_row("feature rate", rate)
    if summary.evicted_rows or summary.refused_rows:
        table.add_row(
            "evicted", f"{summary.evicted_rows:,} rows; {summary.refused_rows:,} times there was no room for a new one"
        )
    for number, rank in enumerate(summary.ranks):
        sent, waited = size(rank.sent), duration(rank.waited)
        table.add_row(
            f"rank {number}", f"{rank.rows:,} samples, {rank.features:,} features, {sent} sent, {waited} waiting"
        )
    table.add_row("written to", str(folder))
    table.add_row("report", str(folder / REPORT))
    return table
