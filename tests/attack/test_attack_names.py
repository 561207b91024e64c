"""Whatever a file or folder is called: a command works, and what it wrote is there under that name, or it refuses."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from originals import PATH, TINY, TUNE, Originals, contents

from command import Run
from sparsegroup.data import ClickLogError, open_log
from sparsegroup.errors import UserError
from sparsegroup.serving.opening import open_trained

AT_ONCE, LONGEST, NO_UTF8 = "s3:[red]* ?'\"$x_{y}$\n%41:smile:", "n" * 255, os.fsdecode(b"a\xff\xfeb")


def file_name(name: str, end: str) -> str:
    """A name with an end, cut to what file systems allow: 255 bytes."""
    kept = os.fsencode(name)[: 255 - len(end)]
    return (os.fsdecode(kept) if name == NO_UTF8 else kept.decode(errors="ignore")) + end


def _is_log(place: Path) -> bool:
    return len(open_log(str(place))) > 0


def _is_model(place: Path) -> bool:
    return bool(open_trained(place).columns.fields)


def _holds(*names: str) -> Callable[[Path], bool]:
    return lambda place: all((place / name).stat().st_size for name in names)


def _one_below(parent: str) -> Callable[[Path], bool]:
    """One folder of runs has been made, of which the latest is a whole one."""
    return lambda place: [any(made.rglob("*.json")) for made in Path(parent).iterdir()] == [True]


class Attempt(NamedTuple):
    """A command with a hostile name in it."""

    command: str  # with `{it}` for the place of that name; see `Originals.arguments`
    source: str  # the original that the place is a copy of; "folder": a folder with the log; "": nothing is there
    end: str  # of the place's name
    check: str | Callable[[Path], bool]  # the words that are printed, or whether the result is there

    def outcome(self, name: str, originals: Originals, run: Run, folder: Path) -> str:
        """Whether it works or is refused, which is checked."""
        folder.mkdir()
        os.chdir(folder)
        place = Path(file_name(name, self.end))
        if self.source == "folder":
            place.mkdir()
            shutil.copyfile(originals.log, place / "a.csv")
        elif self.source:
            source = getattr(originals, self.source)
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, place)
        given = f"./{place}" if name.startswith("-") else str(place)  # as a shell's user writes it
        before = contents(folder)
        done = run(*originals.arguments(self.command, given))
        said = f"{self.command}, {name!r}: {done.stderr[-500:]}"
        if name == NO_UTF8:
            assert (done.returncode, contents(folder)) == (2, before), said
            assert "not UTF-8" in done.stderr, said
            return "refused"
        assert done.returncode == 0, said
        check = self.check
        assert check in done.stdout + done.stderr if isinstance(check, str) else check(place), said
        assert not [path for path in contents(folder) if re.search(r"\.tmp$|\.(new|old|unfinished)-[^/]*$", str(path))]
        return "works"


QUICK = (
    Attempt("columns {it}", "log", ".csv", "color"),
    Attempt("columns {it}", "folder", "", "color"),
    Attempt("columns {log} --schema {it}", "", ".yaml", _holds("")),
    Attempt("prepare {log} {it} --vocabulary", "", "", _is_log),
    Attempt("train {it} " + TINY, "prepared", "", _one_below("runs")),
    Attempt("predict {it} {log}", "run", "", "row,"),
    Attempt("predict {run} {it}", "log", ".csv", "row,"),
    Attempt("predict {run} {log} --out {it}", "", ".parquet", _holds("")),
    Attempt("inspect {run} --html {it}", "", ".html", _holds("")),
    Attempt("export {run} {it} --since {export}", "", "", _holds("manifest.json")),
    Attempt("synthesize {it} --rows 200", "", ".csv", _is_log),
)
"""Attempts that go through most of what reads and writes."""
SLOW = (
    Attempt("prepare {log} out --schema {it}", "schema", ".yaml", "300"),
    Attempt("train {it} " + TINY, "settings", ".yaml", _one_below("runs")),
    Attempt("train --resume {it}", "begun", "", _is_model),
    Attempt("train {prepared} --out {it} --overwrite " + TINY, "run", "", _is_model),
    Attempt("evaluate {it} {log}", "run", "", "log loss"),
    Attempt("export {run} out --since {it}", "export", "", "feature rate"),
    Attempt("export {run} {it} --no-onnx --program", "", "", _is_model),
    Attempt("inspect {it}", "run", "", "Feature rate"),
    Attempt("path {log} --out {it} " + PATH, "", "", _holds("path.json", "path.svg")),
    Attempt("tune --resume {it} --trials 1", "study", "", "sparsegroup train"),
    Attempt("tune {log} --out {it} " + TUNE, "", "", _holds("best.yaml")),
)


@pytest.mark.parametrize(
    "attempt",
    [*QUICK, *(pytest.param(one, marks=pytest.mark.slow) for one in SLOW)],
    ids=lambda one: f"{one.command} {one.source}{one.end}",
)
def test_a_name_of_many_signs_is_the_name_of_a_file(
    attempt: Attempt, originals: Originals, run: Run, tmp_path: Path
) -> None:
    assert attempt.outcome(AT_ONCE, originals, run, tmp_path / "a") == "works"
    assert attempt.outcome(NO_UTF8, originals, run, tmp_path / "b") == "refused"
    if not attempt.command.startswith("train"):  # the slowest of them
        assert attempt.outcome(LONGEST, originals, run, tmp_path / "c") == "works"
        assert (
            attempt.outcome(
                "--" + AT_ONCE[::-1].replace("\n", "\r<b>&amp;\\{0}é\x1b[31m"), originals, run, tmp_path / "d"
            )
            == "works"
        )


def test_the_home_folder_is_not_meant(ok: Run, tmp_path: Path) -> None:
    ok("synthesize", "~root.csv", "--rows", "200")
    assert (tmp_path / "~root.csv").is_file()
    assert len(open_log("~root.csv")) == 200


def test_of_a_folder_the_name_that_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"a\xff.csv")).write_text("label,c\n1,a\n0,b\n")
    for log in (tmp_path, tmp_path / "*"):
        with pytest.raises(ClickLogError, match=r"a\\xff\.csv.*not UTF-8"):
            open_log(log)


def test_brackets_and_emoji_in_columns_are_printed_as_they_are(ok: Run, run: Run, tmp_path: Path) -> None:
    rows = "".join(f"{number % 2},v{number % 5},[/b]{number % 3}\n" for number in range(200))
    Path("log.csv").write_text("label,[/red],a:smile:[b]\n" + rows)
    ok("train", "log.csv", "--out", "run", "--model", "lr", "--no-baseline")
    shown = ok("evaluate", "run", "log.csv", "--by", "[/red]", "--by", "a:smile:[b]")
    assert "[/red]" in shown.stdout
    assert "a:smile:[b]" in shown.stdout
    assert "a:smile:[b]" in run("columns", "log.csv").stdout


def test_a_command_to_copy_is_quoted(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "a $b"
    folder.mkdir()
    (folder / "config.yaml").touch()
    done = run("train", "--rows", "200", "--out", "a $b")
    assert done.returncode == 2
    assert "`sparsegroup train --resume 'a $b'`" in done.stderr


@given(st.text(max_size=300), st.integers(1, 20_000))
def test_a_message_is_short_and_has_no_control_characters_whatever_it_quotes(text: str, times: int) -> None:
    error = UserError(f"log.csv:1: {text * times}\nsecond line {text}", "option")
    message = str(error)
    assert all(character.isprintable() or character in "\t\n" for character in message if ord(character) < 0xA0)
    assert max(map(len, message.split("\n"))) <= 4000
    assert message.startswith("log.csv:1: ")
    assert str(UserError(message)) == message
    if times * len(text) < 400 and text.isprintable():
        assert message == f"log.csv:1: {text * times}\nsecond line {text}"


def test_names_and_values_of_a_log_are_cut_and_escaped_on_the_terminal(run: Run) -> None:
    long, red = "t" * 100_000, "\x1b[31mred\x07"
    good = "label,a\n" + "0,x\n1,y\n" * 20
    for name, text in {
        "ok.csv": good,
        "nul.csv": "label,a\n" + "\0" * 65_536 + ",x\n" + "1,y\n" * 20,
        "red.csv": good.replace("label", red),
        "value.csv": good + f"{red},z\n",
        "long.csv": good.replace("label", long),
        "many.csv": ",".join(f"column number {i}" for i in range(1000)) + "\n",
        "list.yaml": f"label: label\nmulti: {{{long}: '|'}}\n",
        "key.yaml": f"{long}: label\n",
    }.items():
        Path(name).write_text(text)
    for command in (
        *(f"train {name}.csv" for name in ("nul", "red", "value", "long", "many")),
        *(f"train ok.csv --schema {name}.yaml" for name in ("list", "key")),
        f"train ok.csv --label {long}",
        f"train ok.csv --set model.{long}=1",
    ):
        done = run(*command.split(), "--out", "run")
        assert done.returncode == 2
        assert len(done.stderr) < 5000, command[:40]
        assert not set(done.stderr) & {"\x1b", "\x07", "\0"}, command[:40]
