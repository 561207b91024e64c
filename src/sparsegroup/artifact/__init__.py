"""Folders that appear whole or not at all: manifest, digests, chains, versions."""

from sparsegroup.extras import require

require("checkpoint", __name__)
