"""The click model: keys → vectors → network → logits, whether a table looks the keys up or, in serving, an export."""

import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sparsegroup.bags import pool_ragged
from sparsegroup.data.batches import Bags
from sparsegroup.kernels.gpu.runtime import sent
from sparsegroup.models import DCN, FM, LR, MLP, OPNN, PLE, DCNv2, DeepFM, MMoE, WithPairs, XDeepFM
from sparsegroup.objectives import LOGISTIC, Objective
from sparsegroup.optim.table_parameter import store_of
from sparsegroup.settings.names import ModelName
from sparsegroup.table import FieldTables, HashEmbedding
from sparsegroup.table.field_tables import tables_in
from sparsegroup.table.lookup.kernels import BagPooling
from sparsegroup.table.table import Table

NetworkClass = (
    type[LR]
    | type[FM]
    | type[DeepFM]
    | type[MLP]
    | type[OPNN]
    | type[DCN]
    | type[DCNv2]
    | type[XDeepFM]
    | type[MMoE]
    | type[PLE]
)
NETWORKS: Mapping[ModelName, NetworkClass] = {
    "lr": LR,
    "fm": FM,
    "deepfm": DeepFM,
    "mlp": MLP,
    "opnn": OPNN,
    "dcn": DCN,
    "dcnv2": DCNv2,
    "xdeepfm": XDeepFM,
    "mmoe": MMoE,
    "ple": PLE,
}
"""The networks by the names that `Config` and `--model` take."""

Network = Callable[[Tensor, Tensor | None], Tensor]
"""From embeddings `[batch, fields, dim]` and numbers `[batch, numbers]` or None to logits `[batch]`, or
`[batch, outputs]` where the objective has several."""

Pooling = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""From a list's place, its values' vectors, their offsets and the single fields' embeddings to each row's vectors."""


class LookupModel(nn.Module):
    """Keys → vectors → network → logits.

    `embedding` maps int64 keys of any shape to vectors `[*shape, dim]`: a `HashEmbedding`, or an export's
    `FrozenTable`. `network` is one of `sparsegroup.models`, or has the same inputs and outputs.
    """

    network: nn.Module
    objective: Objective = LOGISTIC
    """What the logits mean; of objectives other than the logistic one they are called scores elsewhere."""

    def __init__(self, embedding: nn.Module, network: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding
        self.network = network

    def forward(self, keys: Tensor, numbers: Tensor | None = None, bags: Sequence[Bags] = ()) -> Tensor:
        """Logits `[batch]` of keys `[batch, fields]` int64, numbers `[batch, numbers]`, if there are any, and bags."""
        to_look_up = keys_to_look_up(self.network, keys, bags)
        return logits_of(self.network, *looked_up(self.embedding, self.network, to_look_up, keys, bags), keys, numbers)


def keys_to_look_up(network: Network, keys: Tensor, bags: Sequence[Bags]) -> Tensor:
    """All keys of a batch: `keys` itself if there are no bags, else its keys and the bags', 1-d.

    Those of pairs are added where the network is one `WithPairs`.
    """
    if isinstance(network, WithPairs):
        keys = network.pairs(keys)
    return torch.cat([keys.flatten(), *(bag.keys for bag in bags)]) if bags else keys


def looked_up(
    embedding: nn.Module, network: Network, to_look_up: Tensor, keys: Tensor, bags: Sequence[Bags]
) -> tuple[Tensor, Sequence[Bags]]:
    """The vectors of `to_look_up`, which is `keys_to_look_up(network, keys, bags)`, and the bags that are to be pooled.

    If a table pools them on its way, none is, and the vectors are `[batch, fields, dim]`.
    """
    inner, fields = _inner_of(network, keys)
    if not bags or _pooling_of(inner) is not mean_of_list or not _pools(embedding):
        return embedding(to_look_up), bags
    assert isinstance(embedding, HashEmbedding)
    rows, end = len(keys), len(keys) * fields
    ends = [np.arange(end + 1)]
    for bag in bags:
        ends.append(bag.offsets[1:].numpy() + end)
        end += len(bag.keys)
    pooled = embedding.vectors_or_pools(to_look_up, BagPooling(np.concatenate(ends), is_mean=True))
    single, *lists = pooled.split_with_sizes([rows * fields, *[rows] * len(bags)])
    columns = single.view(rows, fields, pooled.shape[1]), *(vectors.unsqueeze(1) for vectors in lists)
    return torch.cat(columns, dim=1), ()


def _pools(embedding: nn.Module) -> bool:
    """Whether a table pools bags, and a call would do nothing else: no subclass changes it, and it has no hooks."""
    is_plain = isinstance(embedding, HashEmbedding) and type(embedding).forward is HashEmbedding.forward
    has_hooks = embedding._forward_hooks or embedding._forward_pre_hooks or embedding._backward_hooks
    return is_plain and not has_hooks and bool(embedding.can_pool)


def logits_of(network: Network, vectors: Tensor, bags: Sequence[Bags], keys: Tensor, numbers: Tensor | None) -> Tensor:
    """Logits `[batch]` of a batch, from what `looked_up` gives."""
    return network(*inputs_of(network, vectors, bags, keys, numbers))


def inputs_of(
    network: Network, vectors: Tensor, bags: Sequence[Bags], keys: Tensor, numbers: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The inputs of a network: lists pooled by its own `pooling`, as `WithPooling` has one, or by their mean."""
    given = None if numbers is None or numbers.shape[1] == 0 else sent(numbers, vectors.device)
    inner, fields = _inner_of(network, keys)
    return by_field(vectors, (keys.shape[0], fields), bags, _pooling_of(inner)), given


def _inner_of(network: Network, keys: Tensor) -> tuple[Network, int]:
    """The network without its pairs, and how many fields of one value it has with them."""
    if isinstance(network, WithPairs):
        return network.network, keys.shape[1] + len(network.pairs)
    return network, keys.shape[1]


def _pooling_of(network: Network) -> Pooling:
    pooling: Pooling = getattr(network, "pooling", mean_of_list)
    return pooling


def logit_bias_of(network: nn.Module) -> nn.Parameter | None:
    """The `logit_bias` of a network of `sparsegroup.models`, also of one that is wrapped; None of another."""
    found = (getattr(module, "logit_bias", None) for module in network.modules())
    return next((bias for bias in found if isinstance(bias, nn.Parameter)), None)


def mean_of_list(place: int, values: Tensor, offsets: Tensor, fields: Tensor) -> Tensor:
    """The mean of each row's values, zero without any; the arguments are `ListPooling`'s."""
    return pool_ragged(values, offsets, fields.shape[0]).unsqueeze(1)


def by_field(
    vectors: Tensor, single_shape: tuple[int, int], bags: Sequence[Bags], pooling: Pooling = mean_of_list
) -> Tensor:
    """Embeddings `[batch, fields, dim]` of the vectors of `keys_to_look_up`: fields of one value first, then bags.

    `single_shape` is that of the keys of fields of one value, pairs included.
    """
    if not bags:
        return vectors
    rows, count = single_shape
    end = rows * count
    single = vectors.narrow(0, 0, end).view(rows, count, vectors.shape[1])
    fields = [single]
    for place, bag in enumerate(bags):
        begin, end = end, end + bag.keys.shape[0]
        fields.append(pooling(place, vectors.narrow(0, begin, end - begin), sent(bag.offsets, vectors.device), single))
    return torch.cat(fields, dim=1)


def check_table(table: nn.Module, order: str) -> None:
    """Raise TypeError unless a module holds a table; `order`: of the arguments, for the message."""
    if not tables_in(table):
        raise TypeError(
            f"table must be a HashEmbedding or FieldTables, got {type(table).__name__}: the order is {order}"
        )


def check_stepped(modules: Mapping[str, nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Raise where the rows of a table would never be trained; warn of other parameters that would not.

    Frozen parameters (`requires_grad_(False)`) need no optimizer. `modules` have the caller's names.
    """
    stepped = {id(one) for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]}
    left_out = {
        id(parameter): (f"{module}.{name}", store_of(parameter) is not None)
        for module, of in modules.items()
        for name, parameter in of.named_parameters()
        if parameter.requires_grad and id(parameter) not in stepped
    }
    if rows := [name for name, is_table in left_out.values() if is_table]:
        raise ValueError(
            f"no optimizer has {_listed(rows)}, so that it would never be trained: give its module's parameters() to "
            "one, as in GroupAdam([*table.parameters(), *model.parameters()]), or freeze it by requires_grad_(False)"
        )
    if left_out:
        names = _listed([name for name, _ in left_out.values()])
        warnings.warn(
            f"no optimizer has {names}: these stay as they are. Give them to one, or freeze them by "
            "requires_grad_(False)",
            UserWarning,
            stacklevel=3,
        )


def _listed(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


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
        """The rows of each table, by its name."""
        return {name: table.table for name, table in tables_in(self).items()}

    @property
    def live_bytes(self) -> int:
        """Bytes of the live rows' vectors."""
        return sum(table.num_live * table.dim * table.weight_dtype.itemsize for table in self.rows.values())
