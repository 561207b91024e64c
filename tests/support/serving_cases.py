"""Models to be exported, made without training."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from plain_settings import plain
from sparsegroup.data.batches import Bags, Batch
from sparsegroup.data.schema import LogSchema
from sparsegroup.models import NumberEncoder
from sparsegroup.models.attention import ListPooling
from sparsegroup.serving import ServingModel, TrainedModel
from sparsegroup.serving.frozen import live_rows
from sparsegroup.serving.frozen_model import frozen_copy, tables_of
from sparsegroup.table import HashEmbedding
from sparsegroup.training import ClickModel

FIELDS = ("site", "user", "tags", "hour", "words")
LISTS = ("tags", "words")


def sizes_of(tensor: Any) -> list[int | str]:
    """The sizes of an ONNX graph's tensor: open ones by name."""
    return [size.dim_param or size.dim_value for size in tensor.type.tensor_type.shape.dim]


def columns_of(lists: bool = False, numbers: bool = False) -> LogSchema:
    return LogSchema(FIELDS, LISTS if lists else (), ("age", "price") if numbers else ())


def random_keys(count: int, fields: int = len(FIELDS), seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    field = torch.randint(0, fields, (count,), generator=generator)
    return ((field << 56) + torch.randint(0, 1 << 56, (count,), generator=generator)).unique()


def opened_model(
    model: str = "dcn",
    *,
    lists: bool = False,
    numbers: bool = False,
    rows: int = 300,
    seed: int = 0,
    dim: int = 4,
    **settings: Any,
) -> TrainedModel:
    """A model with `rows` rows, of which about a fifth are zero, so not live."""
    columns = columns_of(lists, numbers)
    dim = 1 if model == "lr" else dim
    config = plain(model=model, dim=dim, seed=seed, **settings)
    click_model, _ = config.build_for(columns)
    for module in click_model.modules():
        draw = torch.Generator().manual_seed(1)
        if isinstance(module, NumberEncoder):
            module.fit(torch.randn(500, 2, generator=draw).exp())
        if isinstance(module, NumberEncoder | ListPooling):  # whose parameters begin small or at zero
            for parameter in module.parameters():
                torch.nn.init.normal_(parameter, generator=draw)
    keys = random_keys(rows, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for table, own in by_table(click_model, keys):
        vectors = torch.randn(len(own), table.dim, generator=generator)
        vectors[torch.rand(len(own), generator=generator) < 0.2] = 0
        table.assign(own, vectors)
    return TrainedModel(Path("made-up"), "run", config, columns, click_model.eval(), None)


def by_table(model: ClickModel, keys: torch.Tensor) -> list[tuple[HashEmbedding, torch.Tensor]]:
    """The tables of a model, each with its share of some keys, by their fields."""
    if isinstance(model.embedding, HashEmbedding):
        return [(model.embedding, keys)]
    field = (keys >> 56) & 255
    sizes = torch.tensor([model.embedding.sizes[number] for number in field.tolist()])
    return [(table, keys[sizes == table.dim]) for table in model.embedding.tables.values()]


def train(opened: TrainedModel, seed: int, share: float = 0.02) -> None:
    """Change some rows, zero some, bring some back, drop some, add some; and change the network."""
    generator = torch.Generator().manual_seed(seed)
    new = torch.randint(0, 5 << 56, (5,), generator=generator)
    for table, added in by_table(opened.model, new):
        keys = table.state_dict()["keys"]
        for scale in (0, 1):
            some = keys[torch.rand(len(keys), generator=generator) < share]
            table.assign(some, scale * torch.randn(len(some), table.dim, generator=generator))
        if seed % 2:
            table.shrink()
        table.assign(added, torch.randn(len(added), table.dim, generator=generator))
    with torch.no_grad():
        for parameter in opened.model.network.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator)


def serving(opened: TrainedModel, dtype: str = "float32", keys: str = "full") -> ServingModel:
    """What serves a model with vectors and keys in these formats."""
    tables = tables_of(opened.model)
    rows = {name: live_rows(table, dtype, keys) for name, table in tables.items()}  # type: ignore[arg-type]
    return ServingModel(frozen_copy(opened.model, rows), opened.columns)


def rounded(model: nn.Module, dtype: str) -> None:
    """Let a model's tables hold the vectors that a format rounds theirs to."""
    for table in model.modules():
        if isinstance(table, HashEmbedding):
            rows = live_rows(table, dtype)  # type: ignore[arg-type]
            table.assign(rows.keys, rows.decode())
            if table.fallback is not None and rows.fallback is not None:
                table.fallback.data.copy_(rows.fallback)


def batch_of(opened: TrainedModel, size: int, seed: int = 1) -> Batch:
    """Rows of known and unknown keys, and bags of none to three."""
    generator = torch.Generator().manual_seed(seed)
    columns = opened.columns
    known = torch.cat([keys for table in tables_of(opened.model).values() for keys, _ in table.items()])

    def some(*shape: int) -> torch.Tensor:
        keys = known[torch.randint(0, len(known), shape, generator=generator)]
        return keys + (torch.rand(shape, generator=generator) < 0.3)

    bags = []
    for _ in columns.lists:
        offsets = torch.zeros(size + 1, dtype=torch.int64)
        offsets[1:] = torch.randint(0, 4, (size,), generator=generator).cumsum(0)
        bags.append(Bags(some(int(offsets[-1])), offsets))
    return Batch(
        some(size, len(columns.fields) - len(columns.lists)),
        torch.randn(size, len(columns.numbers), generator=generator),
        torch.randint(0, 2, (size,), generator=generator).float(),
        torch.zeros(size, dtype=torch.int64),
        bags=tuple(bags),
    )
