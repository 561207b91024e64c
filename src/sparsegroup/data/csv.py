"""Reading a click log from CSV, plain or compressed (.gz, .bz2, .xz, .zst)."""

import lzma
import re
import zlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from sparsegroup.data.clicklog import ClickLog, encode
from sparsegroup.data.errors import BadRows, ClickLogError
from sparsegroup.data.lines import open_log
from sparsegroup.data.schema import Schema, infer_schema

OnBadRow = Literal["error", "skip"]
BLOCK_BYTES = 4 << 20


def read_csv(
    path: str | Path,
    *,
    label: str | None = None,
    exclude: Collection[str] = (),
    on_bad_row: OnBadRow = "error",
    test_fraction: float = 0.1,
) -> tuple[ClickLog, BadRows]:
    """Read a whole click log with a header line into memory.

    Rows are in time order. Test rows are those with `split` 2 where there is such a column, else the last
    `test_fraction`. Every other column is a categorical field, but for the label, `id`, `ts` and `timestamp`.

    Args:
        path: The file.
        label: Label column; by default `label` or `click`.
        exclude: Columns that are no features.
        on_bad_row: "error" raises at the first bad row; "skip" leaves bad rows out and counts them.
        test_fraction: Share of the rows that is the test set, in (0, 1).

    Returns:
        The log, and the rows that were skipped.

    Raises:
        ClickLogError: A missing column, an empty or damaged file, a label that is not 0 or 1, a row with another
            number of columns, with file and line.
        FileNotFoundError: No such file.
    """
    source = str(path)
    bad = BadRows(source)
    try:
        schema = infer_schema(_header(Path(path)), source, label, exclude)
        table = _read_table(Path(path), schema, on_bad_row, bad)
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise ClickLogError(f"{source}: damaged or truncated compressed file ({error})") from error
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, FileNotFoundError | IsADirectoryError | PermissionError):
            raise
        raise ClickLogError(_explain(source, str(error))) from error
    return encode(table, schema, source, test_fraction), bad


def _reader(stream: Any, on_malformed: Callable[[Any], str], columns: Sequence[str] | None = None) -> Any:
    return pa_csv.open_csv(
        stream,
        # One thread, so that malformed rows come with their line.
        read_options=pa_csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
        parse_options=pa_csv.ParseOptions(invalid_row_handler=on_malformed, ignore_empty_lines=False),
        convert_options=pa_csv.ConvertOptions(
            include_columns=columns,
            column_types={name: pa.string() for name in columns or ()},
            strings_can_be_null=False,
        ),
    )


def _header(path: Path) -> list[str]:
    with open_log(path) as stream, _reader(stream, lambda row: "skip") as reader:
        names: list[str] = reader.schema.names
    return names


def _read_table(path: Path, schema: Schema, on_bad_row: OnBadRow, bad: BadRows) -> pa.Table:
    malformed: list[int] = []  # lines that have another number of columns, ascending

    def on_malformed(row: Any) -> str:
        malformed.append(row.number)
        bad.add(row.number, f"{row.actual_columns} columns where {row.expected_columns} are expected", row.text)
        return on_bad_row

    columns = [schema.label, *schema.fields, *([schema.split] if schema.split else [])]
    batches, rows = [], 0
    try:
        with open_log(path) as stream, _reader(stream, on_malformed, columns) as reader:
            for batch in reader:
                valid = pc.is_in(batch.column(0), value_set=pa.array(["0", "1"]))
                for index in pc.indices_nonzero(pc.invert(valid)).to_pylist():
                    values = [column[index].as_py() for column in batch.columns]
                    if not any(values):
                        continue  # a blank line, left out as CSV readers do
                    reason = f"label {schema.label!r} must be 0 or 1"
                    bad.add(_line(rows + index, malformed), reason, ",".join(values))
                    if on_bad_row == "error":
                        raise pa.ArrowInvalid(reason)
                rows += batch.num_rows
                batches.append(batch.filter(valid))
    except pa.ArrowInvalid as error:
        if on_bad_row == "error" and bad.samples:
            line, reason, text = bad.samples[0]
            raise ClickLogError(f"{bad.source}:{line}: {reason}: {text!r}") from error
        raise
    if not any(batch.num_rows for batch in batches):
        skipped = f" ({bad.count:,} bad ones were skipped)" if bad.count else ""
        raise ClickLogError(f"{bad.source}: no rows after the header{skipped}")
    return pa.Table.from_batches(batches)


def _explain(source: str, message: str) -> str:
    """Arrow's message as ours: `FILE:LINE: what is wrong`."""
    if "Empty CSV file" in message:
        return f"{source}: the file is empty"
    if "inflate" in message or "compressed" in message.lower():
        return f"{source}: damaged or truncated compressed file ({message})"
    row = re.search(r"Row #(\d+)", message)
    return f"{source}:{row[1]}: {message}" if row else f"{source}: {message}"


def _line(valid_row: int, malformed: list[int]) -> int:
    """Line of the n-th well-formed row (from 0), the header being line 1."""
    line = valid_row + 2
    for number in malformed:
        line += number <= line
    return line
