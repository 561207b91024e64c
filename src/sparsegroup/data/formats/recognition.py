"""The format of a log that the options of a command ask for."""

from collections.abc import Collection, Mapping
from inspect import signature
from pathlib import Path
from typing import TypedDict

from sparsegroup.data.formats.headed import fixed_format, has_label, told_from
from sparsegroup.data.formats.log_format import (
    LogFormat,
    avazu,
    criteo,
    ipinyou,
    without_label,
)
from sparsegroup.data.formats.schema_file import read_schema
from sparsegroup.names import AvazuHour, CriteoNumbers, DatasetName


class FormatOptions(TypedDict, total=False):
    """What tells a format, see `choose_format`."""

    dataset: DatasetName
    schema: Path | None
    label: str | None
    exclude: Collection[str]
    test_fraction: float | None
    criteo_numbers: CriteoNumbers
    avazu_hour: AvazuHour


def choose_format(
    log: Path,
    test: Path | None = None,
    *,
    dataset: DatasetName = "auto",
    schema: Path | None = None,
    label: str | None = None,
    exclude: Collection[str] = (),
    test_fraction: float | None = None,
    criteo_numbers: CriteoNumbers = "log",
    avazu_hour: AvazuHour = "hour",
    needs_label: bool = True,
) -> LogFormat:
    """The format to read a log in.

    Args:
        log: The log, which tells its format if nothing else does.
        test: A log of its own for the test set.
        dataset: Name of a public format; "auto" tells it from the log.
        schema: YAML file that says what the columns are.
        label: Label column, of a log with a header; by default `label` or `click`.
        exclude: Columns that are no features, of a log with a header.
        test_fraction: Share of the rows, the last ones, in [0, 1), that is the test set, of a log with a header and
            without a column `split`; by default a tenth.
        criteo_numbers: What becomes of Criteo's integers; other than "log" for Criteo's log alone.
        avazu_hour: What becomes of Avazu's hour; other than "hour" for Avazu's log alone.
        needs_label: False for a log to score, which may lack its label column (libsvm and libffm may not).

    Raises:
        ValueError: Options that do not go together, or not with the log; the message names them as a command does.
        ClickLogError: A log or a schema that cannot be read; a label or a column to exclude that does not exist.
        OSError: No such file.
    """
    if schema is not None and dataset != "auto":
        raise ValueError("--schema and --dataset cannot both be given")
    if criteo_numbers != "log" and (schema is not None or dataset not in ("auto", "criteo")):
        raise ValueError("--criteo-numbers is for Criteo's log")
    if avazu_hour != "hour" and (schema is not None or dataset not in ("auto", "avazu") or criteo_numbers != "log"):
        raise ValueError("--avazu-hour is for Avazu's log")
    if test is not None and test_fraction is not None:
        raise ValueError("--test-fraction and --test cannot both be given")
    if schema is not None:
        options = {"label": label is not None, "exclude": bool(exclude), "test-fraction": test_fraction is not None}
        if given := [name for name, is_given in options.items() if is_given]:
            raise ValueError(f"--{given[0]} and --schema cannot both be given; the schema says it")
        return _as_labelled(log, read_schema(schema), needs_label)
    found: LogFormat | None = None
    if dataset == "criteo" or criteo_numbers != "log":
        found = criteo(criteo_numbers)
    elif dataset == "avazu" or avazu_hour != "hour":
        found = avazu(avazu_hour)
    elif dataset == "ipinyou":
        found = ipinyou()
    if found is not None:
        return _as_labelled(log, fixed_format(found, label, exclude, test_fraction), needs_label)
    return _as_labelled(log, told_from(log, label, exclude, test_fraction, needs_label), needs_label)


def _as_labelled(log: Path, found: LogFormat, needs_label: bool) -> LogFormat:
    return found if needs_label or has_label(log, found) else without_label(found)


FORMAT_DEFAULTS: Mapping[str, object] = {
    name: parameter.default
    for name, parameter in signature(choose_format).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY and name != "needs_label"
}
