"""The options that commands share, and their meaning; options of settings are made from `sparsegroup.settings`."""

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError

from sparsegroup.cli.app import UsageError
from sparsegroup.settings.declared import DECLARED, LOG, PANELS, SHORT, DataSettings, Settings
from sparsegroup.settings.yaml_settings import assignment, checked

RAW_LOG = "a file, a folder of files, a pattern, or a URI such as s3://bucket/day=*/; or several files"
LogOrConfig = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="LOG|CONFIG.yaml",
        help=f"A folder written by `prepare`, a raw log ({RAW_LOG}), or a YAML file of settings that names one. "
        "Default: a synthetic log.",
    ),
]
RawOrPrepared = Annotated[
    list[str], typer.Argument(metavar="LOG", help=f"A raw log ({RAW_LOG}), or a folder written by `prepare`.")
]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a run, a checkpoint or an export.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting, such as optimizer.l2=1e-5 (repeatable)."),
]

OverwriteFile = Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")]

_local_ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
THREADS = max(1, min(2, (os.cpu_count() or 1) // max(1, int(_local_ranks) if _local_ranks.isdecimal() else 1)))
Threads = Annotated[
    int,
    typer.Option(
        min=1, help="Threads that share the table's work; the network uses one. They don't change the result."
    ),
]

OPTIONS = tuple(
    one.short
    for one in sorted(
        (one for one in DECLARED.values() if one.panel),  # in a panel, what the optimizer does before the table
        key=lambda one: (PANELS.index(str(one.panel)), one.key.startswith("model.")),
    )
)
"""Short names of the settings that have an option, in the order of `--help`."""
OF_THE_LOG = tuple(name for name in OPTIONS if DECLARED[SHORT[name]].panel == LOG)
"""How to read a log."""


def takes_settings(*names: str, **changes: Mapping[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of settings, by short names, where it has the parameter `settings`: name → value.

    `changes` are what options say otherwise in this command, such as `show_default`.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def command(**arguments: Any) -> None:
            given = {name: value for name in names if (value := arguments.pop(name)) is not None}
            function(**arguments, settings=given)

        made = [_parameter(name, changes.get(name, {})) for name in names]
        parameters = [
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(function).parameters.values()
            for one in (made if parameter.name == "settings" else [parameter])
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def _parameter(name: str, changes: Mapping[str, Any]) -> inspect.Parameter:
    """A setting as a parameter of a command, with `changes` to its option."""
    one, flag = DECLARED[SHORT[name]], "--" + name.replace("_", "-")
    option = typer.Option(
        f"{flag}/--no-{flag[2:]}" if one.kind is bool else flag,
        rich_help_panel=one.panel,
        help=one.help,
        show_default=one.default or False,
        metavar=one.metavar,
    )
    vars(option).update(changes)
    kind: Any = Annotated[one.kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def settings_file(log: Sequence[str] | None) -> Path | None:
    """The YAML file of settings that is given in the place of a log, if one is."""
    if not log or len(log) > 1 or not log[0].endswith((".yaml", ".yml")) or Path(log[0]).is_dir():
        return None
    return Path(log[0])


def setting_values(
    log: Sequence[str] | None, settings: Mapping[str, Any], assignments: Iterable[str] | None
) -> dict[str, Any]:
    """Dotted key → value of a command line: log, options by their short names, then assignments `key=value`."""
    values: dict[str, Any] = {SHORT[name]: value for name, value in settings.items()}
    if log and settings_file(log) is None:
        values["data.log"] = log[0] if len(log) == 1 else list(log)
    return values | dict(map(assignment, assignments or ()))


def log_settings(settings: Mapping[str, Any]) -> DataSettings:
    """How options say to read a log: short name → value."""
    return checked(Settings, {"data": settings}, "the command line").data


def check_new_file(path: Path | None, option: str, overwrite: bool) -> None:
    """Raise UsageError if the output file of a command exists and must not be overwritten."""
    if path is not None and path.exists() and not overwrite:
        raise UsageError(f"{path} exists; give another {option}, or --overwrite")


def parsed(kind: Any, given: object, problem: str) -> Any:
    """What an option is given, as this type; UsageError of the problem if it is not."""
    try:
        return TypeAdapter(kind).validate_python(given)
    except ValidationError as error:
        raise UsageError(problem) from error
