"""What the commands share: the application, and how it ends when something is wrong.

The application and its commands' options are imported for every call, so they import nothing that takes time; what a
command does is imported when it runs.
"""

import os
import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import Annotated

import typer

from sparsegroup.cli.output import logged, messages
from sparsegroup.user_error import UserError

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
THREADS = min(2, os.cpu_count() or 1)


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
    """Run the command line; what the user can mend is one line on stderr and exit status 2."""
    for stream in (sys.stdout, sys.stderr):  # an encoding that has no λ is no reason to fail
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        with logged():
            run()
    except UserError as error:
        _fail(error.spelled(_option))
    except FloatingPointError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


_COMMANDS = {"prepare": "`sparsegroup prepare`", "resume": "`sparsegroup train --resume`"}
"""What is a function in Python, and a command or an option of one here."""


def _option(parameter: str) -> str:
    """A parameter of the library as the command line spells it."""
    return _COMMANDS.get(parameter, "--" + parameter.replace("_", "-"))


def _fail(message: str) -> None:
    messages.print(f"error: {message}", markup=False, highlight=False, soft_wrap=True)
    sys.exit(2)
