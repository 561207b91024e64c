"""The Triton kernels compile for GPUs, of which there need be none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpu_cases
from gpu_ahead import ARCHITECTURES, Compiled
from sparsegroup.kernels.gpu.binding import RowKernels, StepKernels


@pytest.fixture(scope="module")
def compiled() -> list[Compiled]:
    """Of all kernels, by a Python of its own: here Triton may be interpreting."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    program = Path(__file__).with_name("gpu_ahead.py")
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [Compiled(*fields) for fields in json.loads(done.stdout)]


every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


@every_architecture
def test_every_kernel_compiles_for_every_rule(compiled: list[Compiled], architecture: int) -> None:
    found = {(one.kernel, one.rule) for one in compiled if one.architecture == architecture}
    assert found >= {(name, rule.name) for name in StepKernels.__annotations__ for rule in gpu_cases.RULES}
    assert {kernel for kernel, _ in found} == {*StepKernels.__annotations__, *RowKernels.__annotations__}


@every_architecture
@pytest.mark.parametrize("kernel", ["dense", "dense_many", "tensor_rows", "table_rows", "gather", "scatter"])
def test_aligned_rows_are_read_and_written_four_numbers_at_once(
    compiled: list[Compiled], kernel: str, architecture: int
) -> None:
    wanted = (kernel, "adam", 16, architecture)
    one = next(one for one in compiled if (one.kernel, one.rule, one.width, one.architecture) == wanted)
    assert one.loads
    assert one.stores


def test_numbers_are_rounded_as_on_the_cpu(compiled: list[Compiled]) -> None:
    assert all(one.rounds for one in compiled)
