"""How even the steps of a table are while it grows from nothing to 33.8M rows, and how much memory a row takes.

A step is one of `table_step.py`: 512 × 39 keys, d = 8, Group Adam with λ21 > 0, from keys to updated rows. In every
batch the 4,000 rarest keys give way to keys that were never seen before. A control loop takes turns with it, step by
step, on a table that holds all 33.8M rows from the start: it has the same batches, but for the 4,000 keys, which are
drawn from those that it holds. Both are compiled beforehand.

Bytes per row are what the process grew by from before the growing table to after its last step (Rss), divided by its
rows; the same of the control table, which was filled in large batches without a gradient. The peak is the highest Rss
on the way.

    python benchmarks/table_growth.py   # 12 GiB of memory
"""

import gc
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import common
from sparsegroup import GroupAdam, HashEmbedding
from table_step import BATCH, CARDINALITIES, DIM, GROUP_ADAM, Clicks, key

FIELD = len(CARDINALITIES)  # of the keys that a batch sees for the first time
PERCENTILES = {"p50": 50, "p99": 99, "p99.9": 99.9, "max": 100}


class Batches:
    """Batches whose rarest keys are replaced. The others are drawn beforehand and return every `len(keys)` batches."""

    def __init__(self, scale: float, count: int, replaced: int) -> None:
        rng = np.random.default_rng(1)
        clicks = Clicks.scaled(scale, rng)
        ranks = clicks.ranks(count, rng)
        self.keys = key(np.arange(len(CARDINALITIES)), clicks.of_ranks(ranks)).reshape(count, -1)
        rarest = np.argpartition(ranks.reshape(count, -1), -replaced)
        self.common, self.rare = (torch.from_numpy(part) for part in (rarest[:, :-replaced], rarest[:, -replaced:]))
        self.rows = int(clicks.cardinalities.sum())
        self.common_keys = self.keys.gather(1, self.common).unique()

    def __call__(self, index: int, numbers: np.ndarray) -> Tensor:
        """Batch `index`, with the keys of `numbers` in place of its rarest."""
        place = index % len(self.keys)
        batch = self.keys[place].clone()
        batch[self.rare[place]] = key(FIELD, numbers)
        return batch.view(BATCH, -1)


def new_table(gradient: Tensor) -> tuple[HashEmbedding, Callable[[Tensor], None]]:
    table = HashEmbedding(DIM)
    optimizer = GroupAdam(table.parameters(), **GROUP_ADAM)

    def step(keys: Tensor) -> None:
        optimizer.zero_grad()
        table(keys).backward(gradient)
        optimizer.step()

    return table, step


def grow(
    steps: dict[str, Callable[[Tensor], None]], batches: Batches, count: int, replaced: int, held: int
) -> dict[str, np.ndarray]:
    """Ms of `count` steps of both loops in turn; `held` keys of the replaced ones are with the control table."""
    rng = np.random.default_rng(2)
    times: dict[str, list[float]] = {name: [] for name in steps}
    with common.undisturbed():
        for index in range(count):
            numbers = {
                "growth": np.arange(index * replaced, (index + 1) * replaced),
                "control": rng.integers(held, size=replaced),
            }
            for name in sorted(steps, reverse=index % 2 == 1):
                keys = batches(index, numbers[name])
                times[name].append(1e3 * common.seconds(steps[name], keys))
    return {name: np.array(taken) for name, taken in times.items()}


def measure(given: Namespace) -> Iterator[common.Figures]:
    scale, replaced = (0.01, 1000) if given.quick else (1.0, 4000)
    torch.set_num_threads(given.threads)
    torch.manual_seed(1)
    batches = Batches(scale, 10 if given.quick else 50, replaced)
    gradient = torch.randn(BATCH, len(CARDINALITIES), DIM) / 100
    held = batches.rows - len(batches.common_keys)
    count = -(-held // replaced)

    _, step = new_table(gradient)  # compiles everything
    for index in range(3):
        step(batches(index, np.arange(replaced)))
    del step, _
    gc.collect()
    at_start = common.memory()

    control, control_step = new_table(gradient)
    control_step(batches(0, np.arange(replaced)))
    with torch.no_grad():
        for keys in batches.common_keys.split(1 << 20):
            control(keys)
        for start in range(0, held, 1 << 20):
            control(key(FIELD, np.arange(start, min(start + (1 << 20), held))))
    control_rows = control.num_rows
    for index in range(len(batches.keys)):
        control_step(batches(index, np.arange(index, index + replaced)))
    with_control = common.memory()

    growing, growing_step = new_table(gradient)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    times = grow({"growth": growing_step, "control": control_step}, batches, count, replaced, held)
    at_end = common.memory()
    assert control.num_rows == control_rows == batches.rows, "the control table has grown"
    assert growing.num_rows == len(batches.common_keys) + count * replaced, "the growing table lacks rows"

    figures = {
        "bytes_per_row": (at_end - with_control) / growing.num_rows,
        "peak_bytes_per_row": (common.peak_memory() - with_control) / growing.num_rows,
        "control_bytes_per_row": (with_control - at_start) / control.num_rows,
    }
    yield figures | {"growth_of_control_p50": float(np.median(times["growth"]) / np.median(times["control"]))}
    yield {
        loop: {"mean": float(taken.mean())} | {name: float(np.percentile(taken, p)) for name, p in PERCENTILES.items()}
        for loop, taken in times.items()
    }


if __name__ == "__main__":
    common.run(measure, __doc__, "a hundredth of the rows, 1,000 new keys a batch", between="_ms_")
