"""Training and serving an embedding of the contest: what all methods share."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter, process_time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsegroup.data import Log
from sparsegroup.data.keys import fields_of
from sparsegroup.training import Config
from sparsegroup.training.build import start_network
from sparsegroup.training.model import LookupModel
from sparsegroup_paper.equal_bytes.embeddings import HotSketch
from sparsegroup_paper.equal_bytes.parts import (
    KEY_BYTES,
    ByField,
    Part,
    Precision,
    Rows,
    Shares,
    freeze,
    row_bytes,
    served_bytes,
    shares_of,
)
from sparsegroup_paper.pruning import Counts

LATENCY_ROWS = (1, 512)
"""Rows of the batches whose serving is timed."""

CALLS = 30
"""Calls of which the time is the median."""


@dataclass(frozen=True)
class Task:
    """What a method learns from: the first `stop` rows of a log, whose features are counted."""

    log: Log
    config: Config
    counts: Counts
    stop: int

    @property
    def dim(self) -> int:
        """Length of a vector, as the network takes it."""
        return self.config.model.vector_dim

    @property
    def salt(self) -> int:
        """Chooses the hashes of a run; another seed has other hashes."""
        return 100 * self.config.training.seed

    def budget(self, share: float) -> int:
        """Bytes that are a share of the dense float32 table's."""
        return int(share * len(self.counts) * self.dim * 4)

    def rows_in(self, budget: int, precision: Precision, width: int | None = None) -> int:
        """Rows with their keys, all of the training's features at most."""
        return min(len(self.counts), budget // (KEY_BYTES + row_bytes(width or self.dim, precision)))

    @cached_property
    def keys(self) -> Tensor:
        """All features of the training, ascending."""
        return torch.tensor(self.counts.keys)

    def most_frequent(self, count: int) -> Tensor:
        """The features that are most frequent, ascending; ties fall to the lower key."""
        return self.keys[np.sort(np.argsort(-self.counts.counts, kind="stable")[: max(0, count)])]

    def by_field(self, budget: int, precision: Precision, least: int, rest: Callable[[Shares], Part]) -> ByField:
        """The embedding of small fields by key, and of the others by `rest`, which has `least` bytes at least."""
        fields = fields_of(self.counts.keys)
        features = np.bincount(fields, minlength=len(self.log.fields)).tolist()
        shares = shares_of(features, budget, KEY_BYTES + row_bytes(self.dim, precision), least)
        exact = self.keys[np.isin(fields, shares.exact)]
        return ByField(shares, exact, self.dim, rest(shares) if shares.columns else None)


@dataclass(frozen=True)
class Served:
    """A trained model in the form that is served.

    Attributes:
        model: In evaluation mode, with vectors of the served precision.
        bytes: What is served of the embedding.
        peak_bytes: Memory of the training, on the table's side: parameters, gradients, the optimizer's state, indices.
        seconds: Processor time of the training, with that which several runs share.
    """

    model: LookupModel
    bytes: int
    peak_bytes: int
    seconds: float

    def latencies(self, keys: Tensor, numbers: Tensor | None) -> list[float]:
        """Median seconds of a call with as many rows as `LATENCY_ROWS` say, after three others, in one thread."""
        medians = []
        for rows in LATENCY_ROWS:
            times, of_rows = [], (keys[:rows], None if numbers is None else numbers[:rows])
            with torch.inference_mode():
                for _ in range(CALLS + 3):
                    begin = perf_counter()
                    self.model(*of_rows)
                    times.append(perf_counter() - begin)
            medians.append(float(np.median(times[3:])))
        return medians


class Training:
    """The network of the config over an embedding, from the config's seed on, and torch's optimizers of both.

    Adam or Adagrad, with the config's learning rate. Rows with sparse gradients have `torch.optim.SparseAdam`, which
    changes the rows of a batch and leaves the others alone, as the library's tables do.
    """

    def __init__(self, task: Task, build: Callable[[], nn.Module]) -> None:
        self.task, self._gradients = task, 0
        begin = process_time()
        torch.manual_seed(task.config.training.seed)
        network = task.config.model.network(task.log.schema)
        start_network(network, task.log, base_rate=bool(task.config.model.base_rate))
        self.embedding = build()
        self.model = LookupModel(self.embedding, network)
        rows = [one.weight for one in self.embedding.modules() if isinstance(one, Rows) and one.sparse]
        others = [one for one in self.model.parameters() if all(one is not sparse for sparse in rows)]
        lr = task.config.optimizer.lr
        assert lr is not None
        self.optimizers: list[torch.optim.Optimizer] = [torch.optim.Adagrad([*others, *rows], lr)]
        if task.config.optimizer.name == "adam":
            self.optimizers = [torch.optim.Adam(others, lr), *([torch.optim.SparseAdam(rows, lr)] if rows else [])]
        self.seconds = process_time() - begin

    def fit(self, start: int, stop: int) -> None:
        """Train on rows `start` to `stop`, in order; FloatingPointError where training diverges."""
        begin, size = process_time(), self.task.config.training.batch_size
        self.model.train()
        done = start
        for batch in self.task.log.batches(start, stop, size):
            logits = self.model(batch.keys, batch.numbers)
            loss = functional.binary_cross_entropy_with_logits(logits, batch.labels)
            if not bool(loss.isfinite()):
                raise FloatingPointError("the loss is not finite")
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._gradients = max(self._gradients, sum(map(_gradient_bytes, self.embedding.parameters())))
            with torch.sparse.check_sparse_tensor_invariants(False):  # type: ignore[no-untyped-call]
                for optimizer in self.optimizers:
                    optimizer.step()
            done += len(batch)
            for module in self.embedding.modules():
                if isinstance(module, Part):
                    module.after_step(done / stop, self._forget)
        self.seconds += process_time() - begin

    def _forget(self, parameter: nn.Parameter, rows: Tensor) -> None:
        for optimizer in self.optimizers:
            for value in optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    value[rows] = 0

    @property
    def peak_bytes(self) -> int:
        """The table's side of the training's memory: its tensors, the largest gradients, the optimizer's state."""
        parameters = list(self.embedding.parameters())
        states = [optimizer.state.get(one, {}) for optimizer in self.optimizers for one in parameters]
        state = sum(value.nbytes for of in states for value in of.values() if isinstance(value, Tensor))
        tensors = sum(tensor.nbytes for module in self.embedding.modules() for tensor in _tensors(module))
        return tensors + state + self._gradients

    def serve(self, precision: Precision, embedding: nn.Module | None = None) -> Served:
        """The model in the form that is served, with another embedding or its own, which cannot be trained any more."""
        model = LookupModel(self.embedding if embedding is None else embedding, self.model.network).eval()
        peak = self.peak_bytes
        freeze(model.embedding, precision)
        return Served(model, served_bytes(model.embedding), peak, self.seconds)


def _gradient_bytes(parameter: nn.Parameter) -> int:
    gradient = parameter.grad
    if gradient is None:
        return 0
    return gradient._values().nbytes + gradient._indices().nbytes if gradient.is_sparse else gradient.nbytes


def _tensors(module: nn.Module) -> list[Tensor]:
    own = [vars(module), *(vars(one) for one in vars(module).values() if isinstance(one, HotSketch))]
    held = [one for of in own for one in of.values() if isinstance(one, Tensor)]
    return [*module.parameters(recurse=False), *module.buffers(recurse=False), *held]
