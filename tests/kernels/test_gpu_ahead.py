"""The Triton kernels compile for GPUs, of which there need be none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpu_cases
from gpu_ahead import Compiled
from sparsegroup.kernels.gpu.bind import ROW_KERNELS, STEP_KERNELS

WIDE = ("dense", "dense_many", "tensor_rows", "table_rows", "gather", "scatter")


def compiled(launches: str, *architectures: int) -> list[Compiled]:
    """Kernels of the `first` or of `all` launches, by a Python of its own: here Triton may be interpreting."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    script = Path(__file__).parents[1] / "support" / "gpu_ahead.py"
    program = [sys.executable, script, launches, *map(str, architectures)]
    done = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [Compiled(*fields) for fields in json.loads(done.stdout)]


def check_adam(found: list[Compiled], architecture: int) -> None:
    """Rounding as the CPU does, and reading and writing aligned rows four numbers at once."""
    assert {one.kernel for one in found} == {*STEP_KERNELS, *ROW_KERNELS}
    for kernel in WIDE:
        wanted = (kernel, "adam", 16, architecture)
        one = next(one for one in found if (one.kernel, one.rule, one.width, one.architecture) == wanted)
        assert one.loads, wanted
        assert one.stores, wanted
    assert all(one.rounds for one in found)


def test_every_kernel_compiles_for_adam() -> None:
    check_adam(compiled("first", 90), 90)


@pytest.mark.slow
def test_every_kernel_compiles_for_every_rule() -> None:
    every = compiled("all", 80, 90)
    for architecture in (80, 90):
        found = [one for one in every if one.architecture == architecture]
        check_adam(found, architecture)
        pairs = {(one.kernel, one.rule) for one in found}
        assert pairs >= {(name, rule.name) for name in STEP_KERNELS for rule in gpu_cases.RULES}
