"""The options that commands share: of a log, and those of settings, made of what `sparsegroup.settings` declares."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsegroup.settings.declared import DECLARED, LOG, PANELS, SHORT

RAW_LOG = "a file, a folder of files, a pattern, or a URI such as s3://bucket/day=*/; or several files"
LogOrConfig = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="LOG|CONFIG.yaml",
        help=f"A folder written by `prepare`, a raw log ({RAW_LOG}), or a YAML file of settings that names one. "
        "Default: a synthetic log.",
        show_default=False,
    ),
]
Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Folder of a run, a checkpoint or an export.", show_default=False)
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any setting, such as optimizer.l2=1e-5 (repeatable).", show_default=False
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
OF_SCORED_LOG = tuple(name for name in OF_THE_LOG if name not in ("test", "test_fraction", "rows"))
"""How to read a raw log whose rows a model scores."""
THE_MODELS = {
    name: {"show_default": "the model's"}
    for name in ("dataset", "schema", "columns", "label", "exclude", "weight", "criteo_numbers", "avazu_hour")
}
"""How commands that score a log show the defaults of what tells its format."""


def of_setting(name: str, **changes: Any) -> Any:
    """The type and the option of a setting, by its short name; `changes` are for this command."""
    one = DECLARED[SHORT[name]]
    flag = "--" + name.replace("_", "-")
    made = typer.Option(
        f"{flag}/--no-{flag[2:]}" if one.kind is bool else flag,
        rich_help_panel=one.panel,
        help=one.help,
        show_default=one.default or False,
        metavar=one.metavar,
    )
    for attribute, value in changes.items():
        setattr(made, attribute, value)
    return Annotated[one.kind | None, made]


def takes_settings(*names: str, **changes: Mapping[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of these settings, where it has the parameter `settings`: name → value, if given.

    Args:
        names: Short names of settings.
        changes: Setting → what its option says otherwise in this command, such as `show_default`.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def command(**arguments: Any) -> None:
            given = {name: value for name in names if (value := arguments.pop(name)) is not None}
            function(**arguments, settings=given)

        made = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=of_setting(name, **changes.get(name, {}))
            )
            for name in names
        ]
        parameters = [
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(function).parameters.values()
            for one in (made if parameter.name == "settings" else [parameter])
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate
