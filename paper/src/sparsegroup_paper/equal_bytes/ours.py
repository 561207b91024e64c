"""This library in the contest: its recipe, and the forms in which a trained table is served."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsegroup.data import VALUE_BITS
from sparsegroup.data.keys import FIELD_BITS
from sparsegroup.serving.frozen import FrozenTable, live_rows
from sparsegroup.serving.frozen_model import frozen_copy
from sparsegroup.serving.rows import Embeddings, ExportError, buckets_in, truncated
from sparsegroup.settings.names import Dtype, KeyFormat
from sparsegroup.table import HashEmbedding
from sparsegroup.table.field_tables import tables_in
from sparsegroup.training.model import ClickModel, LookupModel
from sparsegroup_paper.equal_bytes.embeddings import ProductQuantized
from sparsegroup_paper.equal_bytes.parts import KEY_BYTES, freeze, row_bytes
from sparsegroup_paper.equal_bytes.training import Served, Task
from sparsegroup_paper.pruning import Learner
from sparsegroup_paper.runs import Compact

RECIPE: dict[str, Any] = {"optimizer": "adagrad", "lr": 0.03, "l1": 0.0, "l21": 0.0, "l2": 0.0, "penalty": "hard"}
"""The library's recipe, as in the frontier."""

BUCKET_ROWS = 5.5
"""Rows of a bucket of fingerprints in the mean, at least, in a field of 12 rows or more."""

CENTROID_BYTES = 0.25
"""The share of a budget that centroids may take."""

HASHED = 0.25
"""The share of a budget that several fallback vectors of a field take."""


@dataclass(frozen=True)
class Variant:
    """A form of the recipe.

    Attributes:
        words: What it is.
        dtype: Format of the rows' vectors.
        keys: Whole keys, or fingerprints.
        fallback: Whether each field has a fallback vector, in the same format.
        hashed: Whether each field has several: a feature without a row has the one that its hash names. As many as a
            quarter of the bytes holds.
        quantized: Whether a row's vector is one of up to 256 centroids, which k-means finds after the training.
        length: Length of the vectors, at least 1, as a share of the network's; a learned matrix makes them longer.
    """

    words: str
    dtype: Dtype = "float32"
    keys: KeyFormat = "full"
    fallback: bool = False
    hashed: bool = False
    quantized: bool = False
    length: float = 1.0

    @property
    def changes(self) -> dict[str, Any]:
        """The settings in which it differs from the data set's."""
        return RECIPE | {"fallback": self.fallback or self.hashed}

    def train(self, task: Task, methods: Sequence[Compact]) -> Iterator[tuple[Compact, Served | None]]:
        """Train by each method, and serve; None where no row fits, or keys are no hashes and fingerprints need them.

        `TargetBytes` counts 8 bytes for a key and float32 numbers.
        """
        for method in methods:
            form = _Form(self, task, task.budget(method.share))
            rows, served = min(len(task.counts), form.rows), None
            if rows >= 1:
                with suppress(ExportError):
                    served = form.train(rows)
            yield method, served


class _Form:
    """A variant at a budget in bytes."""

    def __init__(self, variant: Variant, task: Task, budget: int) -> None:
        self.variant, self.task = variant, task
        self.fields, self.dim = len(task.log.fields), max(1, round(variant.length * task.dim))
        sizes: Mapping[Dtype, int] = {"float32": 4 * self.dim, "int8": self.dim + 1, "int4": (self.dim + 1) // 2 + 1}
        vector, centroid, is_short = sizes[variant.dtype], row_bytes(self.dim, "int8"), variant.keys == "fingerprints"
        self.vectors = int(HASHED * budget / (self.fields * vector)) if variant.hashed else 0
        self.centroids = 256
        while self.centroids > 1 and self.centroids * centroid > CENTROID_BYTES * budget:
            self.centroids //= 2
        # Of what is not a row: fallback vectors, centroids, and the matrix that makes short vectors longer.
        self.fixed_bytes = self.fields * (self.vectors + variant.fallback) * vector
        self.fixed_bytes += self.centroids * centroid * variant.quantized
        self.fixed_bytes += (self.dim < task.dim) * self.dim * task.dim * 4
        row = (1 if variant.quantized else vector) + (2 + 1 / BUCKET_ROWS if is_short else KEY_BYTES)
        self.rows = int((budget - self.fixed_bytes - 2 * self.fields * is_short) / row)

    def train(self, rows: int) -> Served:
        """Train to that many rows, and serve them."""
        task, size = self.task, KEY_BYTES + 4 * self.dim
        config = task.config.replace(target_bytes=rows * size)
        if self.dim < task.dim:
            config = config.replace(dims=dict.fromkeys(task.log.fields, self.dim))
        learner = Learner(task.log, config)
        if self.vectors > 1:
            torch.manual_seed(config.training.seed)
            hashed = HashedFallbacks(learner.model.table.dim, self.fields, self.vectors, seed=config.training.seed)
            learner.model = ClickModel(hashed, learner.model.network)
            learner.optimizer = config.optimizer.make(learner.model)
        peak, begin = 0, process_time()
        every = max(1, learner.steps(task.stop) // 20)

        def after_step(done: int) -> None:
            nonlocal peak
            if done % every == 0:
                of_tables = [table.memory() for table in learner.model.rows.values()]
                peak = max(peak, sum(one.index + one.dropped + sum(one.parts.values()) for one in of_tables))

        learner.fit(0, task.stop, after_step)
        seconds = process_time() - begin
        batch = next(iter(task.log.batches(0, task.stop, task.config.training.batch_size)))
        peak += len(torch.unique(batch.keys)) * size  # the gradient of a batch: numbers of rows, and vectors
        embedding, served = self._served(learner.model)
        return Served(LookupModel(embedding, learner.model.network).eval(), served, peak, seconds)

    def _served(self, model: ClickModel) -> tuple[nn.Module, int]:
        """The served embedding of a trained model, and its bytes."""
        variant = self.variant
        rows = {name: live_rows(table, variant.dtype, variant.keys) for name, table in tables_in(model).items()}
        size = self.fixed_bytes + sum(map(self._bytes_of, rows.values()))
        if not variant.quantized and self.vectors < 2:
            return frozen_copy(model, rows).embedding, size
        (of_table,) = rows.values()
        known: nn.Module = FrozenTable(replace(of_table, fallback=None))
        if variant.quantized:
            known = ProductQuantized(of_table.keys, of_table.decode(), 1, self.centroids)
            freeze(known, "int8")
            assert of_table.bits is not None
            known = _Truncated(known, of_table.bits)
        if of_table.fallback is None:
            return known, size
        return _WithFallback(known, of_table.fallback, max(1, self.vectors)), size

    def _bytes_of(self, rows: Embeddings) -> int:
        """Bytes of rows and keys; of fingerprints without what an export has for fields that a log does not have."""
        parts = [] if self.variant.quantized else [rows.vectors, rows.scale]
        size = sum(tensor.nbytes for tensor in parts if tensor is not None) or len(rows)
        if rows.bits is None:
            return size + KEY_BYTES * len(rows)
        return size + 2 * len(rows) + self.fields + buckets_in(rows.bits[: self.fields])


class _Truncated(nn.Module):
    """A lookup by the bits of a key that fingerprints keep."""

    def __init__(self, known: nn.Module, bits: Tensor) -> None:
        super().__init__()
        self.known, self.bits = known, bits

    def forward(self, keys: Tensor) -> Tensor:
        vectors: Tensor = self.known(truncated(keys.flatten(), self.bits).view(keys.shape))
        return vectors


def _with_fallback(found: Tensor, keys: Tensor, fallback: Tensor, vectors: int) -> Tensor:
    """Vectors, with one of the fallback vectors, `vectors` of each field, where they are zero."""
    places = vectors * (keys >> VALUE_BITS) + (keys & ((1 << VALUE_BITS) - 1)) % vectors
    is_zero = (found.detach() == 0).all(-1, keepdim=True)
    return torch.where(is_zero, found + functional.embedding(places, fallback), found)


class _WithFallback(nn.Module):
    """A lookup that gives the absent keys fallback vectors `[fields × vectors, dim]`."""

    def __init__(self, known: nn.Module, fallback: Tensor, vectors: int) -> None:
        super().__init__()
        self.known, self.fallback, self.vectors = known, fallback, vectors

    def forward(self, keys: Tensor) -> Tensor:
        return _with_fallback(self.known(keys), keys, self.fallback, self.vectors)


class HashedFallbacks(HashEmbedding):
    """A table with several fallback vectors for each field, among which the hash of a key chooses."""

    def __init__(self, dim: int, fields: int, vectors: int, **options: Any) -> None:
        super().__init__(dim, fallback=True, field_bits=FIELD_BITS, **options)
        self.vectors = vectors
        self.fallback = nn.Parameter(torch.zeros(fields * vectors, dim))

    def forward(self, keys: Tensor) -> Tensor:
        assert self.fallback is not None
        return _with_fallback(self.own_vectors(keys), keys, self.fallback, self.vectors)


VARIANTS: Mapping[str, Variant] = {
    "Ours": Variant("The target size of the recipe, without fallback vectors, as the library exports it."),
    "Ours, int8": Variant("The same with rows in int8, so that there are more of them.", "int8"),
    "Ours, fallback": Variant("With a vector per field for features without a row.", fallback=True),
    "Ours, fallback, int8": Variant("The same with rows in int8.", "int8", fallback=True),
    "Ours, keyless, int8": Variant(
        "int8, and a fingerprint of 16 bits and a bucket in place of the key: `--keys fingerprints`. An export has up "
        "to 512 bytes more for fields that the log does not have.",
        *("int8", "fingerprints"),
    ),
    "Ours, keyless, int4": Variant("The same in int4.", "int4", "fingerprints"),
    "Ours, keyless, fallback, int8": Variant("Keyless in int8, with fallback vectors.", "int8", "fingerprints", True),
    "Ours, keyless, fallback, int4": Variant("Keyless in int4, with fallback vectors.", "int4", "fingerprints", True),
    "Ours, keyless, hashed fallbacks": Variant(
        "Keyless in int8, with several fallback vectors for each field, which together take a quarter of the "
        "bytes; the hash of a feature chooses one. Not in the library.",
        *("int8", "fingerprints"),
        hashed=True,
    ),
    "Ours, keyless, centroids": Variant(
        "Keyless, each row one byte: the number of an int8 centroid. Not in the library.",
        *("float32", "fingerprints"),
        quantized=True,
    ),
    "Ours, keyless, fallback, short": Variant(
        "Keyless in int8, with fallback vectors; all vectors have a quarter of the numbers, and a learned matrix "
        "(`dims`).",
        *("int8", "fingerprints"),
        fallback=True,
        length=0.25,
    ),
    "Ours, keyless, fallback, one number": Variant(
        "The same with vectors of one number.", *("int8", "fingerprints"), fallback=True, length=0.0
    ),
}
"""As many as other methods have trials."""

FIXED = "Ours, keyless, fallback, int4"
"""The variant that is also shown where another one was chosen."""
