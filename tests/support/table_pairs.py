"""A table beside its oracle, `nn.Embedding(sparse=True)`: what the tests of their equivalence share."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from family import FAMILY
from fixed_gradients import relative_error
from over import over
from sparsegroup import GroupOptimizer, HashEmbedding
from table_cases import KeyedEmbedding, Lookup, keys_in, learn, optimizer_state

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5}
DTYPES = over("dtype", TOLERANCE)
one_of_each_kind = over("member", [FAMILY[name] for name in ("sgd", "adam", "ftrl", "adahessian")])
"""Optimizers without state, with two moments, with a σ at the start, and of second order."""
NORMS, PENALTIES = ("s", "s_tilde", "metric"), ("lasso", "mcp", "hard")
Change = Callable[[int, GroupOptimizer], None]


class Pair:
    """A table and its oracle, with an optimizer each.

    Args:
        table: The table; the oracle takes its starts.
        build: Makes an optimizer of a parameter.
    """

    def __init__(self, table: HashEmbedding, build: Callable[[Tensor], GroupOptimizer], capacity: int = 256) -> None:
        self.table, self.oracle = table, KeyedEmbedding(table, capacity)
        self.ours, self.theirs = build(table.weight), build(self.oracle.weight)

    @property
    def both(self) -> tuple[tuple[nn.Module, GroupOptimizer], tuple[nn.Module, GroupOptimizer]]:
        return (self.table, self.ours), (self.oracle, self.theirs)

    def vectors(self, keys: Tensor) -> Tensor:
        return torch.stack([self.table.lookup(keys), self.oracle.lookup(keys)])

    def follow(self, steps: list[list[Lookup]], change: Change = lambda t, optimizer: None) -> Tensor:
        """Trains both; `[2, steps, keys, dim]`: every key's vector after each step, 0 before its first sight."""
        keys, path = keys_in(steps), []
        for t, lookups in enumerate(steps):
            for module, optimizer in self.both:
                change(t, optimizer)
                learn(module, optimizer, lookups)
            path.append(self.vectors(keys))
        return torch.stack(path, dim=1)

    def assert_same_state(self) -> None:
        ours, theirs = optimizer_state(self.ours), self.theirs.state[self.oracle.weight]
        keys = ours.pop("keys")
        assert ours.keys() == theirs.keys()
        assert ours.pop("step") == theirs["step"]
        assert sorted(self.oracle.row_of) == keys.tolist()
        for name, value in ours.items():
            expected = theirs[name][self.oracle.rows(keys)]
            tolerance = TOLERANCE[expected.dtype] * (float(expected.abs().max()) or 1.0)
            torch.testing.assert_close(value, expected, rtol=0, atol=tolerance, msg=lambda m, name=name: f"{name}: {m}")


def same(path: Tensor) -> None:
    ours, theirs = path
    assert relative_error(ours, theirs) < TOLERANCE[path.dtype]
    torch.testing.assert_close((ours == 0).all(-1), (theirs == 0).all(-1), rtol=0, atol=0)


def table_of(dtype: torch.dtype, dim: int = 5, **options: Any) -> HashEmbedding:
    return HashEmbedding(dim, std=0.05, seed=3, dtype=dtype, **options)
