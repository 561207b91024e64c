"""Whatever stands in a file, right checksums included: it is read as what it says, or refused with the file's name.

No process ends of it.
"""

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from attack_driver import attack
from attack_targets import TARGETS, Target
from damaged_logs import FORMATS
from safetensors.numpy import load_file

from command import Run
from forgery import forged_documents, seal_file, with_array, write_sealed
from over import over
from sparsegroup.data import SyntheticConfig, synthetic_log
from sparsegroup.errors import UserError
from sparsegroup.penalties import MCP, PracticalNorm
from sparsegroup.rules.adagrad import ADAGRAD
from sparsegroup.serving import ExportError, load_export
from sparsegroup.serving.inspection import Threshold
from sparsegroup.training import Config, RunError
from sparsegroup.training.callbacks.mlflow import MLflowCallback
from sparsegroup.tuning import Study

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="limits of a process are read from /proc")


@on_linux
def test_some_forged_files_and_damaged_logs(folders: Path) -> None:
    counts = {kind: len(Target(folders, kind).forgeries) for kind in TARGETS}
    jobs = [(kind, at) for kind, count in counts.items() for at in random.Random(0).sample(range(count), 3)]
    logs = [(name, number) for name in FORMATS for number in range(4)]
    outcomes = attack(folders, jobs + logs)
    assert not (failures := [failure for one in outcomes.values() for failure in one.failures]), "\n".join(failures)
    assert outcomes.keys() == {*TARGETS, *FORMATS}
    assert all(one.counts.total() == (3 if name in TARGETS else 4) for name, one in outcomes.items())
    assert sum(outcomes[kind].counts["refused"] for kind in TARGETS) > len(TARGETS)


@pytest.mark.slow
@on_linux
@pytest.mark.parametrize("kind", TARGETS)
def test_all_forged_files(folders: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = attack(folders, [(kind, number) for number in range(len(Target(folders, kind).forgeries))])[kind]
    with capsys.disabled():
        print(f"\n{kind}: {dict(outcomes.counts)}")
    assert not outcomes.failures, "\n".join(outcomes.failures)
    assert outcomes.counts["refused"]


@over("path", ["x" * 5_000, "../a\0b", "/".join("x" * 5_000), "\ud800"])
def test_a_parent_at_a_path_that_no_system_has(path: str, written: Path) -> None:
    manifest = written / "delta" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["parent"]["path"] = path
    write_sealed(manifest, content)
    with pytest.raises(ExportError, match=r"^\S+/delta/manifest\.json: damaged \(parent\.path: .*, got '"):
        load_export(written / "delta")


COMMANDS = (
    ("inspect run", 0, np.nan),
    ("inspect run", 1, np.nan),  # the first part of the state
    ("predict run prepared-log --out out.csv", 0, np.inf),
    ("export run out --no-onnx", 0, np.nan),
    ("evaluate run prepared-log", 0, np.inf),
)


@over(("command", "part", "value"), COMMANDS)
def test_rows_that_are_not_finite_are_an_error_of_one_line(
    command: str, part: int, value: float, run: Run, written: Path
) -> None:
    checkpoint = next((written / "run" / "checkpoints").iterdir())
    path = next(path for path in checkpoint.iterdir() if path.name.startswith("table"))
    rows = load_file(path)["rows"]
    rows[:3, 0], rows[:3, part] = 0.5, value
    path.write_bytes(with_array(path, "rows", rows))
    seal_file(checkpoint / "checkpoint.json", path.name)
    before = sorted(written.rglob("*"))
    done = run(*command.split())
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1] == (
        "error: run: 3 of 26 rows of the table 'embedding' are not finite: training has diverged; take an earlier "
        "checkpoint"
    )
    assert sorted(written.rglob("*")) == before


def test_a_live_row_whose_measure_is_0_would_be_zeroed() -> None:
    group = {"lr": 0.0, "l1": 1.0, "l21": 1.0, "l2": 0.0, "norm": PracticalNorm(), "penalty": MCP()}
    threshold = Threshold.of(ADAGRAD, group, None)
    assert threshold is not None
    assert (threshold.kept(0.0), threshold.kept(1.0)) == (0.0, 0.0)
    assert threshold.kept(2.0) == pytest.approx(0.75)


LOG = synthetic_log(SyntheticConfig(rows=600), seed=0)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two trials."""
    folder = tmp_path_factory.mktemp("attacked") / "study"
    study = Study.begin(folder, Config.of(model="lr"), LOG, given={"model.name": "lr"})
    study.run(trials=2, seconds=60)
    study.close()
    return folder


def outcome_of(folder: Path, file: str) -> str:
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


def test_forged_studies_and_their_journals(study: Path) -> None:
    path, journal = study / "study.json", study / "trials.journal"
    whole, lines = path.read_bytes(), journal.read_text()
    found: Counter[str] = Counter()
    for _, make in random.Random(0).sample(list(forged_documents(json.loads(whole))), 50):
        write_sealed(path, make())
        found[outcome_of(study, path.name)] += 1
    path.write_bytes(whole)
    assert set(found) == {"works", "refused"}
    found.clear()
    for text in random.Random(0).sample(list(forged_journals(lines)), 60):
        journal.write_text(text)
        found[outcome_of(study, journal.name)] += 1
    assert set(found) == {"works", "refused"}
    journal.write_text(lines.replace("\n", "\nnothing\n", 1))
    with pytest.raises(UserError, match=r"trials\.journal:2: damaged \(no JSON object\)"):
        Study(study, LOG)
    journal.write_text(lines)
    assert outcome_of(study, journal.name) == "works"


@over("text", ["", "[]", "{}", '{"run_id": 3}', '{"run_id": ""}', '{"run_id": "../x"}', "[" * 100_000])
def test_forged_mlflow_records(text: str, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    (tmp_path / "mlflow.json").write_text(text)
    with pytest.raises(RunError, match=r"mlflow\.json: damaged \("):
        MLflowCallback("experiment").on_run_begin(tmp_path, Config())
