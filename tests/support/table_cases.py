"""What the table tests share: keys of the whole 64-bit range, and the `nn.Embedding` that a table must equal."""

import copy
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from optimizer_cases import backward
from sparsegroup import GroupAdam, GroupOptimizer, HashEmbedding

INT64 = torch.iinfo(torch.int64)
EDGES = (0, -1, INT64.min, INT64.max, 1, INT64.min + 1, INT64.max - 1, 2**32, -(2**32), 2**62, -(2**62))
REGULARIZED = {"l1": 0.01, "l21": 0.02, "l2": 0.01}


def as_keys(keys: Iterable[int]) -> Tensor:
    return torch.tensor(list(keys), dtype=torch.int64)


def random_keys(count: int, seed: int = 0) -> Tensor:
    """`count` distinct keys, the edges of the range among them."""
    drawn = np.random.default_rng(seed).integers(INT64.min, INT64.max, count, dtype=np.int64, endpoint=True)
    return as_keys(list(dict.fromkeys([*EDGES, *drawn.tolist()]))[:count])


class KeyedEmbedding(nn.Module):
    """The oracle: `nn.Embedding(sparse=True)` with a row for each key, which starts where the row of a table does.

    Args:
        table: Whose `initial` vectors, dtype and dimension it takes.
        capacity: Rows; as many distinct keys may come.
    """

    def __init__(self, table: HashEmbedding, capacity: int = 256) -> None:
        super().__init__()
        self.start: Callable[[Tensor], Tensor] = table.initial
        self.embedding = nn.Embedding(capacity, table.weight.shape[1], sparse=True, dtype=table.weight.dtype)
        self.row_of: dict[int, int] = {}
        self.used = 0

    @property
    def weight(self) -> nn.Parameter:
        return self.embedding.weight

    def rows(self, keys: Tensor) -> Tensor:
        """The row of each key, shaped as `keys`; all must be known."""
        return as_keys(self.row_of[key] for key in keys.flatten().tolist()).view(keys.shape)

    def insert(self, keys: Tensor) -> None:
        new = [key for key in dict.fromkeys(keys.flatten().tolist()) if key not in self.row_of]
        rows = range(self.used, self.used + len(new))
        with torch.no_grad():
            self.weight[list(rows)] = self.start(as_keys(new))
        self.row_of.update(zip(new, rows, strict=True))
        self.used += len(new)

    def forget(self, keys: Iterable[int]) -> None:
        """They will be new if they come again: a row is never used twice."""
        for key in keys:
            del self.row_of[key]

    def forward(self, keys: Tensor) -> Tensor:
        if self.training:
            self.insert(keys)
            return self.embedding(self.rows(keys))
        return self.lookup(keys)

    def lookup(self, keys: Tensor) -> Tensor:
        """Zeros for unknown keys."""
        known = as_keys(self.row_of.get(key, -1) for key in keys.flatten().tolist()).view(keys.shape)
        return torch.where(known[..., None] >= 0, self.weight.detach()[known.clamp(min=0)], 0.0)


@dataclass(frozen=True)
class Lookup:
    """A lookup, and what its loss does to the vectors: nothing of it depends on the weights.

    Attributes:
        keys: Of any shape.
        gradient: `[*shape, dim]`.
        hessian: The diagonal, shaped as `gradient`; read by second-order rules only.
    """

    keys: Tensor
    gradient: Tensor
    hessian: Tensor

    def loss(self, vectors: Tensor) -> Tensor:
        moved = vectors - vectors.detach()
        g, h = self.gradient.to(vectors.dtype), self.hessian.to(vectors.dtype)
        return (g * moved + h * moved * moved / 2).sum()


def stream(steps: int = 24, dim: int = 5, seed: int = 0, lookups: int = 2, new_per_step: int = 2) -> list[list[Lookup]]:
    """The lookups of each step: keys come again and again, within a batch too, and new ones join all the time.

    Each key pulls into a direction of its own, some hard and some hardly; now and then a gradient is 0.
    """
    rng = np.random.default_rng(seed)
    pool = random_keys(6 + new_per_step * steps, seed)
    pull = rng.normal(size=(len(pool), dim)) * rng.choice([0.02, 1.0], size=(len(pool), 1))

    def lookup(known: int) -> Lookup:
        shape = (2, 3) if rng.random() < 0.5 else (7,)
        at = rng.integers(0, known, shape)
        at.flat[-1] = at.flat[0]
        at.flat[1] = known - 1
        g = (pull[at] + 0.3 * rng.normal(size=(*shape, dim))) * (rng.random((*shape, 1)) < 0.9)
        h = rng.uniform(0.3, 1.5, size=g.shape)
        return Lookup(pool[torch.from_numpy(at)], torch.from_numpy(g), torch.from_numpy(h))

    return [[lookup(6 + new_per_step * t) for _ in range(lookups)] for t in range(1, steps + 1)]


def keys_in(steps: Iterable[Iterable[Lookup]]) -> Tensor:
    """The distinct keys of some steps."""
    return torch.cat([lookup.keys.flatten() for lookups in steps for lookup in lookups]).unique()


def take_step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step on new gradients of the loss."""
    backward(optimizer, loss)
    optimizer.step()


def learn(module: nn.Module, optimizer: torch.optim.Optimizer, lookups: Sequence[Lookup]) -> None:
    """One step on the sum of the losses."""
    take_step(optimizer, sum((lookup.loss(module(lookup.keys)) for lookup in lookups), torch.zeros(())))


def pull(keys: Tensor, dim: int, size: float = 1.0) -> list[Lookup]:
    """One lookup of `keys` with gradients of about `size` that differ between keys and elements."""
    count = torch.arange(keys.numel() * dim, dtype=torch.float64).view(*keys.shape, dim)
    return [Lookup(keys, size * (torch.sin(1.7 * count) + 0.1), torch.ones_like(count))]


def edges_trained(**options: Any) -> tuple[HashEmbedding, GroupOptimizer]:
    """A table with eleven rows of dimension 3, two steps old, without gradients."""
    table = HashEmbedding(3, std=0.5, dtype=torch.float64, **options)
    optimizer = GroupAdam([table.weight], lr=0.1, **REGULARIZED)
    for _ in range(2):
        learn(table, optimizer, pull(as_keys(EDGES), 3))
    optimizer.zero_grad()
    return table, optimizer


def _by_key(entry: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """A copy of `entry` in which the rows `names` are in the order of the keys."""
    order = entry["keys"].argsort()
    return {name: value[order] if name in names else copy.deepcopy(value) for name, value in entry.items()}


def table_state(table: HashEmbedding) -> dict[str, Any]:
    """What a table holds, in the order of its keys."""
    state = _by_key(table.state_dict(), ("keys", "weight"))
    return {**state, "dropped": state["dropped"].sort().values, "skipped_rows": table.skipped_rows}


def optimizer_state(optimizer: GroupOptimizer, index: int = 0) -> dict[str, Any]:
    """What an optimizer holds for a table, in the order of its keys; nothing before the first step."""
    entry = optimizer.state_dict()["state"].get(index, {})
    return _by_key(entry, entry.keys() - {"step"}) if entry else {}


def everything(table: HashEmbedding, optimizer: GroupOptimizer, index: int = 0) -> dict[str, Any]:
    """A copy of all that a failed call must leave alone and a repetition must give again."""
    return {"table": table_state(table), "optimizer": optimizer_state(optimizer, index)}


def through_a_file(item: Any, weights_only: bool = True) -> Any:
    file = io.BytesIO()
    torch.save(item, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
