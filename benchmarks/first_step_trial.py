"""A process of `first_step.py`: from torch's import to the first step, of a command line or the README's example."""

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch

STARTED, CPU = perf_counter(), process_time()


def example() -> None:
    """The README's, as far as its first step."""
    from sparsegroup import GroupAdam, TargetRate, param_groups

    torch.manual_seed(0)
    embedding = torch.nn.EmbeddingBag(2_000, 8, mode="sum", sparse=True)
    model = torch.nn.Sequential(embedding, torch.nn.Linear(8, 1))
    optimizer = GroupAdam(param_groups(model, penalty="hard"), lr=1e-2)
    TargetRate(optimizer, 0.05, steps=400, param_groups=[0])
    ids = torch.randint(0, 2_000, (256, 10))
    labels = (ids < 100).any(dim=1).float()
    torch.nn.functional.binary_cross_entropy_with_logits(model(ids).squeeze(1), labels).backward()
    optimizer.step()


def main(command: Sequence[str]) -> None:
    from sparsegroup.optim import GroupOptimizer

    step = GroupOptimizer.step

    def step_and_end(self: Any, closure: Any = None) -> None:
        step(self, closure)
        found = {"seconds": perf_counter() - STARTED, "cpu": process_time() - CPU}
        peak = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
        assert peak is not None
        print("\n" + json.dumps({**found, "peak_mb": int(peak[1]) * 1024 / 1e6}), flush=True)
        os._exit(0)

    GroupOptimizer.step = step_and_end  # type: ignore[assignment,method-assign]
    if not command:
        example()
    sys.argv[1:] = command
    from sparsegroup.__main__ import main as run

    run()


if __name__ == "__main__":
    main(sys.argv[1:])
