"""The HTTP interface: predictions, explanations, health, metrics, rollback; and the process that serves it."""

import asyncio
import hmac
import ipaddress
import json
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import uvicorn
from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import sparsegroup
from sparsegroup.artifact.validation import finite
from sparsegroup.errors import UserError
from sparsegroup.server.follower import ReleaseFollower, RollbackError
from sparsegroup.server.metrics import CONTENT_TYPE, Metrics
from sparsegroup.server.model import Columns, LoadedModel, NotExplainableError
from sparsegroup.server.rows import BadRowsError, Row

ARROW = "application/vnd.apache.arrow.stream"
"""Media type of rows and predictions as an Arrow IPC stream."""

RELEASE_HEADER = "Sparsegroup-Release"
"""Header of answers with the number of the release that has given them; of an export folder, with the export's id."""

TOKEN_HEADER = "X-Admin-Token"

_PATHS = ("/predict", "/explain", "/health", "/metrics", "/model", "/rollback", "/resume", "/openapi.json")
_EXPLAINED_ROWS = 100
_BAD = 100
"""Bad values that an answer names."""

_RETRY_SECONDS = 1
_DRAIN_SECONDS = 30
_BACKLOG = 2048
_LEFT = 499
"""Status of a request whose client has left, for the metrics."""


@dataclass(frozen=True)
class Limits:
    """What a server takes of its clients.

    Attributes:
        rows: Rows of a request.
        bytes: Bytes of a request's body.
        seconds: How long a request may take, with the time that it waits.
        concurrency: Requests for predictions and explanations at a time, waiting ones included.
        age: Seconds; `/health` fails when the model is older. None for any age.
    """

    rows: int = 10_000
    bytes: int = 16_000_000
    seconds: float = 5.0
    concurrency: int = 64
    age: float | None = None


class _RefusedError(Exception):
    """A request that gets another status than 200."""

    def __init__(self, status: int, error: str, headers: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(error)
        self.answer = _json({"error": error, **more}, status, headers)


def _json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=str)
    return Response(text.encode(), status, headers, "application/json")


class _Service:
    """What the endpoints do. Requests are scored by a few threads, the event loop only reads and answers."""

    def __init__(
        self, follower: ReleaseFollower, metrics: Metrics, limits: Limits, threads: int, admin_token: str | None
    ) -> None:
        self.follower, self.metrics, self.limits = follower, metrics, limits
        self.pool = ThreadPoolExecutor(threads, "sparsegroup-scoring")
        self.admin = ThreadPoolExecutor(1, "sparsegroup-admin")
        self._token, self._inside = admin_token, 0

    async def predict(self, request: Request) -> Response:
        """Predictions for rows."""
        return await self._scored(request, self._predicted)

    async def explain(self, request: Request) -> Response:
        """Why rows have their predictions."""
        return await self._scored(request, self._explained)

    async def health(self) -> Response:
        """Whether there is a model, of an age that is allowed."""
        age, most = self.follower.age, self.limits.age
        if self.follower.model is None:
            raise _RefusedError(503, "no model is loaded yet")
        if most is not None and age is not None and age > most:
            raise _RefusedError(503, f"the model is {age:.0f} s old, more than {most:g} s")
        return _json({"status": "ok"})

    async def model(self) -> Response:
        """The model in service."""
        return _json(finite(self.follower.described()))

    async def figures(self) -> Response:
        """The metrics."""
        return Response(self.metrics.text(), media_type=CONTENT_TYPE)

    async def rollback(self, request: Request) -> Response:
        """Hold an earlier release."""
        self._check_admin(request)
        body = await self._body(request)
        content = _parsed(body) if body.strip() else {}
        number = content.get("release") if isinstance(content, dict) else content
        if not isinstance(content, dict) or not (number is None or type(number) is int):
            raise _RefusedError(400, 'expected {"release": a number}, or nothing for the release that served before')
        loop = asyncio.get_running_loop()
        try:
            model = await loop.run_in_executor(self.admin, self.follower.rollback, number)
        except Exception as error:
            raise _RefusedError(404 if isinstance(error, RollbackError) else 409, str(error)) from error
        return _json({"release": model.release.number, "pinned": True})

    async def resume(self, request: Request) -> Response:
        """Follow the newest release again."""
        self._check_admin(request)
        await asyncio.get_running_loop().run_in_executor(self.admin, self.follower.resume)
        return _json({"pinned": False})

    def _check_admin(self, request: Request) -> None:
        """Refuse a request that is neither from this machine nor has the token.

        One that a proxy has forwarded, or that a page in a browser has sent, does not count as from this machine.
        """
        given = request.headers.get(TOKEN_HEADER)
        if self._token is not None:
            if given is None or not hmac.compare_digest(given.encode(), self._token.encode()):
                raise _RefusedError(403, f"the header {TOKEN_HEADER} must have the server's token")
            return
        foreign = {"forwarded", "x-forwarded-for", "x-real-ip", "origin"} & set(request.headers.keys())
        if request.client is None or foreign or not _is_loopback(request.client.host):
            raise _RefusedError(403, f"only from the server's own machine; start it with a token for {TOKEN_HEADER}")

    async def _scored(self, request: Request, answer: Callable[[LoadedModel, bytes, Request], Response]) -> Response:
        if self._inside >= self.limits.concurrency:
            self.metrics.rejected.inc()
            raise _RefusedError(
                429,
                f"{self._inside} requests are being answered, which is the limit; try again",
                {"Retry-After": str(_RETRY_SECONDS)},
            )
        self._inside += 1
        job: Future[Response] | None = None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.limits.seconds):
                body = await self._body(request)
                if (model := self.follower.model) is None:
                    raise _RefusedError(503, "no model is loaded yet")
                job = self.pool.submit(answer, model, body, request)
                job.add_done_callback(lambda _: _left(loop, self._leave))
                return await asyncio.wrap_future(job)
        except ClientDisconnect:
            return Response(status_code=_LEFT)
        except TimeoutError:
            raise _RefusedError(504, f"not answered within {self.limits.seconds:g} s") from None
        finally:
            if job is None:  # otherwise it has left when its job has ended, which may be later
                self._leave()

    def _leave(self) -> None:
        self._inside -= 1

    async def _body(self, request: Request) -> bytes:
        most = self.limits.bytes
        announced = request.headers.get("content-length", "")
        parts, size = [], int(announced) if announced.isdecimal() else 0
        if size <= most:
            size = 0
            async for part in request.stream():
                parts.append(part)
                if (size := size + len(part)) > most:
                    break
        if size > most:
            raise _RefusedError(413, f"a request may have {most:,} bytes", {"Connection": "close"})
        return b"".join(parts)

    def _predicted(self, model: LoadedModel, body: bytes, request: Request) -> Response:
        with _reasons():
            if _media_type(request, "content-type") == ARROW:
                table = _table(body)
                self._check_count(table.num_rows)
                batch = model.reader.batch_of_frame(table)
            else:
                rows = _rows_in(_parsed(body))
                self._check_count(len(rows))
                batch = model.reader.batch(rows)
            columns = model.predictions(batch)
        self.metrics.rows.inc(len(batch))
        number = model.release.number
        headers = {RELEASE_HEADER: model.release.id if number is None else str(number)}
        if _media_type(request, "accept") == ARROW:
            return Response(_stream(columns, headers[RELEASE_HEADER]), 200, headers, ARROW)
        return _json({"predictions": _by_row(columns), "release": number}, headers=headers)

    def _explained(self, model: LoadedModel, body: bytes, request: Request) -> Response:
        content = _parsed(body)
        permutations = content.get("permutations", 32) if isinstance(content, dict) else 32
        with _reasons():
            rows = _rows_in(content)
            self._check_count(len(rows), _EXPLAINED_ROWS)
            if type(permutations) is not int or not 4 <= permutations <= 1024 or permutations % 2:
                raise _RefusedError(400, f"permutations must be even, from 4 to 1024, got {permutations!r}")
            found = model.explained(rows, permutations)
        return _json(finite({**found, "release": model.release.number}))

    def _check_count(self, rows: int, most: int | None = None) -> None:
        most = min(self.limits.rows, most or self.limits.rows)
        if rows > most:
            raise _RefusedError(413, f"a request may have {most:,} rows, got {rows:,}")


@contextmanager
def _reasons() -> Iterator[None]:
    """Turn errors about rows into answers."""
    try:
        yield
    except BadRowsError as error:
        raise _RefusedError(422, str(error), bad=[vars(one) for one in error.bad[:_BAD]]) from error
    except NotExplainableError as error:
        raise _RefusedError(501, str(error)) from error
    except FloatingPointError as error:
        raise _RefusedError(500, str(error)) from error


def _left(loop: asyncio.AbstractEventLoop, leave: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop has ended, and with it the count
        loop.call_soon_threadsafe(leave)


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _media_type(request: Request, header: str) -> str:
    return request.headers.get(header, "").partition(";")[0].strip().lower()


def _parsed(body: bytes) -> Any:
    try:
        content = json.loads(body)
        if b"\\ud" in body.lower():  # halves of characters, which are no text
            json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise _RefusedError(400, f"the body is not JSON ({error})") from error
    return content


def _rows_in(content: Any) -> Sequence[Row]:
    """The rows of a request: of `{"rows": [...]}`, or the one of `{"row": {...}}`."""
    rows = None
    if isinstance(content, dict) and ("rows" in content) != ("row" in content):
        rows = content["rows"] if "rows" in content else [content["row"]]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _RefusedError(400, 'expected {"rows": [{column: value, ...}, ...]}, or {"row": {column: value, ...}}')
    return rows


def _table(body: bytes) -> pa.Table:
    try:
        table = pa.ipc.open_stream(body).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise _RefusedError(400, f"the body is not an Arrow IPC stream ({' '.join(str(error).split())})") from error
    return table


def _by_row(columns: Columns) -> list[Any]:
    """A number for each row, or where a prediction has several parts, an object."""
    values = [values.tolist() for values in columns.values()]
    return (
        values[0] if len(values) == 1 else [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]
    )


def _stream(columns: Columns, release: str) -> bytes:
    batch = pa.record_batch({name: pa.array(values) for name, values in columns.items()})
    batch = batch.replace_schema_metadata({"release": release})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    found: bytes = sink.getvalue().to_pybytes()
    return found


class _Counted:
    """Counts requests by path and status, and measures how long they take."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        path = scope["path"] if scope["path"] in _PATHS else "other"
        begin, status = time.perf_counter(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.metrics.in_flight.inc()
        try:
            await self.app(scope, receive, noted)
        finally:
            self.metrics.in_flight.dec()
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.latency.labels(path).observe(time.perf_counter() - begin)


def _body_of(description: str, kind: Mapping[str, Any]) -> dict[str, Any]:
    """A request's body in the OpenAPI document."""
    return {"requestBody": {"description": description, "content": {"application/json": {"schema": kind}}}}


_ROW = {"type": "object", "description": "Column of the training log → text, number, boolean, list, or null."}
_ROWS = {"type": "object", "properties": {"rows": {"type": "array", "items": _ROW}, "row": _ROW}}


def create_app(
    follower: ReleaseFollower,
    metrics: Metrics,
    limits: Limits | None = None,
    *,
    threads: int = 1,
    admin_token: str | None = None,
) -> FastAPI:
    """The application that answers for a follower's model.

    It starts no follower. The pages of FastAPI that load scripts of others are off; `/openapi.json` is there.

    Args:
        follower: Has the model.
        metrics: Counts.
        limits: What a request may be.
        threads: Requests that are scored at a time.
        admin_token: What `X-Admin-Token` must have for `/rollback` and `/resume`; None for requests of this machine.
    """
    service = _Service(follower, metrics, limits or Limits(), threads, admin_token)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.pool.shutdown(cancel_futures=True)
        service.admin.shutdown(cancel_futures=True)

    app = FastAPI(
        title="sparsegroup", version=sparsegroup.__version__, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    rows = _body_of(f"Rows as JSON; or, of /predict, an Arrow IPC stream as {ARROW}.", _ROWS)
    number = _body_of("Without it, the release that served before.", {"properties": {"release": {"type": "integer"}}})
    app.post("/predict", response_class=Response, openapi_extra=rows)(service.predict)
    app.post("/explain", response_class=Response, openapi_extra=rows)(service.explain)
    app.get("/health", response_class=Response)(service.health)
    app.get("/model", response_class=Response)(service.model)
    app.get("/metrics", response_class=Response)(service.figures)
    app.post("/rollback", response_class=Response, openapi_extra=number)(service.rollback)
    app.post("/resume", response_class=Response)(service.resume)

    @app.exception_handler(_RefusedError)
    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, _RefusedError)
        return error.answer

    app.add_middleware(_Counted, metrics=metrics)
    return app


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one.

    Raises:
        UserError: The address is taken, or not one of this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small answers without delay only if the protocol is named.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        return listener
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"`port`: cannot listen on {host}:{port} ({reason})", "port") from error


def run(app: FastAPI, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT; requests under way are answered then, for up to 30 s."""
    config = uvicorn.Config(
        app,
        access_log=False,
        log_config=None,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )
    # uvicorn sends itself the signal again once it has drained; the process is to end with 0 then.
    before = {one: signal.signal(one, lambda *_: None) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
