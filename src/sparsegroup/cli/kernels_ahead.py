"""Which kernels a training will need first, to compile them while the rest is imported and the log is read."""

from collections.abc import Mapping
from typing import Any

from sparsegroup import rules
from sparsegroup.table.first_kernels import compile_first_kernels

_ELSEWHERE = ("set_", "continue_", "resume", "state_dtype")
"""Options by which settings come from elsewhere, or the rows' kernel is one of its own."""


def compile_for_training(options: Mapping[str, Any]) -> None:
    """Begin to compile what `sparsegroup train` needs; the optimizer's step only where the options tell which.

    Args:
        options: Those that were given, by their names in Python.
    """
    name, has_lambda = first_optimizer(options) or ("", False)
    compile_first_kernels(getattr(rules, name.upper(), None), has_lambda)


def first_optimizer(options: Mapping[str, Any]) -> tuple[str, bool] | None:
    """The name of the optimizer, and whether a λ is above 0 in its first step; None where a file says."""
    if any(name in options for name in _ELSEWHERE) or str(options.get("log", [""])[0]).endswith((".yaml", ".yml")):
        return None
    has_size = any(name in options for name in ("target_rate", "target_bytes")) or not options.keys() & {"l1", "l21"}
    lambdas = [options.get("l1", 0), options.get("l2", 0), options.get("l21", 0 if has_size else 1)]
    return options.get("optimizer", "adagrad" if has_size else "adam"), any(lambdas)
