"""What a log's header and a command's options make of a log; options that do not go together."""

from pathlib import Path
from typing import Any

import pytest

from data_cases import AVAZU, INTEGERS, IPINYOU, avazu_log, criteo_log, written
from sparsegroup.data import ClickLogError, LogOptionError, open_log, prepare
from sparsegroup.data.formats import avazu, criteo
from sparsegroup.data.open import format_of
from sparsegroup.data.raw.files import raw_file
from sparsegroup.data.schema import LogFormat, read_schema

COLUMNS = "id, clicked, color, size, ts, label"


def chosen(log: Path, test: Path | None = None, **options: Any) -> LogFormat:
    return format_of([raw_file(log)], [] if test is None else [raw_file(test)], **options)


def header_log(path: Path, rows: int = 57) -> Path:
    lines = [COLUMNS.replace(" ", "")] + [f"{i},{i % 2},c{i % 5},{i % 3},{i},l{i}" for i in range(rows)]
    return written(path, "\n".join(lines))


def test_label_and_exclude_say_what_the_columns_of_a_header_are(tmp_path: Path) -> None:
    path = header_log(tmp_path / "log.csv")
    log = chosen(path, label="clicked", exclude=["label", "size"])
    assert (log.label, log.fields, log.time, log.split) == ("clicked", ("color",), "ts", "last-fraction")
    by_name = chosen(path)
    assert (by_name.label, by_name.fields) == ("label", ("clicked", "color", "size"))
    split = written(tmp_path / "split.csv", "split,a,ts\n1,x,3\n")  # their names do not say that they are not the label
    assert chosen(split, label="split").split_column is None
    assert chosen(split, label="ts").time is None
    assert chosen(written(tmp_path / "none.csv", ",label,a\n0,1,x\n"), exclude=[""]).fields == ("a",)
    another = "such as `label` clicked (0 or 1 in each row). "
    for options, message in (
        ({"label": "click"}, f"no label column 'click'; name it with `label`, {another}The columns are {COLUMNS}"),
        ({"exclude": ["size", "sise"]}, f"no column 'sise' to exclude. The columns are {COLUMNS}"),
    ):
        with pytest.raises(ClickLogError) as raised:
            chosen(path, **options)
        assert str(raised.value) == f"{path}:1: {message}"


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.25, 0.999, 1e-9])
def test_the_test_set_is_the_fraction_of_the_rows(fraction: float, tmp_path: Path) -> None:
    path = header_log(tmp_path / "log.csv")
    log = chosen(path, label="clicked", exclude=["label"], test_fraction=fraction)
    if fraction == 0.999:
        with pytest.raises(ClickLogError, match="no training rows; all 57 are for testing"):
            prepare([path], tmp_path / "out", log)
    else:
        expected = 57 - round(57 * fraction)
        assert open_log(path, format=log).train_rows == expected
        assert prepare([path], tmp_path / "out", log)[0].train_rows == expected


@pytest.mark.parametrize("fraction", [1.0, -0.1, float("nan"), float("inf")])
def test_a_fraction_out_of_range_is_refused(fraction: float, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"test_fraction must be in \[0, 1\), got "):
        chosen(header_log(tmp_path / "log.csv"), test_fraction=fraction)
    schema = written(tmp_path / "schema.yaml", f"label: a\ntest_fraction: {str(fraction).replace('n', '.n', 1)}")
    with pytest.raises(ClickLogError, match="test_fraction: input should be"):
        read_schema(schema)


def test_a_schema_says_its_test_fraction(tmp_path: Path) -> None:
    text = "label: a\ncategorical: [b]\n"
    for given, expected in (("", 0.1), ("test_fraction: 0.3", 0.3), ("test_fraction: 0", 0.0)):
        log = chosen(Path("any.csv"), schema=written(tmp_path / "schema.yaml", text + given))
        assert (log.split, log.test_fraction) == ("last-fraction", expected)
    both = written(tmp_path / "both.yaml", text + "split: c\ntest_fraction: 0.3")
    with pytest.raises(ClickLogError, match=r"both.yaml: split and test_fraction cannot both be given"):
        read_schema(both)


LABEL: dict[str, Any] = {"label": "click"}
EXCLUDE: dict[str, Any] = {"exclude": ["a"]}
FRACTION: dict[str, Any] = {"test_fraction": 0.1}
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("log.csv", {"schema": Path("s.yaml"), "dataset": "criteo"}, "`schema` and `dataset` cannot both be given"),
    ("log.csv", {"test": Path("t.csv"), **FRACTION}, "`test_fraction` and `test` cannot both be given"),
    ("log.csv", {"criteo_numbers": "buckets", "dataset": "avazu"}, "`criteo_numbers` is for Criteo's log"),
    ("log.csv", {"criteo_numbers": "buckets", "schema": Path("s.yaml")}, "`criteo_numbers` is for Criteo's log"),
    ("log.csv", {"avazu_hour": "raw", "dataset": "criteo"}, "`avazu_hour` is for Avazu's log"),
    ("log.csv", {"avazu_hour": "raw", "criteo_numbers": "buckets"}, "`avazu_hour` is for Avazu's log"),
    ("split.csv", FRACTION, "`test_fraction` is for logs without a column 'split', which marks the test rows of"),
]
WRONG += [
    ("log.csv", {"schema": Path("s.yaml"), **option}, f"{name} and `schema` cannot both be given")
    for name, option in (("`label`", LABEL), ("`exclude`", EXCLUDE), ("`test_fraction`", FRACTION))
]
WRONG += [
    (log, {**options, **option}, f"{name} is for logs whose columns come from a header; the format {which!r}")
    for log, options, which in (
        ("log.csv", {"dataset": "criteo"}, "criteo"),
        ("log.csv", {"dataset": "ipinyou"}, "ipinyou"),
        ("log.csv", {"avazu_hour": "raw"}, "avazu"),
        ("criteo.txt", {}, "criteo"),
        ("avazu.csv", {}, "avazu"),
        ("ipinyou.txt", {}, "ipinyou"),
        ("svm.txt", {}, "libsvm"),
    )
    for name, option in (("`label`", LABEL), ("`exclude`", EXCLUDE), ("`test_fraction`", FRACTION))
]


@pytest.mark.parametrize(("log", "options", "message"), WRONG)
def test_options_that_do_not_go_together_are_both_named(
    log: str, options: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    header_log(tmp_path / "log.csv")
    written(tmp_path / "split.csv", "label,a,split\n")
    criteo_log(tmp_path / "criteo.txt", INTEGERS)
    avazu_log(tmp_path / "avazu.csv", [])
    written(tmp_path / "ipinyou.txt", IPINYOU.replace(" ", "\t"))
    written(tmp_path / "svm.txt", "1 2:1 3:1")
    with pytest.raises(LogOptionError, match=r"^`") as raised:
        chosen(Path(log), **options)
    assert message in str(raised.value)
    assert not isinstance(raised.value, ClickLogError)


def test_what_is_asked_for_goes_before_what_the_log_looks_like(tmp_path: Path) -> None:
    path = header_log(tmp_path / "log.csv")
    assert chosen(path, criteo_numbers="buckets").fields == criteo("buckets").fields
    assert chosen(path, avazu_hour="weekday-hour").variant == "weekday-hour"
    assert chosen(path, dataset="ipinyou").name == "ipinyou"
    assert chosen(written(tmp_path / "avazu.csv", AVAZU)).fields == avazu().fields
