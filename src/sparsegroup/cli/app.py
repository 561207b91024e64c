"""The application: its commands, each in a module that is imported when it is called, and how a call ends.

A command's module declares its options, so it imports nothing that takes time; what the command does is imported when
it runs.
"""

import errno
import gc
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from time import sleep
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from sparsegroup.cli.output import fail, flush_streams, is_unread, logged, mend_streams, output_options
from sparsegroup.errors import UserError
from sparsegroup.importing import ended_by_interrupt, uncollected

_PARENT = os.getppid()
"""Parent of this process, recorded before the slow imports."""

COMMANDS: Mapping[str, str] = {
    "columns": "Show what the columns of a log are taken for, and why: categories, numbers, times, lists.",
    "demo": "Adam, pruned Adam, Group Adam as in the paper, and a target rate, side by side on a synthetic log.",
    "evaluate": "Compare a model's predictions with a log's labels: AUC, calibration, gains, by user and by value of a "
    "field.",
    "explain": "Say why a model predicts what it does for rows of a log: what each column contributes to the logit.",
    "export": "Write the live rows of a trained model and its network, for servers.",
    "apply": "Apply deltas to an export, and write the result as a new export.",
    "follow": "Predict and then learn each row of a stream, for ever, and publish the model every so often.",
    "inspect": "Look into a trained model: sizes, feature rate per field, norms, the largest features, and what λ did.",
    "path": "How good would a smaller model be? One pass for each feature rate, against all features: table, plot and "
    "JSON.",
    "predict": "Score all rows of a log: row (its place in the log, from 0), probability and label.",
    "prepare": "Read a click log of any size and write it as Parquet: 64-bit keys, numbers, label, time and weight.",
    "select": "Find the columns of a log that a model can do without, and what it is without them.",
    "serve": "Score rows over HTTP, and take each published release as it comes.",
    "synthesize": "Make up a raw click log of typed columns: users, ads, times, tags, prices, counts and rates.",
    "train": "Train on a click log, in one pass or several, and report AUC, log loss and feature rate on its last "
    "part.",
    "tune": "Search for settings on part of the training rows, by successive halving; ends with a YAML file for "
    "`train`.",
    "watch": "Look at a run that follows a stream: warnings in a sentence each, and key figures.",
}
"""Command → the first line of its help, in the order of `--help`. `train` is `train_command` in `cli.train`."""
_MODULES = {
    "apply": "export",
    "demo": "compare",
    "evaluate": "score",
    "explain": "score",
    "inspect": "score",
    "path": "compare",
    "predict": "score",
    "select": "columns",
    "synthesize": "prepare",
    "watch": "follow",
}
"""Commands whose module has another name."""


class _Command(TyperCommand):
    """A command of which the name and a line of help are known until it is called."""

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **options: Any) -> Any:
        """See click: of the command as its module declares it."""
        return load_command(str(self.name)).make_context(info_name, args, *rest, **options)


class _Commands(TyperGroup):
    """The commands, not imported."""

    def __init__(self, **attributes: Any) -> None:
        commands = {name: _Command(name=name, help=line) for name, line in COMMANDS.items()}
        super().__init__(**{**attributes, "commands": commands})


def load_command(name: str) -> TyperCommand:
    """A command with its options, from its module."""
    alone = typer.Typer(add_completion=False)
    alone.command(name)(getattr(import_module(f"sparsegroup.cli.{_MODULES.get(name, name)}"), f"{name}_command"))
    command = typer.main.get_command(alone)
    assert isinstance(command, TyperCommand)
    command.params += output_options()
    return command


app = typer.Typer(
    cls=_Commands,
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


@contextmanager
def starting(threads: int | None = None) -> Iterator[None]:
    """Around a command's imports: what they make stays, and is not looked through for garbage then, nor later.

    These threads then share the table's work, and torch has one: its own would spin on the others' cores.
    """
    gc.disable()
    try:
        with ended_by_interrupt():
            yield
        if not gc.get_freeze_count():  # once a process: garbage of an earlier command would also be kept
            gc.freeze()  # even at the end of the process: a last search through them takes a second
    finally:
        gc.enable()
    if threads is not None:
        import torch

        from sparsegroup.kernels.cpu.threads import set_num_threads

        torch.set_num_threads(1)
        set_num_threads(threads)


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def end_with_parent(poll: float = 1.0) -> None:
    """End this process, a rank, within `poll` seconds after its parent, torchrun's agent, has ended.

    An orphaned rank would continue to train, or wait in torch's rendezvous, and nobody would see its result.
    """

    def watch() -> None:
        while os.getppid() == _PARENT:
            sleep(poll)
        fail("torchrun, which has started this rank, has ended: this rank ends; `train --resume` continues the run")
        os._exit(1)

    threading.Thread(target=watch, name="sparsegroup-parent", daemon=True).start()


class UsageError(UserError):
    """A command that cannot be carried out as given."""


def main(run: Callable[[], None] = app) -> None:
    """Run the command line. An error prints one line on stderr.

    The exit status is 2 if the user can correct the error, and 1 if the machine fails: a full disk, no memory, or a
    closed output.
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
    except KeyboardInterrupt:
        fail("interrupted")
        return 128 + signal.SIGINT
    except OSError as error:
        return _end_of(error)
    except (MemoryError, RuntimeError) as error:
        if _is_out_of_memory(error):
            _end_without_memory(error)
        from sparsegroup.table import ExchangeError

        if not isinstance(error, ExchangeError):
            raise
        fail(str(error))
        return 1
    return 2


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether an error of Python, NumPy, Arrow, Numba or torch, on CPU or GPU, means exhausted memory."""
    return isinstance(error, MemoryError) or bool(re.search(r"can't allocate memory|out of memory", str(error)))


def _end_without_memory(error: Exception) -> NoReturn:
    """Report exhausted memory, and end immediately, before the library of another thread aborts the process."""
    what = str(error).partition("\n")[0]
    fail(
        f"out of memory{f' ({what})' if what else ''}: give this process more memory, or let it need less: shorter "
        "vectors (--dim), smaller batches (--batch-size), a limit of the table (--max-table-bytes), fewer threads "
        "(--threads); `sparsegroup prepare` writes a raw log as a folder that takes less memory to read"
    )
    flush_streams()
    os._exit(1)


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


_COMMANDS = {
    "follow": "`sparsegroup follow`",
    "prepare": "`sparsegroup prepare`",
    "resume": "`sparsegroup train --resume`",
}
"""Function of the library → the command or option that calls it."""


def in_shell(*words: object) -> str:
    """A call of `sparsegroup` for a message, to be copied into a shell."""
    return f"`{shlex.join(['sparsegroup', *map(str, words)])}`"


def _option(parameter: str) -> str:
    """A parameter of the library as the command line spells it."""
    return _COMMANDS.get(parameter, "--" + parameter.replace("_", "-"))
