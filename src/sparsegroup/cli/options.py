"""Options that several commands have: a log and how to read it, a model, and how it is trained."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sparsegroup.names import (
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
        help=f"A folder that `prepare` has written, a raw log ({RAW_LOG}), or a YAML file of settings that names one. "
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
    "What the columns of a raw log with a header are: categorical for all of them; `sparsegroup columns` shows what is "
    "told from it."
)
LABEL = "Label column, of a raw log with a header."
EXCLUDE = "A column that is no feature, of a raw log with a header (repeatable)."
CRITEO_NUMBERS = "What becomes of Criteo's integers."
AVAZU_HOUR = "What becomes of Avazu's hour."

SORT_FILES = "Order of a raw log's files: by name (day9 before day10), by the first time in each, or as given."

TestLog = Annotated[str | None, log_option("A raw log of its own for the test set.")]
Sorting = Annotated[SortFiles | None, log_option(SORT_FILES, "name")]
Dataset = Annotated[DatasetName | None, log_option(DATASET, "told from its first line")]
Schema = Annotated[Path | None, log_option(SCHEMA)]
ColumnsAs = Annotated[ColumnsName | None, log_option(COLUMNS, "told from its first rows")]
Label = Annotated[str | None, log_option(LABEL, "label, click, clicked or the like")]
Exclude = Annotated[
    list[str] | None,
    log_option(EXCLUDE),
]
Numbers = Annotated[CriteoNumbers | None, log_option(CRITEO_NUMBERS, "log")]
Hour = Annotated[AvazuHour | None, log_option(AVAZU_HOUR, "hour")]
BadRow = Annotated[OnBadRow | None, log_option("Stop at a bad row, or leave it out and count it.", "error")]
MaxBad = Annotated[str | None, log_option("Share of bad rows above which to stop all the same.", "0.1%")]
Rows = Annotated[int | None, log_option("Size of the synthetic log.", "200000")]

Network = Annotated[
    ModelChoice | None,
    typer.Option(
        rich_help_panel=_MODEL, help="Network over the embeddings; auto is the one that wins most.", show_default="auto"
    ),
]

Optimizer = Annotated[
    OptimizerName | None,
    typer.Option(
        rich_help_panel=_OPTIMIZER,
        help="Base optimizer; with all λ = 0 it is just that.",
        show_default="adagrad; with --l21 or --l1, adam",
    ),
]
LearningRate = Annotated[
    float | None,
    typer.Option(
        rich_help_panel=_OPTIMIZER,
        help="Learning rate.",
        show_default="0.1 where no optimizer is given; else as in torch.optim",
    ),
]

NetworkLearningRate = Annotated[
    float | None,
    typer.Option(
        rich_help_panel=_OPTIMIZER,
        help="Learning rate of all but the embeddings.",
        show_default="that of the embeddings; 0.03 where neither that nor an optimizer is given",
    ),
]
Schedule = Annotated[
    ScheduleName | None,
    typer.Option(
        rich_help_panel=_OPTIMIZER, help="How the learning rates fall along all epochs.", show_default="constant"
    ),
]
Warmup = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_OPTIMIZER,
        help="Share of all samples over which the learning rates rise first, such as .05.",
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
        help="Batches in which a feature must have come to get a row of its own.",
        show_default="1",
    ),
]

BatchSize = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=_TRAINING, help="Samples per step.", show_default="by the log: rows/1000, in 128 … 8192"
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option(rich_help_panel=_TRAINING, help="How often to train on the training rows, at most.", show_default="1"),
]
Validation = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_TRAINING,
        help="Share of the training rows, the last ones, to hold out, such as .05: the model is that of the epoch with "
        "the lowest log loss on them.",
        show_default="0",
    ),
]
Patience = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=_TRAINING,
        help="Stop when so many epochs in a row were no better on the rows held out; 0 for never.",
        show_default="0",
    ),
]
ShuffleBuffer = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=_TRAINING,
        help="Rows of the blocks in which to shuffle the training rows; 0 for the order of time.",
        show_default="by the log: all up to 300,000, else 10,000",
    ),
]
LaterEmbeddings = Annotated[
    AfterFirstEpoch | None,
    typer.Option(
        "--after-first-epoch",
        rich_help_panel=_TRAINING,
        help="What becomes of the embeddings in later epochs: train them on, start them anew in each, or keep them.",
        show_default="train",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=_TRAINING,
        help="Of the initialization, the dropout, the order and the synthetic log.",
        show_default="0",
    ),
]
