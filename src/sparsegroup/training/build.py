"""What settings make: a model, started on a log; its optimizer, schedule and target; and the plan of the rows."""

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Self, get_args

import torch
import torch.distributed as dist
from pydantic import TypeAdapter, ValidationError, model_validator
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.overrides import TorchFunctionMode

from sparsegroup.data.keys import FIELD_BITS, MOST_FIELDS
from sparsegroup.data.log import Log
from sparsegroup.data.schema import LogSchema
from sparsegroup.errors import did_you_mean
from sparsegroup.groups import is_rows
from sparsegroup.models import ListPooling, NumberEncoder, PairKeys, WithHeads, WithNumbers, WithPairs, WithPooling
from sparsegroup.names import bytes_of
from sparsegroup.objectives import LOGISTIC, Objective
from sparsegroup.optim import (
    GroupAdagrad,
    GroupAdaHessian,
    GroupAdam,
    GroupAMSGrad,
    GroupFTRL,
    GroupMomentum,
    GroupOptimizer,
    GroupRowWiseAdagrad,
    GroupSGD,
    SizeTarget,
    TargetBytes,
    TargetRate,
    param_groups,
)
from sparsegroup.rules import REQUIRED, Rule
from sparsegroup.settings.auto import SAMPLE_ROWS
from sparsegroup.settings.declared import (
    EMBEDDING_SETTINGS,
    ModelSettings,
    OptimizerSettings,
    Settings,
    TrainingSettings,
    age_of,
)
from sparsegroup.settings.names import ObjectiveName, OptimizerName, ScheduleName
from sparsegroup.settings.yaml_settings import SettingsError, checked, read_yaml
from sparsegroup.table import FieldTables, HashEmbedding, MinCount, UnusedFor
from sparsegroup.training.averaging import AveragedNetwork
from sparsegroup.training.model import NETWORKS, ClickModel, logit_bias_of
from sparsegroup.training.network_step import WORTH_COMPILING
from sparsegroup.training.plan import EpochPlan
from sparsegroup.training.trainer import Callback, Trainer

OPTIMIZERS: Mapping[OptimizerName, type[GroupOptimizer]] = {
    "sgd": GroupSGD,
    "momentum": GroupMomentum,
    "adagrad": GroupAdagrad,
    "rowwise_adagrad": GroupRowWiseAdagrad,
    "adam": GroupAdam,
    "amsgrad": GroupAMSGrad,
    "adahessian": GroupAdaHessian,
    "ftrl": GroupFTRL,
}
NO_TARGET: Mapping[str, Any] = {"target_rate": None, "target_bytes": None, "least_features": 0}
"""The settings of a constant λ21 that have to do with size."""


class ModelConfig(ModelSettings):
    """The network over the embeddings, made for the columns of a log."""

    @model_validator(mode="after")
    def _suits_the_network(self) -> Self:
        if self.name is None:
            return self
        network = NETWORKS[self.name]
        arguments = {name: one for name, one in inspect.signature(network).parameters.items() if name not in _BUILT_IN}
        if unknown := [name for name in self._layers if name not in arguments]:
            raise ValueError(f"{network.__name__} has no hidden layers: leave {unknown[0]} out")
        known = [name for name in arguments if name not in ("hidden", "dropout")]
        for name, value in (self.options or {}).items():
            if name not in known:
                raise ValueError(f"{network.__name__} has no option {name!r}; it has {', '.join(known) or 'none'}")
            try:
                TypeAdapter(arguments[name].annotation).validate_python(value)
            except ValidationError as error:
                message = error.errors()[0]["msg"]
                raise ValueError(f"options.{name}: {message[0].lower()}{message[1:]}, got {value!r}") from error
        if self.dims and self.name == "lr":
            raise ValueError("dims: lr has one weight per feature; leave them out, or take another model")
        if self.max_table_bytes is not None and any(size != self.vector_dim for size in self.dims.values()):
            raise ValueError(
                "max_table_bytes is the limit of one table, and with dims there are several: leave one of them out"
            )
        return self

    @property
    def _layers(self) -> dict[str, Any]:
        given = {"hidden": self.hidden, "dropout": self.dropout}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def vector_dim(self) -> int:
        """Length of an embedding: `dim`, or the network's default."""
        return NETWORKS[self.name].default_dim if self.dim is None else self.dim

    def heads(self, outputs: int) -> int:
        """Networks side by side for this many outputs, each over a part of every vector: 1 if one network has all."""
        return 1 if "outputs" in inspect.signature(NETWORKS[self.name]).parameters else outputs

    @property
    def network_dim(self) -> int:
        """Length of the vectors that a network takes: the largest of `vector_dim` and `dims`."""
        return max([self.vector_dim, *self.dims.values()])

    def features(self, columns: LogSchema) -> tuple[str, ...]:
        """The fields of the table, in the order of their numbers: first a log's own, then the pairs."""
        return (*columns.fields, *(self.pairs or ()))

    def vocabularies(self, columns: LogSchema) -> dict[int, str]:
        """Return field number in the keys → its field, without fields that share another field's vocabulary."""
        return {number: name for number, name in enumerate(self.features(columns)) if name not in columns.shares}

    def sizes(self, columns: LogSchema) -> dict[int, int]:
        """Return field number in the keys → length of its embeddings.

        ValueError: `dims` or `pairs` name fields that are not there, or `dims` one that shares a vocabulary.
        """
        self.places(columns)
        features = self.features(columns)
        for name in self.dims:
            if name not in features:
                there = f"{did_you_mean(name, features)} the fields are {', '.join(features) or 'none'}"
                raise ValueError(f"dims: there is no field {name!r}; {there.lstrip()}")
            if owner := columns.shares.get(name):
                raise ValueError(
                    f"dims: {name!r} shares the vocabulary of {owner!r}, and so its vectors: name {owner!r}"
                )
        return {number: self.dims.get(name, self.vector_dim) for number, name in self.vocabularies(columns).items()}

    def places(self, columns: LogSchema) -> list[tuple[int, int]]:
        """The places of each pair's fields among the fields of one value; ValueError if there is no such field."""
        single, found = columns.single, list[tuple[int, int]]()
        for pair in self.pairs or ():
            names = next((one for one in _split(pair) if set(one) <= set(single)), None)
            if names is None:
                raise ValueError(f"pairs: {pair!r} is not of two fields of one value; those are {', '.join(single)}")
            found.append((single.index(names[0]), single.index(names[1])))
        if len(columns.fields) + len(found) > MOST_FIELDS:
            raise ValueError(f"pairs: a table has at most {MOST_FIELDS} fields, and these are more")
        return found

    def named_fields(self, columns: LogSchema) -> set[str]:
        """Return the fields that `pairs`, `dims` and `attention` name. ValueError: a field of a pair is missing."""
        of_pairs = {columns.single[place] for pair in self.places(columns) for place in pair}
        return of_pairs | {*self.dims, *self.attention, *self.attention.values()}

    def embedding(
        self,
        columns: LogSchema,
        seed: int,
        process_group: dist.ProcessGroup | None = None,
        device: torch.device | str = "cpu",
        outputs: int = 1,
    ) -> HashEmbedding | FieldTables:
        """An empty table for the columns of a log, or with `dims` one for each size of vectors; its rows start small.

        A vector is `heads` times as long as the settings say.

        ValueError: a table that cannot be so small, fields that the log does not have, or a device without a GPU.
        """
        heads, age = self.heads(outputs), age_of(self.evict_unseen)
        dim, sizes = heads * self.network_dim, {name: heads * size for name, size in self.sizes(columns).items()}
        sketch_bytes = None if self.admit_sketch is None else bytes_of(self.admit_sketch)
        options: dict[str, Any] = {
            "seed": seed,
            "field_bits": FIELD_BITS,
            "fallback": self.fallback,
            "admission": None if self.admit_after == 1 else MinCount(self.admit_after, sketch_bytes),
            "eviction": UnusedFor(**age) if any(age.values()) else None,
            "max_bytes": self.max_table_bytes,
            "process_group": process_group,
            "device": device,
        }
        if set(sizes.values()) <= {dim}:
            return HashEmbedding(dim, **options)
        return FieldTables(dim, sizes, **options)

    def network(self, columns: LogSchema, outputs: int = 1) -> nn.Module:
        """A freshly initialized network over the columns of a log. Draws from torch's generator.

        ValueError: a size that the network cannot have, or fields that the log does not have.
        """
        fields, numbers = len(self.features(columns)), len(columns.numbers)
        encoded = numbers > 0 and (self.standardize or self.number_buckets > 0)
        more = numbers if encoded and self.number_buckets else 0
        more += len(columns.lists) if self.list_sums else 0
        heads, of, sizes = self.heads(outputs), NETWORKS[self.name], (fields + more, self.network_dim, numbers)
        options = {**self._layers, **(self.options or {}), **({"outputs": outputs} if outputs > heads else {})}
        networks = [of(*sizes, **options) for _ in range(heads)]
        network: nn.Module = networks[0] if heads == 1 else WithHeads(networks)
        dim = heads * self.network_dim
        if encoded:
            encoder = NumberEncoder(numbers, dim, self.number_buckets, self.standardize)
            network = WithNumbers(encoder, network)
        if self.attention or (self.list_sums and columns.lists):
            pooling = ListPooling(dim, self.queries(columns), sums=self.list_sums)
            network = WithPooling(pooling, network)
        if self.pairs:
            network = WithPairs(PairKeys(self.places(columns), len(columns.fields), FIELD_BITS), network)
        return network

    def queries(self, columns: LogSchema) -> dict[int, int]:
        """`attention` by the places of its fields, of several values and of one; ValueError without such."""
        single = columns.single
        for names, known, what in (
            (self.attention.keys(), columns.lists, "several values"),
            (self.attention.values(), single, "one value"),
        ):
            for name in names:
                if name not in known:
                    there = ", ".join(known) or "none"
                    raise ValueError(f"attention: {name!r} is no field of {what}; those are {there}")
        return {columns.lists.index(name): single.index(query) for name, query in self.attention.items()}


_BUILT_IN = ("fields", "dim", "numbers", "outputs")


def _split(pair: str) -> Iterator[tuple[str, str]]:
    """The two names of a pair, at each star that may be between them."""
    for place, letter in enumerate(pair):
        if letter == "*":
            yield pair[:place].strip(), pair[place + 1 :].strip()


class OptimizerConfig(OptimizerSettings):
    """The Group optimizer; with all λ = 0 it is the base optimizer."""

    @model_validator(mode="after")
    def _suits_the_rule(self) -> Self:
        declared = () if self.name is None else self.rule.hyperparameters
        if self.lr is None and any(one.name == "lr" and one.default is REQUIRED for one in declared):
            raise ValueError(f"the optimizer {self.name} has no default learning rate: give lr")
        try:
            arguments = self.arguments
        except TypeError as error:
            raise ValueError(str(error)) from error
        try:
            self._checked(lr=self.network_lr)
        except (ValueError, TypeError) as error:
            raise ValueError(f"network_lr: {error}") from error
        if not is_rows(arguments["groups"]):
            raise ValueError(f"embeddings need groups='rows', got {arguments['groups']!r}")
        if arguments["capturable"]:
            raise ValueError("embeddings, whose rows differ from step to step, cannot have capturable=True")
        return self

    def make(self, model: nn.Module) -> GroupOptimizer:
        """The optimizer of a model's parameters."""
        table, *others = param_groups(model, **self._of_embeddings)
        if self.network_lr is not None:
            others = [{**group, "lr": self.network_lr} for group in others]
        return OPTIMIZERS[self.name]([table, *others], **self._of_all)

    def scheduler(self, optimizer: GroupOptimizer, steps: int) -> LambdaLR | None:
        """The scheduler of the learning rates over this many steps; None if they are constant."""
        if self.schedule == "constant" and not self.warmup:
            return None
        return LambdaLR(optimizer, partial(rate_factor, self.schedule, steps, self.warmup))

    @property
    def has_target(self) -> bool:
        """Whether λ21 changes during training, towards a size."""
        return self.target_rate is not None or self.target_bytes is not None

    def target(
        self, optimizer: GroupOptimizer, steps: int | None, *, ramp: int | None = None, interval: int | None = None
    ) -> SizeTarget | None:
        """The target that sets λ21 over the steps, or without an end, see `TargetRate`; None if it is constant."""
        if self.target_bytes is not None:
            return TargetBytes(optimizer, self.target_bytes, steps=steps, ramp=ramp, interval=interval)
        if self.target_rate is None:
            return None
        least = self.least_features or 0
        return TargetRate(optimizer, self.target_rate, steps=steps, ramp=ramp, interval=interval, least=least)

    @property
    def rule(self) -> Rule:
        """The base optimizer, which declares what `options` may have."""
        return OPTIMIZERS[self.name].rule

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the embeddings' param group, given or default; ValueError, TypeError as the optimizer."""
        return self._checked(**self._of_embeddings)

    def _checked(self, **arguments: Any) -> dict[str, Any]:
        """The arguments of a param group; options are not checked until it is known whose they are."""
        of_all = self._of_all if self.name is not None else {"lr": self.lr} if self.lr is not None else {}
        given = {name: value for name, value in arguments.items() if value is not None or name == "state_dtype"}
        return OPTIMIZERS[self.name or "adagrad"].checked_arguments(**{**of_all, **given})

    @property
    def _of_embeddings(self) -> dict[str, Any]:
        regularizer = {name: getattr(self, name) for name in EMBEDDING_SETTINGS}
        state_dtype = torch.bfloat16 if self.state_dtype == "bfloat16" else None
        return {**regularizer, "state_dtype": state_dtype, **({} if self.eps is None else {"eps": self.eps})}

    @property
    def _of_all(self) -> dict[str, Any]:
        options = {name: tuple(value) if isinstance(value, list) else value for name, value in self.options.items()}
        return options if self.lr is None else {**options, "lr": self.lr}


class TrainingConfig(TrainingSettings):
    """How it is trained."""

    def compiles(self, samples: int) -> bool:
        """Whether to compile for a training on this many samples."""
        if self.compile == "auto":
            return self.device == "cpu" and samples >= WORTH_COMPILING * self.batch_size
        return self.compile == "always"

    def plan(self, train_rows: int) -> EpochPlan:
        """The rows of each epoch, of this many training rows.

        SettingsError: all of them are for validation; or settings that are not resolved.
        """
        if self.batch_size is None or self.shuffle_buffer is None:
            raise SettingsError("training.batch_size is decided for a log: take `config.resolved_for(log)`")
        held_out = max(1, round(self.validation * train_rows)) if self.validation else 0
        if held_out >= train_rows:
            raise SettingsError(f"training.validation={self.validation:g} leaves none of {train_rows} rows to train on")
        same = (
            "batch_size",
            "epochs",
            "patience",
            "after_first_epoch",
            "shuffle_buffer",
            "seed",
            "recalibrate",
            "group",
        )
        of_all = {name: value for name in same if (value := getattr(self, name)) is not None}
        return EpochPlan(rows=train_rows - held_out, validation_rows=held_out, **of_all)


class Config(Settings):
    """All settings of a run, see the page of settings; checked when made.

    A setting that is not given is decided for the log of a run, by `resolved_for`. Given and decided settings are kept
    apart: `replace`, copies and files of a config that is not resolved leave open what is not given.

    Attributes:
        data, model, optimizer, training, checkpoint, tracking: The sections.
        given: Keys of the settings that were given; None until all others are decided.

    Examples:
        >>> from sparsegroup.training import Config
        >>> config = Config.of(model="dcn", lr=1e-2, l21=1e-3)
        >>> config.optimizer.l21, config.replace(l21=0.0).optimizer.l21
        (0.001, 0.0)
    """

    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()

    @property
    def objective(self) -> Objective:
        """What is learnt, in the unit of its scores, of the tasks or classes of a log; see `objective_for` for groups.

        SettingsError: there are other numbers of labels, objectives and weights.
        """
        objective = self.training.objective or LOGISTIC
        if self.training.tasks:
            try:
                objective = objective.of_tasks(self.training.tasks, self.training.task_weights)
            except ValueError as error:
                raise SettingsError(f"training.objective: {error}", "objective") from error
        objective = objective.in_unit(self.training.label_scale or 1.0)
        return objective.with_classes(self.training.classes) if self.training.classes else objective

    def objective_for(self, columns: LogSchema) -> Objective:
        """What is learnt of a log with these columns, in the groups of its field `training.group`.

        SettingsError: It takes groups and there is no such field, or it takes none and the field is given.
        """
        objective, group, single = self.objective, self.training.group, columns.single
        there = f"the fields of one value are {', '.join(single) or 'none'}"
        if group is None:
            if objective.takes_groups:
                raise SettingsError(
                    f"training.group: {objective.name} learns the order of rows within a group: give the field whose "
                    f"values are the groups, such as a user or a query, by `group`; {there}",
                    "group",
                )
            return objective
        if not objective.takes_groups:
            names = " or ".join(name for name, kind in Objective.known.items() if kind.takes_groups)
            raise SettingsError(
                f"training.group: `group` {group} is for the order of rows within a group, and {objective.name} learns "
                f"each row alone: choose the `objective` {names}, or leave `group` out",
                "group",
                "objective",
            )
        if group not in single:
            hint = did_you_mean(group, single)
            what = "is not a field"
            if group in columns.lists:
                what = "has several values a row"
            elif group in columns.numbers:
                what, hint = "is a number", "a schema (`sparsegroup columns`) can make it a category;"
            raise SettingsError(f"training.group: {group!r} {what}; {f'{hint} {there}'.lstrip()}", "group")
        return objective.in_groups(single.index(group))

    def build(self, log: Log, process_group: dist.ProcessGroup | None = None) -> tuple[ClickModel, GroupOptimizer]:
        """A freshly initialized model for `log`, and its optimizer. Seeds torch's generator.

        Settings that are open are decided for the log. The network starts with what its first 50,000 training rows
        show: see `start_network`. The ranks of `process_group` store the tables; all of them have to call it.

        Raises:
            SettingsError: A table of that model cannot be so small, or as `check_log`.
        """
        self.check_log(log)
        model, optimizer = self.resolved_for(log).build_for(log.schema, process_group)
        start_network(model.network, log, model.objective, base_rate=self.model.base_rate)
        return model, optimizer

    def check_log(self, log: Log) -> None:
        """Raise SettingsError if the settings name what a log does not have: a field, or times."""
        resolved = self.resolved_for(log)
        model = resolved.model
        try:
            self.objective_for(log.schema)
        except SettingsError as error:
            raise SettingsError(f"{log.name}: {error}", *error.parameters) from error
        try:
            model.sizes(log.schema)
        except ValueError as error:
            raise SettingsError(f"{log.name}: model.{error}") from error
        resolved.check_labels(log)
        if isinstance(self.model.evict_unseen, str) and not log.timed:
            raise SettingsError(
                f"model.evict_unseen: {self.model.evict_unseen} goes by the log's own clock, but {log.name} has no "
                "column of times in order (`sparsegroup columns` shows its columns; a schema can say which it is); "
                "give a number of steps"
            )

    def check_labels(self, log: Log) -> None:
        """Raise SettingsError unless the objective takes the labels of a log."""
        objective = self.objective
        if log.labelled and (log.tasks != objective.tasks or (self.training.task_weights and not log.tasks)):
            wanted, there = (
                f"the tasks {', '.join(one)}" if one else "one label" for one in (objective.tasks, log.tasks)
            )
            raise SettingsError(
                f"training.objective: {log.name} has {there}, and {objective} is for {wanted}"
                f"{'; task_weights are for several' if self.training.task_weights else ''}",
                "objective",
            )
        if objective.tasks:
            return
        if objective.is_binary and not log.binary:
            names = ", ".join(name for name in get_args(ObjectiveName) if name != LOGISTIC.name)
            what = "classes" if log.classes else "numbers"
            raise SettingsError(
                f"training.objective: {log.name} has labels that are {what}, and {objective} takes 0 and 1: "
                f"choose another ({names}), or read 0 and 1 of it (label 'column>=number')",
                "objective",
            )
        ours = self.training.classes or objective.labels if objective.takes_classes else ()
        if log.labelled and log.classes != ours:
            wanted = f"the classes {', '.join(ours)}" if isinstance(ours, tuple) and ours else ours or "no classes"
            raise SettingsError(
                f"training.objective: {objective} takes {wanted}, and the labels of {log.name} are "
                f"{', '.join(log.classes) if log.classes else '0 and 1' if log.binary else 'numbers'}"
                f"{'; read them as classes, by `labels`' if ours else ''}",
                "objective",
            )

    def build_for(
        self,
        columns: LogSchema,
        process_group: dist.ProcessGroup | None = None,
        *,
        device: str | None = None,
        draws: bool = True,
    ) -> tuple[ClickModel, GroupOptimizer]:
        """A freshly initialized model for the columns of a log, and its optimizer; see `build`.

        Args:
            columns: The log's columns.
            process_group: The ranks that store the tables.
            device: Where the rows and the network are; None: where the settings train.
            draws: Whether to seed torch and draw the network's first weights. If not, they are 0, to be loaded, and
                torch's random numbers, which another thread may use, do not change.

        Raises:
            SettingsError: A table or network cannot be as the settings say, or the log has not the fields they name; or
                settings that are not resolved.
        """
        for key in ("model.name", "model.fallback", "optimizer.name", "optimizer.l21", "optimizer.penalty"):
            section, name = key.split(".")
            if getattr(getattr(self, section), name) is None:
                raise SettingsError(f"{key} is decided for a log: take `config.resolved_for(log)`")
        device, objective = device or self.training.device, self.objective_for(columns)
        if process_group is not None and device != "cpu":
            raise SettingsError(f"training.device: several ranks train on the CPU, got {device}")
        if draws:
            torch.manual_seed(self.training.seed)
        try:
            outputs = self.objective.outputs
            with nullcontext() if draws else _Undrawn():
                network = self.model.network(columns, outputs)
                embedding = self.model.embedding(columns, self.training.seed, process_group, device, outputs)
            model = ClickModel(embedding, network.to(device))
            model.objective = objective
        except (ValueError, RuntimeError, MemoryError) as error:  # numbers depend on each other, or are out of reach
            message = str(error).partition("\n")[0].replace("max_bytes", "max_table_bytes")  # as the setting is called
            if message.startswith("max_table_bytes"):
                raise SettingsError(f"model.{message}") from error
            if message.startswith("device="):
                raise SettingsError(f"training.{message}") from error
            if isinstance(error, MemoryError) or "memory" in message or "Storage size" in message:
                message = f"the network does not fit into the memory ({message}); take smaller layers (hidden)"
            raise SettingsError(f"model: {message}") from error
        return model, self.optimizer.make(model)

    def trainer(
        self,
        model: ClickModel,
        optimizer: GroupOptimizer,
        plan: EpochPlan | None,
        callbacks: Sequence[Callback] = (),
        *,
        window: int = 100_000,
    ) -> Trainer:
        """The trainer of a model and its optimizer, whose target, learning rates and window follow a plan.

        Without one the training has no end, the same learning rates throughout, and windows of this many samples.
        """
        if plan is None:
            scheduler, target, samples = None, self.optimizer.target(optimizer, None), 1 << 62
        else:
            scheduler, samples = self.optimizer.scheduler(optimizer, plan.steps), plan.samples
            target = self.optimizer.target(optimizer, **plan.target_steps)
            window = max(1, math.ceil(samples / plan.batch_size / self.training.windows)) * plan.batch_size
            if share := self.training.average:
                callbacks = [AveragedNetwork(plan.epoch_steps, share), *callbacks]
        return Trainer(
            model.embedding,
            model.network,
            optimizer,
            objective=model.objective,
            scheduler=scheduler,
            target=target,
            window=window,
            compile=self.training.compiles(samples),
            matmul_precision=self.training.matmul_precision,
            callbacks=callbacks,
        )

    def check_shapes(self, columns: LogSchema, weights: Mapping[str, Tensor]) -> None:
        """Raise SettingsError unless the network of these settings has the shapes of recorded weights.

        No memory is taken for it.
        """
        try:
            with torch.device("meta"), _Undrawn():
                state = self.model.network(columns, self.objective.outputs).state_dict()
        except (ValueError, RuntimeError, OverflowError, TypeError) as error:
            raise SettingsError(f"model: {str(error).partition(chr(10))[0]}") from error
        for name, weight in state.items():
            recorded = weights.get(f"network.{name}")
            if not isinstance(recorded, Tensor) or recorded.shape != weight.shape:
                found = list(recorded.shape) if isinstance(recorded, Tensor) else "no tensor"
                wanted = list(weight.shape)
                raise SettingsError(f"model: its {name} would have the shape {wanted}, the recorded is {found}")

    def effective(self, samples: int) -> dict[str, Any]:
        """Section → setting → value of a run on this many samples: defaults of network and optimizer filled in."""
        content = self.as_dict()
        model, optimizer, training = content["model"], content["optimizer"], content["training"]
        model["dim"] = self.model.vector_dim
        parameters = inspect.signature(NETWORKS[self.model.name]).parameters
        for name, value in model.items():
            if value is None and name in parameters:
                model[name] = parameters[name].default
        arguments = self.optimizer.arguments
        hyperparameters = [one.name for one in self.optimizer.rule.hyperparameters if one.name != "lr"]
        optimizer |= {"options": {name: arguments[name] for name in hyperparameters}, "lr": arguments["lr"]}
        if self.optimizer.has_target:  # which sets it during training
            del optimizer["l21"]
        if self.data.log is not None:
            del content["data"]["rows"]  # of a synthetic log
        training["compile"] = self.training.compiles(samples)
        return {
            section: {name: value for name, value in settings.items() if value not in (None, "", [], {})}
            for section, settings in content.items()
        }


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
    config = Config() if path is None else checked(Config, read_yaml(path), str(path))
    return config.with_keys(values, source)


_DRAWING = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)
"""Functions that draw the initial weights of a network's layers. PyTorch passes a call of `nn.init` as a whole to
a mode, so that the mode does not see the tensor's method inside."""


class _Undrawn(TorchFunctionMode):
    """In this thread weights are 0 instead of drawn. (On "meta" drawing would import torch.compile, for a second.)"""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _DRAWING:
            return func(*args, **kwargs)
        with torch.no_grad():
            return (args[0] if args else kwargs["tensor"]).zero_()


def start_network(network: nn.Module, log: Log, objective: Objective = LOGISTIC, *, base_rate: bool) -> None:
    """Fit a network to the first training rows of a log, up to 50,000.

    Its `NumberEncoder`s get the numbers' statistics. With `base_rate` its `logit_bias` becomes the score of the best
    constant prediction, the log-odds of the mean label, so that no step is spent on that (Lin et al. 2017, §4.1).
    """
    encoders = [module for module in network.modules() if isinstance(module, NumberEncoder)]
    bias = logit_bias_of(network) if base_rate else None
    if not encoders and bias is None:
        return
    labels, weights, numbers = log.sample(SAMPLE_ROWS)
    for encoder in encoders:
        encoder.fit(numbers)
    if bias is not None:
        with torch.no_grad():
            bias.copy_(torch.as_tensor(objective.start(labels, weights)))


def rate_factor(kind: ScheduleName, steps: int, warmup: float, step: int) -> float:
    """The factor of the learning rate at step t = 0, 1, … of T; later steps have that of the last one.

    It rises along (t + 1) / W over the first W = ⌈warmup · T⌉ steps. Then, with p = (t - W) / (T - W), it is 1
    ("constant"), 1 - p ("linear") or (1 + cos πp) / 2 ("cosine").
    """
    step = min(step, steps - 1)
    rising = math.ceil(warmup * steps)
    if step < rising:
        return (step + 1) / rising
    along = (step - rising) / (steps - rising)
    if kind == "cosine":
        return (1 + math.cos(math.pi * along)) / 2
    return 1 - along if kind == "linear" else 1.0
