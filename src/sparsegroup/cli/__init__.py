"""The command line: a module per command."""

from sparsegroup.cli import demo, paper, prepare, synthesize, train
from sparsegroup.cli.app import app, main

__all__ = ["app", "demo", "main", "paper", "prepare", "synthesize", "train"]
