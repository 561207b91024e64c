"""The command line: `…_command` is a command's options, `…_run` what it does, imported when it runs."""

from sparsegroup.errors import require

require("cli", __name__)

from sparsegroup.cli import (
    columns_command,
    demo_command,
    evaluate_command,
    export_command,
    inspect_command,
    path_command,
    predict_command,
    prepare_command,
    synthesize_command,
    train_command,
    tune_command,
)
from sparsegroup.cli.app import app, main

__all__ = [
    "app",
    "columns_command",
    "demo_command",
    "evaluate_command",
    "export_command",
    "inspect_command",
    "main",
    "path_command",
    "predict_command",
    "prepare_command",
    "synthesize_command",
    "train_command",
    "tune_command",
]
