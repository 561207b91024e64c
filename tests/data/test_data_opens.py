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
from sparsegroup.data.schema import Head


class Opens:
    """Counts how often the files of raw logs are opened, and how often a head is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: list[str] = []
        self.heads = 0
        stream, head = RawFile.open_text, Head.of_text

        def opened(file: RawFile) -> Any:
            self.files.append(file.name)
            return stream(file)

        def read_head(*arguments: Any) -> Head:
            self.heads += 1
            return head(*arguments)

        monkeypatch.setattr(RawFile, "open_text", opened)
        monkeypatch.setattr(Head, "of_text", read_head)


def test_training_reads_a_raw_logs_head_once_and_counts_its_rows_once(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = written(tmp_path / "log.csv", HEADER + b"\n".join(good_rows(90)))
    test = written(tmp_path / "test.csv", HEADER + b"\n".join(good_rows(10)))
    monkeypatch.chdir(tmp_path)
    opens = Opens(monkeypatch)
    options = ["--model", "mlp", "--dim", 2, "--test", test, "--set", "model.hidden=[4]", "--threads", 1]
    assert run("train", log, "--out", "run", *options).returncode == 0
    assert opens.heads == 2
    head, columns, count = (["log.csv"], ["test.csv"]), ["log.csv"], ["log.csv", "test.csv"]
    base_rate, train, recalibrate, evaluate = ["log.csv"], ["log.csv"], ["log.csv"], ["test.csv"]
    trained = [*base_rate, *train, *recalibrate, *evaluate]
    passes_of_baseline, names = 2 * [*train, *evaluate], ["log.csv"]
    assert opens.files == [
        *head[0],
        *columns,
        *head[1],
        *count,
        *trained,
        *passes_of_baseline,
        *names,
        "log.csv",
        "test.csv",
    ]  # and columns
    opens.files.clear()
    assert run("predict", "run", log, "--out", "scores.csv", "--threads", 1).returncode == 0
    assert opens.files == ["log.csv"] * 3  # head, count, predict
    opens.files.clear()
    prepare([log, test], tmp_path / "out")
    assert opens.files == [*head[0], *columns, *head[1], *count]


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
    path = tmp_path / "log.csv"
    lines = [f"{i % 2},{i % 3},x{i % 4}|y,{i / 7}" for i in range(40)]
    path.write_text("\n".join(["clicked,ad,tags,price", *lines]) + "\n")
    script = READ.format(path=str(path))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "6\n[]\n"
