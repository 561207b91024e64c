"""What `sparsegroup demo` does."""

import logging
from dataclasses import asdict
from functools import partial

from rich.table import Table

from sparsegroup.cli.output import show
from sparsegroup.cli.progress import training_bar
from sparsegroup.data import SyntheticConfig, synthetic_log
from sparsegroup.training import Config
from sparsegroup.training.comparison import MethodScore, compare

_logger = logging.getLogger(__name__)


def demo_run(rows: int, target_rate: float, l21: float, lr: float, seed: int) -> None:
    """Compare four methods; the arguments are those of the command."""
    configs = {
        "Group Adam, fixed λ": Config.of(model="dcn", lr=lr, l21=l21, seed=seed),
        "Target rate": Config.of(model="dcn", target_rate=target_rate, seed=seed),
    }
    data = synthetic_log(SyntheticConfig(rows=rows), seed)
    informative = int(data.are_informative(data.seen).sum())
    _logger.info(
        f"A synthetic click log: {len(data):,} rows, {data.features:,} features, of which "
        f"{informative / data.features:.0%} have an effect on the click and the rest are noise.\n"
        "A DCN is trained on the first 90 % in one pass, and tested on the rest."
    )
    samples = max(config.resolved_for(data).training.plan(data.train_rows).samples for config in configs.values())
    scores = compare(data, configs, partial(training_bar, samples))
    show({"rows": len(data), "methods": [asdict(score) for score in scores]}, _comparison(scores))


def _comparison(scores: list[MethodScore]) -> Table:
    table = Table(
        caption="fixed λ: as in the paper; target rate: as with `sparsegroup train --target-rate`\n"
        "rate: features that are not exactly zero; table: their 8-byte keys and float32 vectors"
    )
    for column in ("", "test AUC", "log loss", "rate", "table", "informative"):
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
