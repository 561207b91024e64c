"""`sparsegroup predict`: the scores of `training.predict`, bit for bit, however a log is given and they are written."""

import csv
import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from command import Run, call
from sparsegroup.data import PreparedLog, open_log
from sparsegroup.training import evaluate, load_model, predict
from sparsegroup.training.predictions import PredictionWindow, predicted_rows

COMMAND = Path(sys.executable).with_name("sparsegroup")
ROWS = 9_000  # two batches of evaluation and a part of one


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
        label = ("--label", "clicked")
        settings = ("--lr", 0.05, "--l21", 1e-4, "--selection", "never")
        assert call(patch, "train", "log.csv", *label, *settings, "--out", "run") == 0
        assert call(patch, "prepare", "log.csv", "prepared", *label) == 0
    return folder


def expected(place: Path) -> Any:
    log = PreparedLog(place / "prepared")
    return predict(load_model(place / "run"), log.batches(0, len(log), 4096)).probabilities()


def from_csv(text: str) -> tuple[list[int], list[float], list[int]]:
    header, *rows = csv.reader(io.StringIO(text))
    assert header == ["row", "probability", "label"]
    return [int(row[0]) for row in rows], [float(row[1]) for row in rows], [int(row[2]) for row in rows]


def test_every_row_is_scored_as_predict_does_whatever_is_written(place: Path, run: Run) -> None:
    probabilities, labels = expected(place).tolist(), [label(i) for i in range(ROWS)]
    for source in ("log.csv", "prepared"):
        shown = run("predict", place / "run", place / source)
        assert shown.returncode == 0, shown.stderr
        assert from_csv(shown.stdout) == (list(range(ROWS)), probabilities, labels)
    for name in ("a.csv", "b.csv.gz", "c.parquet"):
        done = run("predict", place / "run", place / "log.csv", "--out", name)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert done.stderr.endswith(f"written to {name}\n")
    assert Path("a.csv").read_text() == shown.stdout == gzip.decompress(Path("b.csv.gz").read_bytes()).decode()
    frame = pl.read_parquet("c.parquet")
    assert frame.schema == {"row": pl.Int64, "probability": pl.Float64, "label": pl.UInt8}
    assert frame["row"].to_list() == list(range(ROWS))
    assert frame["probability"].to_list() == probabilities
    assert frame["label"].to_list() == labels
    assert {path.name for path in Path().iterdir()} == {"a.csv", "b.csv.gz", "c.parquet"}


def test_the_scores_are_said_on_stderr(place: Path, run: Run) -> None:
    done = run("predict", place / "run", place / "log.csv")
    labels = np.array([label(i) for i in range(ROWS)])
    metrics = evaluate(labels, expected(place))
    said = f"AUC {metrics.auc:.4f}, log loss {metrics.log_loss:.4f}, calibration {metrics.calibration:.4f}"
    assert f"{ROWS:,} rows, " in done.stderr
    assert said in done.stderr
    assert "AUC" not in done.stdout
    log = write(Path("ones.csv"), ["clicked,ts,color,size", "1,1,c1,5", "1,2,c3,6"])
    one = run("predict", place / "run", log)
    assert one.returncode == 0
    assert "AUC" not in one.stderr


def test_threads_and_batches_change_nothing(place: Path, run: Run) -> None:
    for number in (1, 3):
        for name in (f"{number}.parquet", f"{number}.csv.gz"):
            assert run("predict", place / "run", place / "log.csv", "--out", name, "--threads", number).returncode == 0
    for suffix in ("parquet", "csv.gz"):
        assert Path(f"1.{suffix}").read_bytes() == Path(f"3.{suffix}").read_bytes()


def test_a_checkpoint_and_a_float32_export_score_as_their_run(place: Path, run: Run) -> None:
    (checkpoint,) = (place / "run" / "checkpoints").iterdir()
    assert run("export", place / "run", "exported", "--no-onnx").returncode == 0
    of_run = run("predict", place / "run", place / "prepared").stdout
    for model in (checkpoint, "exported"):
        done = run("predict", model, place / "prepared")
        assert done.returncode == 0, done.stderr
        assert done.stdout == of_run


def test_skipped_rows_leave_gaps(place: Path, run: Run) -> None:
    content = lines(40)
    content[4], content[11] = "7,3,c1,2", "1,10"  # rows 3 and 10: labels and columns that cannot be
    content.insert(21, "")  # row 20 is a blank line
    log = write(Path("log.csv"), content)
    stopped = run("predict", place / "run", log, "--out", "out.csv")
    assert (stopped.returncode, "log.csv:5: label 'clicked' must be 0 or 1" in stopped.stderr) == (2, True)
    few = run("predict", place / "run", log, "--on-bad-row", "skip")
    assert (few.returncode, few.stdout, "max_bad=0.001" in few.stderr) == (2, "", True)
    done = run("predict", place / "run", log, "--on-bad-row", "skip", "--max-bad", "10%")
    assert done.returncode == 0, done.stderr
    assert from_csv(done.stdout)[0] == [row for row in range(41) if row not in (3, 10, 20)]
    assert "skipped 2 bad rows" in done.stderr
    assert "line 5: label 'clicked' must be 0 or 1" in done.stderr
    assert not Path("out.csv").exists()


def test_columnar_logs_and_such_without_time_or_in_another_order_are_scored(place: Path, run: Run) -> None:
    frame = pl.read_csv(place / "log.csv").head(100)
    frame.write_parquet("log.parquet")
    frame.drop("ts").reverse().write_csv("reversed.csv")
    columnar, backwards = (
        from_csv(run("predict", place / "run", name).stdout) for name in ("log.parquet", "reversed.csv")
    )
    assert columnar[0] == backwards[0] == list(range(100))
    np.testing.assert_allclose(columnar[1], expected(place)[:100], rtol=1e-6)  # rows of other batches: sums differ
    np.testing.assert_allclose(backwards[1][::-1], expected(place)[:100], rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "other.csv"], "other.csv:1: no column 'color'; the columns are clicked, colour, size"),
        (["run", "none.csv"], "none.csv: no such file"),
        (["none", "log.csv"], "error: none"),
        (["run", "log.csv", "--out", "scores.txt"], "--out must end with .csv, .csv.gz, .parquet, got 'scores.txt'"),
        (["run", "log.csv", "--max-bad", "few"], "data.max_bad"),
        (["run", "log.csv", "--schema", "none.yaml"], "no schema none.yaml; say with --schema"),
        (["run", "log.csv", "--avazu-hour", "raw"], "--label is for logs whose columns come from a header"),
        (["run", "prepared", "--label", "clicked"], "--label is for raw logs"),
        (["run", "log.csv", "--schema", "s.yaml", "--label", "x"], "--label and --schema cannot both be given"),
    ],
)
def test_wrong_arguments_are_named_and_nothing_is_written(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    write(place / "other.csv", ["clicked,colour,size", "1,c1,2"])
    write(place / "s.yaml", ["label: clicked", "categorical: [color, size]"])
    monkeypatch.chdir(place)
    before = set(place.rglob("*"))
    assert call(monkeypatch, "predict", *arguments) == 2
    out, err = capsys.readouterr()
    assert (out, message in err, "Traceback" in err) == ("", True, False), err
    assert set(place.rglob("*")) == before


def test_a_schema_says_all_of_the_format(place: Path, run: Run) -> None:
    content = [line.replace(",", "\t") for line in lines(50)]
    write(Path("log.tsv"), ["y\twhen\tshade\tsize", *content[1:]])
    schema = 'label: y\ncategorical: [shade, size]\nseparator: "\\t"\n'
    Path("schema.yaml").write_text(schema)
    other = run("predict", place / "run", "log.tsv", "--schema", "schema.yaml")
    assert (other.returncode, "its fields are shade, size" in other.stderr) == (2, True)
    write(Path("log.tsv"), ["y\twhen\tcolor\tsize", *content[1:]])
    Path("schema.yaml").write_text(schema.replace("shade", "color"))
    done = run("predict", place / "run", "log.tsv", "--schema", "schema.yaml")
    assert done.returncode == 0, done.stderr
    assert from_csv(done.stdout)[1] == expected(place)[:50].tolist()


def test_weights_count_in_the_metrics(run: Run) -> None:
    content = ["label,color,weight", *(f"{int(i % 5 < 2)},c{i % 5},{1 + i % 3}" for i in range(600))]
    write(Path("log.csv"), content)
    write(Path("schema.yaml"), ["label: label", "categorical: [color]", "weight: weight"])
    assert run("train", "log.csv", "--schema", "schema.yaml", "--out", "run").returncode == 0
    done = run("predict", "run", "log.csv")
    _, probabilities, labels = from_csv(done.stdout)
    weights = np.array([1 + i % 3 for i in range(600)], np.float32)
    metrics = evaluate(np.array(labels), np.array(probabilities), weights)
    assert f"log loss {metrics.log_loss:.4f}, calibration {metrics.calibration:.4f}" in done.stderr


def test_what_fails_midway_leaves_no_file(run: Run) -> None:
    content = lines(ROWS)
    write(Path("log.csv"), content[:500])
    write(Path("schema.yaml"), ["label: clicked", "categorical: [color]", "numeric: [size]"])
    assert run("train", "log.csv", "--schema", "schema.yaml", "--out", "run").returncode == 0
    content[8_000] = "0,1,c1,large"  # found where numbers are parsed, after the rows have been counted
    write(Path("log.csv"), content)
    before = set(Path().rglob("*"))
    to_stdout = run("predict", "run", "log.csv")
    assert (to_stdout.returncode, to_stdout.stderr) == (
        2,
        "error: log.csv:8001: 'size' cannot be read: 'size=large'\n",
    )
    assert run("predict", "run", "log.csv", "--out", "out.csv").returncode == 2
    assert set(Path().rglob("*")) == before


def test_who_reads_only_the_first_lines_ends_it_quietly(place: Path) -> None:
    warmed = [COMMAND, "predict", "run", "log.csv", "--threads", "1", "--out", "warm.csv"]  # kernels are announced once
    subprocess.run(warmed, cwd=place, check=True, capture_output=True)
    with subprocess.Popen(
        [COMMAND, "predict", "run", "log.csv", "--threads", "1"],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "row,probability,label\n"
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_scores_come_as_they_are_made(place: Path) -> None:
    opened = open_log(place / "log.csv", whole=True, label="clicked")
    window, sizes = PredictionWindow(), []
    for part in predicted_rows(load_model(place / "run"), opened, window):
        sizes.append(len(part["row"]))
        assert window.samples == sum(sizes)
    assert sizes == [4096, 4096, ROWS - 2 * 4096]
    assert window.metrics() == evaluate(np.array([label(i) for i in range(ROWS)]), expected(place))
    assert open_log(place / "log.csv", label="clicked").train_rows < opened.train_rows == ROWS


def test_figures_are_those_of_the_run_on_its_test_rows(place: Path, run: Run) -> None:
    _, probabilities, labels = from_csv(run("predict", place / "run", place / "log.csv").stdout)
    test = json.loads((place / "run" / "summary.json").read_text())["test"]
    rows = ROWS - round(ROWS * 0.1)
    assert evaluate(np.array(labels[rows:]), np.array(probabilities[rows:])).auc == pytest.approx(test["auc"])


def test_a_log_without_labels_is_scored(place: Path, run: Run) -> None:
    content = [line.split(",", 1)[1] for line in lines(60)]
    log = write(Path("log.csv"), content)
    with_labels = write(Path("labels.csv"), lines(60))
    for options in ([], ["--on-bad-row", "skip"]):
        done = run("predict", place / "run", log, *options)
        assert done.returncode == 0, done.stderr
        scored = [line.rsplit(",", 1)[0] for line in run("predict", place / "run", with_labels).stdout.splitlines()]
        assert done.stdout.splitlines() == scored
        assert "AUC" not in done.stderr
    assert run("predict", place / "run", log, "--out", "a.parquet").returncode == 0


@pytest.mark.parametrize("name", ["criteo", "buckets", "avazu", "schema"])
def test_public_logs_without_labels(name: str, run: Run) -> None:
    rows, options = 300, list[str]()
    if name == "avazu":
        sites = ["site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category"]
        devices = ["device_id", "device_ip", "device_model", "device_type", "device_conn_type"]
        fields = ["C1", "banner_pos", *sites, *devices, *(f"C{n}" for n in range(14, 22))]
        header = [",".join(["id", "click", "hour", *fields])]
        body = [
            [str(i), str(i % 2), f"1410{21 + i // 200}{i % 200 // 10:02}", *[f"v{i % (j + 2)}" for j in range(21)]]
            for i in range(rows)
        ]
        log, test = [",".join(row) for row in body], [",".join([row[0], *row[2:]]) for row in body]
        log, test = header + log, [header[0].replace("click,", ""), *test]
    elif name == "schema":
        Path("s.yaml").write_text("label: y\ncategorical: [a]\nnumeric: [b]\n")
        options = ["--schema", "s.yaml"]
        log = ["y,a,b", *(f"{i % 2},a{i % 9},{i % 5}" for i in range(rows))]
        test = [line.split(",", 1)[1] for line in log]
    else:
        body = [
            "\t".join([*[str(i * j % 50) for j in range(13)], *[f"c{i % (j + 2)}" for j in range(26)]])
            for i in range(rows)
        ]
        log, test = [f"{i % 2}\t{row}" for i, row in enumerate(body)], body
        options = ["--criteo-numbers", "buckets"] if name == "buckets" else []
    write(Path("log.csv"), log)
    write(Path("test.csv"), test)
    assert run("train", "log.csv", "--out", "run", *options).returncode == 0
    done = run("predict", "run", "test.csv")
    assert done.returncode == 0, done.stderr
    scored = [line.rsplit(",", 1)[0] for line in run("predict", "run", "log.csv").stdout.splitlines()]
    assert done.stdout.splitlines() == scored


def test_figures_of_the_runs_own_log_are_said_to_flatter_it(
    place: Path, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.csv"
    copy.write_bytes((place / "log.csv").read_bytes())
    monkeypatch.chdir(place)
    own = run("predict", "run", "log.csv").stderr
    assert "the model was trained on rows of this log" in own
    assert "sparsegroup evaluate run log.csv" in own
    assert "trained on rows" not in run("predict", "run", copy).stderr
