"""A model whose rows are not finite is told of in one line, whatever is asked of it."""

from pathlib import Path

import numpy as np
import pytest

from command import Run
from forgery import array_of, seal_file, split, with_array
from sparsegroup.penalties import MCP
from sparsegroup.rules.adagrad import ADAGRAD
from sparsegroup.serving.inspection import Threshold

COMMANDS = {
    "inspect": ("inspect", "run"),
    "predict": ("predict", "run", "prepared-log", "--out", "out"),
    "export": ("export", "run", "out", "--no-onnx"),
    "evaluate": ("evaluate", "run", "prepared-log"),
}


def forge_rows(run: Path, part: int, value: float) -> None:
    """Give a part of the first three rows, 0 for the vectors, one value."""
    checkpoint = next((run / "checkpoints").iterdir())
    path = next(path for path in checkpoint.iterdir() if path.name.startswith("table"))
    header, data = split(path)
    rows = array_of(header, data, "rows")
    rows[:3, part] = value
    path.write_bytes(with_array(header, data, "rows", rows))
    seal_file(checkpoint / "checkpoint.json", path.name)


@pytest.mark.parametrize(
    ("name", "part", "value"),
    [*((name, 0, value) for name, value in zip(COMMANDS, (np.nan, np.inf) * 2, strict=True)), ("inspect", 1, np.nan)],
)
def test_rows_that_are_not_finite(name: str, part: int, value: float, run: Run, written: Path) -> None:
    forge_rows(written / "run", part, value)
    before = sorted(written.rglob("*"))
    done = run(*(word if word != "out" or name == "export" else "out.csv" for word in COMMANDS[name]))
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1] == (
        "error: run: 3 of 26 rows of the table 'embedding' are not finite: training has diverged; take an earlier "
        "checkpoint"
    )
    assert sorted(written.rglob("*")) == before


def test_a_live_row_whose_measure_is_0_would_be_zeroed() -> None:
    group = {"lr": 0.0, "l1": 1.0, "l21": 1.0, "l2": 0.0, "norm": "s", "penalty": MCP()}
    threshold = Threshold.of(ADAGRAD, group, None)
    assert threshold is not None
    assert (threshold.kept(0.0), threshold.kept(1.0)) == (0.0, 0.0)
    assert threshold.kept(2.0) == pytest.approx(0.75)
