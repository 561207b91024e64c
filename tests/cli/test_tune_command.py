"""`sparsegroup tune` through the real command line: the space, a study, its end in a run, and what is refused."""

import json
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from cli_cases import many_features
from command import Run
from sparsegroup.cli import tune
from sparsegroup.kernels.cpu import jit
from sparsegroup.kernels.cpu.jit import compiling, seconds_compiling

QUICK = ("--model", "lr", "--optimizer", "adagrad", "--batch-size", 64)


def test_the_time_limit_does_not_count_the_compiling_of_kernels(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = seconds_compiling()
    with compiling("a kernel", is_kept=False):
        pass
    assert seconds_compiling() > before
    now = [0.0]

    def an_hour_later() -> float:
        now[0] += 3600
        return now[0]

    monkeypatch.setattr(tune, "monotonic", an_hour_later)
    monkeypatch.setattr(jit, "seconds_compiling", lambda: now[0])  # as if all hours went into it
    log = many_features(tmp_path / "log.csv")
    done = run("tune", log, *QUICK, "--set", "training.baseline=false", "--trials", 2, "--minutes", 1e-9, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trials"] == 2


def test_the_number_of_epochs_is_searched_unless_it_is_given(tmp_path: Path, run: Run) -> None:
    log = many_features(tmp_path / "log.csv")

    def searched(*options: object) -> list[str]:
        return [one["key"] for one in json.loads(run("tune", log, "--trials", 0, "--json", *options).stdout)["space"]]

    assert "training.epochs" in searched()
    assert "training.epochs" not in searched("--epochs", 3)


def test_settings_that_a_log_decided_are_searched_from_a_runs_config(tmp_path: Path, run: Run) -> None:
    log = many_features(tmp_path / "log.csv")
    assert run("train", log, "--out", tmp_path / "run", "--model", "lr", "--no-baseline").returncode == 0
    of_run, of_log = (
        [one["key"] for one in json.loads(run("tune", what, "--trials", 0, "--json", *given).stdout)["space"]]
        for what, given in (
            (tmp_path / "run" / "config.yaml", ()),
            (log, ("--model", "lr", "--set", "training.baseline=false")),
        )
    )
    assert {"model.fallback", "optimizer.lr", "training.batch_size"} <= set(of_run) <= set(of_log)


def test_no_trials_show_the_space_and_leave_nothing(tmp_path: Path, run: Run) -> None:
    log = many_features(tmp_path / "log.csv")
    done = run("tune", log, "--trials", 0, "--model", "dcn")
    assert done.returncode == 0, done.stderr
    for shown in ("optimizer.lr", "log-uniform", "adagrad", "begins with", "model.hidden", "128×64"):
        assert shown in done.stdout
    assert "model.name" not in done.stdout  # it is given
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]
    content = json.loads(run("tune", log, "--trials", 0, "--json", "--set", "model.dim=8").stdout)
    keys = [one["key"] for one in content["space"]]
    assert "model.name" in keys
    assert "model.dim" not in keys
    assert content["config"]["model"]["dim"] == 8


def test_a_study_ends_in_a_command_and_a_yaml_of_the_same_run(tmp_path: Path, run: Run) -> None:
    log = many_features(tmp_path / "log.csv")
    done = run("tune", log, *QUICK, "--target-rate", 0.1, "--lr", 1e-5, "--trials", 4, "--out", "study", "--json")
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["default"]["number"] == 0
    assert content["default"]["settings"] == {}
    assert content["best"]["log_loss"] <= content["default"]["log_loss"]
    assert (content["trials"], content["states"]["complete"]) == (4, 4)
    assert done.stderr.count("\ntrial ") == 4
    assert sorted(path.name for path in (tmp_path / "study").iterdir()) == [
        "best.yaml",
        "study.json",
        "trials.csv",
        "trials.journal",
    ]
    command = shlex.split(content["command"])
    assert command == ["sparsegroup", "train", content["config"]]
    assert run(*command[1:], "--out", "run").returncode == 0
    settings = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert settings["optimizer"]["lr"] == 1e-5
    assert settings["optimizer"]["target_rate"] == 0.1
    for key, value in content["best"]["settings"].items():
        section, name = key.split(".")
        assert settings[section][name] == value


def test_the_default_folder_is_named_by_the_time_and_goes_on(tmp_path: Path, run: Run) -> None:
    log = many_features(tmp_path / "log.csv")
    first = run("tune", log, *QUICK, "--trials", 1)
    assert first.returncode == 0, first.stderr
    assert "best: `train` as it is" in first.stdout
    assert first.stdout.count("`train` as it is") == 1  # there is nothing to compare it with
    assert "sparsegroup train" in first.stdout
    assert "continues the study with more --trials" in first.stderr
    latest = tmp_path / "studies" / "log" / "latest"
    assert latest.is_symlink()
    done = run("tune", "--resume", "studies/log", "--trials", 3, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\ntrial ") == 2
    assert json.loads(done.stdout)["trials"] == 3


def test_time_that_is_too_short_says_how_to_go_on(tmp_path: Path, run: Run) -> None:
    log = many_features(tmp_path / "log.csv")
    done = run("tune", log, *QUICK, "--minutes", 1e-6, "--out", "study")
    assert done.returncode == 2
    assert "no trial has finished in 1e-06 min" in done.stderr
    assert "`sparsegroup tune --resume study` continues the study" in done.stderr
    assert run("tune", "--resume", "study", "--trials", 1).returncode == 0


def test_what_cannot_be_is_said_in_one_line(tmp_path: Path, run: Run) -> None:
    log = many_features(tmp_path / "log.csv")
    assert run("tune", log, *QUICK, "--trials", 1, "--out", "study").returncode == 0
    nowhere = tmp_path / "none.csv"
    for arguments, message in (
        ((log, "--minutes", 0), "--minutes must be above 0, got 0; --trials 0 shows what is searched"),
        ((log, "--held-out", 1), "--held-out must be a share like 5% or .05, below 100%"),
        ((log, "--tune-rows", 10**6), "--tune-rows is 1,000,000, but"),
        ((log, "--out", "study"), "study holds a study; give another --out, or `sparsegroup tune --resume study`"),
        ((log, "--out", tmp_path), f"{tmp_path} is not empty; give another --out"),
        ((log, "--resume", "study"), "--resume takes everything from the study, and no log"),
        (("--resume", "study", "--lr", 0.1), "--resume takes everything from the study, and no lr"),
        (("--resume", tmp_path), "no study of `tune` (study.json is missing)"),
        ((nowhere,), "none.csv"),
        ((log, "--set", "optimizer.rl=1"), "did you mean"),
        ((log, "--model", "lr", "--dim", 8), "dim"),
    ):
        done = run("tune", *arguments)
        assert done.returncode == 2, arguments
        assert message in done.stderr, done.stderr
        assert done.stderr.count("error: ") == 1
    assert not (tmp_path / "studies").exists()
    log.write_text(log.read_text() + "1,9999,c1,n5,s5\n")
    done = run("tune", "--resume", "study", "--trials", 2)
    assert done.returncode == 2
    assert "is not what it was when the study began" in done.stderr


def test_an_unknown_option_is_a_usage_error(tmp_path: Path, run: Run) -> None:
    assert run("tune", "--learning-rate", 1).returncode == 2


def test_without_optuna_the_error_says_what_to_install(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(("optuna", "sparsegroup.tuning"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    done = run("tune", "--rows", 1_000)
    assert done.returncode == 2
    assert "sparsegroup.tuning needs optuna, not installed here: pip install 'sparsegroup[tune]'" in done.stderr
