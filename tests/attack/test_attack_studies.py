"""Forged files of a study and of MLflow: read as what they say, or refused with the file's name."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from forgery import forged_documents, write_sealed
from over import over
from sparsegroup.data import SyntheticConfig, synthetic_log
from sparsegroup.errors import UserError
from sparsegroup.training import Config, RunError
from sparsegroup.training.callbacks.mlflow import MLflowCallback
from sparsegroup.tuning import Study

LOG = synthetic_log(SyntheticConfig(rows=600), seed=0)
MOST = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two trials."""
    folder = tmp_path_factory.mktemp("attacked") / "study"
    study = Study.begin(folder, Config.of(model="lr"), LOG, given={"model.name": "lr"})
    study.run(trials=2, seconds=60)
    study.close()
    return folder


def read(folder: Path, file: str) -> str:
    try:
        study = Study(folder, LOG)
    except UserError as error:
        return "refused" if file in str(error) or str(folder) in str(error) else f"names no file: {error}"
    try:
        study.trials()
    except UserError as error:
        return "refused" if file in str(error) else f"names no file: {error}"
    finally:
        study.close()
    return "works"


def forged_journals(text: str) -> Iterator[str]:
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        for _, make in forged_documents(json.loads(line)):
            yield "".join([*lines[:number], json.dumps(make()) + "\n", *lines[number + 1 :]])


def test_forged_studies(folder: Path) -> None:
    path = folder / "study.json"
    whole = path.read_bytes()
    forgeries = list(forged_documents(json.loads(whole)))
    found: Counter[str] = Counter()
    for _, make in random.Random(0).sample(forgeries, MOST):
        write_sealed(path, make())
        found[read(folder, path.name)] += 1
        path.write_bytes(whole)
    assert set(found) == {"works", "refused"}


def test_forged_journals(folder: Path) -> None:
    path = folder / "trials.journal"
    whole = path.read_text()
    found: Counter[str] = Counter()
    for text in random.Random(0).sample(list(forged_journals(whole)), MOST):
        path.write_text(text)
        found[read(folder, path.name)] += 1
    path.write_text(whole.replace("\n", "\nnothing\n", 1))
    with pytest.raises(UserError, match=r"trials\.journal:2: damaged \(no JSON object\)"):
        Study(folder, LOG)
    path.write_text(whole)
    assert set(found) == {"works", "refused"}
    assert read(folder, path.name) == "works"


@over("text", ["", "[]", "{}", '{"run_id": 3}', '{"run_id": ""}', '{"run_id": "../x"}', "[" * 100_000])
def test_forged_mlflow_records(text: str, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    (tmp_path / "mlflow.json").write_text(text)
    with pytest.raises(RunError, match=r"mlflow\.json: damaged \("):
        MLflowCallback("experiment").on_run_begin(tmp_path, Config())
