"""The modules that a key, a gradient and a line of a log pass, in order: the walks of CONTRIBUTING.

A walk is short if a reader can follow it. Counted are the modules of this library whose functions are called, on any
thread.

    python benchmarks/walks.py
"""

import sys
import tempfile
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import torch

import common
from sparsegroup import GroupAdam, HashEmbedding
from sparsegroup.data import open_log
from sparsegroup.training.plan import EpochPlan


def walk(action: Callable[[], object]) -> list[str]:
    """Return the modules whose functions `action` calls, in the order of their first calls."""
    modules: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        package, _, name = frame.f_globals.get("__name__", "").partition(".")
        if event == "call" and package == "sparsegroup":
            modules[name] = None

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(modules)


def walks() -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the modules of each walk."""
    table, keys, weight = HashEmbedding(8), torch.arange(256).reshape(64, 4), torch.nn.Parameter(torch.randn(16, 8))
    of_table, of_weight = GroupAdam(table.parameters(), l21=1e-3), GroupAdam([weight], l21=1e-3)
    for step in range(3):
        of_table.zero_grad()
        of_weight.zero_grad()
        (table(keys).square().sum() + weight.square().sum()).backward()
        if step < 2:  # the first steps compile, and prepare what later ones use
            of_table.step()
            of_weight.step()
    yield "key", walk(lambda: table(keys))
    yield "dense gradient", walk(of_weight.step)
    yield "gradient of a table", walk(of_table.step)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.csv"
        path.write_text("click,user,price\n" + "".join(f"{row % 2},u{row % 7},{row}.5\n" for row in range(300)))
        log = open_log(path, columns={"click": "label", "user": "category", "price": "number"})
        plan = EpochPlan(log.train_rows, 64, shuffle_buffer=min(100, log.most_shuffled))
        yield "line of a log", walk(lambda: list(plan.batches(log, 0)))


def measure(given: Namespace) -> Iterator[common.Figures]:
    torch.set_num_threads(given.threads)
    passed = dict(walks())
    for name, modules in passed.items():
        print(f"\n{name}: {' → '.join(modules)}", flush=True)
    yield {name: len(modules) for name, modules in passed.items()}


if __name__ == "__main__":
    common.run(measure, __doc__, quick="nothing: the walks take seconds")
