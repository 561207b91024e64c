"""Every setting of a run, declared once: its type, range, default, meaning, and its option on the command line.

`--help`, files, `--set`, `Config`, the parameters of `Classifier` and the table in the documentation are made of it. A
`Decided` setting is None until it is given, or decided for a log by its rule in `sparsegroup.settings.auto`. Nothing
here imports torch.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, Self, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BeforeValidator, Field, PlainSerializer, field_validator, model_validator

from sparsegroup.addresses import public_address
from sparsegroup.errors import did_you_mean
from sparsegroup.names import NormName, PenaltyName, bytes_of, moment_of
from sparsegroup.settings.auto import PER_LOG, RULES
from sparsegroup.settings.names import (
    AfterFirstEpoch,
    AvazuHour,
    ColumnsName,
    CriteoNumbers,
    DatasetName,
    LabelsName,
    ModelChoice,
    ModelName,
    ObjectiveName,
    OnBadRow,
    OptimizerName,
    ScheduleName,
    SortFiles,
    StateDtype,
)
from sparsegroup.settings.yaml_settings import Share, StrictSettings, checked, share_of, with_values

_T = TypeVar("_T")
if TYPE_CHECKING:
    from sparsegroup.data.log import Log
    from sparsegroup.data.open import FormatOptions
    from sparsegroup.objectives import Objective
    from sparsegroup.penalties import Penalty

    Decided = Annotated[_T, "decided"]
else:
    Decided = Optional
    Objective = Penalty = Any
# A type checker sees the type that the setting has once it is decided.

# Types of values


_SECONDS = {"s": 1, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_LONGEST_AGE = (1 << 32) - 1


def age_of(given: object) -> dict[str, Any]:
    """The argument of `UnusedFor` that a number of steps, or a text such as "7d" of the log's own time, means."""
    match = re.fullmatch(rf"(\d+) ?({'|'.join(_SECONDS)})?", str(given).strip())
    if isinstance(given, bool) or not isinstance(given, int | str) or match is None:
        raise ValueError(
            f"wants a number of steps, such as 5000, or a time, such as 90s, 30min, 12h, 7d or 2w: got {given!r}"
        )
    age = int(match[1]) * _SECONDS.get(match[2], 1)
    if age > _LONGEST_AGE:
        raise ValueError(f"an age must be at most {_LONGEST_AGE:,} steps or seconds")
    return {"seconds" if match[2] else "steps": age}


def _age(given: object) -> object:
    return age_of(given).get("steps", given)


def _pairs(given: object) -> object:
    if given in ("auto", "none"):
        return None if given == "auto" else ()
    return tuple(one.strip() for one in given.split(",")) if isinstance(given, str) else given


def _device(given: object) -> object:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", str(given)):
        raise ValueError(f"must be cpu, cuda or cuda:N, got {given!r}")
    return given


def _size(given: object) -> object:
    bytes_of(given)
    return given if isinstance(given, int) else str(given)


def _weights(given: object) -> object:
    return tuple(given.split(",")) if isinstance(given, str) else given


def _moment(given: object) -> str:
    moment_of(given)
    return str(given).strip()


def _penalty(given: object) -> object:
    from sparsegroup.penalties import Penalty

    try:
        return Penalty.of(given)
    except TypeError as error:
        raise ValueError(str(error)) from error


def _objective(given: object) -> object:
    from sparsegroup.objectives import Objective

    try:
        if isinstance(given, str) and "," in given:
            given = [one.strip() for one in given.split(",")]
        return Objective.of({"name": "tasks", "objectives": given} if isinstance(given, list | tuple) else given)
    except TypeError as error:
        raise ValueError(str(error)) from error


OTHER_OPTIMIZERS: Mapping[str, str] = {
    "adamw": "take adam, with l2 (of the embeddings) in place of decoupled weight decay",
    "sparseadam": "take adam, which steps only the rows of a batch",
    "lazyadam": "take adam, which steps only the rows of a batch",
    "rmsprop": "take adam or adagrad, or see examples/rmsprop.py",
    "adadelta": "take adagrad",
    "nadam": "take adam",
    "radam": "take adam",
    "adamax": "take adam or amsgrad",
    "nesterov": "take momentum, with options={momentum: 0.9, nesterov: true}",
    "ftrl-proximal": "take ftrl",
    "lbfgs": "take adahessian for second derivatives",
}
"""Optimizers by their names elsewhere → what to take."""


def _known_optimizer(given: object) -> object:
    known = get_args(OptimizerName)
    if not isinstance(given, str) or given in known:
        return given
    hint = OTHER_OPTIMIZERS.get(given.lower()) or did_you_mean(given.lower(), known)
    raise ValueError(f"{given!r} is not one of {', '.join(map(repr, known))}" + (f"; {hint}" if hint else ""))


def _kind_of_column(given: object) -> str:
    from sparsegroup.data.kinds import ColumnKind

    return str(ColumnKind.of(str(given)))


KnownOptimizer = Annotated[OptimizerName, BeforeValidator(_known_optimizer)]
AgeSetting = Annotated[int | str, BeforeValidator(_age)]
"""A number of steps, or a text such as "7d"."""
SizeSetting = Annotated[int | str, BeforeValidator(_size)]
"""A number of bytes, or a text such as "200MB"."""
Moment = Annotated[str, BeforeValidator(_moment)]
"""A date or a time, as `moment_of` reads it."""
Rate = Annotated[float, BeforeValidator(share_of), Field(gt=0, le=1)]
"""A number in (0, 1], or a text such as "5%"."""
PenaltySetting = Annotated[Penalty, BeforeValidator(_penalty), PlainSerializer(lambda penalty: penalty.plain)]
"""A penalty; in files its name, or `{name: mcp, gamma: 2.5}`."""
ObjectiveSetting = Annotated[Objective, BeforeValidator(_objective), PlainSerializer(lambda objective: objective.plain)]
"""An objective; in files its name, or `{name: quantile, alpha: 0.9}`; or a list of them, of a task each."""
Unit = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Paths = str | Annotated[tuple[str, ...], Field(min_length=1)]
"""Of a log: one path, or several."""
Dim = Annotated[int, Field(ge=1, le=1 << 20)]

# How a setting is declared

PANELS = ("Log", "Model", "Optimizer", "Size", "Training", "Checkpoints", "Tracking")
LOG, MODEL, OPTIMIZER, SIZE, TRAINING, CHECKPOINTS, TRACKING = PANELS
"""Panels of `--help`, in its order."""


def setting(
    default: Any,  # None, for a `Decided` one, until it is decided
    panel: str | None = None,  # the panel of `--help` that has its option; None for a setting without an option
    *,
    words: str | None = None,  # its default in words
    short: str | None = None,  # its name as an option and as a parameter, if it is not the field's
    kind: Any = None,  # the option's type, if it is not the setting's
    metavar: str | None = None,  # of the option's value in `--help`
    **limits: Any,
) -> Any:
    """A field of a section, with its range and alias as pydantic's `Field` has them; the docstring below says it."""
    extra = {"panel": panel, "words": words, "short": short, "kind": kind, "metavar": metavar}
    return Field(default, json_schema_extra=extra, **limits)


FORMAT = (
    "dataset", "schema", "columns", "label", "labels", "exclude", "weight", "negatives_kept", "positive_weight",
    "test_fraction", "test_from", "criteo_numbers", "avazu_hour",
)  # fmt: skip
"""What tells the format of a raw log."""


class DataSettings(StrictSettings):
    """Where the samples come from."""

    log: Paths | None = setting(None)
    """A folder that `prepare` has written, or a raw log; several paths are one log. None: a synthetic log."""
    test: Paths | None = setting(None, LOG, kind=str)
    """A separate raw log to use as the test set."""
    sort_files: SortFiles = setting("name", LOG)
    """Order of a raw log's files: by name (day9 before day10), by the first time in each, or as given."""
    dataset: DatasetName = setting("auto", LOG, words="detected from its first line")
    """Format of a raw log."""
    schema_file: Path | dict[str, Any] | None = setting(None, LOG, alias="schema", kind=Path)
    """YAML file that says what a raw log's columns are."""
    columns: ColumnsName | dict[str, Annotated[str, BeforeValidator(_kind_of_column)]] | None = setting(
        None, LOG, words="inferred from its first rows", kind=ColumnsName
    )
    """How to read the columns of a raw log with a header: categorical makes every column a category; `sparsegroup
    columns` shows what is inferred otherwise."""
    label: str | tuple[str, ...] | None = setting(None, LOG, words="label, click, clicked or the like", kind=str)
    """Label column of a raw log with a header; or a comparison of one, such as 'rating>=4' or 'event==click': the label
    is 1 where it holds. Several, such as click,buy, are the labels of a task each."""
    labels: LabelsName | tuple[str, ...] | None = setting(None, LOG, words="what the objective takes", kind=LabelsName)
    """What labels are: 0 or 1, any numbers, or classes, which are found in the first rows."""
    exclude: tuple[str, ...] = setting((), LOG, kind=list[str])
    """Column to ignore in a raw log with a header (repeatable)."""
    weight: str | None = setting(None, LOG, words="weight, sample_weight or the like")
    """Column of how much each row counts, in a raw log with a header; none for no such column, if one is named like
    it."""
    negatives_kept: Rate | None = setting(None, LOG, words="1")
    """Share of the negatives that the log still has, such as .1, if the others were left out at random: predictions and
    metrics then hold for the whole log."""
    positive_weight: float | None = setting(None, LOG, words="1", gt=0, allow_inf_nan=False)
    """How much a positive counts against a negative, in the loss and the metrics; predictions are no longer
    probabilities."""
    test_fraction: Share | None = setting(None, LOG, words="0.1")
    """Share of the rows, from the end, for the test set; for a raw log with a header and no column `split`."""
    test_from: Moment | None = setting(None, LOG, metavar="DATE")
    """Date or time, such as 2026-05-12 or 2026-05-12T06:00 (UTC unless a zone is given), from which on all rows are the
    test set; for a log in the order of time."""
    criteo_numbers: CriteoNumbers = setting("log", LOG)
    """How to encode Criteo's integers: logarithms, or embedded buckets (39 fields)."""
    avazu_hour: AvazuHour = setting("hour", LOG)
    """How to encode Avazu's hour."""
    on_bad_row: OnBadRow = setting("error", LOG)
    """Stop at a bad row, or skip and count it."""
    max_bad: Share = setting(0.001, LOG, words="0.1%")
    """Share of bad rows above which to stop anyway."""
    rows: int = setting(200_000, LOG, ge=100)
    """Size of the synthetic log."""

    @property
    def reading_options(self) -> dict[str, Any]:
        """How to read the rows of a raw log of any format."""
        return {name: getattr(self, name) for name in ("sort_files", "on_bad_row", "max_bad")}

    @property
    def format_options(self) -> "FormatOptions":
        """What tells the format of a raw log."""
        options: Any = {info.alias or name: getattr(self, name) for name, info in type(self).model_fields.items()}
        return {name: options[name] for name in FORMAT}  # type: ignore[return-value]


class ModelSettings(StrictSettings):
    """The network over the embeddings, and its table."""

    name: Annotated[Decided[ModelName], BeforeValidator(lambda given: None if given == "auto" else given)] = setting(
        None, MODEL, short="model", kind=ModelChoice
    )
    """Network over the embeddings."""
    dim: Dim | None = setting(
        None,
        MODEL,
        words="lr 1; fm, deepfm, xdeepfm 9: a weight and 8 factors; mlp, mmoe, ple 16, opnn 10, dcn, dcnv2 8",
    )
    """Embedding dimension."""
    dims: dict[str, Dim] = setting({})
    """Field → another embedding dimension for it: there is a table for each dimension, and a learned matrix makes
    shorter vectors as long as the longest, see `FieldTables`."""
    pairs: Annotated[Decided[tuple[str, ...]], BeforeValidator(_pairs)] = setting(
        None, MODEL, kind=str, metavar="auto|none|A*B,…"
    )
    """Pairs of fields whose combinations are features too, such as user*item."""
    hidden: tuple[Dim, ...] | None = setting(None, words="the network's")
    """Sizes of the hidden layers."""
    dropout: Share | None = setting(None, words="the network's")
    """Dropout after each hidden layer."""
    options: Decided[dict[str, Any]] = setting(None, short="network_options")
    """Further arguments of the network, such as `rank` and `stacked` of dcnv2."""
    fallback: Decided[bool] = setting(None, SIZE)
    """Learn a vector per field for features without a live row."""
    admit_after: int = setting(1, SIZE, ge=1)
    """Number of batches in which a feature must appear before it gets a row of its own."""
    admit_sketch: SizeSetting | None = setting(None, SIZE, words="counted exactly")
    """Memory in which to count these batches, such as 64MB: some features then get their row early."""
    evict_unseen: AgeSetting = setting(0, SIZE)
    """Drop the rows of dead features that have not appeared for so many steps, or for so long by the log's own clock,
    such as 7d; 0 for never."""
    max_table_bytes: SizeSetting | None = setting(None, SIZE, words="no limit")
    """Hard limit on the table's memory, such as 2GB: dead features are dropped first, then the rarest."""
    number_buckets: int = setting(32, ge=0, le=4096)
    """Quantile buckets of a number, each with an embedding that joins those of the categorical fields; 0 for none."""
    standardize: bool = setting(True)
    """Standardize numbers, heavy-tailed ones after a signed logarithm; see `NumberEncoder`."""
    base_rate: bool = setting(True)
    """Start the logits at the base rate of the first 50,000 training rows."""
    attention: dict[str, str] = setting({})
    """Field of several values → field of one value, the candidate, whose attention to the values makes one vector of
    them; for other fields of several values it is their mean. See `ListPooling`. The field should share the candidate's
    vocabulary: `columns: {history: list | shares item}`."""
    list_sums: bool = setting(True)
    """Give the network the sum of a list's vectors besides their mean: it shows how many values there are."""


ADMISSION_SETTINGS = ("admit_after", "admit_sketch", "evict_unseen", "max_table_bytes")
"""Settings of a model that do not change what it computes from its rows."""
EMBEDDING_SETTINGS = ("l1", "l21", "l2", "norm", "penalty", "state_dtype")
"""Settings of an optimizer that its param group of the embeddings has, and no other."""
_NOT_OF_A_RUN: Mapping[str, str] = {
    "maximize": "a run lowers its loss",
    "weight_decay": "it cannot be applied to the rows of a table, of which a step changes a few; give l2",
}
"""Arguments of an optimizer that a run cannot have at other values than their defaults."""


class OptimizerSettings(StrictSettings):
    """The Group optimizer, and the size that it trains towards."""

    name: Decided[KnownOptimizer] = setting(
        None, OPTIMIZER, short="optimizer", metavar="[" + "|".join(get_args(OptimizerName)) + "]"
    )
    """Base optimizer; with all λ = 0 it is exactly that."""
    lr: Decided[float] | None = setting(None, OPTIMIZER)
    """Learning rate."""
    network_lr: Decided[float] | None = setting(None, OPTIMIZER)
    """Learning rate of everything but the embeddings."""
    eps: Decided[float] | None = setting(None, ge=0)
    """ε of the embeddings' optimizer: the larger, the less a row moves that has had little gradient so far."""
    schedule: ScheduleName = setting("constant", OPTIMIZER)
    """How the learning rates decay over all epochs."""
    warmup: Share = setting(0.0, OPTIMIZER)
    """Share of all samples over which the learning rates first rise, such as .05."""
    l1: float = setting(0.0, OPTIMIZER)
    """λ1 of the embeddings."""
    l21: Decided[float] = setting(None, OPTIMIZER)
    """A constant λ21 for the embeddings instead of a size: raise it to keep fewer features."""
    l2: float = setting(0.0, OPTIMIZER)
    """λ2 of the embeddings."""
    norm: NormName = setting("s", OPTIMIZER)
    """Norm in the group threshold."""
    penalty: Decided[PenaltySetting] = setting(None, OPTIMIZER, kind=PenaltyName)
    """Shape of the group threshold."""
    state_dtype: StateDtype = setting("float32", OPTIMIZER)
    """How the embeddings' rows keep the optimizer's state: bfloat16 takes half the memory."""
    target_rate: Decided[Rate] | None = setting(None, SIZE)
    """Share of the features to keep, such as .03: λ21 is adjusted during training."""
    target_bytes: SizeSetting | None = setting(None, SIZE)
    """Size of the embeddings to keep, such as 200MB: vectors, and 8 bytes for each key."""
    least_features: Decided[int] = setting(None, ge=0)
    """Features that `target_rate` keeps in any case; all, if there are fewer."""
    options: dict[str, Any] = setting({})
    """Further arguments of the optimizer, such as `betas`, that have no setting of their own."""

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.least_features and self.target_rate is None:
            raise ValueError("least_features need target_rate beside them: the share of the features to keep")
        targets = [name for name in ("target_rate", "target_bytes") if getattr(self, name) is not None]
        if len(targets) > 1:
            raise ValueError("target_rate and target_bytes exclude each other: give one")
        if targets and self.l21:
            raise ValueError(f"{targets[0]} sets l21 during training: give one of them, not both (l21 is {self.l21})")
        for name, value in self.options.items():
            if name in ("lr", *EMBEDDING_SETTINGS):
                raise ValueError(
                    f"options.{name}: this is a setting of its own: give optimizer.{name}, got {value!r} here"
                )
            if name in _NOT_OF_A_RUN and value and not isinstance(value, str):
                raise ValueError(f"options.{name}={value!r} is not for a run: {_NOT_OF_A_RUN[name]}")
        return self


_OBJECTIVES = "|".join(get_args(ObjectiveName))


class TrainingSettings(StrictSettings):
    """How it is trained."""

    objective: ObjectiveSetting | None = setting(None, TRAINING, words="logistic", kind=str, metavar=_OBJECTIVES)
    """What to learn: logistic, the probability that a label is 1; squared or huber, the mean of any number; quantile,
    its median; poisson, the mean of a count; gamma, of a number above 0; tweedie, of one that is often 0; binomial, the
    share of tries that succeed, such as clicks/impressions; pairwise or
    lambdarank, the order of the rows of a group; softmax, the probabilities of the classes that labels are; esmm, a
    label such as a purchase that only follows another; fake_negatives, the probability of a positive that comes later,
    as a second row. Of several labels, one for all or, with commas between, for
    each."""
    group: str | None = setting(None, TRAINING, metavar="FIELD")
    """Field whose values are the groups of pairwise and lambdarank, such as user or query: only rows of the same value
    are compared."""
    task_weights: Annotated[tuple[Unit, ...] | None, BeforeValidator(_weights)] = setting(
        None, TRAINING, words="1 each", kind=str, metavar="W,W,…"
    )
    """Weights of the losses of several labels' tasks, such as 1,0.5."""
    tasks: Decided[tuple[str, ...]] = setting(None)
    """Names of the tasks of several labels, in the order of the outputs."""
    classes: Decided[tuple[str, ...]] = setting(None)
    """The classes of the objective softmax, in the order of its outputs."""
    label_scale: Decided[Unit | tuple[Unit, ...]] = setting(None)
    """Unit of the network's outputs for the objectives squared, huber and quantile: these predict outputs times it."""
    batch_size: Decided[int] = setting(None, TRAINING, ge=1)
    """Samples per step."""
    epochs: Decided[int] = setting(None, TRAINING, ge=1)
    """Maximum number of passes over the training rows."""
    validation: Share = setting(0.0, TRAINING)
    """Share of the training rows to hold out from the end, such as .05; the epoch with the lowest log loss on them is
    kept."""
    patience: int = setting(0, TRAINING, ge=0)
    """Stop after this many epochs in a row without improvement on the held-out rows; 0 for never."""
    shuffle_buffer: Decided[int] = setting(None, TRAINING, ge=0)
    """Shuffle the training rows in blocks of this many; 0 keeps the order of the log."""
    after_first_epoch: Decided[AfterFirstEpoch] = setting(None, TRAINING, kind=AfterFirstEpoch)
    """What to do with the embeddings in later epochs: go on training them, reset them in each, or freeze them."""
    average: Decided[Share] = setting(None, TRAINING)
    """Share of an epoch's steps, from the end, whose network weights are averaged; 0 keeps the last ones."""
    recalibrate: Decided[bool] = setting(None, TRAINING)
    """In the end, shift all logits by what makes the predictions for the last 200,000 rows trained on add up to their
    positives."""
    selection: Literal["auto", "never"] = setting("auto", TRAINING)
    """Choose pairs, passes, l2 and size, or the vectors' length for a small target_bytes, where not given, by trials on
    held-out training rows; of more than 500,000 rows pairs alone, on the last 300,000."""
    seed: int = setting(0, TRAINING, ge=0)
    """Seed of the initialization, the dropout, the row order and the synthetic log."""
    device: Annotated[str, BeforeValidator(_device)] = setting("cpu", TRAINING, kind=str, metavar="cpu|cuda|cuda:N")
    """Where to train: a GPU holds the rows of the table and the network; keys stay on the host."""
    windows: int = setting(50, ge=1)
    """Points of the history along all epochs."""
    compile: Literal["auto", "always", "never"] = setting("auto")
    """torch.compile for a network without kernels of this library; auto: with a C++ compiler, for a long training."""
    matmul_precision: Literal["highest", "medium"] = setting("highest", TRAINING)
    """Precision of the network's matrix products in training, as in torch: medium takes bfloat16 on a CPU with AMX."""
    baseline: bool = setting(True, TRAINING, words="yes")
    """Train a logistic regression on the same rows for comparison."""


class CheckpointSettings(StrictSettings):
    """When checkpoints are written."""

    minutes: float = setting(10.0, CHECKPOINTS, short="checkpoint_minutes", ge=0, allow_inf_nan=False)
    """Minutes between checkpoints; 0 for none by time."""
    steps: int = setting(0, CHECKPOINTS, short="checkpoint_steps", ge=0)
    """Batches between checkpoints; 0 for none by count."""
    keep: int = setting(2, CHECKPOINTS, short="keep_checkpoints", ge=1)
    """Number of checkpoints to keep."""
    incremental: bool = setting(True, short="incremental_checkpoints")
    """Write only what has changed in the table since the last checkpoint."""


class TrackingSettings(StrictSettings):
    """Where a run can be followed, in addition to its folder."""

    tensorboard: str | None = setting(None, TRACKING, metavar="DIR|auto")
    """Write the run's history for TensorBoard: into a folder in DIR, or (auto) into the run's own."""
    mlflow: str | None = setting(None, TRACKING, metavar="URI|EXPERIMENT")
    """Log the run to MLflow: to a tracking URI, or to an experiment at $MLFLOW_TRACKING_URI."""


class Settings(StrictSettings):
    """All settings of a run; checked when made.

    Settings that are not given are decided for the log of a run, by `resolved_for`. Given and decided settings are kept
    apart: `replace`, copies and files of settings that are not resolved leave open what is not given.

    Attributes:
        given: Keys of the settings that were given; None until all others are decided.
    """

    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    training: TrainingSettings = TrainingSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    tracking: TrackingSettings = TrackingSettings()
    given: tuple[str, ...] | None = None

    @field_validator("given")
    @classmethod
    def _are_settings(cls, keys: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if unknown := [key for key in keys or () if key not in DECLARED]:
            raise ValueError(f"there is no setting {unknown[0]!r}")
        return keys

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.training.patience and not self.training.validation:
            raise ValueError("training.patience needs rows that are held out: give training.validation, such as 0.05")
        if self.given is not None and self.model.name is None:
            raise ValueError(
                "given is for a run's settings, all of which are decided; model.name is not: leave given out"
            )
        return self

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """Settings by their short names: `model` and `optimizer` are those of their names, the others are as in their
        sections.

        Raises:
            SettingsError: An unknown one, or a value out of range.
        """
        return cls().replace(**settings)

    def replace(self, **settings: Any) -> Self:
        """These settings with other values, by their short names.

        `Config.of(a=1).replace(b=2)` is `Config.of(a=1, b=2)`. Resolved settings keep their decided values.

        Raises:
            SettingsError: As `of`.
        """
        return self.with_keys({SHORT.get(name, name): value for name, value in settings.items()}, "config")

    @property
    def format_options(self) -> "FormatOptions":
        """What tells the format of a raw log, labels as the objective takes them."""
        objective = self.training.objective
        of_objective = None if objective is None or objective.is_binary else self.training.classes or objective.labels
        return {**self.data.format_options, "labels": self.data.labels or of_objective}

    def with_keys(self, values: Mapping[str, Any], source: str) -> Self:
        """These settings with other values at dotted keys; SettingsError, which names their source, as `of`."""
        if self.given is None:
            return checked(type(self), with_values(self.given_sections(), values), source)
        given = tuple(dict.fromkeys((*self.given, *values)))
        return checked(type(self), with_values({**self._content(), "given": given}, values), source)

    @property
    def given_keys(self) -> tuple[str, ...]:
        """Keys of the settings that were given."""
        if self.given is not None:
            return self.given
        sections = ((key, one.field, getattr(self, key.split(".")[0])) for key, one in DECLARED.items())
        return tuple(
            key
            for key, field, section in sections
            if field in section.model_fields_set and getattr(section, field) is not None
        )

    def given_sections(self) -> dict[str, dict[str, Any]]:
        """Section → setting → value, of the given settings."""
        settings, found = self._content(), dict[str, dict[str, Any]]()
        for key in self.given_keys:
            section, name = key.split(".")
            found.setdefault(section, {})[name] = settings[section][name]
        return found

    def resolved_for(self, log: "Log") -> Self:
        """These settings with those that are not given decided for `log`, by the rules of `settings.auto`.

        Settings that are resolved already are returned unchanged.

        Raises:
            SettingsError: The decided values contradict the given ones.
        """
        return self if self.given is not None else self._decided(log, RULES, self.given_sections())

    def resolved_again_for(self, log: "Log") -> Self:
        """These resolved settings for another log that the same model is trained on next.

        Settings in `PER_LOG` are decided again unless they were given; all others stay.
        """
        given = self.given_sections()
        given["model"] = {**given.get("model", {}), "pairs": self.model.pairs}  # also pairs that trials chose
        return self._decided(log, PER_LOG, given)

    def _decided(self, log: "Log", keys: Iterable[str], given: Mapping[str, Mapping[str, Any]]) -> Self:
        given_keys = self.given_keys
        return self.decided({key: RULES[key].decide(log, given) for key in keys if key not in given_keys})

    def decided(self, values: Mapping[str, Any]) -> Self:
        """These settings with other values at dotted keys, which do not count as given; SettingsError as `replace`."""
        return checked(type(self), with_values({**self._content(), "given": self.given_keys}, values), "config")

    def for_log(self, log: "Log") -> Self:
        """Return these settings with the columns' kinds of `log`, so that other logs are read in the same way.

        The settings then hold the content of a schema file instead of its path: later changes of the file have no
        effect.
        """
        if log.described is not None:
            update = {"schema_file": dict(log.described), "columns": None}
        elif log.columns and self.data.schema_file is None:
            update = {"columns": dict(log.columns)}
        else:
            return self
        return self.model_copy(update={"data": self.data.model_copy(update=update)})

    def _content(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True, exclude={"given"})

    def as_dict(self) -> dict[str, Any]:
        """Return section → setting → value of all settings, for a record: addresses have no passwords or keys."""
        return _without_secrets(self._content())

    def as_yaml(self) -> str:
        """Return the text of a settings file: all settings if they are resolved, otherwise the given ones.

        Addresses have no passwords or keys.
        """
        content = _without_secrets(self.given_sections())
        if self.given is not None:
            content = {**self.as_dict(), "given": list(self.given)}
            if self.data.log is not None:
                del content["data"]["rows"]  # the size of a synthetic log
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


_ADDRESSES = (("data", "log"), ("data", "test"), ("tracking", "mlflow"))
"""Settings whose values may be addresses."""


def _without_secrets(content: dict[str, dict[str, Any]]) -> dict[str, Any]:
    for section, name in _ADDRESSES:
        given = content.get(section, {}).get(name)
        if isinstance(given, str):
            content[section][name] = public_address(given)
        elif given is not None:
            content[section][name] = [public_address(one) for one in given]
    return content


@dataclass(frozen=True)
class Declared:
    """A setting as `--help`, Python and the documentation show it; see `setting`."""

    key: str  # section and name in files
    field: str  # its name in the section's class
    short: str  # its name as an option and as a parameter
    kind: Any  # the type of its option
    help: str
    default: str  # what its value is if it is not given, in words; "" if there is nothing to say
    panel: str | None
    metavar: str | None


def _declared() -> Iterator[Declared]:
    for section, of in Settings.model_fields.items():
        for field, info in getattr(of.annotation, "model_fields", {}).items():
            extra, name = dict(info.json_schema_extra), info.alias or field
            key, short, words = f"{section}.{name}", extra.pop("short") or name, extra.pop("words")
            if key in RULES:
                words = RULES[key].words
            elif words is None and info.default not in (None, (), {}):
                words = f"{info.default:g}" if isinstance(info.default, float) else str(info.default)
            kind = extra.pop("kind") or _option_type(info.annotation, info.metadata)
            yield Declared(key, field, short, kind, " ".join(info.description.split()), words or "", **extra)


def _option_type(annotation: Any, metadata: Sequence[Any] = ()) -> Any:
    """The type of what stands on the command line: text if a validator reads it, otherwise the setting's own."""
    inner = [one for one in get_args(annotation) if one is not type(None)]
    if any(isinstance(one, BeforeValidator) for one in metadata):
        return str
    if get_origin(annotation) is Annotated:
        return _option_type(inner[0], inner[1:])
    if get_origin(annotation) in (Union, UnionType) and len(inner) == 1:
        return _option_type(inner[0])
    return annotation


DECLARED: Mapping[str, Declared] = {one.key: one for one in _declared()}
"""All settings, by their keys."""
SHORT: Mapping[str, str] = {one.short: one.key for one in DECLARED.values()}
"""Short name of each setting → its key."""
