"""The command line: a module per command."""

from sparsegroup.cli import demo, export, inspect, paper, predict, prepare, synthesize, train
from sparsegroup.cli.app import app, main

__all__ = ["app", "demo", "export", "inspect", "main", "paper", "predict", "prepare", "synthesize", "train"]
