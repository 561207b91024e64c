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
    log.write_text(log.read_text().replace("label", "clicked", 1) + "1,x\n")
    options = ("--label", "clicked", "--exclude", "size", "--exclude", "id", "--test-fraction", 0.25)
    done = ok("prepare", log, "other", *options, "--on-bad-row", "skip", "--max-bad", "0.1%")
    assert "2,000: 1,500 for training, 500 for testing" in done.stdout
    assert f"{log}: skipped 1 bad row\n" in done.stderr
    assert "  line 2002: 2 columns where 5 are expected: '1,x'\n" in done.stderr
    assert PreparedLog(tmp_path / "other").fields == ("color",)
