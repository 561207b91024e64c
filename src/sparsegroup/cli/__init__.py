"""The command line: a module a command, with its options and what it does."""

from sparsegroup.errors import require

require("cli", __name__)

from sparsegroup.cli.app import app, main

__all__ = ["app", "main"]
