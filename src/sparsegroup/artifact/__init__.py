"""Folders that appear whole or not at all: manifest, digests, chains, versions."""

from sparsegroup.extras import require

require("checkpoint", __name__)

from sparsegroup.artifact.disk import write_atomically

__all__ = ["write_atomically"]
