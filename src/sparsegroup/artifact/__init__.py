"""Folders that appear whole or not at all: manifest, digests, chains, versions."""
