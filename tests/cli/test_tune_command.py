"""`sparsegroup tune` through the real command line: the space, a study, its end in a run, and what is refused."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli_cases import many_features
from command import Run
from endings import Refused
from sparsegroup.cli import tune
from sparsegroup.kernels.cpu import jit
from sparsegroup.kernels.cpu.jit import compiling, seconds_compiling

QUICK = ("--model", "lr", "--optimizer", "adagrad", "--batch-size", 64)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return many_features(tmp_path / "log.csv", 1_000)


def test_the_time_limit_does_not_count_the_compiling_of_kernels(
    log: Path, ok: Run, monkeypatch: pytest.MonkeyPatch
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
    done = ok("tune", log, *QUICK, "--set", "training.baseline=false", "--trials", 2, "--minutes", 1e-9, "--json")
    assert json.loads(done.stdout)["trials"] == 2


def test_a_study_and_its_best_settings_hold_the_schema(log: Path, tmp_path: Path, ok: Run) -> None:
    schema = tmp_path / "schema.yaml"
    schema.write_text("columns: {label: label, color: category}")
    given = ("--schema", schema, *QUICK, "--set", "training.baseline=false")
    ok("tune", log, *given, "--trials", 1, "--out", "study")
    schema.unlink()
    ok("tune", "--resume", "study", "--trials", 1)
    assert yaml.safe_load(Path("study/best.yaml").read_text())["data"]["schema"]["columns"]["color"] == "category"


def test_what_is_searched_depends_on_what_is_given(log: Path, tmp_path: Path, ok: Run) -> None:
    def shown(what: object, *options: object) -> Any:
        return json.loads(ok("tune", what, "--trials", 0, "--json", *options).stdout)

    def keys(what: object, *options: object) -> set[str]:
        return {one["key"] for one in shown(what, *options)["space"]}

    text = ok("tune", log, "--trials", 0, "--model", "dcn").stdout
    for word in ("optimizer.lr", "log-uniform", "adagrad", "begins with", "model.hidden", "128×64"):
        assert word in text
    assert "model.name" not in text  # it is given
    given = shown(log, "--epochs", 3, "--set", "model.dim=8")
    assert {"training.epochs", "model.dim"} <= keys(log) - {one["key"] for one in given["space"]}
    assert given["config"]["model"]["dim"] == 8
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]
    # what a log decided is searched from a run's config
    model = ("--model", "lr", "--set", "training.baseline=false")
    ok("train", log, "--out", tmp_path / "run", *model)
    of_run = keys(tmp_path / "run" / "config.yaml")
    assert {"model.fallback", "optimizer.lr", "training.batch_size"} <= of_run <= keys(log, *model)


def test_a_study_is_resumed_and_ends_in_a_command_and_a_yaml_of_the_same_run(
    log: Path, tmp_path: Path, ok: Run
) -> None:
    first = ok("tune", log, *QUICK, "--target-rate", 0.1, "--lr", 1e-5, "--trials", 1)
    assert first.stdout.count("`train` as it is") == 1  # there is nothing to compare it with
    assert "best: `train` as it is" in first.stdout
    assert "sparsegroup train" in first.stdout
    assert "continues the study with more --trials" in first.stderr
    study = tmp_path / "studies" / "log" / "latest"
    assert study.is_symlink()
    done = ok("tune", "--resume", "studies/log", "--trials", 4, "--json")
    content = json.loads(done.stdout)
    assert (content["default"]["number"], content["default"]["settings"]) == (0, {})
    assert content["best"]["log_loss"] <= content["default"]["log_loss"]
    assert (content["trials"], content["states"]["complete"]) == (4, 4)
    assert done.stderr.count("\ntrial ") == 3
    assert {path.name for path in study.iterdir()} == {"best.yaml", "study.json", "trials.csv", "trials.journal"}
    command = shlex.split(content["command"])
    assert command == ["sparsegroup", "train", content["config"]]
    ok(*command[1:], "--out", "run")
    settings = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (settings["optimizer"]["lr"], settings["optimizer"]["target_rate"]) == (1e-5, 0.1)
    for key, value in content["best"]["settings"].items():
        section, name = key.split(".")
        assert settings[section][name] == value


def test_what_cannot_be_is_said_in_one_line(log: Path, tmp_path: Path, ok: Run, run: Run, refused: Refused) -> None:
    short = run("tune", log, *QUICK, "--minutes", 1e-6, "--out", "study")
    assert short.returncode == 2
    assert "no trial has finished in 1e-06 min" in short.stderr
    assert "`sparsegroup tune --resume study` continues the study" in short.stderr
    ok("tune", "--resume", "study", "--trials", 1)
    for arguments, message in (
        ((log, "--minutes", 0), "--minutes must be above 0, got 0; --trials 0 shows what is searched"),
        ((log, "--held-out", 1), "--held-out must be a share like 5% or .05, below 100%"),
        ((log, "--tune-rows", 10**6), "--tune-rows is 1,000,000, but"),
        ((log, "--out", "study"), "study holds a study; give another --out, or `sparsegroup tune --resume study`"),
        ((log, "--out", tmp_path), f"{tmp_path} is not empty; give another --out"),
        ((log, "--model", "lr", "--dim", 8, "--out", "new"), "dim must be 1, got 8"),
        ((log, "--resume", "study", "--lr", 0.1), "--resume takes everything from the study, and no log, lr"),
        (("--resume", tmp_path), "no study of `tune` (study.json is missing)"),
    ):
        assert message in refused("tune", *arguments)
    assert not [name for name in ("studies", "new") if (tmp_path / name).exists()]
    log.write_text(log.read_text() + "1,9999,c1,n5,s5\n")
    assert "is not what it was when the study began" in refused("tune", "--resume", "study", "--trials", 2)


def test_without_optuna_the_error_says_what_to_install(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("optuna", "sparsegroup.tuning"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    missing = "sparsegroup.tuning needs optuna, not installed here: pip install 'sparsegroup[tune]'"
    assert missing in refused("tune", "--rows", 1_000)
