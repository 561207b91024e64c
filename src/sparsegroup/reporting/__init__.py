"""What is recorded of a run, and how it is shown: charts, figures in words, and pages that need nothing else."""

from sparsegroup.extras import require

require("cli", __name__)

from sparsegroup.reporting.formatting import NONE, duration, exact, trim_exponent
from sparsegroup.reporting.page import page_environment
from sparsegroup.reporting.plots import COLOURS, INK, STYLE, svg_element

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
