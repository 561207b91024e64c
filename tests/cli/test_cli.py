"""How commands start and end, and what a run leaves."""

import gc
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
import yaml

from cli_cases import click_log, points_of, summary_of
from command import Run
from over import over
from sparsegroup.cli import runs
from sparsegroup.cli.app import COMMANDS, load_command, main, starting
from sparsegroup.kernels.gpu import runtime
from sparsegroup.training import load_model

FAST = ("--selection", "never", "--no-baseline", "--batch-size", 64)


@pytest.mark.usefixtures("pictures")
def test_train_takes_a_log_and_leaves_a_model(tmp_path: Path, ok: Run) -> None:
    done = ok("train", click_log(tmp_path / "log.csv", 1_000), "--lr", 0.05, "--l21", 1e-4)
    folder = tmp_path / "runs" / "log" / "latest"
    files = {"checkpoints", "columns.json", "config.yaml", "metrics.jsonl", "names.parquet", "provenance.json"}
    assert {path.name for path in folder.iterdir()} == files | {"report.html", "summary.json"}
    summary = summary_of(folder)
    color = summary["fields"]["color"]
    for words in (f"test AUC       {summary['test']['auc']:.4f}", f"({summary['live_rows']:,} of 104 features)"):
        assert words in done.stdout
    assert summary["test"]["auc"] > 0.95  # the label is a function of `color`
    assert color == {"seen": 7, "rows": 7, "live": color["live"]}
    assert summary["versions"]["torch"] == torch.__version__
    assert points_of(folder)[-1]["samples"] == 900
    assert yaml.safe_load((folder / "config.yaml").read_text())["optimizer"]["l21"] == 1e-4
    assert f"{summary['test']['auc']:.4f}" in (folder / "report.html").read_text()


@pytest.mark.usefixtures("pictures")
def test_a_test_set_of_one_class_has_no_auc_and_an_empty_section_has_its_defaults(tmp_path: Path, ok: Run) -> None:
    (tmp_path / "log.csv").write_text("label,a\n" + "1,x\n" * 50)
    (tmp_path / "settings.yaml").write_text("data: {log: log.csv}\noptimizer:\n")
    assert "test AUC       – (one class only)" in ok("train", "settings.yaml", "--out", "run").stdout
    assert summary_of(tmp_path / "run")["test"]["auc"] is None
    assert "nan" not in (tmp_path / "run" / "report.html").read_text()


def test_adahessian_is_not_compiled(tmp_path: Path, ok: Run) -> None:
    log = click_log(tmp_path / "log.csv", 100)
    ok("train", log, *FAST, "--optimizer", "adahessian", "--set", "training.compile=always", "--model", "mlp")


def test_training_on_a_device_is_training_on_the_host(ok: Run, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--device` in Triton's interpreter, whose tables have their rows on a device; and missing devices."""
    pytest.importorskip("triton")
    monkeypatch.setattr("sparsegroup.kernels.gpu.launch.ROW_TILE", 4096)
    arguments = ("train", "--rows", 100, "--model", "mlp", "--dim", 2, "--set", "model.hidden=[4]", *FAST)
    rows = {}
    for name, place in (("host", nullcontext()), ("device", runtime.rehearsal())):
        with place, np.errstate(all="ignore"):
            ok(*arguments, "--out", name)
        ((keys, vectors),) = load_model(name).table.items()
        rows[name] = keys, vectors
    assert torch.equal(rows["host"][0], rows["device"][0])
    torch.testing.assert_close(rows["device"][1], rows["host"][1], rtol=1e-4, atol=1e-6)
    for device, said in (("gpu", "training.device: must be cpu, cuda or cuda:N, got 'gpu'"), ("cuda", "finds no GPU")):
        if device == "gpu" or not torch.cuda.is_available():
            done = run(*arguments, "--device", device, "--out", "none")
            assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_garbage_is_sought_again_once_a_command_has_started() -> None:
    seen = []

    def run() -> None:
        seen.append(gc.isenabled())
        with starting():
            seen.append(gc.isenabled())
        seen.append(gc.isenabled())

    with pytest.raises(SystemExit):
        main(run)
    assert [*seen, gc.isenabled()] == [False, False, True, True]


def test_the_line_of_a_command_in_the_list_of_commands_begins_its_help() -> None:
    for name, line in COMMANDS.items():
        assert " ".join(str(load_command(name).help).split("\n\n")[0].split()) == line


def test_a_run_imports_no_compiler_of_torch_no_sympy_and_no_plots_and_ends_without_a_search_for_garbage(
    tmp_path: Path,
) -> None:
    program = """
import atexit, gc, sys
from sparsegroup.__main__ import main
atexit.register(lambda: print(gc.get_freeze_count() > 100_000))  # the last to be called
sys.argv = ["sparsegroup", "train", "--rows", "600", "--model", "dcn", "--out", "run", "--quiet"]
try:
    main()
finally:
    print(*({"torch._dynamo", "sympy", "sklearn", "matplotlib", "pandas"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    report = (tmp_path / "run" / "report.html").is_file()
    assert (done.returncode, done.stdout, report) == (0, "\nTrue\n", True), done.stderr


INTERRUPTED = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from sparsegroup.__main__ import main
sys.argv = ["sparsegroup", *{arguments!r}]
main()
"""


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("typer", ["--help"]),
        ("numpy", ["train", "log.csv"]),
        ("torch", ["follow", "log.csv", "--out", "run"]),
        ("polars", ["predict", "run", "log.csv"]),
        ("sparsegroup.server", ["serve", "models"]),
    ],
)
def test_an_interrupt_while_modules_are_imported_ends_a_command_without_a_word(
    module: str, arguments: list[str], tmp_path: Path
) -> None:
    script = INTERRUPTED.format(module=module, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr, done.stdout) == (-signal.SIGINT, "", "")


def test_an_interrupt_later_is_an_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit, match="130"):
        main(run)
    assert capsys.readouterr().err == "error: interrupted\n"


@over(
    "error",
    [
        MemoryError(),
        pa.lib.ArrowMemoryError("malloc of size 64 failed"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    ],
)
def test_without_memory_a_command_says_what_would_need_less(
    error: Exception, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(runs, "launched", fail)
    monkeypatch.setattr(os, "_exit", sys.exit)
    done = run("train", "log.csv")
    assert done.returncode == 1
    assert all(
        word in done.stderr for word in ("out of memory", "--dim", "--batch-size", "--max-table-bytes", "prepare")
    )
    assert done.stderr.count("\n") == 1
