"""The hash-keyed embedding table: rows appear when a key is first seen, and go when they are exactly zero."""

from sparsegroup.table.bag import HashEmbeddingBag
from sparsegroup.table.module import HashEmbedding
from sparsegroup.table.records import FieldCount, TableMemory

__all__ = ["FieldCount", "HashEmbedding", "HashEmbeddingBag", "TableMemory"]
