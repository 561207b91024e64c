"""What `sparsegroup tune` does."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from sparsegroup.cli.app import UsageError, in_shell
from sparsegroup.cli.output import show
from sparsegroup.cli.progress import progress
from sparsegroup.cli.run_settings import log_name, open_config_log, setting_values, settings_file
from sparsegroup.cli.train_words import train_command_line
from sparsegroup.cli.tune_tables import outcome_table, space_table, trial_line
from sparsegroup.data.log import Log
from sparsegroup.kernels.cpu.jit import seconds_compiling
from sparsegroup.settings.yaml_settings import read_yaml
from sparsegroup.training.config import Config, read_config
from sparsegroup.training.run_naming import find_run, new_run_folder, point_latest
from sparsegroup.tuning.search_space import SearchSpace
from sparsegroup.tuning.study import BEST, TRIALS, Study
from sparsegroup.tuning.study_manifest import STUDY
from sparsegroup.tuning.trial_record import TrialRecord

_logger = logging.getLogger(__name__)


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


def show_space(log: Sequence[str] | None, options: Mapping[str, Any], assignments: Sequence[str], threads: int) -> None:
    """Show what is searched on a log; nothing is trained or written."""
    config, given = _asked(log, options, assignments)
    data = open_config_log(config, threads)
    config.check_log(data)
    space = SearchSpace.beside(config.resolved_for(data), given, data)
    show({"log": data.name, "config": space.base.as_dict(), "space": space.as_plain()}, space_table(space))


def tune_run(
    log: Sequence[str] | None,
    options: Mapping[str, Any],
    assignments: Sequence[str],
    out: Path | None,
    tune_rows: int | None,
    held_out: float,
    limits: TuningLimits,
) -> None:
    """Begin a study; the arguments are those of the command."""
    config, given = _asked(log, options, assignments)
    if out is not None and STUDY.is_in(out):
        raise UsageError(
            f"{out} holds a study; give another --out, or {in_shell('tune', '--resume', out)} to continue it"
        )
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is not empty; give another --out")
    data = open_config_log(config, limits.threads)

    def begin(folder: Path) -> Study:
        return Study.begin(
            folder, config, data, given=given, tune_rows=tune_rows, held_out=held_out, arguments=log or ()
        )

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
    log: Sequence[str] | None, options: Mapping[str, Any], assignments: Sequence[str]
) -> tuple[Config, dict[str, Any]]:
    """The settings that are given, as a config, and by their dotted keys."""
    values, file = setting_values(log, options, assignments), settings_file(log)
    config = read_config(file, values, "the command line")
    in_file = {} if file is None else read_yaml(file)
    decided = set(in_file.pop("decided", None) or ())
    said = {f"{section}.{name}" for section, settings in in_file.items() for name in settings or ()} - decided
    plain = config.as_dict()
    keys = (key for key in dict.fromkeys((*sorted(said), *values)))
    return config, {key: plain[key.split(".")[0]][key.split(".")[1]] for key in keys}


def _carry_on(study: Study, log: Log, limits: TuningLimits) -> None:
    rungs, folder = study.rungs, study.folder
    train_command_line(study.manifest.arguments, study.space.base, log)  # what it cannot read is said before the trials
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
    command = train_command_line(study.manifest.arguments, study.config(best), log)
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
