"""`sparsegroup predict`: the scores of `training.predict`, bit for bit, however a log is given and they are written."""

import csv
import gzip
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from command import Run, call
from data_cases import avazu_log
from endings import Refused
from sparsegroup.data import PreparedLog, open_log
from sparsegroup.training import evaluate, load_model, predict
from sparsegroup.training.predictions import PredictionWindow, predicted_rows

ROWS = 8_200  # two batches of evaluation and a part of one


def label(row: int) -> int:
    """Mostly a function of the colour."""
    return int((row % 7 in (1, 3)) != (row % 11 == 0))


def lines(rows: int) -> list[str]:
    return [
        "clicked,ts,color,size",
        *(f"{label(i)},{i},c{i % 7},{i * 2654435761 % 97}" for i in range(rows)),
    ]


def write(path: Path, content: list[str]) -> Path:
    path.write_text("\n".join(content) + "\n")
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log, raw and prepared, and a run on each."""
    folder = tmp_path_factory.mktemp("predict")
    write(folder / "log.csv", lines(ROWS))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        settings = ("--lr", 0.05, "--l21", 1e-4, "--selection", "never", "--no-baseline")
        assert call(patch, "train", "log.csv", "--label", "clicked", *settings, "--out", "run") == 0
        assert call(patch, "prepare", "log.csv", "prepared", "--label", "clicked") == 0
    return folder


@pytest.fixture(scope="module")
def expected(place: Path) -> np.ndarray[Any, Any]:
    log = PreparedLog(place / "prepared")
    return predict(load_model(place / "run"), log.batches(0, len(log), 4096)).probabilities()


LABELS = np.array([label(row) for row in range(ROWS)])
Scores = np.ndarray[Any, Any]


def from_csv(text: str) -> tuple[list[int], list[float], list[int]]:
    header, *rows = csv.reader(io.StringIO(text))
    assert header == ["row", "probability", "label"]
    return [int(row[0]) for row in rows], [float(row[1]) for row in rows], [int(row[2]) for row in rows]


def test_every_row_is_scored_as_predict_does_whatever_is_written(place: Path, expected: Scores, ok: Run) -> None:
    shown = {source: ok("predict", place / "run", place / source) for source in ("log.csv", "prepared")}
    for done in shown.values():
        assert from_csv(done.stdout) == (list(range(ROWS)), expected.tolist(), LABELS.tolist())
    for name, threads in (("a.csv", 1), ("b.csv.gz", 3), ("c.parquet", 1), ("d.parquet", 3)):
        done = ok("predict", place / "run", place / "log.csv", "--out", name, "--threads", threads)
        assert done.stdout == ""
        assert done.stderr.endswith(f"written to {name}\n")
    assert Path("a.csv").read_text() == shown["log.csv"].stdout
    assert gzip.decompress(Path("b.csv.gz").read_bytes()) == Path("a.csv").read_bytes()
    frame = pl.read_parquet("c.parquet")
    assert frame.schema == {"row": pl.Int64, "probability": pl.Float64, "label": pl.UInt8}
    assert frame["row"].to_list() == list(range(ROWS))
    assert frame["probability"].to_list() == expected.tolist()
    assert frame["label"].to_list() == LABELS.tolist()
    assert Path("c.parquet").read_bytes() == Path("d.parquet").read_bytes()
    assert {path.name for path in Path().iterdir()} == {"a.csv", "b.csv.gz", "c.parquet", "d.parquet"}


def test_metrics_are_said_on_stderr_and_those_of_the_runs_log_are_said_to_flatter_it(
    place: Path, expected: Scores, ok: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = write(Path("ones.csv"), ["clicked,ts,color,size", "1,1,c1,5", "1,2,c3,6"]).absolute()
    copy = Path(shutil.copyfile(place / "log.csv", "copy.csv")).absolute()
    monkeypatch.chdir(place)
    done = ok("predict", "run", "log.csv")
    metrics = evaluate(LABELS, expected)
    said = f"AUC {metrics.auc:.4f}, log loss {metrics.log_loss:.4f}, calibration {metrics.calibration:.4f}"
    assert f"{ROWS:,} rows, " in done.stderr
    assert said in done.stderr
    assert "AUC" not in done.stdout
    assert "the model was trained on rows of this log" in done.stderr
    assert "sparsegroup evaluate run log.csv" in done.stderr
    assert "trained on rows" not in ok("predict", "run", copy).stderr
    assert "AUC" not in ok("predict", "run", one).stderr
    test = json.loads((place / "run" / "summary.json").read_text())["test"]
    rows = ROWS - round(ROWS * 0.1)
    assert evaluate(LABELS[rows:], expected[rows:]).auc == pytest.approx(test["auc"])


def test_a_checkpoint_and_a_float32_export_score_like_their_run(place: Path, ok: Run) -> None:
    (checkpoint,) = (place / "run" / "checkpoints").iterdir()
    ok("export", place / "run", "exported", "--no-onnx")
    of_run, *others = (
        ok("predict", model, place / "prepared").stdout for model in (place / "run", checkpoint, "exported")
    )
    assert others == [of_run] * 2


def test_skipped_rows_leave_gaps(place: Path, ok: Run, refused: Refused) -> None:
    content = lines(40)
    content[4], content[11] = "7,3,c1,2", "1,10"  # rows 3 and 10: labels and columns that cannot be
    content.insert(21, "")  # row 20 is a blank line
    log = write(Path("log.csv"), content)
    command = ("predict", place / "run", log)
    assert "log.csv:5: label 'clicked' must be 0 or 1" in refused(*command, "--out", "out.csv")
    assert not Path("out.csv").exists()
    assert "max_bad=0.001" in refused(*command, "--on-bad-row", "skip")
    done = ok(*command, "--on-bad-row", "skip", "--max-bad", "10%")
    assert from_csv(done.stdout)[0] == [row for row in range(41) if row not in (3, 10, 20)]
    assert "skipped 2 bad rows" in done.stderr
    assert "line 5: label 'clicked' must be 0 or 1" in done.stderr


def test_logs_of_other_formats_or_in_another_order_are_scored(place: Path, expected: Scores, ok: Run) -> None:
    """Columnar ones, some without times, and some that a schema describes."""
    frame = pl.read_csv(place / "log.csv").head(100)
    frame.write_parquet("log.parquet")
    frame.drop("ts").reverse().write_csv("reversed.csv")
    frame.rename({"clicked": "y", "ts": "when"}).write_csv("log.tsv", separator="\t")
    Path("schema.yaml").write_text('label: y\ncategorical: [color, size]\nseparator: "\\t"\n')
    for name, options, order in (
        ("log.parquet", (), 1),
        ("reversed.csv", (), -1),
        ("log.tsv", ("--schema", "schema.yaml"), 1),
    ):
        rows, probabilities, _ = from_csv(ok("predict", place / "run", name, *options).stdout)
        assert rows == list(range(100))
        np.testing.assert_allclose(probabilities[::order], expected[:100], rtol=1e-6)  # of other batches: sums differ


def test_weights_count_in_the_metrics(ok: Run) -> None:
    content = ["label,color,weight", *(f"{int(i % 5 < 2)},c{i % 5},{1 + i % 3}" for i in range(300))]
    write(Path("log.csv"), content)
    write(Path("schema.yaml"), ["label: label", "categorical: [color]", "weight: weight"])
    ok("train", "log.csv", "--schema", "schema.yaml", "--out", "run", "--selection", "never")
    done = ok("predict", "run", "log.csv")
    _, probabilities, labels = from_csv(done.stdout)
    weights = np.array([1 + i % 3 for i in range(300)], np.float32)
    metrics = evaluate(np.array(labels), np.array(probabilities), weights)
    assert f"log loss {metrics.log_loss:.4f}, calibration {metrics.calibration:.4f}" in done.stderr


def test_what_fails_midway_leaves_no_file(ok: Run, run: Run) -> None:
    content = lines(ROWS)
    write(Path("log.csv"), content[:300])
    write(Path("schema.yaml"), ["label: clicked", "categorical: [color]", "numeric: [size]"])
    ok("train", "log.csv", "--schema", "schema.yaml", "--out", "run", "--selection", "never")
    content[8_000] = "0,1,c1,large"  # found where numbers are parsed, after the rows have been counted
    write(Path("log.csv"), content)
    before = set(Path().rglob("*"))
    for options in ((), ("--out", "out.csv")):
        done = run("predict", "run", "log.csv", *options)
        assert (done.returncode, done.stderr) == (2, "error: log.csv:8001: 'size' cannot be read: 'size=large'\n")
    assert set(Path().rglob("*")) == before


def test_who_reads_only_the_first_lines_ends_it_quietly(place: Path) -> None:
    command = [Path(sys.executable).with_name("sparsegroup"), "predict", "run", "log.csv", "--threads", "1"]
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "row,probability,label\n"
        process.stdout.close()
        said = [line for line in process.stderr.read().splitlines() if "compil" not in line]
        assert said == []
    assert process.returncode == 1


def test_scores_come_as_they_are_made(place: Path, expected: Scores) -> None:
    opened = open_log(place / "log.csv", whole=True, label="clicked")
    window, sizes = PredictionWindow(), []
    for part in predicted_rows(load_model(place / "run"), opened, window):
        sizes.append(len(part["row"]))
        assert window.samples == sum(sizes)
    assert sizes == [4096, 4096, ROWS - 2 * 4096]
    assert window.metrics() == evaluate(LABELS, expected)
    assert open_log(place / "log.csv", label="clicked").train_rows < opened.train_rows == ROWS


def scored(csv: str) -> list[str]:
    """Without the labels."""
    return [line.rsplit(",", 1)[0] for line in csv.splitlines()]


@pytest.mark.parametrize("name", ["inferred", "criteo", "buckets", "avazu", "schema"])
def test_logs_without_labels_are_scored(name: str, ok: Run) -> None:
    rows, options = 200, list[str]()
    if name == "avazu":
        log = avazu_log(Path("log.csv"), [f"1410{21 + i // 150}{i % 150 // 10:02}" for i in range(rows)])
        log = [",".join(cells[:1] + cells[2:]) for cells in (line.split(",") for line in log.read_text().splitlines())]
        write(Path("test.csv"), log)
    elif name in ("inferred", "schema"):
        Path("s.yaml").write_text("label: clicked\ncategorical: [color]\nnumeric: [size]\n")
        options = ["--schema", "s.yaml"] if name == "schema" else []
        write(Path("log.csv"), lines(rows))
        write(Path("test.csv"), [line.split(",", 1)[1] for line in lines(rows)])
    else:
        body = [
            "\t".join([*[str(i * j % 50) for j in range(13)], *[f"c{i % (j + 2)}" for j in range(26)]])
            for i in range(rows)
        ]
        write(Path("log.csv"), [f"{i % 2}\t{row}" for i, row in enumerate(body)])
        write(Path("test.csv"), body)
        options = ["--criteo-numbers", "buckets"] if name == "buckets" else []
    ok("train", "log.csv", "--out", "run", *options, "--model", "lr", "--selection", "never", "--no-baseline")
    labelled = scored(ok("predict", "run", "log.csv").stdout)
    for skip in ([], ["--on-bad-row", "skip"]):
        done = ok("predict", "run", "test.csv", *skip)
        assert done.stdout.splitlines() == labelled
        assert "AUC" not in done.stderr
    ok("predict", "run", "test.csv", "--out", "a.parquet")
