"""A small model, and what is published of it."""

from typing import Any

import torch

from serving_cases import opened_model
from sparsegroup.publishing import Publisher, Release
from sparsegroup.serving import Export, TrainedModel


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
