"""Numbers that are missing, given to a model that takes numbers as they are: refused by row and column."""

from pathlib import Path

import pytest
import torch

from command import Run, call
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


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that takes numbers as they are."""
    folder = tmp_path_factory.mktemp("missing")
    write_log(folder / "log.csv", None)
    (folder / "columns.yaml").write_text(COLUMNS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        options = (
            "--schema",
            str(folder / "columns.yaml"),
            "--model",
            "lr",
            "--lr",
            "0.001",
            "--out",
            "run",
            *AS_THEY_ARE,
        )
        assert call(patch, "train", "log.csv", *options) == 0
    return folder / "run"


@pytest.mark.parametrize(
    ("command", "gap"),
    [
        (("predict", "RUN", "bad.csv", "--out", "out.csv"), 321),
        (("evaluate", "RUN", "bad.csv"), 7),
        (("export", "RUN", "out", "--no-onnx", "--test", "bad.csv"), 7),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_scoring_names_row_and_column(
    command: tuple[str, ...], gap: int, run_folder: Path, run: Run, tmp_path: Path
) -> None:
    write_log(tmp_path / "bad.csv", gap)
    done = run(*(run_folder if word == "RUN" else word for word in command))
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1] == f"error: bad.csv: row {gap} (from 0): 'price' {WHAT_TO_DO}"
    assert [path.name for path in tmp_path.iterdir()] == ["bad.csv"]


@pytest.mark.parametrize("gap", [50, 399], ids=["in training", "in the test rows"])
def test_training_names_the_column(gap: int, run: Run, tmp_path: Path) -> None:
    write_log(tmp_path / "bad.csv", gap)
    (tmp_path / "columns.yaml").write_text(COLUMNS)
    done = run("train", "bad.csv", "--schema", "columns.yaml", "--model", "lr", "--lr", "0.001", *AS_THEY_ARE)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1] == f"error: bad.csv: 'price' {WHAT_TO_DO}"


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
