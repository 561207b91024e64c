"""The hash-keyed embedding table: rows appear when a key is first seen, and go when they are exactly zero."""

from sparsegroup.table.module import HashEmbedding, HashEmbeddingBag
from sparsegroup.table.records import FieldCount, TableMemory

__all__ = ["FieldCount", "HashEmbedding", "HashEmbeddingBag", "TableMemory"]
