"""A module with its tables replaced by lookups of their live rows, and a trained model with the inputs of a server."""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict
from types import NoneType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from sparsegroup.artifact.manifest import digest
from sparsegroup.data.batches import Bags, Batch
from sparsegroup.data.schema import LogSchema
from sparsegroup.serving.frozen import FrozenBag, FrozenTable
from sparsegroup.serving.rows import Embeddings, ExportError
from sparsegroup.serving.tracing import trace
from sparsegroup.table import HashEmbedding, HashEmbeddingBag
from sparsegroup.training.model import LookupModel

AnyTable = HashEmbedding | FrozenTable
_KNOWN = (HashEmbedding.forward, HashEmbeddingBag.forward)
STRUCTURE = "structure"
"""Key of an ONNX file's metadata: `ServingModel.structure`."""

_WHOLE = "table"
"""Name of a table that is the whole module."""


def tables_of(model: nn.Module, given: Mapping[str, AnyTable] | None = None) -> dict[str, AnyTable]:
    """The tables that a module looks keys up in, by the names `given`, or by `named_modules`.

    `given` may name tables that are not submodules; it must name all that are.
    """
    inside = {name or _WHOLE: module for name, module in model.named_modules() if isinstance(module, AnyTable)}
    tables = inside if given is None else dict(given)
    for name, table in tables.items():
        if not isinstance(table, AnyTable):
            raise TypeError(f"tables[{name!r}] must be a HashEmbedding, got {type(table).__name__}")
        if isinstance(table, HashEmbedding) and type(table).forward not in _KNOWN:
            raise ExportError(
                f"{name}: {type(table).__name__} has a `forward` of its own, which the lookup in its place "
                "does not; use a module that holds a HashEmbedding, instead of one that inherits from it"
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


AnyModel = TypeVar("AnyModel", bound=nn.Module)


def frozen_copy(
    model: AnyModel, rows: Mapping[str, Embeddings], tables: Mapping[str, AnyTable] | None = None
) -> AnyModel:
    """A copy of a module on the CPU, in evaluation mode, with its tables replaced by rows wherever it uses them."""
    memo: dict[int, Any] = {}
    for name, table in (tables_of(model) if tables is None else tables).items():
        memo[id(table)] = _frozen(table, rows[name])
        if isinstance(table, HashEmbedding):
            memo[id(table.weight)] = nn.Parameter(torch.empty(0))  # an optimizer that the model holds knows it
    try:
        copy = deepcopy(model, memo)
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
            raise ExportError(f"{name}: the module's state has {type(value).__name__} there; a file takes only tensors")
        rest[name] = value.contiguous()
    return rest


def load_other_weights(frozen: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Set the weights that `other_weights` returns.

    Raises:
        ExportError: A weight is missing or unknown, or has another shape or dtype.
    """
    known = other_weights(frozen)
    if differing := sorted(weights.keys() ^ known.keys()):
        raise ExportError(f"of the weights {differing[0]} is in one of the two only")
    for name, values in weights.items():
        if values.dtype != known[name].dtype:
            raise ExportError(f"{name} must be {known[name].dtype}, got {values.dtype}")
    try:
        frozen.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        raise ExportError(" ".join(str(error).split())) from error


def _is_of_a_table(frozen: nn.Module, name: str) -> bool:
    """Whether an entry of a state dict belongs to a table."""
    path = name.split(".")
    return any(isinstance(frozen.get_submodule(".".join(path[:end])), FrozenTable) for end in range(len(path)))


def _frozen(table: AnyTable, rows: Embeddings) -> FrozenTable:
    dtype = table.dtype if isinstance(table, FrozenTable) else table.weight.dtype
    if isinstance(table, HashEmbeddingBag | FrozenBag):
        return FrozenBag(rows, dtype, table.mode, table.include_last_offset, padding_idx=table.padding_idx)
    return FrozenTable(rows, dtype, padding_idx=table.padding_idx)


class ServingModel(nn.Module):
    """Raw keys → prediction, in operators that torch.export and ONNX know.

    Args:
        model: A model whose tables are lookups, as `Export.model` gives it; it is put into evaluation mode.
        columns: The columns that it expects.

    Attributes:
        inputs: Names of the arguments of `forward`, in order: `keys`, `numbers` if there are any, `<field>.keys` and
            `<field>.offsets` of lists.
    """

    def __init__(self, model: LookupModel, columns: LogSchema) -> None:
        super().__init__()
        self.model, self.columns = model, columns
        lists = [f"{name}.{part}" for name in columns.lists for part in ("keys", "offsets")]
        self.inputs = ("keys", *(["numbers"] if columns.numbers else []), *lists)
        self.eval()

    def forward(self, keys: Tensor, *others: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Predictions `[batch]` float32: probabilities, or what the objective predicts.

        Probabilities of k classes are `[batch, k]`; several tasks have a tensor each.

        Args:
            keys: `[batch, fields]` int64, of the fields of one value, in their order.
            *others: Numbers `[batch, numbers]` float32, if there are any; then, for each field of several values,
                its keys `[m]` int64, the first row's first, and offsets `[batch + 1]` int64: row i has
                keys[offsets[i] : offsets[i + 1]].
        """
        numbers, parts = (others[0], others[1:]) if self.columns.numbers else (None, others)
        bags = [Bags(*pair) for pair in zip(parts[0::2], parts[1::2], strict=True)]
        logits: Tensor = self.model(keys, numbers, bags)
        outputs = self.model.objective.served(self.model.objective.predict(logits))
        return outputs if len(outputs) > 1 else outputs[0]

    def arguments(self, batch: Batch) -> tuple[Tensor, ...]:
        """The arguments of `forward` for a batch of a log."""
        numbers = (batch.numbers,) if self.columns.numbers else ()
        bags = [tensor for bag in batch.bags for tensor in (bag.keys, bag.offsets)]
        return (batch.keys, *numbers, *bags)

    def trace(self) -> ExportedProgram:
        """The model as a program for batches of any size, and lists of any number of keys."""
        columns, batch = self.columns, Dim("batch", min=0)
        args = [torch.zeros(3, len(columns.fields) - len(columns.lists), dtype=torch.int64)]
        sizes: list[dict[int, Any]] = [{0: batch}]
        if columns.numbers:
            args.append(torch.zeros(3, len(columns.numbers)))
            sizes.append({0: batch})
        for place in range(len(columns.lists)):  # with separate tensors: a repeated one would be taken for one input
            args += [torch.zeros(3, dtype=torch.int64), torch.tensor([0, 2, 2, 3])]
            sizes += [{0: Dim(f"values_{place}", min=0)}, {0: batch + 1}]
        first, *others = sizes
        shapes = {"keys": first, **({"others": tuple(others)} if others else {})}
        # Strict, as the networks compare shapes by len(), which the other way of tracing takes for a number.
        return trace(self, tuple(args), {}, shapes, strict=True)

    def metadata(self) -> dict[str, str]:
        """The columns, for the `metadata_props` of an ONNX file."""
        names = {name: getattr(self.columns, name) for name in ("fields", "lists", "numbers")}
        if self.columns.shares:
            names["shares"] = dict(self.columns.shares)
        if classes := getattr(self.model.objective, "classes", ()):
            names["classes"] = list(classes)
        return {
            **{name: json.dumps(value, ensure_ascii=False) for name, value in names.items()},
            "hash": self.columns.hash,
            "objective": str(self.model.objective),
            STRUCTURE: self.structure(),
        }

    def structure(self) -> str:
        """Return a hash of all that determines the operators and constants of the ONNX file.

        The weights and the numbers of rows have no part in the hash.
        """
        tables = {name: module for name, module in self.named_modules() if isinstance(module, FrozenTable)}
        modules = {
            name: [type(module).__name__, tables[name].structure if name in tables else _plain(vars(module))]
            for name, module in self.named_modules()
            if not any(name.startswith(f"{table}.") for table in tables)
        }
        weights = {name: [str(value.dtype), list(value.shape)] for name, value in other_weights(self).items()}
        return digest([asdict(self.columns), self.model.objective.plain, modules, weights])


def _plain(values: Mapping[str, Any]) -> dict[str, str]:
    """The numbers and texts among a module's attributes, and collections of them."""
    kinds = (bool, int, float, str, list, tuple, dict, NoneType)
    plain = {name: value for name, value in values.items() if isinstance(value, kinds) and name != "training"}
    return {name: repr(value) for name, value in plain.items() if not name.startswith("_")}
