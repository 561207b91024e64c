"""Folders that appear whole or not at all: manifest, digests, chains, versions."""

from sparsegroup.errors import require

require("checkpoint", __name__)

from sparsegroup.artifact.folder import write_atomically

__all__ = ["write_atomically"]
