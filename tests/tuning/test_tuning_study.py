"""Studies: what is searched, the first trial, halving, the best one, time, and going on where one was cut off."""

import json
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from zlib import crc32

import numpy as np
import optuna
import polars as pl
import pytest
import torch

from following import Each
from sparsegroup.data import FrameLog, SyntheticConfig, synthetic_log
from sparsegroup.data.order import LogPart
from sparsegroup.reporting.run_record import Metrics
from sparsegroup.settings.declared import SHORT
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.training import NETWORKS, Config
from sparsegroup.training.selection.sizes import ModelScore, train_and_test
from sparsegroup.tuning import SearchSpace, Study, TuningError, space
from sparsegroup.tuning import study as study_module
from sparsegroup.tuning.space import SEARCHED, Choice, Condition, Span

LOG = synthetic_log(SyntheticConfig(rows=1_000), seed=0)
GIVEN = {"model": "lr", "optimizer": "adagrad", "batch_size": 64, "shuffle_buffer": 0, "epochs": 1, "compile": "never"}
KEYS = {SHORT[name]: value for name, value in GIVEN.items()}


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


def test_a_study_is_of_one_space_one_log_and_one_process(tmp_path, monkeypatch):
    study, folder = begin(tmp_path / "study"), tmp_path / "study"
    with pytest.raises(TuningError, match="another process"):
        Study(folder, LOG)
    study.close()
    Study(folder, LOG).close()
    with pytest.raises(TuningError, match="is not what it was when the study began"):
        Study(folder, synthetic_log(SyntheticConfig(rows=1_100), seed=0))
    with pytest.raises(TuningError, match="no study"):
        Study(tmp_path, LOG)
    with pytest.raises(TuningError, match="not empty"):
        begin(folder)
    wider = tuple(replace(one, high=99.0) if one.key == "optimizer.lr" else one for one in space.SEARCHED)
    for searched, error, message in (
        ((), SettingsError, "nothing is left to search"),
        (wider, TuningError, "searches another space than this version"),
    ):
        monkeypatch.setattr(space, "SEARCHED", searched)
        with pytest.raises(error, match=message):
            Study(folder, LOG)
    file = folder / "study.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "seed": 7}))
    with pytest.raises(TuningError, match="damaged"):
        Study(folder, LOG)


@pytest.mark.parametrize(
    ("rows", "held_out", "message"),
    [(901, 0.2, "has 900 to train on"), (90, 0.2, "too few"), (200, 0.99, "too few"), (200, 1.0, "share between")],
)
def test_rows_that_are_too_few_or_too_many_are_said(tmp_path, rows, held_out, message):
    with pytest.raises(TuningError, match=message):
        begin(tmp_path / "study", tune_rows=rows, held_out=held_out)
    assert not (tmp_path / "study").exists()


PLACES = np.arange(100)
NUMBERED = FrameLog(pl.DataFrame({"field": (PLACES % 7).astype(str), "a": PLACES / 4}), PLACES % 3 == 0)


def space_of(log=LOG, **given):
    return SearchSpace.excluding({SHORT[name] for name in given}, Config.of(**given).resolved_for(log), log)


def draws(space, number=60):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    return [space.draw(study.ask()) for _ in range(number)]


def test_what_is_drawn_lies_within_the_bounds_of_the_table_goes_with_the_network_and_can_be_built():
    space = space_of(NUMBERED)
    names = next(one for one in space.parameters if one.key == "model.name").values
    found = draws(space)
    for number, settings in enumerate(found):
        assert settings.keys() == set(space.keys)
        assert settings["model.name"] in names
        rate = next(one for one in space.parameters if one.key == "optimizer.lr" and one.is_active(settings))
        assert rate.low <= settings["optimizer.lr"] <= rate.high
        assert float(f"{settings['optimizer.lr']:.3g}") == settings["optimizer.lr"]
        assert 0.029 <= settings["optimizer.network_lr"] / settings["optimizer.lr"] <= 3.02
        assert settings["model.number_buckets"] >= 0
        dim = settings["model.dim"]
        assert dim is None if settings["model.name"] == "lr" else 4 <= dim <= 32
        if number < 30:
            model, optimizer = space.config(settings).build_for(NUMBERED.schema)
            assert optimizer.param_groups[0]["lr"] == settings["optimizer.lr"]
            assert isinstance(model.network, torch.nn.Module)
    without_layers = [one for one in found if one["model.name"] in ("lr", "fm")]
    assert without_layers
    assert all(one["model.hidden"] is None and one["model.dropout"] is None for one in without_layers)


def test_a_condition_names_a_parameter_that_stands_before_it_and_is_left_out_where_it_always_holds():
    before: set[str] = set()
    for one in SEARCHED:
        assert one.only is None or one.only.key in before
        before.add(one.key)
    assert len({one.name for one in SEARCHED}) == len(SEARCHED)
    assert [one.only for one in space_of(optimizer="adam").parameters if one.key == "optimizer.lr"] == [None]
    assert str(Condition("a", ("b", "c"))) == "a is b, c"
    rates = [one for one in json.loads(json.dumps(space_of().as_plain())) if one["key"] == "optimizer.lr"]
    assert len(rates) == 3
    assert all(one["kind"] == "span" and one["only"]["key"] == "optimizer.name" for one in rates)


@pytest.mark.parametrize(
    ("log", "given", "searched", "fixed", "unsuited"),
    [
        (LOG, {}, {"model.name", "model.dim", "optimizer.lr"}, {"model.number_buckets"}, set()),
        (NUMBERED, {}, {"model.number_buckets"}, set(), set()),
        (LOG, {"model": "dcn", "lr": 0.1}, {"model.dim", "model.hidden"}, {"model.name", "optimizer.lr"}, None),
        (LOG, {"model": "lr"}, {"optimizer.name"}, {"model.dim", "model.hidden", "model.dropout"}, None),  # no layers
        (LOG, {"hidden": (16,)}, set(), {"model.hidden"}, {"lr", "fm"}),
        (LOG, {"dim": 8}, set(), {"model.dim"}, {"lr"}),
        (LOG, {"target_rate": 0.07}, set(), {"optimizer.target_rate", "optimizer.l21"}, set()),
    ],
)
def test_what_is_given_or_has_no_effect_and_networks_that_do_not_go_with_it_are_not_searched(
    log, given, searched, fixed, unsuited
):
    space = space_of(log, **given)
    assert searched <= set(space.keys)
    assert fixed.isdisjoint(space.keys)
    if unsuited is not None:
        names = next(one for one in space.parameters if one.key == "model.name").values
        assert set(names) == set(NETWORKS) - unsuited - {"mmoe", "ple"}  # which are for several labels
    for settings in draws(space, 10):
        config = space.config(settings)
        assert config.model.name == given.get("model", config.model.name)
        assert config.optimizer.lr == given.get("lr", config.optimizer.lr)
        if "target_rate" in given:
            optimizer = config.optimizer
            assert (optimizer.target_rate, optimizer.l21, optimizer.penalty.plain) == (0.07, 0.0, "hard")


def test_the_search_begins_with_the_settings_of_train_which_are_among_the_values():
    base = Config.of(model="mlp", lr=0.5, batch_size=100, optimizer="adagrad").resolved_for(LOG)
    space = SearchSpace.excluding((), base, LOG)
    study = optuna.create_study()
    study.enqueue_trial(space.initial)
    drawn = space.config(space.draw(study.ask()))
    assert drawn.model.name == "mlp"
    assert drawn.model.vector_dim == NETWORKS["mlp"].default_dim
    assert drawn.optimizer.arguments == base.optimizer.arguments
    assert drawn.training == base.training
    assert space.config({}) == base
    assert Choice(key="a.b", values=(1, 2)).initial_at(5).values == (5, 1, 2)
    assert Choice(key="a.b", times_default=(0.5, 1, 2)).initial_at(1).values == (1, 2)
    wider = Span(key="a.b", low=1.0, high=2.0).initial_at(8.0)
    assert (wider.low, wider.high) == (1.0, 8.0)


def test_a_part_of_a_log_is_of_training_rows_alone_the_last_in_the_place_of_a_test_set():
    part = LogPart(LOG, first=200, train_rows=100, test_rows=20)
    assert (len(part), part.train_rows, part.fields) == (120, 100, LOG.fields)
    whole = torch.cat([batch.keys for batch in LOG.batches(200, 320, 7)])
    assert torch.equal(torch.cat([batch.keys for batch in part.batches(0, 120, 11)]), whole)
    assert sum(len(batch) for batch in part.batches(100, 500, 11)) == 20  # no row behind it
    assert LOG.train_rows == 900
    for rows in ((-1, 10, 10), (0, 0, 10), (0, 10, -1), (0, 800, 101)):
        with pytest.raises(ValueError, match="are not all training rows"):
            LogPart(LOG, *rows)
