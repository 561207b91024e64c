"""Opens the log at a path: which kind of log it is, and in which format."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from shlex import quote
from typing import Any, TypedDict, Unpack

import polars as pl

from sparsegroup.data.formats import FORMATS
from sparsegroup.data.inference.columns import SAMPLE_ROWS, infer_columns, kinds_of
from sparsegroup.data.inference.leaks import with_aucs
from sparsegroup.data.kinds import CLASSES, NUMBERS, ColumnFinding, Label
from sparsegroup.data.log import Log
from sparsegroup.data.prepared_log import PreparedLog, is_prepared_folder
from sparsegroup.data.raw.files import Chunk, LogPaths, RawFile, listed, paths_of, shown
from sparsegroup.data.raw.raw_log import RawLog, by_first_time
from sparsegroup.data.raw.text import CHUNK_BYTES
from sparsegroup.data.schema import TEST_FRACTION, LogFormat, format_for_kinds, read_schema
from sparsegroup.data.values import classes_in, padded_twins, texts_of
from sparsegroup.errors import ClickLogError, LogOptionError
from sparsegroup.names import moment_of
from sparsegroup.settings.names import (
    AvazuHour,
    ColumnsName,
    CriteoNumbers,
    DatasetName,
    LabelsName,
    OnBadRow,
    SortFiles,
)

LABELS = ("label", "click", "clicked", "is_click", "is_clicked", "target", "conversion", "converted")
TIMES = ("ts", "timestamp")
SPLIT = "split"
"""Names of columns with a special role; of a label and a split in any case."""

_IS_OTHER_LABEL = (
    "column {0!r} is left out: it is named like a label and holds 0 and 1, and what happens after the label {1!r} is "
    "unknown when that is predicted. `label` '{1},{0}' learns both; a schema (`sparsegroup columns --schema`) can make "
    "it a feature"
)

NO_WEIGHT = "none"
"""Value of `weight` for a log whose rows all count the same."""

_logger = logging.getLogger(__name__)
_SAMPLE_BYTES = 8 << 20

Kinds = ColumnsName | Mapping[str, str]


class FormatOptions(TypedDict, total=False):
    """Options that determine the format of a raw log.

    Attributes:
        dataset: Name of a public format; "auto" recognizes it by the log's first line.
        schema: YAML file that says what the columns are, or the content of such a file, as a mapping.
        columns: What the columns of a log with a header are: column → its kind, see `ColumnKind`, others are left out;
            "categorical" for a field of every column except `id`, `ts` and `timestamp` (the time) and `split` (marks
            the test rows); None to infer it from its first rows. Of no effect, if "categorical", on other formats.
        label: Label column, of a log with a header, or a comparison of one such as `rating>=4`, see `Label`; by default
            the first of `LABELS` that is there, in any case. Several, or a text with commas between them, are the
            labels of a task each, of which a row may lack some.
        labels: Whether labels are 0 or 1 ("binary", the default), finite numbers ("numbers", perhaps with bounds, as in
            "numbers >= 0 <= 1"), or classes
            ("classes", of the first rows; or a sequence of the classes' texts): labels are their numbers then, from 0.
            Of several tasks, "binary" or "numbers" for all, or for each.
        exclude: Columns that are no features, of a log with a header.
        weight: Column of how much each row counts, of a log with a header, a number >= 0; "none" for no such
            column. None: what `columns` say, or, if they are inferred, one of numbers >= 0 that is called `weight`,
            `sample_weight` or the like.
        negatives_kept: Share, in (0, 1], of the negatives that the log still has, of one from which the others were
            left out at random: each counts as many times as it stands for, so that predictions and metrics hold for
            the whole log.
        positive_weight: How much a row with label 1 counts against one with label 0.
        test_fraction: Share of the rows, the last ones, in [0, 1), that is the test set, of a log with a header and
            without a column `split`; by default a tenth.
        test_from: Date or time in ISO 8601, see `moment_of`, from which on all rows are the test set, of a log with a
            column of times.
        criteo_numbers: What becomes of Criteo's integers; other than "log" for Criteo's log alone.
        avazu_hour: What becomes of Avazu's hour; other than "hour" for Avazu's log alone.
    """

    dataset: DatasetName
    schema: Path | Mapping[str, Any] | None
    columns: Kinds | None
    label: str | Sequence[str] | None
    exclude: Collection[str]
    weight: str | None
    labels: LabelsName | Sequence[str] | None
    negatives_kept: float | None
    positive_weight: float | None
    test_fraction: float | None
    test_from: str | None
    criteo_numbers: CriteoNumbers
    avazu_hour: AvazuHour


_DEFAULTS = {"dataset": "auto", "labels": "binary", "exclude": (), "criteo_numbers": "log", "avazu_hour": "hour"}
"""Of the options that are not None by default."""

_OF_A_HEADER = ("label", "exclude", "weight", "test_fraction", "columns")


def open_log(
    log: LogPaths,
    test: LogPaths | None = None,
    format: LogFormat | None = None,
    *,
    sort_files: SortFiles = "name",
    like: FormatOptions | None = None,
    whole: bool = False,
    on_bad_row: OnBadRow = "error",
    max_bad: float = 0.001,
    threads: int = 1,
    on_progress: Callable[[int, int | None], None] | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    **options: Unpack[FormatOptions],
) -> Log:
    """The log at a path: a prepared one in its folder, or a raw one, whose rows are counted now.

    The rows of a raw log of several files are the first file's, then the second's, and so on.

    Args:
        log: Folder that `prepare` has written; or a file, a folder of files (and of folders), a pattern such as
            `logs/2026-*.csv.gz`, a URI that pyarrow or fsspec opens, such as `s3://bucket/day=*/`, or several of these
            that are one log. Folders named `key=value` add a column.
        test: A separate log for the test set, of a raw log.
        format: Format of a raw log; by default what `options` say, or what the log's beginning shows.
        like: Options that another log was read with, which hold for a raw log where `options` leave them open. A
            `schema` or a `dataset` in `options` says all of the format. The columns of a log with a header are
            inferred from the first log only: where `like` does not say them, all are categories.
        sort_files: In which order several files of a log come: by their paths ("name"; `day9` before `day10`), by the
            first "time" in each, or as their paths are "given".
        whole: Take all rows of a raw log in the order of the file, as for scoring: there is no test set, no time and no
            order to check, and no label is needed.
        on_bad_row, max_bad, threads, on_progress, chunk_bytes: How to read a raw log, see `RawLog`.
        **options: The format of a raw log, see `FormatOptions`.

    Raises:
        ClickLogError: It cannot be read, or its files have different columns.
        LogOptionError: Options that do not go together, options of raw logs for a prepared one (`columns` may repeat
            its columns), or no such schema.
        OSError: No such file.
    """
    wanted: Any = _given(options)
    if is_prepared(log):
        prepared = PreparedLog(*paths_of(log))
        if wanted.get("columns") == prepared.columns:  # the settings of a run on it
            del wanted["columns"]
        wanted.pop("labels", None)  # 0 and 1 are numbers, and what takes no others says so
        others = {"test": test, "format": format, "sort_files": None if sort_files == "name" else sort_files}
        for option in (*(name for name, value in others.items() if value is not None), *wanted):
            raise LogOptionError(f"`{option}` is for raw logs; {shown(log)} is a folder, prepared already", option)
        return prepared
    if like is not None and not {"schema", "dataset"} & set(wanted):
        inherited = {"columns": "categorical", **_given(like)}
        if whole:  # then no rows are test rows
            inherited.pop("test_fraction", None)
            inherited.pop("test_from", None)
        fixed = next((one for one in FORMATS if one.option is not None and one.option in wanted), None)
        if fixed is not None and isinstance(inherited["columns"], Mapping):
            raise LogOptionError(
                f"`{fixed.option}` is for {str(fixed.name).capitalize()}'s log; the columns of the run's log are other "
                "ones, as which these are read: leave it out",
                str(fixed.option),
            )
        wanted = {**inherited, **wanted}
    files, found, tests = raw_log_files(log, test, format, sort_files=sort_files, whole=whole, **wanted)
    opened = RawLog(
        files,
        found,
        tests=tests,
        name=shown(log),
        on_bad_row=on_bad_row,
        max_bad=max_bad,
        threads=threads,
        on_progress=on_progress,
        chunk_bytes=chunk_bytes,
    )
    for note in opened.notes:
        _logger.warning(note)
    return opened


def is_prepared(log: LogPaths) -> bool:
    """Whether it is a prepared log, or one that `prepare` has not finished."""
    paths = paths_of(log)
    return len(paths) == 1 and is_prepared_folder(Path(paths[0]))


def raw_log_files(
    log: LogPaths,
    test: LogPaths | None = None,
    format: LogFormat | None = None,
    *,
    sort_files: SortFiles = "name",
    whole: bool = False,
    root: str | Path | None = None,
    **options: Unpack[FormatOptions],
) -> tuple[list[RawFile], LogFormat, int]:
    """Return the files of a raw log in order, their format, and the number of the test set's files, which are the last.

    For `root`, see `listed`.
    """
    groups = [listed(paths, by_name=sort_files != "given", root=root) for paths in (log, test) if paths is not None]
    alike = format is None and options.get("schema") is None
    if sort_files == "time":  # one file shows which column that is, many only once they are in order
        for files in groups:
            _must_be_alike(files, alike)
        found = format_of(*([files[0]] for files in groups), format=format, whole=whole, **options)
        groups = [by_first_time(files, found) for files in groups]
    for files in groups:
        _must_be_alike(files, alike)
    found = format_of(*groups, format=format, whole=whole, **options)
    return [file for files in groups for file in files], found, sum(map(len, groups[1:]))


def _must_be_alike(files: Sequence[RawFile], alike: bool) -> None:
    """Compare the columns of each file with the first one's when the file is opened."""
    for file in files:
        file.first = files[0] if alike and file is not files[0] else None


def _given(options: FormatOptions) -> dict[str, Any]:
    """The options that are not as by default."""
    if unknown := options.keys() - FormatOptions.__annotations__.keys():
        raise TypeError(f"unexpected option {min(unknown)!r}")
    values: Mapping[str, Any] = {**options, "exclude": tuple(options.get("exclude", ()))}
    return {name: value for name, value in values.items() if value is not None and value != _DEFAULTS.get(name)}


def format_of(
    files: Sequence[RawFile],
    tests: Sequence[RawFile] = (),
    *,
    format: LogFormat | None = None,
    whole: bool = False,
    **options: Unpack[FormatOptions],
) -> LogFormat:
    """The format of a log of these files, and perhaps of a test log; see `open_log`."""
    wanted, first = _given(options), files[0]
    for option in ("test_fraction", "test_from") if format is None and tests else ():
        if option in wanted:
            raise LogOptionError(f"`{option}` and `test` cannot both be given", option, "test")
    found = format or _chosen(files, wanted, needs_label=not whole)
    if found.tasks:
        found = _with_rules(found, wanted.get("labels"))
    elif _takes_numbers(wanted.get("labels")) and not found.label_rule:
        found = replace(found, label_rule=wanted["labels"])
    elif _takes_classes(wanted) and found.label_rule in ("", CLASSES) and first.has_label(found):
        found = _with_classes(files, found, wanted["labels"])
    found = _with_class_weights(found, wanted)
    if whole:  # rows to score need neither label nor weight
        if format is None and not first.has_label(found):
            found = found.without_label()
        if format is None and found.weight is not None and found.has_header and found.weight not in first.head.columns:
            found = replace(found, weight=None)
        found = found.for_scoring()
    elif "test_from" in wanted:
        found = _split_at(found, wanted, files[0].source)
    return replace(found, split="file", split_column=None) if tests else found


def _takes_classes(wanted: Mapping[str, Any]) -> bool:
    return not _takes_numbers(wanted.get("labels")) and wanted.get("labels") not in (None, "binary")


def _takes_numbers(labels: object) -> bool:
    return isinstance(labels, str) and labels.startswith(NUMBERS)


def _with_rules(log: LogFormat, labels: str | Sequence[str] | None) -> LogFormat:
    """The format of several tasks, each of whose labels are 0 or 1, or numbers."""
    kinds = [labels or "binary"] * len(log.tasks) if labels is None or isinstance(labels, str) else list(labels)
    if len(kinds) != len(log.tasks) or not all(kind == "binary" or _takes_numbers(kind) for kind in kinds):
        raise LogOptionError(
            f"`objective` or `labels`: the {len(log.tasks)} labels {', '.join(map(str, log.readers))} take 0 and 1 or "
            f"numbers, all of them or each, got {labels if isinstance(labels, str) else ', '.join(kinds)}",
            "objective",
            "labels",
        )
    given = zip(log.readers, kinds, strict=True)
    rules = (one.rule or kind.removeprefix("binary") for one, kind in given)
    return log.labelled_by([replace(one, rule=rule) for one, rule in zip(log.readers, rules, strict=True)])


def _with_classes(files: Sequence[RawFile], log: LogFormat, labels: str | Sequence[str]) -> LogFormat:
    """The format of labels that are these classes, or the values of its first rows."""
    if not isinstance(labels, str) and all(one == "binary" or _takes_numbers(one) for one in labels):
        raise LogOptionError(f"`label` {log.label!r} is one, and `objective` is of {len(labels)} tasks", "label")
    if not isinstance(labels, str):
        return replace(log, label_rule=Label.of_classes(log.label, labels).rule)
    if labels != CLASSES:
        raise LogOptionError(f"`labels` is binary, numbers, classes, or a list of these, got {labels!r}", "labels")
    plain = replace(
        log, fields=(), numbers=(), lists={}, time=None, weight=None, split_column=None, derive=None, checked={}
    )
    found, rows, size = [pl.Series(dtype=pl.String)], 0, 0
    for file, chunk, read in _chunks(files, plain):
        found.append(texts_of(file.full_frame(chunk, plain, []), [log.label])[log.label])
        rows, size = rows + len(found[-1]), size + read
        if rows >= SAMPLE_ROWS or size >= _SAMPLE_BYTES:
            break
    texts = pl.concat(found).head(SAMPLE_ROWS)
    if merged := padded_twins(texts):
        _logger.warning(
            "label %r: %s are one class: blanks before and after a text are no part of it",
            log.label,
            " and ".join(map(repr, merged)),
        )
    return replace(log, label_rule=Label.of_classes(log.label, classes_in(texts)).rule)


def _with_class_weights(log: LogFormat, wanted: Mapping[str, Any]) -> LogFormat:
    """The format with weights of negatives and positives."""
    kept, positive = wanted.get("negatives_kept", 1.0), wanted.get("positive_weight", 1.0)
    for option, value, valid in (("negatives_kept", kept, 0 < kept <= 1), ("positive_weight", positive, positive > 0)):
        if not valid or not isfinite(value):
            raise LogOptionError(f"`{option}` must be {'in (0, 1]' if value is kept else '> 0'}, got {value}", option)
        if option in wanted and not log.is_binary:
            what = "of several tasks" if log.tasks else "classes" if log.reader.classes else "numbers"
            raise LogOptionError(f"`{option}` is for labels 0 and 1; these are {what}", option)
    return replace(log, class_weights=(1 / kept, positive))


def _split_at(log: LogFormat, wanted: Mapping[str, Any], source: str) -> LogFormat:
    """The format with the test set from a time on."""
    if "test_fraction" in wanted:
        raise LogOptionError("`test_from` and `test_fraction` cannot both be given", "test_from", "test_fraction")
    if log.split_column is not None:
        what = f"the column {log.split_column!r} of {source} marks the test rows"
        raise LogOptionError(f"`test_from` cannot be given: {what}", "test_from")
    if log.time is None:
        raise LogOptionError(
            f"`test_from` is for logs with a column of times in order; {source} has none (`sparsegroup columns` shows "
            "what its columns are; a schema can say which is the time)",
            "test_from",
        )
    return replace(log, split="time", test_from=moment_of(wanted["test_from"]))


def _chosen(files: Sequence[RawFile], wanted: Mapping[str, Any], needs_label: bool) -> LogFormat:
    """The format that the schema says, that is named or recognised, or that the header and the first rows show."""
    of_a_header = {name: wanted[name] for name in _OF_A_HEADER if name in wanted}
    # The options that a format cannot pass over.
    binding = [name for name, value in of_a_header.items() if (name, value) != ("columns", "categorical")]
    known = _named(wanted)
    if "schema" in wanted:
        for option in binding:
            raise LogOptionError(f"`{option}` and `schema` cannot both be given; the schema says it", option, "schema")
        if isinstance(schema := wanted["schema"], Path) and not schema.is_file():
            what = f"say with `schema` what the columns of {files[0].source} are"
            raise LogOptionError(f"no schema {schema}; {what}", "schema")
        return read_schema(schema)
    if known is None:
        head = files[0].head
        if not isinstance(wanted.get("columns"), Mapping):
            known = next((log for one in FORMATS if (log := one.recognise(head, needs_label)) is not None), None)
        if (known is None or known.has_header) and len(set(head.columns)) < len(head.columns):
            name = min(name for name in head.columns if head.columns.count(name) > 1)
            raise ClickLogError(f"{head.source}:1: column {name!r} appears {head.columns.count(name)} times")
        if known is None:
            labels = wanted.get("labels", "binary")
            rule = labels if _takes_numbers(labels) else CLASSES if _takes_classes(wanted) else ""
            return _headed(files, **of_a_header, rule=rule, needs_label=needs_label)
    for option in binding:
        raise LogOptionError(
            f"`{option}` is for logs whose columns come from a header; the format {known.name!r} is fixed. "
            "A schema file can describe it in another way",
            option,
        )
    return known


def _named(wanted: Mapping[str, Any]) -> LogFormat | None:
    """The format named by `dataset`, or by an option that only one format has."""
    if "schema" in wanted and "dataset" in wanted:
        raise LogOptionError("`schema` and `dataset` cannot both be given", "schema", "dataset")
    name = wanted.get("dataset")
    for known in FORMATS:
        if known.option is not None and known.option in wanted:
            if "schema" in wanted or name not in (None, known.name):
                raise LogOptionError(f"`{known.option}` is for {str(known.name).capitalize()}'s log", known.option)
            name = known.name
    for known in FORMATS:
        if name is not None and known.name == name and known.make is not None:
            return known.make(*(value for option, value in wanted.items() if option == known.option))
    if name is None:
        return None
    names = ", ".join(["auto", *(known.name for known in FORMATS if known.name is not None)])
    raise LogOptionError(f"`dataset` is one of {names}, got {name!r}", "dataset")


# A log whose columns have names


def _headed(
    files: Sequence[RawFile],
    label: str | Sequence[str] | None = None,
    exclude: Collection[str] = (),
    test_fraction: float | None = None,
    columns: Kinds | None = None,
    weight: str | None = None,
    *,
    rule: str = "",
    needs_label: bool = True,
) -> LogFormat:
    """The format of a log whose columns have names.

    `rule`: how a label's own values are read; `needs_label`: whether label and weight must be among the columns.
    """
    head, header = files[0].head, files[0].head.columns
    where, names = f"{head.source}:1", ", ".join(header)
    if not head.line.strip() and head.separator:
        raise ClickLogError(f"{where}: the first line is empty; it must name the columns")
    if needs_label and (unknown := [name for name in exclude if name not in header]):
        raise ClickLogError(f"{where}: no column {unknown[0]!r} to exclude. The columns are {names}")
    readers = () if label is None else Label.several(label, header)
    if len(readers) == 1 and not readers[0].rule:
        readers = (replace(readers[0], rule=rule),)
    labels = [column for one in readers for column in one.columns]
    found = labels[0] if labels else _label_of(header, columns)
    if needs_label and (found not in header or not set(labels) <= set(header)):
        missing = next((one for one in labels if one not in header), label)
        wanted = repr(missing) if label is not None else " or ".join(map(repr, LABELS[:2]))
        proposed = _proposed(_first_rows(files, exclude)[0])
        raise ClickLogError(
            f"{where}: no label column {wanted}; name it with `label`{proposed}. The columns are {names}", "label"
        )
    found = found or LABELS[0]
    readers = readers or (Label(found, rule),)
    labels, reader = [column for one in readers for column in one.columns], readers[0]
    split_column = _split_of([name for name in header if name not in labels], columns)
    if split_column and test_fraction is not None:
        raise LogOptionError(
            f"`test_fraction` is for logs without a column {split_column!r}, which marks the test rows of "
            f"{head.source}",
            "test_fraction",
        )
    weigher = None if weight == NO_WEIGHT else weight
    if weigher is not None and needs_label and weigher not in header:
        raise ClickLogError(f"{where}: no column {weigher!r} for `weight`. The columns are {names}", "weight")
    if weigher is not None and weigher in (*labels, split_column, *exclude):
        raise LogOptionError(f"`weight`: {weigher!r} is the label or the split already, or excluded", "weight")
    # pandas writes its index in a first column without a name, which inference leaves out
    named = header if columns == "categorical" else header[1:] if columns is None else ()
    if "" in named and "" not in exclude:
        place = header.index("") + 1
        raise ClickLogError(f"{where}: column {place} has no name; name it, or give a schema without it")
    others: dict[str, Any] = {
        "split": "column" if split_column else "last-fraction",
        "split_column": split_column,
        "test_fraction": TEST_FRACTION if test_fraction is None else test_fraction,
        "separator": head.separator,
    }
    if columns == "categorical":
        fields = tuple(name for name in header if name not in {*labels, weigher, "id", *TIMES, split_column, *exclude})
        time = next((name for name in TIMES if name in header and name != found), None)
        return LogFormat("log", found, fields, time=time, weight=weigher, **others).labelled_by(readers)
    findings: tuple[ColumnFinding, ...] = ()
    if columns is None:
        known = dict.fromkeys(exclude, ("ignore", "left out, as requested"))
        for name in labels:
            known[name] = ("label", "the label, by its name" if label is None else "the label, as requested")
        if split_column:
            known[split_column] = ("split", "marks the test rows, by its name")
        if weigher is not None:
            known[weigher] = ("weight", "how much a row counts, as requested")
        rows, types, whole = _first_rows(files, {*exclude} - {*labels})
        if needs_label and len(readers) == 1:
            reader.check(rows[found], where)
        outcomes = _other_labels(rows, known) if labels else []
        known |= dict.fromkeys(outcomes, ("ignore", "another label, by its name and values"))
        findings = infer_columns(rows, whole=whole, known=known, finds_weight=weight is None, types=types)
        findings = tuple(
            replace(one, warning=_IS_OTHER_LABEL.format(one.name, found)) if one.name in outcomes else one
            for one in findings
        )
        if found in rows.columns and reader.tries is None and len(readers) == 1:
            findings = with_aucs(findings, rows, reader)
        inferred = {name: ColumnFinding(name, *known[name]) for name in exclude if name in known}
        inferred |= {"": ColumnFinding("", "ignore", "has no name")} | {finding.name: finding for finding in findings}
        findings = tuple(inferred[name] for name in header)
        columns = kinds_of(findings)
    kinds = {name: "ignore" if name in exclude and name not in labels else kind for name, kind in columns.items()}
    kinds |= dict.fromkeys(labels[1:], "label")
    if weight is not None:
        kinds = {name: "ignore" if kind == "weight" else kind for name, kind in kinds.items()}
        kinds |= {} if weigher is None else {weigher: "weight"}
    return replace(format_for_kinds(kinds, found, **others).labelled_by(readers), findings=findings)


def _other_labels(rows: pl.DataFrame, known: Collection[str]) -> list[str]:
    """Return the columns of 0 and 1 that are named like a label, except known columns."""
    named = (name for name in rows.columns if name.lower() in LABELS and name not in known)
    return [name for name in named if {*Label(name).read(rows[name].unique())} == {0, 1}]


def _label_of(header: Sequence[str], columns: Kinds | None) -> str | None:
    """The label column, by what is known of the columns, or else by its name."""
    if isinstance(columns, Mapping):
        known = next((name for name, kind in columns.items() if kind == "label"), None)
        if known is not None:
            return known
    lower = {name.lower(): name for name in reversed(header)}
    return next((name for name in LABELS if name in header), None) or next(
        (lower[name] for name in LABELS if name in lower), None
    )


def _split_of(header: Sequence[str], columns: Kinds | None) -> str | None:
    """Return the column that marks the test rows: the column of kind "split", else the column with this name."""
    kinds = columns if isinstance(columns, Mapping) else {}
    named = [name for name in header if name.lower() == SPLIT and kinds.get(name, "split") == "split"]
    return next((name for name in header if kinds.get(name) == "split"), next(iter(named), None))


def _proposed(rows: pl.DataFrame) -> str:
    """The columns that can be the label, for a message: no value but 0 and 1, or the like, and both of them."""
    labels = {name: {*Label(name).read(rows[name].unique())} for name in rows.columns}
    found = [name for name, values in labels.items() if values == {0, 1}]
    proposed = " or ".join(f"`label` {quote(name)}" for name in found[:3])
    return f", such as {proposed} (0 or 1 in each row)" if found else ""


def _first_rows(
    files: Sequence[RawFile], exclude: Collection[str]
) -> tuple[pl.DataFrame, dict[str, pl.DataType], bool]:
    """Return the first rows of a log with named columns, as texts; the columns' types; and whether these are all rows.

    Unreadable rows, columns without a name and columns to `exclude` are left out. In a column that folders add, the
    values of all files are spread over the rows.
    """
    head = files[0].head
    names = tuple(name for name in head.columns if name and name not in exclude)
    kinds = dict.fromkeys(names, "category")
    log = LogFormat("log", "", names, labelled=False, separator=head.separator or ",", kinds=kinds)
    frames, rows, size, whole = [pl.DataFrame(schema=dict.fromkeys(names, pl.String))], 0, 0, True
    types: dict[str, pl.DataType] = {}
    for file, chunk, read in _chunks(files, log):
        if rows >= SAMPLE_ROWS or size >= _SAMPLE_BYTES:
            whole = False
            break
        typed = file.full_frame(chunk, log, []).select(names)
        schema = typed.schema
        types = {name: dtype for name, dtype in schema.items() if (types or schema).get(name) == dtype}
        frames.append(texts_of(typed, names))
        rows += len(frames[-1])
        size += read if head.separator else 0
    frame, count = pl.concat(frames).head(SAMPLE_ROWS), min(rows, SAMPLE_ROWS)
    for name in (name for name in head.added if name in names):
        spread = [files[row * len(files) // count].partition[name] for row in range(count)]
        frame = frame.with_columns(pl.Series(name, spread, pl.String))
    return frame, types, whole and rows <= SAMPLE_ROWS


def _chunks(files: Sequence[RawFile], log: LogFormat) -> Iterator[tuple[RawFile, Chunk, int]]:
    """The chunks of files, and how long each is."""
    for file in files:
        file.check_alike(log)
        end = 0
        for chunk in file.chunks(log, 0, 1, _SAMPLE_BYTES):
            yield file, chunk, chunk.end_offset - end
            end = chunk.end_offset
