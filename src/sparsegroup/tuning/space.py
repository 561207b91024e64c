"""What `sparsegroup tune` searches: the table of all parameters, and which of them suit a log and given settings."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from inspect import signature
from typing import Any, Self

from optuna import Trial

from sparsegroup.data.log import Log
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.training.build import Config
from sparsegroup.training.model import NETWORKS

_DIGITS = 3
"""Significant digits of what is drawn from a range: as many as anybody wants to copy."""


@dataclass(frozen=True)
class Condition:
    """A parameter is active only if another setting, which is before it in a space, has one of these values."""

    key: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.key} is {', '.join(self.values)}"


@dataclass(frozen=True, kw_only=True)
class _Parameter:
    """A setting that is searched."""

    key: str  # one key may have several parameters, for cases that exclude each other
    only: Condition | None = None  # when it is active; None: always
    default: Any = None  # its value in the settings that the search starts with; None if it is not active there

    @property
    def name(self) -> str:
        """Optuna's name for it: the key, then the case that it is for."""
        return self.key if self.only is None else f"{self.key} ({'|'.join(self.only.values)})"

    def is_active(self, settings: Mapping[str, Any]) -> bool:
        """Whether it has an effect with these settings."""
        return self.only is None or settings[self.only.key] in self.only.values


@dataclass(frozen=True, kw_only=True)
class Choice(_Parameter):
    """One of some values."""

    values: tuple[Any, ...] = ()  # None is the setting's default
    times_default: tuple[float, ...] = ()  # further values, as multiples of the default: whole numbers, ≥ 1

    def initial_at(self, default: Any) -> Self:
        """This parameter for a search that starts with `default`, which becomes one of the values."""
        multiples = (max(1, round(factor * default)) for factor in self.times_default)
        values = tuple(dict.fromkeys((*self.values, *multiples)))
        return replace(self, values=values if default in values else (default, *values), default=default)

    def draw(self, trial: Trial, settings: Mapping[str, Any]) -> Any:
        """The setting's value in a trial, given the settings that have been drawn before."""
        stored = [_storable(value) for value in self.values]
        return self.values[stored.index(trial.suggest_categorical(self.name, stored))]

    def words(self) -> str:
        """The values, for people."""
        return ", ".join(shown_value(value) for value in self.values)


@dataclass(frozen=True, kw_only=True)
class Span(_Parameter):
    """A number from `low` to `high`, or a multiple of another setting."""

    low: float
    high: float
    log: bool = True  # whether its logarithm is uniform, instead of the number
    whole: bool = False
    times: str | None = None  # key of a setting, before it in a space, that it is a multiple of

    def initial_at(self, default: Any) -> Self:
        """See `Choice.initial_at`."""
        return replace(self, low=min(self.low, default), high=max(self.high, default), default=default)

    def draw(self, trial: Trial, settings: Mapping[str, Any]) -> Any:
        """See `Choice.draw`."""
        if self.whole:
            return trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log)
        drawn = trial.suggest_float(self.name, self.low, self.high, log=self.log)
        value = drawn if self.times is None else drawn * settings[self.times]
        return float(f"{value:.{_DIGITS}g}")

    def words(self) -> str:
        """The range, for people."""
        of = "" if self.times is None else f" × {self.times}"
        return f"{self.low:g} … {self.high:g}{of}{', log-uniform' if self.log else ''}"


Parameter = Choice | Span

_VECTORS = Condition("model.name", tuple(name for name in NETWORKS if name != "lr"))
_LAYERS = Condition(
    "model.name", tuple(name for name, network in NETWORKS.items() if "hidden" in signature(network).parameters)
)

SEARCHED: tuple[Parameter, ...] = (
    Choice(key="model.name", values=("dcn", "dcnv2", "deepfm", "fm", "lr", "mlp", "opnn", "xdeepfm")),
    Span(key="model.dim", low=4, high=32, whole=True, only=_VECTORS),
    Choice(key="model.hidden", values=(None, (64,), (128, 64), (256, 128), (256, 128, 64)), only=_LAYERS),
    Span(key="model.dropout", low=0.0, high=0.5, log=False, only=_LAYERS),
    Choice(key="model.number_buckets", values=(0, 16, 32, 64, 128)),
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
"""All that can be searched. A parameter that another's condition names is before it."""


@dataclass(frozen=True)
class SearchSpace:
    """What is searched while given settings are fixed.

    Attributes:
        base: The settings that the search starts with; settings that are not searched are the same in all trials.
        parameters: What is searched, in the order in which it is drawn.
    """

    base: Config
    parameters: tuple[Parameter, ...]

    @classmethod
    def excluding(cls, given: Collection[str], base: Config, log: Log) -> "SearchSpace":
        """What can be searched on a log.

        Args:
            given: Dotted keys of the settings that are not searched.
            base: The settings of a run with these given, resolved for the log.
            log: The log.

        Raises:
            SettingsError: All that could be searched is given.
        """
        fixed = {*given, *(("optimizer.lr",) if "lr" in base.optimizer.options else ())}
        fixed |= set() if log.numbers else {"model.number_buckets"}
        settings, found = _flat(base), list[Parameter]()
        for parameter in SEARCHED:
            key, only = parameter.key, parameter.only
            if key in fixed:
                continue
            if isinstance(parameter, Choice) and key in (
                "model.name",
                "optimizer.name",
            ):  # may contradict what is given
                parameter = replace(parameter, values=_suited(base, parameter, given, log))
            if only is not None:
                searched = next((one for one in found if one.key == only.key), None)
                possible = searched.values if isinstance(searched, Choice) else (settings[only.key],)
                cases = tuple(value for value in only.values if value in possible)
                if not cases:
                    continue
                parameter = replace(parameter, only=replace(only, values=cases) if len(cases) < len(possible) else None)
            if parameter.is_active(settings):
                parameter = parameter.initial_at(_default(base, key))
            found.append(parameter)
        if not found:
            raise SettingsError("nothing is left to search: every parameter is given; leave out the ones to search")
        return cls(base, tuple(found))

    @property
    def keys(self) -> tuple[str, ...]:
        """The settings that are searched."""
        return tuple(dict.fromkeys(parameter.key for parameter in self.parameters))

    def draw(self, trial: Trial) -> dict[str, Any]:
        """The settings of a trial: dotted key → value, for all that is searched."""
        settings, drawn = _flat(self.base), dict[str, Any]()
        for parameter in self.parameters:
            if parameter.is_active(settings):
                drawn[parameter.key] = settings[parameter.key] = parameter.draw(trial, settings)
        return {key: drawn.get(key) for key in self.keys}  # None if not active, such as the layers of an FM

    @property
    def initial(self) -> dict[str, Any]:
        """The parameters of a trial with the settings of `base`: parameter's name → value."""
        settings = _flat(self.base)
        return {one.name: _storable(one.default) for one in self.parameters if one.is_active(settings)}

    def config(self, settings: Mapping[str, Any]) -> Config:
        """`base` with the settings of a trial; SettingsError if they contradict it."""
        name = settings.get("optimizer.name", self.base.optimizer.name)
        base = self.base if name == self.base.optimizer.name else _without_eps(self.base)
        return base.replace(**settings) if settings else base

    def shown(self, settings: Mapping[str, Any]) -> dict[str, str]:
        """Key → value, for people, of all that is searched, in the config with the settings of a trial."""
        config = _flat(self.config(settings))
        return {key: shown_value(config[key]) for key in self.keys}

    def as_plain(self) -> list[dict[str, Any]]:
        """All parameters, as JSON has them."""
        return [{"kind": type(one).__name__.lower(), "name": one.name, **asdict(one)} for one in self.parameters]


def shown_value(value: Any) -> str:
    """A setting's value for people: `None` as "its default", sizes of layers with × between."""
    if value is None:
        return "its default"
    if isinstance(value, tuple | list):
        return "×".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _storable(value: Any) -> Any:
    """A value as Optuna's storage takes it."""
    return "-".join(map(str, value)) if isinstance(value, tuple) else value


def _flat(config: Config) -> dict[str, Any]:
    settings = {f"{section}.{name}": value for section, of in config.as_dict().items() for name, value in of.items()}
    return {**settings, "optimizer.lr": config.optimizer.arguments["lr"]}


def _default(base: Config, key: str) -> Any:
    """The value of a searched setting in `base`, as drawn."""
    if key == "model.dim":
        return base.model.vector_dim
    if key == "model.dropout" and base.model.dropout is None:
        return signature(NETWORKS[base.model.name]).parameters["dropout"].default
    if key == "optimizer.network_lr":
        lr = base.optimizer.arguments["lr"]
        return 1.0 if base.optimizer.network_lr is None or lr == 0 else base.optimizer.network_lr / lr
    return _flat(base)[key] if key == "optimizer.lr" else getattr(getattr(base, key.split(".")[0]), key.split(".")[1])


def _without_eps(base: Config) -> Config:
    """The settings for another optimizer, which has its own ε unless one was given."""
    return base if "optimizer.eps" in base.given_keys else base.decided({"optimizer.eps": None})


def _suited(base: Config, parameter: Choice, given: Collection[str], log: Log) -> tuple[Any, ...]:
    """The values that a model can be made with, if the given settings hold."""
    others = [one.key for one in SEARCHED if one.key.startswith("model.") and one.key not in given and one.only]
    open_ = dict.fromkeys(others) if parameter.key == "model.name" else {}
    base = _without_eps(base) if parameter.key == "optimizer.name" else base
    rate = {} if base.optimizer.lr is not None else {"optimizer.lr": base.optimizer.arguments["lr"]}

    def is_suited(value: Any) -> bool:
        try:
            base.replace(**{**open_, **rate, parameter.key: value}).build_for(log.schema)
        except SettingsError:
            return False
        return True

    return tuple(value for value in parameter.values if is_suited(value))
