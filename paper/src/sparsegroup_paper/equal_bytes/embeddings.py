"""Published ways to a small embedding table, each as a module: see `parts` for what they share.

Each takes keys `[*shape]` and gives vectors `[*shape, dim]`; `salt` chooses the hashes of a module.
"""

import itertools
import math
from collections.abc import Sequence
from typing import cast

import torch
from scipy.spatial import KDTree
from torch import Tensor, nn
from torch.nn import functional

from sparsegroup_paper.equal_bytes.parts import (
    BLOCK,
    KEY_BYTES,
    STD,
    Forget,
    Keyed,
    Layer,
    Part,
    Precision,
    Rows,
    digits,
    distinct,
    hashed,
    pointer_bytes,
)

DECAY = 0.9
"""The share of a key's score that remains when rows are given to other keys."""


class Projected(Part):
    """Vectors of a smaller dimension, and a learned matrix from it to `dim`."""

    def __init__(self, keys: Tensor, small: int, dim: int) -> None:
        super().__init__()
        self.table, self.projection = Keyed(keys, small), Layer(small, dim, bias=False)

    def forward(self, keys: Tensor) -> Tensor:
        return cast(Tensor, self.projection(self.table(keys)))


class Hashing(Part):
    """The hashing trick (Weinberger et al., ICML 2009): keys share `count` rows by a hash."""

    def __init__(self, count: int, dim: int, salt: int) -> None:
        super().__init__()
        self.rows, self.salt = Rows(count, dim), salt

    def places(self, keys: Tensor) -> Tensor:
        """The row of each key."""
        return hashed(keys, self.salt) % self.rows.count

    def forward(self, keys: Tensor) -> Tensor:
        return cast(Tensor, self.rows(self.places(keys)))


class QuotientRemainder(Part):
    """QR (Shi et al., KDD 2020): the product of two vectors, by the remainder and the quotient of a hash."""

    def __init__(self, remainders: int, quotients: int, dim: int, salt: int) -> None:
        super().__init__()
        self.remainder, self.quotient, self.salt = Rows(remainders, dim), Rows(quotients, dim, 0.1, 1.0), salt

    def forward(self, keys: Tensor) -> Tensor:
        remainder, quotient = digits(keys, self.salt, (self.remainder.count, self.quotient.count))
        return cast(Tensor, self.remainder(remainder) * self.quotient(quotient))


class Memcom(Part):
    """MEmCom (Pansare et al., MLSys 2022): a vector that keys share by a hash, times a number by another hash."""

    def __init__(self, vectors: int, numbers: int, dim: int, salt: int) -> None:
        super().__init__()
        self.vectors = Hashing(vectors, dim, salt)
        self.numbers, self.salt = Rows(numbers, 1, 0.1, 1.0, rows_per_scale=BLOCK), salt + 1

    def forward(self, keys: Tensor) -> Tensor:
        return cast(Tensor, self.vectors(keys) * self.numbers(hashed(keys, self.salt) % self.numbers.count))


class Robe(Part):
    """ROBE (Desai et al., MLSys 2022): chunks of a vector are read from one array, circularly, each from a hash on.

    The array has `size` numbers, and `chunk`, which divides `dim`, are in a chunk.
    """

    def __init__(self, size: int, dim: int, chunk: int, salt: int) -> None:
        super().__init__()
        self.array = Rows(size, 1, rows_per_scale=BLOCK, sparse=False)
        self.salts = [1000 * salt + number for number in range(dim // chunk)]
        self.inside = torch.arange(chunk)

    def places(self, keys: Tensor) -> Tensor:
        """Where in the array the elements are, `[*keys.shape, dim]`."""
        starts = torch.stack([hashed(keys, salt) % self.array.count for salt in self.salts], -1)
        return ((starts[..., None] + self.inside) % self.array.count).flatten(-2)

    def forward(self, keys: Tensor) -> Tensor:
        return cast(Tensor, self.array(self.places(keys)).squeeze(-1))


class DeepHash(Part):
    """DHE (Kang et al., KDD 2021): `hashes` hashes of a key, as uniform numbers of variance 1, through two layers."""

    def __init__(self, hashes: int, hidden: int, dim: int, salt: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(salt)
        self.factors, self.terms = torch.randint(1 << 62, (2, hashes), generator=generator)
        sizes = [hashes, hidden, hidden, dim]
        self.layers = nn.ModuleList(Layer(*pair) for pair in itertools.pairwise(sizes))

    @staticmethod
    def bytes_of(hashes: int, hidden: int, dim: int, precision: Precision) -> int:
        """Bytes of such a network."""
        return sum(Layer.bytes_of(*pair, precision) for pair in ((hashes, hidden), (hidden, hidden), (hidden, dim)))

    def codes(self, keys: Tensor) -> Tensor:
        """The hashes `[*keys.shape, hashes]`."""
        mixed = hashed(keys, 0)[..., None] * (self.factors | 1) + self.terms
        codes: Tensor = (mixed >> 32).float() * (math.sqrt(3) / 2**31)
        return codes

    def forward(self, keys: Tensor) -> Tensor:
        some, place = distinct(keys)
        vectors = self.codes(some)
        for layer in self.layers[:-1]:
            vectors = functional.mish(layer(vectors))
        return functional.embedding(place, self.layers[-1](vectors))


class TensorTrain(Part):
    """TT-Rec (Yin et al., MLSys 2021): a vector is the product of a matrix of each of three cores.

    `sizes` are how many matrices each core has, whose numbers are a hash that is cut into three; `dims` are factors of
    the dimension.
    """

    def __init__(self, sizes: Sequence[int], dims: Sequence[int], rank: int, salt: int) -> None:
        super().__init__()
        self.dims, self.rank, self.salt = tuple(dims), rank, salt
        std = (STD / rank) ** (1 / 3)
        widths = self.widths(dims, rank)
        self.cores = nn.ModuleList(Rows(count, width, std) for count, width in zip(sizes, widths, strict=True))
        self.sizes = tuple(sizes)

    @staticmethod
    def widths(dims: Sequence[int], rank: int) -> tuple[int, int, int]:
        """Numbers of a matrix of each core."""
        first, second, third = dims
        return first * rank, rank * second * rank, rank * third

    def forward(self, keys: Tensor) -> Tensor:
        some, place = distinct(keys)
        rows, (d1, d2, d3), rank = digits(some, self.salt, self.sizes), self.dims, self.rank
        first, second, third = (core(of_core) for core, of_core in zip(self.cores, rows, strict=True))
        left = torch.bmm(first.view(-1, d1, rank), second.view(-1, rank, d2 * rank)).view(-1, d1 * d2, rank)
        return functional.embedding(place, torch.bmm(left, third.view(-1, rank, d3)).flatten(1))


def k_means(points: Tensor, count: int, rounds: int = 10) -> tuple[Tensor, Tensor]:
    """Centroids `[k, width]`, k ≤ `count`, of points `[n, width]`, and the number of each point's nearest one.

    Lloyd's algorithm, on a sample of some 32,000 points at most, or 4 for each centroid; drawn from torch's generator.
    """
    sample = points[torch.randperm(len(points))[: min(256 * count, max(4 * count, 1 << 15))]]
    centroids = sample[:count].clone()
    for _ in range(rounds):
        nearest = _nearest(sample, centroids)
        sums = torch.zeros_like(centroids).index_add_(0, nearest, sample)
        sizes = torch.bincount(nearest, minlength=len(centroids))
        centroids = torch.where((sizes > 0)[:, None], sums / sizes.clamp(min=1)[:, None], centroids)
    return centroids, _nearest(points, centroids)


MOST_COMPARED = 1 << 14
"""Centroids above which a tree finds the nearest one: distances to all of millions of points take hours."""


def _nearest(points: Tensor, centroids: Tensor) -> Tensor:
    if len(centroids) > MOST_COMPARED:
        return torch.from_numpy(KDTree(centroids.numpy()).query(points.numpy())[1])
    halves = centroids.square().sum(1) / 2
    return torch.cat([(halves - part @ centroids.T).argmin(1) for part in torch.split(points, 1 << 14)])


class Clustered(Part):
    """CCE (Tsang and Ahle, NeurIPS 2023): each part of a vector is the sum of a row by a pointer and a row by a hash.

    Pointers are random until half of the training is over. Then the parts are clustered: a pointer leads to the
    centroid that is nearest, the second rows become zero, and their hash another one. Keys share pointers by a hash;
    `rows` are those of each of the two tables of a part, and `columns` the parts of a vector.
    """

    table: Tensor

    def __init__(self, pointers: int, rows: int, dim: int, columns: int, salt: int) -> None:
        super().__init__()
        self.pointers, self.rows, self.columns, self.salt = pointers, rows, columns, salt
        self.first, self.second = (Rows(columns * rows, dim // columns) for _ in range(2))
        self.register_buffer("table", self._by_hash(salt + 1), persistent=False)
        self.by_hash = self._by_hash(salt + 2)
        self.used, self.is_clustered = torch.zeros(pointers, dtype=torch.bool), False

    def _by_hash(self, salt: int) -> Tensor:
        """A random row for each part and pointer `[columns, pointers]`."""
        places, columns = torch.arange(self.pointers), range(self.columns)
        return torch.stack([hashed(places, 1000 * salt + one) % self.rows + one * self.rows for one in columns])

    @property
    def own_bytes(self) -> int:
        return self.columns * self.pointers * pointer_bytes(self.rows)

    def of_pointers(self, places: Tensor) -> Tensor:
        """Vectors `[*places.shape, dim]` of pointers."""
        rows, others = (one[:, places].movedim(0, -1) for one in (self.table, self.by_hash))
        return cast(Tensor, (self.first(rows) + self.second(others)).flatten(-2))

    def forward(self, keys: Tensor) -> Tensor:
        places = hashed(keys, self.salt) % self.pointers
        if self.training:
            self.used[places] = True
        return self.of_pointers(places)

    def after_step(self, done: float, forget: Forget) -> None:
        if done >= 0.5 and not self.is_clustered:
            self.cluster()
            for rows in (self.first, self.second):
                forget(rows.weight, torch.arange(rows.count))

    @torch.no_grad()
    def cluster(self) -> None:
        """Replace pointers and rows."""
        self.is_clustered = True
        places = self.used.nonzero().squeeze(1)
        for column, points in enumerate(self.of_pointers(places).chunk(self.columns, 1)):
            centroids, nearest = k_means(points, self.rows)
            begin = column * self.rows
            self.first.weight[begin : begin + len(centroids)] = centroids
            self.table[column, places] = nearest + begin
        self.second.weight.zero_()
        self.by_hash = self._by_hash(self.salt + 3)


class ProductQuantized(Part):
    """Product quantization (Jégou et al., TPAMI 2011) of a trained table: the parts of vectors are centroids.

    Keys are ascending; `parts` divides the dimension, and `count`, at most 256, are the centroids of a part.
    """

    keys: Tensor
    codes: Tensor

    def __init__(self, keys: Tensor, vectors: Tensor, parts: int, count: int) -> None:
        super().__init__()
        self.register_buffer("keys", keys)
        found = [k_means(part, count) for part in vectors.chunk(parts, 1)]
        self.register_buffer("codes", torch.stack([nearest for _, nearest in found], 1).to(torch.uint8))
        self.count = len(found[0][0])
        self.centroids = Rows(parts * self.count, vectors.shape[1] // parts)
        self.centroids.weight.data[:-1] = torch.cat([centroids for centroids, _ in found])
        self.starts = self.count * torch.arange(parts)

    @property
    def own_bytes(self) -> int:
        return KEY_BYTES * len(self.keys) + self.codes.numel()

    def forward(self, keys: Tensor) -> Tensor:
        place = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        rows = self.codes[place].long() + self.starts
        rows = torch.where((self.keys[place] == keys)[..., None], rows, self.centroids.count)
        return cast(Tensor, self.centroids(rows).flatten(-2))


class SoftThreshold(Part):
    """PEP (Liu et al., ICLR 2021) while it looks for a mask: sign(v) max(|v| - sigmoid(s), 0), with an s for each key.

    Keys are ascending; `start` is the first value of s.
    """

    def __init__(self, keys: Tensor, dim: int, start: float) -> None:
        super().__init__()
        self.table, self.threshold = Keyed(keys, dim), Rows(len(keys), 1, 0.0, start)

    def forward(self, keys: Tensor) -> Tensor:
        places = self.table.places(keys)
        vectors, threshold = self.table.rows(places), torch.sigmoid(self.threshold(places))
        return cast(Tensor, vectors.sign() * (vectors.abs() - threshold).relu())

    @torch.no_grad()
    def margins(self) -> Tensor:
        """|v| - sigmoid(s) `[n, dim]`."""
        return self.table.vectors().abs() - torch.sigmoid(self.threshold.weight[:-1])


class Adaptive(Part):
    """AdaEmbed (Lai et al., OSDI 2023): few rows, for the keys with the largest gradients lately.

    A key's score is the sum of the norms of its vector's gradients, of which each reassignment keeps the share `DECAY`.
    A key without a row has zeros, and gradients of them. `keys` are all of the training, ascending; there are `count`
    rows, and `times` reassignments in a training.
    """

    def __init__(self, keys: Tensor, count: int, dim: int, times: int) -> None:
        super().__init__()
        self.index, self.rows, self.times, self.done = Keyed(keys, 1), Rows(count, dim), times, 0
        self.scores = torch.zeros(len(keys) + 1)
        self.row = torch.full((len(keys) + 1,), count)

    def forward(self, keys: Tensor) -> Tensor:
        places = self.index.places(keys)
        vectors = cast(Tensor, self.rows(self.row[places]))
        if vectors.requires_grad:
            vectors.register_hook(lambda gradient: self._score(places, gradient))  # type: ignore[no-untyped-call]
        return vectors

    def _score(self, places: Tensor, gradient: Tensor) -> None:
        self.scores.index_add_(0, places.flatten(), gradient.norm(dim=-1).flatten())

    def after_step(self, done: float, forget: Forget) -> None:
        if self.done and int(done * self.times) <= int(self.done):  # the first rows are given after the first step
            return
        self.done = max(1, int(done * self.times))
        self.scores[-1] = 0
        best = self.scores.topk(min(self.rows.count, len(self.scores) - 1)).indices
        rows = reassigned(self.row, best[self.scores[best] > 0], self.rows.count)
        self.rows.weight.data[rows] = STD * torch.randn(len(rows), self.rows.width)
        forget(self.rows.weight, rows)
        self.scores *= DECAY

    def served(self) -> Keyed:
        """A table of the keys that have a row."""
        has_row = (self.row[:-1] < self.rows.count).nonzero().squeeze(1)
        table = Keyed(self.index.keys[has_row], self.rows.width)
        table.rows.weight.data[: len(has_row)] = self.rows.weight.data[self.row[has_row]]
        return table


def reassigned(row: Tensor, best: Tensor, count: int) -> Tensor:
    """Give rows to the places `best` and to no others; `row` is the row of each place, or `count`, and changes.

    A place that has a row already keeps it. Returns the rows of the new ones, in the order of `best`.
    """
    is_best = torch.zeros(len(row), dtype=torch.bool)
    is_best[best] = True
    row[~is_best] = count
    new = best[row[best] == count]
    is_free = torch.ones(count + 1, dtype=torch.bool)
    is_free[row[best]] = False
    is_free[count] = False
    rows = is_free.nonzero().squeeze(1)[: len(new)]
    row[new] = rows
    return rows


class HotSketch:
    """The sketch of CAFE: buckets of four keys with a score each; a new key takes over the bucket's least score."""

    def __init__(self, buckets: int, salt: int) -> None:
        self.keys = torch.full((buckets, 4), -1)
        self.scores, self.salt = torch.zeros(buckets, 4), salt

    def add(self, keys: Tensor, scores: Tensor) -> None:
        """Add scores `[n]` of distinct keys `[n]`."""
        bucket = hashed(keys, self.salt) % len(self.keys)
        there = (self.keys[bucket] == keys[:, None]) & (self.scores[bucket] > 0)
        is_there = there.any(1)
        self.scores[bucket[is_there], there[is_there].long().argmax(1)] += scores[is_there]
        keys, scores, bucket = (one[~is_there] for one in (keys, scores, bucket))
        order = bucket.argsort(stable=True)
        keys, scores, bucket = keys[order], scores[order], bucket[order]
        turn = torch.arange(len(bucket)) - torch.searchsorted(bucket, bucket)  # the first of each bucket, the second, …
        for number in range(int(turn.max()) + 1 if len(turn) else 0):
            now = turn == number
            least = self.scores[bucket[now]].argmin(1)
            self.keys[bucket[now], least] = keys[now]
            self.scores[bucket[now], least] += scores[now]

    def best(self, count: int) -> Tensor:
        """The keys of the highest scores, at most `count`."""
        scores, places = self.scores.flatten().topk(min(count, self.scores.numel()))
        return self.keys.flatten()[places[scores > 0]]


class Cafe(Part):
    """CAFE (Zhang et al., SIGMOD 2024): keys with large gradients, found by a sketch, have rows; the others share some.

    There are `count` rows for hot keys, which are chosen `times` in a training.
    """

    keys: Tensor

    def __init__(self, count: int, shared: int, dim: int, times: int, salt: int) -> None:
        super().__init__()
        self.register_buffer("keys", torch.empty(0, dtype=torch.int64))
        self.hot, self.shared, self.times, self.done = Rows(count, dim), Hashing(shared, dim, salt), times, 0
        self.row = torch.empty(0, dtype=torch.int64)
        self.sketch = HotSketch(max(16, count), salt + 1)

    @property
    def own_bytes(self) -> int:
        return KEY_BYTES * self.hot.count

    def forward(self, keys: Tensor) -> Tensor:
        place = torch.searchsorted(self.keys, keys).clamp(max=max(0, len(self.keys) - 1))
        is_hot = self.keys[place] == keys if len(self.keys) else torch.zeros_like(keys, dtype=torch.bool)
        row = torch.where(is_hot, self.row[place], self.hot.count) if len(self.keys) else place + self.hot.count
        shared = self.shared.places(keys)
        vectors = self.hot(row) + self.shared.rows(torch.where(is_hot, self.shared.rows.count, shared))
        if vectors.requires_grad:
            vectors.register_hook(lambda gradient: self._score(keys, gradient))
        return cast(Tensor, vectors)

    def _score(self, keys: Tensor, gradient: Tensor) -> None:
        some, place = distinct(keys)
        norms = gradient.norm(dim=-1).flatten()
        self.sketch.add(some, torch.zeros(len(some)).index_add_(0, place.flatten(), norms))

    @torch.no_grad()
    def after_step(self, done: float, forget: Forget) -> None:
        if self.done and int(done * self.times) <= self.done:
            return
        self.done = max(1, int(done * self.times))
        hot, _ = distinct(self.sketch.best(self.hot.count))
        together, _ = distinct(torch.cat([self.keys, hot]))
        row = torch.full((len(together),), self.hot.count)
        row[torch.searchsorted(together, self.keys)] = self.row
        best = torch.searchsorted(together, hot)
        new = best[row[best] == self.hot.count]
        first = self.shared(together[new])
        rows = reassigned(row, best, self.hot.count)
        self.hot.weight.data[rows] = first
        forget(self.hot.weight, rows)
        self.keys, self.row = hot, row[best]
        self.sketch.scores *= DECAY
