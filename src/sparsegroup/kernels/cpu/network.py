"""Both passes of a network as a program of few instructions, which one compiled kernel runs.

A `Tape` records what a network does, and from that its gradients. A batch is cut into parts, which threads take in
turns; torch's own BLAS multiplies the matrices. The gradients of the parts are added in their order: the bits are the
same on any number of threads.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from sys import getrefcount
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from sparsegroup.kernels.cpu import threads
from sparsegroup.kernels.cpu.intrinsics import on_stack
from sparsegroup.kernels.cpu.jit import array_at, call, call_int, jitted, kernel
from sparsegroup.kernels.cpu.threads import done, enter, leave, take, wait

LEAST_ROWS, MOST_PARTS, MOST_GRADIENTS = 128, 32, 1 << 24
"""Bounds of a part's rows, of the number of parts, and of the gradients of all parts together."""

# What an instruction does to its operands a, b, c, d, matrices in rows.
_MULTIPLY = 0  # a [m, n] = b [m, k] c [k, n]
_TIMES = 1  # a [m, n] = b ⊙ c
_ONLY_POSITIVE = 2  # a [m, n] = 0 where b is not positive
_SCALES, _SCALES_GRADIENT = 3, 4  # see `Tape.cross_vectors`

# Flags of an instruction.
_ADDED = 1  # to a
_B_TURNED, _C_TURNED = 2, 4  # _MULTIPLY: stored as [k, m], as [n, k]
_RELU = 2  # _TIMES: then a = 0 where it is negative
_BY_ROW = 4  # _TIMES: c is [m, 1], and d is memory for a row

_WORDS = 5 + 4 * 3
"""Of an instruction: operation, sizes m, n, k, flags, and of each of the operands base, offset in bytes and stride."""

# Bases of operands; the parameters follow.
_MEMORY, _ONES, _EMBEDDINGS, _NUMBERS, _LOGITS, _OF_LOGITS, _OF_EMBEDDINGS, _GRADIENTS, _PARAMETERS = range(9)

_REFERENCES = max(getrefcount(one) for one in [object()])
"""To what only a list has, as one who goes through the list counts them."""

_BLOCK = 4_096
"""Gradients of which a thread adds those of all parts at a time."""

_FIRST, _SECOND = np.int64(0), np.int64(1)
_stack = on_stack(128)


@jitted
def _floats(address: Any, count: Any) -> Any:
    return array_at(address, count, np.float32(0))


@jitted
def _multiply(sgemm: Any, stack: Any, m: Any, n: Any, k: Any, flags: Any, a: Any, b: Any, c: Any, strides: Any) -> None:
    """BLAS counts by columns, so to it all are transposed; its sizes may be int32 or int64."""
    sizes, letters = array_at(stack, 6, np.int64(0)), array_at(stack + 64, 2, np.uint8(0))
    factors = _floats(stack + 48, 2)
    sizes[0], sizes[1], sizes[2] = n, m, k
    sizes[3], sizes[4], sizes[5] = strides[2], strides[1], strides[0]
    factors[0], factors[1] = np.float32(1), np.float32(flags & _ADDED)
    letters[0], letters[1] = 78, 84  # N, T
    turn_b, turn_c = stack + 64 + (flags & _B_TURNED) // _B_TURNED, stack + 64 + (flags & _C_TURNED) // _C_TURNED
    call(
        sgemm,
        (turn_c, turn_b, stack, stack + 8, stack + 16, stack + 48, c, stack + 24, b, stack + 32, stack + 52, a,
         stack + 40),
    )  # fmt: skip


@jitted
def _times(m: Any, n: Any, flags: Any, a: Any, b: Any, c: Any, d: Any, strides: Any) -> None:
    least = np.float32(0) if flags & _RELU else np.float32(-np.inf)
    for _ in range(m):
        target, left, right = _floats(a, n), _floats(b, n), _floats(c, n)
        if flags & _BY_ROW:
            factor, right = right[0], _floats(d, n)
            for e in range(n):
                right[e] = factor
        if flags & _ADDED:
            for e in range(n):
                target[e] = max(target[e] + left[e] * right[e], least)
        else:
            for e in range(n):
                target[e] = left[e] * right[e]
        a, b, c = a + 4 * strides[0], b + 4 * strides[1], c + 4 * strides[2]


@jitted
def _only_positive(m: Any, n: Any, a: Any, b: Any, strides: Any) -> None:
    zero = np.float32(0)
    for i in range(m):
        target, values = _floats(a + 4 * i * strides[0], n), _floats(b + 4 * i * strides[1], n)
        for e in range(n):
            target[e] = target[e] if values[e] > zero else zero


@jitted
def _scales(m: Any, layers: Any, a: Any, b: Any, c: Any) -> None:
    """a [m, layers + 1] = a_0 … of products b [m, layers] and constants c [layers]."""
    scales, products, constants = _floats(a, m * (layers + 1)), _floats(b, m * layers), _floats(c, layers)
    for i in range(m):
        scale = np.float32(1)
        scales[i * (layers + 1)] = scale
        for layer in range(layers):
            scale += scale * products[i * layers + layer] + (constants[layer] if layer > 0 else np.float32(0))
            scales[i * (layers + 1) + layer + 1] = scale


@jitted
def _scales_gradient(m: Any, layers: Any, a: Any, b: Any, c: Any, d: Any) -> None:
    """By a_1 … a [m, layers], whose last column is given, and by the products b [m, layers], of a_0 … c, products d."""
    of_scales, of_products = _floats(a, m * layers), _floats(b, m * layers)
    scales, products = _floats(c, m * (layers + 1)), _floats(d, m * layers)
    for i in range(m):
        of_scale = of_scales[i * layers + layers - 1]
        for layer in range(layers - 1, -1, -1):
            of_scales[i * layers + layer] = of_scale
            of_products[i * layers + layer] = of_scale * scales[i * (layers + 1) + layer]
            of_scale += of_scale * products[i * layers + layer]


def _run(
    turns: Any, sgemm: Any, set_threads: Any, program: Any, bases: Any, steps: Any, parts: Any, gradients: Any,
    count: Any,
) -> None:  # fmt: skip
    """Run a program for each part: an operand of part p is at its base + p times the base's step + its offset.

    With more than one part the sum of the parts' `count` gradients goes to the address `gradients`, where that is not
    0. `set_threads` is the address of what sets the number of BLAS's own threads in this thread.
    """
    stack = _stack()
    before = call_int(set_threads, np.int64(1))
    strides = array_at(stack + 80, 4, np.int64(0))
    thread = enter(turns)
    part = take(turns, _FIRST, thread, parts)
    while part >= 0:
        for i in range(program.shape[0]):
            operation, m, n, k, flags = program[i, 0], program[i, 1], program[i, 2], program[i, 3], program[i, 4]
            a = bases[program[i, 5]] + steps[program[i, 5]] * part + program[i, 6]
            b = bases[program[i, 8]] + steps[program[i, 8]] * part + program[i, 9]
            c = bases[program[i, 11]] + steps[program[i, 11]] * part + program[i, 12]
            d = bases[program[i, 14]] + steps[program[i, 14]] * part + program[i, 15]
            strides[0], strides[1], strides[2] = program[i, 7], program[i, 10], program[i, 13]
            if operation == _MULTIPLY:
                _multiply(sgemm, stack, m, n, k, flags, a, b, c, strides)
            elif operation == _TIMES:
                _times(m, n, flags, a, b, c, d, strides)
            elif operation == _ONLY_POSITIVE:
                _only_positive(m, n, a, b, strides)
            elif operation == _SCALES:
                _scales(m, k, a, b, c)
            else:
                _scales_gradient(m, k, a, b, c, d)
        done(turns, _FIRST)
        part = take(turns, _FIRST, thread, parts)
    if parts > 1 and gradients != 0:
        blocks = (count + _BLOCK - 1) // _BLOCK
        block = take(turns, _SECOND, thread, blocks)
        if block >= 0:
            wait(turns, _FIRST, parts)
        while block >= 0:
            size = min(count - block * _BLOCK, np.int64(_BLOCK))
            total = _floats(gradients + 4 * block * _BLOCK, size)
            for e in range(size):
                total[e] = np.float32(0)
            for p in range(parts):
                some = _floats(bases[_GRADIENTS] + steps[_GRADIENTS] * p + 4 * block * _BLOCK, size)
                for e in range(size):
                    total[e] += some[e]
            block = take(turns, _SECOND, thread, blocks)
    call_int(set_threads, before)
    leave(turns, 0)


run = kernel(_run, "the passes of a network")


def _compile() -> None:
    blas, nothing = torch_blas(), np.zeros(0, np.int64)
    if blas is not None:
        run(threads.new(), *blas, np.zeros((0, _WORDS), np.int64), nothing, nothing, 0, 0, 0)


JOB = run, _compile
"""For `compile_ahead`."""


class Matrix(NamedTuple):
    """`[rows, columns]` float32 in the memory of one of the bases, rows `stride` apart, from `offset` elements on."""

    base: int
    offset: int
    columns: int
    stride: int

    def narrow(self, start: int, columns: int) -> "Matrix":
        """Some of the columns."""
        return Matrix(self.base, self.offset + start, columns, self.stride)

    def row(self, number: int) -> "Matrix":
        """One of the rows."""
        return Matrix(self.base, self.offset + number * self.stride, self.columns, self.stride)

    def repeated(self) -> "Matrix":
        """The first row, as each of the rows."""
        return Matrix(self.base, self.offset, self.columns, 0)


_ONE = Matrix(_ONES, 0, 1, 0)
"""A matrix of any size of ones, to `_TIMES`; and a column of any length, to `_MULTIPLY`."""
_ONE_COLUMN = Matrix(_ONES, 0, 1, 1)


class NotRecordableError(Exception):
    """A network whose layers or parameters are not what its `record` describes."""


class Value:
    """What a network computes on the way, `[rows, columns]`, and the place of the loss's gradient by it."""

    def __init__(self, matrix: Matrix, gradient: Matrix | None = None) -> None:
        self.matrix = matrix
        self.gradient = gradient
        self.has_gradient = False


class Tape:
    """Records a network, operation by operation, for parts of `rows` rows; each parameter is used once.

    Args:
        parameters: The network's, in their order.
        rows: Rows of a part.
        embedded: Numbers in the embeddings of a row, at least 1.
        numbers: Other numbers of a row.
        outputs: Logits of a row.

    Raises:
        NotRecordableError: Nothing is embedded; or, by a method, a layer does not fit what it takes, or a parameter is
            used twice or never.
    """

    def __init__(self, parameters: Sequence[Tensor], rows: int, embedded: int, numbers: int, outputs: int) -> None:
        if not embedded:
            raise NotRecordableError("there are no embeddings")
        self.rows = rows
        self.outputs = outputs
        self.memory = self.ones = 0
        self._places: dict[int, tuple[int, int]] = {}
        offset = 0
        for number, parameter in enumerate(parameters):
            if parameter.numel():
                self._places[id(parameter)] = number, offset
            offset += parameter.numel()
        self._forward: list[tuple[int, ...]] = []
        self._gradients: list[Callable[[], None]] = []
        self._backward: list[tuple[int, ...]] = []
        given = Matrix(_EMBEDDINGS, 0, embedded, embedded)
        width = embedded + numbers
        self.input = Value(self._new(width) if numbers else given, Matrix(_OF_EMBEDDINGS, 0, embedded, embedded))
        """The embeddings with the numbers, `[rows, embedded + numbers]`; with its gradient by the embeddings."""
        if numbers:
            self._emit(_TIMES, (rows, embedded), 0, self.input.matrix.narrow(0, embedded), given, _ONE)
            others = self.input.matrix.narrow(embedded, numbers)
            self._emit(_TIMES, (rows, numbers), 0, others, Matrix(_NUMBERS, 0, numbers, numbers), _ONE)

    def linear(
        self, inputs: Sequence[Value], weight: Tensor, bias: Tensor | None = None, *, relu: bool = False
    ) -> Value:
        """x Wᵀ + b of the inputs side by side, with weight `[columns, their columns]` and bias `[columns]`."""
        return self._linear(inputs, weight, bias, Value(self._new(len(weight))), relu)

    def logits(self, inputs: Sequence[Value], weight: Tensor, bias: Tensor) -> None:
        """The last layer: as `linear`."""
        shape = 0, self.outputs, self.outputs
        out = Value(Matrix(_LOGITS, *shape), Matrix(_OF_LOGITS, *shape))
        out.has_gradient = True
        self._linear(inputs, weight, bias, out, False)

    def _linear(self, inputs: Sequence[Value], weight: Tensor, bias: Tensor | None, out: Value, relu: bool) -> Value:
        size, width = weight.shape
        if width != sum(x.matrix.columns for x in inputs) or size != out.matrix.columns:
            raise NotRecordableError(f"a layer of weights {list(weight.shape)} does not fit")
        weights, of_weights = self._parameter(weight, width)
        parts = list(zip(inputs, _starts(inputs), strict=True))
        for number, (x, start) in enumerate(parts):
            columns = x.matrix.columns
            weights_of_x = weights.narrow(start, columns)
            flags = _C_TURNED | _ADDED * (number > 0)
            self._emit(_MULTIPLY, (self.rows, size, columns), flags, out.matrix, x.matrix, weights_of_x)
        biases = None if bias is None else self._parameter(bias, size)
        if biases is not None:
            flags = _ADDED | _RELU * relu
            self._emit(_TIMES, (self.rows, size), flags, out.matrix, biases[0].repeated(), _ONE)

        def gradients() -> None:
            assert out.gradient is not None
            assert out.has_gradient
            if relu:
                self._emit(_ONLY_POSITIVE, (self.rows, size), 0, out.gradient, out.matrix)
            if biases is not None:
                self._sum_rows(biases[1], out.gradient)
            for x, start in parts:
                columns = x.matrix.columns
                of_weight = of_weights.narrow(start, columns)
                self._emit(_MULTIPLY, (size, columns, self.rows), _B_TURNED, of_weight, out.gradient, x.matrix)
                self._back(x, out.gradient, weights.narrow(start, columns))

        self._gradients.append(gradients)
        return out

    def cross(self, first: Value, x: Value, product: Value) -> Value:
        """x_0 ⊙ product + x (eq. 1 of DCN-V2)."""
        columns = x.matrix.columns
        if not columns == first.matrix.columns == product.matrix.columns:
            raise NotRecordableError("the cross layers do not fit")
        out, shape = Value(self._new(columns)), (self.rows, columns)
        self._emit(_TIMES, shape, 0, out.matrix, first.matrix, product.matrix)
        self._emit(_TIMES, shape, _ADDED, out.matrix, x.matrix, _ONE)

        def gradients() -> None:
            assert out.gradient is not None
            product.gradient, product.has_gradient = self._new(columns), True
            self._emit(_TIMES, shape, 0, product.gradient, out.gradient, first.matrix)
            self._into(first, out.gradient, product.matrix)
            if x is first:
                self._into(x, out.gradient, _ONE)
            else:
                assert not x.has_gradient
                x.gradient, x.has_gradient = out.gradient, True

        self._gradients.append(gradients)
        return out

    def cross_vectors(self, x: Value, weight: Tensor, bias: Tensor) -> Value:
        """The last of DCN's cross layers (eq. 3 of DCN) with weight and bias `[layers, columns of x]`.

        x_l = a_l x_0 + B_l with B_l = b_0 + … + b_{l-1}, a_0 = 1 and a_{l+1} = a_l (1 + x_0 · w_l) + B_l · w_l.
        """
        layers, width = weight.shape
        if width != x.matrix.columns or bias.shape != weight.shape:
            raise NotRecordableError("the cross layers do not fit")
        (weights, of_weights), (biases, of_biases) = self._parameter(weight, width), self._parameter(bias, width)
        scales, products, constants = self._new(layers + 1), self._new(layers), self._new_row(layers)
        of_scales, of_products, spare = self._new(layers), self._new(layers), self._new_row(width)
        totals = [biases.row(0)]
        for layer in range(1, layers):
            constant, before = constants.narrow(layer, 1), totals[-1]
            self._emit(_MULTIPLY, (1, 1, width), _C_TURNED, constant, before, weights.row(layer))
            totals.append(self._new_row(width))
            self._emit(_TIMES, (1, width), 0, totals[-1], biases.row(layer), _ONE)
            self._emit(_TIMES, (1, width), _ADDED, totals[-1], before, _ONE)
        out, shape = Value(self._new(width)), (self.rows, width)
        self._emit(_MULTIPLY, (self.rows, layers, width), _C_TURNED, products, x.matrix, weights)
        self._emit(_SCALES, (self.rows, 0, layers), 0, scales, products, constants)
        last = scales.narrow(layers, 1)
        self._emit(_TIMES, shape, _BY_ROW, out.matrix, x.matrix, last, spare)
        self._emit(_TIMES, shape, _ADDED, out.matrix, totals[-1].repeated(), _ONE)

        def gradients() -> None:
            assert out.gradient is not None
            elements = self._new(width)
            self._emit(_TIMES, shape, 0, elements, out.gradient, x.matrix)
            of_last = of_scales.narrow(layers - 1, 1)
            self._emit(_MULTIPLY, (self.rows, 1, width), 0, of_last, elements, _ONE_COLUMN)
            self._emit(_SCALES_GRADIENT, (self.rows, 0, layers), 0, of_scales, of_products, scales, products)
            self._into(x, out.gradient, last, spare, flags=_BY_ROW)
            self._emit(_MULTIPLY, (layers, width, self.rows), _B_TURNED, of_weights, of_products, x.matrix)
            self._back(x, of_products, weights)
            of_total = self._new_row(width)
            self._sum_rows(of_total, out.gradient)
            for layer in range(layers - 1, -1, -1):
                self._emit(_TIMES, (1, width), 0, of_biases.row(layer), of_total, _ONE)
                if layer > 0:
                    of_constant = self._new_row(1)
                    self._sum_rows(of_constant, of_scales.narrow(layer, 1))
                    of_row = of_weights.row(layer)
                    self._emit(_MULTIPLY, (1, width, 1), _ADDED, of_row, of_constant, totals[layer - 1])
                    self._emit(_MULTIPLY, (1, width, 1), _ADDED, of_total, of_constant, weights.row(layer))

        self._gradients.append(gradients)
        return out

    def programs(self) -> tuple[Any, Any]:
        """The instructions of the forward and the backward pass, `[instructions, words]` int64."""
        if self._places:
            raise NotRecordableError("a parameter is not used")
        forward, self._forward = self._forward, self._backward
        for gradients in reversed(self._gradients):
            gradients()
        return np.array(forward, np.int64), np.array(self._forward, np.int64)

    def _back(self, x: Value, gradient: Matrix, weights: Matrix) -> None:
        """Multiply a gradient with weights, into or onto that of `x`."""
        if x.gradient is None:
            x.gradient = self._new(x.matrix.columns)
        columns = x.gradient.columns
        shape = self.rows, columns, gradient.columns
        self._emit(_MULTIPLY, shape, _ADDED * x.has_gradient, x.gradient, gradient, weights.narrow(0, columns))
        x.has_gradient = True

    def _into(self, x: Value, *operands: Matrix, flags: int = 0) -> None:
        """Write or add a product of elements to the gradient of `x`, which has a place."""
        assert x.gradient is not None
        shape = self.rows, x.gradient.columns
        self._emit(_TIMES, shape, flags | _ADDED * x.has_gradient, x.gradient, *operands)
        x.has_gradient = True

    def _sum_rows(self, total: Matrix, matrix: Matrix) -> None:
        ones = Matrix(_ONES, 0, self.rows, self.rows)
        self._emit(_MULTIPLY, (1, matrix.columns, self.rows), 0, total, ones, matrix)

    def _parameter(self, parameter: Tensor, columns: int) -> tuple[Matrix, Matrix]:
        if id(parameter) not in self._places:
            raise NotRecordableError("a parameter is not the network's, or used twice")
        number, offset = self._places.pop(id(parameter))
        return Matrix(_PARAMETERS + number, 0, columns, columns), Matrix(_GRADIENTS, offset, columns, columns)

    def _new(self, columns: int) -> Matrix:
        return Matrix(_MEMORY, self._allocate(self.rows * columns), columns, columns)

    def _new_row(self, columns: int) -> Matrix:
        return Matrix(_MEMORY, self._allocate(columns), columns, columns)

    def _allocate(self, count: int) -> int:
        offset = self.memory
        self.memory += _whole_lines(count)
        return offset

    def _emit(self, operation: int, shape: tuple[int, ...], flag: int, *operands: Matrix) -> None:
        self.ones = max(self.ones, *shape)
        words = [operation, *shape, *[0] * (3 - len(shape)), flag]
        for operand in operands:
            words += operand.base, 4 * operand.offset, operand.stride
        self._forward.append((*words, *[0] * (_WORDS - len(words))))


def _whole_lines(count: int) -> int:
    """At least `count` floats, in whole cache lines."""
    return -(-count // 16) * 16


def _starts(inputs: Sequence[Value]) -> list[int]:
    """The column at which each of values side by side begins."""
    starts = [0]
    for x in inputs:
        starts.append(starts[-1] + x.matrix.columns)
    return starts[:-1]


class Recordable(Protocol):
    """A network that a `Tape` can record, with `record`, from its `Tape.input` to its logits."""

    fields: int
    dim: int
    numbers: int
    output: torch.nn.Linear

    def record(self, tape: Tape) -> None:
        """Record what `forward` does."""


class _Layout(NamedTuple):
    """The programs for batches of as many rows, and their memory."""

    rows: int
    parts: int
    forward: Any
    backward: Any
    memory: list[Tensor]  # whose addresses are in `bases`
    of_parts: Tensor
    bases: Any
    steps: Any


class NetworkPasses:
    """The forward and backward pass of one network, in float32 on the host.

    Raises:
        NotRecordableError: It cannot record the network.
    """

    def __init__(self, network: Recordable, parameters: Sequence[Tensor]) -> None:
        self._network, self._parameters = network, parameters
        self._blas = torch_blas()
        self._embedded, self._outputs = network.fields * network.dim, network.output.out_features
        self._shapes = [parameter.shape for parameter in parameters]
        self._members = _members(network)
        self._count = sum(map(Tensor.numel, parameters))
        self._layout = self._laid_out(1)
        self._flat, self._gradients = self._new_gradients()

    def __reduce__(self) -> tuple[Any, ...]:  # addresses are of one process and one object
        return NetworkPasses, (self._network, self._parameters)

    def takes(self, embeddings: Tensor | None = None, numbers: Tensor | None = None) -> bool:
        """Whether it takes these inputs, and the network is the one that was recorded, and trained whole.

        All have to be float32 and on the host, and numbers without a gradient.
        """
        given = [*self._parameters, *(one for one in (embeddings, numbers) if one is not None)]
        return (
            self._blas is not None
            and all(one.dtype is torch.float32 and one.is_cpu for one in given)
            and all(one.requires_grad and one.is_contiguous() for one in self._parameters)
            and all(one.shape == shape for one, shape in zip(self._parameters, self._shapes, strict=True))
            and all(members.get(name) is member for members, name, member in self._members)
            and not (numbers is not None and numbers.requires_grad)
        )

    def forward(self, embeddings: Tensor, numbers: Tensor | None) -> Tensor:
        """The logits `[n, outputs]` of embeddings `[n, fields, dim]` and numbers `[n, numbers]`."""
        if self._layout.rows != len(embeddings):
            self._layout = self._laid_out(len(embeddings))
        bases = self._layout.bases
        self._inputs = embeddings.contiguous(), None if numbers is None else numbers.contiguous()
        logits = _memory(len(embeddings) * self._outputs).view(-1, self._outputs)
        bases[_EMBEDDINGS], bases[_LOGITS] = self._inputs[0].data_ptr(), logits.data_ptr()
        if self._inputs[1] is not None:
            bases[_NUMBERS] = self._inputs[1].data_ptr()
        bases[_PARAMETERS:] = [parameter.data_ptr() for parameter in self._parameters]
        self._share(self._layout.forward, 0)
        return logits

    def backward(self, of_logits: Tensor) -> tuple[list[Tensor], Tensor]:
        """The gradients of the parameters and the embeddings of the last `forward`, by that of the logits.

        Those of the parameters are in the same memory each time, unless a parameter still has a gradient, or somebody
        else has one of them. (That a view of one exists is not seen.)
        """
        if any(one.grad is not None for one in self._parameters) or any(
            getrefcount(gradient) > _REFERENCES for gradient in self._gradients
        ):
            self._flat, self._gradients = self._new_gradients()
        layout = self._layout
        of_logits = of_logits.to(torch.float32).contiguous()
        if of_logits.numel() != layout.rows * self._outputs:
            raise ValueError(f"the gradient of logits must be [{layout.rows}, {self._outputs}], got {of_logits.shape}")
        of_embeddings, flat = torch.empty_like(self._inputs[0]), self._flat.data_ptr()
        layout.bases[_OF_LOGITS], layout.bases[_OF_EMBEDDINGS] = of_logits.data_ptr(), of_embeddings.data_ptr()
        layout.bases[_GRADIENTS] = flat if layout.parts == 1 else layout.of_parts.data_ptr()
        self._share(layout.backward, flat)
        return self._gradients, of_embeddings

    def _new_gradients(self) -> tuple[Tensor, list[Tensor]]:
        flat = _memory(self._count)
        pieces = torch.split(flat, [parameter.numel() for parameter in self._parameters])
        return flat, [piece.view(one.shape) for piece, one in zip(pieces, self._parameters, strict=True)]

    def _laid_out(self, rows: int) -> _Layout:
        parts, numbers = parts_of(rows, self._count), self._network.numbers
        tape = Tape(self._parameters, rows // parts, self._embedded, numbers, self._outputs)
        self._network.record(tape)
        forward, backward = tape.programs()
        gradients = _whole_lines(self._count)
        memory, ones = _memory(parts * tape.memory), _memory(tape.ones).fill_(1.0)
        bases, steps = np.zeros((2, _PARAMETERS + len(self._parameters)), np.int64)
        bases[_MEMORY], bases[_ONES] = memory.data_ptr(), ones.data_ptr()
        steps[_MEMORY], steps[_GRADIENTS] = tape.memory, gradients
        steps[[_EMBEDDINGS, _OF_EMBEDDINGS]] = tape.rows * self._embedded
        steps[_NUMBERS] = tape.rows * numbers
        steps[[_LOGITS, _OF_LOGITS]] = tape.rows * self._outputs
        of_parts = _memory(parts * gradients if parts > 1 else 0)
        return _Layout(rows, parts, forward, backward, [memory, ones], of_parts, bases, 4 * steps)

    def _share(self, program: Any, gradients: int) -> None:
        assert self._blas is not None
        layout = self._layout
        threads.share(
            run, *self._blas, program, layout.bases, layout.steps, layout.parts, gradients, self._count,
            alone=layout.parts == 1,
        )  # fmt: skip


def _memory(count: int) -> Tensor:
    return torch.empty(count, dtype=torch.float32, device="cpu")


def _members(network: Any) -> list[tuple[dict[str, Any], str, object]]:
    """The modules and parameters of a network, and where it has them."""
    return [
        (members, name, member)
        for module in network.modules()
        for members in (module._modules, module._parameters)
        for name, member in members.items()
    ]


def parts_of(rows: int, weights: int) -> int:
    """How many equal parts a batch is cut into, a power of two: of at least 128 rows, and at most 32.

    Examples:
        >>> [parts_of(rows, 30_000) for rows in (64, 512, 8_192, 4_097)]
        [1, 4, 32, 1]
    """
    parts = 1
    while (
        parts < MOST_PARTS
        and rows % (2 * parts) == 0
        and rows // (2 * parts) >= LEAST_ROWS
        and 2 * parts * weights <= MOST_GRADIENTS
    ):
        parts *= 2
    return parts


@cache
def torch_blas() -> tuple[int, int] | None:
    """The addresses of torch's `sgemm` and of what sets its number of threads in a thread; None unless it is MKL's."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    library = ctypes.CDLL(str(path)) if path.exists() else None
    functions = [getattr(library, name, None) for name in ("sgemm_", "MKL_Set_Num_Threads_Local")]
    sgemm, set_threads = (ctypes.cast(one, ctypes.c_void_p).value if one else None for one in functions)
    return (sgemm, set_threads) if sgemm and set_threads else None
