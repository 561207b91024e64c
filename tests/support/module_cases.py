"""Modules of one's own with tables, filled without training, and what they are called with."""

from typing import Any

import torch
from torch import Tensor, nn

from sparsegroup import HashEmbedding, HashEmbeddingBag
from sparsegroup.serving import export
from sparsegroup.serving.frozen import live_rows

TABLES = ("towers.user", "towers.item", "tags", "words", "pairs")


def fill(table: HashEmbedding, rows: int = 200, seed: int = 0) -> HashEmbedding:
    """Give a table rows of keys from all over, of which a fifth are dead."""
    draw = torch.Generator().manual_seed(seed)
    keys = keys_from(rows)
    vectors = torch.randn(rows, table.dim, generator=draw)
    vectors[torch.rand(rows, generator=draw) < 0.2] = 0
    table.assign(keys, vectors)
    if table.fallback is not None:
        with torch.no_grad():
            table.fallback.copy_(torch.randn(table.fallback.shape, generator=draw))
    return table


def keys_from(rows: int) -> Tensor:
    """As many keys, of all fields: the same ones, always."""
    draw = torch.Generator().manual_seed(5)
    return torch.randint(-(1 << 63), (1 << 63) - 1, (rows,), generator=draw)


def some_keys(*shape: int, seed: int = 1) -> Tensor:
    """Keys that a filled table has, live and dead, and in three of ten cases one that it has not."""
    draw = torch.Generator().manual_seed(seed)
    known = keys_from(200)[torch.randint(0, 200, shape, generator=draw)]
    return known + (torch.rand(shape, generator=draw) < 0.3)


class Mixed(nn.Module):
    """Two towers, one of which looks up twice, bags of all three kinds, numbers, and layers that know the mode."""

    def __init__(self, *, fallback: bool = False, field_bits: int = 0, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        how: dict[str, Any] = {"fallback": fallback, "field_bits": field_bits}
        self.towers = nn.ModuleDict({"user": HashEmbedding(5, **how), "item": HashEmbedding(3)})
        self.tags = HashEmbeddingBag(4, **how)
        self.words = HashEmbeddingBag(2, mode="sum", include_last_offset=True)
        self.pairs = HashEmbeddingBag(3, mode="sum")
        self.norm = nn.BatchNorm1d(23)
        self.network = nn.Sequential(nn.Linear(23, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 1))
        for name in TABLES:
            table = self.get_submodule(name)
            assert isinstance(table, HashEmbedding)
            fill(table, seed=seed + len(name))
        with torch.no_grad():
            self.norm.running_mean.copy_(torch.randn(23))

    def forward(
        self,
        user: Tensor,
        friend: Tensor,
        item: Tensor,
        tags: Tensor,
        offsets: Tensor,
        *,
        words: dict[str, Tensor],
        pairs: Tensor,
        price: Tensor,
    ) -> dict[str, Tensor]:
        parts = [
            self.towers["user"](user),
            self.towers["user"](friend),
            self.towers["item"](item),
            self.tags(tags, offsets),
            self.words(words["keys"], words["offsets"], words["weights"]),
            self.pairs(pairs),
            price,
        ]
        x = self.norm(torch.cat(parts, dim=1))
        return {"click": self.network(x).squeeze(1), "vector": x}


def call_of(rows: int, seed: int = 1) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Arguments of `Mixed`, positional and named."""
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.randint(0, 4, (rows,), generator=draw)
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    many = int(ends[-1])
    words = {
        "keys": some_keys(many, seed=seed + 4),
        "offsets": ends.clone(),
        "weights": torch.rand(many, generator=draw),
    }
    args = (*(some_keys(rows, seed=seed + place) for place in range(3)), some_keys(many, seed=seed + 3), ends[:-1])
    return args, {"words": words, "pairs": some_keys(rows, 2, seed=seed + 5), "price": torch.randn(rows, 1)}


@torch.no_grad()
def expected(model: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any], dtype: str = "float32") -> Any:
    """What a module gives in evaluation once its tables hold the vectors that a format rounds to."""
    for module in model.modules():
        if isinstance(module, HashEmbedding):
            rows = live_rows(module, dtype)  # type: ignore[arg-type]
            module.assign(rows.keys, rows.decode())
            if module.fallback is not None and rows.fallback is not None:
                module.fallback.data.copy_(rows.fallback)
    return model.eval()(*args, **kwargs)


class Scored(nn.Module):
    """A table and a layer; a subclass says what becomes of it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = fill(HashEmbedding(4))
        self.layer = nn.Linear(4, 1)

    def forward(self, keys: Tensor) -> Tensor:
        return self.finish(self.layer(self.table(keys)).squeeze(1))

    def finish(self, scores: Tensor) -> Tensor:
        return scores


def export_scored(model: nn.Module, folder: Any, **more: Any) -> Any:
    """`export` with an example of eight keys."""
    return export(model, folder, (some_keys(8),), **more)
