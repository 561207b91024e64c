"""What `tune` searches: bounds, conditions, what is given, where it begins."""

import json

import optuna
import pytest
import torch

from sparsegroup.data import Log, SyntheticConfig, synthetic_log
from sparsegroup.data.batches import Batch
from sparsegroup.data.order import LogPart
from sparsegroup.training import NETWORKS, Config
from sparsegroup.tuning import SearchSpace
from sparsegroup.tuning.space import SEARCHED, Choice, Condition, Span

LOG = synthetic_log(SyntheticConfig(rows=400), seed=0)


def space_of(log=LOG, **given):
    config = Config.of(**given).resolved_for(log)
    keys = {"model": "model.name", "optimizer": "optimizer.name"}
    sections = {"lr": "optimizer", "target_rate": "optimizer", "hidden": "model", "dim": "model"}
    return SearchSpace.excluding({keys.get(name, f"{sections.get(name)}.{name}") for name in given}, config, log)


class Numbered(Log):
    """A field and two numbers."""

    name, fields, numbers, train_rows = "numbered", ("field",), ("a", "b"), 90

    def __len__(self):
        return 100

    def batches(self, start, stop, size):
        for first in range(start, stop, size):
            rows = torch.arange(first, min(first + size, stop))
            yield Batch(rows[:, None] % 7, torch.stack([rows, -rows], 1).float(), (rows % 3 == 0).float(), rows)


def draws(space, number=60):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    return [space.draw(study.ask()) for _ in range(number)]


@pytest.fixture(autouse=True)
def _quiet():
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def test_what_is_drawn_lies_within_the_bounds_of_the_table_and_goes_with_the_network():
    space = space_of()
    of_network = {one.key: one for one in space.parameters}
    found = draws(space)
    for settings in found:
        assert settings.keys() == set(space.keys)
        assert settings["model.name"] in of_network["model.name"].values
        rate = next(one for one in space.parameters if one.key == "optimizer.lr" and one.is_active(settings))
        assert rate.low <= settings["optimizer.lr"] <= rate.high
        assert float(f"{settings['optimizer.lr']:.3g}") == settings["optimizer.lr"]
        assert 0.029 <= settings["optimizer.network_lr"] / settings["optimizer.lr"] <= 3.02
        assert settings["model.number_buckets" if "model.number_buckets" in settings else "optimizer.l2"] >= 0
        dim = settings["model.dim"]
        assert dim is None if settings["model.name"] == "lr" else 4 <= dim <= 32
    without_layers = [one for one in found if one["model.name"] in ("lr", "fm")]
    assert without_layers
    assert all(one["model.hidden"] is None and one["model.dropout"] is None for one in without_layers)


def test_every_draw_is_a_config_that_can_be_built():
    space = space_of(Numbered())
    for settings in draws(space, 30):
        model, optimizer = space.config(settings).build_for(Numbered().schema)
        assert optimizer.param_groups[0]["lr"] == settings["optimizer.lr"]
        assert isinstance(model.network, torch.nn.Module)


OF_TASKS = {"mmoe", "ple"}
"""Networks for several labels, and `tune` is for one."""


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
    ("log", "given", "searched", "fixed"),
    [
        (LOG, {}, {"model.name", "model.dim", "optimizer.lr"}, {"model.number_buckets"}),
        (Numbered(), {}, {"model.number_buckets"}, set()),
        (LOG, {"model": "dcn", "lr": 0.1}, {"model.dim", "model.hidden"}, {"model.name", "optimizer.lr"}),
        (LOG, {"model": "lr"}, {"optimizer.name"}, {"model.dim", "model.hidden", "model.dropout"}),  # without layers
    ],
)
def test_what_is_given_or_has_no_effect_is_not_searched(log, given, searched, fixed):
    space = space_of(log, **given)
    assert searched <= set(space.keys)
    assert fixed.isdisjoint(space.keys)
    for settings in draws(space, 10):
        config = space.config(settings)
        assert config.model.name == given.get("model", config.model.name)
        assert config.optimizer.lr == given.get("lr", config.optimizer.lr)


@pytest.mark.parametrize(("given", "unsuited"), [({}, set()), ({"hidden": (16,)}, {"lr", "fm"}), ({"dim": 8}, {"lr"})])
def test_networks_that_do_not_go_with_what_is_given_are_not_drawn(given, unsuited):
    names = next(one for one in space_of(**given).parameters if one.key == "model.name").values
    of_tasks = {"mmoe", "ple"}  # for several labels, and `tune` is for one
    assert set(names) == set(NETWORKS) - unsuited - of_tasks


def test_all_have_the_target_size():
    for settings in draws(space := space_of(target_rate=0.07), 20):
        optimizer = space.config(settings).optimizer
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
    assert LOG.train_rows == 360
    for rows in ((-1, 10, 10), (0, 0, 10), (0, 10, -1), (0, 300, 61)):
        with pytest.raises(ValueError, match="are not all training rows"):
            LogPart(LOG, *rows)
