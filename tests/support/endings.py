"""How a command ends: it succeeds, or it refuses what it was given."""

from collections.abc import Callable

import pytest

from command import Done, Run

Refused = Callable[..., str]


@pytest.fixture
def ok(run: Run) -> Run:
    """`run`, of a command that must succeed."""

    def done(*arguments: object) -> Done:
        ended = run(*arguments)
        assert ended.returncode == 0, f"{arguments}: {ended.stderr[-900:]}"
        return ended

    return done


@pytest.fixture
def refused(run: Run) -> Refused:
    """`run`, of a command that must refuse, with one error on stderr, which is returned, and nothing on stdout."""

    def error(*arguments: object) -> str:
        ended = run(*arguments)
        assert (ended.returncode, ended.stdout) == (2, ""), (arguments, ended)
        assert ended.stderr.count("error: ") <= 1, (arguments, ended.stderr)
        assert "Traceback" not in ended.stderr, (arguments, ended.stderr)
        return ended.stderr

    return error
