"""`sparsegroup demo`: four methods side by side on a synthetic log."""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sparsegroup.cli.app import THREADS, Threads, starting, use_threads
from sparsegroup.cli.output import show

if TYPE_CHECKING:
    from sparsegroup.training.compare import ModelScore

_logger = logging.getLogger(__name__)


def demo_command(
    rows: Annotated[int, typer.Option(min=100, help="Size of the synthetic log.")] = 500_000,
    target_rate: Annotated[str, typer.Option(help="Share of the features to ask for.")] = "3%",
    l21: Annotated[float, typer.Option(help="Constant λ21 of Group Adam, as in the paper.")] = 1e-3,
    lr: Annotated[float, typer.Option(help="Learning rate of Adam and Group Adam.")] = 1e-2,
    seed: Annotated[int, typer.Option(help="Seed of the log and of the training.")] = 0,
    threads: Threads = THREADS,
) -> None:
    """Adam, pruned Adam, Group Adam as in the paper, and a target rate, side by side on a synthetic log."""
    with starting():
        from sparsegroup.cli.progress import training_bar
        from sparsegroup.cli.run_settings import share_given
        from sparsegroup.data import SyntheticConfig, synthetic_log
        from sparsegroup.training import Config
        from sparsegroup.training.compare import compare

    use_threads(threads)
    share = share_given("--target-rate", target_rate)
    configs = {
        "Group Adam, fixed λ": Config.of(model="dcn", lr=lr, l21=l21, seed=seed),
        "Target rate": Config.of(model="dcn", target_rate=share, seed=seed),
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


def _comparison(scores: "Sequence[ModelScore]") -> Table:
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
            f"{method.bytes / 1e6:.2f} MB",
            "" if method.informative is None else f"{method.informative:.0%}",
        )
    return table
