"""What the commands share: the application, and how it ends when something is wrong.

The application and its commands' options are imported for every call, so they import nothing that takes time; what a
command does is imported when it runs.
"""

import atexit
import errno
import gc
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from sparsegroup.cli.output import fail, flush_streams, is_unread, logged, mend_streams
from sparsegroup.errors import UserError
from sparsegroup.importing import uncollected

app = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train click models whose embedding tables end up sparse.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from sparsegroup import __version__

        print(f"sparsegroup {__version__}")
        raise typer.Exit


Threads = Annotated[
    int,
    typer.Option(
        min=1, help="Threads that share the table's work; the network uses one. They don't change the result."
    ),
]
_local_ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
THREADS = max(1, min(2, (os.cpu_count() or 1) // max(1, int(_local_ranks) if _local_ranks.isdecimal() else 1)))


@contextmanager
def starting() -> Iterator[None]:
    """Around a command's imports: what they make stays, and is not looked through for garbage then, nor later."""
    gc.disable()
    try:
        yield
        if not gc.get_freeze_count():  # once a process: garbage of an earlier command would stay, too
            gc.freeze()
            atexit.register(gc.unfreeze)  # at the end extension modules look whether all of theirs is gone
    finally:
        gc.enable()


def use_threads(number: int) -> None:
    """Let so many threads share the table's work, and leave torch one: its own would spin on the others' cores."""
    import torch

    from sparsegroup.kernels.cpu.threads import set_num_threads

    torch.set_num_threads(1)
    set_num_threads(number)


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


class UsageError(UserError):
    """A command that cannot be carried out as given."""


def main(run: Callable[[], None] = app) -> None:
    """Run the command line; an error is one line on stderr.

    The exit status is 2 if the user can mend the error, 1 if the machine ends: a full disk, or an output that nobody
    reads.
    """
    mend_streams()
    status = _status_of(run)
    if (problem := flush_streams()) is not None and status == 0:
        status = _end_of(problem)
        flush_streams()
    if status and os.environ.get("WORLD_SIZE", "1") != "1":
        os._exit(status)  # no thread that still waits for other ranks keeps the process
    sys.exit(status)


def _status_of(run: Callable[[], None]) -> int:
    try:
        with logged(), uncollected():  # until a command starts
            _check_arguments()
            run()
    except SystemExit as ended:
        return int(ended.code or 0)
    except UserError as error:
        if not error.is_told:
            fail(error.spelled(_option))
    except FloatingPointError as error:
        fail(str(error))
    except OSError as error:
        return _end_of(error)
    except RuntimeError as error:
        from sparsegroup.table import ExchangeError

        if not isinstance(error, ExchangeError):
            raise
        fail(str(error))
        return 1
    return 2


_OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.EPIPE)
"""Errors that other arguments do not mend."""


def _end_of(error: OSError) -> int:
    """Report the error; the exit status."""
    if not is_unread(error):
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    return 1 if error.errno in _OF_THE_MACHINE else 2


def _check_arguments() -> None:
    """Raise UsageError unless all arguments are text."""
    for argument in sys.argv[1:]:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{os.fsencode(argument)!r}: the name is not UTF-8; rename the file or folder") from None


_COMMANDS = {"prepare": "`sparsegroup prepare`", "resume": "`sparsegroup train --resume`"}
"""Function of the library → the command or option that calls it."""


def in_shell(*words: object) -> str:
    """A call of `sparsegroup` for a message, to be copied into a shell."""
    return f"`{shlex.join(['sparsegroup', *map(str, words)])}`"


def _option(parameter: str) -> str:
    """A parameter of the library as the command line spells it."""
    return _COMMANDS.get(parameter, "--" + parameter.replace("_", "-"))
