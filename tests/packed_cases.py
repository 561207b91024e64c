"""What the tests of packed rows share: the same training with and without packing, and the rounding in place."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsegroup import GroupAdagrad, GroupAdam, GroupFTRL, GroupOptimizer, GroupSGD, HashEmbedding
from sparsegroup.table.packed_rows import PackedRows
from table_cases import random_keys

Make = Callable[..., GroupOptimizer]
KEYS = random_keys(400)


def pair(make: Make, *, dim: int = 4, std: float = 0.05, **settings: Any) -> list[tuple[HashEmbedding, GroupOptimizer]]:
    """The same table and optimizer twice: without packing, and with it."""
    tables = [HashEmbedding(dim, std=std, pack_dead=packs, field_bits=2) for packs in (False, True)]
    return [(table, make(table.parameters(), **settings)) for table in tables]


def gradients(keys: Tensor, step: int, dim: int) -> Tensor:
    """Whole numbers of -3 to 3, with a trend of each key."""
    rng = np.random.default_rng(step)
    trend = keys.remainder(5)[:, None] - 2
    return trend + torch.from_numpy(rng.integers(-1, 2, (len(keys), dim)))


def train(table: HashEmbedding, optimizer: GroupOptimizer, step: int, count: int = 60) -> None:
    rng = np.random.default_rng(1000 + step)
    keys = KEYS[torch.from_numpy((rng.random(count) ** 3 * (200 + step)).astype(np.int64))].unique()
    optimizer.zero_grad()
    vectors = table(keys)
    (vectors * gradients(keys, step, table.dim)).sum().backward()
    optimizer.step()


def pack(table: HashEmbedding, optimizer: GroupOptimizer) -> None:
    optimizer.zero_grad()
    table.table.pack_dead()


def packed(table: HashEmbedding) -> int:
    return table.table.directory.num_packed


def round_in_place(table: HashEmbedding, optimizer: GroupOptimizer, steps: int) -> None:
    """What a packing does to the state of dead rows, done to rows that stay where they are."""
    state = copy.deepcopy(optimizer.state_dict())
    entry = state["state"][0]
    dead = ~table.lookup(entry["keys"]).any(1)
    rows = PackedRows(table.dim, huge_pages=False)
    rows.lay_out(table.table.rows.initial)
    values = [torch.zeros_like(entry["u"]), *(entry[name] for name in rows.initial)]
    rows.reserve(int(dead.sum()))
    rows.add(entry["keys"][dead].numpy(), torch.stack(values, 1)[dead].flatten(1).numpy(), steps)
    rounded = torch.from_numpy(rows.read_whole(rows.slots())).view(-1, len(values), table.dim)
    for part, name in enumerate(rows.initial):
        entry[name][dead] = rounded[:, 1 + part]
    optimizer.load_state_dict(state)


MAKES = [
    (GroupSGD, {"lr": 0.1, "l21": 6.0, "penalty": "hard"}),
    (GroupAdam, {"lr": 0.02, "l21": 3.0, "penalty": "hard"}),
    (GroupAdagrad, {"lr": 0.02, "l21": 30.0, "initial_accumulator_value": 0.1}),
    (GroupFTRL, {"lr": 0.02, "l21": 30.0, "l1": 0.1}),
]
