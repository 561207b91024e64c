"""`TableLoadPlanner`: tables of any number of rows out of a checkpoint of `torch.distributed.checkpoint`."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from sparsegroup.optim.stored import KEYS
from sparsegroup.table.directory_notes import NOTES
from sparsegroup.table.row_storage import WEIGHT

_DROPPED = "dropped"
_OF_TABLE = frozenset({KEYS, WEIGHT, _DROPPED, *NOTES})


class TableLoadPlanner(DefaultLoadPlanner):
    """A planner for `torch.distributed.checkpoint.load` that reads as many rows of a table as the checkpoint holds.

    DCP fills the tensors of a state dict in place, so that a fresh table, which has no rows, could take none. This
    planner makes room first: the entries of each `HashEmbedding`, and of an optimizer's state of one, become those of
    the checkpoint. Everything else is loaded as by `DefaultLoadPlanner`. A table is known by its entries `keys` and
    `dropped`, an optimizer's state of one by `keys` beside `step`.

    Args:
        **options: Those of `DefaultLoadPlanner`.

    Raises:
        ValueError: In `load`: the checkpoint knows something of a table for which the state dict, which has no nested
            dicts, has no entry.

    Examples:
        >>> import tempfile, warnings
        >>> import torch
        >>> import torch.distributed.checkpoint as dcp
        >>> from sparsegroup import HashEmbedding
        >>> table, fresh, folder = HashEmbedding(4), HashEmbedding(4), tempfile.mkdtemp()
        >>> _ = table(torch.tensor([7, -1]))
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")  # in one process
        ...     saved = dcp.save({"table": table.state_dict()}, checkpoint_id=folder, no_dist=True)
        ...     loaded = {"table": fresh.state_dict()}
        ...     dcp.load(loaded, checkpoint_id=folder, planner=TableLoadPlanner(), no_dist=True)
        >>> fresh.load_state_dict(loaded["table"])
        <All keys matched successfully>
        >>> fresh.keys.tolist()
        [7, -1]
    """

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """See `torch.distributed.checkpoint.LoadPlanner`."""
        super().set_up_planner(state_dict, metadata, is_coordinator)
        for name, its in () if metadata is None else _entries(metadata, self.state_dict):
            tensor = torch.empty(its.size, dtype=its.properties.dtype)
            path = self._path_of(name)
            if len(path) == 1 and name not in state_dict:
                raise ValueError(
                    f"the checkpoint has {name!r}, for which the state dict that is to be loaded has no entry, and "
                    f"dcp.load adds none on its top level: give it one before, state_dict[{name!r}] = torch.empty(0)"
                )
            self.state_dict[name] = tensor
            self.mappings[name] = path
            _container(self.original_state_dict, path)[path[-1]] = tensor

    def _path_of(self, name: str) -> tuple[Any, ...]:
        """Where in the nested state dict an entry of a table is, or would have its place."""
        if name in self.mappings or not self.flatten_state_dict:
            return tuple(self.mappings.get(name, (name,)))
        prefix, _, last = name.rpartition(".")
        beside = self.mappings[_joined(prefix, KEYS)]
        return (*beside[:-1], str(beside[-1]).removesuffix(KEYS) + last)


def _entries(metadata: Metadata, state_dict: dict[str, Any]) -> Iterator[tuple[str, TensorStorageMetadata]]:
    """All that a checkpoint has of the tables in a state dict, by flat names."""
    saved = metadata.state_dict_metadata
    for name in list(state_dict):
        prefix, _, last = name.rpartition(".")
        if last != KEYS or not _is_keys(state_dict[name]) or not isinstance(saved.get(name), TensorStorageMetadata):
            continue
        is_table, is_state = (_joined(prefix, other) in saved for other in (_DROPPED, "step"))
        for entry, its in saved.items():
            before, _, part = entry.rpartition(".")
            belongs = part in _OF_TABLE if is_table else is_state and part != "step"
            if before == prefix and belongs and isinstance(its, TensorStorageMetadata):
                yield entry, its


def _is_keys(value: Any) -> bool:
    return type(value) is Tensor and value.dtype == torch.int64 and value.ndim == 1


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _container(state_dict: Any, path: Sequence[Any]) -> Any:
    """The dict in which the last name of a path is; numbers of parameters are texts in paths."""
    for name in path[:-1]:
        state_dict = state_dict[name if isinstance(state_dict, list) or name in state_dict else int(name)]
    return state_dict
