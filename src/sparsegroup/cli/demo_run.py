"""What `sparsegroup demo` does."""

from functools import partial

import numpy as np
from rich.table import Table

from sparsegroup.cli.app import console
from sparsegroup.cli.progress import training_bar
from sparsegroup.data import SyntheticConfig, synthetic_log
from sparsegroup.names import PenaltyName
from sparsegroup.training import Config
from sparsegroup.training.comparison import MethodScore, compare


def demo_run(rows: int, l21: float, penalty: PenaltyName, lr: float, seed: int) -> None:
    """Compare three methods; the arguments are those of the command."""
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


def _comparison(scores: list[MethodScore]) -> Table:
    table = Table(caption="table: 8-byte key and float32 vector of each feature that is not exactly zero")
    for column in ("", "test AUC", "log loss", "feature rate", "table", "informative"):
        table.add_column(column, justify="left" if not column else "right")
    for method in scores:
        table.add_row(
            method.name,
            f"{method.test.auc:.4f}",
            f"{method.test.log_loss:.4f}",
            f"{method.feature_rate:.2%}",
            f"{method.table_bytes / 1e6:.2f} MB",
            "" if method.informative is None else f"{method.informative:.0%}",
        )
    return table
