"""Numbers as a network takes them: standardized, and in buckets, each with a vector."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from sparsegroup.kernels.cpu.jit import kernel
from sparsegroup.kernels.step import NUMPY_DTYPES, array_of
from sparsegroup.models.layers import RunningStatistics
from sparsegroup.tensors import is_traced, untraced

LIMIT = 10.0
"""Standard deviations from the mean beyond which a number counts as that far."""

_RESOLUTION = 1e-7
"""A float32's, relative to it: what varies less is constant."""

_HEAVY = 6.0
"""Kurtosis above which tails are heavy: that of a Laplace distribution; a normal one's is 3."""

_LIGHTER = 0.9
"""By which factor the logarithm must lower the kurtosis to be taken."""


def _encode(
    numbers: Any, edges: Any, signed_log: Any, unit: Any, mean: Any, spread: Any, reach: Any, limit: Any,
    embedding: Any, standardized: Any, places: Any, vectors: Any, moments: Any,
) -> None:  # fmt: skip
    missing = edges.shape[1] + 1
    moments[:] = 0.0
    for row in range(numbers.shape[0]):
        for column in range(numbers.shape[1]):
            number = numbers[row, column]
            bucket, value = missing, 0.0
            if not math.isnan(number):
                bucket = 0
                for edge in range(edges.shape[1]):
                    bucket += number > edges[column, edge]
                value = float(number)
                if signed_log[column]:
                    value = math.copysign(math.log(abs(value) / unit[column] + 1.0), value)
                value -= mean[column]
                if math.isfinite(value):
                    away = min(max(value, -reach[column]), reach[column])
                    moments[0, column] += 1.0
                    moments[1, column] += away
                    moments[2, column] += away * away
                value = min(max(value / spread[column], -limit), limit)
            standardized[row, column] = value
            place = column * (missing + 1) + bucket
            places[row, column] = place
            for element in range(embedding.shape[1]):
                vectors[row, column, element] = embedding[place, element]
    for column in range(mean.shape[0]):
        from_mean = moments[1, column] / max(moments[0, column], 1.0)
        moments[2, column] = max(moments[2, column] - from_mean * moments[1, column], 0.0)
        moments[1, column] = mean[column] + from_mean


_encode_kernel = kernel(_encode, "the encoding of numbers")
"""Write what `NumberEncoder` makes of `numbers` `[batch, n]`: `standardized`, and `vectors` `[batch, n, dim]`, the rows
of `embedding` `[n × (buckets + 1), dim]` at `places`. And the batch's `moments` `[3, n]`: beyond `reach` of `mean` a
number counts as one there."""


def _add_by_place(gradients: Any, places: Any, sums: Any) -> None:
    for row in range(places.shape[0]):
        for column in range(places.shape[1]):
            for element in range(sums.shape[1]):
                sums[places[row, column], element] += gradients[row, column, element]


_add_by_place_kernel = kernel(_add_by_place, "the gradient of numbers' buckets")
"""Add `gradients` `[batch, n, dim]` to the rows `[rows, dim]` of `sums` at `places`, in the order of the batch."""


class _Encoded(torch.autograd.Function):
    """What an encoder makes of numbers on the CPU, by compiled kernels; also the moments of the batch."""

    @staticmethod
    def forward(ctx: Any, embedding: Tensor, numbers: Tensor, encoder: "NumberEncoder") -> tuple[Tensor, ...]:
        standardized, places = torch.empty_like(numbers), torch.empty(numbers.shape, dtype=torch.int64, device="cpu")
        vectors, moments = embedding.new_empty(*numbers.shape, encoder.dim), torch.empty_like(encoder.of_batch)
        spread, reach = encoder._spread(1.0), LIMIT * encoder._spread(torch.inf)
        scales = (encoder.signed_log, encoder.unit, encoder.mean, spread, reach)
        _encode_kernel(
            *map(array_of, (numbers, encoder.edges, *scales)), LIMIT, array_of(embedding.flatten(0, 1)),
            *map(array_of, (standardized, places, vectors, moments)),
        )  # fmt: skip
        ctx.save_for_backward(places)
        ctx.shape = embedding.shape
        ctx.mark_non_differentiable(standardized, moments)
        return standardized, vectors, moments

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (places,), gradient = ctx.saved_tensors, gradients[1]
        sums = gradient.new_zeros(math.prod(ctx.shape[:2]), ctx.shape[2])
        if torch.is_grad_enabled():  # for second derivatives
            sums = sums.index_add(0, places.flatten(), gradient.flatten(0, 1))
        else:
            _add_by_place_kernel(*map(array_of, (gradient.resolve_neg().contiguous(), places, sums)))
        return sums.view(ctx.shape), None, None


class NumberEncoder(RunningStatistics):
    """Raw numbers → standardized ones, and vectors of quantile buckets.

    A number x becomes (t(x) - m) / s, cut off at ±10, 0 where it is missing. t is sign(x) log(1 + |x| / unit) in a
    column with heavy tails, else the identity; m and s are the mean and standard deviation of all t(x) that training
    has seen, merged batch by batch (Chan, Golub and LeVeque, 1979) after the batch has been used; where a `Trainer`
    trains on several ranks, of all ranks' rows. Evaluation changes nothing. A constant column is 0.

    x also falls into one of up to `buckets` buckets, each with about as many numbers, or into one for missing
    ones; its vector is learned. A frequent value has a separate bucket.

    All that comes of data is in buffers, so in checkpoints and exports.

    Args:
        numbers: How many columns, n.
        dim: Length of a bucket's vector.
        buckets: How many buckets a column has, not counting the bucket of missing numbers; 0 for none.
        standardize: Whether to standardize; if not, numbers are passed unchanged, missing ones as 0.

    Attributes:
        is_fitted: Whether buckets and first moments have been set, by `fit` or by the first batch of training.

    Raises:
        ValueError: One of the sizes is out of range.

    Examples:
        >>> import torch
        >>> from sparsegroup.models import NumberEncoder
        >>> encoder = NumberEncoder(numbers=2, dim=4, buckets=8)
        >>> encoder.fit(torch.tensor([[18.0, 0.5], [30.0, 0.1], [42.0, float("nan")]]))
        >>> standardized, vectors = encoder.eval()(torch.tensor([[30.0, float("nan")]]))
        >>> standardized, vectors.shape
        (tensor([[0., 0.]]), torch.Size([1, 2, 4]))
    """

    signed_log: Tensor
    unit: Tensor
    count: Tensor
    mean: Tensor
    m2: Tensor
    edges: Tensor
    first: Tensor
    fitted: Tensor

    def __init__(self, numbers: int, dim: int, buckets: int = 32, standardize: bool = True) -> None:
        super().__init__(numbers if standardize else 0)
        for name, size, least in (("numbers", numbers, 1), ("dim", dim, 1), ("buckets", buckets, 0)):
            if size < least:
                raise ValueError(f"{name} must be >= {least}, got {size}")
        self.numbers, self.dim, self.buckets, self.standardize = numbers, dim, buckets, standardize
        self.is_fitted = False
        self.register_buffer("fitted", torch.tensor(False))
        if standardize:
            self.register_buffer("signed_log", torch.zeros(numbers, dtype=torch.bool))
            self.register_buffer("unit", torch.ones(numbers, dtype=torch.float64))
            for name in ("count", "mean", "m2"):
                self.register_buffer(name, torch.zeros(numbers, dtype=torch.float64))
        if buckets:
            self.register_buffer("edges", torch.full((numbers, buckets - 1), torch.inf))
            self.register_buffer("first", torch.tensor([n * (buckets + 1) for n in range(numbers)]), persistent=False)
            self.embedding = nn.Parameter(torch.empty(numbers, buckets + 1, dim).normal_(std=0.01))
        self.register_load_state_dict_post_hook(_note_whether_fitted)  # type: ignore[no-untyped-call]

    def forward(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers `[batch, n]` float32, NaN where missing, as standardized ones `[batch, n]` and vectors.

        Vectors are `[batch, n, dim]`; `[batch, 0, dim]` without buckets. In training mode the moments are updated
        afterwards; where `fit` has not been called, the first batch is the sample.

        Raises:
            ValueError: Another shape.
        """
        if numbers.ndim != 2 or numbers.shape[1] != self.numbers:
            raise ValueError(f"numbers must be [batch, {self.numbers}], got {list(numbers.shape)}")
        update = self.training and self.is_fitted and self.standardize
        if self.training and not self.is_fitted:
            self.fit(numbers)
        if self._has_kernels(numbers):
            given = numbers.detach().resolve_neg().contiguous()
            found = _Encoded.apply(self.embedding, given, self)  # type: ignore[no-untyped-call]
        else:
            found = self._encoded(numbers, update)
        standardized, vectors, moments = found
        if update:
            if self.is_shared:
                self.of_batch.copy_(moments)
            else:
                self.follow(*moments)
        return standardized, vectors

    @torch.no_grad()
    @untraced
    def fit(self, sample: Tensor) -> None:
        """Set which columns are taken the logarithm of, the buckets, and the first moments.

        Args:
            sample: `[rows, n]`, NaN where missing; the first rows of a log, say.

        Raises:
            ValueError: Another shape.
        """
        if sample.ndim != 2 or sample.shape[1] != self.numbers:
            raise ValueError(f"sample must be [rows, {self.numbers}], got {list(sample.shape)}")
        for place, column in enumerate(sample.detach().double().cpu().unbind(1)):
            values = column[column.isfinite()].sort().values
            if self.standardize:
                self.signed_log[place] = has_heavy_tails(values)
                self.unit[place] = log_unit(values)
            if self.buckets:
                edges = bucket_edges(values, self.buckets)
                self.edges[place] = torch.inf
                self.edges[place, : len(edges)] = edges.to(self.edges)
        if self.standardize:
            for moment in (self.count, self.mean, self.m2):
                moment.zero_()
            self.follow(*self._moments(self._transformed(sample.to(self.mean))))
        self.fitted.fill_(True)
        self.is_fitted = True

    @torch.no_grad()
    def means(self) -> Tensor:
        """The numbers `[n]` float64 that become 0, t⁻¹(m); NaN, which also does, if it does not standardize."""
        if not self.standardize:
            return self.of_batch.new_full((self.numbers,), torch.nan)
        return torch.where(self.signed_log, self.mean.sign() * self.unit * self.mean.abs().expm1(), self.mean)

    def _has_kernels(self, numbers: Tensor) -> bool:
        if not (self.buckets and self.standardize) or numbers.device.type != "cpu" or is_traced():
            return False
        return numbers.dtype in NUMPY_DTYPES and numbers.dtype == self.edges.dtype == self.embedding.dtype

    def _encoded(self, numbers: Tensor, with_moments: bool) -> tuple[Tensor, Tensor, Tensor]:
        """As `_Encoded`, by torch's operators; the moments are empty unless they are needed."""
        missing = numbers.isnan()
        vectors, moments = self._vectors(numbers.detach(), missing), self.of_batch[:0]
        if not self.standardize:
            return torch.where(missing, 0.0, numbers), vectors, moments
        transformed = self._transformed(numbers.detach().double())
        if with_moments:
            moments = self._moments(transformed)
        standardized = ((transformed - self.mean) / self._spread(1.0)).clamp(-LIMIT, LIMIT)
        return torch.where(missing, 0.0, standardized).to(numbers.dtype), vectors, moments

    def _vectors(self, numbers: Tensor, missing: Tensor) -> Tensor:
        if not self.buckets:
            return numbers.new_zeros(numbers.shape[0], 0, self.dim)
        above = (numbers.unsqueeze(2) > self.edges).sum(2)
        bucket = torch.where(missing, self.buckets, above) + self.first
        rows = self.embedding.flatten(0, 1).index_select(0, bucket.flatten())
        return rows.view(-1, self.numbers, self.dim)

    def _transformed(self, numbers: Tensor) -> Tensor:
        """t of float64 numbers."""
        logs = numbers.sign() * (numbers.abs() / self.unit + 1).log()
        return torch.where(self.signed_log, logs, numbers)

    def _spread(self, of_constant: float) -> Tensor:
        """The standard deviation s of each column."""
        deviation = (self.m2 / self.count.clamp(min=1)).sqrt()
        return torch.where(deviation > _RESOLUTION * self.mean.abs(), deviation, of_constant)

    @torch.no_grad()
    def _moments(self, transformed: Tensor) -> Tensor:
        """Moments `[3, n]` of a batch; a number beyond ±10 s counts as one there, so that none carries them away."""
        known = transformed.isfinite()
        reach = LIMIT * self._spread(torch.inf)
        values = torch.where(known, transformed, 0.0).clamp(self.mean - reach, self.mean + reach)
        count = known.sum(0).double()
        mean = torch.where(known, values, 0.0).sum(0) / count.clamp(min=1)
        return torch.stack([count, mean, torch.where(known, values - mean, 0.0).square().sum(0)])

    @torch.no_grad()
    def follow(self, count: Tensor, mean: Tensor, m2: Tensor) -> None:
        """See `RunningStatistics`."""
        total = (self.count + count).clamp(min=1)
        delta = mean - self.mean
        self.m2 += m2 + delta.square() * self.count * count / total
        self.mean += delta * count / total
        self.count += count


class WithNumbers(nn.Module):
    """A network that takes raw numbers: a `NumberEncoder` before it.

    Args:
        encoder: Encodes the numbers.
        network: A network of `sparsegroup.models` or another; if the encoder has buckets, each number is one more of
            its fields, after the categorical ones.
    """

    def __init__(self, encoder: NumberEncoder, network: nn.Module) -> None:
        super().__init__()
        self.encoder, self.network = encoder, network

    def forward(self, embeddings: Tensor, numbers: Tensor | None = None) -> Tensor:
        """Logits `[batch]` of embeddings `[batch, fields, dim]` and raw numbers `[batch, numbers]`, NaN where missing.

        Raises:
            ValueError: No numbers, or as the network.
        """
        logits: Tensor = self.network(*self.encoded(embeddings, numbers))
        return logits

    def encoded(self, embeddings: Tensor, numbers: Tensor | None) -> tuple[Tensor, Tensor]:
        """What the network takes of them, see `forward`."""
        if numbers is None:
            raise ValueError(f"numbers must be [{embeddings.shape[0]}, {self.encoder.numbers}], got None")
        standardized, vectors = self.encoder(numbers)
        joined = torch.cat([embeddings, vectors.to(embeddings.dtype)], dim=1) if self.encoder.buckets else embeddings
        return joined, standardized


def _note_whether_fitted(module: nn.Module, _: Any) -> None:
    assert isinstance(module, NumberEncoder)
    module.is_fitted = bool(module.fitted)


def has_heavy_tails(values: Tensor) -> bool:
    """Whether the kurtosis E[(x - m)⁴] / s⁴ of finite float64 values is above 6, and their logarithm's is lower."""
    before = _kurtosis(values)
    return before > _HEAVY and _kurtosis(values.sign() * (values.abs() / log_unit(values)).log1p()) < _LIGHTER * before


def log_unit(values: Tensor) -> float:
    """The unit of the signed logarithm: 1, or where a column is smaller, the 5 % quantile of |x| other than 0."""
    sizes = values.abs()
    sizes = sizes[sizes > 0].sort().values
    return min(1.0, float(sizes[len(sizes) // 20])) if len(sizes) else 1.0


def bucket_edges(values: Tensor, buckets: int) -> Tensor:
    """Where to cut finite, ascending float64 values into at most `buckets` buckets of about equal counts.

    Few different values have a bucket each. Of many, a frequent one, which fills a bucket, has it for itself, and the
    others share the remaining buckets. The edges `[e]` ascend, e < `buckets`: x is in bucket #{e : x > e}. An edge is
    midway between two values.
    """
    distinct, counts = torch.unique_consecutive(values, return_counts=True)
    if len(distinct) > buckets:
        weight = counts.double()
        for _ in range(buckets):  # capping a frequent value leaves smaller shares to the others
            capped = weight.clamp(max=float(weight.sum()) / buckets)
            if torch.equal(capped, weight):
                break
            weight = capped
        middle = weight.cumsum(0) - weight / 2
        place = (middle / weight.sum() * buckets).floor()
        last = place.diff().nonzero().squeeze(1)
    else:
        last = torch.arange(max(len(distinct) - 1, 0))
    edges: Tensor = distinct[last] + (distinct[last + 1] - distinct[last]) / 2
    return edges


def _kurtosis(values: Tensor) -> float:
    if not len(values):
        return 0.0
    size = float(values.abs().max())
    scaled = values / size if size else values  # so that fourth powers neither overflow nor vanish
    apart = scaled - scaled.mean()
    variance = float(apart.square().mean())
    return float(apart.pow(4).mean()) / variance**2 if variance > 1e-14 else 0.0
