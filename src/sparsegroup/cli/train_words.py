"""The `sparsegroup train` command that has given settings."""

import inspect
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from sparsegroup.cli.run_settings import settings_file
from sparsegroup.cli.train_command import train_command
from sparsegroup.data.log import Log
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.training.config import SHORT, Config, read_config
from sparsegroup.training.defaults import SIZE, SIZES

_OPTIONS = {
    SHORT[name]: "--" + name.replace("_", "-")
    for name in inspect.signature(train_command).parameters
    if name in SHORT and name != "log"
}
"""Setting → the option of `train` that it has."""


def train_command_line(arguments: Sequence[str], config: Config, log: Log) -> str:
    """The command that trains on a log as a config says, to be copied into a shell.

    What `train` decides for that log by itself is left out.

    Args:
        arguments: The log's paths, or a file of settings; none for a synthetic log.
        config: All settings of the run.
        log: The log.

    Raises:
        SettingsError, OSError: The file of settings cannot be read any more.
    """
    file, wanted = settings_file(arguments), _flat(config)
    log_itself = {} if file is not None else {"data.log": wanted["data.log"]}

    def is_enough(said: Mapping[str, Any]) -> bool:
        try:
            return _flat(read_config(file, {**log_itself, **said}).resolved_for(log)) == wanted
        except SettingsError:  # these do not go without the others
            return False

    def is_an_option(key: str) -> bool:
        return key in _OPTIONS and wanted[key] is not None

    read_config(file, {})  # an error in the file is one of the file
    said = {key: value for key, value in wanted.items() if key not in log_itself}
    together = [f"optimizer.{name}" for name in (*SIZES, *SIZE)]
    for keys in (together, *([key] for key in sorted(said, key=is_an_option))):
        less = {key: value for key, value in said.items() if key not in keys}
        said = less if is_enough(less) else said
    words = [word for key in wanted if key in said for word in _spelled(key, said[key])]
    return shlex.join(["sparsegroup", "train", *arguments, *words])


def _flat(config: Config) -> dict[str, Any]:
    return {f"{section}.{name}": value for section, of in config.as_dict().items() for name, value in of.items()}


def _spelled(key: str, value: Any) -> list[str]:
    option = _OPTIONS.get(key)
    if option == "--exclude":
        return [word for column in value for word in (option, column)]
    if option is None or value is None or isinstance(value, list | dict):
        text = yaml.safe_dump(value, default_flow_style=True, width=math.inf, allow_unicode=True)
        text = text.removesuffix("...\n").strip()
        return ["--set", f"{key}={text}"]
    if isinstance(value, bool):
        return [option if value else option.replace("--", "--no-", 1)]
    return [option, str(value)]
