"""The contestants at equal served bytes: how each is sized to a budget, trained and served, and what it took."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import process_time
from typing import Any, cast

import torch
from torch import Tensor, nn

from sparsegroup_paper.equal_bytes.embeddings import (
    Adaptive,
    Cafe,
    Clustered,
    DeepHash,
    Hashing,
    Memcom,
    ProductQuantized,
    Projected,
    QuotientRemainder,
    Robe,
    SoftThreshold,
    TensorTrain,
)
from sparsegroup_paper.equal_bytes.ours import VARIANTS
from sparsegroup_paper.equal_bytes.parts import (
    BLOCK,
    KEY_BYTES,
    SCALE_BYTES,
    Keyed,
    Layer,
    Part,
    Precision,
    Shares,
    TooSmallError,
    divisor,
    factors,
    number_bytes,
    pointer_bytes,
    row_bytes,
)
from sparsegroup_paper.equal_bytes.training import Served, Task, Training
from sparsegroup_paper.pruning import checkpoint
from sparsegroup_paper.runs import Compact

Trained = Iterator[tuple[Compact, Served | None]]
"""Each of some methods with its model; None if it cannot be so small."""

Build = Callable[[Task, Compact, int], nn.Module]
"""From a task, a method and its budget in bytes to an embedding to train."""

HOT_CHOICES = 20
"""How often in a training CAFE chooses its hot keys."""

MOST_RANK, MOST_HIDDEN = 32, 256
"""The largest rank of a tensor train, and the most hidden units of a layer of DHE."""


@dataclass(frozen=True)
class Contestant:
    """A method of the contest.

    Attributes:
        train: Trains it by each of some methods of one setting.
        words: What it took: how it is sized, served and counted.
        settings: Values of its main setting that are tried; none if it has no such setting.
        setting: The main setting in words.
        shared: A name for the training that several runs share; None if each has its own.
        changes: Settings of its config that are fixed. Nothing is tried for a contestant with some.
        precisions: In which it is served.
        by_share: Whether it has several sizes.
    """

    train: Callable[[Task, Sequence[Compact]], Trained]
    words: str
    settings: tuple[float, ...] = ()
    setting: str = ""
    shared: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    precisions: tuple[Precision, ...] = ("float32", "int8")
    by_share: bool = True

    @property
    def is_ours(self) -> bool:
        """Whether it is a recipe of this library, which is run unchanged."""
        return bool(self.changes)


def _each(build: Build) -> Callable[[Task, Sequence[Compact]], Trained]:
    """Train the methods one after the other, without sharing anything."""

    def train(task: Task, methods: Sequence[Compact]) -> Trained:
        for method in methods:
            try:
                training = Training(task, partial(build, task, method, task.budget(method.share)))
            except TooSmallError:
                yield method, None
                continue
            training.fit(0, task.stop)
            embedding = training.embedding
            kept = embedding.served() if isinstance(embedding, Adaptive) else None
            yield method, training.serve(method.precision, kept)

    return train


def _setting(method: Compact) -> float:
    assert method.setting is not None
    return method.setting


# Tables by key


def _some(count: int, most: str = "row") -> int:
    if count < 1:
        raise TooSmallError(f"the budget holds no {most}")
    return count


def _smaller_dimension(task: Task, method: Compact, budget: int) -> nn.Module:
    small = max(1, round(_setting(method) * task.dim))
    budget -= Layer.bytes_of(small, task.dim, method.precision, bias=False)
    return Projected(task.most_frequent(_some(task.rows_in(budget, method.precision, small))), small, task.dim)


def _cut_off(task: Task, method: Compact, budget: int) -> nn.Module:
    fields = len(task.log.fields)
    count = task.rows_in(budget - fields * row_bytes(task.dim, method.precision), method.precision)
    return Keyed(task.most_frequent(_some(count)), task.dim, fields)


def _adaptive(task: Task, method: Compact, budget: int) -> nn.Module:
    return Adaptive(task.keys, _some(task.rows_in(budget, method.precision)), task.dim, int(_setting(method)))


def _whole(task: Task) -> tuple[Training, Keyed]:
    """The training of a full table, and the table."""
    training = Training(task, lambda: Keyed(task.keys, task.dim))
    return training, cast(Keyed, training.embedding)


def _full(task: Task, methods: Sequence[Compact]) -> Trained:
    """The full table, and product quantization of it."""
    training, table = _whole(task)
    training.fit(0, task.stop)
    for method in methods:
        if method.name == FULL:
            yield method, training.serve(method.precision, table.kept(torch.arange(len(table.keys))))
            continue
        budget, parts = task.budget(method.share), divisor(task.dim, _setting(method))
        count, of_rows = 256, parts * row_bytes(task.dim // parts, method.precision)
        while count * of_rows > budget / 4 and count > 1:
            count //= 2
        kept = min(len(table.keys), (budget - count * of_rows) // (KEY_BYTES + parts))
        if kept < 1:
            yield method, None
            continue
        begin, seconds = process_time(), training.seconds
        rows = _largest(table.vectors().norm(dim=1), kept)
        torch.manual_seed(task.config.training.seed)
        embedding = ProductQuantized(table.keys[rows], table.vectors()[rows], parts, count)
        training.seconds += process_time() - begin
        yield method, training.serve(method.precision, embedding)
        training.seconds = seconds


def _largest(scores: Tensor, count: int) -> Tensor:
    """Numbers of the largest scores, ascending."""
    return scores.argsort(descending=True, stable=True)[:count].sort().values


def element_mask(scores: Tensor, budget: int, precision: Precision) -> Tensor:
    """The elements `[n, dim]` of the largest scores that fit; a row with some has a key, a bitmap and a scale."""
    rows, dim = scores.shape
    order = scores.flatten().argsort(descending=True, stable=True)
    first = torch.full((rows,), len(order)).scatter_reduce(0, order // dim, torch.arange(len(order)), "amin")
    is_new = torch.zeros(len(order), dtype=torch.int64)
    is_new[first] = 1
    number, of_row = (4, 0) if precision == "float32" else (1, SCALE_BYTES)
    size = number * torch.arange(1, len(order) + 1) + is_new.cumsum(0) * (KEY_BYTES + of_row + -(-dim // 8))
    mask = torch.zeros(len(order), dtype=torch.bool)
    mask[order[: int((size <= budget).sum())]] = True
    return mask.view(rows, dim)


def _pruned(task: Task, methods: Sequence[Compact]) -> Trained:
    """Magnitude pruning of rows or elements, the last batches for fine-tuning, and pruning again."""
    size = task.config.training.batch_size
    mark = round((1 - _setting(methods[0])) * task.stop / size) * size
    training, table = _whole(task)
    training.fit(0, mark)
    restore, seconds = checkpoint(training.model, *training.optimizers), training.seconds

    def mask_of(method: Compact) -> Tensor:
        budget, vectors = task.budget(method.share), table.vectors()
        if method.name == PRUNED_ELEMENTS:
            return element_mask(vectors.abs(), budget, method.precision)
        mask = torch.zeros(vectors.shape, dtype=torch.bool)
        mask[_largest(vectors.norm(dim=1), task.rows_in(budget, method.precision))] = True
        return mask

    for method in methods:
        if not bool((mask := mask_of(method)).any()):
            yield method, None
            continue
        table.vectors().mul_(mask)
        training.fit(mark, task.stop)
        mask = mask_of(method)
        rows = mask.any(1).nonzero().squeeze(1)
        kept = table.kept(rows, mask if method.name == PRUNED_ELEMENTS else None)
        yield method, training.serve(method.precision, kept)
        restore()
        training.seconds = seconds


def _pep(task: Task, methods: Sequence[Compact]) -> Trained:
    """A pass that finds the mask, and for each budget another from the first values on."""
    start = _setting(methods[0])
    search = Training(task, lambda: SoftThreshold(task.keys, task.dim, start))
    search.fit(0, task.stop)
    margins = cast(SoftThreshold, search.embedding).margins()
    for method in methods:
        mask = element_mask(margins, task.budget(method.share), method.precision)
        if not bool(mask.any()):
            yield method, None
            continue
        rows = mask.any(1).nonzero().squeeze(1)
        training = Training(task, lambda: Keyed(task.keys, task.dim).kept(rows, mask))  # noqa: B023
        training.fit(0, task.stop)
        training.seconds += search.seconds
        served = training.serve(method.precision)
        yield method, Served(served.model, served.bytes, max(served.peak_bytes, search.peak_bytes), served.seconds)


# Tables by hash


def _hashing(task: Task, method: Compact, budget: int) -> nn.Module:
    row = row_bytes(task.dim, method.precision)
    return task.by_field(budget, method.precision, row, lambda shares: Hashing(shares.size // row, task.dim, task.salt))


def _quotient_remainder(task: Task, method: Compact, budget: int) -> nn.Module:
    row = row_bytes(task.dim, method.precision)

    def rest(shares: Shares) -> Part:
        count = shares.size // row
        enough = next((one for one in range(1, count) if one * (count - one) >= shares.features), count // 2)
        quotients = max(1, min(int(_setting(method) * count) or enough, count - 1))
        return QuotientRemainder(count - quotients, quotients, task.dim, task.salt)

    return task.by_field(budget, method.precision, 2 * row, rest)


def _memcom(task: Task, method: Compact, budget: int) -> nn.Module:
    row, number = row_bytes(task.dim, method.precision), number_bytes(method.precision)

    def rest(shares: Shares) -> Part:
        vectors = max(1, int((1 - _setting(method)) * shares.size) // row)
        return Memcom(vectors, int((shares.size - row * vectors) / number), task.dim, task.salt)

    return task.by_field(budget - SCALE_BYTES, method.precision, row + int(2 * number), rest)


def _robe(task: Task, method: Compact, budget: int) -> nn.Module:
    chunk, number = divisor(task.dim, _setting(method)), number_bytes(method.precision)
    least = int(task.dim * number) + 1

    def rest(shares: Shares) -> Part:
        return Robe(int(shares.size / number), task.dim, chunk, task.salt)

    return task.by_field(budget - SCALE_BYTES, method.precision, least, rest)


def _deep_hash(task: Task, method: Compact, budget: int) -> nn.Module:
    def sizes(hidden: int) -> tuple[int, int, int]:
        return max(4, int(_setting(method) * hidden)), hidden, task.dim

    def rest(shares: Shares) -> Part:
        hidden = 2
        while hidden < MOST_HIDDEN and DeepHash.bytes_of(*sizes(hidden + 1), method.precision) <= shares.size:
            hidden += 1
        return DeepHash(*sizes(hidden), task.salt)

    return task.by_field(budget, method.precision, DeepHash.bytes_of(*sizes(2), method.precision), rest)


def _tensor_train(task: Task, method: Compact, budget: int) -> nn.Module:
    first = divisor(task.dim, round(task.dim ** (1 / 3)))
    second = divisor(task.dim // first, round((task.dim / first) ** 0.5))
    dims = first, second, task.dim // first // second

    def size(sizes: Sequence[int], rank: int) -> int:
        rows = [row_bytes(width, method.precision) for width in TensorTrain.widths(dims, rank)]
        return sum(count * row for count, row in zip(sizes, rows, strict=True))

    def rest(shares: Shares) -> Part:
        space = _setting(method) * shares.features
        while size(factors(space), 1) > shares.size:
            space /= 2
        sizes = factors(space)
        rank = max(one for one in range(1, MOST_RANK + 1) if size(sizes, one) <= shares.size)
        return TensorTrain(sizes, dims, rank, task.salt)

    return task.by_field(budget, method.precision, size((1, 1, 1), 1), rest)


def _clustered(task: Task, method: Compact, budget: int) -> nn.Module:
    columns = divisor(task.dim, _setting(method))
    of_rows = 2 * columns * row_bytes(task.dim // columns, method.precision)

    def rest(shares: Shares) -> Part:
        rows = max(1, shares.size // 2 // of_rows)
        pointer = columns * pointer_bytes(rows)
        pointers = max(1, min(shares.features, (shares.size - rows * of_rows) // pointer))
        more = (shares.size - pointers * pointer) // of_rows
        rows = more if pointer_bytes(more) == pointer_bytes(rows) else rows
        return Clustered(pointers, rows, task.dim, columns, task.salt)

    return task.by_field(budget, method.precision, of_rows + 4 * columns, rest)


def _cafe(task: Task, method: Compact, budget: int) -> nn.Module:
    row = row_bytes(task.dim, method.precision)

    def rest(shares: Shares) -> Part:
        shared = max(1, int((1 - _setting(method)) * shares.size) // row)
        hot = (shares.size - row * shared) // (KEY_BYTES + row)
        return Cafe(_some(hot, "hot row"), shared, task.dim, HOT_CHOICES, task.salt)

    return task.by_field(budget, method.precision, row, rest)


FULL, PRUNED_ROWS, PRUNED_ELEMENTS = "Full table", "Pruned rows", "Pruned elements"

_BY_FIELD = (
    "Fields whose keys fit into an even part of the bytes have an exact table, with 8 bytes a key; others share one."
)

CONTESTANTS: Mapping[str, Contestant] = {
    FULL: Contestant(
        _full,
        "A row for each feature of the training, and its key; zeros for unknown features. It has no budget: its points "
        "are what the others are measured against.",
        shared="full",
        by_share=False,
    ),
    "Smaller dimension": Contestant(
        _each(_smaller_dimension),
        "Vectors of fewer numbers and a learned matrix from them to the network's dimension, so that the network is "
        "the same. Keys alone take more than most budgets, so only the most frequent features have rows.",
        (0.125, 0.25, 0.5, 0.75),
        "share of the dimension",
    ),
    "Frequency cut-off": Contestant(
        _each(_cut_off),
        "Rows of the most frequent features, which a pass before the training counts, and a vector per field that "
        "the others share.",
    ),
    PRUNED_ROWS: Contestant(
        _pruned,
        "Trained with a full table; then the rows of the largest norm stay and the others become zero. Fine-tuning on "
        "the last batches changes all of them, so that features that come later come in; then the largest stay again.",
        (0.1, 0.2, 0.3, 0.5),
        "share of the batches for fine-tuning",
        shared="pruned",
    ),
    PRUNED_ELEMENTS: Contestant(
        _pruned,
        "As pruned rows, by single numbers: a row with some has its key and a bitmap of them.",
        (0.1, 0.2, 0.3, 0.5),
        "share of the batches for fine-tuning",
        shared="pruned",
    ),
    "PEP": Contestant(
        _pep,
        "A first pass learns a soft threshold for each feature. The numbers furthest above their threshold, as many as "
        "fit, are trained from their first values in a second pass: its time is that of both. Served as pruned "
        "elements. The paper trains until the thresholds meet the budget; a single pass is too short for that.",
        (-5.0, -6.0, -8.0, -12.0),
        "first s of the threshold sigmoid(s)",
        shared="pep",
    ),
    "AdaEmbed": Contestant(
        _each(_adaptive),
        "Its score, the decayed sum of gradient norms, of every feature of the training; a fixed number of rows goes "
        "to the highest ones. Scores and the index of all features count for the training's memory, keys and rows are "
        "served.",
        (5, 10, 20, 50),
        "reassignments in the pass",
    ),
    "Hashing trick": Contestant(_each(_hashing), f"One row by a hash of the key. {_BY_FIELD}"),
    "QR": Contestant(
        _each(_quotient_remainder),
        "The product of two rows, by remainder and quotient. The paper's are of numbers in a vocabulary, which would "
        "take 8 bytes a key; here they are of a hash, so that few features are alike, not none. 0 is the paper's "
        f"least number of quotients. {_BY_FIELD}",
        (0.0, 0.125, 0.25, 0.5),
        "share of the rows for quotients",
    ),
    "MEmCom": Contestant(
        _each(_memcom),
        "A row by a hash, times a number. The paper's number belongs to one feature alone, and those take more than "
        f"most budgets: here it is found by a second hash. {_BY_FIELD}",
        (0.1, 0.25, 0.5, 0.75),
        "share of the bytes for the numbers",
    ),
    "ROBE": Contestant(
        _each(_robe),
        f"Chunks of a vector from one array, each from a hash on; in int8 {BLOCK} numbers share a scale. {_BY_FIELD}",
        (1, 2, 4, 8),
        "numbers in a chunk",
    ),
    "DHE": Contestant(
        _each(_deep_hash),
        "Hashes of the key through two hidden layers with Mish, without the paper's batch normalization, of at most "
        f"{MOST_HIDDEN} units, which are all that is served. {_BY_FIELD}",
        (1, 2, 4, 8),
        "hashes for each hidden unit",
    ),
    "TT-Rec": Contestant(
        _each(_tensor_train),
        f"Three cores, whose rank, {MOST_RANK} at most, is the largest that fits. The number that is cut into three is "
        f"a hash, in a space as large as the features, or larger. {_BY_FIELD}",
        (1, 2, 4, 8),
        "size of the space, relative to the features",
    ),
    "CCE": Contestant(
        _each(_clustered),
        "Half of the bytes are pointers, which keys share by a hash where the features do not all fit, and half are "
        f"rows; parts are clustered once, in the middle of the pass. {_BY_FIELD}",
        (1, 2, 4, 8),
        "parts of a vector",
    ),
    "CAFE": Contestant(
        _each(_cafe),
        "A sketch of gradient norms finds hot keys, which have a key and a row; the others share rows by a hash. The "
        f"sketch counts for the training's memory and is not served. {_BY_FIELD}",
        (0.3, 0.5, 0.7, 0.9),
        "share of the bytes for hot rows",
    ),
    "Product quantization": Contestant(
        _full,
        "Codes of the rows of a trained full table that have the largest norms and fit with their keys, and 256 "
        "centroids a part, or fewer where these would take more than a quarter of the budget. Nothing is trained "
        "after it.",
        (1, 2, 4, 8),
        "parts of a vector",
        shared="full",
    ),
    **{
        name: Contestant(
            one.train, one.words, changes=one.changes, precisions=("float32" if one.dtype == "float32" else "int8",)
        )
        for name, one in VARIANTS.items()
    },
}
"""All of them, and the variants of this library."""


def shared_training(method: Compact) -> str | None:
    """A name that methods have in common which share a training, as far as configs agree; None without such."""
    shared = CONTESTANTS[method.name].shared
    return None if shared is None else f"{shared} {method.setting if shared != 'full' else ''}"


def contest(task: Task, methods: Sequence[Compact]) -> Trained:
    """Train and serve methods that share a training, or one."""
    return CONTESTANTS[methods[0].name].train(task, methods)
