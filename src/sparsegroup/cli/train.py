"""`sparsegroup train`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sparsegroup.cli.app import THREADS, Threads, UsageError, app, console, train_config, use_threads
from sparsegroup.cli.progress import training_bar
from sparsegroup.data import ClickLog, PreparedLog, SyntheticConfig, read_csv, synthetic_log
from sparsegroup.data.csv import OnBadRow
from sparsegroup.prox import Norm, Penalty
from sparsegroup.training import TrainConfig, save_run, train
from sparsegroup.training.click_model import ModelName
from sparsegroup.training.config import OptimizerName


@app.command("train")
def train_command(
    log: Annotated[
        Path | None,
        typer.Argument(
            help="A folder that `prepare` has written, or a CSV log with a header, plain, .gz, .bz2, .xz or .zst. "
            "Default: a synthetic log.",
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
    threads: Threads = THREADS,
) -> None:
    """Train on a click log, one pass in time order, and report AUC, log loss and feature rate on its last part.

    Every column is a categorical feature, but for the label, `id`, `ts`, `timestamp` and `split`.
    """
    use_threads(threads)
    config = train_config(
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
    data: ClickLog | PreparedLog
    if log is None:
        data = synthetic_log(SyntheticConfig(rows=rows), seed)
    elif log.is_dir():
        data = PreparedLog(log)
    else:
        with console.status(f"reading {log}"):
            data, bad = read_csv(
                log, label=label, exclude=exclude or (), on_bad_row=on_bad_row, test_fraction=test_fraction
            )
        if bad.count:
            console.print(str(bad), style="yellow", markup=False, highlight=False, soft_wrap=True)
    numbers = f"{len(data.numbers)} numbers, " if data.numbers else ""
    console.print(
        f"{data.name}: {data.train_rows:,} training and {len(data) - data.train_rows:,} test rows, "
        f"{len(data.fields)} fields, {numbers}{data.features:,} features",
        highlight=False,
        soft_wrap=True,
    )
    network, group_optimizer = config.build(data)
    with training_bar(data.train_rows, f"{model.upper()}, {optimizer}") as (on_batch, on_progress):
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
