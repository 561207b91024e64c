"""`sparsegroup serve`: a model over HTTP."""

import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsegroup.cli.app import UsageError, starting
from sparsegroup.names import bytes_of, seconds_of

_logger = logging.getLogger(__name__)

_SWITCH_SECONDS = 0.0005
"""After so long a thread gives way to another that waits, so that a swap does not hold up requests."""


def serve_command(
    destination: Annotated[
        str, typer.Argument(metavar="DESTINATION", help="A destination of releases, or the folder of one export.")
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all of the machine's.")] = "127.0.0.1",
    poll: Annotated[str, typer.Option(metavar="TIME", help="How often to look for a newer release.")] = "1s",
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Keep fetched releases here, also for a start while DESTINATION cannot be reached.",
            show_default="a temporary one",
        ),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The schema of the training log, for a model whose settings do not contain it."
        ),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Requests scored at a time, and onnxruntime's threads.")] = 1,
    max_rows: Annotated[int, typer.Option(min=1, help="Rows of a request, at most.")] = 10_000,
    max_bytes: Annotated[str, typer.Option(metavar="SIZE", help="Size of a request, at most.")] = "16MB",
    timeout: Annotated[str, typer.Option(metavar="TIME", help="How long a request may take, waiting included.")] = "5s",
    concurrency: Annotated[
        int, typer.Option(min=1, help="Requests at a time, waiting ones included; more are refused.")
    ] = 64,
    max_connections: Annotated[
        int, typer.Option(min=1, help="Connections at a time, idle ones included; more are refused.")
    ] = 1000,
    max_age: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Report ill health when the model is older.", show_default="any age"),
    ] = None,
    admin_token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            envvar="SPARSEGROUP_ADMIN_TOKEN",
            help="What the header X-Admin-Token must have for rollback and resume.",
            show_default="rollback and resume are refused",
        ),
    ] = None,
) -> None:
    """Score rows over HTTP, and take each published release as it comes.

    POST rows to /predict: {"rows": [{"site": "a", "price": 3}]}. Also /explain, /health, /metrics, /model, /rollback
    and /resume.
    """
    given: dict[str, Any] = {
        "rows": max_rows,
        "bytes": _read("max_bytes", bytes_of, max_bytes),
        "seconds": _read("timeout", seconds_of, timeout),
        "concurrency": concurrency,
        "connections": max_connections,
        "age": None if max_age is None else _read("max_age", seconds_of, max_age),
    }
    wait = _read("poll", seconds_of, poll)
    with starting(1):
        from sparsegroup.server import (
            ExportFolder,
            Limits,
            Metrics,
            ReleaseFollower,
            create_app,
            listening,
            open_releases,
            run,
        )

    metrics, source = Metrics(), open_releases(destination, cache)
    follower = ReleaseFollower(source, metrics, poll=wait, threads=threads, schema=schema)
    limits = Limits(**given)
    app = create_app(follower, metrics, limits, threads=threads, admin_token=admin_token)
    with listening(host, port) as listener:
        if isinstance(source, ExportFolder):
            follower.load_newest()  # an export does not mend: its error ends the command
        sys.setswitchinterval(_SWITCH_SECONDS)
        _logger.info("listening on http://%s:%d", host, listener.getsockname()[1])
        follower.start()
        try:
            run(app, listener, limits)
        finally:
            follower.stop()
    _logger.info("ended; all requests are answered")


def _read(option: str, read: Any, given: str) -> Any:
    try:
        return read(given)
    except ValueError as error:
        raise UsageError(f"--{option.replace('_', '-')}: {error}") from error
