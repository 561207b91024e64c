"""A module with all its tables replaced by what is served of them; a trained model so, with the inputs of a server."""

import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from sparsegroup.bags import BagMode
from sparsegroup.data.batches import Bags, Batch
from sparsegroup.data.schema import LogSchema
from sparsegroup.serving.frozen import Embeddings, ExportError, FrozenBag, FrozenTable
from sparsegroup.serving.manifest import TABLE
from sparsegroup.serving.tracing import trace
from sparsegroup.table import FieldTables, HashEmbedding, HashEmbeddingBag
from sparsegroup.training.lookup_model import LookupModel

AnyTable = HashEmbedding | FrozenTable
_KNOWN = (HashEmbedding.forward, HashEmbeddingBag.forward)
ALONE = "table"
"""Name of a table that is the whole module."""


def tables_of(model: nn.Module, given: Mapping[str, AnyTable] | None = None) -> dict[str, AnyTable]:
    """The tables that a module looks keys up in, by name.

    Args:
        model: The module.
        given: Names of one's own, also for tables that are no submodules, but in a list, say. None: those of
            `named_modules`; a table in several places has the name of the first.

    Raises:
        ExportError: There is none; a submodule's is not given, or one is given twice; a table that is not known, as its
            class has a `forward` of its own, or whose rows are not all on this rank.
        TypeError: Something given is no table.
    """
    inside = {name or ALONE: module for name, module in model.named_modules() if isinstance(module, AnyTable)}
    tables = inside if given is None else dict(given)
    for name, table in tables.items():
        if not isinstance(table, AnyTable):
            raise TypeError(f"tables[{name!r}] must be a HashEmbedding, got {type(table).__name__}")
        if isinstance(table, HashEmbedding) and type(table).forward not in _KNOWN:
            raise ExportError(
                f"{name}: {type(table).__name__} has a `forward` of its own, which a lookup that stands in for it "
                "does not; let it be a module that holds a HashEmbedding, instead of one that inherits from it"
            )
        if isinstance(table, HashEmbedding) and table.across is not None and table.across.shards.ranks > 1:
            raise ExportError(
                f"{name}: has rows on {table.across.shards.ranks} ranks: write a checkpoint, "
                "sparsegroup.checkpoint.save_checkpoint, load it into the model in one process, made without "
                "process_group, and export that"
            )
    known = [id(table) for table in tables.values()]
    if left_out := [name for name, table in inside.items() if id(table) not in known]:
        raise ExportError(f"{left_out[0]}: a table of the model that `tables` does not name; all have to be exported")
    if len(set(known)) < len(known):
        raise ExportError("`tables` names a table twice; one name is enough, wherever the model uses it")
    if not tables:
        raise ExportError(
            f"{type(model).__name__} holds no HashEmbedding: there are no live rows to export. torch.export.export and "
            "torch.onnx.export take it unchanged; name tables that are no submodules in `tables`"
        )
    return tables


def pooling_of(table: AnyTable) -> BagMode | None:
    """What a table does with a bag of keys."""
    return table.mode if isinstance(table, HashEmbeddingBag | FrozenBag) else None


def frozen_copy(model: nn.Module, tables: Mapping[str, AnyTable], rows: Mapping[str, Embeddings]) -> nn.Module:
    """A copy of a module on the CPU, in evaluation mode, whose tables are replaced wherever it uses them."""
    memo: dict[int, Any] = {}
    for name, table in tables.items():
        memo[id(table)] = _stand_in(table, rows[name])
        if isinstance(table, HashEmbedding):
            memo[id(table.weight)] = nn.Parameter(torch.empty(0))  # an optimizer that the model holds knows it
    try:
        copy: nn.Module = deepcopy(model, memo)
    except Exception as error:
        raise ExportError(f"{type(model).__name__}: cannot be copied ({error})") from error
    return copy.cpu().requires_grad_(False).eval()


def other_weights(frozen: nn.Module) -> dict[str, Tensor]:
    """The `state_dict` of a frozen copy without that of its tables, contiguous."""
    rest = {}
    for name, value in frozen.state_dict().items():
        if _is_of_a_table(frozen, name):
            continue
        if not isinstance(value, Tensor):
            raise ExportError(
                f"{name}: the module's state has {type(value).__name__} there; a file takes tensors alone"
            )
        rest[name] = value.contiguous()
    return rest


def load_other_weights(frozen: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Set what `other_weights` gives."""
    try:
        missing, unexpected = frozen.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        raise ExportError(" ".join(str(error).split())) from error
    missing = [name for name in missing if not _is_of_a_table(frozen, name)]
    if missing or unexpected:
        raise ExportError(f"of the weights {[*missing, *unexpected][0]} is in one of the two only")


def _is_of_a_table(frozen: nn.Module, name: str) -> bool:
    """Whether what a state dict has under a name belongs to a table."""
    path = name.split(".")
    return any(isinstance(frozen.get_submodule(".".join(path[:end])), FrozenTable) for end in range(len(path)))


def _stand_in(table: AnyTable, rows: Embeddings) -> FrozenTable:
    dtype = table.dtype if isinstance(table, FrozenTable) else table.weight.dtype
    if not isinstance(table, HashEmbeddingBag | FrozenBag):
        return FrozenTable(rows.keys, rows.vectors, rows.fallback, dtype)
    last = table.include_last_offset
    return FrozenBag(rows.keys, rows.vectors, rows.fallback, dtype, mode=table.mode, include_last_offset=last)


class FrozenModel(LookupModel):
    """Keys → logits, as training computes them, over vectors that don't change; in evaluation mode.

    Args:
        embeddings: The live rows, or the lookup of them: with several tables, a `FieldTables` of lookups.
        network: A network of `sparsegroup.models`, of which this takes a copy.
    """

    embedding: FrozenTable | FieldTables

    def __init__(self, embeddings: Embeddings | FrozenTable | FieldTables, network: nn.Module) -> None:
        if isinstance(embeddings, Embeddings):
            lookup: nn.Module = FrozenTable(embeddings.keys, embeddings.vectors, embeddings.fallback)
        else:
            lookup = embeddings
        super().__init__(lookup, deepcopy(network))
        self.requires_grad_(False)
        self.eval()

    @classmethod
    def of(cls, model: LookupModel, rows: Mapping[str, Embeddings]) -> "FrozenModel":
        """What serves a trained model; `rows`: name of a table in it → its live rows."""
        copy = frozen_copy(model, tables_of(model), rows)
        assert isinstance(copy, LookupModel)
        assert isinstance(copy.embedding, FrozenTable | FieldTables)
        return cls(copy.embedding, copy.network)

    @property
    def other_weights(self) -> dict[str, Tensor]:
        """The `state_dict` of the network, and, by their names in this, what else is no row of a table."""
        rest = {f"{TABLE}.{name}": weight for name, weight in other_weights(self.embedding).items()}
        return {**self.network.state_dict(), **rest}

    def load_other_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Set what `other_weights` gives.

        Raises:
            ExportError: They are not those of such a model.
        """
        network, rest = dict(weights), {}
        if isinstance(self.embedding, FieldTables):
            rest = {name: network.pop(name) for name in weights if name.startswith(f"{TABLE}.")}
        try:
            self.network.load_state_dict(network)
        except RuntimeError as error:
            raise ExportError(str(error)) from error
        load_other_weights(self.embedding, {name.removeprefix(f"{TABLE}."): one for name, one in rest.items()})

    @property
    def rows(self) -> dict[str, FrozenTable]:
        """What can be read of the rows of each table, by its name."""
        return {name: module for name, module in self.named_modules() if isinstance(module, FrozenTable)}


class ServingModel(nn.Module):
    """Raw keys → probability, in operators that torch.export and ONNX know.

    Args:
        embeddings: See `FrozenModel`.
        network: A network of `sparsegroup.models`, of which this takes a copy.
        columns: What it expects.

    Attributes:
        inputs: Names of what `forward` takes, in order: `keys`, `numbers` if there are any, `<field>.keys` and
            `<field>.offsets` of lists.
    """

    def __init__(
        self, embeddings: Embeddings | FrozenTable | FieldTables, network: nn.Module, columns: LogSchema
    ) -> None:
        super().__init__()
        self.columns = columns
        self.model = FrozenModel(embeddings, network)
        lists = [f"{name}.{part}" for name in columns.lists for part in ("keys", "offsets")]
        self.inputs = ("keys", *(["numbers"] if columns.numbers else []), *lists)
        self.eval()

    def forward(self, keys: Tensor, *others: Tensor) -> Tensor:
        """Probabilities `[batch]` float32.

        Args:
            keys: `[batch, fields]` int64, of the fields of one value, in their order.
            *others: Numbers `[batch, numbers]` float32, if there are any; then, for each field of several values,
                its keys `[m]` int64, those of the first row first, and offsets `[batch + 1]` int64: row i has
                keys[offsets[i] : offsets[i + 1]].
        """
        numbers, parts = (others[0], others[1:]) if self.columns.numbers else (None, others)
        bags = [Bags(*pair) for pair in zip(parts[0::2], parts[1::2], strict=True)]
        logits: Tensor = self.model(keys, numbers, bags)
        return torch.sigmoid(logits)

    def arguments(self, batch: Batch) -> tuple[Tensor, ...]:
        """What `forward` takes of a batch of a log."""
        numbers = (batch.numbers,) if self.columns.numbers else ()
        bags = [tensor for bag in batch.bags for tensor in (bag.keys, bag.offsets)]
        return (batch.keys, *numbers, *bags)

    def trace(self) -> ExportedProgram:
        """This as a program for batches of any size."""
        # Strict, as the networks compare shapes by len(), which the other way of tracing takes for a number.
        return trace(self, self._example(), dynamic_shapes=self._dynamic_shapes(), strict=True)

    def metadata(self) -> dict[str, str]:
        """What it takes, for the `metadata_props` of an ONNX file."""
        columns = self.columns
        return {
            "fields": json.dumps(columns.fields, ensure_ascii=False),
            "lists": json.dumps(columns.lists, ensure_ascii=False),
            "numbers": json.dumps(columns.numbers, ensure_ascii=False),
            "hash": columns.hash,
        }

    def _example(self) -> tuple[Tensor, ...]:
        """Inputs of three rows; in a list, a bag of two keys, an empty one and one of one key."""
        columns = self.columns
        keys = torch.zeros(3, len(columns.fields) - len(columns.lists), dtype=torch.int64)
        numbers = (torch.zeros(3, len(columns.numbers)),) if columns.numbers else ()
        bags = []
        for _ in columns.lists:  # each with tensors of its own: one that is given twice would be taken for one input
            bags += [torch.zeros(3, dtype=torch.int64), torch.tensor([0, 2, 2, 3])]
        return (keys, *numbers, *bags)

    def _dynamic_shapes(self) -> dict[str, Any]:
        """Which sizes of the inputs are open: the batch's, and how many keys the lists have."""
        columns, batch = self.columns, Dim("batch", min=0)
        numbers = ({0: batch},) if columns.numbers else ()
        bags = [({0: Dim(f"values_{place}", min=0)}, {0: batch + 1}) for place in range(len(columns.lists))]
        others = (*numbers, *(shape for pair in bags for shape in pair))
        return {"keys": {0: batch}, **({"others": others} if others else {})}
