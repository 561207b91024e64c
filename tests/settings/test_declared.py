"""What users see of the settings stays as it is: `--help` of each command, `help()`, and what a log decides.

`SNAPSHOTS=write python -m pytest -n 0 tests/settings/test_declared.py` writes the texts in `snapshots/` anew.
"""

import inspect
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from declared_pages import on_page_markdown
from sparsegroup.cli import app
from sparsegroup.cli.app import COMMANDS
from sparsegroup.cli.options import THREADS
from sparsegroup.settings.auto import RULES
from sparsegroup.settings.declared import DECLARED
from sparsegroup.training import Config, read_config

SNAPSHOTS = Path(__file__).with_name("snapshots")


def assert_as_before(name: str, text: str) -> None:
    file = SNAPSHOTS / name
    if os.environ.get("SNAPSHOTS") == "write":
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(command: str) -> None:
    plain = {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}
    done = CliRunner().invoke(app, [*command.split(), "--help"], env=plain, prog_name="sparsegroup")
    assert done.exit_code == 0
    text = done.output.replace(f"[default: {THREADS}]", "[default: 2]")  # as many as there are cores
    lines = (" ".join(re.sub("[─│╭╮╰╯]", " ", line).split()) for line in text.splitlines())
    assert_as_before(f"{command or 'sparsegroup'}.txt", "".join(f"{line}\n" for line in lines if line))


LOGS = {
    "short": SimpleNamespace(train_rows=900, tasks=(), fields=("a", "b")),
    "long": SimpleNamespace(train_rows=400_000, tasks=(), fields=("a", "b")),
}
GIVEN: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a rate": {"target_rate": "20%"},
    "a size": {"target_bytes": "1MB", "lr": 0.05},
    "no size": {"l21": 0.0},
    "an optimizer": {"optimizer": "ftrl", "lr": 0.1, "penalty": {"name": "mcp", "gamma": 2.5}},
    "a network": {"model": "auto", "network_options": {"cross_layers": 2}, "number_buckets": 0, "evict_unseen": "7d"},
    "an order": {"batch_size": 64, "epochs": 3, "validation": 0.1, "patience": 1, "shuffle_buffer": 0, "seed": 3},
}


def flat(config: Config) -> dict[str, Any]:
    return {f"{section}.{name}": value for section, of in config.as_dict().items() for name, value in of.items()}


def test_what_a_log_decides(tmp_path: Path) -> None:
    """All settings of the first case, then those in which the other cases differ from it."""
    first: dict[str, Any] = {}
    shown = dict[str, Any]()
    for log_name, log in LOGS.items():
        for name, given in GIVEN.items():
            config = Config.of(**given)
            (file := tmp_path / "settings.yaml").write_text(config.as_yaml())
            resolved = config.resolved_for(log)
            for same in (read_config(file, {}), Config.of().replace(**given), config.replace()):
                assert same.resolved_for(log) == resolved
            file.write_text(resolved.as_yaml())
            assert read_config(file, {}).resolved_for(LOGS["short"]) == resolved
            again = resolved.resolved_again_for(LOGS["short"])
            settings, before = flat(resolved), flat(config)
            assert {key for key, value in settings.items() if value != before[key]} <= set(RULES)
            shown[f"{name}, {log_name} log"] = {
                "settings": {key: value for key, value in settings.items() if not first or value != first[key]},
                "given": resolved.given_sections(),
                "again": {key: value for key, value in flat(again).items() if value != settings[key]},
            }
            first = first or settings
    assert_as_before("resolved.yaml", yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=120))


def test_settings_are_declared_without_torch() -> None:
    loaded = "import sys, sparsegroup.settings.declared; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded], capture_output=True, check=True).stdout == b"False\n"


def test_a_setting_is_open_exactly_if_a_rule_decides_it_and_each_is_on_the_page_of_settings() -> None:
    page = on_page_markdown(Path(__file__).parents[2].joinpath("docs", "settings.md").read_text(encoding="utf-8"))
    for key, one in DECLARED.items():
        section, _ = key.split(".")
        default = type(getattr(Config(), section)).model_fields[one.field].default
        assert default is None or key not in RULES
        assert f"| `{key}` |" in page
        assert one.help.endswith((".", ")")), key


ROOMS = ("rules", "penalties", "optim", "table", "checkpoint", "models", "data", "training", "serving", "estimator")


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_constructor_has_the_docstring_of_its_class(room: str) -> None:
    package = import_module(f"sparsegroup.{room}")
    for name in package.__all__:
        value = getattr(package, name)
        init = vars(value).get("__init__") if isinstance(value, type) else None
        if isinstance(init, FunctionType) and init.__qualname__.startswith(name):  # a protocol shares another's
            said, of_class = inspect.getdoc(init), inspect.getdoc(value)
            assert said is not None, name
            assert of_class is not None, name
            assert of_class.startswith(said) or "Args:" in said, f"{name}.__init__ says {said.splitlines()[0]!r}"
            assert ">>>" not in said
