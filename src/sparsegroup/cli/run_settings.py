"""What the commands that train have in common: settings from options, and the log that they name."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from sparsegroup.cli.app import UsageError
from sparsegroup.cli.column_table import print_columns
from sparsegroup.cli.progress import reading_bar
from sparsegroup.data import Log, SyntheticConfig, is_prepared, open_log, synthetic_log
from sparsegroup.training import Config
from sparsegroup.training.config import SHORT
from sparsegroup.yaml_settings import assignment


def is_settings_file(log: Path | None) -> TypeGuard[Path]:
    """Whether what stands in the place of a log is a YAML file of settings."""
    return log is not None and log.suffix in (".yaml", ".yml")


def setting_values(log: Path | None, options: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Dotted key → value, as the command line has them.

    Args:
        log: The log, a settings file, or None.
        options: Those that were given, by their names in Python; what is no setting is left out.
        assignments: `key=value` each, which come last.

    Raises:
        UsageError, SettingsError: One cannot be read.
    """
    values: dict[str, Any] = {
        SHORT[name]: str(value) if isinstance(value, Path) else value
        for name, value in options.items()
        if name in SHORT and name != "log"
    }
    if given := options.get("field_rate"):
        values["optimizer.field_rates"] = _field_rates(given)
    if log is not None and not is_settings_file(log):
        values["data.log"] = str(log)
    return values | dict(map(assignment, assignments))


def _field_rates(given: Sequence[str]) -> dict[str, float]:
    rates: dict[str, float] = {}
    for text in given:
        name, _, rate = text.rpartition("=")
        try:
            value = float(rate)
        except ValueError:
            name = ""
        if not name:
            raise UsageError(f"--field-rate wants FIELD=RATE, such as C3=.5: got {text!r}")
        if name in rates:
            raise UsageError(f"--field-rate names {name} twice: {rates[name]:g} and {value:g}; give one")
        rates[name] = value
    return rates


def log_name(config: Config) -> str:
    """The name of the log in a config, for folders."""
    return "synthetic" if config.data.log is None else Path(config.data.log).name.split(".")[0] or "log"


def open_config_log(config: Config, threads: int, *, as_before: bool = False) -> Log:
    """The log that a config names, opened with a progress bar; what is to be said of it is printed.

    Args:
        config: The settings.
        threads: That parse and hash a raw log.
        as_before: Whether they are those of a run: then nothing is told anew from the log.
    """
    data = config.data
    if data.log is None:
        return synthetic_log(SyntheticConfig(rows=data.rows), config.training.seed)
    path = Path(data.log)
    as_before = as_before and not is_prepared(path)
    with reading_bar(path.name) as on_progress:
        log = open_log(
            path,
            None if data.test is None else Path(data.test),
            on_bad_row=data.on_bad_row,
            max_bad=data.max_bad,
            threads=threads,
            on_progress=on_progress,
            like=data.format_options if as_before else None,
            **({} if as_before else data.format_options),
        )
    print_columns(log.findings)
    return log
