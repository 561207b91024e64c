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


def log_option(help: str, default: str | bool = False) -> Any:
    """An option that says how to read a raw log.

    Args:
        help: What it says.
        default: In words; False where there is none.
    """
    return typer.Option(rich_help_panel=_LOG, help=help, show_default=default)


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
        "--set",
        metavar="KEY=VALUE",
        help="Any setting, such as optimizer.l2=1e-5 (repeatable).",
        show_default=False,
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
Exclude = Annotated[
    list[str] | None,
    log_option("Column to ignore in a raw log with a header (repeatable)."),
]
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
        typer.Option(
            rich_help_panel=_MODEL,
            help="Network over the embeddings; auto is dcnv2 for more than 100,000 training rows, otherwise dcn.",
            show_default="auto",
        ),
    ],
    "dim": Annotated[
        int | None,
        typer.Option(
            rich_help_panel=_MODEL,
            help="Embedding dimension.",
            show_default="lr 1; fm, deepfm, xdeepfm 9: a weight and 8 factors; mlp 16, opnn 10, dcn, dcnv2 8",
        ),
    ],
    "optimizer": Annotated[
        OptimizerName | None,
        typer.Option(
            rich_help_panel=_OPTIMIZER,
            parser=_optimizer,
            metavar="[" + "|".join(get_args(OptimizerName)) + "]",
            help="Base optimizer; with all λ = 0 it is exactly that.",
            show_default="adagrad; with --l21 or --l1, adam",
        ),
    ],
    "lr": Annotated[
        float | None,
        typer.Option(
            rich_help_panel=_OPTIMIZER,
            help="Learning rate.",
            show_default="0.1 for the default adagrad; otherwise as in torch.optim",
        ),
    ],
    "network_lr": Annotated[
        float | None,
        typer.Option(
            rich_help_panel=_OPTIMIZER,
            help="Learning rate of everything but the embeddings.",
            show_default="--lr; 0.03 for the default adagrad without --lr",
        ),
    ],
    "schedule": Annotated[
        ScheduleName | None,
        typer.Option(
            rich_help_panel=_OPTIMIZER, help="How the learning rates decay over all epochs.", show_default="constant"
        ),
    ],
    "warmup": Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_OPTIMIZER,
            help="Share of all samples over which the learning rates first rise, such as .05.",
            show_default="0",
        ),
    ],
    "l1": Annotated[
        float | None, typer.Option(rich_help_panel=_OPTIMIZER, help="λ1 of the embeddings.", show_default="0")
    ],
    "l21": Annotated[
        float | None,
        typer.Option(
            rich_help_panel=_OPTIMIZER,
            help="A constant λ21 for the embeddings instead of a size: raise it to keep fewer features.",
            show_default=False,
        ),
    ],
    "l2": Annotated[
        float | None, typer.Option(rich_help_panel=_OPTIMIZER, help="λ2 of the embeddings.", show_default="0")
    ],
    "norm": Annotated[
        NormName | None,
        typer.Option(rich_help_panel=_OPTIMIZER, help="Norm in the group threshold.", show_default="s"),
    ],
    "penalty": Annotated[
        PenaltyName | None,
        typer.Option(
            rich_help_panel=_OPTIMIZER, help="Shape of the group threshold.", show_default="lasso; hard with a size"
        ),
    ],
    "state_dtype": Annotated[
        StateDtype | None,
        typer.Option(
            rich_help_panel=_OPTIMIZER,
            help="How the embeddings' rows keep the optimizer's state: bfloat16 takes half the memory.",
            show_default="float32",
        ),
    ],
    "target_rate": Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_SIZE,
            help="Share of the features to keep, such as .03: λ21 is adjusted during training.",
            show_default="0.1, but at least 256 features",
        ),
    ],
    "target_bytes": Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_SIZE,
            help="Size of the embeddings to keep, such as 200MB: vectors, and 8 bytes for each key.",
            show_default=False,
        ),
    ],
    "fallback": Annotated[
        bool | None,
        typer.Option(
            "--fallback/--no-fallback",
            rich_help_panel=_SIZE,
            help="Learn a vector per field for features without a live row.",
            show_default="with a size",
        ),
    ],
    "admit_after": Annotated[
        int | None,
        typer.Option(
            rich_help_panel=_SIZE,
            help="Number of batches in which a feature must appear before it gets a row of its own.",
            show_default="1",
        ),
    ],
    "admit_sketch": Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_SIZE,
            help="Memory in which to count these batches, such as 64MB: some features then get their row early.",
            show_default="counted exactly",
        ),
    ],
    "evict_unseen": Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_SIZE,
            help="Drop the rows of dead features that have not appeared for so many steps, or for so long by the log's "
            "own clock, such as 7d; 0 for never.",
            show_default="0",
        ),
    ],
    "max_table_bytes": Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_SIZE,
            help="Hard limit on the table's memory, such as 2GB: dead features are dropped first, then the rarest.",
            show_default="no limit",
        ),
    ],
    "batch_size": Annotated[
        int | None,
        typer.Option(
            rich_help_panel=_TRAINING,
            help="Samples per step.",
            show_default="rows/1000, as a power of two from 128 to 8192",
        ),
    ],
    "epochs": Annotated[
        int | None,
        typer.Option(
            rich_help_panel=_TRAINING, help="Maximum number of passes over the training rows.", show_default="1"
        ),
    ],
    "validation": Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_TRAINING,
            help="Share of the training rows to hold out from the end, such as .05; the epoch with the lowest log "
            "loss on them is kept.",
            show_default="0",
        ),
    ],
    "patience": Annotated[
        int | None,
        typer.Option(
            rich_help_panel=_TRAINING,
            help="Stop after this many epochs in a row without improvement on the held-out rows; 0 for never.",
            show_default="0",
        ),
    ],
    "shuffle_buffer": Annotated[
        int | None,
        typer.Option(
            rich_help_panel=_TRAINING,
            help="Shuffle the training rows in blocks of this many; 0 keeps the order of the log.",
            show_default="all rows, if there are up to 300,000; otherwise 10,000",
        ),
    ],
    "after_first_epoch": Annotated[
        AfterFirstEpoch | None,
        typer.Option(
            "--after-first-epoch",
            rich_help_panel=_TRAINING,
            help="What to do with the embeddings in later epochs: go on training them, "
            "reset them in each, or freeze them.",
            show_default="train",
        ),
    ],
    "seed": Annotated[
        int | None,
        typer.Option(
            rich_help_panel=_TRAINING,
            help="Seed of the initialization, the dropout, the row order and the synthetic log.",
            show_default="0",
        ),
    ],
    "baseline": Annotated[
        bool | None,
        typer.Option(
            "--baseline/--no-baseline",
            rich_help_panel=_TRAINING,
            help="Train a logistic regression on the same rows for comparison.",
            show_default="yes",
        ),
    ],
    "checkpoint_minutes": Annotated[
        float | None,
        typer.Option(
            rich_help_panel="Checkpoints", help="Minutes between checkpoints; 0 for none by time.", show_default="10"
        ),
    ],
    "checkpoint_steps": Annotated[
        int | None,
        typer.Option(
            rich_help_panel="Checkpoints", help="Batches between checkpoints; 0 for none by count.", show_default="0"
        ),
    ],
    "keep_checkpoints": Annotated[
        int | None, typer.Option(rich_help_panel="Checkpoints", help="Number of checkpoints to keep.", show_default="2")
    ],
    "tensorboard": Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Tracking",
            metavar="DIR|auto",
            help="Write the run's history for TensorBoard: into a folder in DIR, or (auto) into the run's own.",
            show_default=False,
        ),
    ],
    "mlflow": Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Tracking",
            metavar="URI|EXPERIMENT",
            help="Log the run to MLflow: to a tracking URI, or to an experiment at $MLFLOW_TRACKING_URI.",
            show_default=False,
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
