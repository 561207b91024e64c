"""Checking settings has no effects."""

import pytest
import torch
from torch import nn

from sparsegroup.training import Config
from sparsegroup.training.config import read_config
from sparsegroup.yaml_settings import SettingsError


def test_checking_settings_builds_no_module_and_draws_no_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a module is built")

    monkeypatch.setattr(nn.Module, "__init__", refuse)
    before = torch.get_rng_state()
    config = Config.of(model="opnn", optimizer="adagrad", lr=0.1)
    assert read_config(None, {"optimizer.name": "ftrl", "optimizer.lr": 0.1}).optimizer.name == "ftrl"
    assert config.replace(l21=0.0).optimizer.l21 == 0
    with pytest.raises(SettingsError):
        Config.of(options={"betas": [2.0, 0.9]})
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"options": {"betas": 3}}, r"betas must be two numbers in \[0, 1\), got 3 \(GroupAdam\)"),
        ({"options": {"momentum": 0.9}}, "GroupAdam got an unexpected argument 'momentum'"),
        ({"optimizer": "momentum", "options": {"momentum": -1}}, r"momentum must be >= 0, got -1 \(GroupMomentum\)"),
        ({"optimizer": "momentum", "options": {"momentum": 0, "nesterov": True}}, "nesterov=True needs momentum > 0"),
        ({"optimizer": "adahessian", "options": {"spatial_average_block_size": [0, 1, 1, 1]}}, "four ints"),
        ({"options": {"weight_decay": "x"}}, "weight_decay must be a number, got 'x'"),
        ({"options": {"amsgrad": True}}, "use GroupAMSGrad"),
        ({"options": {"groups": "columns"}}, "embeddings need groups='rows', got 'columns'"),
        ({"options": {"capturable": True}}, "cannot have capturable=True"),
        ({"lr": float("inf")}, "lr must be finite and >= 0, got inf"),
    ],
)
def test_the_optimizers_options_are_checked_by_its_rules_declaration(settings, message):
    with pytest.raises(SettingsError, match=message):
        Config.of(**settings)


def test_what_the_settings_leave_open_has_the_declared_default():
    arguments = Config.of(l21=0.5, options={"betas": [0.5, 0.6]}).optimizer.arguments
    assert (arguments["lr"], arguments["betas"], arguments["eps"], arguments["l21"]) == (1e-3, (0.5, 0.6), 1e-8, 0.5)
