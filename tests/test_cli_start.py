"""A command starts without looking for garbage, and does its work with."""

import gc

import pytest

from sparsegroup.cli import app
from sparsegroup.cli.app import main, starting
from sparsegroup.cli.kernels_ahead import first_optimizer
from sparsegroup.cli.run_settings import setting_values
from sparsegroup.data import SyntheticConfig, synthetic_log
from sparsegroup.garbage import uncollected
from sparsegroup.training.config import read_config


def test_garbage_is_sought_again_once_a_command_has_started() -> None:
    seen = []

    def run() -> None:
        seen.append(gc.isenabled())
        with starting():
            seen.append(gc.isenabled())
        seen.append(gc.isenabled())

    with pytest.raises(SystemExit):
        main(run)
    assert seen == [False, False, True]
    assert gc.isenabled()


def test_every_command_starts_so() -> None:
    assert len(app.registered_commands) > 10
    for command in app.registered_commands:
        assert command.callback is not None
        assert "starting" in command.callback.__code__.co_names, command.name


def test_who_does_without_keeps_doing_without() -> None:
    with uncollected():
        with uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), uncollected():
        raise KeyError
    assert gc.isenabled()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"log": ["clicks.csv"], "optimizer": "ftrl", "lr": 0.1},
        {"l21": 1e-4},
        {"l1": 1e-4},
        {"l21": 0.0},
        {"target_rate": 0.1},
        {"target_rate": 0.1, "l2": 1e-5},
        {"target_bytes": "1MB", "optimizer": "adam"},
        {"optimizer": "adam", "l21": 0.0, "l2": 1e-5},
    ],
)
def test_the_optimizer_that_the_options_mean_is_foreseen(options: dict[str, object]) -> None:
    log = synthetic_log(SyntheticConfig(rows=100), 0)
    config = read_config(None, setting_values(None, options, [])).resolved_for(log).optimizer
    assert first_optimizer(options) == (config.name, any((config.l1, config.l21, config.l2)))


@pytest.mark.parametrize("options", [{"log": ["run.yaml"]}, {"set_": ["optimizer.name=sgd"]}, {"resume": "runs"}])
def test_no_optimizer_is_foreseen_where_a_file_says(options: dict[str, object]) -> None:
    assert first_optimizer(options) is None
