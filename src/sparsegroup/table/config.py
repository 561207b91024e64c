"""The settings of a table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps
from inspect import signature
from numbers import Real
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from sparsegroup.errors import did_you_mean
from sparsegroup.kernels.cpu.rows import has_float16
from sparsegroup.kernels.gpu import runtime
from sparsegroup.kernels.step import NUMPY_DTYPES, compute_dtype
from sparsegroup.table.directory.admission import HIGHEST, AdmissionPolicy, EveryKey
from sparsegroup.table.directory.buckets import MOST_ROWS
from sparsegroup.table.directory.eviction import EvictionPolicy, RankingPolicy, Unit
from sparsegroup.table.lookup.kernels import Init

Constructor = TypeVar("Constructor", bound=Callable[..., None])

_SCRATCH = 256 << 20
_SMALLEST, _LARGEST = float(np.finfo(np.float64).tiny), float(np.finfo(np.float64).max)

_SKETCHED = 16
"""A table of limited bytes counts occurrences in so small a part of them."""


@dataclass(frozen=True)
class TableConfig:
    """The arguments of a `HashEmbedding`, checked: ValueError or TypeError for one out of range."""

    dim: int
    std: float
    init: Init
    seed: int
    max_rows: int
    field_bits: int
    nonfinite: Literal["raise", "skip"]
    huge_pages: bool
    weight_dtype: torch.dtype
    device: torch.device
    admission: AdmissionPolicy
    eviction: EvictionPolicy
    max_bytes: int | None
    ranking: RankingPolicy | None
    has_fallback: bool
    max_norm: float | None
    norm_type: float

    def __post_init__(self) -> None:
        check_int("dim", self.dim, 1, 1 << 20)
        check_int("seed", self.seed, 0, (1 << 64) - 1)
        check_int("field_bits", self.field_bits, 0, 16)
        check_int("max_rows", self.max_rows, 1, MOST_ROWS)
        for name, base in (("admission", AdmissionPolicy), ("eviction", EvictionPolicy), ("ranking", RankingPolicy)):
            if not isinstance(policy := getattr(self, name), base) and (name, policy) != ("ranking", None):
                kind = base.__name__
                raise TypeError(f"{name} must be of a class derived from sparsegroup.table.{kind}, got {policy!r}")
        if self.max_bytes is not None:
            self.admission.check_counts(HIGHEST)
        if self.ranking is not None and self.max_bytes is None:
            raise ValueError("ranking says which rows go first where max_bytes is reached; also give max_bytes")
        self._check_numbers()
        if self.init not in get_args(Init):
            raise ValueError(f"init must be 'normal' or 'uniform', got {self.init!r}")
        if self.nonfinite not in ("raise", "skip"):
            raise ValueError(f"nonfinite must be 'raise' or 'skip', got {self.nonfinite!r}")
        dtypes = (torch.float32, torch.bfloat16, torch.float16, *((torch.float64,) if not self.on_device else ()))
        if self.on_device and self.dim > runtime.WIDEST_GROUP:
            raise ValueError(f"dim must be <= {runtime.WIDEST_GROUP:,} on {self.device}, got {self.dim:,}")
        if self.weight_dtype not in dtypes:
            allowed = ", ".join(map(str, dtypes))
            raise ValueError(f"dtype must be one of {allowed} on {self.device}, got {self.weight_dtype}")
        if self.weight_dtype == torch.float16 and not self.on_device and not has_float16():
            raise ValueError("this processor does not convert torch.float16 (F16C): give dtype=torch.bfloat16")

    def _check_numbers(self) -> None:
        """Make numbers of `std`, `max_norm` and `norm_type`."""
        infinity = float("inf")
        for name, lowest, highest, bounds in (
            ("std", 0.0, _LARGEST, "finite and >= 0"),
            ("max_norm", _SMALLEST, _LARGEST, "finite and > 0"),
            ("norm_type", _SMALLEST, infinity, "> 0"),
        ):
            value = getattr(self, name)
            if name == "max_norm" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"{name} must be a number, got {value!r}")
            if not lowest <= float(value) <= highest:
                raise ValueError(f"{name} must be {bounds}, got {value!r}")
            object.__setattr__(self, name, float(value))

    def renormalized(self, vectors: Tensor) -> Tensor:
        """Return `vectors` `[n, dim]`, those whose norm is above `max_norm` scaled to it, as `nn.Embedding` does."""
        if self.max_norm is None:
            return vectors
        norms = torch.linalg.vector_norm(vectors, self.norm_type, dim=1, keepdim=True)
        highest = self.max_norm * (1 + 4 * torch.finfo(vectors.dtype).eps)  # a scaled vector is not scaled again
        return torch.where(norms > highest, vectors * (self.max_norm / (norms + 1e-7)), vectors)

    @cached_property
    def on_device(self) -> bool:
        """Whether the rows are in a GPU's memory (or in that of Triton's interpreter)."""
        return self.device.type != "cpu" or runtime.serves(self.device)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of arithmetic on the host, in which lookups give vectors."""
        return NUMPY_DTYPES[compute_dtype(self.weight_dtype)]

    @property
    def skips_nonfinite(self) -> bool:
        """Whether rows with a non-finite gradient are skipped."""
        return self.nonfinite == "skip"

    @property
    def scratch_bytes(self) -> int:
        """Working memory that is kept from one lookup to the next, at most: of lookups, and of exchanges of ranks."""
        return _SCRATCH if self.max_bytes is None else min(_SCRATCH, self.max_bytes // 64)

    @property
    def is_repeatable(self) -> bool:
        """Whether a second training lookup of the same keys, before a step, finds what the first has found."""
        return isinstance(self.admission, EveryKey) and not self.drops_rows and not self.has_fallback

    @property
    def drops_rows(self) -> bool:
        """Whether the table drops rows without being called to."""
        return self.max_bytes is not None or self.eviction.every is not None

    @property
    def unit(self) -> Unit | None:
        """In what uses of rows are counted; None where no policy asks."""
        return self.eviction.unit or (None if self.max_bytes is None else "steps")

    @property
    def sketch_bytes(self) -> int | None:
        """Bytes of the sketch that counts occurrences of keys without a row; None: exactly, as distinct keys are."""
        if self.max_bytes is None or self.admission.sketch_bytes is not None:
            return self.admission.sketch_bytes
        return 0 if isinstance(self.admission, EveryKey) else max(4096, self.max_bytes // _SKETCHED)


def device_of(device: torch.device | str | None) -> torch.device:
    """Return the device of a table: the default device for None, the current GPU for "cuda".

    In the context of `torch.device("meta")` a table is on the CPU, where it takes no memory before it has keys.

    Raises:
        ValueError, RuntimeError: A table cannot be on the device.
    """
    place = torch.get_default_device() if device is None else torch.device(device)
    if place.type == "cpu" or (place.type == "meta" and device is None):
        return torch.device("cpu")
    if place.type != "cuda":
        what = "device" if device is not None else "the default device"
        raise ValueError(f"{what} must be the CPU or a GPU ('cuda'), got {place}: make the table with device='cpu'")
    if not runtime.has_triton():
        raise RuntimeError(f"a HashEmbedding on {place} needs Triton, which is not installed: pip install triton")
    if not torch.cuda.is_available():
        raise ValueError(f"device={device!r}: torch finds no GPU here (torch.cuda.is_available() is False)")
    if not runtime.serves(place):
        raise ValueError(f"device={device!r}: a HashEmbedding needs a GPU of compute capability 8.0 or newer")
    return place if place.index is not None else torch.device("cuda", torch.cuda.current_device())


def check_int(name: str, value: object, lowest: int, highest: int) -> None:
    """Raise unless `value` is an int from `lowest` to `highest`; `name` is the parameter's."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if not lowest <= value <= highest:
        raise ValueError(f"{name} must be in [{lowest}, {highest}], got {value}")


_HINTS: Mapping[str, str] = {
    "num_embeddings": "a table has no vocabulary and grows by itself (max_rows limits it)",
    "embedding_dim": "the length of a vector is called dim",
    "sparse": "gradients are always sparse",
}
"""An argument of `nn.Embedding` → what a table has in its place."""


def with_argument_hints(init: Constructor) -> Constructor:
    """A constructor of a table whose TypeError says what to give in place of arguments that it does not take."""

    @wraps(init)
    def checked(self: object, /, *given: Any, **named: Any) -> None:
        known, name = signature(init).parameters, type(self).__name__
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
        hints = [
            f"there is no {one!r}: {_HINTS.get(one) or did_you_mean(one, known, most=3) or 'leave it out'}"
            for one in named
            if one not in known and not takes_any
        ]
        if len(given) > 1:
            hints.append(f"a table grows by itself: {name}(dim); all but dim is given by name, got {list(given)}")
        if hints:
            raise TypeError(f"{name}: {'; '.join(hints)}")
        init(self, *given, **named)

    return checked  # type: ignore[return-value]
