"""What a training run is made of, as people write it down: data, model, optimizer and training."""

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
import torch.distributed as dist
import yaml
from pydantic import AfterValidator, Field, ModelWrapValidatorHandler, field_validator, model_validator

from sparsegroup.data.kinds import ColumnKind
from sparsegroup.data.log import Log
from sparsegroup.data.open import FormatOptions
from sparsegroup.data.schema import LogSchema
from sparsegroup.optim import GroupOptimizer
from sparsegroup.settings.names import AfterFirstEpoch, AvazuHour, CriteoNumbers, DatasetName, OnBadRow, SortFiles
from sparsegroup.settings.yaml_settings import (
    SettingsError,
    Share,
    StrictSettings,
    checked,
    keys_of,
    read_yaml,
    with_values,
)
from sparsegroup.training.age import age_of
from sparsegroup.training.click_model import ClickModel, new_embedding
from sparsegroup.training.defaults import DECIDABLE, PER_LOG, RULES, SIZE, SIZES, LogFacts
from sparsegroup.training.model_config import ModelConfig
from sparsegroup.training.network_size import check_network_memory
from sparsegroup.training.network_start import start_network
from sparsegroup.training.network_step import WORTH_COMPILING
from sparsegroup.training.optimizer_config import OptimizerConfig, targets_in
from sparsegroup.training.plan import EpochPlan

Paths = str | Annotated[tuple[str, ...], Field(min_length=1)]
"""Of a log: one path, or several."""


def _kind(given: str) -> str:
    return str(ColumnKind.of(given))


class DataConfig(StrictSettings):
    """Where the samples come from.

    Attributes:
        log: A folder that `prepare` has written, or a raw log, see `open_log`; several paths are one log; None is a
            synthetic log.
        rows: Size of the synthetic log.
        test: A raw log of its own for the test set.
        sort_files: Order of a raw log's files, see `open_log`.
        dataset: Format of a raw log.
        schema_file: YAML file that says what its columns are. In files it is called `schema`.
        columns: What the columns of a raw log with a header are: column → its kind, see `ColumnKind`, or "categorical"
            for all of them. None tells it from the log; a run keeps what was told. Older runs have None, and all their
            columns were categories.
        label, exclude, weight, test_fraction: For a raw log with a header: its label column, columns that are no
            features, the column of the rows' weights ("none" for no such column), and the share of the rows, the last
            ones, for the test set.
        criteo_numbers, avazu_hour: See `sparsegroup.data.schema`.
        on_bad_row, max_bad: What to do with bad rows of a raw log, and the share of them that is too much.
    """

    log: Paths | None = None
    rows: int = Field(default=200_000, ge=100)
    test: Paths | None = None
    sort_files: SortFiles = "name"
    dataset: DatasetName = "auto"
    schema_file: str | None = Field(default=None, alias="schema")
    columns: Literal["categorical"] | dict[str, Annotated[str, AfterValidator(_kind)]] | None = None
    label: str | None = None
    exclude: tuple[str, ...] = ()
    weight: str | None = None
    test_fraction: Share | None = None
    criteo_numbers: CriteoNumbers = "log"
    avazu_hour: AvazuHour = "hour"
    on_bad_row: OnBadRow = "error"
    max_bad: Share = 0.001

    @property
    def format_options(self) -> FormatOptions:
        """What tells the format of a raw log."""
        return {
            "dataset": self.dataset,
            "schema": None if self.schema_file is None else Path(self.schema_file),
            "columns": self.columns,
            "label": self.label,
            "exclude": self.exclude,
            "weight": self.weight,
            "test_fraction": self.test_fraction,
            "criteo_numbers": self.criteo_numbers,
            "avazu_hour": self.avazu_hour,
        }


class TrainingConfig(StrictSettings):
    """How it is trained.

    Attributes:
        batch_size: Samples per step, of all ranks together.
        epochs: How often the training rows are trained on, at most.
        validation: Share of the training rows, the last ones, that are held out: after each epoch the model is measured
            on them, and the state after the best one is that of the run.
        patience: Stop when so many epochs in a row were no better on them; 0: never.
        shuffle_buffer: Rows of a block in which rows are shuffled, see `ShuffledLog`; 0 for the log's order.
        after_first_epoch: What becomes of the embeddings in later epochs, see `Trainer.fit`.
        seed: The seed of initialization, dropout and order.
        windows: Points of the history along all epochs.
        compile: Whether to compile the network; "auto" where there is a C++ compiler and the training is long enough.
        baseline: Whether a logistic regression learns from the same batches, to compare with; see `LogisticBaseline`.
    """

    batch_size: int = Field(default=512, ge=1)
    epochs: int = Field(default=1, ge=1)
    validation: Share = 0.0
    patience: int = Field(default=0, ge=0)
    shuffle_buffer: int = Field(default=0, ge=0)
    after_first_epoch: AfterFirstEpoch = "train"
    seed: int = Field(default=0, ge=0, lt=1 << 64)
    windows: int = Field(default=50, ge=1)
    compile: Literal["auto", "always", "never"] = "auto"
    baseline: bool = True

    def compiles(self, samples: int) -> bool:
        """Whether to compile for a training on so many samples."""
        if self.compile == "auto":
            return samples >= WORTH_COMPILING * self.batch_size
        return self.compile == "always"

    def plan(self, train_rows: int) -> EpochPlan:
        """The rows of each epoch, of so many training rows.

        Raises:
            SettingsError: None are left beside those for validation.
        """
        held_out = max(1, round(self.validation * train_rows)) if self.validation else 0
        if held_out >= train_rows:
            raise SettingsError(f"training.validation={self.validation:g} leaves none of {train_rows} rows to train on")
        return EpochPlan(
            rows=train_rows - held_out,
            batch_size=self.batch_size,
            epochs=self.epochs,
            validation_rows=held_out,
            patience=self.patience,
            after_first_epoch=self.after_first_epoch,
            shuffle_buffer=self.shuffle_buffer,
            seed=self.seed,
        )


class CheckpointConfig(StrictSettings):
    """When checkpoints are written.

    Attributes:
        minutes: Between two checkpoints; 0 for none by time.
        steps: Batches between two; 0 for none by number.
        keep: How many are kept, the last ones.
        incremental: Whether to write only what has changed in the table since the last one.
    """

    minutes: float = Field(default=10.0, ge=0, allow_inf_nan=False)
    steps: int = Field(default=0, ge=0)
    keep: int = Field(default=2, ge=1)
    incremental: bool = True


class TrackingConfig(StrictSettings):
    """Where a run can be followed, beside its folder.

    Attributes:
        tensorboard: "auto" for event files in the run's folder, or a folder to have one for this run in.
        mlflow: An experiment's name, or a tracking URI.
    """

    tensorboard: str | None = None
    mlflow: str | None = None


class Config(StrictSettings):
    """All settings of a run; checked when made.

    Settings that are not given are decided for the log of a run, by `resolved_for`. Given and decided settings are kept
    apart: `replace`, copies and files of a config that is not resolved leave open what is not given.

    Attributes:
        decided: Keys of the settings that `resolved_for` has decided; empty for a config that is not resolved.

    Examples:
        >>> from sparsegroup.training import Config
        >>> config = Config.of(model="dcn", lr=1e-2, l21=1e-3)
        >>> config.optimizer.l21, config.replace(l21=0.0).optimizer.l21
        (0.001, 0.0)
    """

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    training: TrainingConfig = TrainingConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    tracking: TrackingConfig = TrackingConfig()
    decided: tuple[str, ...] = ()

    @field_validator("decided")
    @classmethod
    def _are_settings(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [key for key in keys if key not in DECIDABLE]:
            raise ValueError(f"there is no setting {unknown[0]!r} that a log decides")
        return keys

    @model_validator(mode="wrap")
    @classmethod
    def _for_a_size(cls, content: Any, check: ModelWrapValidatorHandler[Self]) -> Self:
        """With a target size, fallback vectors are the default."""
        optimizer, model = (
            content.get(key, {}) if isinstance(content, Mapping) else {} for key in ("optimizer", "model")
        )
        if not isinstance(optimizer, Mapping) or not isinstance(model, Mapping) or not targets_in(optimizer):
            return check(content)
        config = check({**content, "model": {"fallback": True, **model}})
        config.model.model_fields_set.intersection_update(model)
        return config

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.training.patience and not self.training.validation and self._is_given("training.validation"):
            raise ValueError("training.patience needs rows that are held out: give training.validation, such as 0.05")
        return self

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """A config by the settings' short names: `model` and `optimizer` are those of their names, the others are as
        in their sections.

        Raises:
            SettingsError: An unknown one, or a value out of range.
        """
        return checked(cls, with_values({}, _with_sections(settings)), "config")

    def replace(self, **settings: Any) -> Self:
        """This config with other values, by their short names.

        `Config.of(a=1).replace(b=2)` is `Config.of(a=1, b=2)`. A resolved config keeps its decided values.

        Raises:
            SettingsError: As `of`.
        """
        values = _with_sections(settings)
        content, sections = self.given(), self.as_dict()
        for key in self.decided:
            section, name = key.split(".")
            content.setdefault(section, {})[name] = sections[section][name]
        content["decided"] = _without(self.decided, values)
        return checked(type(self), with_values(content, values), "config")

    def given(self) -> dict[str, Any]:
        """Sections of the settings that were given, without the decided ones and the defaults."""
        content: dict[str, Any] = self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"decided"})
        for key in self.decided:
            section, name = key.split(".")
            content.get(section, {}).pop(name, None)
        return {section: settings for section, settings in content.items() if settings}

    def _is_given(self, key: str) -> bool:
        section, name = key.split(".")
        return section in self.model_fields_set and name in getattr(self, section).model_fields_set

    def resolved_for(self, log: Log) -> Self:
        """This config with the settings that are not given decided by the rules of `defaults` for `log`.

        A config that is resolved already is returned unchanged.

        Raises:
            SettingsError: The decided values contradict the given ones.
        """
        if self.decided:
            return self
        facts, settings, content = LogFacts.of(log), self.as_dict(), self.given()
        decided = [key for key in DECIDABLE if not self._is_given(key)]
        values = {key: rule(facts, settings) for key, rule in RULES.items() if key in decided}
        if not self.optimizer.model_fields_set & SIZES:
            content["optimizer"] = {**SIZE, **content.get("optimizer", {})}
        return checked(type(self), with_values(content, {**values, "decided": decided}), "config")

    def resolved_again_for(self, log: Log) -> Self:
        """This resolved config for another log that the same model is trained on next.

        Settings in `defaults.PER_LOG` are decided again unless they were given; all others stay.
        """
        facts, settings = LogFacts.of(log), self.as_dict()
        values = {key: RULES[key](facts, settings) for key in PER_LOG if key in self.decided}
        return checked(type(self), with_values({**settings, "decided": self.decided}, values), "config")

    def for_log(self, log: Log) -> Self:
        """This config with what was told of the columns of `log`, so that others are read as that one was."""
        if not log.columns or self.data.schema_file is not None:
            return self
        data = self.data.model_copy(update={"columns": dict(log.columns)})
        return self.model_copy(update={"data": data})

    def as_dict(self) -> dict[str, Any]:
        """Sections of all settings, given, decided and default ones."""
        return self.model_dump(mode="json", by_alias=True, exclude={"decided"})

    def as_yaml(self) -> str:
        """The text of a settings file: all settings of a resolved config, otherwise those that were given."""
        content = self.given()
        if self.decided:
            content = {**self.as_dict(), "decided": list(self.decided)}
            if self.data.log is not None:
                del content["data"]["rows"]  # the size of a synthetic log
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)

    def build(self, log: Log, process_group: dist.ProcessGroup | None = None) -> tuple[ClickModel, GroupOptimizer]:
        """A freshly initialized model for `log`, and its optimizer. Seeds torch's generator.

        What is to be known beforehand is taken from the log's first rows, see `start_network`.

        Args:
            log: The log.
            process_group: The ranks that its tables lie on; all have to call it. None for one by itself.

        Raises:
            SettingsError: A table of that model cannot be so small, or as `check_log`.
        """
        self.check_log(log)
        model, optimizer = self.build_for(log.schema, process_group)
        start_network(model.network, log, base_rate=self.model.base_rate)
        return model, optimizer

    def check_log(self, log: Log) -> None:
        """Raise SettingsError where the settings ask for what a log has not: a field of that name, or times."""
        self.model.check_fields(log)
        if age_of(self.model.evict_unseen).seconds is not None and not log.timed:
            raise SettingsError(
                f"model.evict_unseen: {self.model.evict_unseen} goes by the log's own clock, but {log.name} has no "
                "column of times in order (`sparsegroup columns` shows its columns; a schema can say which it is); "
                "give a number of steps"
            )

    def build_for(
        self, columns: LogSchema, process_group: dist.ProcessGroup | None = None
    ) -> tuple[ClickModel, GroupOptimizer]:
        """A freshly initialized model for the columns of a log, and its optimizer; see `build`. Seeds torch's numbers.

        Raises:
            SettingsError: A table or network cannot be as the settings say, or the log has not the fields they name.
        """
        torch.manual_seed(self.training.seed)
        options = self.model
        try:
            sizes = options.sizes(columns)
            state = len(self.optimizer.rule.state)
            check_network_memory(lambda: options.network(columns), state, self.training.batch_size)
            network = options.network(columns)
            embedding = new_embedding(
                options.network_dim,
                self.training.seed,
                sizes=sizes,
                fallback=options.fallback,
                admit_after=options.admit_after,
                admit_sketch=options.admit_sketch,
                evict_unseen=options.evict_unseen,
                max_bytes=options.max_table_bytes,
                process_group=process_group,
            )
            model = ClickModel(embedding, network)
        except (ValueError, RuntimeError, MemoryError) as error:  # numbers depend on each other, or are out of reach
            said = str(error).replace("max_bytes", "max_table_bytes")  # as a setting and an option are called
            raise SettingsError(f"model.{said}" if said.startswith("max_table_bytes") else f"model: {said}") from error
        return model, self.optimizer.make(model)


_NAMED = {
    "model.name": "model",
    "model.options": "network_options",
    "optimizer.name": "optimizer",
    "data.schema": "schema",
    "checkpoint.minutes": "checkpoint_minutes",
    "checkpoint.steps": "checkpoint_steps",
    "checkpoint.keep": "keep_checkpoints",
    "checkpoint.incremental": "incremental_checkpoints",
}
SHORT = {_NAMED.get(key, key.split(".")[-1]): key for key in keys_of(Config) if key != "decided"}
"""Short name of each setting → its key."""


def _without(keys: Sequence[str], given: Container[str]) -> list[str]:
    return [key for key in keys if key not in given]


def _with_sections(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {SHORT.get(name, name): value for name, value in settings.items()}


def read_config(path: Path | None, values: Mapping[str, Any], source: str = "values") -> Config:
    """The config of a file, with other values at dotted keys.

    Args:
        path: YAML; None for the defaults.
        values: Dotted key → value.
        source: Where the values come from, for messages.

    Raises:
        SettingsError: An unknown key, with the one that may be meant, or a value out of range; with file and key.
        OSError: The file cannot be read.
    """
    content: dict[str, Any] = {}
    if path is not None:
        content = read_yaml(path)
        checked(Config, content, str(path))  # before the other values, so that an error names the file
        if content.get("decided"):
            content["decided"] = _without(content["decided"], values)
    return checked(Config, with_values(content, values), source)
