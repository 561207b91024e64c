"""Options that several commands have: how to read a raw log."""

from typing import Any

import typer


def log_option(help: str, default: str | bool = False) -> Any:
    """An option that says how to read a raw log.

    Args:
        help: What it says.
        default: In words; False where there is none.
    """
    return typer.Option(rich_help_panel="Log", help=help, show_default=default)


DATASET = "Format of a raw log."
SCHEMA = "YAML file that says what a raw log's columns are."
LABEL = "Label column, of a raw log with a header."
EXCLUDE = "A column that is no feature, of a raw log with a header (repeatable)."
CRITEO_NUMBERS = "What becomes of Criteo's integers."
AVAZU_HOUR = "What becomes of Avazu's hour."
ON_BAD_ROW = "Stop at a bad row, or leave it out and count it."
MAX_BAD = "Share of bad rows above which to stop all the same."
FALLBACK = "Learn a vector per field for features without a live row."
ADMIT_AFTER = "Batches in which a feature must have come to get a row of its own."
ADMIT_SKETCH = "Bytes in which to count that, such as 64MB: some features then get their row early."
EVICT_UNSEEN = "Steps after which dead features that have not come lose their row; 0 for never."
MAX_TABLE_BYTES = "What the table never exceeds, such as 2GB: dead features go first, then those that came least often."
PACK_DEAD = "Keep dead features in half the bytes: no vector, and the optimizer's state in bfloat16."
