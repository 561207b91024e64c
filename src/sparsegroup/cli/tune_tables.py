"""What `sparsegroup tune` shows: the space, a line for each trial, and the best one beside the first."""

from collections.abc import Callable, Mapping

from rich.table import Table

from sparsegroup.reporting.formatting import count, duration, metric, percent
from sparsegroup.tuning.search_parameter import Parameter, shown_value
from sparsegroup.tuning.search_space import SearchSpace
from sparsegroup.tuning.trial_record import RungScore, TrialRecord

_SCORES: Mapping[str, Callable[[RungScore], str]] = {
    "log loss": lambda of: metric(of.log_loss),
    "norm. entropy": lambda of: metric(of.normalized_entropy),
    "AUC": lambda of: metric(of.auc),
    "features": lambda of: percent(of.feature_rate),
    "rows": lambda of: count(of.rows),
}


def space_table(space: SearchSpace) -> Table:
    """What is searched: values, when they have a say, and where the search begins."""
    table = Table(caption="a setting that is given is not searched; the first trial has the values on the right")
    for column in ("setting", "values", "where", "begins with"):
        table.add_column(column, overflow="fold", no_wrap=column == "setting")
    for one in space.parameters:
        where = "" if one.only is None else str(one.only)
        table.add_row(one.key, one.words(), where, _beginning(one, space))
    return table


def _beginning(parameter: Parameter, space: SearchSpace) -> str:
    """The first trial's value of a parameter; empty where it has no say in it."""
    return shown_value(parameter.default) if parameter.name in space.beginning else ""


def trial_line(record: TrialRecord, best_before: float | None) -> str:
    """How a trial went.

    Args:
        record: The trial.
        best_before: The lowest log loss of those before it that came to their end; None where none has.
    """
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
    for name, shown in _SCORES.items():
        table.add_row(name, *("" if score is None else shown(score) for score in scores))
    table.add_row("time", *(duration(one.seconds) for one in pair), end_section=True)
    plain = [space.config(one.settings).as_dict() for one in pair]
    for key in space.keys:
        section, name = key.split(".")
        values = [shown_value(of[section][name]) for of in plain]
        if values[0] != values[-1]:
            table.add_row(key, *values)
    return table
