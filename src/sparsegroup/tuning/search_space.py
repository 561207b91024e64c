"""What `sparsegroup tune` searches: the table of all parameters, and what of it fits a log and given settings."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

from sparsegroup.data.log import Log
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.training.click_model import NETWORKS
from sparsegroup.training.config import Config
from sparsegroup.training.input_columns import Columns
from sparsegroup.tuning.search_parameter import Choice, Condition, Draws, Parameter, Span

_VECTORS = Condition("model.name", tuple(name for name in NETWORKS if name != "lr"))
_LAYERS = Condition(
    "model.name", tuple(name for name, network in NETWORKS.items() if "hidden" in signature(network).parameters)
)

SEARCHED: tuple[Parameter, ...] = (
    Choice(key="model.name", values=("dcn", "dcnv2", "deepfm", "fm", "lr", "mlp", "opnn")),
    Span(key="model.dim", low=4, high=32, whole=True, only=_VECTORS),
    Choice(key="model.hidden", values=(None, (64,), (128, 64), (256, 128), (256, 128, 64)), only=_LAYERS),
    Span(key="model.dropout", low=0.0, high=0.5, log=False, only=_LAYERS),
    Choice(key="model.number_buckets", values=(0, 16, 32, 64, 128), needs_numbers=True),
    Choice(key="model.fallback", values=(False, True)),
    Choice(key="optimizer.name", values=("adagrad", "adam", "amsgrad", "ftrl", "momentum")),
    Span(key="optimizer.lr", low=1e-4, high=0.03, only=Condition("optimizer.name", ("adam", "amsgrad"))),
    Span(key="optimizer.lr", low=3e-3, high=0.3, only=Condition("optimizer.name", ("adagrad", "ftrl", "adahessian"))),
    Span(key="optimizer.lr", low=1e-2, high=10.0, only=Condition("optimizer.name", ("momentum", "sgd"))),
    Span(key="optimizer.network_lr", low=0.03, high=3.0, times="optimizer.lr"),
    Choice(key="optimizer.schedule", values=("constant", "linear", "cosine")),
    Choice(key="optimizer.l2", values=(0.0, 1e-6, 1e-5, 1e-4, 1e-3)),
    Choice(key="training.batch_size", times_default=(0.25, 0.5, 1, 2, 4)),
    Choice(key="training.shuffle_buffer", values=(0, 100_000)),
    Choice(key="training.epochs", values=(1, 2, 3)),
)
"""All that can be searched. A parameter that another's condition names stands before it."""


@dataclass(frozen=True)
class SearchSpace:
    """What is searched beside settings that are given.

    Attributes:
        base: The settings that the search begins with; what is not searched stays as it is there.
        parameters: What is searched, in the order in which it is drawn.
    """

    base: Config
    parameters: tuple[Parameter, ...]

    @classmethod
    def beside(cls, base: Config, given: Collection[str], log: Log) -> "SearchSpace":
        """What can be searched on a log beside settings that are given.

        Args:
            base: The settings of a run with nothing but the given ones said, decided for the log.
            given: Dotted keys of those that are given: they are not searched.
            log: The log.

        Raises:
            SettingsError: All that could be searched is given.
        """
        fixed = {*given, *(("optimizer.lr",) if "lr" in base.optimizer.options else ())}
        settings, found = _flat(base), list[Parameter]()
        for parameter in SEARCHED:
            key, only = parameter.key, parameter.only
            if key in fixed or (parameter.needs_numbers and not log.numbers):
                continue
            if isinstance(parameter, Choice) and key in _WHOLE_CONFIGS:
                parameter = replace(parameter, values=_suited(base, parameter, given, log))
            if only is not None:
                possible = _possible(only.key, found, settings)
                cases = tuple(value for value in only.values if value in possible)
                if not cases:
                    continue
                parameter = replace(parameter, only=replace(only, values=cases) if len(cases) < len(possible) else None)
            if parameter.has_say(settings):
                parameter = parameter.beginning_at(_default(base, key))
            found.append(parameter)
        if not found:
            raise SettingsError("nothing is left to search: every parameter is given; leave out the ones to search")
        return cls(base, tuple(found))

    @property
    def keys(self) -> tuple[str, ...]:
        """The settings that are searched."""
        return tuple(dict.fromkeys(parameter.key for parameter in self.parameters))

    def draw(self, trial: Draws) -> dict[str, Any]:
        """The settings of a trial: dotted key → value, for all that is searched."""
        settings, drawn = _flat(self.base), dict[str, Any]()
        for parameter in self.parameters:
            if parameter.has_say(settings):
                drawn[parameter.key] = settings[parameter.key] = parameter.draw(trial, settings)
        return {key: drawn.get(key) for key in self.keys}  # without a say it is None: a network without layers, say

    @property
    def beginning(self) -> dict[str, Any]:
        """What a trial draws whose settings are those of `base`: parameter's name → value."""
        settings = _flat(self.base)
        return {one.name: one.drawn() for one in self.parameters if one.has_say(settings)}

    def config(self, settings: Mapping[str, Any]) -> Config:
        """`base` with the settings of a trial.

        Raises:
            SettingsError: They do not go with those of `base`.
        """
        return self.base.replace(**settings) if settings else self.base

    def as_plain(self) -> list[dict[str, Any]]:
        """All parameters, as JSON has them."""
        return [parameter.as_plain() for parameter in self.parameters]


_WHOLE_CONFIGS = ("model.name", "optimizer.name")
"""Choices that other settings may not go with."""


def _flat(config: Config) -> dict[str, Any]:
    settings = {f"{section}.{name}": value for section, of in config.as_dict().items() for name, value in of.items()}
    return {**settings, "optimizer.lr": config.optimizer.arguments["lr"]}


def _default(base: Config, key: str) -> Any:
    """The value of a searched setting in `base`, as it is drawn."""
    if key == "model.dim":
        return base.model.vector_dim
    if key == "model.dropout" and base.model.dropout is None:
        return signature(NETWORKS[base.model.name]).parameters["dropout"].default
    if key == "optimizer.network_lr":
        lr = base.optimizer.arguments["lr"]
        return 1.0 if base.optimizer.network_lr is None or lr == 0 else base.optimizer.network_lr / lr
    if key == "optimizer.lr":
        return base.optimizer.arguments["lr"]
    section, name = key.split(".")
    return getattr(getattr(base, section), name)


def _suited(base: Config, parameter: Choice, given: Collection[str], log: Log) -> tuple[Any, ...]:
    """The values that a model can be made with beside the given settings."""
    others = [one.key for one in SEARCHED if one.key.startswith("model.") and one.key not in given and one.only]
    open_ = dict.fromkeys(others) if parameter.key == "model.name" else {}
    rate = {} if base.optimizer.lr is not None else {"optimizer.lr": base.optimizer.arguments["lr"]}

    def is_suited(value: Any) -> bool:
        try:
            base.replace(**{**open_, **rate, parameter.key: value}).build_for(Columns.of(log))
        except SettingsError:
            return False
        return True

    return tuple(value for value in parameter.values if is_suited(value))


def _possible(key: str, found: Collection[Parameter], settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values that a setting can have in a trial."""
    searched = next((one for one in found if one.key == key), None)
    return searched.values if isinstance(searched, Choice) else (settings[key],)
