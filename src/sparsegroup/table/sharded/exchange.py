"""Exchanges among ranks: one after another, checked before anything is sent, and failing on all ranks alike."""

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NoReturn, Self, TypeVar, get_args
from weakref import WeakKeyDictionary
from zlib import crc32

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from sparsegroup.table.lookup.autograd import Int64s
from sparsegroup.table.sharded.rank_parts import RankShard
from sparsegroup.table.sharded.routing import Routing, SendPlan, Sorter

Result = TypeVar("Result")
Reduction = Literal["mean", "sum"]
Numbers = Sequence[int]

_MOST_NUMBERS = 6
_HEADER = 4 + _MOST_NUMBERS
"""int64 numbers: lines for the receiver, number and name of the operation, whether the sender has failed, and more."""

_TEXT_BYTES, _MESSAGE = 1024, 700
_SEPARATOR = "\x1f"

_KINDS = {kind.__name__: kind for kind in (FloatingPointError, IndexError, MemoryError, TypeError, ValueError)}
"""Errors of one rank that the others raise as errors of the same kind; all else is a RuntimeError there."""


class ExchangeError(RuntimeError):
    """The ranks do not meet in one operation: one has ended, hangs, or calls another. Restart from a checkpoint."""


def attempt(action: Callable[[], Result]) -> tuple[Result | None, Exception | None]:
    """What an action gives, or the error that it raises."""
    try:
        return action(), None
    except Exception as error:
        return None, error


@dataclass
class _Group:
    """State shared by all users of a group of ranks; it does not refer to the group, or that would never end."""

    # tables, operations: how many tables have been made on it, and operations started
    tables: int = 0
    operations: int = 0
    failure: str = ""  # why nothing can be exchanged any more; empty while it can
    # thread, last: runs what is submitted, and the last of that
    thread: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1, "sparsegroup-ranks"))
    last: Future[Any] | None = None
    tables_group: dist.ProcessGroup | None = None  # the group of the tables of the whole world


_GROUPS: WeakKeyDictionary[dist.ProcessGroup, _Group] = WeakKeyDictionary()


def _state_of(group: dist.ProcessGroup) -> _Group:
    if group not in _GROUPS:
        _GROUPS[group] = _Group()
    return _GROUPS[group]


def group_of_tables(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """The group in which tables exchange: a separate one for the whole world, which others use too.

    All ranks must call it when they make the first table.
    """
    if group is not dist.group.WORLD:
        return group
    state = _state_of(group)
    if state.tables_group is None:
        state.tables_group = dist.new_group(backend=dist.get_backend_config(group), timeout=_timeout_of(group))
    return state.tables_group


class Collectives:
    """The collective operations of a group of ranks. All ranks call them in the same order, and nothing else uses it.

    Each begins with a header of fixed size, in which every rank names the operation to all others and reports whether
    it has failed. So ranks that call different operations notice it before any content is sent, and an error of one
    rank is raised on all of them: of the same kind if `_KINDS` has it, or of the `kind` that the caller names.
    `device` is where numbers of the host are exchanged: there, or on a GPU if the group cannot do that.
    """

    def __init__(self, group: dist.ProcessGroup, name: str) -> None:
        self.group, self.name = group, name
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.device = torch.device("cpu" if "cpu:" in dist.get_backend_config(group) else "cuda")
        self._state = _state_of(group)
        _schedule_receivers()

    # Order

    def submit(self, function: Callable[..., Result], *arguments: Any) -> "Future[Result]":
        """Let the group's thread call a function after all that was submitted before."""
        submitted = self._state.last = self._state.thread.submit(function, *arguments)
        return submitted

    def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function after all that was submitted before."""
        last = self._state.last
        if last is None or last.done():
            self._state.last = None
            return function(*arguments)
        return self.submit(function, *arguments).result()

    # Agreement

    def meet(
        self,
        what: str,
        counts: Int64s | None = None,
        numbers: Numbers = (),
        error: Exception | None = None,
        kind: type[Exception] | None = None,
    ) -> tuple[list[int], list[list[int]]]:
        """Let all ranks agree that they are in the same operation, `what`, and that none has failed with an `error`.

        `counts` `[ranks]` are the lines that this rank is about to send to each, `numbers` at most six for all ranks.
        Gives the lines that each rank is about to send to this one, and the numbers of each rank.
        """
        if self.ranks == 1:
            if error is not None:
                raise error
            return [0] if counts is None else counts.tolist(), [list(numbers)]
        self._state.operations += 1
        own = [0, self._state.operations, crc32(what.encode()), int(error is not None), *numbers]
        header = np.zeros((self.ranks, _HEADER), np.int64)
        header[:, : len(own)] = own
        if counts is not None:
            header[:, 0] = counts
        found: list[list[int]] = self._all_to_all(header, what).tolist()
        if any(line[1:4] != [*own[1:3], 0] for line in found):
            self._raise(what, error, kind)
        return [line[0] for line in found], [line[4 : len(own)] for line in found]

    def _raise(self, what: str, error: Exception | None, kind: type[Exception] | None) -> NoReturn:
        """Raise the same error on all ranks: that of the first one that has failed, or that they have parted."""
        own = ["", "", f"operation {self._state.operations:,}, {what!r}"]
        if error is not None:
            names = [one.__name__ for one in type(error).__mro__ if one.__name__ in _KINDS]
            message = f"{type(error).__name__}: {error}".replace(_SEPARATOR, " ")
            own[:2] = names[0] if names else RuntimeError.__name__, message[:_MESSAGE]
        texts = [[*text.split(_SEPARATOR), "", ""][:3] for text in self._texts(_SEPARATOR.join(own), what)]
        if error is not None:
            raise self._known_to_all(error)
        for rank, (name, message, _) in enumerate(texts):
            if name:
                raised = _KINDS.get(name, RuntimeError) if kind is None else kind
                raise self._known_to_all(raised(f"rank {rank} of {self.ranks}: {message}"))
        places = "; ".join(f"rank {rank} is in {place}" for rank, (*_, place) in enumerate(texts))
        raise self._known_to_all(
            ExchangeError(
                f"{self.name}: the ranks have called different operations, or in different order: {places}. All ranks "
                "look up the same tables in the same order and mode, go backward through the same lookups, and step "
                "together"
            )
        )

    def _known_to_all(self, error: Exception) -> Exception:
        """The error, marked: all ranks of this group raise it, so that none reports it to the others again."""
        vars(error).setdefault("_known_to", []).append(self._state)
        return error

    def is_known_to_all(self, error: Exception) -> bool:
        """Whether all ranks of this group raise the error already."""
        return any(one is self._state for one in vars(error).get("_known_to", ()))

    def _texts(self, own: str, what: str) -> list[str]:
        """A text of each rank; long ones are cut."""
        sent = np.zeros((self.ranks, _TEXT_BYTES), np.uint8)
        text = np.frombuffer(own.encode()[:_TEXT_BYTES], np.uint8)
        sent[:, : len(text)] = text
        received = self._all_to_all(sent, what)
        return [line.tobytes().rstrip(b"\0").decode(errors="ignore") for line in received.numpy()]

    def _all_to_all(self, lines: npt.NDArray[Any], what: str) -> Tensor:
        """The line `[n]` of each rank for this one, `[ranks, n]` on the host; `lines` are this rank's."""
        sent = torch.from_numpy(lines).to(self.device)
        received = torch.empty_like(sent)
        with self._operation(what):
            dist.all_to_all_single(received, sent, group=self.group)
            return received.cpu()

    # Content

    def swapped(self, values: Tensor, sent: Sequence[int], got: Sequence[int], what: str) -> Tensor:
        """What all ranks have sent to this one, `[Σ got, …]`, in the order of ranks, after they have met.

        `values` `[n, …]` has those for rank 0 first; `sent` and `got` `[ranks]` count the lines to and from each.
        """
        if self.ranks == 1:
            return values
        out = values.new_empty(sum(got), *values.shape[1:])
        with self._operation(what):
            dist.all_to_all_single(out, values.contiguous(), list(got), list(sent), group=self.group)
        return out

    def total(
        self, numbers: Numbers, what: str, error: Exception | None = None, kind: type[Exception] | None = None
    ) -> list[int]:
        """The sums over all ranks of at most six int64 numbers."""
        _, of_all = self.meet(what, numbers=[int(number) for number in numbers], error=error, kind=kind)
        return [sum(column) for column in zip(*of_all, strict=True)]

    def norm(self, own: Tensor, order: float) -> Tensor:
        """The p-norm, p being `order`, of a vector of which each rank has a part; `own` is the 0-d norm of that."""
        if self.ranks == 1:
            return own
        bits = np.float64(own.item()).view(np.int64)
        _, of_all = self.meet("the norm of gradients", numbers=[int(bits)])
        norms = torch.from_numpy(np.array(of_all, np.int64)[:, 0].view(np.float64).copy())
        norm: Tensor = torch.linalg.vector_norm(norms, order).to(own)
        return norm

    def summed(self, tensor: Tensor, what: str) -> Tensor:
        """The sum of the ranks' tensors, which have one shape and dtype and are on a device of the group."""
        if self.ranks == 1:
            return tensor
        self.meet(what)
        total = tensor.clone(memory_format=torch.contiguous_format)
        with self._operation(what):
            dist.all_reduce(total, group=self.group)
        return total

    def of_all(self, own: list[Any], what: str) -> list[Any]:
        """The concatenated lists of all ranks, which are pickled."""
        if self.ranks == 1:
            return own
        data, error = attempt(lambda: pickle.dumps(own))
        data = data or b""
        sizes, _ = self.meet(what, np.full(self.ranks, len(data)), error=error)
        lines = torch.frombuffer(bytearray(data * self.ranks), dtype=torch.uint8).to(self.device)
        received = self.swapped(lines, [len(data)] * self.ranks, sizes, what).cpu()
        parts = torch.split(received, sizes)
        return [one for part in parts for one in pickle.loads(part.numpy().tobytes())]

    def from_first(self, value: Result, what: str) -> Result:
        """The value of rank 0, which is pickled; the values of other ranks are ignored."""
        if self.ranks == 1:
            return value
        data, error = attempt(lambda: pickle.dumps(value)) if self.rank == 0 else (b"", None)
        _, sizes = self.meet(what, numbers=[len(data or b"")], error=error)
        lines = torch.frombuffer(bytearray(data or bytes(sizes[0][0])), dtype=torch.uint8).to(self.device)
        with self._operation(what):
            dist.broadcast(lines, dist.get_global_rank(self.group, 0), group=self.group)
        return value if self.rank == 0 else pickle.loads(lines.cpu().numpy().tobytes())

    @property
    def header_bytes(self) -> int:
        """Bytes of an operation's headers that go from this rank to others."""
        return 8 * _HEADER * (self.ranks - 1)

    @contextmanager
    def _operation(self, what: str) -> Iterator[None]:
        state = self._state
        if state.failure:
            raise ExchangeError(f"{self.name}: {what}: nothing can be exchanged any more: {state.failure}")
        try:
            yield
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
            state.failure = f"rank {self.rank} of {self.ranks}, operation {state.operations:,}, {what!r}: {reason}"
            raise ExchangeError(
                f"{self.name}: {state.failure}. Another rank has ended or does not answer: see its own "
                "messages, and start all ranks again from a checkpoint"
            ) from error


def _timeout_of(group: dist.ProcessGroup) -> timedelta | None:
    """How long a group waits for a rank; None where it does not report it, for torch's default."""
    device = torch.device("cpu" if "cpu:" in dist.get_backend_config(group) else "cuda")
    options: Any = getattr(group._get_backend(device), "options", None)
    return getattr(options, "_timeout", None)


def _schedule_receivers() -> None:
    """Let the threads in which gloo receives not interrupt other threads (sched(7), `SCHED_BATCH`), on Linux.

    Such a thread requests its connection's lock without end while the sending thread holds the lock. If both share a
    core, the sender waits for the end of the receiver's time slice, 3 or 4 ms. Measured with two ranks on two idle
    cores of an Intel Xeon, DCN with batches of 512: 1.20 times the samples of a single process with the policy, .70
    without. If other processes use the cores, an exchange takes 10 ms with the policy, 2 ms without.
    """
    with suppress(AttributeError, OSError):
        for thread in Path("/proc/self/task").iterdir():
            if (thread / "comm").read_text().startswith("gloo_tcp_loop"):
                os.sched_setscheduler(int(thread.name), os.SCHED_BATCH, os.sched_param(0))


@dataclass
class Traffic:
    """Counts of one table on one rank, since it was made."""

    lookups: int = 0  # exchanges of keys
    # keys, vectors, gradients: bytes of each that went to other ranks
    keys: int = 0
    vectors: int = 0
    gradients: int = 0
    headers: int = 0  # bytes of their headers
    # seconds in which the thread that trains has waited for other ranks, or for what is looked up ahead
    waited: float = 0.0

    @property
    def sent(self) -> int:
        """All bytes that went to other ranks."""
        return self.keys + self.vectors + self.gradients + self.headers


@dataclass(frozen=True)
class KeyExchange:
    """The keys that ranks send each other in one lookup."""

    own: SendPlan  # the keys that this rank sends
    keys: Int64s  # `[m]`, the received ones: rank 0's first; distinct from each rank
    counts: Sequence[int]  # `[ranks]`, how many it receives from each
    name: str  # names the lookup in messages


class _Exchange(Function):
    """Vectors to the ranks that requested them, or, `back`, their gradients."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, shards: "Shards", exchange: KeyExchange, back: bool, meets: bool, *factors: float
    ) -> Tensor:
        ctx.arguments, ctx.factors = (shards, exchange, not back), factors
        carried = shards.carry(values, exchange, back=back, meets=meets)
        return carried if factors[0] == 1.0 else carried * factors[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # What is differentiated once more is not multiplied again: the loss is averaged over the ranks once.
        factors = ctx.factors[1], 1.0
        back = _Exchange.apply(gradient, *ctx.arguments, True, *factors)  # type: ignore[no-untyped-call]
        return back, None, None, None, None, None, None


class Shards:
    """The ranks of a table. All of them call each method, in the same order; see `Collectives`."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        reduction: Reduction,
        wire_dtype: torch.dtype | None,
        scratch_bytes: int,
        described: str = "",
    ) -> None:
        if not isinstance(group, dist.ProcessGroup):
            raise TypeError(
                f"process_group must be a torch.distributed.ProcessGroup that this rank is in, got {group!r}; "
                "torch.distributed.group.WORLD is that of all ranks"
            )
        if reduction not in get_args(Reduction):
            raise ValueError(f"reduction must be 'mean' or 'sum', got {reduction!r}")
        if wire_dtype not in (None, torch.bfloat16, torch.float16):
            raise ValueError(f"wire_dtype must be None, torch.bfloat16 or torch.float16, got {wire_dtype!r}")
        self.group, self.reduction, self.wire_dtype = group, reduction, wire_dtype
        self._collectives = Collectives(group_of_tables(group), "HashEmbedding")
        self.ranks, self.rank = self._collectives.ranks, self._collectives.rank
        self.routing = Routing(self.ranks)
        self.traffic = Traffic()
        self._sorter = Sorter(self.routing, scratch_bytes)
        state = _state_of(self._collectives.group)
        self._name = f"table {state.tables}"
        state.tables += 1
        self._run(self._collectives.meet, f"making {self._name}, {described}, {reduction}, wire_dtype={wire_dtype}")

    @property
    def nbytes(self) -> int:
        """Working memory that is kept for the next exchange."""
        return self._sorter.nbytes

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # ranks are not copied

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a HashEmbedding with a process_group cannot be pickled, for its rows are on several ranks: write a "
            "checkpoint, sparsegroup.checkpoint.save, or its state_dict"
        )

    # Lookups

    def exchange_keys(self, keys: Int64s, purpose: str, error: Exception | None = None) -> KeyExchange:
        """Send each rank its part of `keys` `[n]`, for a `purpose` that is the same on all ranks."""
        with self.waiting():
            return self._run(self._exchange_keys, keys, purpose, error)

    def begin_exchange_of_keys(self, keys: Int64s, purpose: str) -> "Future[KeyExchange]":
        """`exchange_keys` in another thread, while the caller continues."""
        return self._collectives.submit(self._exchange_keys, keys, purpose, None)

    def _exchange_keys(self, keys: Int64s, purpose: str, error: Exception | None) -> KeyExchange:
        own, collectives = self._sorter.sort(keys), self._collectives
        what = f"keys of {purpose}, {self._name}"
        got, _ = collectives.meet(what, own.counts, error=error)
        self.traffic.lookups += 1
        name = f"lookup {self.traffic.lookups:,} in {self._name}"
        if self.ranks == 1:
            return KeyExchange(own, own.keys, got, name)
        sent = own.counts.tolist()
        received = collectives.swapped(torch.from_numpy(own.keys).to(collectives.device), sent, got, what)
        self.traffic.headers += collectives.header_bytes
        self.traffic.keys += 8 * (len(own.keys) - sent[self.rank])
        return KeyExchange(own, received.cpu().numpy(), got, name)

    def agree(self, exchange: KeyExchange, numbers: Numbers, error: Exception | None) -> list[int]:
        """Meet before vectors travel; gives the sums of some numbers over the ranks."""
        self.traffic.headers += self._collectives.header_bytes
        with self.waiting():
            return self._run(self._collectives.total, numbers, f"vectors of {exchange.name}", error)

    def vectors(self, vectors: Tensor, exchange: KeyExchange) -> Tensor:
        """The vectors `[distinct, dim]` of the keys that this rank has sent, for those `[m, dim]` that it has received.

        The ranks have met for them. They are differentiable any number of times: gradients go back to where the vectors
        came from, and are added up there in the order of ranks.
        """
        share = 1 / self.ranks if self.reduction == "mean" else 1.0
        result: Tensor = _Exchange.apply(vectors, self, exchange, False, False, 1.0, share)  # type: ignore[no-untyped-call]
        return result

    def answers(self, answers: Tensor, exchange: KeyExchange) -> Tensor:
        """The answers of other ranks for the keys that this rank has sent, `[distinct, …]`; its own are `[m, …]`."""
        return self._swapped(answers, exchange.counts, exchange.own.counts.tolist(), "answers")

    def values(self, values: Tensor, exchange: KeyExchange) -> Tensor:
        """The values that other ranks have for the keys that this rank has received, `[m, …]`.

        Its own, `[n, …]`, are of its distinct keys in the order in which it gave them to `exchange_keys`.
        """
        order = torch.from_numpy(exchange.own.inverse).long().argsort()
        return self._swapped(values[order], exchange.own.counts.tolist(), exchange.counts, "values")

    def _swapped(self, values: Tensor, sent: Sequence[int], got: Sequence[int], what: str) -> Tensor:
        away = values.to(self._collectives.device)
        return self._run(self._collectives.swapped, away, sent, got, f"{what}, {self._name}").to(values.device)

    def carry(self, lines: Tensor, exchange: KeyExchange, *, back: bool, meets: bool) -> Tensor:
        """Send vectors of the keys of an exchange, or their gradients `back`, in `wire_dtype`; gives the received ones.

        With `meets`, the ranks have not met for them yet.
        """
        kind = "gradients" if back else "vectors"
        what = f"{kind} of {exchange.name}"
        asked, own = exchange.counts, exchange.own.counts.tolist()
        sent, got = (own, asked) if back else (asked, own)
        packed = lines.to(lines.dtype if self.wire_dtype is None else self.wire_dtype).resolve_neg().contiguous()
        with self.waiting():
            if meets:
                self._run(self._collectives.meet, what)
                self.traffic.headers += self._collectives.header_bytes
            received = self._run(self._collectives.swapped, packed.view(torch.uint8), sent, got, what)
        away = (sum(sent) - sent[self.rank]) * packed.shape[1] * packed.element_size()
        setattr(self.traffic, kind, getattr(self.traffic, kind) + away)
        return received.view(packed.dtype).to(lines.dtype)

    # Agreement

    def do(self, action: Callable[[], Result], what: str, kind: type[Exception] | None = None) -> Result:
        """What an action gives, which all ranks carry out in their calling threads; it raises on all or on none."""
        result, error = attempt(action)
        if error is not None and self._collectives.is_known_to_all(error):  # an exchange in the action has raised it
            raise error
        self._run(self._collectives.meet, what, None, (), error, kind)
        return result  # type: ignore[return-value]

    def totals(self, numbers: Numbers, what: str) -> list[int]:
        """The sums of some numbers over the ranks."""
        return self._run(self._collectives.total, numbers, what)

    @property
    def part(self) -> RankShard:
        """What state dicts call this rank's part of the rows."""
        return RankShard(self.rank, self.ranks)

    def norm(self, own: Tensor, order: float) -> Tensor:
        """The p-norm, p being `order`, of a vector of which each rank has a part, from the parts' norms."""
        return self._run(self._collectives.norm, own, order)

    def of_all(self, own: list[Any], what: str) -> list[Any]:
        """The concatenated lists of all ranks."""
        return self._run(self._collectives.of_all, own, what)

    def _run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return self._collectives.run(function, *arguments)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside as waiting."""
        start = perf_counter()
        try:
            yield
        finally:
            self.traffic.waited += perf_counter() - start


def check_not_sharded(reduction: Reduction, wire_dtype: torch.dtype | None) -> None:
    """Raise ValueError for options that a table without ranks does not have."""
    if reduction != "mean" or wire_dtype is not None:
        raise ValueError("reduction and wire_dtype are for tables on several ranks: also give process_group")
