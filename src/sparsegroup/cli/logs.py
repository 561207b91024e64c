"""The log that a command names: opened with a progress bar, and what its columns were taken for."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparsegroup.cli.app import UsageError
from sparsegroup.cli.options import setting_values, settings_file
from sparsegroup.cli.output import plain, progress, table, tell
from sparsegroup.data import ColumnFinding, Log, SyntheticConfig, is_prepared, open_log, synthetic_log
from sparsegroup.data.raw.files import LogPaths, short_name
from sparsegroup.training.build import Config, read_config
from sparsegroup.training.run_folder import CONFIG

_logger = logging.getLogger(__name__)

_SHOWN = 40
"""Columns that the short table shows."""


def config_given(log: Sequence[str] | None, settings: Mapping[str, Any], assignments: Sequence[str] | None) -> Config:
    """The settings of a command line, and of the YAML file that it names."""
    return read_config(settings_file(log), setting_values(log, settings, assignments), "the command line")


def log_name(config: Config) -> str:
    """The name of the log in a config, for folders."""
    return "synthetic" if config.data.log is None else short_name(config.data.log)


@contextmanager
def reading_bar(log: LogPaths) -> Iterator[Callable[[int, int | None], None]]:
    """Progress while the rows of a raw log are counted; yields `on_progress` of `open_log`."""
    with progress(f"counting rows of {short_name(log)}", "bytes") as update:
        yield lambda done, total: update(done, total, "")


def open_config_log(config: Config, threads: int, *, as_before: bool = False) -> Log:
    """The log that a config names; `as_before` if the config is a run's: infer nothing."""
    data = config.data
    if data.log is None:
        return synthetic_log(SyntheticConfig(rows=data.rows), config.training.seed)
    if isinstance(data.log, str) and (Path(data.log) / CONFIG).is_file() and not is_prepared(data.log):
        raise UsageError(
            f"{data.log} is a run, not a log: --continue {data.log} with a log trains it further, and --resume "
            f"{data.log} completes it if it was cut off"
        )
    as_before = as_before and not is_prepared(data.log)
    options = {"like": config.format_options} if as_before else config.format_options
    with reading_bar(data.log) as on_progress:
        log = open_log(data.log, data.test, threads=threads, on_progress=on_progress, **data.reading_options, **options)
    print_columns(log.findings)
    return log


def print_columns(findings: Sequence[ColumnFinding]) -> None:
    """A short table of what columns were taken for, and what the user should think about; nothing where none were."""
    if 0 < len(findings) <= _SHOWN:
        rows = ((plain(one.name), plain(one.kind), plain(one.why)) for one in findings)
        tell(table("", "", "", rows=rows, left=3, box=None, pad_edge=False, show_header=False, row_styles=["dim"]))
    elif findings:
        counts = ", ".join(f"{count} {kind}" for kind, count in Counter(one.kind for one in findings).items())
        tell(f"columns: {counts}; `sparsegroup columns` shows them")
    warn_of_columns(findings)


def warn_of_columns(findings: Sequence[ColumnFinding]) -> None:
    """Log what the user should think about."""
    for one in findings:
        if one.warning:
            _logger.warning("%s", re.sub(r"`(\w+)`", r"--\1", one.warning))
