"""`sparsegroup predict`, `evaluate` and `explain`: by run, checkpoint and export, however a log is written."""

import csv
import gzip
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from cli_cases import summary_of
from command import Run, call
from data_cases import avazu_log
from endings import Refused
from over import over
from sparsegroup.data import PreparedLog
from sparsegroup.training import evaluate, load_model, predict

ROWS, TESTED = 8_200, 820
"""Two batches of evaluation and a part of one; of these, test rows."""
HEADER = "clicked,ts,user,color,tags,size"
COLUMNS = "clicked: label, ts: ignore, user: category, color: category, tags: 'list |', size: number"
SETTINGS = ("--optimizer", "adam", "--lr", 0.02, "--l21", 0, "--batch-size", 64, "--selection", "never")
QUICK = ("--model", "lr", "--selection", "never", "--no-baseline")

Scores = np.ndarray[Any, Any]


def label(row: int) -> int:
    """Mostly a function of the color; for test rows of color c5 another one."""
    if row >= ROWS - TESTED and row % 7 == 5:
        return 1
    return int((row % 7 in (1, 3)) != (row % 11 == 0))


def size(row: int) -> int | None:
    return None if row == 4 else row * 2654435761 % 97


def tags(row: int) -> list[str]:
    return ["a", "b"] if row % 2 else ["b"] if row % 4 else []


def lines(rows: int) -> list[str]:
    values = (f"{i},u{i % 13},c{i % 7},{'|'.join(tags(i))},{'' if size(i) is None else size(i)}" for i in range(rows))
    return [HEADER, *(f"{label(i)},{value}" for i, value in enumerate(values))]


def write(path: str | Path, content: list[str]) -> Path:
    Path(path).write_text("\n".join(content) + "\n")
    return Path(path)


LABELS = np.array([label(row) for row in range(ROWS)])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log, raw and prepared, a run on it, and its export."""
    folder = tmp_path_factory.mktemp("score")
    write(folder / "log.csv", lines(ROWS))
    write(folder / "schema.yaml", [f"columns: {{{COLUMNS}}}"])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        log = (folder / "log.csv", "--schema", folder / "schema.yaml")
        assert call(patch, "train", *log, *SETTINGS, "--out", "run") == 0
        assert call(patch, "prepare", *log[:1], "prepared", *log[1:]) == 0
        assert call(patch, "export", "run", "exported", "--no-onnx") == 0
    return folder


@pytest.fixture(scope="module")
def expected(place: Path) -> Scores:
    log = PreparedLog(place / "prepared")
    return predict(load_model(place / "run"), log.batches(0, len(log), 4096)).probabilities()


def from_csv(text: str) -> tuple[list[int], list[float], list[int]]:
    header, *rows = csv.reader(io.StringIO(text))
    assert header == ["row", "probability", "label"]
    return [int(row[0]) for row in rows], [float(row[1]) for row in rows], [int(row[2]) for row in rows]


# predict


def test_every_row_is_scored_as_predict_does_whatever_is_written(place: Path, expected: Scores, ok: Run) -> None:
    (checkpoint,) = (place / "run" / "checkpoints").iterdir()
    inputs = (("run", "log.csv"), ("run", "prepared"), (checkpoint, "prepared"), ("exported", "prepared"))
    shown = [ok("predict", place / model, place / log).stdout for model, log in inputs]
    assert from_csv(shown[0]) == (list(range(ROWS)), expected.tolist(), LABELS.tolist())
    assert shown[1:] == shown[:1] * 3
    for name, threads in (("a.csv", 1), ("b.csv.gz", 3), ("c.parquet", 1), ("d.parquet", 3)):
        done = ok("predict", place / "run", place / "log.csv", "--out", name, "--threads", threads)
        assert done.stdout == ""
        assert done.stderr.endswith(f"written to {name}\n")
    assert Path("a.csv").read_text() == shown[0]
    assert gzip.decompress(Path("b.csv.gz").read_bytes()) == Path("a.csv").read_bytes()
    frame = pl.read_parquet("c.parquet")
    assert frame.schema == {"row": pl.Int64, "probability": pl.Float64, "label": pl.UInt8}
    assert [frame[name].to_list() for name in frame.columns] == [[*range(ROWS)], expected.tolist(), LABELS.tolist()]
    assert Path("c.parquet").read_bytes() == Path("d.parquet").read_bytes()
    assert {path.name for path in Path().iterdir()} == {"a.csv", "b.csv.gz", "c.parquet", "d.parquet"}


@over("command", ["predict run log.csv --out", "inspect run --html"])
def test_an_existing_file_is_replaced_only_if_the_command_may_overwrite(
    command: str, place: Path, run: Run, ok: Run
) -> None:
    name, *arguments, option = command.split()
    out = Path("out.csv")
    out.write_text("precious")
    words = (name, *(place / one if (place / one).exists() else one for one in arguments), option, out)
    refused = run(*words)
    assert (refused.returncode, "--overwrite" in refused.stderr) == (2, True)
    assert out.read_text() == "precious"
    ok(*words, "--overwrite")
    assert out.read_text() != "precious"


def test_metrics_are_said_on_stderr_and_those_of_the_runs_log_are_said_to_flatter_it(
    place: Path, expected: Scores, ok: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ones = write("ones.csv", [HEADER, "1,1,u1,c1,a,5", "1,2,u1,c3,b,6"]).absolute()
    weights = ["w", *(str(i % 3 or 3) for i in range(1, 41))]
    content = [f"{line},{weight}" for line, weight in zip(lines(40), weights, strict=True)]
    weighted = write("weighted.csv", content).absolute()
    schema = write("schema.yaml", [f"columns: {{{COLUMNS}, w: weight}}"]).absolute()
    monkeypatch.chdir(place)
    done = ok("predict", "run", "log.csv")
    metrics = evaluate(LABELS, expected)
    said = f"AUC {metrics.auc:.4f}, log loss {metrics.log_loss:.4f}, calibration {metrics.calibration:.4f}"
    for words in (f"{ROWS:,} rows, ", said, "was trained on rows of this log", "sparsegroup evaluate run log.csv"):
        assert words in done.stderr
    assert "AUC" not in done.stdout
    assert "AUC" not in ok("predict", "run", ones).stderr
    metrics = evaluate(LABELS[:40], expected[:40], np.array(weights[1:], np.float32))
    done = ok("predict", "run", weighted, "--schema", schema)
    assert f"log loss {metrics.log_loss:.4f}, calibration {metrics.calibration:.4f}" in done.stderr
    assert "trained on rows" not in done.stderr


def test_skipped_rows_leave_gaps(place: Path, ok: Run, refused: Refused) -> None:
    content = lines(40)
    content[4], content[11] = "7,3,u1,c1,a,2", "1,10"  # rows 3 and 10: labels and columns that cannot be
    content.insert(21, "")  # row 20 is a blank line
    command = ("predict", place / "run", write("log.csv", content))
    assert "log.csv:5: label 'clicked' must be 0 or 1" in refused(*command, "--out", "out.csv")
    assert not Path("out.csv").exists()
    assert "max_bad=0.001" in refused(*command, "--on-bad-row", "skip")
    done = ok(*command, "--on-bad-row", "skip", "--max-bad", "10%")
    assert from_csv(done.stdout)[0] == [row for row in range(41) if row not in (3, 10, 20)]
    assert "skipped 2 bad rows" in done.stderr
    assert "line 5: label 'clicked' must be 0 or 1" in done.stderr


def test_a_log_in_another_order_and_one_that_a_schema_describes_are_scored(
    place: Path, expected: Scores, ok: Run
) -> None:
    frame = pl.read_csv(place / "log.csv").head(100)
    frame.drop("ts").reverse().write_csv("reversed.csv")
    frame.rename({"clicked": "y", "ts": "when"}).write_csv("log.tsv", separator="\t")
    columns = COLUMNS.replace("clicked", "y").replace("ts:", "when:")
    write("schema.yaml", [f"columns: {{{columns}}}", r'separator: "\t"'])
    for name, options, order in (("reversed.csv", (), -1), ("log.tsv", ("--schema", "schema.yaml"), 1)):
        rows, probabilities, _ = from_csv(ok("predict", place / "run", name, *options).stdout)
        assert rows == list(range(100))
        np.testing.assert_allclose(probabilities[::order], expected[:100], rtol=1e-5)  # of other batches: sums differ


def test_what_fails_midway_leaves_no_file(place: Path, run: Run) -> None:
    content = lines(ROWS)
    content[8_000] = "0,1,u1,c1,a,large"  # found where numbers are parsed, after the rows have been counted
    write("log.csv", content)
    for options in ((), ("--out", "out.csv")):
        done = run("predict", place / "run", "log.csv", *options)
        assert (done.returncode, done.stderr) == (2, "error: log.csv:8001: 'size' cannot be read: 'size=large'\n")
    assert [path.name for path in Path().iterdir()] == ["log.csv"]


@pytest.mark.parametrize("name", ["schema", "inferred", "buckets", "avazu"])
def test_logs_without_labels_are_scored(name: str, place: Path, ok: Run) -> None:
    rows, model, options = 200, Path("run"), list[str]()
    content = lines(rows)
    unlabelled = [line.split(",", 1)[1] for line in content]
    if name == "avazu":
        log = avazu_log(Path("log.csv"), [f"1410{21 + i // 150}{i % 150 // 10:02}" for i in range(rows)])
        content = log.read_text().splitlines()
        unlabelled = [",".join(cells[:1] + cells[2:]) for cells in (line.split(",") for line in content)]
    elif name == "buckets":
        parts = ([*[str(i * j % 50) for j in range(13)], *[f"c{i % (j + 2)}" for j in range(26)]] for i in range(rows))
        unlabelled = ["\t".join(part) for part in parts]
        content = [f"{i % 2}\t{line}" for i, line in enumerate(unlabelled)]
        options = ["--criteo-numbers", "buckets"]
    write("log.csv", content)
    write("test.csv", unlabelled)
    if name == "schema":
        model = place / "run"
    else:
        ok("train", "log.csv", "--out", "run", *options, *QUICK)
    labelled = [line.rsplit(",", 1)[0] for line in ok("predict", model, "log.csv").stdout.splitlines()]
    done = ok("predict", model, "test.csv", "--on-bad-row", "skip")
    assert done.stdout.splitlines() == labelled
    assert "AUC" not in done.stderr
    ok("predict", model, "test.csv", "--out", "a.parquet")
    assert pl.read_parquet("a.parquet").height == rows


# evaluate


def test_evaluate_says_what_the_run_said_and_finds_the_value_that_is_off(
    place: Path, ok: Run, refused: Refused
) -> None:
    found = json.loads(ok("evaluate", place / "run", place / "log.csv", "--user", "user", "--json").stdout)
    summary = summary_of(place / "run")
    assert (found["metrics"], found["baseline"], found["rows"]) == (summary["test"], summary["baseline"], TESTED)
    assert found["curves"] == summary["curves"]
    assert (found["gauc"]["users"], found["gauc"]["share"]) == (13, pytest.approx(1))
    export = json.loads(ok("evaluate", place / "exported", place / "log.csv", "--json").stdout)
    assert (export["baseline"], export["gauc"]) == (None, None)
    assert export["metrics"]["auc"] == pytest.approx(summary["test"]["auc"], abs=1e-6)
    said = refused("evaluate", place / "run", place / "log.csv", "--user", "tags")
    assert "--user: tags has several values a row; gAUC wants a field of one" in said

    write("other.csv", [HEADER, *lines(ROWS)[-TESTED:] * 6])
    arguments = ("evaluate", place / "run", "other.csv", "--by", "color", "--by", "tags", "--user", "user", "--top", 3)
    found = json.loads(ok(*arguments, "--json").stdout)
    assert found["rows"] == 6 * TESTED
    worst = found["by"]["color"][0]
    assert worst["value"] == "c5"
    assert worst["calibration"] < 0.5
    assert worst["high"] < 1
    assert len(found["by"]["color"]) == 3
    counts = Counter(name for row in range(ROWS - TESTED, ROWS) for name in tags(row) or [""])
    assert {one["value"]: one["rows"] for one in found["by"]["tags"]} == {name: 6 * n for name, n in counts.items()}
    shown = ok(*arguments).stdout
    for words in (f"{6 * TESTED:,} rows", "baseline", "gAUC by user, 13 users", "Gains", "c5", "lift"):
        assert words in shown


# explain


def test_rows_are_explained_as_they_are_predicted_by_run_checkpoint_and_export(
    place: Path, expected: Scores, ok: Run
) -> None:
    (checkpoint,) = (place / "run" / "checkpoints").iterdir()
    arguments = (place / "log.csv", "--row", "3-5", "--row", 599, "--row", 4, "--json")
    models = (place / "run", checkpoint, place / "exported")
    found, *others = (json.loads(ok("explain", model, *arguments).stdout) for model in models)
    assert [one["rows"] for one in others] == [found["rows"]] * 2
    assert [row["row"] for row in found["rows"]] == [3, 4, 5, 599]
    assert found["permutations"] == 0
    for one in found["rows"]:
        row, parts = one["row"], {part["column"]: part for part in one["contributions"]}
        assert (one["label"], one["probability"]) == (label(row), pytest.approx(expected[row], abs=1e-6))
        total = found["reference"] + sum(part["contribution"] for part in parts.values())
        assert (total, parts["color"]["value"]) == (pytest.approx(one["logit"]), f"c{row % 7}")
        assert parts["tags"]["value"] == ", ".join(tags(row))
        assert parts["size"]["value"] == size(row)
    assert found["rows"][0]["contributions"][0]["column"] == "color"


def test_the_terminal_shows_the_largest_contributions_and_the_sum_of_the_others(place: Path, ok: Run) -> None:
    shown = ok("explain", place / "run", place / "log.csv", "--row", 4, "--top", 1).stdout
    words = [row.split() for row in shown.splitlines()]
    assert words[1][:2] == ["row", "4:"]
    reference, _, others, logit = (float(row[at]) for row, at in zip(words[3:], (-1, -2, -1, -1), strict=True))
    assert words[4][-1] == "exact"
    assert words[5][:2] == ["3", "others"]
    assert reference + float(words[4][-2]) + others == pytest.approx(logit, abs=2e-3)
    assert "pairs that interact, by their share of" in " ".join(ok("inspect", place / "run").stdout.split())


def test_places_of_explained_rows_are_those_of_the_file_and_others_are_errors(
    place: Path, ok: Run, refused: Refused
) -> None:
    content = lines(20)
    write("gaps.csv", [*content[:9], "", *content[9:]])  # row 8 is blank
    (found,) = json.loads(ok("explain", place / "run", "gaps.csv", "--row", 12, "--json").stdout)["rows"]
    values = {part["column"]: part["value"] for part in found["contributions"]}
    assert (found["row"], values["color"], values["size"]) == (12, "c4", size(11))
    for arguments, message in (
        (("--row", 8), "gaps.csv: row 8 was left out: it is bad or blank"),
        (("--row", "0-21"), "gaps.csv has no row 21: its rows are 0 to 20"),
        (("--row", "4-2"), "--row takes a place in the log from 0, or two, such as 7 or 0-4, got '4-2'"),
        (("--row", 1, "--permutations", 7), "--permutations must be even and >= 4, got 7"),
        ((), "Missing option '--row'"),
    ):
        assert message in refused("explain", place / "run", "gaps.csv", *arguments)


@pytest.mark.parametrize("model", ["run", "exported"])
def test_a_column_whose_values_are_nearly_all_unseen_is_a_warning(
    place: Path, model: str, tmp_path: Path, ok: Run
) -> None:
    write("other.csv", [line.replace(",u", ",U") if row else line for row, line in enumerate(lines(500))])
    write("same.csv", lines(500))
    for command, options in (("predict", ("--out", "p.csv", "--overwrite")), ("evaluate", ())):
        done = ok(command, place / model, "other.csv", "--json", *options)
        assert "'user' (100.0%)" in done.stderr
        assert "'color'" not in done.stderr
        assert json.loads(done.stdout)["unseen"]["user"] == 1.0
        done = ok(command, place / model, "same.csv", "--json", *options)
        assert "no row in the model" not in done.stderr
        assert json.loads(done.stdout)["unseen"]["color"] == 0.0
