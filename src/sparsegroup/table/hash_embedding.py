"""`HashEmbedding`: the table as a module."""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from sparsegroup.bags import BagMode, pool_ragged, without_padding
from sparsegroup.kernels.step import TORCH_DTYPES, compute_dtype
from sparsegroup.names import bytes_of
from sparsegroup.notebook import html_table
from sparsegroup.optim.table_parameter import StoredParameter, mark_fallback
from sparsegroup.table.config import TableConfig, check_int, device_of, with_argument_hints
from sparsegroup.table.directory.admission import AdmissionPolicy, EveryKey
from sparsegroup.table.directory.buckets import MOST_ROWS
from sparsegroup.table.directory.eviction import LATEST, EvictionPolicy, RankingPolicy, ZeroRows
from sparsegroup.table.files.state_dict import PartEntries, load_rows, save_rows, unknown_entries, with_state_entries
from sparsegroup.table.lookup.autograd import Int64s, expand, for_autograd
from sparsegroup.table.lookup.compile import register, vectors_by_operator
from sparsegroup.table.lookup.fallback import apply_fallback, check_fallback
from sparsegroup.table.lookup.kernels import BagPooling, Init
from sparsegroup.table.lookup.lookup import checked_keys, is_recomputation, key_array
from sparsegroup.table.sharded.exchange import Reduction, Shards, check_not_sharded
from sparsegroup.table.sharded.lookup import ShardedLookup
from sparsegroup.table.table import FieldCount, Table, TableMemory
from sparsegroup.tensors import is_traced, untraced


class TableCounts:
    """The counts of a module that holds tables, summed over these. Of a sharded table, its rank's."""

    def _counted(self) -> Sequence[Table]:
        raise NotImplementedError

    @property
    def num_rows(self) -> int:
        """Rows, zero or not."""
        return sum(table.num_rows for table in self._counted())

    @property
    def num_live(self) -> int:
        """Rows with a non-zero vector."""
        return sum(table.num_live for table in self._counted())

    @property
    def num_seen(self) -> int:
        """Distinct keys ever seen in training, including the keys that `shrink` has dropped."""
        return sum(table.num_seen for table in self._counted())

    @property
    def feature_rate(self) -> float:
        """The paper's "sparsity": live rows over distinct keys ever seen; 0 if none was."""
        return self.num_live / self.num_seen if self.num_seen else 0.0

    @property
    def skipped_rows(self) -> int:
        """Row updates left out because of a non-finite gradient, with `nonfinite="skip"`."""
        return sum(table.skipped_rows for table in self._counted())

    @property
    def num_evicted(self) -> int:
        """Rows that the table has evicted by itself, by its policy or for lack of room."""
        return sum(table.directory.counters.evicted for table in self._counted())

    @property
    def num_refused(self) -> int:
        """How often a key would have got a row, had there been room within `max_bytes`."""
        return sum(table.directory.counters.refused for table in self._counted())

    def set_time(self, seconds: int) -> None:
        """Set the time, for instance that of the log that is trained on, in whole seconds from any moment on.

        It is the time of the following steps for policies that count in seconds.

        Raises:
            ValueError: It is not in [0, 2³²).
        """
        check_int("seconds", seconds, 0, LATEST)
        for table in self._counted():
            with table.at_rest():
                table.directory.set_time(seconds)

    def field_counts(self) -> dict[int, FieldCount]:
        """Keys seen, rows and live rows of each field, by the number in a key's top `field_bits` bits.

        Raises:
            ValueError: `field_bits` is 0.
        """
        counts: dict[int, FieldCount] = {}
        for table in self._counted():
            counts |= table.field_counts()
        return dict(sorted(counts.items()))

    def memory(self) -> TableMemory:
        """Bytes of the index, the rows and what they hold."""
        return TableMemory.total_of(table.memory() for table in self._counted())

    def _repr_html_(self) -> str:
        columns = ("rows", "live rows", "keys seen", "feature rate", "bytes")
        row = (self.num_rows, self.num_live, self.num_seen, f"{self.feature_rate:.2%}", self.memory().total)
        return html_table(type(self).__name__, columns, [row])


def _warn_of_conversion(text: str) -> None:
    """Warn at the line that converts the module, so that Python shows one warning for all tables of the module."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals["__name__"] in (__name__, nn.Module.__module__):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, RuntimeWarning, stacklevel=level)


_FALLBACK = "fallback"


@with_state_entries
class HashEmbedding(TableCounts, nn.Module):
    """An embedding for 64-bit keys whose rows appear when a key is first seen: `nn.Embedding` without a vocabulary.

    In training mode a key without a row gets one; in evaluation mode it gives zeros and nothing is inserted (the
    mode decides, not `torch.no_grad`). Frozen by `requires_grad_(False)`, it looks up as in evaluation mode and drops
    no rows. Any optimizer of this library trains it; u and the optimizer's state are stored in the rows, next to the
    weights. Its gradients are sparse, like `nn.Embedding(sparse=True)`'s. All arguments except `dim` are given by
    name.

    Args: Vectors
        dim: Length of a vector, ≥ 1.
        std: Standard deviation ≥ 0 of a new row's elements.
        init: "normal" or "uniform" (on ±√3 std).
        seed: The initializer's seed, in [0, 2⁶⁴). A row's start depends on the seed and its key only.
        dtype: torch.float32 (default), torch.bfloat16, torch.float16 or, on the CPU, torch.float64. With 16
            bits, vectors and gradients have the dtype, the arithmetic is in float32, and u keeps what rounding loses.
            On the CPU, torch cannot add the float16 gradients of several backward passes: use bfloat16.
        device: Where the rows are: the CPU, or a GPU, which needs Triton. None: torch's default device.

    Args: Which keys get and keep rows
        padding_idx: A key that stands for padding, such as 0: its vector is zero, it has no row and gets no gradient.
        max_norm: A lookup scales rows of a larger norm to this one, in place, as `nn.Embedding`'s does, in evaluation
            mode too. u and the optimizer's state stay. None: rows of any norm.
        norm_type: The p of that p-norm, > 0.
        field_bits: How many high bits of a key hold its field (see `field_keys`), for `field_counts` and `fallback`;
            0 to 16.
        admission: Decides which keys get a row in training, see `AdmissionPolicy`. None: every key.
        eviction: Decides which rows are dropped, see `EvictionPolicy`. None: zero rows, by `shrink`.
        fallback: Learn a vector per field (one for all keys, with `field_bits=0`) that replaces the vectors of keys
            without a live row: zero, evicted, not admitted, or unknown in evaluation. It starts at zero. The gradient
            of a zero row's key still counts for the row. In training it also replaces the vectors of new keys, in
            their first batch, for the share of them that is the share of zero rows among all (drawn by key), so that
            it learns what to expect of unknown keys. Regularize `weight` only, as `param_groups` does.

    Args: Memory
        max_rows: Raise rather than have more rows, ≤ 10¹⁰. None: as many as memory holds.
        max_bytes: What `memory().total` never exceeds, a number or a text such as "2GB". When the limit is near, the
            lowest-ranked tenth of the rows is evicted between two steps (`num_evicted`); until then new keys get no row
            (`num_refused`). Training continues. `num_seen` is then an estimate, within .8 % (1.6 % of each field's,
            with `field_bits`), and occurrences of keys without a row are counted in a sketch.
        ranking: With `max_bytes`, which rows are evicted first, see `RankingPolicy`. None: zero rows, then the rows
            looked up least often (`LFU`).
        huge_pages: Ask the system for huge pages, which make lookups in large tables much faster (Linux).

    Args: Training, on one rank or several
        nonfinite: What a step does with a row whose gradient is infinite or NaN: "raise" FloatingPointError before
            anything is changed, or "skip" the row and count it in `skipped_rows`. A GPU skips the row in either case,
            and "raise" raises in a later step.
        per_rank: Each rank of a distributed world trains a separate table. Without it, training on several ranks
            raises; see "On several ranks". May be set later, as an attribute.
        process_group: One table on all ranks of a `torch.distributed` group: each row is stored on the rank that its
            key's hash names, and all ranks look up together, each its part of the batch, which may be empty. Every
            rank makes the table, with the same arguments. `torch.distributed.group.WORLD` is all ranks; only tables
            may use any other group. See "On several ranks".
        reduction: With `process_group`, whether gradients are averaged over the ranks ("mean", as
            `DistributedDataParallel` does) or added up ("sum").
        wire_dtype: With `process_group`, the dtype in which vectors and gradients travel: torch.bfloat16 or
            torch.float16. None: unchanged.

    Raises:
        ValueError, TypeError: An argument out of range.

    Attributes:
        padding_idx, max_norm, norm_type: See above.
        weight: The parameter. You cannot compute with it as with a tensor; see `lookup` and `items`.
        fallback: `[2**field_bits, dim]`, the fallback vectors, by the number in a key's top bits; or None.

    Examples:
        >>> import torch
        >>> from sparsegroup import GroupAdam, HashEmbedding
        >>> table = HashEmbedding(4)
        >>> optimizer = GroupAdam(table.parameters(), l21=20.0)
        >>> vectors = table(torch.tensor([[7, -1], [7, 2**62]]))
        >>> vectors.shape, table.num_rows
        (torch.Size([2, 2, 4]), 3)
        >>> (vectors[0] * torch.tensor([[100.0], [0.1]])).sum().backward()  # 7 insists, -1 does not
        >>> optimizer.step()
        >>> table.num_rows, table.num_live, bool(table.lookup(torch.tensor([-1])).any())
        (3, 2, False)
    """

    weight: StoredParameter
    table: Table
    fallback: nn.Parameter | None

    @with_argument_hints
    def __init__(
        self,
        dim: int,
        *,
        std: float = 0.01,
        init: Init = "normal",
        seed: int = 0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        field_bits: int = 0,
        admission: AdmissionPolicy | None = None,
        eviction: EvictionPolicy | None = None,
        fallback: bool = False,
        max_rows: int | None = None,
        max_bytes: int | str | None = None,
        ranking: RankingPolicy | None = None,
        huge_pages: bool = True,
        nonfinite: Literal["raise", "skip"] = "raise",
        per_rank: bool = False,
        process_group: dist.ProcessGroup | None = None,
        reduction: Reduction = "mean",
        wire_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if padding_idx is not None:
            check_int("padding_idx", padding_idx, -(1 << 63), (1 << 63) - 1)
        self.padding_idx = padding_idx
        config = TableConfig(
            dim=dim,
            std=std,
            init=init,
            seed=seed,
            max_rows=MOST_ROWS if max_rows is None else max_rows,
            field_bits=field_bits,
            nonfinite=nonfinite,
            huge_pages=bool(huge_pages),
            weight_dtype=torch.get_default_dtype() if dtype is None else dtype,
            device=device_of(device),
            admission=EveryKey() if admission is None else admission,
            eviction=ZeroRows() if eviction is None else eviction,
            max_bytes=None if max_bytes is None else bytes_of(max_bytes),
            ranking=ranking,
            has_fallback=bool(fallback),
            max_norm=max_norm,
            norm_type=norm_type,
        )
        self.max_norm, self.norm_type = config.max_norm, config.norm_type
        shards = None
        if process_group is None:
            check_not_sharded(reduction, wire_dtype)
        else:
            if per_rank:
                raise ValueError("a table is divided by its process_group, or each rank has one by per_rank")
            described = f"dim={dim}, dtype={config.weight_dtype}, fallback={fallback}, seed={seed}, max_norm={max_norm}"
            shards = Shards(process_group, reduction, wire_dtype, config.scratch_bytes, described)
        self.table = Table(config, ranks=shards, per_rank=bool(per_rank))
        self.across = None if shards is None else ShardedLookup(self.table, shards)
        self.register_parameter("weight", StoredParameter(self.table))  # type: ignore[arg-type]
        if self.across is not None and (part := self.across.shards.part).name:
            setattr(self, part.name, PartEntries(self.table, self.weight))
        vectors = (
            torch.zeros(1 << field_bits, dim, dtype=config.weight_dtype, device=config.device) if fallback else None
        )
        self.register_parameter("fallback", None if vectors is None else nn.Parameter(vectors))
        self._register()

    def forward(self, keys: Tensor) -> Tensor:
        """The vectors of `keys`.

        Args:
            keys: int64 or int32 (which is widened) of any shape, any value, on the CPU. A table on a GPU also takes
                keys on a GPU, and waits for them: its index is on the host.

        Returns:
            `[*keys.shape, dim]`, where the rows are.

        Raises:
            TypeError: Keys of another dtype.
            ValueError: Keys on another device.
            RuntimeError: `max_rows` would be exceeded (nothing is inserted), keys are inserted in a forked process or
                in a worker of a DataLoader, or several ranks train tables without `process_group` or `per_rank`.
            ExchangeError: With `process_group`, the ranks do not come together: one has died, or hangs.
            MemoryError: The system has no more (nothing is inserted).
        """
        if self.padding_idx is None:
            return self._vectors(keys)
        ids = checked_keys(keys).reshape(-1)  # each in a bag; the bag of padding is empty, and has the sum zero
        each = torch.arange(len(ids) + 1, dtype=torch.int64, device="cpu")
        return self._pooled_bags(ids, each, "sum").view(*keys.shape, self.dim)

    def _vectors(self, keys: Tensor) -> Tensor:
        """Return the vectors of keys, `[*keys.shape, dim]`, including the row of a key that is `padding_idx`."""
        if self.can_pool:  # on the host, or on several ranks
            vectors = self.vectors_or_pools(keys, None)
            return vectors.view(*keys.shape, vectors.shape[1])
        vectors = vectors_by_operator(self._number, checked_keys(keys)) if is_traced() else self.own_vectors(keys)
        return self._replaced(vectors, checked_keys(keys))

    @property
    def can_pool(self) -> bool:
        """Whether a lookup can pool bags on its way, so that no vector for each key is made."""
        return self.across is not None or not (self.table.config.on_device or is_traced())

    def _weighted(self, keys: Tensor, weights: Tensor | None) -> Tensor:
        """Return the vectors `[n, dim]` of keys `[n]`, times the weights, in the dtype in which they are added up."""
        vectors = self._vectors(keys)
        vectors = vectors.to(compute_dtype(vectors.dtype))
        return vectors if weights is None else vectors * weights.unsqueeze(1).to(vectors)

    def _pooled_bags(self, keys: Tensor, ends: Tensor, mode: BagMode, weights: Tensor | None = None) -> Tensor:
        """Return the pools `[bags, dim]` of bags of keys without padding; bag i is `keys[ends[i] : ends[i + 1]]`."""
        if self.padding_idx is not None:
            keys, ends, weights = without_padding(keys, ends, weights, self.padding_idx)
        if self.can_pool and weights is None and mode != "max":
            return self.vectors_or_pools(keys, BagPooling(np.ascontiguousarray(ends.cpu().numpy()), mode == "mean"))
        return pool_ragged(self._weighted(keys, weights), ends, len(ends) - 1, mode).to(self.table.weight_dtype)

    def vectors_or_pools(self, keys: Tensor, bags: BagPooling | None) -> Tensor:
        """Return the vectors `[n, dim]` of keys `[n]`, or, with `bags`, the pools `[bags, dim]` of bags of keys.

        Raises RuntimeError for bags unless the table `can_pool`.
        """
        if bags is not None and not self.can_pool:
            raise RuntimeError(
                "a table pools bags on its way only where its rows are on the host, outside of torch.compile and "
                "torch.func: look the keys up, and pool their vectors"
            )
        if self.across is not None:
            vectors = self._sharded_vectors(self.across, keys, bags)
        elif self.fallback is None:
            vectors, info = self.table.look_up(keys, self.is_trained, bags)
            vectors = for_autograd(self.weight, info, vectors)
        else:
            vectors, info = self.table.look_up(keys, self.is_trained, is_distinct=True)
            vectors = self._replaced(for_autograd(self.weight, info, vectors), torch.from_numpy(info.search.distinct))
            vectors = expand(vectors, info.search.inverse, bags)
        return vectors.to(self.table.weight_dtype)

    def own_vectors(self, keys: Tensor) -> Tensor:
        """The vectors of keys that all belong to this rank, as `forward`'s but never replaced by fallback vectors.

        For modules with an exchange of keys and vectors of their own.
        """
        vectors, info = self.table.look_up(keys, self.is_trained)
        vectors.resize_(*keys.shape, vectors.shape[1])  # a view could not be changed
        return for_autograd(self.weight, info, vectors).to(self.table.weight_dtype)

    def _replaced(self, vectors: Tensor, keys: Tensor) -> Tensor:
        """The vectors of keys with fallback vectors, if there are any, for zero ones."""
        if self.fallback is None:
            return vectors
        return apply_fallback(vectors, keys, self.fallback, self._field_bits)

    @untraced
    def _sharded_vectors(self, across: ShardedLookup, keys: Tensor, bags: BagPooling | None) -> Tensor:
        array, trains = self._as_array(keys), self.is_trained
        if self.weight.grad is None and not is_recomputation():
            self.weight.rowless = ()
        return across.vectors(
            *(self.weight, array, trains, bags), replaced=lambda mine, own: self._replaced(mine, torch.from_numpy(own))
        )

    @property
    def per_rank(self) -> bool:
        """Whether each rank of a distributed world trains a separate table; may be set."""
        return self.table.per_rank

    @per_rank.setter
    def per_rank(self, per_rank: bool) -> None:
        self.table.per_rank = bool(per_rank)

    def prefetch(self, keys: Tensor) -> None:
        """Let another thread look for keys that a later `forward` will be given, while this one trains.

        `forward` with the same keys in the same mode then only has to fetch the vectors; its result is the same. Call
        it after a batch's forward with the next batch's keys. In training mode new keys get their rows, and count as
        seen, from now on. Nothing happens here where it would not pay: with fewer than 4,096 keys, or with one thread.

        Args:
            keys: As of `forward`. A second call forgets the first one's.

        Raises:
            TypeError, ValueError: As `forward`.
            RuntimeError: In training mode in a forked process or in a worker; no thread can be started.
        """
        array = self._as_array(keys)
        if self.padding_idx is not None:
            array = array[array != self.padding_idx]
        (self.table if self.across is None else self.across).prefetch(array, self.is_trained)

    def _as_array(self, keys: Tensor) -> Int64s:
        return key_array(keys, may_be_on_device=self.table.config.on_device)

    def _counted(self) -> list[Table]:
        return [self.table]

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self.table.config.dim

    @property
    def is_trained(self) -> bool:
        """Whether a lookup is one of training, which inserts: in training mode, unless `weight` is frozen."""
        return self.training and self.weight.requires_grad

    def __len__(self) -> int:
        return self.num_rows

    def __bool__(self) -> bool:
        return True  # a module, also while it is empty

    def __contains__(self, key: int) -> bool:
        return bool(self.contains(torch.tensor([key], dtype=torch.int64, device="cpu")))

    def contains(self, keys: Tensor) -> Tensor:
        """Which of `keys`, int64 of any shape, have a row: bool of the same shape."""
        array = self._as_array(keys)
        has_row = self.table.find(array) >= 0 if self.across is None else self.across.contains(array)
        return torch.from_numpy(has_row).view(keys.shape)

    def lookup(self, keys: Tensor) -> Tensor:
        """The vectors of `keys`, `[*keys.shape, dim]`, zeros for those without a row; no graph, nothing is inserted.

        These are the rows themselves: fallback vectors do not replace any.
        """
        across, table = self.across, self.table
        vectors = table.look_up(keys, insert=False)[0] if across is None else across.rows(self._as_array(keys))
        return vectors.view(*keys.shape, self.dim).to(self.table.weight_dtype)

    @torch.no_grad()
    def assign(self, keys: Tensor, vectors: Tensor) -> None:
        """Set the vectors of `keys`: pretrained ones, say, or zeros for rows to be pruned.

        Keys without a row get one, and count as seen. The optimizer's state of the rows does not change.

        Args:
            keys: int64, any shape, distinct.
            vectors: `[*keys.shape, dim]`.

        Raises:
            ValueError: Another shape, a key twice, or padding; nothing is changed.
            RuntimeError, MemoryError: As `forward`.
        """
        if vectors.shape != (*keys.shape, self.dim):
            raise ValueError(f"vectors must have shape {[*keys.shape, self.dim]}, got {list(vectors.shape)}")
        array = self._as_array(keys)
        if len(np.unique(array)) != len(array):
            raise ValueError("keys must be distinct")
        if self.padding_idx is not None and self.padding_idx in array:
            raise ValueError(f"the key {self.padding_idx} is padding_idx, whose vector is always zero")
        values = vectors.detach().resolve_neg().to("cpu", TORCH_DTYPES[self.table.config.dtype])
        values = values.reshape(-1, self.dim).contiguous()
        if self.across is not None:
            self.across.assign(array, values)
        else:
            self.table.assign(array, values.numpy())

    @torch.no_grad()
    def average_(self, other: "HashEmbedding", rate: float) -> None:
        """Average the vectors with another table's: `(1 - rate) * this + rate * other`, for the rows of `other`.

        A weight that is zero in `other` becomes zero. A weight that is zero here becomes the weight in `other`. Rows
        that `other` lacks are dropped, and so is the optimizer's state. Fallback vectors are averaged as they are.
        `AveragedModel` does the same with an averaging function of torch that calls `lerp_`; see "Averaged weights".

        Args:
            other: A table of the same `dim`, dtype and `fallback`. It does not change.
            rate: The weight of `other`, in [0, 1].

        Raises:
            ValueError: The rate is out of range, or the tables differ. Nothing is changed.

        Examples:
            >>> import torch
            >>> from sparsegroup import HashEmbedding
            >>> average, table = HashEmbedding(2), HashEmbedding(2)
            >>> average.assign(torch.tensor([7, 8]), torch.tensor([[1.0, 1.0], [1.0, 1.0]]))
            >>> table.assign(torch.tensor([7]), torch.tensor([[3.0, 0.0]]))
            >>> average.average_(table, 0.25)
            >>> average.lookup(torch.tensor([7, 8])).tolist()
            [[1.5, 0.0], [0.0, 0.0]]
        """
        if not 0 <= rate <= 1:
            raise ValueError(f"rate must be in [0, 1], got {rate}")
        if (self.fallback is None) != (other.fallback is None):
            raise ValueError("only one of the two tables has fallback vectors")
        self.weight.detach().lerp_(other.weight.detach(), rate)
        if self.fallback is not None and other.fallback is not None:
            self.fallback.lerp_(other.fallback, rate)

    def initial(self, keys: Tensor) -> Tensor:
        """The vectors that `keys` start from, `[*keys.shape, dim]`."""
        starts = torch.from_numpy(self.table.starts.of(self._as_array(keys)))
        return starts.to(self.table.device, self.weight.dtype).view(*keys.shape, self.dim)

    @property
    def keys(self) -> Tensor:
        """The keys of all rows, `[rows]` int64 on the CPU, including zero vectors: a copy. This rank's."""
        return torch.from_numpy(self.table.snapshot(()).keys)

    def items(self, batch_size: int = 65_536) -> Iterator[tuple[Tensor, Tensor]]:
        """Keys `[n]` int64 and vectors `[n, dim]` of the live rows, n ≤ `batch_size` at a time, in row order.

        Raises:
            RuntimeError: Rows were added or dropped while this ran.
        """
        check_int("batch_size", batch_size, 1, 1 << 40)
        for keys, rows in self.table.scan(batch_size):
            yield torch.from_numpy(keys), torch.from_numpy(rows)

    def shrink(self) -> int:
        """Drop the rows that are exactly zero, or that `eviction` selects, and give their memory back to the system.

        A dropped key that returns is a new row from its start; it is not counted again in `num_seen` (which costs 8
        bytes per dropped key).

        Returns:
            The number of rows dropped.

        Raises:
            RuntimeError: A gradient is pending: call it between `step()`, `zero_grad()` and the next forward.
        """
        gradient = self.weight.grad
        if gradient is not None and (gradient.layout is not torch.sparse_coo or gradient._nnz()):
            raise RuntimeError("a gradient for the table is pending: call step() and zero_grad() before shrink()")
        return self.table.shrink()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_number"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._register()

    def _register(self) -> None:
        self._number, self._field_bits = register(self), self.table.config.field_bits
        if self.fallback is not None:
            mark_fallback(self.fallback)

    def extra_repr(self) -> str:
        given = {"padding_idx": self.padding_idx, "max_norm": self.max_norm}
        more = "".join(f", {name}={value}" for name, value in given.items() if value is not None)
        more += f", norm_type={self.norm_type}" if self.norm_type != 2 else ""
        return f"{self.dim}, rows={self.num_rows}, live={self.num_live}, seen={self.num_seen}{more}"

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        if isinstance(param, StoredParameter) and name != "weight":  # pruning renames the weight before it reads it
            raise NotImplementedError(
                f"the rows of a HashEmbedding cannot become the parameter {name!r}, as pruning would make them: an "
                "optimizer of sparsegroup with l21 makes rows zero, and shrink() drops these rows"
            )
        super().register_parameter(name, param)

    def _apply(self, function: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Warn that the table stays as it is. An error would leave a model that is converted in part."""
        sample = torch.empty(0, dtype=self.weight.dtype, device=self.table.device)
        moved = function(sample)
        if moved.is_cpu and moved.is_shared():  # type: ignore[no-untyped-call]
            _warn_of_conversion(
                "a HashEmbedding does not share its rows: share_memory() leaves them in this process, and other "
                "processes can only look keys up. Train one table in several processes with "
                "HashEmbedding(..., process_group=torch.distributed.group.WORLD) and torchrun, or in threads"
            )
        if moved.device != sample.device:
            _warn_of_conversion(
                f"a HashEmbedding stays on {sample.device} when a module is moved to {moved.device}: move the vectors, "
                f"as in table(keys).to({str(moved.device)!r}), or make the table there with device=..."
            )
        if moved.dtype != sample.dtype:
            _warn_of_conversion(
                f"a HashEmbedding keeps its dtype, {sample.dtype}, when a module is converted to {moved.dtype}: "
                f"convert the vectors, as in table(keys).to({moved.dtype}), or make the table with dtype=..."
            )
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        if self.fallback is not None:
            destination[prefix + _FALLBACK] = self.fallback if keep_vars else self.fallback.detach()
        save_rows(self.table, destination, prefix)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        errors, name = len(error_msgs), prefix + _FALLBACK
        vectors = check_fallback(self.fallback, name, state_dict, missing_keys, unexpected_keys, error_msgs)
        unexpected_keys.extend(unknown_entries(state_dict, prefix, {_FALLBACK, *self._modules}))
        missing = len(missing_keys)
        if len(error_msgs) == errors:
            load_rows(self.table, state_dict, prefix, missing_keys, error_msgs)
        if len(error_msgs) == errors and len(missing_keys) == missing and vectors is not None:
            with torch.no_grad():
                self.get_parameter(_FALLBACK).copy_(vectors)
