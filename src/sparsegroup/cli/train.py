"""`sparsegroup train`: a run is begun, continued on the next log, or resumed, and its figures are shown."""

import logging
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sparsegroup.cli.app import THREADS, Threads, UsageError, in_shell, starting, use_threads
from sparsegroup.cli.options import OPTIONS, Assignments, LogOrConfig, takes_settings
from sparsegroup.cli.output import show
from sparsegroup.errors import UserError

if TYPE_CHECKING:
    from sparsegroup.cli.launch import Launch
    from sparsegroup.data import Log
    from sparsegroup.training import Config, Session, Summary
    from sparsegroup.training.run_folder import RunFolder

_logger = logging.getLogger(__name__)


@takes_settings(*OPTIONS)
def train_command(
    log: LogOrConfig = None,
    set_: Assignments = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the run; default runs/<name of the log>/<time>.", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that --out holds.")] = False,
    continue_: Annotated[
        Path | None,
        typer.Option(
            "--continue",
            metavar="RUN",
            help="Train a finished run further, on this log: the next day's, say.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume", metavar="RUN", help="Complete an interrupted run, with the same result.", show_default=False
        ),
    ] = None,
    *,
    settings: Mapping[str, Any],
    threads: Threads = THREADS,
    rank_timeout: Annotated[
        float,
        typer.Option(
            min=0.05, help="Started by torchrun on several ranks: minutes to wait for one that does not come."
        ),
    ] = 10.0,
) -> None:
    """Train on a click log, in one pass or several, and report AUC, log loss and feature rate on its last part.

    Settings come from the YAML file, if one is given, then from the options, then from --set.
    """
    with starting():
        from sparsegroup.cli.launch import launched

    use_threads(threads)
    if resume is not None:
        own = {"log": log, "set": set_, "out": out, "overwrite": overwrite, "continue": continue_}
        given = [name for name, value in own.items() if value not in (None, False)] + [*settings]
        if given:
            raise UsageError(
                f"--resume takes everything from the run, and no {', '.join(given).replace('_', '-')}; to change "
                "settings, use --continue once the run is complete"
            )
    with launched(rank_timeout) as launch, ExitStack() as until_begun:

        def plan() -> _Plan:
            if resume is not None:
                return _plan_to_resume(resume, threads)
            given = _Given(log, settings, set_ or [], out, continue_, overwrite, threads)
            return _plan_to_begin(given, launch, until_begun)

        _carry_out(launch.ranks.broadcast_result(plan, "the run"), launch, until_begun)


@dataclass(frozen=True)
class _Given:
    """The command's options for a run that begins."""

    log: Sequence[str] | None
    settings: Mapping[str, Any]
    assignments: Sequence[str]
    out: Path | None
    before: Path | None
    overwrite: bool
    threads: int


@dataclass(frozen=True)
class _Plan:
    """What to do with a run, the same on all ranks.

    Attributes:
        run: Its folder.
        log: The log; None if the run is complete.
        config: The settings of a run that begins; None if it is resumed.
        before: The run that it continues.
        is_latest: Whether the link `latest` is to point to it.
    """

    run: "RunFolder"
    log: "Log | None" = None
    config: "Config | None" = None
    before: Path | None = None
    is_latest: bool = False


def _plan_to_begin(given: _Given, launch: "Launch", until_begun: ExitStack) -> _Plan:
    """How a run begins; `until_begun` removes the folders that are made for it."""
    from sparsegroup.cli.run_settings import log_name, open_config_log, setting_values, settings_file
    from sparsegroup.training.build import read_config
    from sparsegroup.training.callbacks import check_tracking
    from sparsegroup.training.run_folder import RunFolder, find_run, new_run_folder, without_latest

    values, file = setting_values(given.log, given.settings, given.assignments), settings_file(given.log)
    if given.overwrite and given.out is None:
        raise UsageError("--overwrite needs --out: without it, each run gets a folder of its own, named by the time")
    before = None if given.before is None else find_run(given.before)
    if before is None:
        config = read_config(file, values, "the command line")
    elif file is not None:
        raise UsageError("--continue takes its settings from the run; give it a log, and change settings with --set")
    else:
        config = _continued_config(RunFolder(before).finished_config(), values)
    check_tracking(config.tracking)
    parent, out = Path("runs") / log_name(config), None if given.out is None else without_latest(given.out)
    if launch.is_restarted:
        folders = sorted(path for path in parent.glob("[!.]*/") if not path.is_symlink()) if out is None else [out]
        if (begun := _run_of_job(launch.job, folders)) is not None:
            return _plan_to_resume(begun, given.threads)
    run = None if out is None else _folder_for(out, before, overwrite=given.overwrite)
    data = open_config_log(config, given.threads, as_before=before is not None)
    if run is None:
        run = RunFolder(until_begun.enter_context(new_run_folder(parent)))
    elif run.replaces is not None:
        run.clear()
    return _Plan(run, data, config, before, is_latest=out is None)


def _folder_for(out: Path, before: Path | None, *, overwrite: bool) -> "RunFolder":
    """The folder of a run that begins in `out`, or that is to replace the one in `out`."""
    from sparsegroup.training.run_folder import SUMMARY, RunFolder

    if before is not None and os.path.realpath(out) == os.path.realpath(before):
        raise UsageError(f"{out} is the run to continue; give another --out, or use --resume if the run was cut off")
    run, new, again = RunFolder(out), RunFolder.replacing(out), in_shell("train", "--resume", out)
    if new.is_complete and not run.has_begun:  # killed while it took the place of another
        raise UsageError(f"{out} holds a run that was cut off; {again} completes it")
    if run.is_free:
        return run
    if not overwrite:
        is_cut_off = run.has_begun and not (out / SUMMARY).is_file()
        hint = f", or complete the run that was cut off with {again}" if is_cut_off else ""
        raise UsageError(f"{out} is not empty; give another --out, or --overwrite{hint}")
    if not run.has_begun:
        raise UsageError(f"{out} holds no run to overwrite; give another --out")
    if os.path.ismount(out) or Path.cwd().is_relative_to(out.resolve()):
        raise UsageError(f"{out} cannot be replaced: it is a mount or the current folder; give a folder inside it")
    return new


def _run_of_job(job: str | None, folders: Iterable[Path]) -> Path | None:
    """The folder of the run that a job began before torchrun restarted it; None if it had not."""
    from sparsegroup.training.run_folder import RunFolder

    for folder in folders:
        with suppress(UserError):  # another run that cannot be read
            if RunFolder.to_resume(folder).provenance().job == job:
                return folder
    return None


def _plan_to_resume(path: Path, threads: int) -> _Plan:
    from sparsegroup.cli.run_settings import open_config_log
    from sparsegroup.training.callbacks import check_tracking
    from sparsegroup.training.run_folder import RunFolder

    run = RunFolder.to_resume(path)
    if run.is_complete:
        return _Plan(run)
    config = run.config()
    check_tracking(config.tracking)
    return _Plan(run, open_config_log(config, threads, as_before=True))


_KEPT_SETTINGS = {
    "model": (
        *("name", "dim", "dims", "hidden", "dropout", "fallback", "number_buckets", "standardize", "attention"),
        "options",
    ),
    "training": ("seed",),
}
"""What `--continue` cannot change."""


def _continued_config(before: "Config", values: dict[str, Any]) -> "Config":
    """The config of a run with other values, which must not change what it has learnt."""
    from sparsegroup.data import is_prepared
    from sparsegroup.settings.yaml_settings import checked, with_values
    from sparsegroup.training import Config

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
    content["given"] = list(dict.fromkeys((*before.given_keys, *values)))
    config = checked(Config, content, "the command line")
    for section, names in _KEPT_SETTINGS.items():
        for name in names:
            ours, theirs = (getattr(getattr(one, section), name) for one in (before, config))
            if ours != theirs:
                raise UsageError(f"{section}.{name} cannot change to {theirs}: the run to continue has {ours}")
    return config


def _carry_out(plan: _Plan, launch: "Launch", until_begun: ExitStack) -> None:
    from sparsegroup.training import Session, load_run
    from sparsegroup.training.run_folder import point_latest

    run, group = plan.run, launch.process_group
    if plan.log is None:
        if not launch.ranks.rank:
            run.take_place()
        show(_figures(type(run)(run.place).summary(), run.place), f"{run.place}: the run is complete")
        return
    if plan.config is None:
        session = Session.resume(run.path, plan.log, group)
    else:
        before = None if plan.before is None else load_run(plan.before, plan.config, group)
        session = Session.begin(run.path, plan.config, plan.log, before, group, job=launch.job)
    until_begun.pop_all()
    if plan.is_latest and not launch.ranks.rank:
        point_latest(run.path)
    _logger.info(f"{_rows_in_words(session)}; writing to {run.place}")
    summary = _train(session, run.place)
    session.ranks.on_rank_0(run.take_place, "the run's place")
    show(_figures(summary, run.place), _outcome(summary, run.place))


def _rows_in_words(session: "Session") -> str:
    data, plan = session.log, session.plan
    held_out = f", {plan.validation_rows:,} validation" if plan.validation_rows else ""
    parts = [
        f"{plan.rows:,} training{held_out} and {len(data) - data.train_rows:,} test rows",
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
    return f"{data.name}: {', '.join(parts)}"


def _train(session: "Session", place: Path) -> "Summary":
    """Train to the end; an interruption ends the command with the status of its signal."""
    from sparsegroup.cli.launch import Interruption
    from sparsegroup.cli.progress import training_bar
    from sparsegroup.training import RunStoppedError

    config, interruption = session.config, Interruption()
    remaining = session.plan.samples - session.position
    try:
        with (
            interruption.handled(),
            training_bar(remaining, f"{config.model.name.upper()}, {config.optimizer.name}") as bar,
        ):
            return session.train(callbacks=[bar, interruption])
    except (RunStoppedError, KeyboardInterrupt) as error:
        saved = session.checkpoints.paths()
        at = f" at row {session.position:,} of {session.plan.samples:,}" if isinstance(error, RunStoppedError) else ""
        what = f"the last checkpoint is {saved[-1]}" if saved else "there is no checkpoint yet"
        _logger.warning(f"interrupted{at}; {what}; continue with {in_shell('train', '--resume', place)}")
        raise typer.Exit(128 + (interruption.signal or signal.SIGINT)) from error


_FIGURES = (
    *("epochs", "best_epoch", "validation_rows", "feature_rate", "live_rows", "features_seen", "table_bytes"),
    *("evicted_rows", "refused_rows"),
)


def _figures(summary: "Summary", folder: Path) -> dict[str, Any]:
    """The object of `--json`."""
    none = dict.fromkeys(("auc", "log_loss", "normalized_entropy", "calibration"), nan)
    measured = {"test": summary.test, "baseline": summary.baseline, "validation": summary.validation}
    return {
        "folder": str(folder),
        "report": str(folder / "report.html"),
        "log": summary.log,
        "samples": summary.samples,
        "seconds": summary.seconds,
        "test_rows": summary.test_rows,
        **{
            f"{of}_{name}": value
            for of, metrics in measured.items()
            for name, value in (none if metrics is None else asdict(metrics)).items()
        },
        **{name: getattr(summary, name) for name in _FIGURES},
        "bad_rows": sum(summary.bad_rows.values()),
        "warnings": "\n".join(summary.warnings) or None,
    }


def _outcome(summary: "Summary", folder: Path) -> Table:
    from sparsegroup.reporting.formatting import duration, size

    table = Table(show_header=False, box=None)
    if summary.epochs > 1:
        best = "" if summary.best_epoch is None else f"  (the best, epoch {summary.best_epoch}, is kept)"
        table.add_row("epochs", f"{summary.epochs}{best}")
    if (validation := summary.validation) is not None:
        table.add_row("validation", f"AUC {validation.auc:.4f}, log loss {validation.log_loss:.4f}")
    if (test := summary.test) is not None:
        rows = {"auc": "test AUC", "log_loss": "test log loss"}
        if isnan(test.auc):
            table.add_row(rows.pop("auc"), "– (one class only)")
        else:
            rows |= {"normalized_entropy": "norm. entropy", "calibration": "calibration"}
        for name, title in rows.items():
            note = "  (predicted over actual positives)" if name == "calibration" else ""
            if summary.baseline is not None:
                note = f"  (baseline {getattr(summary.baseline, name):.4f})"
            table.add_row(title, f"{getattr(test, name):.4f}{note}")
    rate = f"{summary.feature_rate:.4f}  ({summary.live_rows:,} of {summary.features_seen:,} features)"
    table.add_row("feature rate", rate)
    if summary.evicted_rows or summary.refused_rows:
        table.add_row(
            "evicted", f"{summary.evicted_rows:,} rows; {summary.refused_rows:,} times there was no room for a new one"
        )
    for number, rank in enumerate(summary.ranks):
        traffic = f"{size(rank.sent)} sent, {duration(rank.waited)} waiting"
        table.add_row(f"rank {number}", f"{rank.rows:,} samples, {rank.features:,} features, {traffic}")
    table.add_row("written to", str(folder))
    table.add_row("report", str(folder / "report.html"))
    return table
