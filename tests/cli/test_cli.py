"""The user's paths through the real command line."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch
import yaml

from cli_cases import COMMAND, click_log
from command import Run
from run_folders import state_of
from sparsegroup.data import PreparedLog
from sparsegroup.training import evaluate, load_model, predict, read_config


def test_train_takes_a_log_and_leaves_a_model(tmp_path: Path, run: Run) -> None:
    done = run("train", click_log(tmp_path / "log.csv"), "--lr", 0.05, "--l21", 1e-4)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "log" / "latest"
    assert {path.name for path in folder.iterdir()} == {
        "checkpoints",
        "columns.json",
        "config.yaml",
        "metrics.jsonl",
        "names.parquet",
        "provenance.json",
        "report.html",
        "summary.json",
    }
    summary = json.loads((folder / "summary.json").read_text())
    assert f"test AUC       {summary['test']['auc']:.4f}" in done.stdout
    assert summary["test"]["auc"] > 0.95  # the label is a function of `color`
    assert summary["fields"]["color"] == {"seen": 7, "rows": 7, "live": summary["fields"]["color"]["live"]}
    assert summary["versions"]["torch"] == torch.__version__
    history = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert history[-1]["samples"] == 1_800
    assert yaml.safe_load((folder / "config.yaml").read_text())["optimizer"]["l21"] == 1e-4
    assert f"{summary['test']['auc']:.4f}" in (folder / "report.html").read_text()
    assert re.search(r"feature rate +[01]\.\d+ +\([\d,]+ of 104 features\)", done.stdout)


def test_the_same_seed_repeats_bit_for_bit_in_another_process_and_another_does_not(tmp_path: Path, run: Run) -> None:
    arguments = ["train", "--rows", "2000", "--model", "opnn", "--threads", "1"]
    subprocess.run([COMMAND, *arguments, "--seed", "1", "--out", "a"], cwd=tmp_path, capture_output=True, check=True)
    for seed, out in ((1, "b"), (2, "c")):
        assert run(*arguments, "--seed", seed, "--out", out).returncode == 0
    one, same, other = (state_of(tmp_path / out) for out in "abc")
    assert one == same
    assert one != other


def test_a_run_is_not_overwritten_unless_asked(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    assert run("train", log, "--out", "run").returncode == 0
    before = (tmp_path / "run" / "summary.json").read_text()
    again = run("train", log, "--out", "run", "--seed", 1)
    assert (again.returncode, again.stderr) == (2, "error: run is not empty; give another --out, or --overwrite\n")
    assert (tmp_path / "run" / "summary.json").read_text() == before
    assert run("train", log, "--out", "run", "--seed", 1, "--overwrite").returncode == 0
    assert (tmp_path / "run" / "summary.json").read_text() != before


def test_bad_rows_stop_training_or_are_skipped_and_reported(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    log.write_text(log.read_text() + "1,2000,20")
    stopped = run("train", log)
    assert (stopped.returncode, stopped.stdout) == (2, "")
    assert stopped.stderr == f"error: {log}:2002: 3 columns where 5 are expected: '1,2000,20'\n"
    assert not (tmp_path / "runs").exists()
    skipped = run("train", log, "--on-bad-row", "skip")
    assert skipped.returncode == 0
    assert "skipped 1 bad row" in skipped.stderr
    assert "line 2002: 3 columns where 5 are expected: '1,2000,20'" in skipped.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no.csv"], "error: no.csv: no such file\n"),
        (["log.csv", "--label", "bought"], "error: log.csv:1: no label column 'bought'"),
        (["log.csv", "--l21", "-1"], "error: the command line: optimizer: l21 must be >= 0, got -1"),
        (["log.csv", "--lr", "nan"], "lr must be finite and >= 0, got nan"),
        (["log.csv", "--optimizer", "ftrl"], "the optimizer ftrl has no default learning rate: give lr"),
        (["log.csv", "--optimizer", "lion"], "'lion' is not one of 'sgd'"),
        (["log.csv", "--norm", "l2"], "'l2' is not one of 's'"),
        (["log.csv", "--test-fraction", "1"], "data.test_fraction: input should be less than 1, got '1'"),
        (["log.csv", "--max-bad", "few"], "data.max_bad: must be a share like 5% or .05, got 'few'"),
        (["log.csv", "--max-bad", "few%"], "data.max_bad: must be a share like 5% or .05, got 'few%'"),
        (
            ["log.csv", "--set", "optimizer.penalti=mcp"],
            "no setting 'optimizer.penalti'; did you mean 'optimizer.penalty'?",
        ),
        (["log.csv", "--set", "optimiser.lr=1"], "no setting 'optimiser.lr'; did you mean 'optimizer.lr'?"),
        (["log.csv", "--set", "optimizer=adam"], "optimizer has settings of its own, as in optimizer.name; got 'adam'"),
        (["log.csv", "--set", "lr"], "--set wants key=value, as in optimizer.l21=1e-3, got 'lr'"),
        (["log.csv", "--set", "optimizer.options={betas: 3}"], "betas"),
        (["log.csv", "--set", "training.batch_size=[1"], "the value is not YAML"),
        (["log.csv", "--set", "model.hidden=[0]"], "model.hidden.0: input should be greater than or equal to 1, got 0"),
        (["wrong.yaml"], "wrong.yaml: no setting 'optimizer.nrom'; did you mean 'optimizer.norm'?"),
        (["no.yaml"], "no.yaml: No such file"),
        (["list.yaml"], "list.yaml: keys and values are expected, got list"),
        (["log.csv", "--continue", "no"], "no: no run (there is no such folder)"),
        (["log.csv", "--schema", "s.yaml", "--label", "label"], "--label and --schema cannot both be given"),
        (["--colour"], "No such option: --colour"),
    ],
)
def test_wrong_arguments_are_named_without_a_traceback(
    tmp_path: Path, run: Run, arguments: list[str], message: str
) -> None:
    click_log(tmp_path / "log.csv", rows=50)
    (tmp_path / "wrong.yaml").write_text("data: {log: log.csv}\noptimizer: {nrom: s}\n")
    (tmp_path / "list.yaml").write_text("- 1\n")
    done = run("train", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_demo_shows_four_methods_and_prunes_to_the_rate_that_was_asked_for(run: Run) -> None:
    done = run("demo", "--rows", 30_000, "--target-rate", 0.05)
    assert done.returncode == 0, done.stderr
    rows = {
        cells[0]: cells[1:]
        for line in done.stdout.splitlines()
        if line.startswith("│") and (cells := [cell.strip() for cell in line.strip("│").split("│")])
    }
    asked, constant = "Target rate", "Group Adam, fixed λ"
    assert list(rows) == ["Adam", "Adam, pruned", constant, asked]
    assert rows["Adam"][2] == "100.00%"
    assert rows["Adam, pruned"][2:4] == rows[asked][2:4]
    assert rows[asked][2] == "5.00%"
    assert float(rows[constant][2].rstrip("%")) < 50


def test_version_and_help(run: Run) -> None:
    assert re.fullmatch(r"sparsegroup \d+\.\d+\.\d+\n", run("--version").stdout)
    for arguments in ([], ["train"], ["demo"]):
        shown = run(*arguments, "--help")
        assert shown.returncode == 0
        assert "Usage: sparsegroup" in shown.stdout


def test_a_prepared_log_is_trained_on(tmp_path: Path, run: Run) -> None:
    rows = [
        [str(int(i % 7 in (1, 3))), *[str(i % 5)] * 13, *[f"{i % 7}v{i * j % 11}" for j in range(26)]]
        for i in range(2_100)
    ]
    (tmp_path / "train.txt").write_text("\n".join("\t".join(row) for row in rows) + "\n")
    assert run("prepare", "train.txt", "log", "--vocabulary").returncode == 0
    done = run("train", "log", "--lr", 0.05, "--l21", 1e-4)
    assert done.returncode == 0, done.stderr
    assert "1,800 training and 300 test rows, 26 fields, 13 numbers" in done.stderr
    test = json.loads((tmp_path / "runs" / "log" / "latest" / "summary.json").read_text())["test"]
    assert test["auc"] > 0.99
    assert 0.5 < test["calibration"] < 2
    assert 0 < test["normalized_entropy"] < 0.5
    model = load_model(tmp_path / "runs" / "log" / "latest")
    log = PreparedLog(tmp_path / "log")
    probabilities = predict(model, log.batches(log.train_rows, len(log), 4096)).probabilities()
    labels = next(log.batches(log.train_rows, len(log), 300)).labels.numpy()
    assert evaluate(labels, probabilities).auc == pytest.approx(test["auc"])
    assert (tmp_path / "runs" / "log" / "latest" / "vocabulary.parquet").read_bytes() == (
        tmp_path / "log" / "vocabulary.parquet"
    ).read_bytes()


def test_the_number_of_threads_changes_nothing(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    for number in (1, 3):
        assert run("train", log, "--lr", 0.05, "--out", f"run-{number}", "--threads", number).returncode == 0
    assert state_of(tmp_path / "run-1") == state_of(tmp_path / "run-3")


def test_a_file_of_settings_with_others_set_over_it(tmp_path: Path, run: Run) -> None:
    click_log(tmp_path / "log.csv")
    (tmp_path / "settings.yaml").write_text(
        "data: {log: log.csv, max_bad: 1%}\nmodel: {name: mlp, dim: 4, hidden: [8]}\noptimizer: {lr: 0.05, l21: 1e-4}\n"
    )
    options = [
        "--l21",
        2e-4,
        "--batch-size",
        512,
        "--set",
        "optimizer.options={betas: [0.8, 0.9]}",
        "--set",
        "training.windows=3",
    ]
    done = run("train", "settings.yaml", *options)
    assert done.returncode == 0, done.stderr
    config = read_config(tmp_path / "runs" / "log" / "latest" / "config.yaml", {})
    assert (config.model.name, config.model.dim, config.model.hidden) == ("mlp", 4, (8,))
    assert (config.optimizer.lr, config.optimizer.l21) == (0.05, 2e-4)
    assert config.optimizer.options == {"betas": [0.8, 0.9]}
    assert config.data.max_bad == 0.01
    assert len((tmp_path / "runs" / "log" / "latest" / "metrics.jsonl").read_text().splitlines()) == 2  # of 4 batches
    again = run("train", tmp_path / "runs" / "log" / "latest" / "config.yaml", "--out", "again")
    assert again.returncode == 0, again.stderr
    assert state_of(tmp_path / "runs" / "log" / "latest") == state_of(tmp_path / "again")


def test_an_overwritten_run_stays_until_the_new_one_is_complete(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    assert run("train", log, "--out", "run").returncode == 0
    folder = tmp_path / "run"
    (folder / "vocabulary.parquet").write_bytes(b"of the old run")
    (folder / "mine.txt").write_text("not the run's")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    names = {path.name for path in folder.iterdir()}
    assert run("train", log, "--lr", 1e30, "--out", "run", "--overwrite").returncode == 2
    assert {path: path.read_bytes() for path in before} == before
    assert run("train", log, "--seed", 1, "--out", "run", "--overwrite").returncode == 0
    assert {path.name for path in folder.iterdir()} == names - {"vocabulary.parquet"}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "log.json").write_text("{}")
    refused = run("train", log, "--out", "other", "--overwrite")
    assert (refused.returncode, "other holds no run to overwrite" in refused.stderr) == (2, True)
