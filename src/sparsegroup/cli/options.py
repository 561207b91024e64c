"""Each setting that commands have as an option, declared once: a log and how to read it, a model, how it is trained."""

import inspect
from collections.abc import Callable, Mapping
from copy import copy
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from sparsegroup.names import NormName, PenaltyName
from sparsegroup.settings.names import (
    AfterFirstEpoch,
    AvazuHour,
    ColumnsName,
    CriteoNumbers,
    DatasetName,
    ModelChoice,
    OnBadRow,
    OptimizerName,
    ScheduleName,
    SortFiles,
    StateDtype,
    unknown_optimizer,
)

_LOG, _MODEL, _OPTIMIZER, _SIZE, _TRAINING = "Log", "Model", "Optimizer", "Size", "Training"


def option(panel: str, help: str, default: str | bool = False, *names: str, **others: Any) -> Any:
    """A command's option in a panel of its help; `default` in words, False where there is none."""
    return typer.Option(*names, rich_help_panel=panel, help=help, show_default=default, **others)


def log_option(help: str, default: str | bool = False) -> Any:
    """An option that says how to read a raw log."""
    return option(_LOG, help, default)


RAW_LOG = "a file, a folder of files, a pattern, or a URI such as s3://bucket/day=*/; or several files"
LogOrConfig = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="LOG|CONFIG.yaml",
        help=f"A folder written by `prepare`, a raw log ({RAW_LOG}), or a YAML file of settings that names one. "
        "Default: a synthetic log.",
        show_default=False,
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any setting, such as optimizer.l2=1e-5 (repeatable).", show_default=False
    ),
]

COLUMNS = (
    "How to read the columns of a raw log with a header: categorical makes every column a category; "
    "`sparsegroup columns` shows what is inferred otherwise."
)
WEIGHT = (
    "Column of how much each row counts, in a raw log with a header; none for no such column, if one is named like it."
)

SORT_FILES = "Order of a raw log's files: by name (day9 before day10), by the first time in each, or as given."

Dataset = Annotated[DatasetName | None, log_option("Format of a raw log.", "detected from its first line")]
Label = Annotated[
    str | None, log_option("Label column of a raw log with a header.", "label, click, clicked or the like")
]
Exclude = Annotated[list[str] | None, log_option("Column to ignore in a raw log with a header (repeatable).")]
Weight = Annotated[str | None, log_option(WEIGHT, "weight, sample_weight or the like")]


def _optimizer(name: str) -> str:
    if problem := unknown_optimizer(name):
        raise typer.BadParameter(problem)
    return name


OPTIONS: Mapping[str, Any] = {
    "test": Annotated[str | None, log_option("A separate raw log to use as the test set.")],
    "sort_files": Annotated[SortFiles | None, log_option(SORT_FILES, "name")],
    "dataset": Dataset,
    "schema": Annotated[Path | None, log_option("YAML file that says what a raw log's columns are.")],
    "columns": Annotated[ColumnsName | None, log_option(COLUMNS, "inferred from its first rows")],
    "label": Label,
    "exclude": Exclude,
    "weight": Weight,
    "test_fraction": Annotated[
        str | None,
        log_option(
            "Share of the rows, from the end, for the test set; for a raw log with a header and no column `split`.",
            "0.1",
        ),
    ],
    "criteo_numbers": Annotated[CriteoNumbers | None, log_option("How to encode Criteo's integers.", "log")],
    "avazu_hour": Annotated[AvazuHour | None, log_option("How to encode Avazu's hour.", "hour")],
    "on_bad_row": Annotated[OnBadRow | None, log_option("Stop at a bad row, or skip and count it.", "error")],
    "max_bad": Annotated[str | None, log_option("Share of bad rows above which to stop anyway.", "0.1%")],
    "rows": Annotated[int | None, log_option("Size of the synthetic log.", "200000")],
    "model": Annotated[
        ModelChoice | None,
        option(
            _MODEL,
            "Network over the embeddings; auto is dcnv2 for more than 100,000 training rows, otherwise dcn.",
            "auto",
        ),
    ],
    "dim": Annotated[
        int | None,
        option(
            _MODEL,
            "Embedding dimension.",
            "lr 1; fm, deepfm, xdeepfm 9: a weight and 8 factors; mlp 16, opnn 10, dcn, dcnv2 8",
        ),
    ],
    "optimizer": Annotated[
        OptimizerName | None,
        option(
            _OPTIMIZER,
            "Base optimizer; with all λ = 0 it is exactly that.",
            "adagrad; with --l21 or --l1, adam",
            parser=_optimizer,
            metavar="[" + "|".join(get_args(OptimizerName)) + "]",
        ),
    ],
    "lr": Annotated[
        float | None, option(_OPTIMIZER, "Learning rate.", "0.1 for the default adagrad; otherwise as in torch.optim")
    ],
    "network_lr": Annotated[
        float | None,
        option(
            _OPTIMIZER,
            "Learning rate of everything but the embeddings.",
            "--lr; 0.03 for the default adagrad without --lr",
        ),
    ],
    "schedule": Annotated[
        ScheduleName | None, option(_OPTIMIZER, "How the learning rates decay over all epochs.", "constant")
    ],
    "warmup": Annotated[
        str | None,
        option(_OPTIMIZER, "Share of all samples over which the learning rates first rise, such as .05.", "0"),
    ],
    "l1": Annotated[float | None, option(_OPTIMIZER, "λ1 of the embeddings.", "0")],
    "l21": Annotated[
        float | None,
        option(
            _OPTIMIZER, "A constant λ21 for the embeddings instead of a size: raise it to keep fewer features.", False
        ),
    ],
    "l2": Annotated[float | None, option(_OPTIMIZER, "λ2 of the embeddings.", "0")],
    "norm": Annotated[NormName | None, option(_OPTIMIZER, "Norm in the group threshold.", "s")],
    "penalty": Annotated[
        PenaltyName | None, option(_OPTIMIZER, "Shape of the group threshold.", "lasso; hard with a size")
    ],
    "state_dtype": Annotated[
        StateDtype | None,
        option(
            _OPTIMIZER,
            "How the embeddings' rows keep the optimizer's state: bfloat16 takes half the memory.",
            "float32",
        ),
    ],
    "target_rate": Annotated[
        str | None,
        option(
            _SIZE,
            "Share of the features to keep, such as .03: λ21 is adjusted during training.",
            "0.1, but at least 256 features",
        ),
    ],
    "target_bytes": Annotated[
        str | None,
        option(_SIZE, "Size of the embeddings to keep, such as 200MB: vectors, and 8 bytes for each key.", False),
    ],
    "fallback": Annotated[
        bool | None,
        option(
            _SIZE,
            "Learn a vector per field for features without a live row.",
            "with a size",
            "--fallback/--no-fallback",
        ),
    ],
    "admit_after": Annotated[
        int | None,
        option(_SIZE, "Number of batches in which a feature must appear before it gets a row of its own.", "1"),
    ],
    "admit_sketch": Annotated[
        str | None,
        option(
            _SIZE,
            "Memory in which to count these batches, such as 64MB: some features then get their row early.",
            "counted exactly",
        ),
    ],
    "evict_unseen": Annotated[
        str | None,
        option(
            _SIZE,
            "Drop the rows of dead features that have not appeared for so many steps, or for so long by the log's "
            "own clock, such as 7d; 0 for never.",
            "0",
        ),
    ],
    "max_table_bytes": Annotated[
        str | None,
        option(
            _SIZE,
            "Hard limit on the table's memory, such as 2GB: dead features are dropped first, then the rarest.",
            "no limit",
        ),
    ],
    "batch_size": Annotated[
        int | None, option(_TRAINING, "Samples per step.", "rows/1000, as a power of two from 128 to 8192")
    ],
    "epochs": Annotated[int | None, option(_TRAINING, "Maximum number of passes over the training rows.", "1")],
    "validation": Annotated[
        str | None,
        option(
            _TRAINING,
            "Share of the training rows to hold out from the end, such as .05; the epoch with the lowest log "
            "loss on them is kept.",
            "0",
        ),
    ],
    "patience": Annotated[
        int | None,
        option(
            _TRAINING,
            "Stop after this many epochs in a row without improvement on the held-out rows; 0 for never.",
            "0",
        ),
    ],
    "shuffle_buffer": Annotated[
        int | None,
        option(
            _TRAINING,
            "Shuffle the training rows in blocks of this many; 0 keeps the order of the log.",
            "all rows, if there are up to 300,000; otherwise 10,000",
        ),
    ],
    "after_first_epoch": Annotated[
        AfterFirstEpoch | None,
        option(
            _TRAINING,
            "What to do with the embeddings in later epochs: go on training them, reset them in each, or freeze them.",
            "train",
            "--after-first-epoch",
        ),
    ],
    "seed": Annotated[
        int | None,
        option(_TRAINING, "Seed of the initialization, the dropout, the row order and the synthetic log.", "0"),
    ],
    "baseline": Annotated[
        bool | None,
        option(
            _TRAINING, "Train a logistic regression on the same rows for comparison.", "yes", "--baseline/--no-baseline"
        ),
    ],
    "checkpoint_minutes": Annotated[
        float | None, option("Checkpoints", "Minutes between checkpoints; 0 for none by time.", "10")
    ],
    "checkpoint_steps": Annotated[
        int | None, option("Checkpoints", "Batches between checkpoints; 0 for none by count.", "0")
    ],
    "keep_checkpoints": Annotated[int | None, option("Checkpoints", "Number of checkpoints to keep.", "2")],
    "tensorboard": Annotated[
        str | None,
        option(
            "Tracking",
            "Write the run's history for TensorBoard: into a folder in DIR, or (auto) into the run's own.",
            False,
            metavar="DIR|auto",
        ),
    ],
    "mlflow": Annotated[
        str | None,
        option(
            "Tracking",
            "Log the run to MLflow: to a tracking URI, or to an experiment at $MLFLOW_TRACKING_URI.",
            False,
            metavar="URI|EXPERIMENT",
        ),
    ],
}
"""Short name of a setting → the type and the option that commands declare it by, in the order of `--help`."""

OF_THE_LOG = tuple(name for name, option in OPTIONS.items() if option.__metadata__[0].rich_help_panel == _LOG)


def takes_settings(*names: str, **changes: Mapping[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of these settings, where it has the parameter `settings`: name → value, if given.

    Args:
        names: Keys of `OPTIONS`.
        changes: Setting → what its option says otherwise in this command, such as `show_default`.
    """

    def declared(name: str) -> inspect.Parameter:
        kind, option = OPTIONS[name].__origin__, copy(OPTIONS[name].__metadata__[0])
        for attribute, value in changes.get(name, {}).items():
            setattr(option, attribute, value)
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def command(**arguments: Any) -> None:
            given = {name: value for name in names if (value := arguments.pop(name)) is not None}
            function(**arguments, settings=given)

        own = inspect.signature(function).parameters.values()
        parameters = [
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in own
            for one in (map(declared, names) if parameter.name == "settings" else [parameter])
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate
