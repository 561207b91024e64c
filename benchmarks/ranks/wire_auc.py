"""The AUC of a model whose vectors and gradients travel in bfloat16, beside one with float32 on the wire."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ranks.crew import Crew
from sparsegroup import GroupAdam, HashEmbedding, param_groups
from sparsegroup.data import Log
from sparsegroup.integrations import data_parallel
from sparsegroup.models import DCN
from sparsegroup.training.metrics import evaluate

DIM, BATCH, L21 = 16, 32, 1e-4


class WireModel(nn.Module):
    """DCN over a table on all ranks."""

    def __init__(self, fields: int, numbers: int, wire: torch.dtype | None, seed: int) -> None:
        super().__init__()
        self.table = HashEmbedding(DIM, seed=seed, process_group=dist.group.WORLD, wire_dtype=wire)
        self.network = DCN(fields, DIM, numbers)

    def forward(self, keys: Tensor, numbers: Tensor) -> Tensor:
        logits: Tensor = self.network(self.table(keys), numbers if numbers.shape[1] else None)
        return logits


def keep(log: Log, folder: Path) -> None:
    """Write a log where ranks read it."""
    rows = next(log.batches(0, len(log), len(log)))
    folder.mkdir()
    torch.save([rows.keys, rows.numbers, rows.labels, torch.tensor(log.train_rows)], folder / "log.pt")


def predictions(folder: Path, wire: torch.dtype | None, seed: int) -> Tensor:
    """On a rank: one pass over the training rows; the probabilities of its part of the test rows."""
    keys, numbers, labels, train_rows = torch.load(folder / "log.pt")
    ranks, rank, trained = dist.get_world_size(), dist.get_rank(), int(train_rows)
    torch.manual_seed(seed)
    model = WireModel(keys.shape[1], numbers.shape[1], wire, seed)
    optimizer = GroupAdam(param_groups(model, l21=L21), lr=3e-3)
    parallel = data_parallel(model)
    whole = BATCH * ranks
    for first in range(0, trained // whole * whole, whole):
        own = slice(first + rank * BATCH, first + (rank + 1) * BATCH)
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(parallel(keys[own], numbers[own]), labels[own]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        part = slice(*(trained + (len(labels) - trained) * at // ranks for at in (rank, rank + 1)))
        return model(keys[part], numbers[part]).sigmoid()


@dataclass(frozen=True)
class WireAuc:
    """Of several seeds.

    Attributes:
        exact: AUCs with float32 on the wire.
        rounded: With bfloat16.
    """

    exact: Sequence[float]
    rounded: Sequence[float]

    def figures(self) -> dict[str, float]:
        """The mean AUC, the mean difference, and its standard error."""
        differences = np.subtract(self.rounded, self.exact)
        error = float(np.std(differences, ddof=1) / np.sqrt(len(differences)))
        return {
            "auc": float(np.mean(self.exact)),
            "difference": float(np.mean(differences)),
            "standard_error": error,
            "seeds": float(len(differences)),
        }


def wire_auc(crew: Crew, folder: Path, seeds: int) -> WireAuc:
    """Of a log that `keep` has written; each seed draws another start of table and network."""
    labels, trained = (torch.load(folder / "log.pt")[at] for at in (2, 3))
    found: dict[torch.dtype | None, list[float]] = {None: [], torch.bfloat16: []}
    for seed in range(seeds):
        for wire, aucs in found.items():
            probabilities = torch.cat(crew.call(predictions, folder, wire, seed))
            aucs.append(evaluate(labels[int(trained) :].numpy(), probabilities.double().numpy()).auc)
    return WireAuc(*found.values())
