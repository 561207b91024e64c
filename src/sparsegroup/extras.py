"""What `pip install sparsegroup` leaves out, and the error that says how to get it.

The core is optimizers, tables and models: torch, numpy and numba. Everything else needs the packages of an extra, which
a subpackage requires when it is imported.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Literal

from sparsegroup.user_error import UserError

Extra = Literal["checkpoint", "cli", "mlflow", "onnx", "tensorboard", "tune"]

_CHECKPOINT = ("pydantic", "safetensors", "xxhash")
_CLI = ("jinja2", "matplotlib", "polars", "polars_hash", "pyarrow", "rich", "sklearn", "typer", "yaml")
MODULES: Mapping[Extra, tuple[str, ...]] = {
    "checkpoint": _CHECKPOINT,
    "cli": (*_CHECKPOINT, *_CLI),
    "mlflow": ("mlflow",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
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
