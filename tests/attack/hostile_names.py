"""File names that programs stumble over, and for each command what it reads and writes under such a name.

`ATTEMPTS` lists them: a command line with the name as the log, the model, the settings or the output, and whether the
result is there, under that name.
"""

import json
import os
import shutil
from collections.abc import Callable
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

TUNE = "--trials 1 --tune-rows 200 --set model.name=lr"
TINY = "--model lr --batch-size 64 --no-baseline --threads 1"
PATH = "--rates .5 --batch-size 64 --model lr --no-fallback"


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
    """A log, and what is made of it when first asked for, under names that cause no trouble.

    Args:
        folder: Empty.
        run: The command line, which gives the exit status.
    """

    def __init__(self, folder: Path, run: Callable[..., int]) -> None:
        self._folder, self._run = folder, run
        self.log = click_log(folder / "log.csv", 300)
        self.settings = folder / "settings.yaml"
        self.settings.write_text(f"data: {{log: {json.dumps(str(self.log))}}}\n")

    def arguments(self, command: str, it: str = "") -> list[str]:
        """The words of a command, with paths in the place of `{log}`, `{run}` and alike, and of `{it}`."""
        return [word.format(o=self, it=it) for word in command.replace("{", "{o.").replace("{o.it", "{it").split()]

    def _made(self, name: str, command: str) -> Path:
        assert self._run(*self.arguments(command, str(self._folder / name))) == 0
        return self._folder / name

    @cached_property
    def schema(self) -> Path:
        return self._made("schema.yaml", "columns {log} --schema {it}")

    @cached_property
    def prepared(self) -> Path:
        return self._made("prepared", "prepare {log} {it} --vocabulary")

    @cached_property
    def run(self) -> Path:
        return self._made("run", "train {log} --out {it} " + TINY)

    @cached_property
    def begun(self) -> Path:
        """A run that was cut off."""
        folder = shutil.copytree(self.run, self._folder / "begun")
        (folder / "summary.json").unlink()
        return folder

    @cached_property
    def export(self) -> Path:
        return self._made("export", "export {run} {it} --no-onnx")

    @cached_property
    def study(self) -> Path:
        return self._made("study", "tune {log} --out {it} " + TUNE)


def _is_log(place: Path) -> bool:
    return len(open_log(str(place))) > 0


def _is_model(place: Path) -> bool:
    return bool(open_trained(place).columns.fields)


def _holds(*names: str) -> Callable[[Path], bool]:
    return lambda place: all((place / name).stat().st_size for name in names)


def _one_below(parent: str) -> Callable[[Path], bool]:
    """One folder of runs has been made, of which the latest is a whole one."""
    return lambda place: [any(made.rglob("*.json")) for made in Path(parent).iterdir()] == [True]


@dataclass(frozen=True)
class Attempt:
    """A command with a hostile name in it.

    Attributes:
        command: With `{it}` for the place of that name; see `Originals.arguments`.
        source: The original that the place is a copy of; "folder": a folder with the log; "": nothing is there.
        end: What the name of the place ends with.
        check: The words that are printed, or whether the result is there.
    """

    command: str
    source: str
    end: str
    check: str | Callable[[Path], bool]

    def prepare(self, originals: Originals, place: Path) -> None:
        """Put what the command reads in the place that it is given."""
        if self.source == "folder":
            place.mkdir()
            shutil.copyfile(originals.log, place / "a.csv")
        elif self.source:
            source = getattr(originals, self.source)
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, place)

    def has_worked(self, place: Path, done: Done) -> bool:
        return self.check in done.stdout + done.stderr if isinstance(self.check, str) else self.check(place)


_IS_FILE = _holds("")
ATTEMPTS = (
    Attempt("columns {it}", "log", ".csv", "color"),
    Attempt("columns {it}", "folder", "", "color"),
    Attempt("prepare {it} out", "log", ".csv", "300"),
    Attempt("prepare {it} out", "folder", "", "300"),
    Attempt("prepare {log} out --schema {it}", "schema", ".yaml", "300"),
    Attempt("prepare {log} out --test {it}", "log", ".csv", "600"),
    Attempt("train {it} " + TINY, "log", ".csv", _one_below("runs")),
    Attempt("train {it} " + TINY, "folder", "", _one_below("runs")),
    Attempt("train {it} " + TINY, "prepared", "", _one_below("runs")),
    Attempt("train {it} " + TINY, "settings", ".yaml", _one_below("runs")),
    Attempt("train {log} --continue {it} --out out", "run", "", "log loss"),
    Attempt("train --resume {it}", "begun", "", _is_model),
    Attempt("evaluate {it} {log}", "run", "", "log loss"),
    Attempt("evaluate {run} {it}", "log", ".csv", "log loss"),
    Attempt("evaluate {run} {it}", "folder", "", "log loss"),
    Attempt("predict {it} {log}", "run", "", "row,"),
    Attempt("predict {it} {log}", "export", "", "row,"),
    Attempt("predict {run} {it}", "log", ".csv", "row,"),
    Attempt("predict {run} {it}", "prepared", "", "row,"),
    Attempt("export {it} out --no-onnx", "run", "", "feature rate"),
    Attempt("export {run} out --test {it} --no-onnx", "log", ".csv", "feature rate"),
    Attempt("export {run} out --since {it}", "export", "", "feature rate"),
    Attempt("inspect {it}", "run", "", "Feature rate"),
    Attempt("inspect {it}", "export", "", "Feature rate"),
    Attempt("path {it} " + PATH, "log", ".csv", _one_below("paths")),
    Attempt("tune {it} " + TUNE, "log", ".csv", "sparsegroup train"),
    Attempt("tune {it} --trials 0", "log", ".csv", "lr"),
    Attempt("tune --resume {it} --trials 1", "study", "", "sparsegroup train"),
    Attempt("synthesize {it} --rows 200", "", ".csv", _is_log),
    Attempt("synthesize {it} --rows 200", "", ".parquet", _is_log),
    Attempt("columns {log} --schema {it}", "", ".yaml", _IS_FILE),
    Attempt("prepare {log} {it}", "", "", _is_log),
    Attempt("prepare {log} {it} --vocabulary", "", "", _is_log),
    Attempt("train {log} --out {it} " + TINY, "", "", _is_model),
    Attempt("train {prepared} --out {it} --overwrite " + TINY, "run", "", _is_model),
    Attempt("predict {run} {log} --out {it}", "", ".csv", _IS_FILE),
    Attempt("predict {run} {log} --out {it}", "", ".csv.gz", _IS_FILE),
    Attempt("predict {run} {log} --out {it}", "", ".parquet", _IS_FILE),
    Attempt("export {run} {it} --no-onnx", "", "", _is_model),
    Attempt("export {run} {it} --no-onnx --program", "", "", _is_model),
    Attempt("export {run} {it} --no-onnx --overwrite", "export", "", _is_model),
    Attempt("export {run} {it} --since {export}", "", "", _holds("manifest.json")),
    Attempt("inspect {run} --html {it}", "", ".html", _IS_FILE),
    Attempt("path {log} --out {it} " + PATH, "", "", _holds("path.json", "path.svg")),
    Attempt("tune {log} --out {it} " + TUNE, "", "", _holds("best.yaml")),
)

SHORT = [ATTEMPTS[place] for place in (0, 3, 8, 13, 22, 28, 29, 30, 32, 37, 42)]
"""Attempts that go through most of what reads and writes."""

LONG = ATTEMPTS[38:40]
"""Attempts that take many seconds."""


def contents(folder: Path) -> dict[str, int]:
    """All that lies in a folder, with its size."""
    return {str(path.relative_to(folder)): path.lstat().st_size for path in sorted(folder.rglob("*"))}


def given_as(name: str) -> str:
    """A name as a shell's user writes it in the folder it lies in: one that begins as an option behind `./`."""
    return f"./{name}" if name.startswith("-") else name
