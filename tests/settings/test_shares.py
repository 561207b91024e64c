"""Shares: the same spellings in every option, setting and file."""

import pytest
import yaml

from command import Run
from over import over
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.training import Config

SETTINGS = ("target_rate", "test_fraction", "max_bad", "validation", "warmup", "dropout")
OPTIONS = {
    "train": ("--target-rate", "--test-fraction", "--max-bad", "--validation", "--warmup"),
    "tune": ("--target-rate", "--max-bad", "--warmup", "--held-out"),
    "path": ("--validation", "--warmup", "--rates"),
    "prepare": ("--test-fraction", "--max-bad"),
}


@over(("command", "option"), [(one, option) for one, options in OPTIONS.items() for option in options])
def test_an_option_that_is_a_share_takes_a_number_or_percent(command: str, option: str, run: Run) -> None:
    for text, is_share in (("5%", True), (".05", True), ("150%", False), ("nan", False)):
        done = run(command, "no.csv", *(["out"] if command == "prepare" else []), option, text)
        assert done.returncode == 2
        assert (done.stderr == "error: no.csv: no such file\n") == is_share


def test_settings_take_both() -> None:
    given = Config.of(**dict.fromkeys(SETTINGS, "5%"))
    assert given == Config.of(**dict.fromkeys(SETTINGS, 0.05))
    assert given == Config.of(**dict.fromkeys(SETTINGS, ".05"))
    assert yaml.safe_load(given.as_yaml())["optimizer"]["target_rate"] == 0.05
    for name in SETTINGS:
        with pytest.raises(SettingsError, match="must be a share like 5%"):
            Config.of(**{name: "a few"})
    with pytest.raises(SettingsError, match="greater than 0"):
        Config.of(target_rate="0%")
