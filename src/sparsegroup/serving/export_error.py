"""What is wrong with an export."""

from sparsegroup.training import RunError


class ExportError(RunError):
    """An export that cannot be made, read or applied. The message names the file and what is wrong with it."""
