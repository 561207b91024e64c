"""An embedding table and a network over it: the whole click model, to be trained."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import nn

from sparsegroup.data.keys import FIELD_BITS
from sparsegroup.models import DCN, FM, LR, MLP, OPNN, DCNv2, DeepFM, XDeepFM
from sparsegroup.names import bytes_of
from sparsegroup.settings.declared import Age, age_of
from sparsegroup.settings.names import ModelName
from sparsegroup.table import FieldTables, HashEmbedding, MinCount, UnusedFor
from sparsegroup.table.field_tables import tables_in
from sparsegroup.table.table import Table
from sparsegroup.training.lookup_model import LookupModel

NetworkClass = type[LR] | type[FM] | type[DeepFM] | type[MLP] | type[OPNN] | type[DCN] | type[DCNv2] | type[XDeepFM]
NETWORKS: Mapping[ModelName, NetworkClass] = {
    "lr": LR,
    "fm": FM,
    "deepfm": DeepFM,
    "mlp": MLP,
    "opnn": OPNN,
    "dcn": DCN,
    "dcnv2": DCNv2,
    "xdeepfm": XDeepFM,
}
"""The networks by the names that `Config` and `--model` take."""

INITIAL_STD = 0.01


def check_table(table: nn.Module, order: str) -> None:
    """Raise TypeError unless a module holds a table; `order`: of the arguments, for the message."""
    if not tables_in(table):
        raise TypeError(
            f"table must be a HashEmbedding or FieldTables, got {type(table).__name__}: the order is {order}"
        )


class ClickModel(LookupModel):
    """A table, or one for each size of a field's vectors, and a network over them.

    A feature has no row before training has seen it: in evaluation its vector is zero.

    Args:
        embedding: The table, or the tables.
        network: The network, of its dimension.

    Raises:
        TypeError: `embedding` is no table.
    """

    embedding: HashEmbedding | FieldTables

    def __init__(self, embedding: HashEmbedding | FieldTables, network: nn.Module) -> None:
        check_table(embedding, "ClickModel(table, network)")
        super().__init__(embedding, network)

    @property
    def table(self) -> HashEmbedding:
        """The only table.

        Raises:
            ValueError: There are several.
        """
        if isinstance(self.embedding, FieldTables):
            raise ValueError(
                "this takes a model with one table; with `model.dims` there is one for each size of vectors: "
                f"{', '.join(self.embedding.tables)}"
            )
        return self.embedding

    @property
    def rows(self) -> dict[str, Table]:
        """What can be read of the rows of each table, by its name."""
        return {name: table.table for name, table in tables_in(self).items()}

    @property
    def live_bytes(self) -> int:
        """Bytes of the live rows' vectors."""
        return sum(table.num_live * table.dim * table.weight_dtype.itemsize for table in self.rows.values())


def new_embedding(
    dim: int,
    seed: int = 0,
    *,
    sizes: Mapping[int, int] | None = None,
    fallback: bool = False,
    admit_after: int = 1,
    admit_sketch: int | str | None = None,
    evict_unseen: int | str = 0,
    max_bytes: int | str | None = None,
    process_group: dist.ProcessGroup | None = None,
) -> HashEmbedding | FieldTables:
    """An empty embedding for the keys of a click log, whose rows start small.

    Args:
        dim, seed, fallback, max_bytes, process_group: See `HashEmbedding`.
        sizes: Field's number → size of its vectors, at most `dim`, see `FieldTables`; None, or where all are `dim`, is
            one table.
        admit_after: How many batches a feature must be in to get a row.
        admit_sketch: Bytes of the sketch that counts them, in each table; None: they are counted exactly.
        evict_unseen: The age at which dead features that have not come lose their row, see `age_of`; 0 for never.

    Raises:
        ValueError: See `HashEmbedding`, `MinCount`.
    """
    sketch_bytes = None if admit_sketch is None else bytes_of(admit_sketch)
    options: dict[str, Any] = {
        "std": INITIAL_STD,
        "seed": seed,
        "field_bits": FIELD_BITS,
        "fallback": fallback,
        "admission": None if admit_after == 1 else MinCount(admit_after, sketch_bytes),
        "eviction": _unused_for(age_of(evict_unseen)),
        "max_bytes": max_bytes,
        "process_group": process_group,
    }
    if sizes is None or set(sizes.values()) <= {dim}:
        return HashEmbedding(dim, **options)
    return FieldTables(dim, sizes, **options)


def _unused_for(age: Age) -> UnusedFor | None:
    return UnusedFor(age.steps, age.seconds) if age.steps or age.seconds else None
