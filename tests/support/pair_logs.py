"""Made-up logs of five fields: each has an effect, and the second and the fourth may have one together."""

from pathlib import Path

import numpy as np
import polars as pl

from sparsegroup.data import MemoryLog
from sparsegroup.data.synthetic import keys_of_values

FIELDS = ("a", "b", "c", "d", "e")
VALUES = 40


def drawn(effect: float, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Values `[rows, 5]`, and labels `[rows]`."""
    rng = np.random.default_rng(seed)
    values = rng.integers(VALUES, size=(rows, 5))
    logit = sum(rng.normal(size=VALUES)[values[:, place]] for place in range(5)) / 2
    logit = logit + effect * rng.normal(size=(VALUES, VALUES))[values[:, 1], values[:, 3]]
    return values, (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.float32)


def pair_log(effect: float, rows: int = 12_000, seed: int = 0) -> MemoryLog:
    """Such a log, of which the last tenth are test rows."""
    values, labels = drawn(effect, rows, seed)
    keys = np.stack([keys_of_values(values[:, place], place) for place in range(5)], axis=1)
    return MemoryLog("pairs", FIELDS, keys, labels, rows - rows // 10)


def write_pair_log(path: Path, effect: float, rows: int = 12_000, seed: int = 0) -> Path:
    """The same as CSV."""
    values, labels = drawn(effect, rows, seed)
    columns = {name: [f"{name}{value}" for value in values[:, place]] for place, name in enumerate(FIELDS)}
    pl.DataFrame({"label": labels.astype(int), **columns}).write_csv(path)
    return path
