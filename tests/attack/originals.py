"""A log, and what the command line makes of it, for attacks that need such a thing."""

import json
import shutil
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from cli_cases import click_log

TUNE = "--trials 1 --tune-rows 200 --set model.name=lr"
TINY = "--model lr --batch-size 64 --no-baseline --threads 1"
PATH = "--rates .5 --batch-size 64 --model lr --no-fallback"


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


def contents(folder: Path) -> dict[str, int]:
    """All that lies in a folder, with its size."""
    return {str(path.relative_to(folder)): path.lstat().st_size for path in sorted(folder.rglob("*"))}
