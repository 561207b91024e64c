"""The HTTP interface: predictions, explanations, health, metrics, rollback."""

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import sparsegroup
from sparsegroup.artifact.validation import finite
from sparsegroup.data.batches import Batch
from sparsegroup.errors import UserError
from sparsegroup.server.arrow import VALUE_BYTES, StreamError, TooLargeError, read_table
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
_EXPLANATIONS = 4
"""Requests for explanations at a time, waiting ones included."""

_BAD = 100
"""Bad values that an answer names."""

_RETRY_SECONDS = 1
_DISCARDED = 8
"""Multiple of the limit of bytes up to which a body that is too large is read and discarded before the answer.

Otherwise a client that still sends would lose the answer together with the connection.
"""

_LEFT = 499
"""Status of a request whose client has left, for the metrics."""


@dataclass(frozen=True)
class Limits:
    """Limits of requests and connections.

    Attributes:
        rows: Largest number of rows of a request.
        bytes: Bytes of a request's body; of an Arrow stream also after decompression, and with each value written out.
            A request may have a value for each 8 of these bytes.
        seconds: Time for a body to arrive, and time for the answer, which includes the wait for other requests.
        concurrency: Requests for predictions at a time, waiting ones included.
        connections: Connections of clients at a time, idle ones included.
        idle: Seconds from the connection or the last answer until the headers of a request must arrive.
        age: Age of the model in seconds from which `/health` fails; None for no limit.
    """

    rows: int = 10_000
    bytes: int = 16_000_000
    seconds: float = 5.0
    concurrency: int = 64
    connections: int = 1000
    idle: float = 10.0
    age: float | None = None


class _RefusedError(Exception):
    """A request that gets another status than 200."""

    def __init__(self, status: int, error: str, headers: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(error)
        self.answer = _json({"error": error, **more}, status, headers)


def _json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=str)
    return Response(text.encode(), status, headers, "application/json")


class _Lane:
    """Threads for one kind of request, and the count of waiting and running requests."""

    def __init__(self, name: str, threads: int, most: int) -> None:
        self.pool = ThreadPoolExecutor(threads, f"sparsegroup-{name}")
        self.most, self.inside = most, 0

    async def run(self, job: Callable[[], Response]) -> Response:
        """Return the result of a job. The job counts until its end, even if the request times out earlier."""
        loop = asyncio.get_running_loop()
        self.inside += 1
        future = self.pool.submit(job)
        future.add_done_callback(lambda _: self._end(loop))
        return await asyncio.wrap_future(future)

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it the count
            loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        self.inside -= 1


class _Service:
    """Endpoints of the server. Threads score and explain. The event loop only reads requests and sends answers.

    Explanations have a separate thread, because an explanation takes as long as thousands of predictions.
    """

    def __init__(
        self, follower: ReleaseFollower, metrics: Metrics, limits: Limits, threads: int, admin_token: str | None
    ) -> None:
        self.follower, self.metrics, self.limits = follower, metrics, limits
        self.scoring = _Lane("scoring", threads, limits.concurrency)
        self.explaining = _Lane("explaining", 1, min(_EXPLANATIONS, limits.concurrency))
        self.admin = ThreadPoolExecutor(1, "sparsegroup-admin")
        self._token = None if admin_token is None else admin_token.encode()
        self._arriving = 0  # bytes of bodies that are not complete yet

    async def predict(self, request: Request) -> Response:
        """Predictions for rows."""
        return await self._answered(request, self.scoring, self._predicted)

    async def explain(self, request: Request) -> Response:
        """Why rows have their predictions."""
        return await self._answered(request, self.explaining, self._explained)

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
        content = self._parsed(body) if body.strip() else {}
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
        """Refuse a request without the server's token, and every request if the server has no token.

        The client's address proves nothing, because a proxy on this machine forwards requests from other machines.
        """
        if self._token is None:
            raise _RefusedError(
                403, f"start the server with a token to use this; the header {TOKEN_HEADER} has it then"
            )
        given = request.headers.get(TOKEN_HEADER)
        if given is None or not hmac.compare_digest(given.encode("latin-1"), self._token):  # as Starlette decodes it
            raise _RefusedError(403, f"the header {TOKEN_HEADER} must have the server's token")

    async def _answered(
        self, request: Request, lane: _Lane, answer: Callable[[LoadedModel, bytes, Request, float], Response]
    ) -> Response:
        """Read a body and answer the request in a thread."""
        self._check_room(lane)
        body = await self._body(request)
        self._check_room(lane)
        if (model := self.follower.model) is None:
            raise _RefusedError(503, "no model is loaded yet")
        deadline = time.monotonic() + self.limits.seconds
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await lane.run(partial(answer, model, body, request, deadline))
        except TimeoutError:
            raise _RefusedError(504, f"not answered within {self.limits.seconds:g} s") from None

    def _check_room(self, lane: _Lane) -> None:
        if lane.inside >= lane.most:
            raise self._busy(f"{lane.inside} such requests are being answered, which is the limit; try again")

    def _busy(self, reason: str) -> _RefusedError:
        self.metrics.rejected.inc()
        return _RefusedError(429, reason, {"Retry-After": str(_RETRY_SECONDS), "Connection": "close"})

    async def _body(self, request: Request) -> bytes:
        """Return the whole body. All incomplete bodies together take at most `concurrency` times the limit of bytes."""
        most, parts, size = self.limits.bytes, list[bytes](), 0
        length = request.headers.get("content-length", "")
        announced = int(length) if length.isdecimal() else 0
        too_large = _RefusedError(413, f"a request may have {most:,} bytes", {"Connection": "close"})
        if announced > most and "expect" in request.headers:  # the client waits before it sends the body
            raise too_large
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for part in request.stream():
                    size += len(part)
                    if size > _DISCARDED * most:
                        raise too_large
                    if max(size, announced) > most:
                        self._arriving -= sum(map(len, parts))
                        parts.clear()
                        continue
                    if self._arriving + len(part) > self.limits.concurrency * most:
                        raise self._busy("too many bytes of other requests are arriving; try again")
                    self._arriving += len(part)
                    parts.append(part)
        except TimeoutError:
            if size > most:
                raise too_large from None
            reason = f"the body did not arrive within {self.limits.seconds:g} s"
            raise _RefusedError(408, reason, {"Connection": "close"}) from None
        finally:
            self._arriving -= sum(map(len, parts))
        if size > most:
            raise too_large
        return b"".join(parts)

    def _predicted(self, model: LoadedModel, body: bytes, request: Request, deadline: float) -> Response:
        with _reasons():
            if _media_type(request, "content-type") == ARROW:
                table = read_table(body, model.reader.columns, self.limits.rows, self.limits.bytes)
                batch = model.reader.batch_of_frame(table)
            else:
                rows = _rows_in(self._parsed(body))
                self._check_count(len(rows))
                batch = model.reader.batch(rows)
            self._check_values(batch)
            columns = model.predictions(batch)
        self.metrics.rows.inc(len(batch))
        self.metrics.count_values(model.unseen_in(batch))
        number = model.release.number
        headers = {RELEASE_HEADER: model.release.id if number is None else str(number)}
        if _media_type(request, "accept") == ARROW:
            return Response(_stream(columns, headers[RELEASE_HEADER]), 200, headers, ARROW)
        return _json({"predictions": _by_row(columns), "release": number}, headers=headers)

    def _explained(self, model: LoadedModel, body: bytes, request: Request, deadline: float) -> Response:
        content = self._parsed(body)
        permutations = content.get("permutations", 32) if isinstance(content, dict) else 32
        with _reasons():
            rows = _rows_in(content)
            self._check_count(len(rows), _EXPLAINED_ROWS)
            if type(permutations) is not int or not 4 <= permutations <= 1024 or permutations % 2:
                raise _RefusedError(400, f"permutations must be even, from 4 to 1024, got {permutations!r}")
            batch, values = model.reader.with_values(rows)
            self._check_values(batch)
            found = model.explained(batch, values, permutations, deadline)
        return _json(finite({**found, "release": model.release.number}))

    def _parsed(self, body: bytes) -> Any:
        """Return the parsed JSON, whose values take tens of bytes of memory each."""
        self._check_many(body.count(b","))
        try:
            content = json.loads(body)
            if b"\\ud" in body or b"\\uD" in body:  # halves of characters, which are no text
                json.dumps(content, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise _RefusedError(400, f"the body is not JSON ({error})") from error
        return content

    def _check_values(self, batch: Batch) -> None:
        self._check_many(sum(len(bag.keys) for bag in batch.bags))

    def _check_many(self, values: int) -> None:
        most = self.limits.bytes // VALUE_BYTES
        if values > most:
            raise _RefusedError(413, f"a request may have {most:,} values")

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
    except TooLargeError as error:
        raise _RefusedError(413, str(error)) from error
    except StreamError as error:
        raise _RefusedError(400, str(error)) from error
    except NotExplainableError as error:
        raise _RefusedError(501, str(error)) from error
    except FloatingPointError as error:
        raise _RefusedError(500, str(error)) from error


def _media_type(request: Request, header: str) -> str:
    return request.headers.get(header, "").partition(";")[0].strip().lower()


def _rows_in(content: Any) -> Sequence[Row]:
    """The rows of a request: of `{"rows": [...]}`, or the one of `{"row": {...}}`."""
    rows = None
    if isinstance(content, dict) and ("rows" in content) != ("row" in content):
        rows = content["rows"] if "rows" in content else [content["row"]]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _RefusedError(400, 'expected {"rows": [{column: value, ...}, ...]}, or {"row": {column: value, ...}}')
    return rows


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
    """Return the application that answers requests with a follower's model.

    The caller starts the follower. FastAPI's pages, which load scripts from other sites, are disabled; `/openapi.json`
    is available.

    Args:
        follower: Has the model.
        metrics: Counts.
        limits: What a request may be.
        threads: Requests that are scored at a time.
        admin_token: The header `X-Admin-Token` of requests for `/rollback` and `/resume`; None refuses all of them.

    Raises:
        UserError: The token is empty.
    """
    if admin_token is not None and not admin_token.strip():
        raise UserError("`admin_token` must not be empty; leave it out to refuse rollbacks", "admin_token")
    service = _Service(follower, metrics, limits or Limits(), threads, admin_token)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        for pool in (service.scoring.pool, service.explaining.pool, service.admin):
            pool.shutdown(cancel_futures=True)

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

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        reason = {404: "no such endpoint", 405: f"{request.method} is not allowed here"}.get(error.status_code)
        return _json({"error": reason or error.detail}, error.status_code, error.headers)

    @app.exception_handler(ClientDisconnect)
    async def left(_: Request, error: Exception) -> Response:
        return Response(status_code=_LEFT)

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> Response:
        return _json({"error": "an error of the server, which its log describes"}, 500)

    app.add_middleware(_Counted, metrics=metrics)
    return app
