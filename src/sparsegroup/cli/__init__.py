"""The command line: a module a command; of those in two, `…_command` is its options, `…_run` what it does."""

from sparsegroup.errors import require

require("cli", __name__)

from sparsegroup.cli import (
    columns,
    demo,
    evaluate_command,
    export,
    inspect,
    path_command,
    predict_command,
    prepare,
    synthesize,
    train,
    tune,
)
from sparsegroup.cli.app import app, main

__all__ = [
    "app",
    "columns",
    "demo",
    "evaluate_command",
    "export",
    "inspect",
    "main",
    "path_command",
    "predict_command",
    "prepare",
    "synthesize",
    "train",
    "tune",
]
