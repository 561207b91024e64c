"""`sparsegroup prepare` through the real command line."""

from pathlib import Path

import pytest

from cli_cases import click_log
from command import Run
from sparsegroup.data.prepared_log import PreparedLog


def test_prepare_takes_a_log_and_says_what_it_holds(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    done = run("prepare", log, "out", "--vocabulary")
    assert done.returncode == 0, done.stderr
    for line in (
        "rows 2,000: 1,800 for training, 200 for testing",
        "positives 28.600%",
        "fields 2 categorical, 0 numeric",
        "features 104, of which 104 in the training rows",
        "written to out",
    ):
        assert line in " ".join(done.stdout.split())
    assert "pairs of features are expected to share a key" in " ".join(done.stdout.split())
    assert "bad" not in done.stdout + done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "log.json",
        "part-00000.parquet",
        "vocabulary.parquet",
    }
    assert len(PreparedLog(tmp_path / "out")) == 2_000


def test_the_same_command_again_leaves_the_folder_alone_and_says_the_same(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    first = run("prepare", log, "out")
    before = (tmp_path / "out" / "log.json").stat().st_mtime_ns
    again = run("prepare", log, "out")
    assert again.returncode == 0, again.stderr
    assert again.stdout.split("positives")[1] == first.stdout.split("positives")[1]
    assert (tmp_path / "out" / "log.json").stat().st_mtime_ns == before


def test_a_folder_that_holds_something_else_is_refused_and_left_alone(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("model: {}\n")
    done = run("prepare", log, "run")
    assert done.returncode == 2
    assert "run: holds config.yaml, which is no part of a prepared log; give an empty folder" in done.stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.yaml"]


def test_a_test_log_is_the_test_set(tmp_path: Path, run: Run) -> None:
    train, test = click_log(tmp_path / "train.csv", 300), click_log(tmp_path / "test.csv", 100)
    done = run("prepare", train, "out", "--test", test)
    assert done.returncode == 0, done.stderr
    assert "400: 300 for training, 100 for testing" in done.stdout


def test_a_schema_says_what_the_columns_are(tmp_path: Path, run: Run) -> None:
    (tmp_path / "schema.yaml").write_text("label: label\ncategorical: [color]\nnumeric: [size]\n")
    done = run("prepare", click_log(tmp_path / "log.csv"), "out", "--schema", "schema.yaml")
    assert done.returncode == 0, done.stderr
    assert "1 categorical, 1 numeric" in done.stdout


def test_options_say_what_the_columns_of_a_header_are(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    log.write_text(log.read_text().replace("label", "clicked", 1))
    options = ["--label", "clicked", "--exclude", "size", "--exclude", "id", "--test-fraction", 0.25]
    done = run("prepare", log, "out", *options)
    assert done.returncode == 0, done.stderr
    assert "2,000: 1,500 for training, 500 for testing" in done.stdout
    assert PreparedLog(tmp_path / "out").fields == ("color",)


def test_skipped_rows_are_counted_and_shown(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    log.write_text(log.read_text() + "2,x,1,[red],1\n1,x\n")
    done = run("prepare", log, "out", "--on-bad-row", "skip", "--max-bad", "0.1%")
    assert done.returncode == 0, done.stderr
    assert f"{log}: skipped 2 bad rows\n" in done.stderr
    assert "  line 2003: 2 columns where 5 are expected: '1,x'\n" in done.stderr
    done = run("prepare", log, "strict", "--on-bad-row", "skip", "--max-bad", "0.0005")
    assert done.returncode == 2
    assert "error: 2 of 2,002 rows are bad, more than max_bad=0.0005\n" in done.stderr
    assert not (tmp_path / "strict" / "log.json").exists()


LOG = "log.csv"
WRONG = {
    "a missing log": (["missing.csv", "out"], "missing.csv: no such file"),
    "a missing test log": ([LOG, "out", "--test", "missing.csv"], "missing.csv: no such file"),
    "a missing parquet": (["missing.parquet", "out"], "missing.parquet"),
    "an empty folder": (["empty", "out"], "empty: holds no files"),
    "its own folder": ([".", "out"], "out: lies in ., all of whose files are the log; give another folder"),
    "a file where the folder should be": ([LOG, LOG], "log.csv: File exists"),
    "no share": (
        [LOG, "out", "--max-bad", "few"],
        "data.max_bad: must be a share like 5% or .05, got 'few'",
    ),
    "all": ([LOG, "out", "--max-bad", "100%"], "data.max_bad: input should be less than 1"),
    "more than all": ([LOG, "out", "--max-bad", "2"], "data.max_bad: input should be less than 1"),
    "less than none": ([LOG, "out", "--max-bad=-1%"], "data.max_bad: input should be greater than or equal to 0"),
    "not a number": ([LOG, "out", "--max-bad", "nan"], "data.max_bad: input should be"),
    "two formats": (
        [LOG, "out", "--schema", "schema.yaml", "--dataset", "criteo"],
        "--schema and --dataset cannot both be given",
    ),
    "a label and a schema": (
        [LOG, "out", "--label", "y", "--schema", "schema.yaml"],
        "--label and --schema cannot both be given",
    ),
    "an excluded column of Criteo's": (
        [LOG, "out", "--exclude", "C1", "--dataset", "criteo"],
        "--exclude is for logs whose columns come from a header; the format 'criteo' is fixed",
    ),
    "a fraction and a test log": (
        [LOG, "out", "--test", LOG, "--test-fraction", "0.2"],
        "--test-fraction and --test cannot both be given",
    ),
    "a fraction of all": (
        [LOG, "out", "--test-fraction", "1"],
        "data.test_fraction: input should be less than 1",
    ),
    "another label": (
        [LOG, "out", "--label", "y"],
        "no label column 'y'; name it with --label, such as --label label (0",
    ),
    "a missing schema": (
        [LOG, "out", "--schema", "missing.yaml"],
        "no schema missing.yaml; say with --schema what the",
    ),
    "a wrong schema": ([LOG, "out", "--schema", LOG], "log.csv: keys and values are expected, got str"),
    "another data set": ([LOG, "out", "--dataset", "avazu"], "log.csv:1: no column 'click'; the columns are label, "),
    "a bad row": (
        ["bad.csv", "out"],
        "bad.csv:1002: label 'label' must be 0 or 1, true or false, yes or no: 'label=2'",
    ),
    "a bad row of markup": (
        ["[red].csv", "out", "--columns", "categorical"],
        "[red].csv:2: 'ts' cannot be read: 'ts=[/red]'",
    ),
    "an empty log": (["empty.csv", "out"], "empty.csv: the file is empty"),
    "no gzip": (["rubbish.csv.gz", "out"], "rubbish.csv.gz:1: damaged or truncated compressed file"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_the_user_can_mend_is_one_line_and_status_2(name: str, tmp_path: Path, run: Run) -> None:
    arguments, message = WRONG[name]
    log = click_log(tmp_path / LOG, 1000)
    (tmp_path / "bad.csv").write_text(log.read_text() + "2,x,1,red,1\n")
    (tmp_path / "[red].csv").write_text("label,ts,a\n0,[/red],x\n")
    (tmp_path / "empty.csv").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    (tmp_path / "rubbish.csv.gz").write_bytes(b"label,a\n0,x\n")
    done = run("prepare", *arguments)
    assert done.returncode == 2
    assert "error: " in done.stderr
    assert message in done.stderr
    assert done.stderr.count("error: ") == 1
    assert "Traceback" not in done.stdout
    assert not (tmp_path / "out" / "log.json").exists()
