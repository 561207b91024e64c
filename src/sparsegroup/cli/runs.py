"""The runs that `sparsegroup train` begins, continues or resumes, on the ranks of torchrun; signals stop them."""

import logging
import os
import signal
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from math import isnan, nan
from pathlib import Path
from typing import Any

import torch.distributed as dist
import typer

from sparsegroup.cli.app import UsageError, end_with_parent, in_shell
from sparsegroup.cli.logs import config_given, log_name, open_config_log
from sparsegroup.cli.options import setting_values, settings_file
from sparsegroup.cli.output import figures, show, speak_as, training_bar
from sparsegroup.data import Log, is_prepared
from sparsegroup.data.kinds import ColumnKind
from sparsegroup.data.schema import read_schema
from sparsegroup.errors import UserError
from sparsegroup.kernels.cpu.ahead import compile_ahead
from sparsegroup.reporting.formatting import duration, measures_of, size, titles_of
from sparsegroup.settings.declared import ADMISSION_SETTINGS, ModelSettings
from sparsegroup.settings.yaml_settings import checked, with_values
from sparsegroup.training import (
    Callback,
    Config,
    RunStoppedError,
    Session,
    Summary,
    Trainer,
    Trial,
    load_run,
    settings_by_trials,
)
from sparsegroup.training.build import OPTIMIZERS
from sparsegroup.training.callbacks import check_tracking
from sparsegroup.training.ranks import RankGroup
from sparsegroup.training.run_folder import (
    SUMMARY,
    RunFolder,
    find_run,
    new_run_folder,
    point_latest,
    without_latest,
)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Launch:
    """How a command was started."""

    ranks: RankGroup  # that carry it out
    process_group: dist.ProcessGroup | None = None  # all of them; None for a single process
    job: str | None = None  # a random id of torchrun's job, the same after a restart; None without torchrun
    is_restarted: bool = False  # whether torchrun has restarted the ranks because one of them ended


@dataclass(frozen=True)
class NewRun:
    """The options of a run that begins, with a log or a file of settings; `before` is the run that it continues."""

    log: Sequence[str] | None
    settings: Mapping[str, Any]
    assignments: Sequence[str]
    out: Path | None
    overwrite: bool
    before: Path | None


def train(run: NewRun | Path, threads: int, rank_timeout: float) -> None:
    """Begin a run, or resume the one in a folder, train it to its end, and show its figures."""
    if isinstance(run, NewRun) and run.settings.get("device", "cpu") == "cpu":
        is_constant = any(name in run.settings for name in ("l1", "l21"))
        optimizer = run.settings.get("optimizer", "adam" if is_constant else "adagrad")
        if optimizer in OPTIMIZERS:
            compile_ahead(OPTIMIZERS[optimizer].rule)
    with launched(rank_timeout) as launch, ExitStack() as until_begun:
        if isinstance(run, NewRun):
            planned = partial(_plan_to_begin, run, threads, launch, until_begun)
        else:
            planned = partial(_plan_to_resume, run, threads)
        plan = launch.ranks.broadcast_result(planned, "the run")
        folder, place, group = plan.run, plan.run.place, launch.process_group
        if plan.log is None:
            if not launch.ranks.rank:
                folder.take_place()
            show(_result(RunFolder(place).summary(), place), f"{place}: the run is complete")
            return
        if plan.config is None:
            session = Session.resume(folder.path, plan.log, group)
        else:
            before = None if plan.before is None else load_run(plan.before, plan.config, group)
            config, trials = plan.config, tuple[Trial, ...]()
            if before is None and launch.ranks.is_alone:
                config, trials = settings_by_trials(config, plan.log, partial(training_bar, stays=False))
            session = Session.begin(folder.path, config, plan.log, before, group, trials=trials, job=launch.job)
        until_begun.pop_all()
        if plan.is_latest and not launch.ranks.rank:
            point_latest(folder.path)
        if trials := session.provenance.trials:
            _logger.info(_chosen_in_words(trials))
        _logger.info(f"{_rows_in_words(session)}; writing to {place}")
        summary = _train(session, place)
        session.ranks.on_rank_0(folder.take_place, "the run's place")
        show(_result(summary, place), figures(_outcome(summary, place)))


@dataclass(frozen=True)
class _Plan:
    """What to do with a run, the same on all ranks."""

    run: RunFolder
    log: Log | None = None  # None if the run is complete
    config: Config | None = None  # of a run that begins; None if it is resumed
    before: Path | None = None  # the run that it continues
    is_latest: bool = False  # whether the link `latest` is to point to it


def _plan_to_begin(new: NewRun, threads: int, launch: Launch, until_begun: ExitStack) -> _Plan:
    """How a run begins; `until_begun` removes the folders that are made for it."""
    if new.overwrite and new.out is None:
        raise UsageError("--overwrite needs --out: without it, each run gets a folder of its own, named by the time")
    before = None if new.before is None else find_run(new.before)
    if before is None:
        config = config_given(new.log, new.settings, new.assignments)
    elif settings_file(new.log) is not None:
        raise UsageError("--continue takes its settings from the run; give it a log, and change settings with --set")
    else:
        values = setting_values(new.log, new.settings, new.assignments)
        if "data.log" not in values:
            raise UsageError("--continue needs the log to train on next")
        config = continued_config(settings := RunFolder(before).finished_config(), values)
        _check_kinds(settings, config)
    check_tracking(config.tracking)
    parent, out = Path("runs") / log_name(config), None if new.out is None else without_latest(new.out)
    if launch.is_restarted:
        folders = sorted(path for path in parent.glob("[!.]*/") if not path.is_symlink()) if out is None else [out]
        if (begun := _run_of_job(launch.job, folders)) is not None:
            return _plan_to_resume(begun, threads)
    run = None if out is None else _folder_for(out, before, overwrite=new.overwrite)
    data = open_config_log(config, threads, as_before=before is not None)
    if run is None:
        run = RunFolder(until_begun.enter_context(new_run_folder(parent)))
    elif run.replaces is not None:
        run.clear()
    return _Plan(run, data, config, before, is_latest=out is None)


def _folder_for(out: Path, before: Path | None, *, overwrite: bool) -> RunFolder:
    """The folder of a run that begins in `out`, or that is to replace the one in `out`."""
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
    for folder in folders:
        with suppress(UserError):  # another run that cannot be read
            if RunFolder.to_resume(folder).provenance().job == job:
                return folder
    return None


def _plan_to_resume(path: Path, threads: int) -> _Plan:
    run = RunFolder.to_resume(path)
    if run.is_complete:
        return _Plan(run)
    config = run.config()
    if (stream := run.provenance().stream) is not None:
        raise UsageError(f"{path} follows a stream; {in_shell('follow', stream, '--out', path)} continues it")
    check_tracking(config.tracking)
    return _Plan(run, open_config_log(config, threads, as_before=True))


def _check_kinds(before: Config, after: Config) -> None:
    """Raise UsageError if a schema gives a column another kind than the run: values would get other keys or numbers."""
    earlier = _roles(before)
    for name, role in _roles(after).items():
        was = earlier.get(name, role)
        if was != role and not {was, role} & _NO_FEATURES:
            raise UsageError(
                f"--schema: the column {name!r} cannot become {role}: the run to continue reads it as {was}, and its "
                "values would be other features; put the kind back, or begin a new run"
            )


_NO_FEATURES = {"ignore", "label", "weight", "time", "split"}


def _roles(config: Config) -> dict[str, str]:
    """Return column → its role and kind in a log with these settings; empty if the settings do not determine them."""
    data, kinds = config.data, dict[str, str]()
    if isinstance(data.columns, Mapping):
        kinds = dict(data.columns)
    elif isinstance(schema := data.schema_file, Mapping) or (schema is not None and schema.is_file()):
        kinds = {finding.name: finding.kind for finding in read_schema(schema).explained}
    return {name: ColumnKind.of(kind).role for name, kind in kinds.items()}


def continued_config(before: Config, values: dict[str, Any]) -> Config:
    """The config of a run with other values, which must not change what it has learnt."""
    content, log = before.as_dict(), values.get("data.log")
    if values.get("model.name") == "auto":
        values = {key: value for key, value in values.items() if key != "model.name"}
    if log is not None and is_prepared(log):  # the other log's format says nothing of a prepared one
        content["data"] = {}
    if {"data.schema", "data.dataset"} & values.keys():  # they say all of the format
        content["data"] |= {"columns": None, "schema": None}
    if values.get("optimizer.name", before.optimizer.name) != before.optimizer.name:  # whose rates these were
        values = {"optimizer.lr": None, "optimizer.network_lr": None, "optimizer.eps": None, **values}
    content = with_values(content, {"data.test": None, **values})  # the next log has its own test set, or none
    content["given"] = list(dict.fromkeys((*before.given_keys, *values)))
    config = checked(Config, content, "the command line")
    kept = [f"model.{name}" for name in ModelSettings.model_fields if name not in (*ADMISSION_SETTINGS, "base_rate")]
    for key in (*kept, "training.seed"):
        section, name = key.split(".")
        ours, theirs = (getattr(getattr(one, section), name) for one in (before, config))
        if ours != theirs:
            raise UsageError(f"{key} cannot change to {theirs}: the run to continue has {ours}")
    return config


def _rows_in_words(session: Session) -> str:
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
    if buffer := min(session.config.training.shuffle_buffer or 0, data.most_shuffled):
        parts.append("shuffled" if buffer >= plan.rows else f"shuffled in blocks of {buffer:,} rows")
    if plan.epochs > 1:
        parts.append(f"{plan.epochs} epochs")
    if earlier := session.trainer.samples - session.position:
        parts.append(f"continuing after {earlier:,} samples")
    return f"{data.name}: {', '.join(parts)}"


def _chosen_in_words(trials: Sequence[Trial]) -> str:
    """What the trials have chosen, and what it is worth."""
    first, chosen = trials[0], next(one for one in trials if one.is_chosen)
    what = f"{chosen.epochs} pass{'es' * (chosen.epochs > 1)}"
    if chosen.after_first_epoch == "reset":
        what += " with a reset of the embeddings in each"
    if chosen.pairs:
        what += f", the pairs {' and '.join(chosen.pairs)}"
    if chosen.l2:
        what += f", l2 {chosen.l2:.2g}"
    if chosen.dim != first.dim:
        what += f", vectors of {chosen.dim}"
    what += f", {chosen.feature_rate:.{0 if chosen.feature_rate >= 0.01 else 1}%} of the features"
    worth = f"{'loss' if isnan(chosen.auc) else 'log loss'} {chosen.log_loss:.4f}"
    if chosen != first:
        worth += f" against {first.log_loss:.4f} of one pass with the defaults"
    return f"trials on held-out training rows choose {what}: {worth}"


def _train(session: Session, place: Path) -> Summary:
    """Train to the end; an interruption ends the command with the status of its signal."""
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


def _result(summary: Summary, folder: Path) -> dict[str, Any]:
    """The object of `--json`."""
    from sparsegroup.reporting.run_record import Metrics

    measured = {"test": summary.test, "baseline": summary.baseline, "validation": summary.validation}
    none = dict.fromkeys(titles_of(next(filter(None, measured.values()), Metrics)), nan)
    counts = (
        *("epochs", "best_epoch", "validation_rows", "feature_rate", "live_rows", "features_seen", "table_bytes"),
        *("evicted_rows", "refused_rows"),
    )
    return {
        "folder": str(folder),
        "report": str(folder / "report.html"),
        **{name: getattr(summary, name) for name in ("log", "samples", "seconds", "test_rows")},
        **{
            f"{of}_{name}": value
            for of, metrics in measured.items()
            for name, value in (none if metrics is None else asdict(metrics)).items()
        },
        **{name: getattr(summary, name) for name in counts},
        "bad_rows": sum(summary.bad_rows.values()),
        "warnings": "\n".join(summary.warnings) or None,
    }


def _outcome(summary: Summary, folder: Path) -> Iterator[tuple[str, str]]:
    if summary.epochs > 1:
        best = "" if summary.best_epoch is None else f"  (the best, epoch {summary.best_epoch}, is kept)"
        yield "epochs", f"{summary.epochs}{best}"
    if (validation := summary.validation) is not None:
        titles = list(titles_of(validation).items())[:2]
        yield "validation", ", ".join(f"{title} {getattr(validation, name):.4f}" for name, title in titles)
    if (test := summary.test) is not None:
        is_binary, rows = "auc" in titles_of(test), titles_of(test)
        for name in list(rows)[:2]:
            rows[name] = f"test {rows[name]}"
        if isnan(getattr(test, "auc", 0.0)):
            yield rows.pop("auc"), "– (one class only)"
            rows = {"log_loss": rows["log_loss"]}
        for name, title in rows.items():
            of = "positives" if is_binary else "labels"
            note = f"  (predicted over actual {of})" if name == "calibration" else ""
            if summary.baseline is not None:
                note = f"  (baseline {getattr(summary.baseline, name):.4f})"
            yield title, f"{getattr(test, name):.4f}{note}"
        others = {} if summary.baseline is None else measures_of(summary.baseline)
        for title, value in measures_of(test).items():
            if title not in titles_of(test).values():  # of a task
                yield title, f"{value:.4f}" + (f"  (baseline {others[title]:.4f})" if title in others else "")
    features = f"{summary.live_rows:,} of {summary.features_seen:,} features"
    yield "feature rate", f"{summary.feature_rate:.4f}  ({features})"
    if summary.evicted_rows or summary.refused_rows:
        refused = f"{summary.refused_rows:,} times there was no room for a new one"
        yield "evicted", f"{summary.evicted_rows:,} rows; {refused}"
    for number, rank in enumerate(summary.ranks):
        traffic = f"{size(rank.sent)} sent, {duration(rank.waited)} waiting"
        yield f"rank {number}", f"{rank.rows:,} samples, {rank.features:,} features, {traffic}"
    yield "written to", str(folder)
    yield "report", str(folder / "report.html")


# How the process begins and ends


@contextmanager
def launched(minutes: float) -> Iterator[Launch]:
    """How this process was started; the ranks of torchrun wait for each other, at most this many minutes.

    UsageError: torchrun's environment describes no rank, or a rank is missing.
    """
    is_alone, by_torchrun = os.environ.get("WORLD_SIZE", "1") == "1", "TORCHELASTIC_RUN_ID" in os.environ
    if "RANK" not in os.environ or (is_alone and not by_torchrun):
        yield Launch(RankGroup())
        return
    rank, restarts = os.environ["RANK"], os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if rank != "0":
        speak_as(int(rank) if rank.isdecimal() else -1)
    end_with_parent()
    group = None
    try:
        wait = timedelta(minutes=minutes)
        store, number, count = next(dist.rendezvous("env://", timeout=wait))  # type: ignore[attr-defined]
        # torchrun's own id is "none" unless one is given, but each job has a store, which outlasts restarts.
        job = store.compare_set("sparsegroup-job", "", uuid.uuid4().hex).decode()
        if not is_alone:
            # After a restart torchrun's store still has the addresses of the processes that there were before.
            store = dist.PrefixStore(f"sparsegroup-{restarts}-of-{count}", store)  # type: ignore[attr-defined]
            dist.init_process_group("gloo", store=store, rank=number, world_size=count, timeout=wait)
            group = dist.group.WORLD
    except (ValueError, RuntimeError) as error:
        raise UsageError(f"the ranks that torchrun has started do not come together: {error}") from error
    yield Launch(RankGroup(group), group, job, restarts != "0")
    if group is not None:
        dist.destroy_process_group()


class Interruption(Callback):
    """Stops the training after the current batch on SIGINT or SIGTERM, so that it is saved.

    A second SIGINT, or one while nothing is trained, is a `KeyboardInterrupt`. A SIGTERM after another signal has no
    effect: torchrun sends one to its processes after their SIGINT.
    """

    def __init__(self) -> None:
        self.signal: int | None = None  # the first one
        self._trainer: Trainer | None = None

    def on_begin(self, trainer: Trainer) -> None:
        """See `Callback`."""
        self._trainer = trainer

    def on_end(self, trainer: Trainer) -> None:
        """See `Callback`."""
        self._trainer = None

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle signals here, except ignored ones (a process in a shell's background ignores SIGINT)."""
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
