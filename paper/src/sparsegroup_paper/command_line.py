"""The command line: `sparsegroup-paper run`, `report`, `overview` and `synthesize`."""

import platform
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from threadpoolctl import threadpool_limits

from sparsegroup.errors import UserError, did_you_mean
from sparsegroup_paper import tables
from sparsegroup_paper.datasets import NETWORKS, SYNTHETIC, Scale, open_dataset, whole_of
from sparsegroup_paper.equal_bytes.experiment import equal_bytes
from sparsegroup_paper.frontier import frontier
from sparsegroup_paper.lab import Lab, Recipe
from sparsegroup_paper.overview import INDEX, MARKS, write_overview
from sparsegroup_paper.public_shapes import DATASETS, synthesize
from sparsegroup_paper.published import published
from sparsegroup_paper.regret import GAMES, regret
from sparsegroup_paper.report import read_report, write_pages, write_report, write_section
from sparsegroup_paper.section import Facts, Section

EXPERIMENTS: Mapping[str, Callable[[Lab], Section]] = {
    "learning-rate": tables.learning_rate,
    "sparsity-vs-auc": tables.sparsity_vs_auc,
    "fine-tune": tables.fine_tune,
    "best-auc": tables.best_auc,
    "norm": tables.norm,
    "l1-vs-l21": tables.l1_vs_l21,
    "embedding-dim": tables.embedding_dim,
    "family": tables.family,
    "frontier": frontier,
    "bytes": equal_bytes,
}
"""Experiments on a log. The regret is not one: it is on convex problems."""

REGRET, ALL = "regret", "all"
BEYOND_ALL = ("bytes", REGRET)
"""Experiments that `all` leaves out: one is as long as all others together, one needs no log."""

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Repeat the experiments of Yue et al. (2021), and sum up their reports.",
)
console = Console()


def main() -> None:
    """Run the command line; what the user can mend is one line on stderr and exit status 2."""
    for stream in (sys.stdout, sys.stderr):  # an encoding that has no λ is no reason to fail
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except UserError as error:
        _fail(error.spelled(lambda parameter: "--" + parameter.replace("_", "-")))
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _fail(message: str) -> None:
    Console(stderr=True).print(f"error: {message}", markup=False, highlight=False, soft_wrap=True)
    sys.exit(2)


@app.command("run")
def run_command(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help=f"Experiments: {', '.join((*EXPERIMENTS, REGRET))}; or {ALL} but the last two.",
            show_default=False,
        ),
    ],
    dataset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|CONFIG.yaml",
            help=f"{', '.join(NETWORKS)}; or a YAML file of settings, for a log of your own. {REGRET} needs none.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Its log: a folder that `prepare` has written, or a raw log.", show_default=False),
    ] = None,
    test: Annotated[
        Path | None, typer.Option(help="A raw log of its own for the test set.", show_default=False)
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Seeds of each configuration.")] = 5,
    scale: Annotated[
        Scale,
        typer.Option(help="small: 100,000 rows of the log, around the place where the test set begins; full: all."),
    ] = "full",
    recipe: Annotated[
        Recipe,
        typer.Option(help="Learning rates and λ: searched on the last tenth of the training rows, or the paper's."),
    ] = "searched",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the runs; default runs/paper/<data set>.", show_default=False),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Folder for the report; default that of the runs.", show_default=False)
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes.", show_default="the cores")] = None,
) -> None:
    """Repeat the paper's tables and figures on a data set; the report is JSON, Markdown and one HTML page.

    Each run is written to disk when it ends, and is not made again: a command that was interrupted resumes there.
    """
    for name in names:
        if name not in (known := (*EXPERIMENTS, REGRET, ALL)):
            hint = did_you_mean(name, known) or f"there are {', '.join(known)}"
            raise UserError(f"no experiment {name!r}; {hint}")
    whole = [name for name in EXPERIMENTS if name not in BEYOND_ALL]
    wanted = list(dict.fromkeys(one for name in names for one in (whole if name == ALL else [name])))
    on_log = [name for name in wanted if name != REGRET]
    if dataset is None and on_log:
        raise UserError(f"{on_log[0]} wants a data set: give --dataset, one of {', '.join(NETWORKS)}, or a YAML file")
    if dataset is None and (data is not None or test is not None):
        raise UserError("--data and --test are for a --dataset")
    folder = Path("runs/paper", REGRET if dataset is None else Path(dataset).stem) if out is None else out
    shown = folder if report is None else report
    of_log = {} if dataset is None else {"scale": scale, "recipe": recipe}
    logs = {name: path.name for name, path in (("data", data), ("test", test)) if path is not None}
    given = {**({} if dataset is None else {"dataset": dataset}), **logs, "runs": str(runs), **of_log}
    options = " ".join(f"--{name} {shlex.quote(value)}" for name, value in given.items())
    try:
        if dataset is None:
            _regret(shown, runs)
            _report(shown, "convex online problems", (), None, options)
        else:
            columns = TextColumn("{task.description}"), TimeElapsedColumn()
            with Progress(*columns, console=console, transient=True) as bar:
                task = bar.add_task("opening the log", total=None)
                opened = open_dataset(
                    *(dataset, data, test, scale, folder),
                    lambda done: bar.update(task, description=f"preparing: {done.rows:,} rows"),
                )
            with Lab(opened, folder, runs=runs, workers=workers, recipe=recipe, reporting=_reporting) as lab:
                for name in wanted:
                    console.rule(name, align="left")
                    if name == REGRET:
                        _regret(shown, runs)
                    else:
                        write_section(EXPERIMENTS[name](lab), shown)
                    _report(shown, opened.name, _facts(lab), lab.results.seconds() / 3600, options)
    except KeyboardInterrupt:
        raise UserError(f"interrupted; the same command resumes with the runs in {folder}") from None
    _say(f"report: {shown / 'report.html'}, {shown / 'report.md'}")


def _say(text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


@contextmanager
def _reporting(name: str, total: int) -> Iterator[Callable[[int], None]]:
    counts = TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn()
    with Progress(*counts, TimeElapsedColumn(), TimeRemainingColumn(compact=True), console=console) as bar:
        task = bar.add_task(name, total=total)
        yield lambda done: bar.update(task, completed=done)


def _regret(folder: Path, runs: int) -> None:
    with threadpool_limits(1), _reporting("online problems", GAMES) as on_progress:  # too small to share its matrices
        write_section(regret(runs=runs, on_progress=on_progress), folder)


def _facts(lab: Lab) -> tuple[tuple[str, str], ...]:
    log, runs, whole = lab.log, len(lab.seeds), len(whole_of(lab.log))
    used = f"{len(log):,}" + (f" of {whole:,}, around the place where the test set begins" if len(log) < whole else "")
    features, full = log.features, published()["setup"]["runs"]
    return (
        *((("log", "made up, see `sparsegroup-paper synthesize`"),) if lab.dataset.name.startswith(SYNTHETIC) else ()),
        ("rows", f"{used}: {log.train_rows:,} for training, {len(log) - log.train_rows:,} for testing"),
        ("fields", f"{len(log.fields)} categorical, {len(log.numbers)} numeric"),
        *((("features in the training rows", f"{features:,}"),) if features is not None else ()),
        ("network", lab.config.model.name.upper()),
        ("seeds", f"{runs}" + (f", a part of the paper's {full}" if runs < full else "")),
        *((("λ21 and learning rates", "the paper's alone, nothing is searched"),) if lab.recipe == "paper" else ()),
    )


def _report(folder: Path, name: str, data: tuple[tuple[str, str], ...], hours: float | None, options: str) -> None:
    command = f"sparsegroup-paper run {' '.join(section.name for section in read_report(folder).sections)} {options}"
    packages = ("sparsegroup", "torch", "numpy", "numba", "scikit-learn", "scipy")
    versions = (("python", platform.python_version()), *((package, version(package)) for package in packages))
    write_report(folder, Facts(name, data, command, datetime.now(UTC).date().isoformat(), hours, versions))


@app.command("report")
def report_command(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Each with a report.json of `run`.")],
) -> None:
    """Make the pages of reports again: report.html, and report.md with its figures."""
    for folder in folders:
        write_pages(folder)
        _say(f"{folder / 'report.html'}, {folder / 'report.md'}")


@app.command("overview")
def overview_command(
    folder: Annotated[Path, typer.Argument(help="Its subfolders are reports that `run` has written.")],
    into: Annotated[
        Path | None,
        typer.Option(
            metavar="PAGE", help=f"A page with the lines {' and '.join(MARKS)}.", show_default=f"FOLDER/{INDEX}"
        ),
    ] = None,
) -> None:
    """Sum up several reports, in a page of their own or between two lines of a page."""
    names = write_overview(folder, into)
    if not names:
        raise UserError(f"{folder}: no reports in its subfolders")
    _say(f"{into or folder / INDEX}: {', '.join(names)}")


@app.command("synthesize")
def synthesize_command(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help=f"Public log whose shape to imitate: {', '.join(DATASETS)}.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the log, as `sparsegroup prepare` writes it.")],
    rows: Annotated[
        int | None, typer.Option(help="Number of rows.", show_default="as many as the real log has")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
) -> None:
    """Make up a log with the fields, the skew and the late features of a public one, and known effects."""
    if dataset not in DATASETS:
        raise UserError(f"no data set {dataset!r}; there are {', '.join(DATASETS)}")
    shape = DATASETS[dataset]
    wanted = shape.full_rows if rows is None else rows
    with _reporting(dataset, wanted) as on_progress:
        try:
            log = synthesize(shape, wanted, out, seed, on_progress)
        except ValueError as error:
            raise UserError(str(error)) from error
    _say(f"{out}: {len(log):,} rows, {log.train_rows:,} of them for training, with {log.features:,} features")
