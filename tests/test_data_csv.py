"""Reading click logs: ids, the train/test split, and what is said of a log that cannot be read."""

import bz2
import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest

from sparsegroup.data import ClickLogError, read_csv

ROWS = ["label,id,ts,color,size"] + [f"{i % 2},{i},{i},{'rgb'[i % 3]},{i // 8}" for i in range(40)]


def write(path: Path, lines: list[str] | str) -> Path:
    text = lines if isinstance(lines, str) else "\n".join(lines) + "\n"
    path.write_bytes(text.encode())
    return path


def test_features_are_numbered_field_by_field_in_order_of_first_appearance(tmp_path: Path) -> None:
    log, bad = read_csv(write(tmp_path / "log.csv", ROWS))
    assert bad.count == 0
    assert log.fields == ("color", "size")
    assert (len(log), log.train_rows, log.features) == (40, 36, 3 + 5)
    assert log.vocabulary["color"].to_pylist() == ["r", "g", "b"]
    np.testing.assert_array_equal(log.ids[:4], [[1, 4], [2, 4], [3, 4], [1, 4]])
    np.testing.assert_array_equal(log.labels, np.arange(40) % 2)


def test_values_that_only_the_test_rows_hold_are_unknown(tmp_path: Path) -> None:
    log, _ = read_csv(write(tmp_path / "log.csv", [*ROWS, "1,40,40,violet,4", "1,41,41,r,99"]), test_fraction=0.05)
    assert log.train_rows == 40
    np.testing.assert_array_equal(log.ids[40:], [[0, 8], [1, 0]])


def test_an_empty_value_is_a_value(tmp_path: Path) -> None:
    log, _ = read_csv(write(tmp_path / "log.csv", [*ROWS[:10], "1,9,9,,0", *ROWS[10:]]))
    assert log.vocabulary["color"].to_pylist() == ["r", "g", "b", ""]


def test_a_split_column_marks_the_test_rows(tmp_path: Path) -> None:
    lines = ["split,label,a"] + [f"{(i >= 5) + (i >= 7)},1,{i}" for i in range(10)]
    log, _ = read_csv(write(tmp_path / "log.csv", lines))
    assert (log.fields, log.train_rows) == (("a",), 7)
    lines.append("0,1,9")
    with pytest.raises(ClickLogError, match=r"log.csv: rows with split=2 \(test\) must come last"):
        read_csv(write(tmp_path / "log.csv", lines))


def test_avazu_hours_become_hours_of_the_day(tmp_path: Path) -> None:
    lines = ["id,click,hour,site_id,device_id,C14"] + [f"{i},{i % 2},141021{i % 24:02},s,d,c" for i in range(60)]
    log, _ = read_csv(write(tmp_path / "log.csv", lines))
    assert log.fields == ("hour", "site_id", "device_id", "C14")
    assert log.vocabulary["hour"].to_pylist() == [f"{h:02}" for h in range(24)]


def test_label_and_excluded_columns_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", [line.replace("label", "bought") for line in ROWS])
    log, _ = read_csv(path, label="bought", exclude=["size"])
    assert log.fields == ("color",)


@pytest.mark.parametrize(
    ("suffix", "compress"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_compression_and_line_ends_do_not_matter(tmp_path: Path, suffix: str, compress: type, newline: str) -> None:
    reference, _ = read_csv(write(tmp_path / "reference.csv", ROWS))
    path = tmp_path / f"log.csv{suffix}"
    path.write_bytes(compress(newline.join(ROWS).encode()))  # no newline at the end either
    log, _ = read_csv(path)
    np.testing.assert_array_equal(log.ids, reference.ids)
    np.testing.assert_array_equal(log.labels, reference.labels)


def test_blank_lines_and_quotes_are_read_as_csv_readers_do(tmp_path: Path) -> None:
    log, bad = read_csv(write(tmp_path / "log.csv", [*ROWS[:5], "", '1,5,5,"a,b",7', *ROWS[5:], ""]))
    assert (len(log), bad.count) == (41, 0)
    assert "a,b" in log.vocabulary["color"].to_pylist()


def test_half_written_last_line_is_named_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", "\n".join([*ROWS, "1,40,4"]))
    with pytest.raises(ClickLogError, match=r"log\.csv:42: 3 columns where 5 are expected: '1,40,4'"):
        read_csv(path)


@pytest.mark.parametrize("label", ["2", "-1", "0.0", "yes", ""])
def test_label_that_is_not_0_or_1_is_named_with_its_line(tmp_path: Path, label: str) -> None:
    path = write(tmp_path / "log.csv", [*ROWS[:11], f"{label},x,x,x,x", *ROWS[11:]])
    with pytest.raises(ClickLogError, match=rf"log\.csv:12: label 'label' must be 0 or 1: '{label},"):
        read_csv(path)


def test_lines_are_right_behind_skipped_rows_and_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsegroup.data.csv.BLOCK_BYTES", 200)
    lines = [ROWS[0], *ROWS[1:] * 30]
    lines[100] = "1,2"
    lines[500] = "7,x,x,x,x"
    lines[501] = "1,2,3,4,5,6"
    lines[900] = "8,x,x,x,x"
    log, bad = read_csv(write(tmp_path / "log.csv", lines), on_bad_row="skip")
    assert len(log) == 30 * 40 - 4
    assert bad.count == 4
    assert sorted(line for line, _, _ in bad.samples) == [101, 501, 502, 901]


def test_skipped_rows_are_counted_and_reported(tmp_path: Path) -> None:
    lines = [*ROWS, "1,2", "5,x,x,x,x", "6,x,x,x,x"]
    _, bad = read_csv(write(tmp_path / "log.csv", lines), on_bad_row="skip")
    report = str(bad)
    assert "log.csv: skipped 3 bad rows" in report
    assert "2 × label 'label' must be 0 or 1" in report
    assert "line 42: 2 columns where 5 are expected: '1,2'" in report


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "log.csv: the file is empty"),
        ("label,a\n", "log.csv: no rows after the header"),
        ("a,b\n1,2\n", "log.csv:1: no label column 'label' or 'click'; name it with --label. The columns are a, b"),
        ("label,b,b\n1,2,3\n", "log.csv:1: column 'b' appears 2 times"),
        ("label,id\n1,2\n", "log.csv:1: no feature column is left"),
        ("label,a\n1,2\n", "log.csv: 1 training and 0 test rows; both must be > 0"),
        ("label,a\n7,2\n", "log.csv:2: label 'label' must be 0 or 1"),
    ],
)
def test_a_log_that_cannot_be_used_is_explained(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(ClickLogError) as caught:
        read_csv(write(tmp_path / "log.csv", content))
    assert message in str(caught.value)


def test_only_bad_rows_is_an_error_even_when_skipping(tmp_path: Path) -> None:
    with pytest.raises(ClickLogError, match=r"no rows after the header \(2 bad ones were skipped\)"):
        read_csv(write(tmp_path / "log.csv", "label,a\n5,2\n1\n"), on_bad_row="skip")


def test_a_column_to_exclude_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ClickLogError, match="no column 'shape' to exclude; the columns are label, id"):
        read_csv(write(tmp_path / "log.csv", ROWS), exclude=["shape"])
    with pytest.raises(ClickLogError, match="no label column 'clicked'"):
        read_csv(write(tmp_path / "log.csv", ROWS), label="clicked")


def test_invalid_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes("\n".join(ROWS[:7]).encode() + b"\n1,6,6,\xff,0\n")
    with pytest.raises(ClickLogError, match=r"log\.csv:8: .*UTF8"):
        read_csv(path)


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
@pytest.mark.parametrize("damage", ["truncated", "not compressed"])
def test_damaged_compressed_files_are_named(tmp_path: Path, suffix: str, compress: type, damage: str) -> None:
    path = tmp_path / f"log.csv{suffix}"
    content = "\n".join(ROWS * 100).encode()
    path.write_bytes(compress(content)[:-30] if damage == "truncated" else content)
    with pytest.raises(ClickLogError, match=r"log\.csv\.[gx]z: damaged or truncated compressed file"):
        read_csv(path)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no\.csv"):
        read_csv(tmp_path / "no.csv")
    with pytest.raises(IsADirectoryError, match="not a click log"):
        read_csv(tmp_path)
