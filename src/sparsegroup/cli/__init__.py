"""The command line: a module a command, with its options and what it does."""

from sparsegroup.errors import require

require("cli", __name__)

from sparsegroup.cli import (
    columns,
    demo,
    evaluate,
    export,
    inspect,
    path,
    predict,
    prepare,
    train,
    tune,
)
from sparsegroup.cli.app import app, main

__all__ = [
    "app",
    "columns",
    "demo",
    "evaluate",
    "export",
    "inspect",
    "main",
    "path",
    "predict",
    "prepare",
    "train",
    "tune",
]
