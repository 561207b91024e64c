"""File names that programs stumble over, and for each command what it reads and writes under such a name.

`ATTEMPTS` lists them: a command line with the name as the log, the model, the settings or the output, and how to tell
that the result is there, under the name as it was given.
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cli_cases import click_log
from command import Done
from sparsegroup.data import open_log
from sparsegroup.serving.opening import open_trained

NAMES = {
    "markup": "[red]x",
    "bracket": "x[b",
    "emoji": "a:smile:b",
    "colons": "log-12:30",
    "scheme": "s3:bucket",
    "class": "[a-c]",
    "star": "a*b",
    "stars": "**",
    "question": "what?",
    "spaces": " a  b ",
    "newline": "a\nb",
    "carriage": "a\rb\tc",
    "escape": "a\x1b[31mb",
    "percent": "100%41%s",
    "braces": "{0}{x}",
    "quotes": "a'b\"c`d`",
    "dollars": "$HOME$x_{y}$",
    "backslash": "a\\b\\",
    "dash": "-rf",
    "options": "--json",
    "tilde": "~root",
    "hash": "#x;&|y",
    "key": "day=1%2F2",
    "markup language": "<b>&amp;",
    "letters": "é–日本\u202e",
    "settings": "x.yaml",
    "table": "x.parquet",
    "compressed": "x.gz",
    "prepared": "log.json",
    "hidden": ".x",
    "underscore": "_x",
    "dots": "..x",
    "longest": "n" * 255,
    "longest of two bytes": "é" * 127,
    "no UTF-8": os.fsdecode(b"a\xff\xfeb"),
}
"""What is wrong → the name of a file without its end, or of a folder."""

AT_ONCE = "s3:[red]* ?'\"$x_{y}$\n%41:smile:"
"""Much of it in one name."""

TUNE = ("--trials", "1", "--tune-rows", "200", "--set", "model.name=lr")
TINY = ("--model", "lr", "--batch-size", "64", "--no-baseline", "--threads", "1")


def file_name(name: str, end: str) -> str:
    """A name with an end, cut to what file systems allow: 255 bytes."""
    kept = os.fsencode(name)[: 255 - len(end)]
    while True:
        try:
            return (kept.decode() if "\udcff" not in name else os.fsdecode(kept)) + end
        except UnicodeDecodeError:
            kept = kept[:-1]


def is_refused(name: str) -> bool:
    """Whether a name is no text: manifests, reports and Parquet's libraries hold none of these."""
    return any("\ud800" <= letter <= "\udfff" for letter in name)


class Originals:
    """A log, and what is made of it when first asked for, under names that nobody stumbles over.

    Args:
        folder: Empty.
        run: The command line, which gives the exit status.
    """

    def __init__(self, folder: Path, run: Callable[..., int]) -> None:
        self._folder, self._run = folder, run
        self.log = click_log(folder / "log.csv", 300)
        self.settings = folder / "settings.yaml"
        self.settings.write_text(f"data: {{log: {json.dumps(str(self.log))}}}\n")

    def _made(self, name: str, *command: object) -> Path:
        assert self._run(*command) == 0
        return self._folder / name

    @cached_property
    def schema(self) -> Path:
        return self._made("schema.yaml", "columns", self.log, "--schema", self._folder / "schema.yaml")

    @cached_property
    def prepared(self) -> Path:
        return self._made("prepared", "prepare", self.log, self._folder / "prepared", "--vocabulary")

    @cached_property
    def run(self) -> Path:
        return self._made("run", "train", self.log, "--out", self._folder / "run", *TINY)

    @cached_property
    def begun(self) -> Path:
        """A run that was cut off."""
        folder = shutil.copytree(self.run, self._folder / "begun")
        (folder / "summary.json").unlink()
        return folder

    @cached_property
    def export(self) -> Path:
        return self._made("export", "export", self.run, self._folder / "export", "--no-onnx")

    @cached_property
    def study(self) -> Path:
        return self._made("study", "tune", self.log, "--out", self._folder / "study", *TUNE)


@dataclass(frozen=True)
class Attempt:
    """A command with a hostile name in it.

    Attributes:
        what: What it does, for a reader.
        prepare: Puts what the command reads in the place that it is given.
        end: What the name of that place ends with.
        command: The arguments, of the originals and the place as it is named on the command line.
        check: Whether the result is there, of the place and of the folder that the command ran in.
    """

    what: str
    prepare: Callable[[Originals, Path], object]
    end: str
    command: Callable[[Originals, str], Sequence[object]]
    check: Callable[[Path, Done], object]


def _copied(original: str) -> Callable[[Originals, Path], object]:
    def copy(originals: Originals, place: Path) -> None:
        source = getattr(originals, original)
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, place)

    return copy


def _folder_of_logs(originals: Originals, place: Path) -> None:
    place.mkdir()
    shutil.copyfile(originals.log, place / "a.csv")


def _nothing(originals: Originals, place: Path) -> None:
    pass


def _said(words: str) -> Callable[[Path, Done], None]:
    def check(place: Path, done: Done) -> None:
        assert words in done.stdout + done.stderr

    return check


def _is_log(place: Path, done: Done) -> None:
    assert len(open_log(str(place))) > 0


def _is_model(place: Path, done: Done) -> None:
    assert open_trained(place).columns.fields


def _holds(*names: str) -> Callable[[Path, Done], None]:
    def check(place: Path, done: Done) -> None:
        assert all((place / name).stat().st_size for name in names)

    return check


def _is_file(place: Path, done: Done) -> None:
    assert place.stat().st_size


def _one_below(parent: str) -> Callable[[Path, Done], None]:
    """One folder of runs has been made, of which the latest is a whole one."""

    def check(place: Path, done: Done) -> None:
        (made,) = Path(parent).iterdir()
        assert any(made.rglob("*.json"))

    return check


_PATH = ("--rates", ".5", "--batch-size", "64", "--model", "lr", "--no-fallback")

ATTEMPTS = (
    Attempt("columns of a file", _copied("log"), ".csv", lambda o, p: ("columns", p), _said("color")),
    Attempt("columns of a folder", _folder_of_logs, "", lambda o, p: ("columns", p), _said("color")),
    Attempt("prepare a file", _copied("log"), ".csv", lambda o, p: ("prepare", p, "out"), _said("300")),
    Attempt("prepare a folder", _folder_of_logs, "", lambda o, p: ("prepare", p, "out"), _said("300")),
    Attempt(
        "prepare by a schema",
        _copied("schema"),
        ".yaml",
        lambda o, p: ("prepare", o.log, "out", "--schema", p),
        _said("300"),
    ),
    Attempt(
        "prepare a test log", _copied("log"), ".csv", lambda o, p: ("prepare", o.log, "out", "--test", p), _said("600")
    ),
    Attempt("train on a file", _copied("log"), ".csv", lambda o, p: ("train", p, *TINY), _one_below("runs")),
    Attempt("train on a folder", _folder_of_logs, "", lambda o, p: ("train", p, *TINY), _one_below("runs")),
    Attempt("train on a prepared log", _copied("prepared"), "", lambda o, p: ("train", p, *TINY), _one_below("runs")),
    Attempt("train on settings", _copied("settings"), ".yaml", lambda o, p: ("train", p, *TINY), _one_below("runs")),
    Attempt(
        "continue a run",
        _copied("run"),
        "",
        lambda o, p: ("train", o.log, "--continue", p, "--out", "out"),
        _said("log loss"),
    ),
    Attempt("resume a run", _copied("begun"), "", lambda o, p: ("train", "--resume", p), _is_model),
    Attempt("evaluate a model", _copied("run"), "", lambda o, p: ("evaluate", p, o.log), _said("log loss")),
    Attempt("evaluate on a file", _copied("log"), ".csv", lambda o, p: ("evaluate", o.run, p), _said("log loss")),
    Attempt("evaluate on a folder", _folder_of_logs, "", lambda o, p: ("evaluate", o.run, p), _said("log loss")),
    Attempt("predict by a model", _copied("run"), "", lambda o, p: ("predict", p, o.log), _said("row,")),
    Attempt("predict by an export", _copied("export"), "", lambda o, p: ("predict", p, o.log), _said("row,")),
    Attempt("predict a file", _copied("log"), ".csv", lambda o, p: ("predict", o.run, p), _said("row,")),
    Attempt("predict a prepared log", _copied("prepared"), "", lambda o, p: ("predict", o.run, p), _said("row,")),
    Attempt("export a run", _copied("run"), "", lambda o, p: ("export", p, "out", "--no-onnx"), _said("feature rate")),
    Attempt(
        "export and test",
        _copied("log"),
        ".csv",
        lambda o, p: ("export", o.run, "out", "--test", p, "--no-onnx"),
        _said("feature rate"),
    ),
    Attempt(
        "export since",
        _copied("export"),
        "",
        lambda o, p: ("export", o.run, "out", "--since", p),
        _said("feature rate"),
    ),
    Attempt("inspect a run", _copied("run"), "", lambda o, p: ("inspect", p), _said("Feature rate")),
    Attempt("inspect an export", _copied("export"), "", lambda o, p: ("inspect", p), _said("Feature rate")),
    Attempt("path on a file", _copied("log"), ".csv", lambda o, p: ("path", p, *_PATH), _one_below("paths")),
    Attempt("tune on a file", _copied("log"), ".csv", lambda o, p: ("tune", p, *TUNE), _said("sparsegroup train")),
    Attempt("what tune searches", _copied("log"), ".csv", lambda o, p: ("tune", p, "--trials", "0"), _said("lr")),
    Attempt(
        "resume a study",
        _copied("study"),
        "",
        lambda o, p: ("tune", "--resume", p, "--trials", "1"),
        _said("sparsegroup train"),
    ),
    Attempt("synthesize a text", _nothing, ".csv", lambda o, p: ("synthesize", p, "--rows", "200"), _is_log),
    Attempt("synthesize Parquet", _nothing, ".parquet", lambda o, p: ("synthesize", p, "--rows", "200"), _is_log),
    Attempt("write a schema", _nothing, ".yaml", lambda o, p: ("columns", o.log, "--schema", p), _is_file),
    Attempt("prepare into", _nothing, "", lambda o, p: ("prepare", o.log, p), _is_log),
    Attempt("prepare with names into", _nothing, "", lambda o, p: ("prepare", o.log, p, "--vocabulary"), _is_log),
    Attempt("train into", _nothing, "", lambda o, p: ("train", o.log, "--out", p, *TINY), _is_model),
    Attempt(
        "train over",
        _copied("run"),
        "",
        lambda o, p: ("train", o.prepared, "--out", p, "--overwrite", *TINY),
        _is_model,
    ),
    Attempt("predict into", _nothing, ".csv", lambda o, p: ("predict", o.run, o.log, "--out", p), _is_file),
    Attempt("predict into gzip", _nothing, ".csv.gz", lambda o, p: ("predict", o.run, o.log, "--out", p), _is_file),
    Attempt("predict into Parquet", _nothing, ".parquet", lambda o, p: ("predict", o.run, o.log, "--out", p), _is_file),
    Attempt("export into", _nothing, "", lambda o, p: ("export", o.run, p, "--no-onnx"), _is_model),
    Attempt(
        "export a program into", _nothing, "", lambda o, p: ("export", o.run, p, "--no-onnx", "--program"), _is_model
    ),
    Attempt(
        "export over", _copied("export"), "", lambda o, p: ("export", o.run, p, "--no-onnx", "--overwrite"), _is_model
    ),
    Attempt(
        "export a difference into",
        _nothing,
        "",
        lambda o, p: ("export", o.run, p, "--since", o.export),
        _holds("manifest.json"),
    ),
    Attempt("write a page", _nothing, ".html", lambda o, p: ("inspect", o.run, "--html", p), _is_file),
    Attempt(
        "path into", _nothing, "", lambda o, p: ("path", o.log, "--out", p, *_PATH), _holds("path.json", "path.svg")
    ),
    Attempt("tune into", _nothing, "", lambda o, p: ("tune", o.log, "--out", p, *TUNE), _holds("best.yaml")),
)


SHORT = (
    *("columns of a file", "prepare a folder", "train on a prepared log", "evaluate on a file", "inspect a run"),
    *("synthesize a text", "synthesize Parquet", "write a schema", "prepare with names into"),
    *("predict into Parquet", "write a page"),
)
"""Attempts that go through most of what reads and writes."""

LONG = ("export into", "export a program into")
"""Attempts that take many seconds."""


def contents(folder: Path) -> dict[str, int]:
    """All that lies in a folder, with its size."""
    return {str(path.relative_to(folder)): path.lstat().st_size for path in sorted(folder.rglob("*"))}


def given_as(name: str) -> str:
    """A name as a shell's user writes it in the folder it lies in: one that begins as an option behind `./`."""
    return f"./{name}" if name.startswith("-") else name
