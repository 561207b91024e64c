"""Checkpoints: the whole state of a training in open formats, written so that no crash loses it."""

from sparsegroup.checkpoint.errors import CheckpointError
from sparsegroup.checkpoint.folder import Checkpoints
from sparsegroup.checkpoint.state import Loaded, load_checkpoint, save_checkpoint

__all__ = ["CheckpointError", "Checkpoints", "Loaded", "load_checkpoint", "save_checkpoint"]
