"""`sparsegroup tune`."""

import logging
import shlex
from collections.abc import Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sparsegroup.cli.app import UsageError, in_shell, starting
from sparsegroup.cli.options import OF_THE_LOG, THREADS, Assignments, LogOrConfig, Threads, parsed, takes_settings
from sparsegroup.cli.output import show, table, training_bar
from sparsegroup.reporting.formatting import TITLES, count, duration, metric, percent
from sparsegroup.settings.yaml_settings import Share

if TYPE_CHECKING:
    from sparsegroup.tuning import RungScore, SearchSpace, Study, TrialRecord

_logger = logging.getLogger(__name__)


@takes_settings(
    *OF_THE_LOG,
    *("objective", "group", "model", "dim", "optimizer", "lr", "network_lr", "schedule", "warmup", "target_rate"),
    *("target_bytes", "fallback", "admit_after", "batch_size", "epochs", "shuffle_buffer", "after_first_epoch", "seed"),
    dim={"show_default": "the network's"},
    target_rate={"show_default": "as `train`", "help": "Share of the features to keep, such as .05, in all trials."},
    target_bytes={
        "show_default": "as `train`",
        "help": "Bytes of the embeddings to keep, such as 200MB, in all trials.",
    },
)
def tune_command(
    log: LogOrConfig = None,
    minutes: Annotated[float, typer.Option(help="Time limit, without compiling kernels.")] = 30.0,
    trials: Annotated[
        int, typer.Option(min=0, help="Total number of trials in the study; 0 only shows what is searched.")
    ] = 50,
    tune_rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Training rows to tune on, from the end, including those to measure on.",
            show_default="all, up to 1000000",
        ),
    ] = None,
    held_out: Annotated[
        str | None,
        typer.Option(
            help="Share of these, from the end, to measure trials on; test rows are not touched.", show_default="0.2"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the study; default studies/<name of the log>/<time>.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="STUDY", help="Resume a study: first the interrupted trial, then new ones."),
    ] = None,
    set_: Assignments = None,
    *,
    settings: Mapping[str, Any],
    threads: Threads = THREADS,
) -> None:
    """Search for settings on part of the training rows, by successive halving; ends with a YAML file for `train`.

    A setting that is given, by an option, --set or a YAML file, is not searched. The search begins with the
    defaults: the first trial has the settings that `train` would have.
    """
    with starting(threads):
        from sparsegroup.cli.logs import config_given, log_name, open_config_log
        from sparsegroup.training.run_folder import find_run, new_run_folder, point_latest
        from sparsegroup.tuning.space import SearchSpace
        from sparsegroup.tuning.study import STUDY, Study

    if not minutes > 0:
        raise UsageError(f"--minutes must be above 0, got {minutes:g}; --trials 0 shows what is searched")
    if resume is not None:
        begun = {"log": log, "tune_rows": tune_rows, "held_out": held_out, "out": out, "set": set_, **settings}
        if given := [name.replace("_", "-") for name, value in begun.items() if value is not None]:
            raise UsageError(f"--resume takes everything from the study, and no {', '.join(given)}")
        folder = find_run(resume)
        study = Study(folder, open_config_log(STUDY.read(folder).base(folder), threads))
    else:
        problem = f"--held-out must be a share like 5% or .05, below 100%, got {held_out!r}"
        share = parsed(Share, held_out or "0.2", problem)
        config = config_given(log, settings, set_)
        if out is not None and trials:
            _check_free(out)
        data = open_config_log(config, threads)
        if not trials:
            config.check_log(data)
            space = SearchSpace.excluding(config.given_keys, config.resolved_for(data), data)
            show({"log": data.name, "config": space.base.as_dict(), "space": space.as_plain()}, _space_table(space))
            return
        with new_run_folder(Path("studies") / log_name(config)) if out is None else nullcontext(out) as folder:
            study = Study.begin(folder, config, data, given=config.given_keys, tune_rows=tune_rows, held_out=share)
        if out is None:
            point_latest(folder)
    with closing(study):
        _run(study, minutes, trials)


def _check_free(out: Path) -> None:
    from sparsegroup.tuning.study import STUDY

    if STUDY.is_in(out):
        resume = in_shell("tune", "--resume", out)
        raise UsageError(f"{out} holds a study; give another --out, or {resume} to continue it")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is not empty; give another --out")


def _run(study: "Study", minutes: float, trials: int) -> None:
    """Carry the study on until it has its trials or the time is up, and show the best one."""
    from sparsegroup.kernels.cpu.jit import seconds_compiling
    from sparsegroup.tuning.study import BEST, TRIALS

    folder, rows = study.folder, study.part - study.held_out
    _logger.info(
        f"{study.log.name}: up to {trials} trials of {len(study.space.keys)} settings in {minutes:g} min, on "
        f"{rows:,} training rows, measured on the {study.held_out:,} after these; writing to {folder}"
    )

    def on_trial(record: "TrialRecord") -> None:
        is_best = record.number > 0 and record == study.best
        _logger.info(_trial_line(record) + ("; the best so far" if is_best else ""))

    study.run(
        trials,
        60 * minutes,
        on_trial=on_trial,
        reporting=lambda name, samples: training_bar(samples, name, stays=False),
        clock=lambda: monotonic() - seconds_compiling(),  # each optimizer's kernels are compiled once per machine
    )
    records, best = study.trials(), study.best
    again = f"{in_shell('tune', '--resume', folder)} continues the study"
    if best is None:
        raise UsageError(
            f"no trial has finished in {minutes:g} min: {again}; or begin another study with fewer --tune-rows"
        )
    if records[-1].state == "cut off":
        _logger.info(f"the time is up; {again}")
    elif len(records) >= trials:
        _logger.info(f"the study has {len(records)} trials; {again} with more --trials")
    command, states = shlex.join(["sparsegroup", "train", str(folder / BEST)]), [one.state for one in records]
    result = {
        "folder": str(folder),
        "log": study.log.name,
        "rows": rows,
        "held_out": study.held_out,
        "trials": len(records),
        "states": {state: states.count(state) for state in sorted(set(states))},
        "best": best.as_plain(),
        "default": records[0].as_plain(),
        "config": str(folder / BEST),
        "command": command,
    }
    outcome = _outcome_table(study.space, records[0], best)
    show(result, outcome, f"{command}\n\nwritten to {folder}: {BEST}, {TRIALS}")


def _space_table(space: "SearchSpace") -> Table:
    """What is searched: values, when they have an effect, and where the search begins."""
    from sparsegroup.tuning.space import shown_value

    rows = (
        (
            one.key,
            one.words(),
            "" if one.only is None else str(one.only),
            shown_value(one.default) if one.name in space.initial else "",
        )
        for one in space.parameters
    )
    caption = "a setting that is given is not searched; the first trial has the values on the right"
    made = table("setting", "values", "where", "begins with", rows=rows, left=4, caption=caption)
    made.columns[0].no_wrap = True
    return made


def _trial_line(record: "TrialRecord") -> str:
    """How a trial went."""
    name = f"trial {record.number}{'' if record.number else ', `train` as it is'}"
    if record.last is None:
        return f"{name}: {record.state}, {duration(record.seconds)}"
    last = record.last
    rows = f" after {last.rows:,} rows" if record.state != "complete" else ""
    measures = ", ".join(f"{TITLES[one]} {metric(last.metrics[one])}" for one in _measures(last)[:2])
    return (
        f"{name}: {record.state}{rows}, {measures}, {percent(last.feature_rate)} of the features, "
        f"{duration(record.seconds)}"
    )


def _measures(score: "RungScore") -> list[str]:
    """The names of a score's measures that are shown, the loss first."""
    order = ("log_loss", "loss", "auc", "ndcg", "rmse", "normalized_entropy", "relative_loss")
    return [name for name in order if name in score.metrics]


def _outcome_table(space: "SearchSpace", first: "TrialRecord", best: "TrialRecord") -> Table:
    """The best trial and, if that is another, the first: their scores, and the settings in which they differ."""
    pair = {"best: `train` as it is": best}
    if best.number != first.number:
        pair = {f"best: trial {best.number}": best, "`train` as it is": first}
    caption = "on the rows held out, by which the best was chosen: its figures are better than new rows will show"
    made = table("", *pair, caption=caption)
    scores = [one.last if one.state == "complete" else None for one in pair.values()]
    if first.state != "complete":
        made.add_row("", "", first.state)
    last = next(one for one in scores if one is not None)
    for one in _measures(last):
        made.add_row(TITLES[one], *("" if score is None else metric(score.metrics[one]) for score in scores))
    made.add_row("features", *("" if score is None else percent(score.feature_rate) for score in scores))
    made.add_row("rows", *("" if score is None else count(score.rows) for score in scores))
    made.add_row("time", *(duration(one.seconds) for one in pair.values()), end_section=True)
    settings = [space.shown(one.settings) for one in pair.values()]
    for key in space.keys:
        if settings[0][key] != settings[-1][key]:
            made.add_row(key, *(values[key] for values in settings))
    return made
