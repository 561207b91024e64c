"""`sparsegroup demo`."""

from functools import partial
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from sparsegroup.cli.app import THREADS, Threads, app, console, use_threads
from sparsegroup.cli.progress import training_bar
from sparsegroup.data import SyntheticConfig, synthetic_log
from sparsegroup.experiments.compare import Outcome, compare
from sparsegroup.prox import Penalty
from sparsegroup.training import Config


@app.command("demo")
def demo_command(
    rows: Annotated[int, typer.Option(min=100, help="Size of the synthetic log.")] = 500_000,
    l21: Annotated[float, typer.Option(help="λ21 of Group Adam.")] = 1e-3,
    penalty: Annotated[Penalty, typer.Option(help="Shape of the group threshold.")] = "lasso",
    lr: Annotated[float, typer.Option(help="Learning rate of all.")] = 1e-2,
    seed: Annotated[int, typer.Option(help="Of the log and of the training.")] = 0,
    threads: Threads = THREADS,
) -> None:
    """Adam, Adam with magnitude pruning and Group Adam on a synthetic click log, side by side."""
    use_threads(threads)
    config = Config.of(lr=lr, l21=l21, penalty=penalty, seed=seed)
    data = synthetic_log(SyntheticConfig(rows=rows), seed)
    informative = 0 if data.informative is None else len(np.intersect1d(data.informative, data.keys[: data.train_rows]))
    console.print(
        f"A synthetic click log: {len(data):,} rows, {data.features:,} features, of which "
        f"{informative / data.features:.0%} have an effect on the click and the rest are noise.\n"
        "A DCN is trained on the first 90 % in one pass, and tested on the rest.",
        highlight=False,
    )
    console.print(_comparison(compare(data, config, partial(training_bar, data.train_rows))))


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
