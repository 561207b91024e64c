"""Compiling is said, done once, and kept on disk for the next process."""

import os
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest

from sparsegroup.kernels.cpu import jit, step
from sparsegroup.kernels.cpu.jit import kernel_digest
from sparsegroup.rules import ADAGRAD, ADAM, SGD
from sparsegroup.table.lookup import kernels

pytestmark = pytest.mark.whole

SCRIPT = """
import torch
from sparsegroup import GroupSGD
from sparsegroup.kernels.cpu import jit, step
from sparsegroup.rules import SGD

jit.NOTICE_AFTER = 0.0
x = torch.nn.Parameter(torch.ones(3, 2))
x.grad = torch.ones(3, 2)
GroupSGD([x], lr=0.1).step()
stats = step.step_kernel(SGD, (0,), False).compiled.stats
print(sum(stats.cache_misses.values()), sum(stats.cache_hits.values()))
"""


def run(cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    return subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)


def test_a_kernel_is_compiled_once_and_said_to_be(tmp_path: Path) -> None:
    first, second = run(tmp_path), run(tmp_path)
    assert first.stdout == "1 0\n"
    assert "compiling the step of sgd for this machine, once" in first.stderr
    assert second.stdout == "0 1\n"


_STEP = """
import torch
from sparsegroup import GroupSGD

x = torch.nn.Parameter(torch.ones(3, 2))
x.grad = torch.ones(3, 2)
GroupSGD([x], lr=0.5).step()
print(x.sum().item())
"""


@pytest.mark.slow
def test_kernels_are_compiled_where_they_cannot_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    small = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))"
    for cache, before in (("file", ""), ("file/below", ""), ("full", small)):
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / cache), "NUMBA_CACHE_LOCATOR_CLASSES": ""}
        if cache != "full":  # nor beside the package, nor in the home folder
            environment["NUMBA_CACHE_LOCATOR_CLASSES"] = "UserProvidedCacheLocator"
        done = subprocess.run(
            [sys.executable, "-c", f"{before}\n{_STEP}"], env=environment, capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (0, "3.0\n"), done.stderr
        assert done.stderr.count("cannot be kept on disk") == 1, done.stderr


@pytest.mark.slow
def test_a_kernel_that_could_not_be_kept_is_used(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    script = """
import resource
from sparsegroup.kernels.cpu import jit

def twice(value):
    return 2 * value

twice.__module__ = "sparsegroup.kernels.cpu.jit"
kernel = jit.kernel(twice, "twice")
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
print(kernel(2), kernel(3), kernel(2.5))
"""
    path = tmp_path / "script.py"
    for size, told in ((10, 1), (1 << 20, 0)):
        path.write_text(script.format(size=size))
        done = subprocess.run([sys.executable, path], env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "4 6 5.0\n"), done.stderr
        assert done.stderr.count("cannot be kept on disk") == told, done.stderr
    for index in tmp_path.rglob("*.nbi"):
        index.write_bytes(b"")  # as after a loss of power
    done = subprocess.run([sys.executable, path], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "4 6 5.0\n"), done.stderr


_SLOW_LOAD = """
import time
from sparsegroup.kernels.cpu import jit

jit.NOTICE_AFTER = 0.0
load = jit.KernelCache._load_overload

def load_slowly(self, sig, target_context):
    time.sleep(0.2)
    return load(self, sig, target_context)

jit.KernelCache._load_overload = load_slowly

def twice(value):
    return 2 * value

twice.__module__ = "sparsegroup.kernels.cpu.jit"
kernel = jit.kernel(twice, "twice")
print(kernel(2))
"""


@pytest.mark.slow
def test_a_kernel_that_takes_long_to_load_is_not_said_to_be_compiled(tmp_path: Path) -> None:
    environment, path = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}, tmp_path / "script.py"
    path.write_text(_SLOW_LOAD)
    told = [
        subprocess.run([sys.executable, path], env=environment, capture_output=True, text=True, check=True).stderr
        for _ in range(2)
    ]
    assert "compiling twice for this machine, once" in told[0]
    assert told[1] == ""


_ONE, _TWO = 1, 2


def _adding(constant: int, helper: FunctionType) -> FunctionType:
    def kernel(value: int) -> int:
        return ADDED(value) + CONSTANT + UNRELATED  # type: ignore[name-defined]  # noqa: F821

    names = {"CONSTANT": constant, "ADDED": jit.jitted(helper), "UNRELATED": 0, "something_else": object()}
    return FunctionType(kernel.__code__, names, "kernel")


def _helper(value: int) -> int:
    return value + _ONE


def _other_helper(value: int) -> int:
    return value + _TWO


def test_a_digest_is_another_one_for_what_a_kernel_calls_and_for_its_constants_alone() -> None:
    digest = kernel_digest(_adding(1, _helper))
    assert kernel_digest(_adding(1, _helper)) == digest  # whatever `something_else` is, which it does not use
    assert kernel_digest(_adding(2, _helper)) != digest
    assert kernel_digest(_adding(1, _other_helper)) != digest


def test_rules_states_and_widths_have_digests_of_their_own() -> None:
    steps = [
        step.step_kernel(rule, (0,) + (int(has_bfloat16),) * states, is_wide)
        for rule in (ADAM, ADAGRAD, SGD)
        for carries_u in (False, True)
        for is_wide in (False, True)
        for has_bfloat16 in (False, True)
        for states in (len(rule.state) + carries_u,)
    ]
    assert len({kernel.compiled.py_func.__qualname__ for kernel in steps}) == len(set(steps))


def test_a_kernel_found_anew_has_the_digest_that_it_had() -> None:
    script = "from sparsegroup.table.lookup import kernels; print(kernels.look_up.compiled.py_func.__qualname__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"{kernels.look_up.compiled.py_func.__qualname__}\n"
