"""`sparsegroup follow` and `sparsegroup watch`."""

import logging
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsegroup.cli.app import UsageError, starting
from sparsegroup.cli.options import OPTIONS, THREADS, Assignments, Threads, setting_values, takes_settings
from sparsegroup.errors import RunError
from sparsegroup.settings.names import Dtype, KeyFormat, ProgramName

if TYPE_CHECKING:
    from sparsegroup.streaming.follow import Follower
    from sparsegroup.streaming.sources.source import Source
    from sparsegroup.training import Config

_logger = logging.getLogger(__name__)

_NEEDS_AN_END = (
    "test", "test_fraction", "test_from", "sort_files", "rows", "epochs", "validation", "patience", "shuffle_buffer",
    "after_first_epoch", "average", "recalibrate", "selection", "schedule", "warmup", "on_bad_row", "max_bad",
    "tensorboard", "mlflow",
)  # fmt: skip
STREAM_OPTIONS = tuple(name for name in OPTIONS if name not in _NEEDS_AN_END)
"""Short names of the settings that a stream can have."""

SOURCE = "Source"
"""Panel of `--help`."""

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run that follows a stream.")]
_TIME = "90s, 15min, 12h or 7d"


@takes_settings(
    *STREAM_OPTIONS,
    model={"show_default": "dcnv2"},
    batch_size={"show_default": "512"},
    baseline={"show_default": "no"},
    checkpoint_minutes={"show_default": "1"},
)
def follow_command(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="A file that grows, a folder, pattern or bucket prefix where files appear, - for standard input (CSV "
            "or JSON lines), kafka://BROKER/TOPIC, or redis://HOST/DB/STREAM.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the run. The same command continues a run where it stopped.")],
    set_: Assignments = None,
    publish: Annotated[
        str | None,
        typer.Option(
            metavar="DESTINATION",
            help="Where to publish the model: a folder, s3://BUCKET/PREFIX or redis://HOST/DB/PREFIX.",
        ),
    ] = None,
    every: Annotated[str, typer.Option(metavar="TIME", help=f"Time between two releases, such as {_TIME}.")] = "30s",
    dtype: Annotated[Dtype, typer.Option(help="Format of the published vectors.")] = "float32",
    keys: Annotated[KeyFormat, typer.Option(help="Format of the published keys, see export.")] = "full",
    onnx: Annotated[
        bool | None,
        typer.Option(
            "--onnx/--no-onnx",
            help="Write model.onnx in whole exports.",
            show_default="if the extra sparsegroup[onnx] is installed",
        ),
    ] = None,
    keep_releases: Annotated[
        int, typer.Option(min=1, help="Whole exports to keep, with their changes, for servers that go back.")
    ] = 5,
    gate_rows: Annotated[
        int,
        typer.Option(
            min=0,
            help="Rows, the last ones, on which a model must be no worse than the published one to take its place; 0 "
            "to publish any.",
        ),
    ] = 20_000,
    clicks: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            rich_help_panel=SOURCE,
            help="A second source, of the positives of SOURCE's rows: a row whose positive comes in time has label 1.",
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN,…",
            rich_help_panel=SOURCE,
            help="With --clicks: columns by which they are joined, such as an id.",
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            rich_help_panel=SOURCE,
            help="With --clicks: how long a row waits for its positive, such as 15min.",
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            rich_help_panel=SOURCE,
            help="With --clicks: column of the rows' times.",
            show_default="time",
        ),
    ] = None,
    click_time: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            rich_help_panel=SOURCE,
            help="With --clicks: column of the positives' times.",
            show_default="that of --time",
        ),
    ] = None,
    late: Annotated[
        str | None,
        typer.Option(
            metavar="[drop|positive]",
            rich_help_panel=SOURCE,
            help="With --clicks: what becomes of positives that come later; as rows they correct their negatives, with "
            "--objective fake_negatives.",
            show_default="drop",
        ),
    ] = None,
    late_window: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            rich_help_panel=SOURCE,
            help="With --late positive: how much later they count.",
            show_default="--window, at least 1h",
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="[name|time]",
            rich_help_panel=SOURCE,
            help="Order of files: by name (day9 before day10), or by the time of their last change.",
            show_default="name",
        ),
    ] = None,
    settle: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            rich_help_panel=SOURCE,
            help="How long a file must not have changed to be complete.",
            show_default="5s",
        ),
    ] = None,
    missing_columns: Annotated[
        str | None,
        typer.Option(
            metavar="[error|empty]",
            rich_help_panel=SOURCE,
            help="Stop at a file without a column that the model reads, or read the column as empty.",
            show_default="error",
        ),
    ] = None,
    lost: Annotated[
        str | None,
        typer.Option(
            metavar="[error|skip]",
            rich_help_panel=SOURCE,
            help="Stop if a broker has deleted rows that were not read yet, or continue after them.",
            show_default="error",
        ),
    ] = None,
    continue_: Annotated[
        Path | None, typer.Option("--continue", metavar="RUN", help="Begin with the model of a finished run.")
    ] = None,
    first_rows: Annotated[
        int, typer.Option(min=2, help="Rows to wait for at the beginning: they decide what the columns are.")
    ] = 10_000,
    first_wait: Annotated[
        str, typer.Option(metavar="TIME", help="How long to wait for them once there are some.")
    ] = "10s",
    until_idle: Annotated[
        str | None, typer.Option(metavar="TIME", help="End if no row has come for so long.", show_default="never")
    ] = None,
    *,
    settings: Mapping[str, Any],
    threads: Threads = THREADS,
) -> None:
    """Predict and then learn each row of a stream, for ever, and publish the model every so often.

    A run that was killed at any moment continues by the same command: no row is learnt twice or left out, if the source
    can be read again. SIGTERM and Ctrl-C save the state and end it.
    """
    seconds = {name: _seconds(name, text) for name, text in (("every", every), ("first-wait", first_wait))}
    idle = None if until_idle is None else _seconds("until-idle", until_idle)
    times = {"window": window, "late_window": late_window, "settle": settle}
    of_source: Any = {"clicks": clicks, "on": on, "time": time, "click_time": click_time, "late": late}
    of_source |= {name: _seconds(name.replace("_", "-"), text) for name, text in times.items() if text is not None}
    with starting(threads):
        from sparsegroup.publishing import Publisher, open_destination
        from sparsegroup.streaming.publication import Publication
        from sparsegroup.streaming.sources import open_source

    values = setting_values(None, settings, set_)
    of_source |= {"sort": sort, "missing_columns": missing_columns, "lost": lost}
    rows = open_source(source[0] if len(source) == 1 else source, **of_source)
    destination = None if publish is None else open_destination(publish)
    follower = _follower(out, rows, values, continue_, first_rows, seconds["first-wait"])
    publication = None
    if destination is not None:
        formats: list[ProgramName] | None = None if onnx is None else ["onnx"] if onnx else []
        publisher = Publisher(destination, dtype=dtype, keys=keys, formats=formats, keep=keep_releases)
        objective = follower.model.objective
        run = follower.run.provenance().run
        publication = Publication(publisher, objective, run, every=seconds["every"], gate_rows=gate_rows)
    _logger.info(
        f"{rows.name}: {len(follower.log.fields)} fields, {len(follower.log.numbers)} numbers"
        f"{f', continuing after {follower.trainer.samples:,} rows' if follower.trainer.samples else ''}; "
        f"writing to {out}"
    )
    with _stopped_by_signals() as stop:
        follower.follow(publication, stop=stop, until_idle=idle, threads=threads)
    _logger.info(f"ended after {follower.trainer.samples:,} rows; the same command continues")


def watch_command(
    run: Run,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Serve a live page at this port.")] = None,
    host: Annotated[str, typer.Option(help="Address to serve it at.")] = "127.0.0.1",
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the page.")] = None,
    webhook: Annotated[
        str | None, typer.Option(metavar="URL", help="POST the warnings there, as JSON, when there are others.")
    ] = None,
    every: Annotated[
        str, typer.Option(metavar="TIME", help="With --webhook or --port: time between two looks.")
    ] = "10s",
) -> None:
    """Look at a run that follows a stream: warnings in a sentence each, and key figures.

    The exit status is 3 if there are warnings.

    With --port or --webhook it looks again and again, until it is stopped.
    """
    seconds = _seconds("every", every)
    with starting():
        from sparsegroup.artifact.folder import write_atomically
        from sparsegroup.cli.output import figures, show
        from sparsegroup.streaming.watch import View, post_warnings, render, serve_page

    view = View.of(run)
    if html is not None:
        page = render(view)
        write_atomically(html, lambda path: path.write_text(page, encoding="utf-8"))
    if port is None and webhook is None:
        show(view.as_plain(), figures(view.in_words()))
        for warning in view.warnings:
            _logger.warning(warning)
        raise typer.Exit(3 if view.warnings else 0)
    with _stopped_by_signals() as stop:
        if port is not None:
            address = serve_page(run, host, port, round(seconds), stop)
            _logger.info(f"the page is at {address}")
        posted: set[str] | None = None
        while not stop.is_set():
            try:
                findings: Mapping[str, str] = View.of(run).findings
            except RunError as error:  # it may come back
                findings = {"unreadable": str(error)}
            if webhook is not None and set(findings) != posted:
                posted = set(findings) if post_warnings(webhook, run, tuple(findings.values())) else posted
            stop.wait(seconds)


def _seconds(option: str, text: str) -> float:
    from sparsegroup.settings.declared import age_of

    try:
        found = age_of(text)
    except ValueError:
        found = {}
    if "seconds" not in found:
        raise UsageError(f"--{option} wants a time, such as {_TIME}: got {text!r}")
    return float(found["seconds"])


def _follower(
    out: Path, source: "Source", values: Mapping[str, Any], before: Path | None, first_rows: int, patience: float
) -> "Follower":
    """The run in `out`, which continues if there is one."""
    from sparsegroup.streaming.follow import Follower
    from sparsegroup.training import load_run, read_config
    from sparsegroup.training.run_folder import RunFolder, find_run

    run = RunFolder(out)
    if run.has_begun:
        _check_the_same(run.config(), values, out)
        return Follower.resume(out, source)
    config = read_config(None, values, "the command line")
    trained = None
    if before is not None:
        from sparsegroup.cli.runs import continued_config

        config = continued_config(RunFolder(find_run(before)).finished_config(), dict(values))
        trained = load_run(before, config)
    return Follower.begin(out, config, source, trained, first_rows=first_rows, patience=patience)


def _check_the_same(config: "Config", values: Mapping[str, Any], out: Path) -> None:
    """Raise UsageError if the command line has other settings than the run that it continues."""
    asked = config.replace().with_keys(values, "the command line")
    for key in values:
        section, name = key.split(".")
        ours, theirs = (getattr(getattr(one, section), name) for one in (config, asked))
        if ours != theirs:
            raise UsageError(
                f"{key} is {theirs}, but the run in {out} has {ours}; leave it out, or begin another run with another "
                "--out"
            )


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; a second one has its usual effect."""
    stop, before = threading.Event(), dict[int, Any]()

    def handle(number: int, frame: object) -> None:
        stop.set()
        signal.signal(number, before[number])

    for one in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(one) is not signal.SIG_IGN:
            before[one] = signal.signal(one, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
