"""A model that changes, and what is published of it."""

from typing import Any

import torch

from serving_cases import by_table, opened_model
from sparsegroup.publishing import Publisher, Release
from sparsegroup.serving import Export, TrainedModel


def train(opened: TrainedModel, seed: int) -> None:
    """Change some rows, make some zero, add some; and change the network."""
    generator = torch.Generator().manual_seed(seed)
    new = torch.randint(0, 5 << 56, (5,), generator=generator)
    for table, added in by_table(opened.model, new):
        keys = table.state_dict()["keys"]
        for scale in (0, 1):
            some = keys[torch.rand(len(keys), generator=generator) < 0.02]
            table.assign(some, scale * torch.randn(len(some), table.dim, generator=generator))
        table.assign(added, torch.randn(len(added), table.dim, generator=generator))
    with torch.no_grad():
        for parameter in opened.model.network.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator)


def small_model(**options: Any) -> TrainedModel:
    return opened_model("mlp", **({"hidden": [4], "rows": 200} | options))


def publish(publisher: Publisher, opened: TrainedModel, samples: int = 0) -> Release | None:
    return publisher.publish(publisher.draft(opened), samples=samples, figures={"auc": 0.7, "undefined": float("nan")})


def content(export: Export) -> dict[str, Any]:
    """All that a server computes with, as bytes."""
    found = {
        f"{name}.{part}": (tuple(tensor.shape), tensor.contiguous().view(torch.uint8).numpy().tobytes())
        for name, rows in export.tables.items()
        for part, tensor in rows.tensors().items()
    }
    network = {name: tensor.view(torch.uint8).numpy().tobytes() for name, tensor in export.network.items()}
    return {"id": export.manifest.id, **found, **network}
