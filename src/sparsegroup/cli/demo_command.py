"""`sparsegroup demo`: its options."""

from typing import Annotated

import typer

from sparsegroup.cli.app import THREADS, Threads, app, starting, use_threads
from sparsegroup.cli.output import Json, Quiet, Verbose


@app.command("demo")
def demo_command(
    rows: Annotated[int, typer.Option(min=100, help="Size of the synthetic log.")] = 500_000,
    target_rate: Annotated[str, typer.Option(help="Share of the features to ask for.")] = "3%",
    l21: Annotated[float, typer.Option(help="Constant λ21 of Group Adam, as in the paper.")] = 1e-3,
    lr: Annotated[float, typer.Option(help="Learning rate of Adam and Group Adam.")] = 1e-2,
    seed: Annotated[int, typer.Option(help="Seed of the log and of the training.")] = 0,
    threads: Threads = THREADS,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Adam, pruned Adam, Group Adam as in the paper, and a target rate, side by side on a synthetic log."""
    with starting():
        from sparsegroup.cli.demo_run import demo_run
        from sparsegroup.cli.run_settings import share_given

    use_threads(threads)
    demo_run(rows, share_given("--target-rate", target_rate), l21, lr, seed)
