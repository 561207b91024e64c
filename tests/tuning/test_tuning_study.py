"""Studies: the first trial, halving, the best one, time, and going on where one was cut off."""

import json
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from zlib import crc32

import optuna
import pytest

from following import Each
from sparsegroup.data import SyntheticConfig, synthetic_log
from sparsegroup.reporting.run_record import Metrics
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.training import Config
from sparsegroup.training.selection.sizes import ModelScore, train_and_test
from sparsegroup.tuning import Study, TuningError, space
from sparsegroup.tuning import study as study_module

LOG = synthetic_log(SyntheticConfig(rows=1_000), seed=0)
GIVEN = {"model": "lr", "optimizer": "adagrad", "batch_size": 64, "shuffle_buffer": 0, "epochs": 1, "compile": "never"}
KEYS = {
    "model.name": "lr",
    "optimizer.name": "adagrad",
    "training.batch_size": 64,
    "training.shuffle_buffer": 0,
    "training.epochs": 1,
}


class KilledError(BaseException):
    """A process that dies."""


def begin(folder, log=LOG, tune_rows=None, held_out=0.2, **settings):
    config = Config.of(**{**GIVEN, **settings})
    return Study.begin(folder, config, log, given=KEYS, tune_rows=tune_rows, held_out=held_out)


def is_first(config):
    """Whether these are the settings that the first trial has."""
    return config == Config.of(**GIVEN).resolved_for(LOG)


def known(study):
    """Its trials, without what a clock has said."""
    return [replace(trial, rungs=tuple(replace(rung, seconds=0.0) for rung in trial.rungs)) for trial in study.trials()]


def dying(at):
    """Reporting that lets the process die at the first batch of a rung, counted from 0."""
    begun = []

    @contextmanager
    def reporting(name, samples):
        begun.append(name)
        yield None if len(begun) <= at else Each(batch=die)

    def die(trainer):
        raise KilledError

    return reporting


@pytest.fixture
def three_rungs(monkeypatch):
    monkeypatch.setattr(study_module, "MIN_RUNG_ROWS", 1)


@pytest.fixture
def told(monkeypatch):
    """Settings that are trained → the log loss that is told, by a function that tests may set."""
    told = {"log_loss": lambda config, rows: 1 / rows, "configs": []}

    def instead(config, model, optimizer, log, **others):
        told["configs"].append((config, log))
        test = Metrics(0.5, told["log_loss"](config, log.train_rows), 1.0, 1.0)
        return ModelScore("", test, None, 1.0, 1, 12, 0.0, None)

    monkeypatch.setattr(study_module, "train_and_test", instead)
    return told


def test_the_first_trial_has_the_settings_of_train_and_a_finished_study_has_no_more(tmp_path, told, capfd):
    optuna.logging.set_verbosity(optuna.logging.INFO)
    study = begin(tmp_path / "study", lr=0.1)
    assert study.best is None
    for _ in range(2):
        study.run(trials=3, seconds=60)
    assert len(study.trials()) == len(told["configs"]) == 3
    expected = Config.of(**GIVEN, lr=0.1).resolved_for(LOG)
    assert told["configs"][0][0] == study.config(study.trials()[0]) == expected
    assert all(config.optimizer.lr != 0.1 for config, _ in told["configs"][1:])
    assert all(config.model.name == "lr" for config, _ in told["configs"])
    assert study.best.number == 0  # the earliest of equals
    assert optuna.logging.get_verbosity() == optuna.logging.INFO
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("three_rungs")
def test_trials_are_trained_on_training_rows_alone_and_a_third_reaches_the_next_rung(tmp_path, told):
    told["log_loss"] = lambda config, rows: crc32(str(config.optimizer.arguments["lr"]).encode()) / 2**32  # no pattern
    study = begin(tmp_path / "study")
    study.run(trials=30, seconds=60)
    assert [(log.first, log.train_rows, len(log)) for _, log in told["configs"][:3]] == [
        (640, 80, 260),
        (480, 240, 420),
        (0, 720, 900),
    ]
    assert LOG.train_rows == 900
    assert [rung.rows for rung in study.best.rungs] == [80, 240, 720]
    reached = [sum(len(trial.rungs) > rung for trial in study.trials()) for rung in range(3)]
    assert reached[0] == 30
    assert 7 <= reached[1] <= 16
    assert 2 <= reached[2] <= 8
    assert {trial.state for trial in study.trials()} == {"complete", "stopped early"}
    assert study.best.last.loss == min(trial.last.loss for trial in study.trials())  # which is never stopped


def test_rungs_of_few_rows_are_left_out(tmp_path):
    log = synthetic_log(SyntheticConfig(rows=30_000), seed=0)
    assert begin(tmp_path / "few").steps == (9,)
    assert begin(tmp_path / "more", log).steps == (3, 9)
    assert begin(tmp_path / "part", log, tune_rows=10_000).part == 10_000


def test_a_good_learning_rate_is_found(tmp_path):
    log = synthetic_log(SyntheticConfig(rows=3_000), seed=0)
    study = begin(tmp_path / "study", log, lr=1e-6, l21=0.0)
    study.run(trials=12, seconds=600)
    first, best = study.trials()[0], study.best
    assert first.state == "complete"
    assert best.last.loss < first.last.loss - 0.003
    assert study.config(best).optimizer.lr > 1e-3
    text = (tmp_path / "study" / "best.yaml").read_text()
    assert text == study.config(best).as_yaml()
    lines = (tmp_path / "study" / "trials.csv").read_text().splitlines()
    assert len(lines) == 13
    assert lines[0].startswith("trial,state,rows,auc,log_loss")
    assert lines[1].split(",")[lines[0].split(",").index("optimizer.lr")] == "1e-06"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study of six trials on three rungs that was never cut off."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study_module, "MIN_RUNG_ROWS", 1)
        study = begin(tmp_path_factory.mktemp("whole") / "study")
        study.run(trials=6, seconds=600)
    return study


@pytest.mark.parametrize("at", [0, 2, 5])
@pytest.mark.usefixtures("three_rungs")
def test_a_study_that_was_killed_goes_on_as_if_it_had_not_been(tmp_path, whole, at):
    study = begin(tmp_path / "cut")
    with pytest.raises(KilledError):
        study.run(trials=6, seconds=600, reporting=dying(at))
    assert study.trials()[-1].state == "cut off"
    study.close()
    with (tmp_path / "cut" / "trials.journal").open("a") as journal:
        journal.write('{"op_code": 4, "wor')  # a line that was not written to its end
    study, names = Study(tmp_path / "cut", LOG), []

    @contextmanager
    def reporting(name, samples):
        names.append(name)
        yield None

    study.run(trials=6, seconds=600, reporting=reporting)
    assert names[0] == {0: "trial 0, 80 rows", 2: "trial 0, 720 rows"}.get(at, names[0])
    assert known(study) == known(whole)
    assert (tmp_path / "cut" / "best.yaml").read_text() == (whole.folder / "best.yaml").read_text()


def test_a_trial_that_kills_its_process_is_left_out_in_the_end(tmp_path, monkeypatch, caplog):
    def instead(config, *others, **more):
        if is_first(config):
            raise KilledError
        return train_and_test(config, *others, **more)

    monkeypatch.setattr(study_module, "train_and_test", instead)
    study = begin(tmp_path / "study")
    for _ in range(3):
        with pytest.raises(KilledError):
            study.run(trials=2, seconds=600)
    study.run(trials=2, seconds=600)
    assert [trial.state for trial in study.trials()] == ["failed", "complete"]
    assert "has ended its process 3 times" in caplog.text


def test_time_ends_a_trial_within_a_batch(tmp_path):
    study, looks = begin(tmp_path / "study"), count(1)

    def clock():
        """Goes on by one at each look."""
        return float(next(looks))

    ended = []
    study.run(trials=9, seconds=5, clock=clock, on_trial=ended.append)
    assert [trial.state for trial in ended] == ["cut off"]  # of 12 batches
    assert next(looks) <= 9
    assert study.best is None
    study.run(trials=9, seconds=35, clock=clock)
    states = [trial.state for trial in study.trials()]
    assert states[:2] == ["complete", "complete"]
    assert states[-1] == "cut off"
    assert next(looks) <= 48
    study.run(trials=len(states), seconds=1e9, clock=clock)
    whole = begin(tmp_path / "whole")
    whole.run(trials=len(states), seconds=600)
    assert known(study) == known(whole)


def test_what_later_trials_fail_by_is_noted_and_the_study_continues(tmp_path, told, caplog):
    outcomes = iter((0.5, float("nan"), FloatingPointError("the loss is nan"), SettingsError("cannot be")))

    def log_loss(config, rows):
        if isinstance(outcome := next(outcomes), Exception):
            raise outcome
        return outcome

    told["log_loss"] = log_loss
    study = begin(tmp_path / "study")
    study.run(trials=4, seconds=60)
    assert [trial.state for trial in study.trials()] == ["complete", "diverged", "diverged", "failed"]
    assert study.best.number == 0
    assert "cannot be" in caplog.text
    outcomes = iter([SettingsError("cannot be")])
    with pytest.raises(SettingsError, match="cannot be"):  # of the first trial
        begin(tmp_path / "other").run(trials=2, seconds=60)


def test_another_space_is_refused(tmp_path, monkeypatch):
    begin(tmp_path / "study").close()
    wider = tuple(replace(one, high=99.0) if one.key == "optimizer.lr" else one for one in space.SEARCHED)
    for searched, error, message in (
        ((), SettingsError, "nothing is left to search"),
        (wider, TuningError, "searches another space than this version"),
    ):
        monkeypatch.setattr(space, "SEARCHED", searched)
        with pytest.raises(error, match=message):
            Study(tmp_path / "study", LOG)


def test_a_study_is_of_one_log_and_of_one_process(tmp_path):
    study = begin(tmp_path / "study")
    with pytest.raises(TuningError, match="another process"):
        Study(tmp_path / "study", LOG)
    study.close()
    Study(tmp_path / "study", LOG).close()
    with pytest.raises(TuningError, match="is not what it was when the study began"):
        Study(tmp_path / "study", synthetic_log(SyntheticConfig(rows=1_100), seed=0))
    with pytest.raises(TuningError, match="no study"):
        Study(tmp_path, LOG)
    with pytest.raises(TuningError, match="not empty"):
        begin(tmp_path / "study")
    file = tmp_path / "study" / "study.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "seed": 7}))
    with pytest.raises(TuningError, match="damaged"):
        Study(tmp_path / "study", LOG)


@pytest.mark.parametrize(
    ("rows", "held_out", "message"),
    [(901, 0.2, "has 900 to train on"), (90, 0.2, "too few"), (200, 0.99, "too few"), (200, 1.0, "share between")],
)
def test_rows_that_are_too_few_or_too_many_are_said(tmp_path, rows, held_out, message):
    with pytest.raises(TuningError, match=message):
        begin(tmp_path / "study", tune_rows=rows, held_out=held_out)
    assert not (tmp_path / "study").exists()
