"""Hostile values for the settings and options of `train`: exit status 2 and a line that names the setting, or it works.

The long form tries every setting with every value.
"""

import signal
from pathlib import Path
from typing import Any

import pytest

from cli_cases import click_log
from command import Run
from over import over
from sparsegroup.settings.yaml_settings import keys_of
from sparsegroup.training import Config

LONG = "1" + "0" * 400
SETTINGS = [
    ("training.batch_size=true", "training.batch_size: true and false are no numbers"),
    ("training.seed=-1", "training.seed: input should be greater than or equal to 0"),
    ("training.windows=.nan", "training.windows: input should be a finite number"),
    (f"training.epochs={LONG}", "training.epochs: whole numbers must be below 2⁶⁴"),
    ("training.windows=", "training.windows: input should be a valid integer, got None"),
    ("training.validation=[0.1]", "training.validation: input should be a valid number"),
    ("model.hidden=[true]", "model.hidden: true and false are no numbers, got [True]"),
    ("model.hidden=[1000000, 1000000]", "model: the network does not fit into the memory"),
    ("model.hidden=[100000000]", "model.hidden.0: input should be less than or equal to 1048576"),
    (f"model.max_table_bytes={'9' * 400}", "model.max_table_bytes: a size must be below 2⁶³ bytes"),
    ("model.max_table_bytes='1'", "model.max_table_bytes must be at least"),
    ("model.evict_unseen=5000000000", "model.evict_unseen: an age must be at most 4,294,967,295 steps"),
    ("optimizer.target_rate=true", "optimizer.target_rate: true and false are no numbers"),
    ("optimizer.l21=1e308", "optimizer.l21: numbers must be at most 1e+30, got 1e+308: beyond, float32"),
    ("optimizer.lr=1e300", "optimizer.lr: numbers must be at most 1e+30, got 1e+300: beyond, float32"),
    ("optimizer.options={eps: 1.0e+300}", "optimizer.options: numbers must be at most 1e+30, got 1e+300"),
    ("optimizer={name: adam, options: {betas: [.nan, 0.9]}}", "betas must be two numbers in [0, 1)"),
    ("optimizer.options={lr: 5}", "options.lr: this is a setting of its own: give optimizer.lr, got 5 here"),
    ("optimizer.options={maximize: true}", "options.maximize=True is not for a run: a run lowers its loss"),
    ("optimizer={name: adam, options: {bettas: [0.9, 0.9]}}", "unexpected argument 'bettas'; did you mean 'betas'?"),
    ("optimizer.options={eps: 1, eps: 2}", "the key 'eps' is there twice"),
    (f"optimizer.lr={'[' * 2000}", "optimizer.lr="),
    *(
        (f"data.test_fraction={value}", "the value is not YAML")
        for value in ("2024-13-45", "!!int x", "9" * 5_000, "!!python/name:os.system")
    ),
    ("training=7", "training has settings of its own"),
    ("data.columns={a: {b: 1}}", "data.columns"),
    ("given=[]", "model.name is not: leave given out"),
]


@pytest.fixture
def log(tmp_path: Path) -> str:
    return str(click_log(tmp_path / "log.csv", rows=60))


@over(("assignment", "message"), SETTINGS)
def test_a_setting_is_refused_in_one_line(log: str, run: Run, assignment: str, message: str) -> None:
    done = run("train", log, "--set", assignment)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: "), "one line"
    assert not Path("runs").exists()


@over(
    ("name", "hint"),
    [("adamw", "take adam, with l2"), ("Adam", "did you mean 'adam'?"), ("rmsprop", "take adam or adagrad")],
)
def test_an_optimizer_by_its_name_elsewhere_is_answered_with_ours(log: str, run: Run, name: str, hint: str) -> None:
    for words in (("--optimizer", name), ("--set", f"optimizer.name={name}")):
        done = run("train", log, *words)
        told = " ".join(done.stderr.replace("│", " ").split())
        assert (done.returncode, hint in told) == (2, True)
        assert f"'{name}' is not one of 'sgd', 'momentum'" in told


def test_what_is_harmless_works(log: str, ok: Run) -> None:
    settings = ["optimizer.options={maximize: false, eps: 1.0e-10}", "training.batch_size='32'", "model.fallback=false"]
    ok("train", log, *(word for one in settings for word in ("--set", one)))


def test_a_run_that_has_learnt_nothing_says_so(tmp_path: Path, ok: Run) -> None:
    log = click_log(tmp_path / "log.csv", rows=1_000)
    assert "No feature is left: the vectors of all" in ok("train", log, "--l21", 1e6).stderr


HOSTILE = (
    *[
        "true",
        ".nan",
        ".inf",
        "-1",
        "-1e30",
        "1e308",
        "1e30",
        "[]",
        "[[[1]]]",
        "word",
        "null",
        "'1'",
        "0",
        "2024-13-45",
        "[true]",
    ],
    *("", "1" + "0" * 30, LONG, "{a: {b: 1}}", "[" * 2000),
)
MEANT = {"lr": "earning rate", "network_lr": "earning rate", "test": "no such file", "options": "argument 'a'"}
"""Other words than a setting's name by which one knows that it is meant."""


class Late(BaseException):
    """A run goes on: its settings are in order."""


def stop(*_: Any) -> None:
    raise Late


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="there are no alarms")
@pytest.mark.filterwarnings("ignore")
def test_every_setting_with_every_value(log: str, run: Run) -> None:
    """Options are generated from the settings."""
    before, wrong = signal.signal(signal.SIGALRM, stop), []
    for key in keys_of(Config):
        name = key.split(".")[-1]
        for value in HOSTILE if name not in ("tensorboard", "mlflow") else ():
            words = (name, value[:20], MEANT.get(name, name))
            signal.alarm(5)
            try:
                done = run("train", log, "--out", "run", "--overwrite", "--quiet", "--set", f"{key}={value}")
            except Late:
                continue
            finally:
                signal.alarm(0)
            told = " ".join(done.stderr.split())
            if done.returncode not in (0, 2) or (done.returncode == 2 and not any(word in told for word in words)):
                wrong.append(f"{key}={value[:20]}: {done.returncode}, {told[:200]}")
    signal.signal(signal.SIGALRM, before)
    assert not wrong, "\n".join(wrong)
