"""`sparsegroup explain` through the real command line."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from command import Run, call

ROWS = 600


def line(i: int) -> str:
    return f"{int(i % 7 in (1, 3))},c{i % 7},{'a|b' if i % 2 else ''},{'' if i == 4 else i % 13}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log and a run on it."""
    folder = tmp_path_factory.mktemp("explain")
    (folder / "log.csv").write_text("\n".join(["label,color,tags,size", *map(line, range(ROWS))]) + "\n")
    columns = "{label: label, color: category, tags: 'list |', size: number}"
    (folder / "schema.yaml").write_text(f"columns: {columns}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        settings = ("--lr", 0.05, "--l21", 1e-4, "--selection", "never")
        assert call(patch, "train", "log.csv", "--schema", folder / "schema.yaml", *settings, "--out", "run") == 0
        assert call(patch, "export", "run", "exported", "--no-onnx") == 0
    return folder


def explained(run: Run, *arguments: object) -> dict[str, Any]:
    done = run("explain", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_rows_are_explained_as_they_are_predicted_by_run_checkpoint_and_export(place: Path, run: Run) -> None:
    assert run("predict", place / "run", place / "log.csv", "--out", "scores.csv").returncode == 0
    scores = pl.read_csv("scores.csv")["probability"]
    (checkpoint,) = (place / "run" / "checkpoints").iterdir()
    arguments = (place / "log.csv", "--row", "3-5", "--row", 599, "--row", 4)
    found, *others = (explained(run, place / name, *arguments) for name in ("run", checkpoint, "exported"))
    assert [one["rows"] for one in others] == [found["rows"]] * 2
    assert [row["row"] for row in found["rows"]] == [3, 4, 5, 599]
    assert found["permutations"] == 0
    for row in found["rows"]:
        assert row["label"] == int(line(row["row"])[0])
        assert row["probability"] == pytest.approx(scores[row["row"]], abs=1e-6)
        parts = {part["column"]: part for part in row["contributions"]}
        total = found["reference"] + sum(part["contribution"] for part in parts.values())
        assert (total, parts["color"]["value"]) == (pytest.approx(row["logit"]), f"c{row['row'] % 7}")
        assert parts["tags"]["value"] == ("a, b" if row["row"] % 2 else "")
        assert parts["size"]["value"] == (None if row["row"] == 4 else row["row"] % 13)
    assert found["rows"][0]["contributions"][0]["column"] == "color"


def test_the_terminal_shows_the_largest_and_the_sum_of_the_others(place: Path, run: Run) -> None:
    done = run("explain", place / "run", place / "log.csv", "--row", 4, "--top", 1)
    words = [row.split() for row in done.stdout.splitlines()]
    assert (done.returncode, words[1][:2]) == (0, ["row", "4:"]), done.stderr
    reference, _, others, logit = (float(row[place]) for row, place in zip(words[3:], (-1, -2, -1, -1), strict=True))
    assert words[4][-1] == "exact"
    assert words[5][:2] == ["2", "others"]
    assert reference + float(words[4][-2]) + others == pytest.approx(logit, abs=2e-3)


def test_places_are_those_of_the_file_and_others_are_errors(place: Path, run: Run) -> None:
    rows = ["label,color,tags,size", *map(line, range(20))]
    Path("gaps.csv").write_text("\n".join([*rows[:9], "", *rows[9:]]) + "\n")  # row 8 is blank
    (found,) = explained(run, place / "run", "gaps.csv", "--row", 12)["rows"]
    assert (found["row"], {part["value"] for part in found["contributions"]}) == (12, {"c4", "a, b", 11.0})
    for arguments, message in (
        (("--row", 8), "gaps.csv: row 8 was left out: it is bad or blank"),
        (("--row", "0-21"), "gaps.csv has no row 21: its rows are 0 to 20"),
        (("--row", "4-2"), "--row takes a place in the log from 0, or two, such as 7 or 0-4, got '4-2'"),
        (("--row", 1, "--permutations", 7), "--permutations must be even and >= 4, got 7"),
        ((), "Missing option '--row'"),
    ):
        done = run("explain", place / "run", "gaps.csv", *arguments)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
