"""Records what a network's `forward` calls, and from that its gradients, as a program for `kernels.cpu.network`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sparsegroup.kernels.cross import cross_vectors

# What an instruction does to its operands a, b, c, d, matrices in rows.
MULTIPLY = 0  # a [m, n] = b [m, k] c [k, n]
TIMES = 1  # a [m, n] = b ⊙ c
ONLY_POSITIVE = 2  # a [m, n] = 0 where b is not positive
ROUND = 3  # a [m, n] = b, as bfloat16
RESIDUALS = 4  # a [m] = the residuals of scores b [m] and labels c [m], times d [m]

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
    """Error of a network that calls a function, or uses a parameter, that a `Tape` cannot record."""


class Network(Protocol):
    """Recordable network over embeddings `[batch, fields, dim]` and numbers `[batch, numbers]`, or None for 0."""

    fields: int
    dim: int
    numbers: int

    def __call__(self, embeddings: Tensor, numbers: Tensor | None) -> Tensor:
        """Return logits `[batch]` or `[batch, outputs]`."""


class Value:
    """Intermediate matrix of a network, and the place of the loss's gradient with respect to the matrix."""

    def __init__(self, matrix: Matrix, gradient: Matrix | None = None) -> None:
        self.matrix = matrix
        self.gradient = gradient
        self.has_gradient = False
        self.is_positive = False  # set by a ReLU


class Product(NamedTuple):
    """x ⊙ y, which is computed where something is added to it."""

    left: Value
    right: Value


class Tape(TorchFunctionMode):
    """Records one call of a network for parts of `rows` rows; the network uses each parameter once.

    The network is called with tensors without memory. Functions that get these, or what has been recorded of them, are
    recorded; other functions are called.

    Args:
        network: The network.
        parameters: Its parameters, in their order.
        rows: Rows of a part.
        rounds: Whether large matrices are rounded to bfloat16 before they are multiplied.

    Raises:
        NotRecordableError: The network calls a function that has no instruction, uses a parameter twice or never, or
            takes no embeddings.
    """

    def __init__(self, network: Network, parameters: Sequence[Tensor], rows: int, rounds: bool) -> None:
        super().__init__()
        self.rows, self.embedded, self.numbers = rows, network.fields * network.dim, network.numbers
        self.memory = self.ones = 0
        self._rounds = rounds
        self._rounded: dict[Matrix, Matrix] = {}  # in memory, as long as what was rounded is the same
        self._offsets = [0, *accumulate(map(Tensor.numel, parameters))]
        self._places = {id(one): number for number, one in enumerate(parameters) if one.numel()}
        self._program: list[tuple[int, ...]] = []
        self._gradients: list[Callable[[], None]] = []
        self._tensors: list[Tensor] = []  # alive, so that each keeps its id
        self._known: dict[int, Sequence[Value] | Product] = {}  # values side by side
        self._embeddings = self._given(network.fields, network.dim)
        self._flat, self._numbers = self._given(self.embedded), self._given(self.numbers)
        self._input = self._flat if self.numbers == 0 else self._given(self.embedded + self.numbers)
        self._known[id(self._input)] = [self._record_input()]
        with self:
            logits = network(self._embeddings, self._numbers if self.numbers else None)
        (last,) = self._values_of(logits)
        self.outputs = last.matrix.columns
        self._record_logits(last)

    def __torch_function__(
        self, function: Any, types: Any, arguments: Sequence[Any] = (), keywords: Mapping[str, Any] | None = None
    ) -> Any:
        """Record a function, or call one of other tensors, or one that gives a property."""
        if function.__name__ == "__get__" or not self._takes_known([*arguments, *(keywords or {}).values()]):
            return function(*arguments, **(keywords or {}))
        if function not in self._FUNCTIONS:
            raise NotRecordableError(f"{function.__name__} has no instruction")
        return self._FUNCTIONS[function](self, *arguments, **(keywords or {}))

    def program(self) -> tuple[Any, int, int]:
        """Return the instructions `[n, WORDS]` int64, where the forward pass ends, and where the backward pass begins.

        The instructions between give the logits' gradients. Call once.
        """
        if self._places:
            raise NotRecordableError("a parameter is not used")
        forward_end = len(self._program)
        logits, of_logits, labels, factors = (Matrix(base, 0, 1, 1) for base in (LOGITS, OF_LOGITS, LABELS, FACTORS))
        self._emit(RESIDUALS, (self.rows, 1), 0, of_logits, logits, labels, factors)
        for gradients in reversed(self._gradients):
            gradients()
        return np.array(self._program, np.int64), forward_end, forward_end + 1

    def _given(self, *columns: int) -> Tensor:
        self._tensors.append(torch.empty(self.rows, *columns, dtype=torch.float32, device="meta"))
        self._known[id(self._tensors[-1])] = ()
        return self._tensors[-1]

    def _tensor(self, *values: Value) -> Tensor:
        tensor = self._given(sum(one.matrix.columns for one in values))
        self._known[id(tensor)] = values
        return tensor

    def _takes_known(self, arguments: Iterable[Any]) -> bool:
        return any(
            self._takes_known(one) if isinstance(one, (list, tuple)) else id(one) in self._known for one in arguments
        )

    def _values_of(self, tensor: Tensor) -> Sequence[Value]:
        values = self._known.get(id(tensor), ())
        if not values or isinstance(values, Product):
            raise NotRecordableError("a tensor is used that is not recorded")
        return values

    def _value_of(self, tensor: Tensor) -> Value:
        values = self._values_of(tensor)
        if len(values) > 1:
            raise NotRecordableError("only a linear layer can take values side by side")
        return values[0]

    def _record_input(self) -> Value:
        """Record the embeddings with the numbers, with the gradient by the embeddings."""
        given = Matrix(EMBEDDINGS, 0, self.embedded, self.embedded)
        of_embeddings = Matrix(OF_EMBEDDINGS, 0, self.embedded, self.embedded)
        if not self.embedded:
            raise NotRecordableError("there are no embeddings")
        if not self.numbers:
            return Value(given, of_embeddings)
        joined = self._new(self.embedded + self.numbers)
        self._copy(joined.narrow(0, self.embedded), given)
        self._copy(joined.narrow(self.embedded, self.numbers), Matrix(NUMBERS, 0, self.numbers, self.numbers))
        return Value(joined, of_embeddings)

    def _record_logits(self, last: Value) -> None:
        self._copy(Matrix(LOGITS, 0, self.outputs, self.outputs), last.matrix)
        self._gradients.append(lambda: self._into(last, Matrix(OF_LOGITS, 0, self.outputs, self.outputs), _ONE))

    def _flatten(self, x: Tensor, start: int) -> Tensor:
        if x is not self._embeddings or start != 1:
            raise NotRecordableError("only embeddings can be flattened, from dimension 1")
        return self._flat

    def _cat(self, tensors: Sequence[Tensor], dim: int) -> Tensor:
        if dim != 1:
            raise NotRecordableError("only columns can be joined")
        if len(tensors) == 2 and tensors[0] is self._flat and tensors[1] is self._numbers:
            return self._input
        return self._tensor(*(value for one in tensors for value in self._values_of(one)))

    def _squeeze(self, x: Tensor, dim: int) -> Tensor:
        if dim != 1:
            raise NotRecordableError("only columns can be squeezed")
        return x

    def _relu(self, x: Tensor, inplace: bool = False) -> Tensor:
        """Let the bias instruction that x comes from, the last one, also set negative elements to 0."""
        value = self._value_of(x)
        operation, *words = self._program[-1]
        flags, base, offset = words[3:6]
        if (operation, flags, base, offset) != (TIMES, ADDED, value.matrix.base, 4 * value.matrix.offset):
            raise NotRecordableError("a ReLU does not follow a linear layer with a bias")
        self._program[-1] = (operation, *words[:3], flags | RELU, *words[4:])
        value.is_positive = True
        del self._known[id(x)]
        return self._tensor(value)

    def _mul(self, left: Tensor, right: Tensor) -> Tensor:
        product = Product(self._value_of(left), self._value_of(right))
        if product.left.matrix.columns != product.right.matrix.columns:
            raise NotRecordableError("only matrices of one size can be multiplied")
        out = self._given(product.left.matrix.columns)
        self._known[id(out)] = product
        return out

    def _add(self, left: Tensor, right: Tensor) -> Tensor:
        """Record x_0 ⊙ product + x (eq. 1 of DCN-V2)."""
        product, x = self._known.get(id(left)), self._value_of(right)
        if not isinstance(product, Product) or x.matrix.columns != product.left.matrix.columns:
            raise NotRecordableError("a sum is not of a product and a matrix of one size")
        columns = x.matrix.columns
        out, shape = Value(self._new(columns)), (self.rows, columns)
        self._emit(TIMES, shape, 0, out.matrix, product.left.matrix, product.right.matrix)
        self._emit(TIMES, shape, ADDED, out.matrix, x.matrix, _ONE)

        def gradients() -> None:
            gradient = self._gradient_of(out)
            self._into(product.right, gradient, product.left.matrix)
            self._into(product.left, gradient, product.right.matrix)
            if x.gradient is None:  # nothing else takes that of the sum after this
                x.gradient, x.has_gradient = gradient, True
            else:
                self._into(x, gradient, _ONE)

        self._gradients.append(gradients)
        return self._tensor(out)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Record x Wᵀ + b, with weight `[columns, columns of x]` and bias `[columns]`."""
        inputs, (size, width) = self._values_of(x), weight.shape
        if width != sum(one.matrix.columns for one in inputs):
            raise NotRecordableError(f"a layer of weights {list(weight.shape)} does not fit")
        out = Value(self._new(size))
        weights, of_weights = self._parameter(weight, width)
        starts = [0, *accumulate(one.matrix.columns for one in inputs)]
        parts = list(zip(inputs, starts, strict=False))
        for number, (one, start) in enumerate(parts):
            columns = one.matrix.columns
            flags = C_TURNED | ADDED * (number > 0)
            self._multiply((self.rows, size, columns), flags, out.matrix, one.matrix, weights.narrow(start, columns))
        biases = None if bias is None else self._parameter(bias, size)
        if biases is not None:
            self._emit(TIMES, (self.rows, size), ADDED, out.matrix, biases[0].repeated(), _ONE)

        def gradients() -> None:
            gradient = self._gradient_of(out)
            if out.is_positive:
                self._emit(ONLY_POSITIVE, (self.rows, size), 0, gradient, out.matrix)
            if biases is not None:
                self._sum_rows(biases[1], gradient)
            for one, start in parts:
                columns = one.matrix.columns
                of_weight = of_weights.narrow(start, columns)
                self._multiply((size, columns, self.rows), B_TURNED, of_weight, gradient, one.matrix)
                self._back(one, gradient, weights.narrow(start, columns))

        self._gradients.append(gradients)
        return self._tensor(out)

    def _cross_vectors(self, of: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Record `sparsegroup.kernels.cross.cross_vectors`."""
        x, (layers, width) = self._value_of(of), weight.shape
        if width != x.matrix.columns or bias.shape != weight.shape:
            raise NotRecordableError("the cross layers do not fit")
        (weights, of_weights), (biases, of_biases) = self._parameter(weight, width), self._parameter(bias, width)
        scales, products = self._new(layers + 1), self._new(layers)
        of_scales, of_products = self._new(layers + 1), self._new(layers)
        constants, spare, totals = self._new_row(layers), self._new_row(width), [biases.row(0)]
        for layer in range(1, layers):
            constant, before = constants.narrow(layer, 1), totals[-1]
            self._multiply((1, 1, width), C_TURNED, constant, before, weights.row(layer))
            totals.append(self._new_row(width))
            self._emit(TIMES, (1, width), 0, totals[-1], biases.row(layer), _ONE)
            self._emit(TIMES, (1, width), ADDED, totals[-1], before, _ONE)
        out, shape, column = Value(self._new(width)), (self.rows, width), (self.rows, 1)
        self._multiply((self.rows, layers, width), C_TURNED, products, x.matrix, weights)
        self._copy(scales.narrow(0, 1), _ONE)
        for layer in range(layers):
            scale, of_layer = scales.narrow(layer, 1), scales.narrow(layer + 1, 1)
            if layer > 0:
                self._copy(of_layer, constants.narrow(layer, 1).repeated())
            self._emit(TIMES, column, ADDED * (layer > 0), of_layer, scale, products.narrow(layer, 1))
            self._emit(TIMES, column, ADDED, of_layer, scale, _ONE)
        last = scales.narrow(layers, 1)
        self._emit(TIMES, shape, BY_ROW, out.matrix, x.matrix, last, spare)
        self._emit(TIMES, shape, ADDED, out.matrix, totals[-1].repeated(), _ONE)

        def gradients() -> None:
            gradient = self._gradient_of(out)
            elements = self._new(width)
            self._emit(TIMES, shape, 0, elements, gradient, x.matrix)
            self._multiply((self.rows, 1, width), 0, of_scales.narrow(layers, 1), elements, _ONE_COLUMN)
            for layer in range(layers - 1, -1, -1):
                of_after, of_scale = of_scales.narrow(layer + 1, 1), of_scales.narrow(layer, 1)
                self._emit(TIMES, column, 0, of_products.narrow(layer, 1), of_after, scales.narrow(layer, 1))
                self._copy(of_scale, of_after)
                self._emit(TIMES, column, ADDED, of_scale, of_after, products.narrow(layer, 1))
            self._into(x, gradient, last, spare, flags=BY_ROW)
            self._multiply((layers, width, self.rows), B_TURNED, of_weights, of_products, x.matrix)
            self._back(x, of_products, weights)
            of_total = self._new_row(width)
            self._sum_rows(of_total, gradient)
            for layer in range(layers - 1, -1, -1):
                self._emit(TIMES, (1, width), 0, of_biases.row(layer), of_total, _ONE)
                if layer > 0:
                    of_constant = self._new_row(1)
                    self._sum_rows(of_constant, of_scales.narrow(layer + 1, 1))
                    of_row = of_weights.row(layer)
                    self._multiply((1, width, 1), ADDED, of_row, of_constant, totals[layer - 1])
                    self._multiply((1, width, 1), ADDED, of_total, of_constant, weights.row(layer))

        self._gradients.append(gradients)
        return self._tensor(out)

    _FUNCTIONS: ClassVar[Mapping[Any, Callable[..., Tensor]]] = {
        torch.nn.functional.linear: _linear,
        torch.nn.functional.relu: _relu,
        torch.cat: _cat,
        Tensor.flatten: _flatten,
        Tensor.mul: _mul,
        Tensor.add: _add,
        Tensor.squeeze: _squeeze,
        cross_vectors: _cross_vectors,
    }

    def _gradient_of(self, value: Value) -> Matrix:
        if value.gradient is None or not value.has_gradient:
            raise NotRecordableError("a value is not used")
        return value.gradient

    def _back(self, x: Value, gradient: Matrix, weights: Matrix) -> None:
        """Multiply a gradient with weights, into or onto that of `x`."""
        if x.gradient is None:
            x.gradient = self._new(x.matrix.columns)
        columns = x.gradient.columns
        shape = self.rows, columns, gradient.columns
        self._multiply(shape, ADDED * x.has_gradient, x.gradient, gradient, weights.narrow(0, columns))
        x.has_gradient = True

    def _into(self, x: Value, *operands: Matrix, flags: int = 0) -> None:
        """Write a product of elements into the gradient of `x`, or add the product to that."""
        if x.gradient is None:
            x.gradient = self._new(x.matrix.columns)
        shape = self.rows, x.gradient.columns
        self._emit(TIMES, shape, flags | ADDED * x.has_gradient, x.gradient, *operands)
        x.has_gradient = True

    def _copy(self, target: Matrix, matrix: Matrix) -> None:
        self._emit(TIMES, (self.rows, target.columns), 0, target, matrix, _ONE)

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
