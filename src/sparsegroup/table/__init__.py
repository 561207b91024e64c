"""The hash-keyed embedding table: rows appear when a key is first seen, and go when they are exactly zero."""

from sparsegroup.importing import document_constructors
from sparsegroup.table.bag import HashEmbeddingBag
from sparsegroup.table.conversion import TableEmbedding, TableEmbeddingBag, convert, to_embeddings
from sparsegroup.table.directory.admission import AdmissionPolicy, Candidates, EveryKey, MinCount, Probabilistic
from sparsegroup.table.directory.eviction import LFU, LRU, EvictionPolicy, RankingPolicy, RowBlock, UnusedFor, ZeroRows
from sparsegroup.table.field_tables import FieldTables
from sparsegroup.table.hash_embedding import HashEmbedding
from sparsegroup.table.lookup.lookup import field_keys
from sparsegroup.table.sharded.exchange import ExchangeError
from sparsegroup.table.table import FieldCount, TableMemory

__all__ = [
    "LFU",
    "LRU",
    "AdmissionPolicy",
    "Candidates",
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
