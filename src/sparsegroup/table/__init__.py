"""The hash-keyed embedding table: rows appear when a key is first seen, and go when they are exactly zero."""

from sparsegroup.constructor_help import document_constructors
from sparsegroup.table.admission import AdmissionPolicy, EveryKey, MinCount, Probabilistic
from sparsegroup.table.bag import HashEmbeddingBag
from sparsegroup.table.conversion import convert, to_embeddings
from sparsegroup.table.eviction import (
    LFU,
    LRU,
    EvictionPolicy,
    RankingPolicy,
    UnusedFor,
    ZeroRows,
)
from sparsegroup.table.field_tables import FieldTables
from sparsegroup.table.hash_embedding import HashEmbedding
from sparsegroup.table.key_array import field_keys
from sparsegroup.table.row_block import RowBlock
from sparsegroup.table.sharded.exchange import ExchangeError
from sparsegroup.table.table_embedding import TableEmbedding, TableEmbeddingBag
from sparsegroup.table.table_report import FieldCount, TableMemory

__all__ = [
    "LFU",
    "LRU",
    "AdmissionPolicy",
    "EveryKey",
    "EvictionPolicy",
    "ExchangeError",
    "FieldCount",
    "FieldTables",
    "HashEmbedding",
    "HashEmbeddingBag",
    "MinCount",
    "Probabilistic",
    "RankingPolicy",
    "RowBlock",
    "TableEmbedding",
    "TableEmbeddingBag",
    "TableMemory",
    "UnusedFor",
    "ZeroRows",
    "convert",
    "field_keys",
    "to_embeddings",
]

document_constructors(globals())
