"""A command starts without looking for garbage, and does its work with."""

import gc
import inspect

import pytest

from sparsegroup.cli import app
from sparsegroup.cli.app import main, starting
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


def test_every_command_starts_so() -> None:
    assert len(app.registered_commands) > 10
    for command in app.registered_commands:
        assert command.callback is not None
        assert "starting" in inspect.unwrap(command.callback).__code__.co_names, command.name


def test_who_does_without_keeps_doing_without() -> None:
    with uncollected():
        with uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), uncollected():
        raise KeyError
    assert gc.isenabled()
