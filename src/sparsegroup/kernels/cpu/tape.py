"""Records what a network does, and from that its gradients, as a program of few instructions over matrices.

`kernels.cpu.network` runs such programs.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

# What an instruction does to its operands a, b, c, d, matrices in rows.
MULTIPLY = 0  # a [m, n] = b [m, k] c [k, n]
TIMES = 1  # a [m, n] = b ⊙ c
ONLY_POSITIVE = 2  # a [m, n] = 0 where b is not positive
SCALES, SCALES_GRADIENT = 3, 4  # see `Tape.cross_vectors`
ROUND = 5  # a [m, n] = b, as bfloat16
RESIDUALS = 6  # a [m] = the residuals of scores b [m] and labels c [m], times d [m]

# Flags of an instruction.
ADDED = 1  # to a
B_TURNED, C_TURNED = 2, 4  # MULTIPLY: stored as [k, m], as [n, k]
IN_BFLOAT16 = 8  # MULTIPLY: b and c
RELU = 2  # TIMES: then a = 0 where it is negative
BY_ROW = 4  # TIMES: c is [m, 1], and d is memory for a row

WORDS = 5 + 4 * 3
"""Of an instruction: operation, sizes m, n, k, flags, and of each of the operands base, offset in bytes and stride."""

# Bases of operands: memory of a part, the batch's rows, the gradients of all parameters, these as bfloat16, and, last,
# each of them.
MEMORY, ONES, EMBEDDINGS, NUMBERS, LOGITS, OF_LOGITS, OF_EMBEDDINGS, LABELS, FACTORS = range(9)
GRADIENTS, ROUNDED, PARAMETERS = range(9, 12)

_LEAST_ROUNDED = 16
"""Rows and columns of matrices below which to round them would cost more than it gains."""


class Matrix(NamedTuple):
    """`[rows, columns]` in the memory of one of the bases, rows `stride` apart, from `offset` elements on.

    Its elements have `size` bytes: 4 of float32, 2 of bfloat16.
    """

    base: int
    offset: int
    columns: int
    stride: int
    size: int = 4

    def narrow(self, start: int, columns: int) -> "Matrix":
        """Some of the columns."""
        return self._replace(offset=self.offset + start, columns=columns)

    def row(self, number: int) -> "Matrix":
        """One of the rows."""
        return self._replace(offset=self.offset + number * self.stride)

    def repeated(self) -> "Matrix":
        """The first row, as each of the rows."""
        return self._replace(stride=0)


_ONE = Matrix(ONES, 0, 1, 0)
"""A matrix of any size of ones, to `TIMES`; and a column of any length, to `MULTIPLY`."""
_ONE_COLUMN = Matrix(ONES, 0, 1, 1)


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
        rounds: Whether large matrices are rounded to bfloat16 before they are multiplied.

    Raises:
        NotRecordableError: Nothing is embedded; or, by a method, a layer does not fit what it takes, or a parameter is
            used twice or never.
    """

    def __init__(
        self, parameters: Sequence[Tensor], rows: int, embedded: int, numbers: int, outputs: int, rounds: bool
    ) -> None:
        if not embedded:
            raise NotRecordableError("there are no embeddings")
        self.rows = rows
        self.outputs = outputs
        self.memory = self.ones = 0
        self._rounds = rounds
        self._rounded: dict[Matrix, Matrix] = {}  # in memory, as long as what was rounded is the same
        self._offsets = [0, *accumulate(map(Tensor.numel, parameters))]
        self._places = {id(one): number for number, one in enumerate(parameters) if one.numel()}
        self._program: list[tuple[int, ...]] = []
        self._gradients: list[Callable[[], None]] = []
        given = Matrix(EMBEDDINGS, 0, embedded, embedded)
        width = embedded + numbers
        self.input = Value(self._new(width) if numbers else given, Matrix(OF_EMBEDDINGS, 0, embedded, embedded))
        """The embeddings with the numbers, `[rows, embedded + numbers]`; with its gradient by the embeddings."""
        if numbers:
            self._emit(TIMES, (rows, embedded), 0, self.input.matrix.narrow(0, embedded), given, _ONE)
            others = self.input.matrix.narrow(embedded, numbers)
            self._emit(TIMES, (rows, numbers), 0, others, Matrix(NUMBERS, 0, numbers, numbers), _ONE)

    def linear(
        self, inputs: Sequence[Value], weight: Tensor, bias: Tensor | None = None, *, relu: bool = False
    ) -> Value:
        """x Wᵀ + b of the inputs side by side, with weight `[columns, their columns]` and bias `[columns]`."""
        return self._linear(inputs, weight, bias, Value(self._new(len(weight))), relu)

    def logits(self, inputs: Sequence[Value], weight: Tensor, bias: Tensor) -> None:
        """The last layer: as `linear`."""
        shape = 0, self.outputs, self.outputs
        out = Value(Matrix(LOGITS, *shape), Matrix(OF_LOGITS, *shape))
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
            flags = C_TURNED | ADDED * (number > 0)
            self._multiply((self.rows, size, columns), flags, out.matrix, x.matrix, weights_of_x)
        biases = None if bias is None else self._parameter(bias, size)
        if biases is not None:
            flags = ADDED | RELU * relu
            self._emit(TIMES, (self.rows, size), flags, out.matrix, biases[0].repeated(), _ONE)

        def gradients() -> None:
            assert out.gradient is not None
            assert out.has_gradient
            if relu:
                self._emit(ONLY_POSITIVE, (self.rows, size), 0, out.gradient, out.matrix)
            if biases is not None:
                self._sum_rows(biases[1], out.gradient)
            for x, start in parts:
                columns = x.matrix.columns
                of_weight = of_weights.narrow(start, columns)
                self._multiply((size, columns, self.rows), B_TURNED, of_weight, out.gradient, x.matrix)
                self._back(x, out.gradient, weights.narrow(start, columns))

        self._gradients.append(gradients)
        return out

    def cross(self, first: Value, x: Value, product: Value) -> Value:
        """x_0 ⊙ product + x (eq. 1 of DCN-V2)."""
        columns = x.matrix.columns
        if not columns == first.matrix.columns == product.matrix.columns:
            raise NotRecordableError("the cross layers do not fit")
        out, shape = Value(self._new(columns)), (self.rows, columns)
        self._emit(TIMES, shape, 0, out.matrix, first.matrix, product.matrix)
        self._emit(TIMES, shape, ADDED, out.matrix, x.matrix, _ONE)

        def gradients() -> None:
            assert out.gradient is not None
            product.gradient, product.has_gradient = self._new(columns), True
            self._emit(TIMES, shape, 0, product.gradient, out.gradient, first.matrix)
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
            self._multiply((1, 1, width), C_TURNED, constant, before, weights.row(layer))
            totals.append(self._new_row(width))
            self._emit(TIMES, (1, width), 0, totals[-1], biases.row(layer), _ONE)
            self._emit(TIMES, (1, width), ADDED, totals[-1], before, _ONE)
        out, shape = Value(self._new(width)), (self.rows, width)
        self._multiply((self.rows, layers, width), C_TURNED, products, x.matrix, weights)
        self._emit(SCALES, (self.rows, 0, layers), 0, scales, products, constants)
        last = scales.narrow(layers, 1)
        self._emit(TIMES, shape, BY_ROW, out.matrix, x.matrix, last, spare)
        self._emit(TIMES, shape, ADDED, out.matrix, totals[-1].repeated(), _ONE)

        def gradients() -> None:
            assert out.gradient is not None
            elements = self._new(width)
            self._emit(TIMES, shape, 0, elements, out.gradient, x.matrix)
            of_last = of_scales.narrow(layers - 1, 1)
            self._multiply((self.rows, 1, width), 0, of_last, elements, _ONE_COLUMN)
            self._emit(SCALES_GRADIENT, (self.rows, 0, layers), 0, of_scales, of_products, scales, products)
            self._into(x, out.gradient, last, spare, flags=BY_ROW)
            self._multiply((layers, width, self.rows), B_TURNED, of_weights, of_products, x.matrix)
            self._back(x, of_products, weights)
            of_total = self._new_row(width)
            self._sum_rows(of_total, out.gradient)
            for layer in range(layers - 1, -1, -1):
                self._emit(TIMES, (1, width), 0, of_biases.row(layer), of_total, _ONE)
                if layer > 0:
                    of_constant = self._new_row(1)
                    self._sum_rows(of_constant, of_scales.narrow(layer, 1))
                    of_row = of_weights.row(layer)
                    self._multiply((1, width, 1), ADDED, of_row, of_constant, totals[layer - 1])
                    self._multiply((1, width, 1), ADDED, of_total, of_constant, weights.row(layer))

        self._gradients.append(gradients)
        return out

    def programs(self) -> tuple[Any, Any, Any]:
        """The instructions of the forward pass, of the logits' gradients and of the backward pass.

        Each are `[instructions, words]` int64.
        """
        if self._places:
            raise NotRecordableError("a parameter is not used")
        forward, self._program = self._program, []
        logits, of_logits, labels, factors = (Matrix(base, 0, 1, 1) for base in (LOGITS, OF_LOGITS, LABELS, FACTORS))
        self._emit(RESIDUALS, (self.rows, 1), 0, of_logits, logits, labels, factors)
        residuals, self._program = self._program, []
        for gradients in reversed(self._gradients):
            gradients()
        return np.array(forward, np.int64), np.array(residuals, np.int64), np.array(self._program, np.int64)

    def _back(self, x: Value, gradient: Matrix, weights: Matrix) -> None:
        """Multiply a gradient with weights, into or onto that of `x`."""
        if x.gradient is None:
            x.gradient = self._new(x.matrix.columns)
        columns = x.gradient.columns
        shape = self.rows, columns, gradient.columns
        self._multiply(shape, ADDED * x.has_gradient, x.gradient, gradient, weights.narrow(0, columns))
        x.has_gradient = True

    def _into(self, x: Value, *operands: Matrix, flags: int = 0) -> None:
        """Write or add a product of elements to the gradient of `x`, which has a place."""
        assert x.gradient is not None
        shape = self.rows, x.gradient.columns
        self._emit(TIMES, shape, flags | ADDED * x.has_gradient, x.gradient, *operands)
        x.has_gradient = True

    def _sum_rows(self, total: Matrix, matrix: Matrix) -> None:
        ones = Matrix(ONES, 0, self.rows, self.rows)
        self._multiply((1, matrix.columns, self.rows), 0, total, ones, matrix)

    def _parameter(self, parameter: Tensor, columns: int) -> tuple[Matrix, Matrix]:
        if id(parameter) not in self._places:
            raise NotRecordableError("a parameter is not the network's, or used twice")
        number = self._places.pop(id(parameter))
        of_gradient = Matrix(GRADIENTS, self._offsets[number], columns, columns)
        return Matrix(PARAMETERS + number, 0, columns, columns), of_gradient

    def _new(self, columns: int) -> Matrix:
        return Matrix(MEMORY, self._allocate(self.rows * columns), columns, columns)

    def _new_row(self, columns: int) -> Matrix:
        return Matrix(MEMORY, self._allocate(columns), columns, columns)

    def _multiply(self, shape: tuple[int, int, int], flags: int, out: Matrix, left: Matrix, right: Matrix) -> None:
        """out [m, n] = left [m, k] right [k, n], or what the flags say."""
        if self._rounds and min(shape) >= _LEAST_ROUNDED:
            m, n, k = shape
            left = self._as_rounded(left, *((k, m) if flags & B_TURNED else (m, k)))
            right = self._as_rounded(right, *((n, k) if flags & C_TURNED else (k, n)))
            flags |= IN_BFLOAT16
        self._emit(MULTIPLY, shape, flags, out, left, right)

    def _as_rounded(self, matrix: Matrix, rows: int, columns: int) -> Matrix:
        if matrix.base >= PARAMETERS:
            start = self._offsets[matrix.base - PARAMETERS]
            return Matrix(ROUNDED, start + matrix.offset, matrix.columns, matrix.stride, 2)
        if matrix not in self._rounded:
            rounded = Matrix(MEMORY, 2 * self._allocate(-(-rows * columns // 2)), columns, columns, 2)
            self._emit(ROUND, (rows, columns), 0, rounded, matrix)
            self._rounded[matrix] = rounded
        return self._rounded[matrix]

    def _allocate(self, count: int) -> int:
        offset = self.memory
        self.memory += whole_lines(count)
        return offset

    def _emit(self, operation: int, shape: tuple[int, ...], flag: int, *operands: Matrix) -> None:
        self.ones = max(self.ones, *shape)
        written, end = operands[0], operands[0].offset + shape[0] * operands[0].stride
        for one in [one for one in self._rounded if one.base == written.base and operation != ROUND]:
            if one.offset < end and written.offset < one.offset + self.rows * one.stride:
                del self._rounded[one]
        words = [operation, *shape, *[0] * (3 - len(shape)), flag]
        for operand in operands:
            words += operand.base, operand.size * operand.offset, operand.stride
        self._program.append((*words, *[0] * (WORDS - len(words))))


def whole_lines(count: int) -> int:
    """At least `count` floats, in whole cache lines."""
    return -(-count // 16) * 16


def _starts(inputs: Sequence[Value]) -> list[int]:
    """The column at which each of values side by side begins."""
    starts = [0]
    for x in inputs:
        starts.append(starts[-1] + x.matrix.columns)
    return starts[:-1]
