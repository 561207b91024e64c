"""The Triton kernels compile for GPUs, of which there need be none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gpu_cases
from gpu_ahead import ARCHITECTURES, Compiled
from sparsegroup.kernels.gpu.binding import RowKernels, StepKernels

WIDE = ("dense", "dense_many", "tensor_rows", "table_rows", "gather", "scatter")


def compiled() -> list[Compiled]:
    """All kernels, by a Python of its own: here Triton may be interpreting."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    program = Path(__file__).with_name("gpu_ahead.py")
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [Compiled(*fields) for fields in json.loads(done.stdout)]


def test_every_kernel_compiles_for_every_rule() -> None:
    """Rounding as the CPU does, and reading and writing aligned rows four numbers at once. (One test: one process.)"""
    found = compiled()
    for architecture in ARCHITECTURES:
        kernels = {(one.kernel, one.rule): one for one in found if one.architecture == architecture}
        assert kernels.keys() >= {(name, rule.name) for name in StepKernels.__annotations__ for rule in gpu_cases.RULES}
        assert {kernel for kernel, _ in kernels} == {*StepKernels.__annotations__, *RowKernels.__annotations__}
        for kernel in WIDE:
            wanted = (kernel, "adam", 16, architecture)
            one = next(one for one in found if (one.kernel, one.rule, one.width, one.architecture) == wanted)
            assert one.loads, wanted
            assert one.stores, wanted
    assert all(one.rounds for one in found)
