"""`sparsegroup prepare` through the real command line."""

from pathlib import Path

from cli_cases import click_log, summary_of
from command import Run
from sparsegroup.data.prepared_log import PreparedLog


def test_prepare_takes_a_log_and_says_what_it_holds(tmp_path: Path, ok: Run) -> None:
    log, folder = click_log(tmp_path / "log.csv"), tmp_path / "out"
    done = ok("prepare", log, "out", "--vocabulary")
    for line in (
        "rows 2,000: 1,800 for training, 200 for testing",
        "positives 28.600%",
        "fields 2 categorical, 0 numeric",
        "features 104, of which 104 in the training rows",
        "pairs of features are expected to share a key",
        "written to out",
    ):
        assert line in " ".join(done.stdout.split())
    assert "bad" not in done.stdout + done.stderr
    assert {path.name for path in folder.iterdir()} == {"log.json", "part-00000.parquet", "vocabulary.parquet"}
    assert len(PreparedLog(folder)) == 2_000
    before = (folder / "log.json").stat().st_mtime_ns
    again = ok("prepare", log, "out", "--vocabulary")
    assert again.stdout.split("positives")[1] == done.stdout.split("positives")[1]
    assert (folder / "log.json").stat().st_mtime_ns == before
    ok("prepare", log, "bare")
    for name in ("out", "bare"):  # features are named by the vocabulary
        ok("train", name, "--out", f"run-{name}", "--l21", 0, "--selection", "never", "--model", "lr")
        largest = summary_of(tmp_path / f"run-{name}")["largest"]
        assert [one["value"] is not None for one in largest] == [name == "out"] * 10


def test_options_say_what_the_columns_and_the_test_rows_are(tmp_path: Path, ok: Run) -> None:
    log, test = click_log(tmp_path / "log.csv", 300), click_log(tmp_path / "test.csv", 100)
    assert "400: 300 for training, 100 for testing" in ok("prepare", log, "tested", "--test", test).stdout
    (tmp_path / "schema.yaml").write_text("label: label\ncategorical: [color]\nnumeric: [size]\n")
    assert "1 categorical, 1 numeric" in ok("prepare", log, "by-schema", "--schema", "schema.yaml").stdout
    log.write_text(log.read_text().replace("label", "clicked", 1))
    options = ["--label", "clicked", "--exclude", "size", "--exclude", "id", "--test-fraction", 0.25]
    assert "300: 225 for training, 75 for testing" in ok("prepare", log, "out", *options).stdout
    assert PreparedLog(tmp_path / "out").fields == ("color",)


def test_skipped_rows_are_counted_and_shown(tmp_path: Path, ok: Run, run: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    log.write_text(log.read_text() + "2,x,1,[red],1\n1,x\n")
    (tmp_path / "[red].csv").write_text("label,ts,a\n0,[/red],x\n")
    done = ok("prepare", log, "out", "--on-bad-row", "skip", "--max-bad", "0.1%")
    assert f"{log}: skipped 2 bad rows\n" in done.stderr
    assert "  line 2003: 2 columns where 5 are expected: '1,x'\n" in done.stderr
    few, categorical = ("--on-bad-row", "skip", "--max-bad", "0.0005"), ("--columns", "categorical")
    for out, name, options, said in (
        ("a", "log.csv", few, "2 of 2,002 rows are bad, more than max_bad=0.0005\n"),
        (
            "b",
            "log.csv",
            categorical,
            "log.csv:2002: label 'label' must be 0 or 1, true or false, yes or no: 'label=2'",
        ),
        ("c", "[red].csv", categorical, "[red].csv:2: 'ts' cannot be read: 'ts=[/red]'\n"),
    ):
        done = run("prepare", name, out, *options)
        assert (done.returncode, said in done.stderr, done.stderr.count("error: ")) == (2, True, 1), done.stderr
        assert not (tmp_path / out / "log.json").exists()
