"""Limits of a request's rows, bytes, values, memory and time, for every kind of body."""

import asyncio
import io
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server_cases import Client, Shelf, typed_rows, until
from sparsegroup.errors import did_you_mean
from sparsegroup.server import Limits, LoadedModel, Metrics, ReleaseFollower, create_app
from sparsegroup.server.arrow import StreamError, TooLargeError, read_table

ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}
ROWS = typed_rows()
LIMIT = 200_000
"""Bytes of a request in these tests."""


Serve = Callable[..., Client]


@pytest.fixture
def serve(model: LoadedModel) -> Iterator[Serve]:
    begun: list[Client] = []

    def start(**limits: Any) -> Client:
        metrics = Metrics()
        follower = ReleaseFollower(Shelf(), metrics)
        follower.model = model
        begun.append(Client(create_app(follower, metrics, Limits(**{"seconds": 60, **limits}))))
        return begun[-1]

    yield start
    for client in begun:
        client.close()


def stream(table: pa.Table, compression: str | None = None) -> bytes:
    """Return a table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def arrow(**more: Any) -> pa.Table:
    """Return a row for the model as Arrow, with other columns."""
    return pa.table({**{name: [text] for name, text in ROWS[1].items()}, **more})


def one_list(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


def views_of_one_text() -> pa.Table:
    """Return rows whose texts are one text in memory."""
    buffers = pa.array(["x" * LIMIT], pa.string_view()).buffers()
    views = pa.py_buffer(buffers[1].to_pybytes() * 999)
    return pa.table({"site": pa.Array.from_buffers(pa.string_view(), 999, [None, views, *buffers[2:]])})


MANY = 100 * LIMIT
BOMBS = {
    "a column of zeros": lambda: stream(pa.table({"price": np.zeros(MANY, np.int8)}), "zstd"),
    "an ignored column": lambda: stream(arrow(ignored=one_list(pa.array(np.zeros(MANY, np.int8)))), "zstd"),
    "an ignored column, lz4": lambda: stream(arrow(ignored=one_list(pa.array(np.zeros(MANY, np.int8)))), "lz4"),
    "one long text": lambda: stream(arrow(site=["x" * MANY]), "zstd"),
    "a dictionary": lambda: stream(
        pa.table(
            {"site": pa.DictionaryArray.from_arrays(pa.array(np.zeros(999, np.int32)), ["x" * LIMIT])}
            | {name: [text] * 999 for name, text in ROWS[1].items() if name != "site"}
        ),
        "zstd",
    ),
    "an ignored dictionary": lambda: stream(arrow(ignored=pa.array(["x" * MANY]).dictionary_encode()), "zstd"),
    "views of one text": lambda: stream(views_of_one_text()),
    "rows of nothing": lambda: stream(pa.table({"site": pa.nulls(MANY)})),
    "a list of nothing": lambda: stream(arrow(tags=one_list(pa.nulls(2**31 - 2)))),
    "a list of booleans": lambda: stream(arrow(tags=one_list(pa.array(np.zeros(7 * LIMIT, bool))))),
    "runs of one text": lambda: stream(pa.table({"site": pa.RunEndEncodedArray.from_arrays([9999], ["x" * 1000])})),
    "rows of JSON": lambda: b'{"rows":[' + b",".join([b"{}"] * (LIMIT // 4)) + b"]}",
    "a list of JSON": lambda: json.dumps({"row": {**ROWS[1], "words": [1] * (LIMIT // 4)}}).encode(),
    "lists of JSON": lambda: b"[" + b",".join([b"[]"] * (LIMIT // 4)) + b"]",
    "a text of many values in JSON": lambda: json.dumps({"row": {**ROWS[1], "tags": "a|" * (LIMIT // 3)}}).encode(),
    "too many bytes": lambda: json.dumps({"row": {**ROWS[1], "site": "x" * LIMIT}}).encode(),
}


def status_of(field: str) -> int:
    """Return a figure of this process in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_body_of_large_content_is_refused_before_it_takes_memory(serve: Serve, bomb: str) -> None:
    client, body = serve(bytes=LIMIT), BOMBS[bomb]()
    headers = {} if "JSON" in bomb or "bytes" in bomb else ARROW
    client.post("/predict", json={"row": ROWS[1]})
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins again
    except OSError:
        pytest.skip("the peak of memory cannot be reset here")
    before = status_of("VmRSS")
    answer = client.post("/predict", content=body, headers=headers)
    assert answer.status_code in (400, 413), answer.text
    assert len(answer.json()["error"]) < 300
    assert status_of("VmHWM") - before < 40 * LIMIT
    assert client.post("/predict", json={"row": ROWS[1]}).status_code == 200


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
def test_the_memory_of_the_largest_requests_is_bounded_by_the_limit(serve: Serve) -> None:
    size, client = 5 * LIMIT, serve(bytes=5 * LIMIT)
    values = size // 8 - 100
    bodies: list[tuple[bytes, dict[str, str]]] = [
        (json.dumps({"row": {**ROWS[1], "words": [1] * values}}).encode(), {}),
        (json.dumps({"row": {**ROWS[1], "tags": "a|" * values}}).encode(), {}),
        (json.dumps({"row": {**ROWS[1], "site": "x" * (size - 500)}}).encode(), {}),
        (stream(arrow(tags=one_list(pa.array(["a"] * values)))), ARROW),
        (stream(arrow(tags=one_list(pa.array(np.ones(values, bool)))), "zstd"), ARROW),
    ]
    client.post("/predict", json={"row": ROWS[1]})
    for body, headers in bodies:
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            pytest.skip("the peak of memory cannot be reset here")
        before = status_of("VmRSS")
        assert client.post("/predict", content=body, headers=headers).status_code == 200
        assert status_of("VmHWM") - before < 60 * size, body[-80:]


compressions = st.sampled_from([None, "zstd", "lz4"])
texts = st.sampled_from(["", "a", "bc", "é" * 9, "x" * 300])
columns_of_one_type = st.one_of(
    st.lists(st.none() | texts).map(lambda values: pa.array(values, pa.string())),
    st.lists(st.none() | texts).map(lambda values: pa.array(values, pa.large_string())),
    st.lists(st.none() | texts).map(lambda values: pa.array(values, pa.string_view())),
    st.lists(st.none() | texts).map(lambda values: pa.array(values, pa.string()).dictionary_encode()),
    st.lists(st.none() | st.integers(-9, 9)).map(lambda values: pa.array(values, pa.int8())),
    st.lists(st.none() | st.booleans()).map(lambda values: pa.array(values, pa.bool_())),
    st.lists(st.none() | st.lists(st.none() | texts, max_size=5)).map(
        lambda values: pa.array(values, pa.list_(pa.string()))
    ),
    st.lists(st.none() | st.lists(st.booleans(), max_size=5)).map(
        lambda values: pa.array(values, pa.large_list(pa.bool_()))
    ),
    st.integers(0, 50).map(pa.nulls),
)


def written(array: pa.Array | pa.ChunkedArray) -> int:
    """Return the bytes of values one by one: texts as they are, others 8 each."""

    def one(value: Any) -> int:
        if isinstance(value, list):
            return max(8 * len(value), sum(map(one, value)))
        return len(value.encode()) if isinstance(value, str) else 8

    is_text = "string" in str(array.type)
    return sum(0 if value is None and is_text else one(value) for value in array.to_pylist())


@settings(max_examples=150)
@given(
    columns_of_one_type, columns_of_one_type, st.sampled_from([None, "zstd", "lz4"]), st.sampled_from([99, 999, 9999])
)
def test_an_accepted_stream_holds_the_needed_columns_within_the_limits(
    needed: pa.Array, ignored: pa.Array, compression: str | None, size: int
) -> None:
    rows = min(len(needed), len(ignored))
    table = pa.table({"ignored": ignored[:rows], "needed": needed[:rows]})
    try:
        found = read_table(stream(table, compression), ["needed"], 20, size)
    except TooLargeError:
        assert rows > 20 or max(table.nbytes * 2 + 800, written(table["needed"])) > size
        return
    assert found.column_names == ["needed"]
    assert found["needed"].to_pylist() == table["needed"].to_pylist()
    assert rows <= 20
    assert written(found["needed"]) <= size or "list" in str(needed.type)


@settings(max_examples=300)
@given(st.binary(max_size=20), st.integers(0, 10_000), st.sampled_from([None, "zstd"]))
def test_a_changed_stream_is_refused_or_read_within_the_limits(
    change: bytes, place: int, compression: str | None
) -> None:
    columns: dict[str, Any] = {"a": ["x", "yy"], "b": [[1], [2, 3]], "c": pa.array(["z"] * 2).dictionary_encode()}
    columns["d"] = pa.array(["y" * 20, None], pa.string_view())
    whole = stream(pa.table(columns), compression)
    at = place % len(whole)
    try:
        found = read_table(whole[:at] + change + whole[at + len(change) :], [*columns], 10, 1000)
    except StreamError:
        return
    assert found.num_rows <= 10
    assert found.nbytes < 10_000
    assert len(pl.DataFrame(found).to_dicts()) == found.num_rows


@pytest.mark.parametrize("column", ["site", "words"])
def test_a_null_with_any_place_in_a_dictionary_is_null(serve: Serve, column: str) -> None:
    indices = pa.Array.from_buffers(pa.int32(), 1, [pa.py_buffer(b"\0"), pa.py_buffer(b"\0\0\x10\0")])
    given, plain = pa.DictionaryArray.from_arrays(indices, pa.array(["x"]), safe=False), pa.nulls(1, pa.string())
    answers = []
    for values in (given, plain):
        values = pa.ListArray.from_arrays([0, 1], values) if column == "words" else values
        table = arrow()
        table = table.set_column(table.column_names.index(column), column, values)
        answers.append(serve().post("/predict", content=stream(table), headers=ARROW))
    assert answers[0].status_code == answers[1].status_code
    assert answers[0].json() == answers[1].json()


@pytest.mark.parametrize("view", [(-1, 0, 0, 0), (256, 0, 0, 0), (256, 0, 1, 0), (256, 0, -1, 0), (20, 0, 0, -9)])
@pytest.mark.parametrize("is_null", [False, True])
def test_a_view_outside_of_its_buffers_is_refused(serve: Serve, view: tuple[int, ...], is_null: bool) -> None:
    buffers = [pa.py_buffer(b"\0") if is_null else None, pa.py_buffer(np.array(view, np.int32).tobytes())]
    texts = pa.Array.from_buffers(pa.string_view(), 1, [*buffers, pa.py_buffer(b"x" * 30)])
    for values in (texts, pa.ListArray.from_arrays([0, 1], texts)):
        table = pa.table({"tags": values, **{name: [text] for name, text in ROWS[1].items() if name != "tags"}})
        assert serve().post("/predict", content=stream(table), headers=ARROW).status_code == 400


def test_a_column_that_is_there_twice_is_refused(serve: Serve) -> None:
    table = arrow().append_column("site", pa.array(["x"]))
    answer = serve().post("/predict", content=stream(table), headers=ARROW)
    assert (answer.status_code, "site" in answer.json()["error"]) == (400, True)


def test_streams_of_polars_and_of_pandas_types_are_read(serve: Serve) -> None:
    client, frame = serve(), pl.DataFrame(ROWS)
    expected = client.post("/predict", json={"rows": ROWS}).json()["predictions"]
    sink = io.BytesIO()
    frame.with_columns(pl.col("site").cast(pl.Categorical)).write_ipc_stream(sink, compression="zstd")
    assert client.post("/predict", content=sink.getvalue(), headers=ARROW).json()["predictions"] == expected


def test_columns_of_one_request_do_not_hold_up_scoring(serve: Serve) -> None:
    client = serve()
    row = dict.fromkeys(list(ROWS[0])[:3]) | {f"unknown{at}": 1 for at in range(100_000)}
    begin = time.process_time()
    answer = client.post("/predict", json={"row": row})
    assert answer.status_code == 422
    assert "misspelled" in answer.text or "no row has the column" in answer.text
    assert time.process_time() - begin < 20  # it was minutes


def test_a_hint_is_found_in_time_that_does_not_grow_with_the_names() -> None:
    begin = time.process_time()
    assert did_you_mean("colour", ["color", *(f"colou{at}" for at in range(100_000))]) == "did you mean 'color'?"
    assert did_you_mean("x" * 1_000_000, ["x" * 1_000_000, "xx"]) == ""
    assert time.process_time() - begin < 10


def test_predictions_go_on_during_explanations(model: LoadedModel) -> None:
    class Explaining(LoadedModel):
        def __init__(self) -> None:
            vars(self).update(vars(model))
            self.begun, self.may_end = threading.Event(), threading.Event()

        def explained(self, *arguments: Any) -> Any:
            self.begun.set()
            assert self.may_end.wait(60)
            return super().explained(*arguments)

    async def run(client: httpx.AsyncClient, held: Explaining) -> None:
        explain = [asyncio.create_task(client.post("/explain", json={"row": ROWS[0]})) for _ in range(9)]
        while not held.begun.is_set():
            await asyncio.sleep(0.001)
        for _ in range(5):
            assert (await client.post("/predict", json={"row": ROWS[0]})).status_code == 200
        held.may_end.set()
        codes = [(await one).status_code for one in explain]
        assert set(codes) == {200, 429}

    async def main() -> None:
        held, metrics = Explaining(), Metrics()
        follower = ReleaseFollower(Shelf(), metrics)
        follower.model = held
        transport = httpx.ASGITransport(create_app(follower, metrics, Limits(seconds=60)))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            await run(client, held)

    asyncio.run(main())


def test_an_explanation_whose_time_has_passed_leaves_its_thread(model: LoadedModel) -> None:
    class Late(LoadedModel):
        def __init__(self) -> None:
            vars(self).update(vars(model))
            self.is_given_up = threading.Event()

        def explained(self, batch: Any, values: Any, permutations: int, deadline: float | None = None) -> Any:
            assert deadline is not None
            until(lambda: time.monotonic() > deadline)
            try:
                return super().explained(batch, values, permutations, deadline)
            except TimeoutError:
                self.is_given_up.set()
                raise

    metrics, late = Metrics(), Late()
    follower = ReleaseFollower(Shelf(), metrics)
    follower.model = late
    with closing(Client(create_app(follower, metrics, Limits(seconds=0.2)))) as client:
        assert client.post("/explain", json={"row": ROWS[0]}).status_code == 504
    assert late.is_given_up.wait(60)
