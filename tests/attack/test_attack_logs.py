"""Damaged log files of every format are read, or refused with an error that names them; no process ends of them."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attack_driver import attack
from damaged_logs import FORMATS, arrow_bytes, typed_table

from data_cases import written
from over import over
from sparsegroup.data import PreparedLog, open_log, prepare
from sparsegroup.errors import ClickLogError

SHORT, WHOLE = 4, 10_000


@over("name", FORMATS)
def test_the_sound_files_are_read(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    for sound in FORMATS[name](folder):
        sound.path.write_bytes(sound.content if sound.pack is None else sound.pack(sound.content))
        sound.read(sound.path, random.Random(1))


def test_a_few_damaged_files_of_each_format_are_read_or_refused(tmp_path: Path) -> None:
    for outcomes in attack(tmp_path, [(name, number) for name in FORMATS for number in range(SHORT)]).values():
        assert outcomes.counts.total() == SHORT
        assert not outcomes.failures, "\n".join(outcomes.failures)


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


@over("dtype", [pa.timestamp("ms"), pa.timestamp("s"), pa.date64(), pa.duration("s")])
def test_a_time_that_no_calendar_has_makes_a_bad_row(dtype: pa.DataType, tmp_path: Path) -> None:
    times = pa.array([0, (1 << 62) // 86_400_000 * 86_400_000, None, 86_400_000], pa.int64()).view(dtype)
    path = tmp_path / "log.arrow"
    path.write_bytes(arrow_bytes(pa.table({"label": [0, 1, 0, 1], "a": ["x"] * 4, "seen": times})))
    log = open_log(
        path, on_bad_row="skip", max_bad=0.5, columns={"label": "label", "a": "category", "seen": "category"}
    )
    assert len(log) == 3
    with pytest.raises(ClickLogError, match=r"log.arrow:2: 'seen' is not within the years 1 to 9999"):
        list(open_log(path, columns={"label": "label", "a": "category", "seen": "category"}).batches(0, 4, 4))


@over("inner", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
@over("suffix", [".parquet", ".arrow"])
def test_a_value_of_more_than_a_mebibyte_makes_a_bad_row(suffix: str, inner: pa.DataType, tmp_path: Path) -> None:
    path, long = tmp_path / f"log{suffix}", "x" * ((1 << 20) + 1)
    table = pa.table({"label": [0, 1, 0, 1], "a": pa.array(["x", long, long[1:], None]).cast(inner)})
    pq.write_table(table, path) if suffix == ".parquet" else path.write_bytes(arrow_bytes(table))
    columns = {"label": "label", "a": "category"}
    assert len(open_log(path, columns=columns, on_bad_row="skip", max_bad=0.5)) == 3
    with pytest.raises(ClickLogError, match=r"log[.a-z]*:2: 'a' has more than 1,048,576 bytes: 'a=x+'"):
        list(open_log(path, columns=columns).batches(0, 4, 4))


def test_a_list_that_is_too_long_as_text_makes_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"label": [0, 1], "a": [["x"], ["x" * 1000] * 1100]}), path)
    with pytest.raises(ClickLogError, match=r"log.parquet:2: 'a' has more than 1,048,576 bytes"):
        list(open_log(path, columns={"label": "label", "a": "list json"}).batches(0, 2, 2))


@over("column", [pa.array([[("a", 1)]] * 2, pa.map_(pa.string(), pa.int32())), pa.array([b"\xff"] * 2)])
def test_a_column_that_cannot_be_read_is_named_with_what_to_do(column: pa.Array, tmp_path: Path) -> None:
    path = tmp_path / "log.arrow"
    path.write_bytes(arrow_bytes(pa.table({"label": [0, 1], "a": ["x", "y"], "odd": column})))
    with pytest.raises(ClickLogError, match=r"log.arrow: column 'odd' is .*write it as text, or give a schema without"):
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
    log, part = PreparedLog(tmp_path / "log"), tmp_path / "log" / "part-00000.parquet"
    table = pq.read_table(part).drop_columns("a")
    pq.write_table(table if column is None else table.append_column("a", column), part)
    with pytest.raises(ClickLogError, match=rf"part-00000.parquet: damaged \({said}\)"):
        list(log.batches(0, 2, 2))


@over("suffix", [".csv", ".feather", ".parquet"])
def test_a_name_with_a_zero_byte_is_the_name_of_a_column(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"log{suffix}"
    lists = ["a|b", "b", "c|a|b"]
    if suffix == ".csv":
        path.write_text("label,tag\0\n" + "".join(f"{row % 2},{text}\n" for row, text in enumerate(lists)))
    else:
        table = pa.table({"label": [0, 1, 0], "tag\0": lists})
        path.write_bytes(arrow_bytes(table)) if suffix == ".feather" else pq.write_table(table, path)
    log = open_log(path, columns={"label": "label", "tag\0": "list |"})
    assert [len(batch.labels) for batch in log.batches(0, 3, 3)] == [3]


def test_a_split_cell_that_is_empty_marks_no_test_row(tmp_path: Path) -> None:
    rows = [f"{number % 2},v{number % 3},{split}" for number, split in enumerate(["", "0", "", "1", "2", "2"])]
    log = open_log(written(tmp_path / "log.csv", "\n".join(["label,c,split", *rows]) + "\n"))
    assert (log.train_rows, len(log)) == (4, 6)
