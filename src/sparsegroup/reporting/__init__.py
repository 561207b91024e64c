"""What is recorded of a run, and how it is shown: charts, figures in words, and pages that need nothing else.

A name is imported with its module when it is first used: a run records from its first step on, and draws at its end.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparsegroup.errors import require

require("cli", __name__)

if TYPE_CHECKING:
    from sparsegroup.reporting.charts import COLOURS, INK, STYLE, svg_element
    from sparsegroup.reporting.formatting import NONE, duration, exact, trim_exponent
    from sparsegroup.reporting.page import page_environment

__all__ = [
    "COLOURS",
    "INK",
    "NONE",
    "STYLE",
    "duration",
    "exact",
    "page_environment",
    "svg_element",
    "trim_exponent",
]

_MODULES = ("formatting", "page", "charts")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    modules = (import_module(f"{__name__}.{module}") for module in _MODULES)
    return next(vars(module)[name] for module in modules if name in vars(module))
