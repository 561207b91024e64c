"""Checkpoints: the whole state of a training in open formats, written so that no crash loses it."""

from sparsegroup.constructor_help import document_constructors
from sparsegroup.extras import require

require("checkpoint", __name__)

from sparsegroup.checkpoint.checkpoint_content import LoadResult, load_checkpoint
from sparsegroup.checkpoint.checkpoint_error import CheckpointError
from sparsegroup.checkpoint.checkpoints import Checkpoints
from sparsegroup.checkpoint.training_state import save_checkpoint

__all__ = ["CheckpointError", "Checkpoints", "LoadResult", "load_checkpoint", "save_checkpoint"]

document_constructors(globals())
