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
