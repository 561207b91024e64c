"""Damaged log files of every format are read, or refused with an error that names them.

`test_attack_forged` has a few of each format.
"""

import random
import re
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attack_driver import attack
from damaged_logs import FORMATS, arrow_bytes, typed_table

from data_cases import written
from forgery import seal_file
from over import over
from sparsegroup.data import PreparedLog, open_log, prepare
from sparsegroup.data.prepared_log import MANIFEST
from sparsegroup.errors import ClickLogError

WHOLE = 10_000


@over("name", FORMATS)
def test_the_sound_files_are_read(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    for sound in FORMATS[name](folder):
        sound.path.write_bytes(sound.content if sound.pack is None else sound.pack(sound.content))
        sound.read(sound.path, random.Random(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_ten_thousand_damaged_files_are_read_or_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = attack(tmp_path, [(name, number) for number in range(WHOLE)])[name]
    with capsys.disabled():
        print(f"\n{name}: {dict(outcomes.counts)}")
    assert outcomes.counts.total() == WHOLE
    assert not outcomes.failures, "\n".join(outcomes.failures[:20])


LONG, TOO_LONG = "x" * (1 << 20), "x" * ((1 << 20) + 1)
TIMES = pa.array([0, (1 << 62) // 86_400_000 * 86_400_000, None, 86_400_000], pa.int64())
BAD_VALUES = [  # column, its kind, what is said of the second of its rows
    *(
        (TIMES.view(dtype), "category", "'a' is not within the years 1 to 9999")
        for dtype in (pa.timestamp("ms"), pa.timestamp("s"), pa.date64(), pa.duration("s"))
    ),
    *(
        (pa.array(["x", TOO_LONG, LONG, None]).cast(dtype), "category", "'a' has more than 1,048,576 bytes: 'a=x+'")
        for dtype in (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string()))
    ),
    (pa.array([["x"], ["x" * 1000] * 1100, ["y"], None]), "list json", "'a' has more than 1,048,576 bytes"),
]


@over(("column", "kind", "said"), BAD_VALUES)
def test_a_value_that_no_text_has_makes_a_bad_row(column: pa.Array, kind: str, said: str, tmp_path: Path) -> None:
    table, columns = pa.table({"label": [0, 1, 0, 1], "a": column}), {"label": "label", "a": kind}
    (tmp_path / "log.arrow").write_bytes(arrow_bytes(table))
    paths = [tmp_path / "log.arrow"]
    if "bytes" in said:
        paths.append(tmp_path / "log.parquet")
        pq.write_table(table, paths[1])
    for path in paths:
        assert len(open_log(path, columns=columns, on_bad_row="skip", max_bad=0.5)) == 3
        with pytest.raises(ClickLogError, match=rf"{path.name}:2: {said}"):
            list(open_log(path, columns=columns).batches(0, 4, 4))


def test_a_column_that_cannot_be_read_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "log.arrow"
    path.write_bytes(arrow_bytes(pa.table({"label": [0, 1], "a": ["x", "y"], "odd": [b"\xff"] * 2})))
    with pytest.raises(ClickLogError, match=r"log.arrow: column 'odd' is .*leave it out .*write it as text"):
        open_log(path)
    schema = written(tmp_path / "schema.yaml", "label: label\ncategorical: [a]")
    assert len(open_log(path, schema=schema)) == 2


def test_a_damaged_row_group_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(typed_table(), path, row_group_size=15, write_page_checksum=True, compression="none")
    content = bytearray(path.read_bytes())
    start = pq.read_metadata(path).row_group(1).column(1).data_page_offset
    content[start + 60] ^= 1
    path.write_bytes(content)
    with pytest.raises(ClickLogError, match=r"log.parquet: row group 2: damaged \(.*CRC"):
        open_log(path)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (None, "log.json names a column 'a' of int64, not there"),
        (pa.array(["x", "y"]), "log.json names a column 'a' of int64, not there"),
        (pa.array([1, None]), "column 'a' lacks values"),
    ],
)
def test_a_part_of_a_prepared_log_with_another_column_is_refused(
    column: pa.Array | None, said: str, tmp_path: Path
) -> None:
    prepare([written(tmp_path / "log.csv", "label,a\n0,x\n1,y\n")], tmp_path / "log", columns="categorical")
    part = tmp_path / "log" / "part-00000.parquet"
    table = pq.read_table(part).drop_columns("a")
    pq.write_table(table if column is None else table.append_column("a", column), part)
    seal_file(part.with_name(MANIFEST), part.name)
    log = PreparedLog(tmp_path / "log")
    with pytest.raises(ClickLogError, match=rf"part-00000.parquet: damaged \({said}\)"):
        list(log.batches(0, 2, 2))


def test_a_split_cell_that_is_empty_marks_no_test_row(tmp_path: Path) -> None:
    rows = [f"{number % 2},v{number % 3},{split}" for number, split in enumerate(["", "0", "", "1", "2", "2"])]
    log = open_log(written(tmp_path / "log.csv", "\n".join(["label,c,split", *rows]) + "\n"))
    assert (log.train_rows, len(log)) == (4, 6)


def odd_columns() -> dict[str, pa.Array]:
    """Columns of 4 rows of types that are rare, or that Polars cannot read."""
    decimals = [Decimal(i) / 4 for i in range(4)]
    wide, narrow, index = pa.decimal256(50, 2), pa.decimal128(9, 2), pa.array([0, 1, 0, 1], pa.int8())
    columns = {
        "decimal of 256 bits": pa.array(decimals, wide),
        "decimal of 70 digits": pa.array([Decimal(10) ** 60 + i for i in range(4)], pa.decimal256(70, 2)),
        "dictionary of decimals": pa.array(decimals, wide).dictionary_encode(),
        "list of decimals": pa.array([[one] for one in decimals], pa.list_(wide)),
        "struct of decimals": pa.array([{"x": [one]} for one in decimals], pa.struct([("x", pa.list_(wide))])),
        "decimal of tens": pa.array([Decimal(10 * i) for i in range(4)], pa.decimal128(9, -1)),
        "interval": pa.array([(1, 2, 3)] * 4, pa.month_day_nano_interval()),
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([2, 4], pa.int32()), pa.array(["a", "b"])),
        "union": pa.UnionArray.from_sparse(index, [pa.array(range(4)), pa.array(list("abcd"))]),
        "view of lists": pa.array([[1, 2]] * 4, pa.list_view(pa.int64())),
        "unknown zone": pa.array(range(4), pa.timestamp("s", "Nowhere/Zone")),
        "bytes": pa.array([b"\xff\xfe"] * 4, pa.binary(2)),
    }
    assert columns["decimal of 256 bits"].cast(narrow).to_pylist() == decimals
    return columns


def test_columns_of_any_arrow_type_are_read_or_refused_without_a_word_of_rust(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    read, messages = [], []
    for name, column in odd_columns().items():
        table = pa.table({"label": [0, 1, 0, 1], "u": list("abab"), "odd": column})
        (tmp_path / "log.arrow").write_bytes(arrow_bytes(table))
        paths = [tmp_path / "log.arrow"]
        with suppress(pa.ArrowException, OSError):  # Parquet has no such type
            pq.write_table(table, tmp_path / "log.parquet")
            paths.append(tmp_path / "log.parquet")
        for path in paths:
            try:
                assert sum(map(len, open_log(path).batches(0, 4, 4))) == 4
                read.append(name)
            except ClickLogError as error:
                messages.append(str(error))
    assert all(re.search(r"log.(arrow|parquet): column 'odd' is .*which cannot be read", one) for one in messages)
    assert capfd.readouterr().err == ""
    assert {"decimal of 256 bits", "decimal of 70 digits", "dictionary of decimals"} <= {*read}
