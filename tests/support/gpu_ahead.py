"""Compiling Triton's kernels for a GPU that is not there: a launch compiles for some targets instead.

As a program, with TRITON_INTERPRET=0: writes what became of all kernels to standard output, a list of `Compiled`. Its
arguments: `first` or `all` of the launches, and the architectures.
"""

import inspect
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from gpu_cases import Case, case
from sparsegroup import rules
from sparsegroup.kernels.gpu import launch
from sparsegroup.kernels.step import Regularizer, StepScalars
from sparsegroup.penalties import Norm, Penalty

_TYPES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int8: "*i8",
}


def _type_of(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_type_of(item) for item in value)
    if isinstance(value, Tensor):
        return _TYPES[value.dtype]
    if isinstance(value, float):
        return "fp32"
    assert isinstance(value, int)
    return "i32" if -(1 << 31) <= value < 1 << 31 else "i64"


def _aligned(value: Any, path: tuple[int, ...]) -> dict[tuple[int, ...], Any]:
    if isinstance(value, tuple):
        return {k: v for i, item in enumerate(value) for k, v in _aligned(item, (*path, i)).items()}
    return {path: [["tt.divisibility", 16]]} if isinstance(value, Tensor) else {}


@contextmanager
def compiled_instead(architectures: Sequence[int]) -> Iterator[list[tuple[str, int, str]]]:
    """While it lasts, a launch compiles its kernel for each of `architectures` and computes nothing.

    Yields:
        Name, architecture and PTX of each compilation.
    """
    done: list[tuple[str, int, str]] = []

    def run(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **keywords: Any) -> None:
        options = {name: keywords.pop(name) for name in ("num_warps", "enable_fp_fusion")}
        bound = inspect.signature(kernel.fn).bind(*arguments, **keywords).arguments
        # As a launch does: what is 1 becomes a constant, and what 16 divides is known to be.
        plain = {p.name for p in kernel.params if p.do_not_specialize}
        integers = {n: v for n, v in bound.items() if type(v) is int and n not in plain and not n.isupper()}
        constants = {name: value for name, value in bound.items() if name.isupper() or integers.get(name) == 1}
        signature = {n: "constexpr" if n in constants else _type_of(value) for n, value in bound.items()}
        places = {name: index for index, name in enumerate(inspect.signature(kernel.fn).parameters)}
        attributes: dict[tuple[int, ...], Any] = {}
        for name, value in bound.items():
            attributes |= {} if name in constants else _aligned(value, (places[name],))
            if name in integers and value % 16 == 0:
                attributes[(places[name],)] = [["tt.divisibility", 16]]
        ordered = {name: signature[name] for name in places}
        for architecture in architectures:
            source = ASTSource(kernel, ordered, constants, attributes)
            result = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
            assert len(result.asm["cubin"]) > 0
            done.append((kernel.fn.__name__, architecture, result.asm["ptx"]))

    original = JITFunction.run
    JITFunction.run = run
    try:
        yield done
    finally:
        JITFunction.run = original


class Compiled(NamedTuple):
    """A kernel, compiled."""

    kernel: str
    rule: str
    width: int  # of the rows
    architecture: int  # 80 for sm_80
    loads: bool  # four numbers at once
    stores: bool  # four numbers at once
    rounds: bool  # quotients, roots, sums and products as the CPU does


FLOAT, BFLOAT, HALF = torch.float32, torch.bfloat16, torch.float16


def launch_all(one: Case, on_device: bool, repeated: bool) -> None:
    """Each kernel once."""
    parts, scalars, width = one.parts, one.scalars, one.parts.x.shape[1]
    height, dtype, state_dtype = len(parts.x), parts.x.dtype, (parts.u if parts.u is not None else parts.g).dtype
    if on_device:
        of_rule, seed = tuple(map(torch.tensor, scalars.of_rule)), torch.tensor(scalars.seed, dtype=torch.int32)
        scalars = StepScalars(of_rule, torch.tensor(scalars.sigma_0), torch.tensor(scalars.moves), seed)
    launch.step_tensor(one.rule, parts.with_scalars(scalars), width, one.constants)
    launch.step_many(one.rule, [parts.with_scalars(one.scalars)] * 2, width, one.constants)
    rows, counters = torch.arange(height), torch.zeros(3, dtype=torch.int64)
    gradient = parts.runs(rows, repeats=repeated)
    launch.step_rows(one.rule, parts.slot, gradient, counters, one.constants, scalars)
    x_bytes, part_bytes = width * dtype.itemsize, width * state_dtype.itemsize
    row_bytes = x_bytes + part_bytes * (len(parts.state) + (parts.u is not None))
    pages = torch.zeros(1, dtype=torch.int64)
    layout = launch.Layout(pages, 10, row_bytes, x_bytes, part_bytes, dtype, state_dtype, width)
    launch.step_table(one.rule, parts.u is not None, layout, height, gradient, counters, one.constants, scalars)
    launch.gather(layout, rows, dtype, 0)
    launch.scatter(layout, rows, torch.zeros(height, width), dtype, 0)


def norm_and_penalty(norm: Any, penalty: Any) -> Regularizer:
    return Regularizer(0.05, 0.8, 0.01, Norm.of(norm), Penalty.of(penalty))


LAUNCHES = (
    (rules.ADAM, norm_and_penalty("s", "lasso"), FLOAT, FLOAT, FLOAT, 16, False, True),
    (rules.ADAM, Regularizer(), BFLOAT, BFLOAT, FLOAT, 16, True, False),
    (rules.SGD, norm_and_penalty("s_tilde", "mcp"), BFLOAT, BFLOAT, BFLOAT, 10, True, True),
    (rules.FTRL, norm_and_penalty("metric", "hard"), HALF, FLOAT, FLOAT, 1, False, True),
    (rules.ADAHESSIAN, norm_and_penalty("s", "mcp"), FLOAT, BFLOAT, BFLOAT, 4096, True, False),
    (rules.AMSGRAD, norm_and_penalty("metric", "lasso"), BFLOAT, FLOAT, BFLOAT, 16, True, True),
    (rules.MOMENTUM, norm_and_penalty("s_tilde", "hard"), FLOAT, FLOAT, FLOAT, 1024, False, True),
    (rules.ADAGRAD, norm_and_penalty("s", "lasso"), FLOAT, BFLOAT, FLOAT, 10, False, False),
    (rules.FTRL, Regularizer(l1=0.1), FLOAT, FLOAT, HALF, 1, True, False),
)
"""Rule, regularizer, dtypes of weights, state and gradients, width, scalars on the device, repeated rows: not all of
each other's."""


def compile_all(architectures: Sequence[int], launches: Sequence[tuple[Any, ...]] = LAUNCHES) -> list[Compiled]:
    compiled = []
    with compiled_instead(architectures) as done:
        for rule, regularizer, dtype, state_dtype, gradient_dtype, width, on_device, repeated in launches:
            done.clear()
            types = {"dtype": dtype, "state_dtype": state_dtype, "gradient_dtype": gradient_dtype}
            carries_u = regularizer.active or rule.sigma_0 is not None
            launch_all(case(rule, (64, width), regularizer, carries_u=carries_u, **types), on_device, repeated)
            for kernel, architecture, ptx in done:
                loads, stores = (re.search(rf"{move}\.global\S*\.v4\.", ptx) is not None for move in ("ld", "st"))
                rounds = re.search(r"\b(div\.full|div\.approx|sqrt\.approx|rcp\.approx|fma\.)", ptx) is None
                compiled.append(Compiled(kernel, rule.name, width, architecture, loads, stores, rounds))
    return compiled


if __name__ == "__main__":
    first = LAUNCHES[:1] if sys.argv[1] == "first" else LAUNCHES
    print(json.dumps(compile_all([int(word) for word in sys.argv[2:]], first)))
