"""Compiling is said, done once, and kept on disk for the next process."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import torch
from sparsegroup import GroupSGD
from sparsegroup.kernels.cpu import compiled_step, jit
from sparsegroup.rules import SGD

jit.NOTICE_AFTER = 0.0
x = torch.nn.Parameter(torch.ones(3, 2))
x.grad = torch.ones(3, 2)
GroupSGD([x], lr=0.1).step()
stats = compiled_step.step_kernel(SGD, False).compiled.stats
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
