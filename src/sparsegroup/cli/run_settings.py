"""What the commands that train have in common: settings from options, and the log that they name."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sparsegroup.cli.app import UsageError
from sparsegroup.cli.columns import print_columns
from sparsegroup.cli.progress import reading_bar
from sparsegroup.data import Log, SyntheticConfig, is_prepared, open_log, synthetic_log
from sparsegroup.data.open import NO_WEIGHT
from sparsegroup.data.raw.files import short_name
from sparsegroup.settings.declared import SHORT, DataSettings
from sparsegroup.settings.yaml_settings import assignment, checked, share_of
from sparsegroup.training import Config
from sparsegroup.training.run_folder import CONFIG


def settings_file(log: Sequence[str] | None) -> Path | None:
    """The YAML file of settings that stands in the place of a log, if one does."""
    if not log or len(log) > 1 or not log[0].endswith((".yaml", ".yml")) or Path(log[0]).is_dir():
        return None
    return Path(log[0])


def setting_values(
    log: Sequence[str] | None, settings: Mapping[str, Any], assignments: Sequence[str]
) -> dict[str, Any]:
    """Dotted key → value of a command line: log, options by their short names, then assignments `key=value`."""
    values: dict[str, Any] = {SHORT[name]: value for name, value in settings.items()}
    if log and settings_file(log) is None:
        values["data.log"] = log[0] if len(log) == 1 else list(log)
    return values | dict(map(assignment, assignments))


def log_settings(settings: Mapping[str, Any]) -> DataSettings:
    """How options say to read a log: short name → value."""
    return checked(Config, {"data": settings}, "the command line").data


def share_given(option: str, text: str) -> float:
    """A share in [0, 1) that an option is given as .05 or 5%; raises UsageError where it is none."""
    with suppress(ValueError):
        if 0 <= (share := float(str(share_of(text)))) < 1:
            return share
    raise UsageError(f"{option} must be a share like 5% or .05, below 100%, got {text!r}")


def log_name(config: Config) -> str:
    """The name of the log in a config, for folders."""
    return "synthetic" if config.data.log is None else short_name(config.data.log)


def check_weight(weight: str | None, log: Log) -> None:
    """Raise UsageError where `--weight` names a column that a log to be scored has not."""
    if weight not in (None, NO_WEIGHT) and not log.weighted:
        raise UsageError(f"--weight: {log.name} has no column {weight!r}")


def open_config_log(config: Config, threads: int, *, as_before: bool = False) -> Log:
    """The log that a config names, opened with a progress bar; `as_before` if the config is a run's: infer nothing."""
    data = config.data
    if data.log is None:
        return synthetic_log(SyntheticConfig(rows=data.rows), config.training.seed)
    if isinstance(data.log, str) and (Path(data.log) / CONFIG).is_file() and not is_prepared(data.log):
        raise UsageError(
            f"{data.log} is a run, not a log: --continue {data.log} with a log trains it further, and --resume "
            f"{data.log} completes it if it was cut off"
        )
    as_before = as_before and not is_prepared(data.log)
    with reading_bar(short_name(data.log)) as on_progress:
        log = open_log(
            data.log,
            data.test,
            sort_files=data.sort_files,
            on_bad_row=data.on_bad_row,
            max_bad=data.max_bad,
            threads=threads,
            on_progress=on_progress,
            like=data.format_options if as_before else None,
            **({} if as_before else data.format_options),
        )
    print_columns(log.findings)
    return log
