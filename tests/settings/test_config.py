"""Settings: what is checked, what a log decides and what stays as it is given; shares in every option and file."""

import copy
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import yaml
from torch import nn

from command import Run
from over import over
from sparsegroup.data import FrameLog, SyntheticConfig, synthetic_log
from sparsegroup.data.order import LogPart
from sparsegroup.settings.auto import RULES
from sparsegroup.settings.declared import SHORT
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.training import Config, predict
from sparsegroup.training.build import read_config

LOG = synthetic_log(SyntheticConfig(rows=1_000), seed=0)


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


@over(
    ("settings", "message"),
    [
        ({"optimizer": "adam", "options": {"betas": 3}}, r"betas must be two numbers in \[0, 1\), got 3 \(GroupAdam\)"),
        ({"optimizer": "adam", "options": {"momentum": 0.9}}, "GroupAdam got an unexpected argument 'momentum'"),
        ({"optimizer": "momentum", "options": {"momentum": 0, "nesterov": True}}, "nesterov=True needs momentum > 0"),
        ({"optimizer": "adam", "options": {"amsgrad": True}}, "use GroupAMSGrad"),
        ({"optimizer": "adam", "options": {"groups": "columns"}}, "embeddings need groups='rows', got 'columns'"),
        ({"optimizer": "adam", "options": {"capturable": True}}, "cannot have capturable=True"),
        ({"lr": float("inf")}, "lr must be finite and >= 0, got inf"),
        ({"least_features": 10, "l21": 0.0}, "least_features need target_rate"),
        ({"target_rate": 0.1, "target_bytes": "1MB"}, "target_rate and target_bytes exclude each other"),
        ({"target_bytes": "1MB", "l21": 1e-3}, "target_bytes sets l21 during training: give one of them"),
        ({"state_dtype": "float16"}, "state_dtype"),
        ({"options": {"state_dtype": "bfloat16"}}, "setting of its own"),
        ({"optimizer": "momentum", "lr": 0.1, "l21": 0.0, "penalty": "lasso", "eps": 1e-3}, "eps"),
    ],
)
def test_the_optimizers_options_are_checked_by_its_rules_declaration(settings, message):
    with pytest.raises(SettingsError, match=message):
        Config.of(**settings)


def test_what_the_settings_leave_open_has_the_declared_default():
    arguments = Config.of(optimizer="adam", l21=0.5, options={"betas": [0.5, 0.6]}).optimizer.arguments
    assert (arguments["lr"], arguments["betas"], arguments["eps"], arguments["l21"]) == (1e-3, (0.5, 0.6), 1e-8, 0.5)


OTHER_VALUES: dict[str, Any] = {
    **{"model": "fm", "dim": 3, "hidden": [4], "dropout": 0.5, "fallback": False, "standardize": False},
    **{"number_buckets": 4, "optimizer": "adam", "lr": 0.5, "network_lr": 0.25, "l1": 1e-4, "l21": 1e-4, "l2": 1e-4},
    **{"penalty": "mcp", "norm": "metric", "target_rate": 0.3, "target_bytes": "1MB", "batch_size": 64, "epochs": 2},
    **{"shuffle_buffer": 9, "seed": 3, "schedule": "cosine"},
}


BEFORE: list[dict[str, Any]] = [{}, {"seed": 1}, {"target_rate": 0.2}, {"l21": 0.0, "optimizer": "ftrl", "lr": 0.1}]
NAMES = [None, *OTHER_VALUES]


@over(("before", "name"), [(BEFORE[others * (1 + i % 3)], name) for others in (0, 1) for i, name in enumerate(NAMES)])
def test_given_settings_stay_apart_from_defaults(before: dict[str, Any], name: str | None, tmp_path: Path) -> None:
    more = {} if name is None else {name: OTHER_VALUES[name]}
    try:
        config = Config.of(**{**before, **more})
    except SettingsError:
        with pytest.raises(SettingsError):
            Config.of(**before).replace(**more)
        return
    resolved = config.resolved_for(LOG)
    file = tmp_path / "settings.yaml"
    file.write_text(config.as_yaml())
    again = read_config(file, {})
    file.write_text(Config.of(**before).as_yaml())
    by_assignment = read_config(file, {SHORT[name]: value for name, value in more.items()})  # --set
    for same in (Config.of(**before).replace(**more), again, again.replace(), copy.deepcopy(config), by_assignment):
        assert (same, same.given_sections(), same.resolved_for(LOG)) == (config, config.given_sections(), resolved)
    file.write_text(resolved.as_yaml())
    assert read_config(file, {}) == resolved == pickle.loads(pickle.dumps(resolved))
    assert resolved.given_sections() == config.given_sections()


RECOMMENDED = {"name": "adagrad", "lr": 0.1, "network_lr": 0.03, "l21": 0.0}
OPEN = {"lr": None, "network_lr": None}


@over(
    ("given", "expected"),
    [
        ({"dim": 4}, {"target_rate": 0.1, "least_features": 4096, **RECOMMENDED}),
        ({"lr": 0.02}, {"target_rate": 0.1, **RECOMMENDED, "lr": 0.02, "network_lr": None}),
        ({"optimizer": "adam"}, {"target_rate": 0.1, "least_features": 4096, "name": "adam", **OPEN}),
        ({"l2": 1e-3, "penalty": "lasso"}, {"target_rate": 0.1, "l2": 1e-3, "l21": 0.0}),
        ({"l21": 0.0}, {"target_rate": None, "least_features": 0, "name": "adam", **OPEN}),
        ({"l1": 1e-4, "lr": 0.1}, {"target_rate": None, "l21": 1e-3, "name": "adam", "lr": 0.1}),
        ({"target_bytes": "1MB"}, {"target_rate": None, "least_features": 0, **RECOMMENDED}),
        ({"target_rate": 0.1, "optimizer": "adagrad"}, {"name": "adagrad", **OPEN}),
        ({"target_rate": 0.1, "optimizer": "ftrl", "lr": 0.01}, {"name": "ftrl", "lr": 0.01, "network_lr": None}),
    ],
)
def test_what_is_open_is_what_is_recommended_with_a_size_and_a_tenth_is_the_size(
    given: dict[str, Any], expected: dict[str, Any]
) -> None:
    resolved = Config.of(**given).resolved_for(LOG)
    has_size = (resolved.optimizer.target_rate, resolved.optimizer.target_bytes) != (None, None)
    assert {name: getattr(resolved.optimizer, name) for name in expected} == expected
    assert resolved.model.fallback == has_size
    assert resolved.optimizer.penalty.plain == given.get("penalty", "hard" if has_size else "lasso")
    assert resolved.resolved_for(LOG) == resolved
    if has_size:
        config = Config.of(fallback=False, **{**given, "penalty": "lasso"}).resolved_for(LOG)
        assert (config.model.fallback, config.optimizer.penalty.plain) == (False, "lasso")


@over(
    ("name", "given", "expected"),
    [
        ("state_dtype", {}, [None, None]),
        ("state_dtype", {"state_dtype": "bfloat16"}, [torch.bfloat16, None]),
        ("eps", {}, [1e-10, 1e-10]),
        ("eps", {"eps": 0.0}, [0.0, 1e-10]),
        ("eps", {"options": {"eps": 1e-4}, "eps": 1e-3}, [1e-3, 1e-4]),
    ],
)
def test_what_is_set_for_the_embeddings_only(name: str, given: dict[str, Any], expected: list[Any]) -> None:
    model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 1))
    config = Config.of(optimizer="adagrad", l21=0.0, penalty="lasso", **given)
    assert [group[name] for group in config.optimizer.make(model).param_groups] == expected


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


def test_what_a_file_leaves_open_is_left_to_the_options(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("optimizer: {target_rate: 0.2}\n")
    assert read_config(file, {}).resolved_for(LOG).optimizer.lr == 0.1
    given = read_config(file, {"optimizer.lr": 0.01, "optimizer.target_rate": 0.1}).resolved_for(LOG).optimizer
    assert (given.name, given.lr, given.target_rate) == ("adagrad", 0.01, 0.1)
    for config in (Config.of(target_rate=0.1), Config.of(target_rate=0.1, optimizer="adagrad", fallback=False)):
        assert Config.model_validate(config.as_dict()) == config
    file.write_text(Config.of().resolved_for(LOG).as_yaml())
    changed = read_config(file, {"training.batch_size": 7})
    assert (changed.training.batch_size, changed.given) == (7, ("training.batch_size",))
    file.write_text("optimizer: {target_rat: 0.2}\n")
    with pytest.raises(SettingsError, match=r"settings\.yaml: no setting 'optimizer\.target_rat'"):
        read_config(file, {"optimizer.lr": 0.01})


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


SHARES = ("target_rate", "test_fraction", "max_bad", "validation", "warmup", "dropout")
OPTIONS_OF_SHARES = {
    "train": ("--target-rate", "--test-fraction", "--max-bad", "--validation", "--warmup"),
    "tune": ("--target-rate", "--max-bad", "--warmup", "--held-out"),
    "path": ("--validation", "--warmup", "--rates"),
    "prepare": ("--test-fraction", "--max-bad"),
}


@over(("command", "option"), [(one, option) for one, options in OPTIONS_OF_SHARES.items() for option in options])
def test_an_option_that_is_a_share_takes_a_number_or_percent(command: str, option: str, run: Run) -> None:
    for text, is_share in (("5%", True), (".05", True), ("150%", False), ("nan", False)):
        done = run(command, "no.csv", *(["out"] if command == "prepare" else []), option, text)
        assert done.returncode == 2
        assert (done.stderr == "error: no.csv: no such file\n") == is_share


def test_settings_that_are_shares_take_both() -> None:
    given = Config.of(**dict.fromkeys(SHARES, "5%"))
    assert given == Config.of(**dict.fromkeys(SHARES, 0.05))
    assert given == Config.of(**dict.fromkeys(SHARES, ".05"))
    assert yaml.safe_load(given.as_yaml())["optimizer"]["target_rate"] == 0.05
    for name in SHARES:
        with pytest.raises(SettingsError, match="must be a share like 5%"):
            Config.of(**{name: "a few"})
    with pytest.raises(SettingsError, match="greater than 0"):
        Config.of(target_rate="0%")


def wide(fields: int, seed: int) -> FrameLog:
    """Rows of fields of which three decide the odds."""
    draw = np.random.default_rng(seed)
    values = draw.integers(8, size=(500, fields))
    logits = draw.normal(0, 1.2, (3, 8))[np.arange(3), values[:, :3]].sum(axis=1)
    labels = (draw.random(len(values)) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    frame = pl.DataFrame({f"c{place}": [f"v{one}" for one in values[:, place]] for place in range(fields)})
    return FrameLog(frame, labels, columns=dict.fromkeys(frame.columns, "category"))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_default_rates_do_not_diverge_on_a_log_of_few_rows_and_as_many_fields_as_there_may_be(seed: int) -> None:
    log = wide(256, seed)
    config = Config.of(baseline=False).resolved_for(log)
    model, optimizer = config.build(log)
    part = LogPart(log, 0, 400, 100)
    plan = config.training.plan(part.train_rows)
    config.trainer(model, optimizer, plan).fit_plan(plan, part)
    assert predict(model, part.batches(400, 500, 100)).metrics().relative_loss < 1.1


def test_the_default_rates_fall_only_with_many_fields() -> None:
    few, many = (Config.of(dim=4).resolved_for(wide(fields, 0)).optimizer for fields in (64, 128))
    assert (few.lr, few.network_lr) == (0.1, 0.03)
    assert (many.lr, many.network_lr) == (0.05, 0.015)
