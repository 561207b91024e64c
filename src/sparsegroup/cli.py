"""The command line: `sparsegroup train` and `sparsegroup demo`."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table

from sparsegroup import __version__
from sparsegroup.data import ClickLogError, SyntheticConfig, read_csv, synthetic_log
from sparsegroup.data.csv import OnBadRow
from sparsegroup.experiments.compare import Outcome, Reporter, compare
from sparsegroup.prox import Norm, Penalty
from sparsegroup.training import Progress, TrainConfig, save_run, train
from sparsegroup.training.click_model import ModelName
from sparsegroup.training.config import OptimizerName

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train click models whose embedding tables end up sparse.",
)
console = Console()


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"sparsegroup {__version__}")
        raise typer.Exit


Threads = Annotated[
    int, typer.Option(min=1, help="CPU threads. Models this small hardly gain by more; a seed repeats with as many.")
]


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command("train")
def train_command(
    log: Annotated[
        Path | None,
        typer.Argument(
            help="Click log: CSV with a header, plain, .gz, .bz2, .xz or .zst. Default: a synthetic log.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the trained model; default runs/<name of the log>.", show_default=False),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Write into the folder even if it holds a run.")
    ] = False,
    label: Annotated[
        str | None, typer.Option(help="Label column; default `label` or `click`.", show_default=False)
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="A column that is no feature (repeatable).", show_default=False)
    ] = None,
    on_bad_row: Annotated[OnBadRow, typer.Option(help="Stop at a bad row, or skip and count it.")] = "error",
    test_fraction: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Share of the rows, the last ones, for the test set; not used where the log has a column `split`.",
        ),
    ] = 0.1,
    rows: Annotated[int, typer.Option(min=100, help="Size of the synthetic log.")] = SyntheticConfig.rows,
    model: Annotated[ModelName, typer.Option(help="Network over the embeddings.")] = TrainConfig.model,
    dim: Annotated[
        int | None, typer.Option(help="Embedding dimension; default mlp 16, opnn 10, dcn 8.", show_default=False)
    ] = None,
    optimizer: Annotated[
        OptimizerName, typer.Option(help="Base optimizer; with all λ = 0 it is just that.")
    ] = TrainConfig.optimizer,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate; default as in torch.optim.", show_default=False)
    ] = None,
    l1: Annotated[float, typer.Option(help="λ1, of the embeddings.")] = TrainConfig.l1,
    l21: Annotated[float, typer.Option(help="λ21, of the embeddings: raise it to keep fewer features.")] = 1e-3,
    l2: Annotated[float, typer.Option(help="λ2, of the embeddings.")] = TrainConfig.l2,
    norm: Annotated[Norm, typer.Option(help="Norm in the group threshold.")] = TrainConfig.norm,
    penalty: Annotated[Penalty, typer.Option(help="Shape of the group threshold.")] = TrainConfig.penalty,
    mcp_gamma: Annotated[float, typer.Option(help="γ of the penalty mcp.")] = TrainConfig.mcp_gamma,
    batch_size: Annotated[int, typer.Option(help="Samples per step.")] = TrainConfig.batch_size,
    seed: Annotated[
        int, typer.Option(help="Of the initialization, the dropout and the synthetic log.")
    ] = TrainConfig.seed,
    threads: Threads = 1,
) -> None:
    """Train on a click log, one pass in time order, and report AUC, log loss and feature rate on its last part.

    Every column is a categorical feature, but for the label, `id`, `ts`, `timestamp` and `split`.
    """
    torch.set_num_threads(threads)
    config = _settings(
        model=model,
        dim=dim,
        optimizer=optimizer,
        lr=lr,
        l1=l1,
        l21=l21,
        l2=l2,
        norm=norm,
        penalty=penalty,
        mcp_gamma=mcp_gamma,
        batch_size=batch_size,
        seed=seed,
    )
    name = "synthetic" if log is None else log.name.split(".")[0]
    folder = out or Path("runs") / name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not overwrite:
        raise UsageError(f"{folder} is not empty; give another --out, or --overwrite")
    if log is None:
        data = synthetic_log(SyntheticConfig(rows=rows), seed)
    else:
        with console.status(f"reading {log}"):
            data, bad = read_csv(
                log, label=label, exclude=exclude or (), on_bad_row=on_bad_row, test_fraction=test_fraction
            )
        if bad.count:
            console.print(str(bad), style="yellow", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"{data.name}: {data.train_rows:,} training and {len(data) - data.train_rows:,} test rows, "
        f"{len(data.fields)} fields, {data.features:,} features",
        highlight=False,
        soft_wrap=True,
    )
    network, group_optimizer = config.build(data)
    with _progress_bar(data.train_rows, f"{model.upper()}, {optimizer}") as (on_batch, on_progress):
        trained = train(
            network, group_optimizer, data, batch_size=batch_size, on_batch=on_batch, on_progress=on_progress
        )
    save_run(folder, config, data, network, trained)
    table = Table(show_header=False, box=None)
    table.add_row("test AUC", f"{trained.test.auc:.4f}")
    table.add_row("test log loss", f"{trained.test.log_loss:.4f}")
    table.add_row("feature rate", f"{trained.feature_rate:.4f}  ({trained.live_rows:,} of {data.features:,} features)")
    table.add_row("written to", str(folder))
    console.print(table, highlight=False)


@app.command("demo")
def demo_command(
    rows: Annotated[int, typer.Option(min=100, help="Size of the synthetic log.")] = 500_000,
    l21: Annotated[float, typer.Option(help="λ21 of Group Adam.")] = 1e-3,
    penalty: Annotated[Penalty, typer.Option(help="Shape of the group threshold.")] = "lasso",
    lr: Annotated[float, typer.Option(help="Learning rate of all.")] = 1e-2,
    seed: Annotated[int, typer.Option(help="Of the log and of the training.")] = 0,
    threads: Threads = 1,
) -> None:
    """Adam, Adam with magnitude pruning and Group Adam on a synthetic click log, side by side."""
    torch.set_num_threads(threads)
    config = _settings(lr=lr, l21=l21, penalty=penalty, seed=seed)
    data = synthetic_log(SyntheticConfig(rows=rows), seed)
    assert data.informative is not None
    console.print(
        f"A synthetic click log: {len(data):,} rows, {data.features:,} features, of which "
        f"{data.informative.sum() / data.features:.0%} have an effect on the click and the rest are noise.\n"
        "A DCN is trained on the first 90 % in one pass, and tested on the rest.",
        highlight=False,
    )
    console.print(_comparison(compare(data, config, partial(_progress_bar, data.train_rows))))


def _settings(**settings: Any) -> TrainConfig:
    try:
        return TrainConfig(**settings)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _comparison(outcomes: list[Outcome]) -> Table:
    table = Table(caption="table: 8-byte key and float32 vector of each feature that is not exactly zero")
    for column in ("", "test AUC", "log loss", "feature rate", "table", "informative"):
        table.add_column(column, justify="left" if not column else "right")
    for outcome in outcomes:
        table.add_row(
            outcome.name,
            f"{outcome.test.auc:.4f}",
            f"{outcome.test.log_loss:.4f}",
            f"{outcome.feature_rate:.2%}",
            f"{outcome.table_bytes / 1e6:.2f} MB",
            "" if outcome.informative is None else f"{outcome.informative:.0%}",
        )
    return table


@contextmanager
def _progress_bar(total: int, name: str) -> Iterator[Reporter]:
    """A progress bar over `total` samples, with samples/s, log loss, progressive AUC and feature rate.

    Yields:
        `on_batch` and `on_progress` for `train`.
    """
    bar = ProgressBar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),
        TaskProgressColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[state]}"),
        console=console,
    )
    state: dict[str, Any] = {"loss": float("nan"), "auc": float("nan"), "rate": float("nan")}
    with bar:
        task = bar.add_task(name, total=total, speed="", state="")

        def show() -> None:
            speed = bar.tasks[task].finished_speed or bar.tasks[task].speed
            bar.update(
                task,
                speed=f"{speed:,.0f}/s" if speed else "",
                state=f"loss {state['loss']:.4f} AUC {state['auc']:.4f} rate {state['rate']:.4f}",
            )

        def on_batch(samples: int, loss: float) -> None:
            bar.advance(task, samples)

        def on_progress(point: Progress) -> None:
            state.update(loss=point.log_loss, auc=point.auc, rate=point.feature_rate)
            show()

        yield on_batch, on_progress
        show()


class UsageError(Exception):
    """A command that cannot be carried out as given."""


def main(run: Callable[[], None] = app) -> None:
    """Run the command line; what the user can mend is one line on stderr and exit status 2."""
    try:
        run()
    except (ClickLogError, UsageError) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _fail(message: str) -> None:
    Console(stderr=True).print(f"error: {message}", markup=False, highlight=False, soft_wrap=True)
    sys.exit(2)
