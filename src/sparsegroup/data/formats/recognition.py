"""The format of a log: asked for by options, described by a schema, or told from how the log begins."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from sparsegroup.data.formats import FORMATS
from sparsegroup.data.formats.headed import headed
from sparsegroup.data.formats.log_format import Head, LogFormat
from sparsegroup.data.formats.schema_file import read_schema
from sparsegroup.data.keys import MOST_FIELDS
from sparsegroup.data.log_errors import ClickLogError, LogOptionError
from sparsegroup.data.raw.raw_file import RawFile
from sparsegroup.names import AvazuHour, CriteoNumbers, DatasetName


class FormatOptions(TypedDict, total=False):
    """What tells the format of a raw log.

    Attributes:
        dataset: Name of a public format; "auto" tells it from the log.
        schema: YAML file that says what the columns are.
        label: Label column, of a log with a header; by default `label` or `click`.
        exclude: Columns that are no features, of a log with a header.
        test_fraction: Share of the rows, the last ones, in [0, 1), that is the test set, of a log with a header and
            without a column `split`; by default a tenth.
        criteo_numbers: What becomes of Criteo's integers; other than "log" for Criteo's log alone.
        avazu_hour: What becomes of Avazu's hour; other than "hour" for Avazu's log alone.
    """

    dataset: DatasetName
    schema: Path | None
    label: str | None
    exclude: Collection[str]
    test_fraction: float | None
    criteo_numbers: CriteoNumbers
    avazu_hour: AvazuHour


FORMAT_DEFAULTS: Mapping[str, Any] = {
    "dataset": "auto",
    "schema": None,
    "label": None,
    "exclude": (),
    "test_fraction": None,
    "criteo_numbers": "log",
    "avazu_hour": "hour",
}
_OF_A_HEADER = ("label", "exclude", "test_fraction")


def given(options: FormatOptions) -> dict[str, Any]:
    """The options that are not as by default."""
    values: Mapping[str, Any] = {**options, "exclude": tuple(options.get("exclude", ()))}
    return {name: value for name, value in values.items() if value is not None and value != FORMAT_DEFAULTS[name]}


def format_of(files: Sequence[RawFile], *, needs_label: bool = True, **options: Unpack[FormatOptions]) -> LogFormat:
    """The format to read a log in.

    Args:
        files: The log, which tells its format if nothing else does; and a log of its own for the test set, if any.
        needs_label: False for a log to score, which may lack its label column (libsvm and libffm may not).
        **options: See `FormatOptions`.

    Raises:
        LogOptionError: Options that do not go together, or not with the log; no such schema.
        ClickLogError: A log or a schema that cannot be read; a label or a column to exclude that does not exist.
        OSError: No such file.
    """
    log, wanted = files[0], given(options)
    schema, of_a_header = wanted.get("schema"), {name: wanted[name] for name in _OF_A_HEADER if name in wanted}
    if schema is not None and "dataset" in wanted:
        raise LogOptionError("`schema` and `dataset` cannot both be given", "schema", "dataset")
    name = _named(wanted)
    if len(files) > 1 and "test_fraction" in wanted:
        raise LogOptionError("`test_fraction` and `test` cannot both be given", "test_fraction", "test")
    if schema is not None:
        for option in of_a_header:
            raise LogOptionError(f"`{option}` and `schema` cannot both be given; the schema says it", option, "schema")
        if not schema.is_file():
            raise LogOptionError(f"no schema {schema}; say with `schema` what the columns of {log.path} are", "schema")
        found = read_schema(schema)
    elif name is not None:
        found = _made(name, wanted)
        _check_fixed(found, of_a_header)
    else:
        found = _recognised(log.head, of_a_header, needs_label)
    if not needs_label and not log.has_label(found):
        found = found.without_label()
    return found


def checked_format(files: Sequence[RawFile], log: LogFormat) -> LogFormat:
    """The format to read files in: of two, the second is the test set.

    Raises:
        ClickLogError: A file lacks one of the format's columns, or a column cannot be what the format says.
        OSError: No such file.
    """
    if len(files) > 1:
        log = replace(log, split="file", split_column=None)
    for file in files:
        _check_columns(file, log)
    return log


def _made(name: str, wanted: Mapping[str, Any]) -> LogFormat:
    """The format that `dataset` asks for."""
    for known in FORMATS:
        if known.name == name and known.make is not None:
            return known.make(*(value for option, value in wanted.items() if option == known.option))
    names = ", ".join(["auto", *(known.name for known in FORMATS if known.name is not None)])
    raise LogOptionError(f"`dataset` is one of {names}, got {name!r}", "dataset")


def _named(wanted: Mapping[str, Any]) -> str | None:
    """The name of the format that `dataset` asks for, or an option that only one format has.

    Raises:
        LogOptionError: Such an option is for another format.
    """
    name = wanted.get("dataset")
    for known in FORMATS:
        if known.option is not None and known.option in wanted:
            if "schema" in wanted or name not in (None, known.name):
                raise LogOptionError(f"`{known.option}` is for {str(known.name).capitalize()}'s log", known.option)
            name = known.name
    return name


def _recognised(head: Head, of_a_header: dict[str, Any], needs_label: bool) -> LogFormat:
    found = next((found for known in FORMATS if (found := known.recognise(head, needs_label)) is not None), None)
    if (found is None or found.has_header) and len(set(head.columns)) < len(head.columns):
        name = min(name for name in head.columns if head.columns.count(name) > 1)
        raise ClickLogError(f"{head.source}:1: column {name!r} appears {head.columns.count(name)} times")
    if found is None:
        return headed(head, **of_a_header, needs_label=needs_label)
    _check_fixed(found, of_a_header)
    return found


def _check_fixed(log: LogFormat, of_a_header: Mapping[str, Any]) -> None:
    """Whether nothing is given that would change a format whose columns and test set are fixed."""
    for option in of_a_header:
        raise LogOptionError(
            f"`{option}` is for logs whose columns are told from a header; the format {log.name!r} is fixed. "
            "A schema file can describe it in another way",
            option,
        )


def _check_columns(file: RawFile, log: LogFormat) -> None:
    header, where = file.columns(log), f"{file.path}:1"
    if missing := [name for name in log.raw if name not in header]:
        raise ClickLogError(f"{where}: no column {missing[0]!r}; the columns are {', '.join(header)}")
    if repeated := [name for name in log.raw if header.count(name) > 1]:
        raise ClickLogError(f"{where}: column {repeated[0]!r} appears {header.count(repeated[0])} times")
    if not 1 <= len(log.fields) <= MOST_FIELDS:
        raise ClickLogError(f"{where}: {len(log.fields)} fields; there must be 1 to {MOST_FIELDS}")
    named = {*log.fields, *log.numbers}
    if log.weight in named:
        raise ClickLogError(f"{where}: column {log.weight!r} is the weight; it cannot be a field, too")
    if taken := log.reserved & named:
        raise ClickLogError(f"{where}: a field cannot be named {min(taken)!r}; rename it, or leave it out")
