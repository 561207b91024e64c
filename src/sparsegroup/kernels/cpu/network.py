"""Both passes of a network as a program of few instructions, which one compiled kernel runs.

A `Tape` records the program. A batch is cut into parts, small enough for a core's cache, which threads take in turns;
torch's own BLAS multiplies the matrices. The gradients of the parts are added in their order: the bits are the same on
any number of threads.

Large matrices can be rounded to bfloat16 before they are multiplied, several times as fast where the CPU has AMX;
products are added in float32, and all else remains in float32.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core.errors import NumbaError
from torch import Tensor

from sparsegroup.kernels import rounding
from sparsegroup.kernels.cpu import tape, threads
from sparsegroup.kernels.cpu.intrinsics import on_stack
from sparsegroup.kernels.cpu.jit import address_of, array_at, call, call_int, inline, jitted, kernel
from sparsegroup.kernels.cpu.tape import Network, Tape
from sparsegroup.kernels.cpu.threads import done, enter, leave, take, wait

LEAST_ROWS, MOST_PIECES, MOST_GRADIENTS = 128, 16, 1 << 24
"""Bounds of a part's rows, of the number of pieces, and of the gradients of all pieces together."""

_BLOCK = 4_096
"""Gradients of which a thread adds those of all parts at a time."""

_FIRST, _SECOND = np.int64(0), np.int64(1)
_nearest_bits = inline(rounding.nearest_bits)
_residual: Any = None  # bound by `residuals_of`
_stack = on_stack(128)


@jitted
def _floats(address: Any, count: Any) -> Any:
    return array_at(address, count, np.float32(0))


@jitted
def _multiply(gemm: Any, stack: Any, m: Any, n: Any, k: Any, flags: Any, a: Any, b: Any, c: Any, strides: Any) -> None:
    """BLAS counts by columns, so to it all are transposed; its sizes may be int32 or int64."""
    sizes, letters = array_at(stack, 6, np.int64(0)), array_at(stack + 64, 2, np.uint8(0))
    factors = _floats(stack + 48, 2)
    sizes[0], sizes[1], sizes[2] = n, m, k
    sizes[3], sizes[4], sizes[5] = strides[2], strides[1], strides[0]
    factors[0], factors[1] = np.float32(1), np.float32(flags & tape.ADDED)
    letters[0], letters[1] = 78, 84  # N, T
    turn_b, turn_c = (
        stack + 64 + (flags & tape.B_TURNED) // tape.B_TURNED,
        stack + 64 + (flags & tape.C_TURNED) // tape.C_TURNED,
    )
    call(
        gemm,
        (turn_c, turn_b, stack, stack + 8, stack + 16, stack + 48, c, stack + 24, b, stack + 32, stack + 52, a,
         stack + 40),
    )  # fmt: skip


@jitted
def _times(m: Any, n: Any, flags: Any, a: Any, b: Any, c: Any, d: Any, strides: Any) -> None:
    least = np.float32(0) if flags & tape.RELU else np.float32(-np.inf)
    for _ in range(m):
        target, left, right = _floats(a, n), _floats(b, n), _floats(c, n)
        if flags & tape.BY_ROW:
            factor, right = right[0], _floats(d, n)
            for e in range(n):
                right[e] = factor
        if flags & tape.ADDED:
            for e in range(n):
                target[e] = max(target[e] + left[e] * right[e], least)
        else:
            for e in range(n):
                target[e] = left[e] * right[e]
        a, b, c = a + 4 * strides[0], b + 4 * strides[1], c + 4 * strides[2]


@jitted
def _round(m: Any, n: Any, a: Any, b: Any, strides: Any) -> None:
    for i in range(m):
        halves = array_at(a + 2 * i * strides[0], n, np.uint16(0))
        bits = array_at(b + 4 * i * strides[1], n, np.int32(0))
        for e in range(n):
            halves[e] = _nearest_bits(bits[e]) >> 16


@jitted
def _only_positive(m: Any, n: Any, a: Any, b: Any, strides: Any) -> None:
    zero = np.float32(0)
    for i in range(m):
        target, values = _floats(a + 4 * i * strides[0], n), _floats(b + 4 * i * strides[1], n)
        for e in range(n):
            target[e] = target[e] if values[e] > zero else zero


@jitted
def _address(bases: Any, steps: Any, program: Any, i: Any, word: Any, part: Any, piece: Any, memory: Any) -> Any:
    """Where an operand of instruction i is, whose base is at `word`."""
    base = program[i, word]
    place = memory if base == tape.MEMORY else piece if base == tape.GRADIENTS else part
    return bases[base] + steps[base] * place + program[i, word + 1]


def _residuals(count: Any, scores: Any, labels: Any, factors: Any, shape: Any, out: Any) -> None:
    scores, labels, factors, out = (
        _floats(scores, count), _floats(labels, count), _floats(factors, count), _floats(out, count),
    )  # fmt: skip
    for i in range(count):
        out[i] = _residual(scores[i], labels[i], np.float32(shape)) * factors[i]


def _run(
    turns: Any, sgemm: Any, bfloat16_gemm: Any, set_threads: Any, residuals: Any, shape: Any, program: Any, bases: Any,
    steps: Any, parts: Any, parts_of_piece: Any, keeps: Any, gradients: Any, count: Any,
) -> None:  # fmt: skip
    """Run a program for each part of a batch.

    An operand of part p is at its base + p times the base's step + its offset. Threads take pieces of several parts,
    whose gradients are added up in one place; with more than one piece the sum of all, `count`, goes to the address
    `gradients`, where that is not 0. Each part has memory of its own if the call `keeps` it for another program, else
    each thread. `set_threads` is the address of what sets the number of BLAS's own threads in this thread, `residuals`
    of what gives the logits' gradients, with a parameter `shape`.
    """
    stack = _stack()
    before = call_int(set_threads, np.int64(1))
    strides = array_at(stack + 80, 4, np.int64(0))
    pieces = parts // parts_of_piece
    thread = enter(turns)
    piece = take(turns, _FIRST, thread, pieces)
    while piece >= 0:
        for part in range(piece * parts_of_piece, (piece + 1) * parts_of_piece):
            memory = part if keeps else thread
            for i in range(program.shape[0]):
                operation, m, n, k, flags = program[i, 0], program[i, 1], program[i, 2], program[i, 3], program[i, 4]
                a = _address(bases, steps, program, i, 5, part, piece, memory)
                b = _address(bases, steps, program, i, 8, part, piece, memory)
                c = _address(bases, steps, program, i, 11, part, piece, memory)
                d = _address(bases, steps, program, i, 14, part, piece, memory)
                strides[0], strides[1], strides[2] = program[i, 7], program[i, 10], program[i, 13]
                if program[i, 5] == tape.GRADIENTS and part > piece * parts_of_piece:
                    flags |= tape.ADDED
                if operation == tape.MULTIPLY:
                    gemm = bfloat16_gemm if flags & tape.IN_BFLOAT16 else sgemm
                    _multiply(gemm, stack, m, n, k, flags, a, b, c, strides)
                elif operation == tape.TIMES:
                    _times(m, n, flags, a, b, c, d, strides)
                elif operation == tape.ONLY_POSITIVE:
                    _only_positive(m, n, a, b, strides)
                elif operation == tape.ROUND:
                    _round(m, n, a, b, strides)
                else:
                    call(residuals, (m, b, c, d, shape, a))
        done(turns, _FIRST)
        piece = take(turns, _FIRST, thread, pieces)
    if pieces > 1 and gradients != 0:
        blocks = (count + _BLOCK - 1) // _BLOCK
        block = take(turns, _SECOND, thread, blocks)
        if block >= 0:
            wait(turns, _FIRST, pieces)
        while block >= 0:
            size = min(count - block * _BLOCK, np.int64(_BLOCK))
            total = _floats(gradients + 4 * block * _BLOCK, size)
            for e in range(size):
                total[e] = np.float32(0)
            for p in range(pieces):
                some = _floats(bases[tape.GRADIENTS] + steps[tape.GRADIENTS] * p + 4 * block * _BLOCK, size)
                for e in range(size):
                    total[e] += some[e]
            block = take(turns, _SECOND, thread, blocks)
    call_int(set_threads, before)
    leave(turns, 0)


run = kernel(_run, "the passes of a network")


Residuals = tuple[int, float]
"""The address of what gives the residuals of an objective, see `residuals_of`, and the parameter that it takes."""


class _Layout:
    """Return the program for batches of this number of rows, with the memory of the program."""

    def __init__(
        self, network: Network, parameters: Sequence[Tensor], rows: int, flat_rounded: Tensor, *, rounds: bool
    ) -> None:
        count = sum(map(Tensor.numel, parameters))
        self.rows, gradients = rows, tape.whole_lines(count)
        self.parts, self.pieces = parts_of(rows, count)
        recorded = Tape(network, parameters, rows // self.parts, rounds)
        self.outputs = recorded.outputs
        self.program, self.forward_end, self.backward_start = recorded.program()
        self.part_memory = recorded.memory  # floats
        self.memory, self.ones = _memory(0), _memory(recorded.ones).fill_(1.0)
        self.of_pieces = _memory(self.pieces * gradients if self.pieces > 1 else 0)
        self.bases, steps = np.zeros((2, tape.PARAMETERS + len(parameters)), np.int64)
        self.bases[[tape.ONES, tape.ROUNDED]] = self.ones.data_ptr(), flat_rounded.data_ptr()
        steps[tape.MEMORY], steps[tape.GRADIENTS] = recorded.memory, gradients
        steps[[tape.EMBEDDINGS, tape.OF_EMBEDDINGS]] = recorded.rows * recorded.embedded
        steps[tape.NUMBERS] = recorded.rows * recorded.numbers
        steps[[tape.LOGITS, tape.OF_LOGITS]] = recorded.rows * recorded.outputs
        steps[[tape.LABELS, tape.FACTORS]] = recorded.rows
        self.steps = 4 * steps  # bytes


class NetworkPasses:
    """The forward and backward pass of one network, in float32 on the host.

    Args:
        network: The network.
        parameters: Its parameters, in their order.
        rounds: Whether large matrices are rounded to bfloat16 before they are multiplied.

    Raises:
        NotRecordableError: It cannot record the network.
    """

    def __init__(self, network: Network, parameters: Sequence[Tensor], rounds: bool = False) -> None:
        self._network, self._parameters, self._rounds = network, parameters, rounds
        self._blas = torch_blas()
        self._shapes = [parameter.shape for parameter in parameters]
        self._members = _members(network)
        self._count = sum(map(Tensor.numel, parameters))
        self._flat_rounded, self._rounded = self._like_parameters(torch.bfloat16)
        self._layout = self._laid_out(1)

    def __reduce__(self) -> tuple[Any, ...]:  # addresses are of one process and one object
        return NetworkPasses, (self._network, self._parameters, self._rounds)

    def takes(self, embeddings: Tensor | None = None, numbers: Tensor | None = None) -> bool:
        """Return whether it takes these inputs, and the network is the one that was recorded, and trained whole.

        All have to be float32 and on the host, and numbers without a gradient.
        """
        given = [*self._parameters, *(one for one in (embeddings, numbers) if one is not None)]
        return (
            self._blas is not None
            and all(one.dtype is torch.float32 and one.is_cpu for one in given)
            and all(one.requires_grad and one.is_contiguous() and not one.is_neg() for one in self._parameters)
            and all(one.shape == shape for one, shape in zip(self._parameters, self._shapes, strict=True))
            and all(members.get(name) is member for members, name, member in self._members)
            and not (numbers is not None and numbers.requires_grad)
        )

    def forward(self, embeddings: Tensor, numbers: Tensor | None) -> Tensor:
        """Return the logits `[n, outputs]` of embeddings `[n, fields, dim]` and numbers `[n, numbers]`."""
        logits = self._begin(embeddings, numbers)
        self._share(self._layout.program[: self._layout.forward_end], 0, keeps=True)
        return logits

    def backward(self, of_logits: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the gradients of the parameters and the embeddings of the last `forward`, by that of the logits."""
        layout = self._layout
        of_logits = of_logits.to(torch.float32).resolve_neg().contiguous()
        if of_logits.numel() != layout.rows * layout.outputs:
            raise ValueError(f"the gradient of logits must be [{layout.rows}, {layout.outputs}], got {of_logits.shape}")
        flat, gradients, of_embeddings = self._begin_backward(of_logits)
        self._share(layout.program[layout.backward_start :], flat.data_ptr(), keeps=True)
        return gradients, of_embeddings

    def step(
        self, embeddings: Tensor, numbers: Tensor | None, residuals: Residuals, labels: Tensor, factors: Tensor
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """Compute both passes in one, a part after the other, for a network of one output.

        Args:
            embeddings, numbers: As `forward`.
            residuals: Those of an objective.
            labels, factors: `[n]`.

        Returns:
            Logits `[n, 1]` and the gradients of the parameters and the embeddings. The gradient of a logit is its
            residual for its label, times its factor.

        Raises:
            ValueError: Labels or factors have another shape.
        """
        for name, one in (("labels", labels), ("factors", factors)):
            if one.shape != embeddings.shape[:1]:
                raise ValueError(f"{name} must be [{len(embeddings)}], got {list(one.shape)}")
        logits = self._begin(embeddings, numbers)
        layout, of_logits = self._layout, torch.empty_like(logits)
        labels, factors = (one.to(torch.float32).resolve_neg().contiguous() for one in (labels, factors))
        layout.bases[tape.LABELS], layout.bases[tape.FACTORS] = labels.data_ptr(), factors.data_ptr()
        flat, gradients, of_embeddings = self._begin_backward(of_logits)
        self._share(layout.program, flat.data_ptr(), residuals, keeps=False)
        return logits, gradients, of_embeddings

    def _begin(self, embeddings: Tensor, numbers: Tensor | None) -> Tensor:
        """Return memory for the logits, where the program finds it, as it does the inputs."""
        if self._layout.rows != len(embeddings):
            self._layout = self._laid_out(len(embeddings))
        bases, outputs = self._layout.bases, self._layout.outputs
        if self._rounds:
            with torch.no_grad():
                torch._foreach_copy_(self._rounded, list(self._parameters))
        numbers = None if numbers is None else numbers.resolve_neg().contiguous()
        self._inputs = embeddings.resolve_neg().contiguous(), numbers
        logits = _memory(len(embeddings) * outputs).view(-1, outputs)
        bases[tape.EMBEDDINGS], bases[tape.LOGITS] = self._inputs[0].data_ptr(), logits.data_ptr()
        if self._inputs[1] is not None:
            bases[tape.NUMBERS] = self._inputs[1].data_ptr()
        bases[tape.PARAMETERS :] = [parameter.data_ptr() for parameter in self._parameters]
        return logits

    def _begin_backward(self, of_logits: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """Return memory for the gradients, flat and as those of the parameters and the embeddings."""
        flat, gradients = self._like_parameters()
        layout, of_embeddings = self._layout, torch.empty_like(self._inputs[0])
        layout.bases[tape.OF_LOGITS], layout.bases[tape.OF_EMBEDDINGS] = of_logits.data_ptr(), of_embeddings.data_ptr()
        layout.bases[tape.GRADIENTS] = flat.data_ptr() if layout.pieces == 1 else layout.of_pieces.data_ptr()
        return flat, gradients, of_embeddings

    def _like_parameters(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, list[Tensor]]:
        """Return new memory for numbers shaped as the parameters, and these."""
        flat = _memory(self._count, dtype)
        pieces = torch.split(flat, [parameter.numel() for parameter in self._parameters])
        return flat, list(map(Tensor.view_as, pieces, self._parameters))

    def _laid_out(self, rows: int) -> _Layout:
        return _Layout(self._network, self._parameters, rows, self._flat_rounded, rounds=self._rounds)

    def _share(self, program: Any, gradients: int, residuals: Residuals = (0, 0.0), *, keeps: bool) -> None:
        assert self._blas is not None
        layout = self._layout
        places = layout.parts if keeps else threads.get_num_threads()
        if len(layout.memory) < places * layout.part_memory:
            layout.memory = _memory(places * layout.part_memory)
            layout.bases[tape.MEMORY] = layout.memory.data_ptr()
        threads.share(
            run, *self._blas, *residuals, program, layout.bases, layout.steps, layout.parts,
            layout.parts // layout.pieces, keeps, gradients, self._count, alone=layout.pieces == 1,
        )  # fmt: skip


def _memory(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(count, dtype=dtype, device="cpu")


def _members(network: Any) -> list[tuple[dict[str, Any], str, object]]:
    """The modules and parameters of a network, and where it has them."""
    return [
        (members, name, member)
        for module in network.modules()
        for members in (module._modules, module._parameters)
        for name, member in members.items()
    ]


def parts_of(rows: int, weights: int) -> tuple[int, int]:
    """How many equal parts a batch is cut into, and how many pieces these make: powers of two.

    A part has at least 128 rows, and not twice as many if that can be; there are at most 16 pieces.

    Examples:
        >>> [parts_of(rows, 30_000) for rows in (64, 512, 8_192, 4_097)]
        [(1, 1), (4, 4), (64, 16), (1, 1)]
    """
    parts = pieces = 1
    while rows % (2 * parts) == 0 and rows // (2 * parts) >= LEAST_ROWS:
        parts *= 2
    while pieces < min(parts, MOST_PIECES) and 2 * pieces * weights <= MOST_GRADIENTS:
        pieces *= 2
    return parts, pieces


@cache
def residuals_of(residual: Callable[..., Any]) -> int | None:
    """The address of the residuals of an objective, for `NetworkPasses.step`; None if Numba cannot compile them."""
    signature = types.void(*(types.int64,) * 4, types.float64, types.int64)
    try:
        return address_of(_residuals, signature, {"_residual": inline(residual)}, residual.__qualname__)
    except NumbaError:
        return None


class Blas(NamedTuple):
    """Addresses of functions of torch's own BLAS."""

    sgemm: int
    bfloat16_gemm: int  # of bfloat16 into float32; 0 where there is none
    set_threads: int  # sets BLAS's number of threads in a thread


@cache
def torch_blas() -> Blas | None:
    """The addresses of what multiplies torch's matrices; None unless it is MKL's."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    library = ctypes.CDLL(str(path)) if path.exists() else None
    functions = [getattr(library, name, None) for name in ("sgemm_", "gemm_bf16bf16f32_", "MKL_Set_Num_Threads_Local")]
    sgemm, bfloat16_gemm, set_threads = (ctypes.cast(one, ctypes.c_void_p).value if one else 0 for one in functions)
    return Blas(sgemm, bfloat16_gemm or 0, set_threads) if sgemm and set_threads else None


@cache
def has_amx() -> bool:
    """Whether the CPU multiplies matrices of bfloat16, and torch's BLAS makes use of it."""
    blas = torch_blas()
    return blas is not None and blas.bfloat16_gemm != 0 and get_host_cpu_features().get("amx-bf16", False)
