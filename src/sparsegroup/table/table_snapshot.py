"""A copy of a table's content in memory: what a state dict, an optimizer's state and a pickle are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.kernels.views import TORCH_DTYPES
from sparsegroup.optim.stored import KEYS
from sparsegroup.table.directory import Directory
from sparsegroup.table.directory_notes import DROPPED, check_state
from sparsegroup.table.row_storage import WEIGHT, Rows
from sparsegroup.table.table_config import TableConfig
from sparsegroup.tensor_words import shape_of

Int64s = npt.NDArray[np.int64]


def _none() -> Int64s:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class TableSnapshot:
    """Content of a table, or some of it.

    Attributes:
        keys: `[n]`, in the order of the rows.
        parts: "weight", "u" and the optimizer's state, those that it holds → `[n, dim]`.
        dropped: `[k]`, keys that had a row and lost it; some may have one again.
        directory: Other state of the directory by name, see `Directory.state`; of rows, in the order of `keys`.
        num_seen: Distinct keys ever seen; None: to be counted.
        skipped_rows: Row updates left out; None: not known.
    """

    keys: Int64s
    parts: Mapping[str, npt.NDArray[Any]]
    dropped: Int64s = field(default_factory=_none)
    directory: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    num_seen: int | None = None
    skipped_rows: int | None = None

    @classmethod
    def taken(
        cls, directory: Directory, memory: Rows, parts: Sequence[str] | None, skipped_rows: int
    ) -> "TableSnapshot":
        """A copy of what a table holds, with some parts of its rows, or all."""
        rows = np.arange(directory.num_rows)
        values = {part: memory.read(part, rows) for part in (memory.parts if parts is None else parts)}
        return cls(
            keys=directory.keys(),
            parts=values,
            dropped=directory.dropped.view(np.int64).copy(),
            directory=directory.state(),
            num_seen=directory.num_seen,
            skipped_rows=skipped_rows,
        )

    def tensors(self) -> dict[str, Tensor]:
        """The entries of a module's state dict."""
        content = {**self.arrays(), DROPPED: self.dropped, **self.directory}
        return {name: torch.from_numpy(array) for name, array in content.items()}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], config: TableConfig) -> "TableSnapshot":
        """What `tensors` gave, of weights only; ValueError if one does not fit, whose name begins the message."""
        for name in (KEYS, DROPPED):
            if tensors[name].dtype != torch.int64 or tensors[name].ndim != 1:
                raise ValueError(f"{name}: int64 [n] is expected, got {shape_of(tensors[name])}")
        content = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in tensors.items() if name != WEIGHT}
        keys, weight = content.pop(KEYS), tensors[WEIGHT]
        if weight.shape != (len(keys), config.dim):
            raise ValueError(f"{WEIGHT}: [{len(keys)}, {config.dim}] is expected, got {shape_of(weight)}")
        if len(np.unique(keys)) != len(keys):
            raise ValueError("keys: a key appears twice")
        if len(keys) > config.max_rows:
            raise ValueError(f"keys: {len(keys):,} rows are more than max_rows={config.max_rows:,}")
        weight = weight.to(TORCH_DTYPES[config.dtype])
        if len(broken := keys[(~weight.isfinite().all(dim=1)).numpy()]):
            raise ValueError(
                f"{WEIGHT}: {len(broken):,} of {len(keys):,} vectors have NaN or infinite elements, that of key "
                f"{broken[0]} for one; load a state from before the training diverged"
            )
        dropped = content.pop(DROPPED)
        check_state(content, config, len(keys))
        return cls(keys, {WEIGHT: weight.numpy()}, dropped, content)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The keys and the parts by name."""
        return {KEYS: self.keys, **self.parts}
