"""Checkpoints: the whole state of a training in open formats, written so that no crash loses it."""

from sparsegroup.errors import require
from sparsegroup.importing import document_constructors

require("checkpoint", __name__)

from sparsegroup.checkpoint.checkpoints import Checkpoints
from sparsegroup.checkpoint.load import LoadResult, load_checkpoint
from sparsegroup.checkpoint.manifest import CheckpointError
from sparsegroup.checkpoint.save import save_checkpoint

__all__ = ["CheckpointError", "Checkpoints", "LoadResult", "load_checkpoint", "save_checkpoint"]

document_constructors(globals())
