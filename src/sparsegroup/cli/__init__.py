"""The command line: a module per command."""

from sparsegroup.cli import demo, prepare, synthesize, train
from sparsegroup.cli.app import app, main

__all__ = ["app", "demo", "main", "prepare", "synthesize", "train"]
