"""The user's paths through the real command line."""

import gc
import inspect
import json
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from cli_cases import COMMAND, click_log, summary_of
from command import Run
from endings import Refused
from run_folders import state_of
from sparsegroup.cli.app import COMMANDS, load_command, main, starting
from sparsegroup.data import PreparedLog
from sparsegroup.importing import uncollected
from sparsegroup.kernels.gpu import runtime
from sparsegroup.models import XDeepFM
from sparsegroup.training import evaluate, load_model, predict, read_config

FAST = ("--selection", "never", "--no-baseline", "--batch-size", 64)


def test_train_takes_a_log_and_leaves_a_model(tmp_path: Path, ok: Run) -> None:
    done = ok("train", click_log(tmp_path / "log.csv", 1_000), "--lr", 0.05, "--l21", 1e-4)
    folder = tmp_path / "runs" / "log" / "latest"
    files = {"checkpoints", "columns.json", "config.yaml", "metrics.jsonl", "names.parquet", "provenance.json"}
    assert {path.name for path in folder.iterdir()} == files | {"report.html", "summary.json"}
    summary = json.loads((folder / "summary.json").read_text())
    assert f"test AUC       {summary['test']['auc']:.4f}" in done.stdout
    assert summary["test"]["auc"] > 0.95  # the label is a function of `color`
    assert summary["fields"]["color"] == {"seen": 7, "rows": 7, "live": summary["fields"]["color"]["live"]}
    assert summary["versions"]["torch"] == torch.__version__
    history = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert history[-1]["samples"] == 900
    assert yaml.safe_load((folder / "config.yaml").read_text())["optimizer"]["l21"] == 1e-4
    assert f"{summary['test']['auc']:.4f}" in (folder / "report.html").read_text()
    assert re.search(r"feature rate +[01]\.\d+ +\([\d,]+ of 104 features\)", done.stdout)


def test_the_bits_depend_on_the_seed_and_not_on_the_process_or_its_threads(tmp_path: Path, ok: Run) -> None:
    arguments = ["train", "--rows", "300", "--model", "opnn", "--selection", "never", "--batch-size", "100"]
    here = [*arguments, "--threads", "1", "--seed", "1", "--out", "a"]
    subprocess.run([COMMAND, *here], cwd=tmp_path, capture_output=True, check=True)
    for seed, threads, out in ((1, 3, "b"), (2, 1, "c")):
        ok(*arguments, "--seed", seed, "--threads", threads, "--out", out)
    one, same, other = (state_of(tmp_path / out) for out in "abc")
    assert one == same
    assert one != other


def test_bad_rows_stop_training_or_are_skipped_and_reported(tmp_path: Path, ok: Run, refused: Refused) -> None:
    log = click_log(tmp_path / "log.csv", 1_000)
    log.write_text(log.read_text() + "1,2000,20")
    assert refused("train", log) == f"error: {log}:1002: 3 columns where 5 are expected: '1,2000,20'\n"
    assert not (tmp_path / "runs").exists()
    skipped = ok("train", log, "--on-bad-row", "skip", "--max-bad", ".1%", *FAST).stderr
    assert "skipped 1 bad row" in skipped
    assert "line 1002: 3 columns where 5 are expected: '1,2000,20'" in skipped


def test_demo_shows_four_methods_and_prunes_to_the_target_rate(ok: Run) -> None:
    rows = {
        cells[0]: cells[1:]
        for line in ok("demo", "--rows", 5_000, "--target-rate", 0.05).stdout.splitlines()
        if line.startswith("│") and (cells := [cell.strip() for cell in line.strip("│").split("│")])
    }
    target, constant = "Target rate", "Group Adam, fixed λ"
    assert list(rows) == ["Adam", "Adam, pruned", constant, target]
    assert rows["Adam"][2] == "100.00%"
    assert rows["Adam, pruned"][2:4] == rows[target][2:4]
    assert float(rows[target][2].rstrip("%")) == pytest.approx(5, abs=0.05)
    assert float(rows[constant][2].rstrip("%")) < 50


def test_version_and_help(run: Run) -> None:
    assert re.fullmatch(r"sparsegroup \d+\.\d+\.\d+\n", run("--version").stdout)
    assert "Usage: " in run("--help").stdout


def test_a_prepared_log_is_trained_on(tmp_path: Path, ok: Run) -> None:
    rows = [
        [str(int(i % 7 in (1, 3))), *[str(i % 5)] * 13, *[f"{i % 7}v{i * j % 11}" for j in range(26)]]
        for i in range(1_050)
    ]
    (tmp_path / "train.txt").write_text("\n".join("\t".join(row) for row in rows) + "\n")
    ok("prepare", "train.txt", "log", "--vocabulary")
    done = ok("train", "log", "--lr", 0.05, "--l21", 1e-4, *FAST)
    assert "900 training and 150 test rows, 26 fields, 13 numbers" in done.stderr
    folder, log = tmp_path / "runs" / "log" / "latest", PreparedLog(tmp_path / "log")
    test = json.loads((folder / "summary.json").read_text())["test"]
    assert test["auc"] > 0.99
    assert 0.5 < test["calibration"] < 2
    assert 0 < test["normalized_entropy"] < 0.5
    probabilities = predict(load_model(folder), log.batches(log.train_rows, len(log), 4096)).probabilities()
    labels = next(log.batches(log.train_rows, len(log), 150)).labels.numpy()
    assert evaluate(labels, probabilities).auc == pytest.approx(test["auc"])
    assert (folder / "vocabulary.parquet").read_bytes() == (tmp_path / "log" / "vocabulary.parquet").read_bytes()


def test_a_file_of_settings_with_others_set_over_it(tmp_path: Path, ok: Run) -> None:
    click_log(tmp_path / "log.csv")
    (tmp_path / "settings.yaml").write_text(
        "data: {log: log.csv, max_bad: 1%}\nmodel: {name: mlp, dim: 4, hidden: [8]}\noptimizer: {lr: 0.05, l21: 1e-4}\n"
    )
    assigned = ("--set", "optimizer.options={betas: [0.8, 0.9]}", "--set", "training.windows=3")
    ok("train", "settings.yaml", "--l21", 2e-4, "--batch-size", 512, "--no-fallback", "--no-baseline", *assigned)
    folder = tmp_path / "runs" / "log" / "latest"
    config = read_config(folder / "config.yaml", {})
    assert (config.model.name, config.model.dim, config.model.hidden) == ("mlp", 4, (8,))
    assert (config.optimizer.lr, config.optimizer.l21) == (0.05, 2e-4)
    assert config.optimizer.options == {"betas": [0.8, 0.9]}
    assert (config.data.max_bad, config.model.fallback, config.training.baseline) == (0.01, False, False)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2  # of 4 batches
    ok("train", folder / "config.yaml", "--out", "again")
    assert state_of(folder) == state_of(tmp_path / "again")


def test_a_run_is_overwritten_on_request_once_the_new_one_is_complete(
    tmp_path: Path, ok: Run, run: Run, refused: Refused
) -> None:
    log, folder = click_log(tmp_path / "log.csv", 600), tmp_path / "run"
    ok("train", log, "--out", "run", *FAST)
    (folder / "vocabulary.parquet").write_bytes(b"of the old run")
    (folder / "mine.txt").write_text("not the run's")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    names = {path.name for path in folder.iterdir()}
    again = refused("train", log, "--out", "run", "--seed", 1)
    assert again == "error: run is not empty; give another --out, or --overwrite\n"
    diverged = run("train", log, "--out", "run", "--overwrite", "--lr", 1e30, *FAST)
    assert diverged.returncode == 2
    assert "\nerror: training has diverged after 64 samples: the loss of the next batch is nan. " in diverged.stderr
    assert diverged.stderr.endswith("Lower the learning rate\n")
    assert {path: path.read_bytes() for path in before} == before
    ok("train", log, "--seed", 1, "--out", "run", "--overwrite", *FAST)
    assert {path.name for path in folder.iterdir()} == names - {"vocabulary.parquet"}
    assert (folder / "summary.json").read_bytes() != before[folder / "summary.json"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_network_with_options_is_trained_and_another_cannot_continue(tmp_path: Path, ok: Run, run: Run) -> None:
    log = click_log(tmp_path / "log.csv", 300)
    ok("train", log, "--model", "xdeepfm", "--set", "model.options={cin: [6]}", *FAST, "--out", "run")
    (network,) = (one for one in load_model(tmp_path / "run").modules() if isinstance(one, XDeepFM))
    assert [len(weight) for weight in network.cin.weights] == [6]
    other = run("train", log, "--continue", "run", "--set", "model.options={cin: [5]}", "--out", "next")
    assert "model.options cannot change to {'cin': [5]}" in other.stderr


def test_adahessian_is_not_compiled(tmp_path: Path, ok: Run) -> None:
    log = click_log(tmp_path / "log.csv", 300)
    ok("train", log, *FAST, "--optimizer", "adahessian", "--set", "training.compile=always")


def test_training_on_a_device_is_training_on_the_host(ok: Run, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--device` in Triton's interpreter, whose tables have their rows on a device; and missing devices."""
    pytest.importorskip("triton")
    monkeypatch.setattr("sparsegroup.kernels.gpu.launch.ROW_TILE", 4096)
    arguments = ("train", "--rows", 100, "--model", "mlp", *FAST)
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
    with uncollected():
        with uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), uncollected():
        raise KeyError
    assert gc.isenabled()


def test_every_command_starts_so_and_its_line_in_the_list_of_commands_begins_its_help() -> None:
    for name, line in COMMANDS.items():
        command = load_command(name)
        assert command.callback is not None
        assert "starting" in inspect.unwrap(command.callback).__code__.co_names
        assert " ".join(str(command.help).split("\n\n")[0].split()) == line


def test_a_run_imports_neither_torchs_compiler_nor_scikit_learn_nor_matplotlib_and_ends_without_a_search_for_garbage(
    tmp_path: Path,
) -> None:
    program = """
import atexit, gc, sys
from sparsegroup.__main__ import main
atexit.register(lambda: print(gc.get_freeze_count() > 100_000))  # the last to be called
sys.argv = ["sparsegroup", "train", "--rows", "600", "--model", "lr", "--out", "run", "--quiet"]
try:
    main()
finally:
    print(*({"torch._dynamo", "sklearn", "matplotlib", "pandas"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    report = (tmp_path / "run" / "report.html").is_file()
    assert (done.returncode, done.stdout, report) == (0, "\nTrue\n", True), done.stderr


def test_a_test_set_of_one_class_has_no_auc_and_an_empty_section_has_its_defaults(tmp_path: Path, ok: Run) -> None:
    (tmp_path / "log.csv").write_text("label,a\n" + "1,x\n" * 50)
    (tmp_path / "settings.yaml").write_text("data: {log: log.csv}\noptimizer:\n")
    assert "test AUC       – (one class only)" in ok("train", "settings.yaml").stdout
    folder = tmp_path / "runs" / "log" / "latest"
    assert summary_of(folder)["test"]["auc"] is None  # type: ignore[index]
    assert "nan" not in (folder / "report.html").read_text()
