"""An embedding table and a network over it: the whole click model, to be trained."""

from collections.abc import Mapping

from torch import nn

from sparsegroup.data.keys import FIELD_BITS
from sparsegroup.models import DCN, MLP, OPNN
from sparsegroup.names import ModelName
from sparsegroup.table import AfterSightings, HashEmbedding
from sparsegroup.table.table import Table
from sparsegroup.training.lookup_model import LookupModel

NETWORKS: Mapping[ModelName, type[MLP] | type[OPNN] | type[DCN]] = {"mlp": MLP, "opnn": OPNN, "dcn": DCN}

INITIAL_STD = 0.01


class ClickModel(LookupModel):
    """A table and a network over it.

    A feature has no row before training has seen it: in evaluation its vector is zero.

    Args:
        embedding: The table.
        network: The network, of its dimension.
    """

    embedding: HashEmbedding

    def __init__(self, embedding: HashEmbedding, network: nn.Module) -> None:
        super().__init__(embedding, network)

    @property
    def rows(self) -> Table:
        """What can be read of its rows."""
        return self.embedding.table

    @property
    def vector_bytes(self) -> int:
        """Bytes of a vector in memory."""
        return self.embedding.table.dim * self.embedding.table.config.dtype.itemsize


def new_table(dim: int, seed: int = 0, *, fallback: bool = False, admit_after: int = 1) -> HashEmbedding:
    """An empty table for the keys of a click log, whose rows start small.

    Args:
        dim, seed, fallback: See `HashEmbedding`.
        admit_after: Sightings after which a feature gets a row.
    """
    admission = None if admit_after == 1 else AfterSightings(admit_after)
    return HashEmbedding(dim, std=INITIAL_STD, seed=seed, field_bits=FIELD_BITS, fallback=fallback, admission=admission)
