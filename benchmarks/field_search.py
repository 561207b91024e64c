"""Which rows, and how many directions of their vectors, of each field lower the loss on held-out rows most per byte."""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import numpy as np
import torch
from torch import Tensor, nn

from sparsegroup.data import Log
from sparsegroup.data.batches import concatenated
from sparsegroup.training import ClickModel

KEY_BYTES = 8
Allotted = Sequence[tuple[int, int]]
"""Rows and d of each field."""


def cost(rows: float, dim: int) -> float:
    """Bytes of live rows where they are served."""
    return rows * (4 * dim + KEY_BYTES)


class Search:
    """A trained model whose fields are all constant on held-out rows, until their vectors are given back.

    Args:
        model: A model with one table, trained on the training rows of the log.
        log: Its test rows are those on which the loss is measured.
        most: About how many of these to take.
    """

    def __init__(self, model: ClickModel, log: Log, most: int = 5_000) -> None:
        self.model, self.dim = model.eval(), model.table.dim
        trained = concatenated(list(log.batches(0, log.train_rows, 4096))).keys.numpy()
        batch = concatenated(list(log.batches(log.train_rows, len(log), 4096)))
        pick = slice(None, None, -(-len(batch.labels) // most))
        self.labels = batch.labels[pick]
        self.numbers = batch.numbers[pick] if batch.numbers.shape[1] else None
        self.fields: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
        for trained_keys, held_keys in zip(trained.T, batch.keys[pick].numpy().T, strict=True):
            keys, counts = np.unique(trained_keys, return_counts=True)
            vectors = self.model.table.lookup(torch.from_numpy(keys)).numpy().astype(np.float64)
            mean = np.average(vectors, 0, counts)
            order = np.argsort(-np.sqrt(counts) * np.linalg.norm(vectors - mean, axis=1), kind="stable")
            keys, counts, vectors = keys[order], counts[order], vectors[order]  # the most useful first
            basis = np.linalg.svd(np.sqrt(counts)[:, None] * (vectors - mean), full_matrices=False)[2]
            place = {key: at for at, key in enumerate(keys.tolist())}
            places = np.array([place.get(key, len(keys)) for key in held_keys.tolist()])
            self.fields.append((vectors, counts, basis, places))
        self.now = torch.stack([self.column(field, 0, self.dim) for field in range(len(self.fields))], 1)

    def column(self, field: int, rows: int, dim: int) -> Tensor:
        """Vectors of a field in the held-out rows when so many rows of it, in so many directions, are left."""
        vectors, counts, basis, places = self.fields[field]
        mean = np.average(vectors, 0, counts)
        rest = np.average(vectors[rows:], 0, counts[rows:]) if rows < len(vectors) else mean
        left = mean + (vectors[:rows] - mean) @ basis[:dim].T @ basis[:dim]
        whole = np.concatenate([left, np.broadcast_to(rest, (len(vectors) + 1 - rows, self.dim))])
        return torch.from_numpy(whole[places]).float()

    @torch.no_grad()
    def loss(self, vectors: Tensor) -> float:
        found = self.model.network(vectors, self.numbers)
        return float(nn.functional.binary_cross_entropy_with_logits(found, self.labels))

    def path(self, budgets: Sequence[float], dims: Sequence[int]) -> list[list[tuple[int, int]]]:
        """Rows and dimension of each field at each of the budgets, the smallest first."""
        state = [(0, dims[0])] * len(self.fields)
        now, spent, loss, found = self.now.clone(), 0.0, self.loss(self.now), []
        queue: list[tuple[float, int, int, int, int]] = []  # least gain first; with the step at which it was measured

        def worth(field: int, rows: int, dim: int) -> float:
            trial = now.clone()
            trial[:, field] = self.column(field, rows, dim)
            return (loss - self.loss(trial)) / (cost(rows, dim) - cost(*state[field]))

        def push(field: int, step: int) -> None:
            rows, dim = state[field]
            most = len(self.fields[field][0])
            moves = {(min(2**power, most), dim) for power in range(30) if min(2**power, most) > rows}
            for more, wider in moves | {(rows, one) for one in dims if one > dim and rows}:
                heappush(queue, (-worth(field, more, wider), step, field, more, wider))

        for field in range(len(state)):
            push(field, 0)
        step = 0
        for budget in sorted(budgets):
            set_aside: list[tuple[float, int, int, int, int]] = []
            while queue and queue[0][0] < 0:
                gain, at, field, rows, dim = heappop(queue)
                price = spent + cost(rows, dim) - cost(*state[field])
                if price > budget:
                    set_aside.append((gain, at, field, rows, dim))
                elif at < step:  # measured before the last change: lazily again
                    heappush(queue, (-worth(field, rows, dim), step, field, rows, dim))
                else:
                    now[:, field] = self.column(field, rows, dim)
                    state[field], spent, loss, step = (rows, dim), price, self.loss(now), step + 1
                    queue = [one for one in queue if one[2] != field]
                    set_aside = [one for one in set_aside if one[2] != field]
                    heapify(queue)
                    push(field, step)
            for one in set_aside:
                heappush(queue, one)
            found.append(list(state))
        return found
