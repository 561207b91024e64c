"""How often a command opens a raw log, and that reading one imports nothing that it does not need."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from command import Run
from data_cases import HEADER, good_rows, written
from sparsegroup.data import prepare
from sparsegroup.data.raw.files import RawFile


def test_training_reads_a_raw_logs_head_once_and_counts_its_rows_once(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = written(tmp_path / "log.csv", HEADER + b"\n".join(good_rows(90)))
    test = written(tmp_path / "test.csv", HEADER + b"\n".join(good_rows(10)))
    opened, stream = list[str](), RawFile.open_text

    def open_text(file: RawFile) -> Any:
        opened.append(file.source.rpartition("/")[2])
        return stream(file)

    monkeypatch.setattr(RawFile, "open_text", open_text)
    options = ["--model", "mlp", "--dim", 2, "--test", test, "--set", "model.hidden=[4]", "--threads", 1]
    assert run("train", log, "--out", "run", *options).returncode == 0
    head_columns_head, count = ["log.csv", "log.csv", "test.csv"], ["log.csv", "test.csv"]
    base_rate, train, recalibrate, evaluate = ["log.csv"], ["log.csv"], ["log.csv"], ["test.csv"]
    trained = [*base_rate, *train, *recalibrate, *evaluate]
    passes_of_baseline, names = 2 * [*train, *evaluate], ["log.csv"]
    columns = ["log.csv", "test.csv"]
    assert opened == [*head_columns_head, *count, *trained, *passes_of_baseline, *names, *columns]
    opened.clear()
    assert run("predict", "run", log, "--out", "scores.csv", "--threads", 1).returncode == 0
    assert opened == ["log.csv"] * 3  # head, count, predict
    opened.clear()
    prepare([log, test], tmp_path / "out")
    assert opened == [*head_columns_head, *count]


READ = """
import sys
from sparsegroup.data import SyntheticConfig, open_log, synthetic_log
from sparsegroup_paper.public_shapes import DATASETS, synthetic_batches
log = open_log({path!r})
print(sum(len(batch) for batch in log.batches(0, 6, 2)))
next(synthetic_batches(DATASETS["avazu"], 10, 0))
print([name for name in sys.modules if name in ("pandas", "pyarrow.compute")])
"""


def test_a_text_is_read_without_pandas_and_what_arrow_computes_with(tmp_path: Path) -> None:
    lines = [f"{i % 2},{i % 3},x{i % 4}|y,{i / 7}" for i in range(40)]
    path = written(tmp_path / "log.csv", "\n".join(["clicked,ad,tags,price", *lines]))
    script = READ.format(path=str(path))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "6\n[]\n"
