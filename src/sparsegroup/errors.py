"""Errors that a user can mend: their base, names that were meant, and missing extras.

The core is optimizers, tables and models: torch, numpy and numba. Everything else needs the packages of an extra, which
a subpackage requires when it is imported.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from itertools import islice
from typing import Any, Literal

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_LONG_WORD, _WORD, _LONG_LINE, _LINE_BEGIN, _LINE_END = re.compile(r"\S{501,}"), 200, 4000, 3000, 500


def readable(text: str) -> str:
    r"""Return a text for a reader, who may be at a terminal, in a file or a browser.

    Control characters other than tabs and line feeds are escaped. Of a word of more than 500 characters the first 200
    remain, of a line of more than 4,000 the first 3,000 and the last 500.

    Examples:
        >>> print(readable("column \x1b[31mred"), len(readable("x" * 100_000)))
        column \x1b[31mred 226
    """
    escaped = _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)
    cut = _LONG_WORD.sub(lambda found: f"{found[0][:_WORD]}… ({len(found[0]) - _WORD:,} more characters)", escaped)
    return "\n".join(map(_short_line, cut.split("\n")))


def _short_line(line: str) -> str:
    if len(line) <= _LONG_LINE:
        return line
    left_out = len(line) - _LINE_BEGIN - _LINE_END
    return f"{line[:_LINE_BEGIN]} … ({left_out:,} more characters) … {line[-_LINE_END:]}"


class UserError(ValueError):
    """Base of this package's errors about files, settings and arguments: the command line shows only the message.

    Args:
        message: The given value, the expected value, the place, and the remedy, with parameters named as in Python. The
            constructor makes the message `readable`.
        *parameters: The parameters named in backquotes, which another interface can spell differently.

    Examples:
        >>> error = UserError("`max_bad` must be below 1, got 2", "max_bad")
        >>> error.spelled(lambda name: "--" + name.replace("_", "-"))
        '--max-bad must be below 1, got 2'
    """

    is_told = False
    """Whether another rank reports it to the user."""

    def __init__(self, message: str = "", *parameters: str) -> None:
        super().__init__(readable(message))
        self.parameters = parameters

    def __reduce__(self) -> tuple[Callable[..., "UserError"], tuple[Any, ...]]:
        """Pickle the attributes of an error, because the constructor of a subclass may take other arguments."""
        return _unpickled, (type(self), self.args, vars(self))

    def spelled(self, spell: Callable[[str], str]) -> str:
        """The message with `spell(name)` for each parameter that it names."""
        message = str(self)
        for name in self.parameters:
            message = message.replace(f"`{name}`", spell(name))
        return message


def _unpickled(kind: type[UserError], arguments: tuple[Any, ...], state: Mapping[str, Any]) -> UserError:
    error = kind.__new__(kind)
    error.args = arguments
    vars(error).update(state)
    return error


class ClickLogError(UserError):
    """A click log that cannot be read. The message begins with `FILE:LINE:` where there is a line."""


class LogOptionError(UserError):
    """Options that do not go together, or not with the log."""


class RunError(UserError):
    """A folder that holds no training run, or a run that does not fit the request."""


Extra = Literal["checkpoint", "cli", "kafka", "mlflow", "onnx", "redis", "serve", "tensorboard", "tune"]

_CHECKPOINT = ("pydantic", "safetensors", "xxhash")
_CLI = ("jinja2", "polars", "polars_hash", "pyarrow", "rich", "sklearn", "typer", "yaml")
MODULES: Mapping[Extra, tuple[str, ...]] = {
    "checkpoint": _CHECKPOINT,
    "cli": (*_CHECKPOINT, *_CLI),
    "kafka": ("confluent_kafka",),
    "mlflow": ("mlflow",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "redis": ("redis",),
    "serve": ("fastapi", "prometheus_client", "uvicorn"),
    "tensorboard": ("tensorboard",),
    "tune": ("optuna",),
}
"""The modules that each extra adds to the core."""


class MissingExtraError(UserError, ImportError):
    """Packages of an extra are needed; the message names them and the command that installs them."""


def missing(extra: Extra) -> list[str]:
    """The modules of an extra that are not installed."""
    return [module for module in MODULES[extra] if find_spec(module) is None]


def pip_install(extra: Extra) -> str:
    """The command that installs an extra."""
    return f"pip install 'sparsegroup[{extra}]'"


def require(extra: Extra, who: str) -> None:
    """Raise MissingExtraError, which says that `who` needs it, unless all of an extra is installed."""
    if absent := missing(extra):
        raise MissingExtraError(f"{who} needs {', '.join(absent)}, not installed here: {pip_install(extra)}")


_CANDIDATES = 1000
_LONGEST = 100
"""Largest length of a name that is compared with a wrong name, because the time grows with its square."""


def did_you_mean(given: str, known: Iterable[str], most: int = 1, likeness: float = 0.6) -> str:
    """Return a question for an error message with at most `most` known names; "" if no name is similar to `given`.

    `likeness`, from 0 to 1, is the least similarity. Only the first 1,000 names of up to 100 characters are compared.

    Examples:
        >>> from sparsegroup.errors import did_you_mean
        >>> did_you_mean("colour", ["color", "noise"])
        "did you mean 'color'?"
        >>> did_you_mean("l12", ["l1", "l21", "lr"], most=3)
        "did you mean 'l1' or 'l21'?"
    """
    candidates = list(islice((name for name in known if len(name) <= _LONGEST), _CANDIDATES))
    near = [repr(name) for name in difflib.get_close_matches(given[: 2 * _LONGEST], candidates, most, likeness)]
    if not near:
        return ""
    *first, last = near
    return f"did you mean {', '.join(first)} or {last}?" if first else f"did you mean {last}?"
