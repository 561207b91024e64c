"""Options that several commands have: a log and how to read it, a model, and how it is trained."""

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

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

DATASET = "Format of a raw log."
SCHEMA = "YAML file that says what a raw log's columns are."
COLUMNS = (
    "How to read the columns of a raw log with a header: categorical makes every column a category; "
    "`sparsegroup columns` shows what is inferred otherwise."
)
LABEL = "Label column of a raw log with a header."
EXCLUDE = "Column to ignore in a raw log with a header (repeatable)."
WEIGHT = (
    "Column of how much each row counts, in a raw log with a header; none for no such column, if one is named like it."
)
CRITEO_NUMBERS = "How to encode Criteo's integers."
AVAZU_HOUR = "How to encode Avazu's hour."

SORT_FILES = "Order of a raw log's files: by name (day9 before day10), by the first time in each, or as given."

TestLog = Annotated[str | None, log_option("A separate raw log to use as the test set.")]
Sorting = Annotated[SortFiles | None, log_option(SORT_FILES, "name")]
Dataset = Annotated[DatasetName | None, log_option(DATASET, "detected from its first line")]
Schema = Annotated[Path | None, log_option(SCHEMA)]
ColumnsAs = Annotated[ColumnsName | None, log_option(COLUMNS, "inferred from its first rows")]
Label = Annotated[str | None, log_option(LABEL, "label, click, clicked or the like")]
Exclude = Annotated[
    list[str] | None,
    log_option(EXCLUDE),
]
Weight = Annotated[str | None, log_option(WEIGHT, "weight, sample_weight or the like")]
TestFraction = Annotated[
    str | None,
    log_option(
        "Share of the rows, from the end, for the test set; for a raw log with a header and no column `split`.",
        "0.1",
    ),
]
Numbers = Annotated[CriteoNumbers | None, log_option(CRITEO_NUMBERS, "log")]
Hour = Annotated[AvazuHour | None, log_option(AVAZU_HOUR, "hour")]
BadRow = Annotated[OnBadRow | None, log_option("Stop at a bad row, or skip and count it.", "error")]
MaxBad = Annotated[str | None, log_option("Share of bad rows above which to stop anyway.", "0.1%")]
Rows = Annotated[int | None, log_option("Size of the synthetic log.", "200000")]

Network = Annotated[
    ModelChoice | None,
    typer.Option(
        rich_help_panel=_MODEL,
        help="Network over the embeddings; auto is dcnv2 for more than 100,000 training rows, otherwise dcn.",
        show_default="auto",
    ),
]


def _optimizer(name: str) -> str:
    if problem := unknown_optimizer(name):
        raise typer.BadParameter(problem)
    return name


Optimizer = Annotated[
    OptimizerName | None,
    typer.Option(
        rich_help_panel=_OPTIMIZER,
        parser=_optimizer,
        metavar="[" + "|".join(get_args(OptimizerName)) + "]",
        help="Base optimizer; with all λ = 0 it is exactly that.",
        show_default="adagrad; with --l21 or --l1, adam",
    ),
]
LearningRate = Annotated[
    float | None,
    typer.Option(
        rich_help_panel=_OPTIMIZER,
        help="Learning rate.",
        show_default="0.1 for the default adagrad; otherwise as in torch.optim",
    ),
]

NetworkLearningRate = Annotated[
    float | None,
    typer.Option(
        rich_help_panel=_OPTIMIZER,
        help="Learning rate of everything but the embeddings.",
        show_default="--lr; 0.03 for the default adagrad without --lr",
    ),
]
Schedule = Annotated[
    ScheduleName | None,
    typer.Option(
        rich_help_panel=_OPTIMIZER, help="How the learning rates decay over all epochs.", show_default="constant"
    ),
]
Warmup = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_OPTIMIZER,
        help="Share of all samples over which the learning rates first rise, such as .05.",
        show_default="0",
    ),
]

Fallback = Annotated[
    bool | None,
    typer.Option(
        "--fallback/--no-fallback",
        rich_help_panel=_SIZE,
        help="Learn a vector per field for features without a live row.",
        show_default="with a size",
    ),
]
AdmitAfter = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=_SIZE,
        help="Number of batches in which a feature must appear before it gets a row of its own.",
        show_default="1",
    ),
]

BatchSize = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=_TRAINING,
        help="Samples per step.",
        show_default="rows/1000, as a power of two from 128 to 8192",
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option(rich_help_panel=_TRAINING, help="Maximum number of passes over the training rows.", show_default="1"),
]
Validation = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_TRAINING,
        help="Share of the training rows to hold out from the end, such as .05; the epoch with the lowest log loss on "
        "them is kept.",
        show_default="0",
    ),
]
Patience = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=_TRAINING,
        help="Stop after this many epochs in a row without improvement on the held-out rows; 0 for never.",
        show_default="0",
    ),
]
ShuffleBuffer = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=_TRAINING,
        help="Shuffle the training rows in blocks of this many; 0 keeps the order of the log.",
        show_default="all rows, if there are up to 300,000; otherwise 10,000",
    ),
]
LaterEmbeddings = Annotated[
    AfterFirstEpoch | None,
    typer.Option(
        "--after-first-epoch",
        rich_help_panel=_TRAINING,
        help="What to do with the embeddings in later epochs: go on training them, reset them in each, or freeze them.",
        show_default="train",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=_TRAINING,
        help="Seed of the initialization, the dropout, the row order and the synthetic log.",
        show_default="0",
    ),
]
