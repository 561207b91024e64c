"""A module with all its tables replaced by what is served of them."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from sparsegroup.bags import BagMode
from sparsegroup.serving.embeddings import Embeddings
from sparsegroup.serving.export_error import ExportError
from sparsegroup.serving.frozen_bag import FrozenBag
from sparsegroup.serving.frozen_table import FrozenTable
from sparsegroup.table import HashEmbedding, HashEmbeddingBag

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
            "torch.onnx.export take it as it is; name tables that are no submodules in `tables`"
        )
    return tables


def pooling_of(table: AnyTable) -> BagMode | None:
    """What a table does with a bag of keys."""
    return table.mode if isinstance(table, HashEmbeddingBag | FrozenBag) else None


def frozen_copy(model: nn.Module, tables: Mapping[str, AnyTable], rows: Mapping[str, Embeddings]) -> nn.Module:
    """A copy of a module on the CPU, in evaluation mode, whose tables are replaced wherever it uses them.

    Args:
        model: Not changed.
        tables: All its tables, see `tables_of`.
        rows: Name → what to serve of a table.

    Raises:
        ExportError: Part of the module cannot be copied.
    """
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
    """The `state_dict` of a frozen copy without that of its tables, contiguous.

    Raises:
        ExportError: Something in it is no tensor.
    """
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
    """Set what `other_weights` gives.

    Raises:
        ExportError: They are not those of such a module.
    """
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
