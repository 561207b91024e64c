"""What `sparsegroup tune` does."""

import logging
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from rich.table import Table

from sparsegroup.cli.app import UsageError, in_shell
from sparsegroup.cli.output import show
from sparsegroup.cli.progress import progress
from sparsegroup.cli.run_settings import log_name, open_config_log, setting_values, settings_file
from sparsegroup.data.log import Log
from sparsegroup.kernels.cpu.jit import seconds_compiling
from sparsegroup.reporting.formatting import count, duration, metric, percent
from sparsegroup.settings.yaml_settings import read_yaml
from sparsegroup.training.config import Config, read_config
from sparsegroup.training.run_files import find_run, new_run_folder, point_latest
from sparsegroup.tuning.space import SearchSpace, shown_value
from sparsegroup.tuning.study import BEST, STUDY, TRIALS, RungScore, Study, TrialRecord

_logger = logging.getLogger(__name__)

_SCORES: Mapping[str, Callable[[RungScore], str]] = {
    "log loss": lambda score: metric(score.log_loss),
    "norm. entropy": lambda score: metric(score.normalized_entropy),
    "AUC": lambda score: metric(score.auc),
    "features": lambda score: percent(score.feature_rate),
    "rows": lambda score: count(score.rows),
}


@dataclass(frozen=True)
class TuningLimits:
    """What a call may use.

    Attributes:
        minutes: Time.
        trials: How many the study is to have altogether.
        threads: That share the table's work, and parse a raw log.
    """

    minutes: float
    trials: int
    threads: int


def show_space(
    log: Sequence[str] | None, settings: Mapping[str, Any], assignments: Sequence[str], threads: int
) -> None:
    """Show what is searched on a log; nothing is trained or written."""
    config, given = _asked(log, settings, assignments)
    data = open_config_log(config, threads)
    config.check_log(data)
    space = SearchSpace.excluding(given, config.resolved_for(data), data)
    show({"log": data.name, "config": space.base.as_dict(), "space": space.as_plain()}, space_table(space))


def tune_run(
    log: Sequence[str] | None,
    settings: Mapping[str, Any],
    assignments: Sequence[str],
    out: Path | None,
    tune_rows: int | None,
    held_out: float,
    limits: TuningLimits,
) -> None:
    """Begin a study; the arguments are those of the command."""
    config, given = _asked(log, settings, assignments)
    if out is not None and STUDY.is_in(out):
        raise UsageError(
            f"{out} holds a study; give another --out, or {in_shell('tune', '--resume', out)} to continue it"
        )
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is not empty; give another --out")
    data = open_config_log(config, limits.threads)

    def begin(folder: Path) -> Study:
        return Study.begin(folder, config, data, given=given, tune_rows=tune_rows, held_out=held_out)

    if out is None:
        with new_run_folder(Path("studies") / log_name(config)) as folder:
            study = begin(folder)
        point_latest(folder)
    else:
        study = begin(out)
    with closing(study):
        _carry_on(study, data, limits)


def resume_study(path: Path, limits: TuningLimits) -> None:
    """Go on with a study; of a folder of studies, with the latest."""
    folder = find_run(path)
    config = STUDY.read(folder).base(folder)
    data = open_config_log(config, limits.threads)
    with closing(Study.resume(folder, data)) as study:
        _carry_on(study, data, limits)


def _asked(
    log: Sequence[str] | None, settings: Mapping[str, Any], assignments: Sequence[str]
) -> tuple[Config, dict[str, Any]]:
    """The settings that are given, as a config, and by their dotted keys."""
    values, file = setting_values(log, settings, assignments), settings_file(log)
    config = read_config(file, values, "the command line")
    in_file = {} if file is None else read_yaml(file)
    decided = set(in_file.pop("decided", None) or ())
    said = {f"{section}.{name}" for section, settings in in_file.items() for name in settings or ()} - decided
    plain = config.as_dict()
    keys = (key for key in dict.fromkeys((*sorted(said), *values)))
    return config, {key: plain[key.split(".")[0]][key.split(".")[1]] for key in keys}


def _carry_on(study: Study, log: Log, limits: TuningLimits) -> None:
    rungs, folder = study.rungs, study.folder
    _logger.info(
        f"{log.name}: up to {limits.trials} trials of {len(study.space.keys)} settings in {limits.minutes:g} min, on "
        f"{rungs.part - rungs.held_out:,} training rows, measured on the {rungs.held_out:,} after these; writing to "
        f"{folder}"
    )
    before: float | None = None if study.best is None or study.best.last is None else study.best.last.log_loss

    def on_trial(record: TrialRecord) -> None:
        nonlocal before
        _logger.info(trial_line(record, before))
        if record.state == "complete" and record.last is not None:
            before = record.last.log_loss if before is None else min(before, record.last.log_loss)

    study.run(
        limits.trials,
        60 * limits.minutes,
        on_trial=on_trial,
        reporting=_rung_bar,
        clock=lambda: monotonic() - seconds_compiling(),  # each optimizer's kernels are compiled once per machine
    )
    trials, best = study.trials(), study.best
    again = f"{in_shell('tune', '--resume', folder)} continues the study"
    if best is None:
        raise UsageError(
            f"no trial has finished in {limits.minutes:g} min: {again}; or begin another study with fewer --tune-rows"
        )
    if trials[-1].state == "cut off":
        _logger.info(f"the time is up; {again}")
    elif len(trials) >= limits.trials:
        _logger.info(f"the study has {len(trials)} trials; {again} with more --trials")
    command = shlex.join(["sparsegroup", "train", str(folder / BEST)])
    content = {
        "folder": str(folder),
        "log": log.name,
        "rows": rungs.part - rungs.held_out,
        "held_out": rungs.held_out,
        "trials": len(trials),
        "states": {state: sum(one.state == state for one in trials) for state in sorted({one.state for one in trials})},
        "best": best.as_plain(),
        "default": trials[0].as_plain(),
        "config": str(folder / BEST),
        "command": command,
    }
    show(content, outcome_table(study.space, trials[0], best), f"{command}\n\nwritten to {folder}: {BEST}, {TRIALS}")


@contextmanager
def _rung_bar(name: str, samples: int) -> Iterator[Callable[[int, float], None]]:
    done = 0
    with progress(name, "samples", samples) as update:

        def on_batch(rows: int, loss: float) -> None:
            nonlocal done
            done += rows
            update(done, samples, "")

        yield on_batch


def space_table(space: SearchSpace) -> Table:
    """What is searched: values, when they have a say, and where the search begins."""
    table = Table(caption="a setting that is given is not searched; the first trial has the values on the right")
    for column in ("setting", "values", "where", "begins with"):
        table.add_column(column, overflow="fold", no_wrap=column == "setting")
    for one in space.parameters:
        where = "" if one.only is None else str(one.only)
        table.add_row(one.key, one.words(), where, shown_value(one.default) if one.name in space.initial else "")
    return table


def trial_line(record: TrialRecord, best_before: float | None) -> str:
    """How a trial went, after trials whose lowest log loss is `best_before`."""
    which = f"trial {record.number}{'' if record.number else ', `train` as it is'}"
    if record.last is None:
        return f"{which}: {record.state}, {duration(record.seconds)}"
    last = record.last
    of_all = f" after {last.rows:,} rows" if record.state != "complete" else ""
    is_best = record.state == "complete" and (best_before is None or last.log_loss < best_before)
    return (
        f"{which}: {record.state}{of_all}, log loss {metric(last.log_loss)}, AUC {metric(last.auc)}, "
        f"{percent(last.feature_rate)} of the features, {duration(record.seconds)}"
        f"{'; the best so far' if is_best and record.number else ''}"
    )


def outcome_table(space: SearchSpace, first: TrialRecord, best: TrialRecord) -> Table:
    """The best trial and, if that is another, the first: what they scored, and the settings in which they differ."""
    table = Table(
        caption="on the rows held out, by which the best was chosen: its figures are better than new rows will show"
    )
    table.add_column("")
    is_first = best.number == first.number
    pair = (best,) if is_first else (best, first)
    for name in ("best: `train` as it is",) if is_first else (f"best: trial {best.number}", "`train` as it is"):
        table.add_column(name, justify="right")
    scores = [one.last if one.state == "complete" else None for one in pair]
    if first.state != "complete":
        table.add_row("", "", first.state)
    for name, figure in _SCORES.items():
        table.add_row(name, *("" if score is None else figure(score) for score in scores))
    table.add_row("time", *(duration(one.seconds) for one in pair), end_section=True)
    shown = [space.shown(one.settings) for one in pair]
    for key in space.keys:
        if shown[0][key] != shown[-1][key]:
            table.add_row(key, *(values[key] for values in shown))
    return table
