"""The kernel: what has come for this rank, looked up in its part of the tables."""

from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor, nn
from torchrec import KeyedJaggedTensor

from sparsegroup.table import HashEmbedding


class TableLookup(nn.Module):
    """Looks the features of a batch up, each in its table.

    Args:
        tables: The tables with the number of features of each, in the order of a batch.
    """

    def __init__(self, tables: Sequence[tuple[HashEmbedding, int]]) -> None:
        super().__init__()
        self._tables = list(tables)  # no submodules: the collection has them, under their names

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """The vectors of all values, `[n, dim]`, those of the first feature first. All of them belong to this rank."""
        sizes = iter(features.length_per_key())
        of_table = [sum(islice(sizes, number)) for _, number in self._tables]
        keys = torch.split(features.values(), of_table)
        return torch.cat([table.own_vectors(its) for (table, _), its in zip(self._tables, keys, strict=True)])
