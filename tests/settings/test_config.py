"""Checking settings has no effects."""

import copy
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sparsegroup.data import SyntheticConfig, synthetic_log
from sparsegroup.settings.auto import RULES, Rule
from sparsegroup.settings.declared import SHORT
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.training import Config
from sparsegroup.training.build import read_config


def test_checking_settings_builds_no_module_and_draws_no_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a module is built")

    monkeypatch.setattr(nn.Module, "__init__", refuse)
    before = torch.get_rng_state()
    config = Config.of(model="opnn", optimizer="adam")
    assert read_config(None, {"optimizer.name": "ftrl", "optimizer.lr": 0.1}).optimizer.name == "ftrl"
    assert config.replace(l21=0.0).optimizer.l21 == 0
    with pytest.raises(SettingsError):
        config.replace(options={"betas": [2.0, 0.9]})
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "adam", "options": {"betas": 3}}, r"betas must be two numbers in \[0, 1\), got 3 \(GroupAdam\)"),
        ({"optimizer": "adam", "options": {"momentum": 0.9}}, "GroupAdam got an unexpected argument 'momentum'"),
        ({"optimizer": "momentum", "options": {"momentum": -1}}, r"momentum must be >= 0, got -1 \(GroupMomentum\)"),
        ({"optimizer": "momentum", "options": {"momentum": 0, "nesterov": True}}, "nesterov=True needs momentum > 0"),
        ({"optimizer": "adahessian", "options": {"spatial_average_block_size": [0, 1, 1, 1]}}, "four ints"),
        ({"optimizer": "adam", "options": {"weight_decay": "x"}}, "weight_decay must be a number, got 'x'"),
        ({"optimizer": "adam", "options": {"amsgrad": True}}, "use GroupAMSGrad"),
        ({"optimizer": "adam", "options": {"groups": "columns"}}, "embeddings need groups='rows', got 'columns'"),
        ({"optimizer": "adam", "options": {"capturable": True}}, "cannot have capturable=True"),
        ({"lr": float("inf")}, "lr must be finite and >= 0, got inf"),
    ],
)
def test_the_optimizers_options_are_checked_by_its_rules_declaration(settings, message):
    with pytest.raises(SettingsError, match=message):
        Config.of(**settings)


def test_what_the_settings_leave_open_has_the_declared_default():
    arguments = Config.of(optimizer="adam", l21=0.5, options={"betas": [0.5, 0.6]}).optimizer.arguments
    assert (arguments["lr"], arguments["betas"], arguments["eps"], arguments["l21"]) == (1e-3, (0.5, 0.6), 1e-8, 0.5)


class TestWhatTheLogDecides:
    """Settings of `RULES` that nobody has said."""

    @pytest.fixture(autouse=True)
    def rules(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rule = Rule(lambda facts, given: facts.train_rows // 9)
        monkeypatch.setitem(RULES, "training.batch_size", rule)  # type: ignore[misc]

    def test_what_is_said_stays_even_where_it_is_the_default(self) -> None:
        log = synthetic_log(SyntheticConfig(rows=1_000), seed=0)
        config = Config.of(schedule="constant", l21=1e-4)
        resolved = config.resolved_for(log)
        assert (resolved.training.batch_size, resolved.optimizer.schedule) == (100, "constant")
        assert resolved.optimizer.l21 == 1e-4
        assert resolved.resolved_for(synthetic_log(SyntheticConfig(rows=2_000), seed=0)) == resolved

    def test_what_is_open_stays_open_when_something_else_is_replaced(self) -> None:
        log = synthetic_log(SyntheticConfig(rows=1_000), seed=0)
        replaced = Config.of(seed=1).replace(l21=0.0, dim=3)
        assert replaced.resolved_for(log).training.batch_size == 100
        assert replaced.replace(batch_size=512).resolved_for(log).training.batch_size == 512

    def test_a_file_of_a_run_says_all(self, tmp_path: Path) -> None:
        log = synthetic_log(SyntheticConfig(rows=1_000), seed=0)
        resolved = Config.of().resolved_for(log)
        (tmp_path / "config.yaml").write_text(resolved.as_yaml())
        for other in (log, synthetic_log(SyntheticConfig(rows=2_000), seed=0)):
            assert read_config(tmp_path / "config.yaml", {}).resolved_for(other) == resolved
        changed = read_config(tmp_path / "config.yaml", {"training.batch_size": 7})
        assert (changed.training.batch_size, changed.given) == (7, ("training.batch_size",))


OTHER_VALUES: dict[str, Any] = {
    **{"model": "fm", "dim": 3, "hidden": [4], "dropout": 0.5, "fallback": False, "standardize": False},
    **{"number_buckets": 4, "optimizer": "adam", "lr": 0.5, "network_lr": 0.25, "l1": 1e-4, "l21": 1e-4, "l2": 1e-4},
    **{"penalty": "mcp", "norm": "metric", "target_rate": 0.3, "target_bytes": "1MB", "batch_size": 64, "epochs": 2},
    **{"shuffle_buffer": 9, "seed": 3, "schedule": "cosine"},
}


@pytest.mark.parametrize("name", [None, *OTHER_VALUES])
@pytest.mark.parametrize(
    "before", [{}, {"seed": 1}, {"target_rate": 0.2}, {"l21": 0.0, "optimizer": "ftrl", "lr": 0.1}]
)
def test_given_settings_stay_apart_from_defaults(before: dict[str, Any], name: str | None, tmp_path: Path) -> None:
    log = synthetic_log(SyntheticConfig(rows=1_000), seed=0)
    more = {} if name is None else {name: OTHER_VALUES[name]}
    try:
        config = Config.of(**{**before, **more})
    except SettingsError:
        with pytest.raises(SettingsError):
            Config.of(**before).replace(**more)
        return
    resolved = config.resolved_for(log)
    file = tmp_path / "settings.yaml"
    file.write_text(config.as_yaml())
    again = read_config(file, {})
    file.write_text(Config.of(**before).as_yaml())
    by_assignment = read_config(file, {SHORT[name]: value for name, value in more.items()})  # --set
    for same in (Config.of(**before).replace(**more), again, again.replace(), copy.deepcopy(config), by_assignment):
        assert (same, same.given_sections(), same.resolved_for(log)) == (config, config.given_sections(), resolved)
    file.write_text(resolved.as_yaml())
    assert read_config(file, {}) == resolved == pickle.loads(pickle.dumps(resolved))
    assert resolved.given_sections() == config.given_sections()


def test_a_setting_has_the_effect_of_its_default_or_is_decided() -> None:
    """No declared default differs from the value in force, unless the setting is recorded as decided."""
    config = Config.of()
    resolved = config.resolved_for(synthetic_log(SyntheticConfig(rows=1_000), seed=0))
    before, after = (
        {f"{s}.{n}": v for s, of in c.as_dict().items() for n, v in of.items()} for c in (config, resolved)
    )
    assert {key for key in before if before[key] != after[key]} <= set(RULES)
    assert all(before[key] is None for key in RULES)


def test_a_resolved_config_is_decided_again_for_a_longer_log_where_its_length_matters() -> None:
    short, long = (synthetic_log(SyntheticConfig(rows=rows), seed=0) for rows in (1_000, 250_000))
    resolved = Config.of(epochs=2).resolved_for(short)
    again = resolved.resolved_again_for(long)
    assert (resolved.training.batch_size, again.training.batch_size) == (128, 256)
    assert (resolved.training.shuffle_buffer, again.training.shuffle_buffer) == (900, 225_000)
    assert (again.model, again.optimizer, again.training.epochs) == (resolved.model, resolved.optimizer, 2)
    given = Config.of(batch_size=64).resolved_for(short).resolved_again_for(long)
    assert (given.training.batch_size, given.training.shuffle_buffer) == (64, 225_000)


def test_the_rules_say_what_numbers_and_logits_start_from() -> None:
    log = synthetic_log(SyntheticConfig(rows=1_000), seed=0)
    resolved = Config.of(number_buckets=4, model="auto").resolved_for(log)
    assert (resolved.model.standardize, resolved.model.number_buckets, resolved.model.base_rate) == (True, 4, True)
    assert resolved.model.name == "dcn"
    assert resolved.resolved_for(log) == resolved


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"dim": 4}, {"target_rate": 0.1, "least_features": 4096, "name": "adagrad", "lr": 0.1, "network_lr": 0.03}),
        ({"lr": 0.02}, {"target_rate": 0.1, "least_features": 4096, "name": "adagrad", "lr": 0.02, "network_lr": None}),
        ({"optimizer": "adam"}, {"target_rate": 0.1, "least_features": 4096, "name": "adam", "lr": None}),
        ({"l2": 1e-3, "penalty": "lasso"}, {"target_rate": 0.1, "l2": 1e-3, "l21": 0.0}),
        ({"target_rate": 0.5}, {"target_rate": 0.5, "least_features": 0, "name": "adagrad", "lr": 0.1}),
        ({"l21": 0.0}, {"target_rate": None, "least_features": 0, "name": "adam", "lr": None, "network_lr": None}),
        ({"l1": 1e-4, "lr": 0.1}, {"target_rate": None, "l21": 1e-3, "name": "adam", "lr": 0.1}),
    ],
)
def test_where_no_size_is_said_a_tenth_of_the_features_is_kept(given: dict[str, Any], expected: dict[str, Any]) -> None:
    log = synthetic_log(SyntheticConfig(rows=1_000), seed=0)
    resolved = Config.of(**given).resolved_for(log)
    assert {name: getattr(resolved.optimizer, name) for name in expected} == expected
    assert resolved.model.fallback == (expected["target_rate"] is not None)
    assert resolved.resolved_for(log) == resolved


def test_the_state_of_the_embeddings_alone_is_bfloat16_where_that_is_asked_for() -> None:
    model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 1))
    for given, expected in (
        ({}, None),
        ({"state_dtype": "float32"}, None),
        ({"state_dtype": "bfloat16"}, torch.bfloat16),
    ):
        groups = Config.of(optimizer="adam", l21=0.0, penalty="lasso", **given).optimizer.make(model).param_groups
        assert [group["state_dtype"] for group in groups] == [expected, None]
    with pytest.raises(SettingsError, match="state_dtype"):
        Config.of(state_dtype="float16")
    with pytest.raises(SettingsError, match="setting of its own"):
        Config.of(options={"state_dtype": "bfloat16"})


def test_eps_is_that_of_the_embeddings_alone() -> None:
    model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 1))
    for given, expected in (({}, [1e-10, 1e-10]), ({"eps": 1e-3}, [1e-3, 1e-10]), ({"eps": 0.0}, [0.0, 1e-10])):
        config = Config.of(optimizer="adagrad", l21=0.0, penalty="lasso", **given)
        assert [group["eps"] for group in config.optimizer.make(model).param_groups] == expected
    of_all = Config.of(optimizer="adagrad", l21=0.0, penalty="lasso", options={"eps": 1e-4}, eps=1e-3)
    assert [group["eps"] for group in of_all.optimizer.make(model).param_groups] == [1e-3, 1e-4]
    with pytest.raises(SettingsError, match="eps"):
        Config.of(optimizer="momentum", lr=0.1, l21=0.0, penalty="lasso", eps=1e-3)


def test_a_setting_that_keeps_features_needs_a_rate() -> None:
    with pytest.raises(SettingsError, match="least_features need target_rate"):
        Config.of(least_features=10, l21=0.0)


@pytest.mark.parametrize(
    ("rows", "batch_size", "is_shuffled"),
    [(1, 128, True), (10_000, 128, True), (300_000, 256, True), (1_000_000, 1024, False), (50_000_000, 8192, False)],
)
def test_batches_grow_with_the_log_and_short_logs_are_shuffled(rows: int, batch_size: int, is_shuffled: bool) -> None:
    facts: Any = SimpleNamespace(train_rows=rows)
    assert RULES["training.batch_size"].decide(facts, {}) == batch_size
    assert RULES["model.name"].decide(facts, {}) == ("dcnv2" if rows > 100_000 else "dcn")
    options = Config.of(network_options={"cross_layers": 2}).given_sections()
    assert RULES["model.name"].decide(facts, options) == "dcn", "whose it is"
    assert RULES["training.shuffle_buffer"].decide(facts, {}) == (rows if is_shuffled else 10_000)
    by_time = Config.of(evict_unseen="7d").given_sections()
    assert RULES["training.shuffle_buffer"].decide(facts, by_time) == 0, "the log's own time goes by its order"


LOG = synthetic_log(SyntheticConfig(rows=1_000), seed=0)


class TestAskingForASize:
    """What nobody has chosen is what is recommended with a size; what somebody has stays."""

    @pytest.mark.parametrize("size", [{"target_rate": 0.1}, {"target_bytes": "1MB"}])
    def test_takes_the_recommended_recipe(self, size: dict[str, Any]) -> None:
        config = Config.of(**size).resolved_for(LOG)
        optimizer = config.optimizer
        assert (optimizer.name, optimizer.lr, optimizer.penalty.plain, optimizer.l21) == ("adagrad", 0.1, "hard", 0.0)
        assert optimizer.network_lr == 0.03
        assert config.model.fallback

    @pytest.mark.parametrize(
        ("given", "name", "lr"),
        [
            ({"optimizer": "adam"}, "adam", None),
            ({"optimizer": "adagrad"}, "adagrad", None),
            ({"lr": 0.01}, "adagrad", 0.01),
            ({"optimizer": "ftrl", "lr": 0.01}, "ftrl", 0.01),
        ],
    )
    def test_leaves_what_was_chosen(self, given: dict[str, Any], name: str, lr: float | None) -> None:
        optimizer = Config.of(target_rate=0.1, **given).resolved_for(LOG).optimizer
        assert (optimizer.name, optimizer.lr) == (name, lr)
        config = Config.of(target_rate=0.1, fallback=False, penalty="lasso").resolved_for(LOG)
        assert (config.model.fallback, config.optimizer.penalty.plain) == (False, "lasso")

    def test_what_a_file_leaves_open_is_left_to_the_options(self, tmp_path: Path) -> None:
        file = tmp_path / "settings.yaml"
        file.write_text("optimizer: {target_rate: 0.2}\n")
        assert read_config(file, {}).resolved_for(LOG).optimizer.lr == 0.1
        given = read_config(file, {"optimizer.lr": 0.01, "optimizer.target_rate": 0.1}).resolved_for(LOG).optimizer
        assert (given.name, given.lr, given.target_rate) == ("adagrad", 0.01, 0.1)
        file.write_text("optimizer: {target_rat: 0.2}\n")
        with pytest.raises(SettingsError, match=r"settings\.yaml: no setting 'optimizer\.target_rat'"):
            read_config(file, {"optimizer.lr": 0.01})

    def test_settings_that_were_written_down_are_read_as_they_were(self) -> None:
        for config in (Config.of(target_rate=0.1), Config.of(target_rate=0.1, optimizer="adagrad", fallback=False)):
            assert Config.model_validate(config.as_dict()) == config


def test_commands_that_train_take_the_same_options_of_a_log() -> None:
    from sparsegroup.cli.app import load_command

    of_log = {
        name: {o.name for o in load_command(name).params if getattr(o, "rich_help_panel", None) == "Log"}
        for name in ("train", "tune", "path")
    }
    assert of_log["train"] == of_log["tune"] == of_log["path"]


def test_options_of_an_optimizer_that_is_open_are_checked_when_it_is_decided() -> None:
    config = Config.of(options={"betas": [0.9, 0.9]})
    assert config.replace(l21=0.0).resolved_for(LOG).optimizer.arguments["betas"] == (0.9, 0.9)
    with pytest.raises(SettingsError, match=r"^config: optimizer: GroupAdagrad got an unexpected argument 'betas'"):
        config.check_log(LOG)
