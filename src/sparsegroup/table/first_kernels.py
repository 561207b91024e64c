"""The kernels of a table's first steps, to be compiled while nothing else can be done without them."""

from typing import Any

import numpy as np

from sparsegroup.kernels.cpu import compiled_step, finite, turns
from sparsegroup.kernels.cpu.ahead import Call, compile_ahead
from sparsegroup.rules import Rule
from sparsegroup.table import batch


def compile_first_kernels(rule: Rule | None = None, has_lambda: bool = False) -> None:
    """Let other processes compile what the first step of a float32 table and a network on the CPU takes.

    Args:
        rule: The base optimizer; None where it is not known yet.
        has_lambda: Whether the rows are regularized from the first step on, as the network never is.
    """
    dtype = np.dtype(np.float32)
    steps = []
    if rule is not None:
        # Rows with one number for a whole group have a kernel of their own, which waits for them.
        carried = (True, False) if has_lambda and not rule.mean_square else (False,)
        steps = [compiled_step.first_call(rule, carries_u, False, dtype) for carries_u in carried]
    compile_ahead([*steps, *table_calls(dtype)])


def table_calls(dtype: np.dtype[Any]) -> list[Call]:
    """What a table calls before and beside the step: kernels, and arguments of the types that these are called with."""
    keys, places, vectors, zero = np.zeros(1, np.int64), np.zeros(1, np.int32), np.zeros((1, 1), dtype), dtype.type(0)
    found = (keys, places, keys, keys, places, keys, keys, keys)
    return [
        (batch.look_up, (turns.new(), True, True, *found, 0, 0, 0, 0, vectors, vectors, zero)),
        (batch.insert_rows, (*[keys] * 4, 0, keys, 0, 0, 0, np.uint64(0), 0, 0.0, vectors[0], vectors)),
        (batch.expand, (places, vectors, vectors)),
        (batch.add_up, (places, vectors, vectors)),
        (finite.finite_kernel, (vectors[0],)),
    ]
