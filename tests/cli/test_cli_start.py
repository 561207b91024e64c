"""A command starts without looking for garbage, and does its work with."""

import gc
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from sparsegroup.cli.app import COMMANDS, load_command, main, starting
from sparsegroup.importing import uncollected


def test_garbage_is_sought_again_once_a_command_has_started() -> None:
    seen = []

    def run() -> None:
        seen.append(gc.isenabled())
        with starting():
            seen.append(gc.isenabled())
        seen.append(gc.isenabled())

    with pytest.raises(SystemExit):
        main(run)
    assert seen == [False, False, True]
    assert gc.isenabled()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_starts_so_and_its_line_in_the_list_of_commands_begins_its_help(name: str) -> None:
    command = load_command(name)
    assert command.callback is not None
    assert "starting" in inspect.unwrap(command.callback).__code__.co_names
    assert " ".join(str(command.help).split("\n\n")[0].split()) == COMMANDS[name]


def test_who_does_without_keeps_doing_without() -> None:
    with uncollected():
        with uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), uncollected():
        raise KeyError
    assert gc.isenabled()


def test_a_run_imports_neither_torchs_compiler_nor_scikit_learn_nor_matplotlib_and_ends_without_a_search_for_garbage(
    tmp_path: Path,
) -> None:
    program = """
import atexit, gc, sys
from sparsegroup.__main__ import main
atexit.register(lambda: print(gc.get_freeze_count() > 100_000))  # the last to be called
sys.argv = ["sparsegroup", "train", "--rows", "600", "--model", "lr", "--out", "run", "--quiet"]
try:
    main()
finally:
    print(*({"torch._dynamo", "sklearn", "matplotlib", "pandas"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, (tmp_path / "run" / "report.html").is_file()) == (0, "\nTrue\n", True), (
        done.stderr
    )
