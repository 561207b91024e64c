"""Numbers that are missing, given to a model that takes numbers as they are: refused by row and column."""

from pathlib import Path

import pytest
import torch

from command import Done, Run
from sparsegroup import GroupAdam, HashEmbedding
from sparsegroup.models import MLP
from sparsegroup.training import Trainer

COLUMNS = """
separator: ","
columns:
  label: label
  color: category
  size: number
  price: number
"""
AS_THEY_ARE = ("--set", "model.standardize=false", "--set", "model.number_buckets=0")
WHAT_TO_DO = (
    "has missing or infinite numbers, and the model takes numbers as they are: fill them in, or train with "
    "model.standardize=true, which takes them"
)


def write_log(path: Path, gap: int | None, rows: int = 400) -> Path:
    """A log whose row `gap`, from 0, has no price."""
    lines = ["label,color,size,price"]
    lines += [f"{int(i % 7 in (1, 3))},c{i % 7},{i % 5}.5,{'' if i == gap else i % 3}" for i in range(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def train(log: object) -> tuple[object, ...]:
    return ("train", log, "--schema", "columns.yaml", "--model", "lr", "--lr", "0.001", *AS_THEY_ARE)


def refused(done: Done) -> str:
    assert done.returncode == 2, done.stderr
    return done.stderr.splitlines()[-1]


def test_training_and_scoring_name_the_column_and_the_row(run: Run, tmp_path: Path) -> None:
    write_log(tmp_path / "log.csv", None)
    (tmp_path / "columns.yaml").write_text(COLUMNS)
    for gap in (50, 399):  # of the training rows, and of the test rows
        write_log(tmp_path / "bad.csv", gap)
        assert refused(run(*train("bad.csv"))) == f"error: bad.csv: 'price' {WHAT_TO_DO}"
    assert run(*train("log.csv"), "--out", "run").returncode == 0
    before = {path.name for path in tmp_path.iterdir()}
    for gap, command in (
        (321, ("predict", "run", "bad.csv", "--out", "out.csv")),
        (7, ("evaluate", "run", "bad.csv")),
        (7, ("export", "run", "out", "--no-onnx", "--test", "bad.csv")),
    ):
        write_log(tmp_path / "bad.csv", gap)
        assert refused(run(*command)) == f"error: bad.csv: row {gap} (from 0): 'price' {WHAT_TO_DO}"
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_trainer_tells_numbers_from_divergence() -> None:
    torch.manual_seed(0)
    model, table = MLP(fields=1, dim=2, numbers=2, hidden=(4,)), HashEmbedding(2)
    trainer = Trainer(table, model, GroupAdam([*table.parameters(), *model.parameters()]))
    keys, labels, numbers = torch.zeros(3, 1, dtype=torch.int64), torch.tensor([0, 1, 0]), torch.ones(3, 2)
    numbers[1, 1] = float("inf")
    with pytest.raises(ValueError, match=r"column 1 of the numbers \(from 0\) has missing or infinite numbers"):
        trainer.fit([(keys, numbers, labels)])
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="diverged"):
        trainer.fit([(keys, torch.ones(3, 2), labels)])
    with pytest.raises(FloatingPointError, match="its weights are not finite"):
        trainer.predict([(keys, torch.ones(3, 2), labels)])
