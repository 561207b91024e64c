"""The HTTP interface in this process: predictions against `sparsegroup predict`, errors, limits and rights."""

import asyncio
import csv
import io
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from command import Run
from endings import ok
from server_cases import Client, Shelf, exported, typed_rows, untrained, write_rows
from sparsegroup.errors import UserError
from sparsegroup.server import ExportFolder, Limits, LoadedModel, Metrics, ReleaseFollower, create_app

__all__ = ["ok"]

ARROW = "application/vnd.apache.arrow.stream"
ROWS = typed_rows()


def loaded(source: Any) -> LoadedModel:
    """The newest model of a source, or of an export."""
    follower = ReleaseFollower(ExportFolder(source) if isinstance(source, Path) else source, Metrics())
    assert follower.load_newest()
    assert follower.model is not None
    return follower.model


Serve = Callable[..., Client]


@pytest.fixture
def serve(model: LoadedModel) -> Iterator[Serve]:
    """A client of an application that serves the model."""
    begun: list[Client] = []

    def start(limits: Limits | None = None, host: str = "127.0.0.1", **more: Any) -> Client:
        metrics = Metrics()
        follower = ReleaseFollower(more.pop("source", Shelf()), metrics)
        follower.model = more.pop("model", model)
        app = create_app(follower, metrics, limits, **more)
        begun.append(Client(app, host))
        return begun[-1]

    yield start
    for client in begun:
        client.close()


def predicted(text: str) -> list[dict[str, str]]:
    """What `sparsegroup predict` has printed, without places and labels."""
    rows = list(csv.DictReader(io.StringIO(text)))
    return [{name: value for name, value in row.items() if name != "row" and "label" not in name} for row in rows]


def test_predictions_are_those_of_the_command(serve: Serve, log: Path, folder: Path, ok: Run) -> None:
    expected = [float(row["probability"]) for row in predicted(ok("predict", folder, log).stdout)]
    client = serve()
    answer = client.post("/predict", json={"rows": ROWS})
    assert answer.status_code == 200
    np.testing.assert_allclose(answer.json()["predictions"], expected, rtol=0, atol=1e-6)
    assert len(set(answer.json()["predictions"])) > 100
    assert answer.json()["release"] is None
    assert len(answer.headers["Sparsegroup-Release"]) == 16
    one = client.post("/predict", json={"row": ROWS[5]}).json()["predictions"]
    np.testing.assert_allclose(one, expected[5:6], rtol=0, atol=1e-6)
    typed = {**ROWS[5], "tags": ROWS[5]["tags"].split("|"), "words": json.loads(ROWS[5]["words"] or "[]")}
    assert client.post("/predict", json={"row": typed}).json()["predictions"] == one
    assert client.post("/predict", json={"rows": []}).json() == {"predictions": [], "release": None}


def stream(table: pa.Table) -> bytes:
    """A table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_arrow_in_and_out(serve: Serve) -> None:
    client, table = serve(), pl.DataFrame(ROWS).to_arrow()
    expected = client.post("/predict", json={"rows": ROWS}).json()["predictions"]
    body, is_arrow = stream(table), {"Content-Type": ARROW}
    assert client.post("/predict", content=body, headers=is_arrow).json()["predictions"] == expected
    answer = client.post("/predict", content=body, headers={**is_arrow, "Accept": ARROW})
    assert answer.headers["Content-Type"] == ARROW
    found = pa.ipc.open_stream(answer.content).read_all()
    assert found.to_pydict() == {"probability": expected}
    nested = table.set_column(table.column_names.index("price"), "price", pa.array([{"a": 1}] * 200))
    for wrong, status, reason in (
        *((wrong, 400, "Arrow IPC stream") for wrong in (b"", b"neither", body[: len(body) // 2])),
        (body[:40] + b"\xff" * 40 + body[80:], 400, "Arrow IPC stream"),
        (stream(nested), 422, "no column 'price'"),
    ):
        refused = client.post("/predict", content=wrong, headers=is_arrow)
        assert (refused.status_code, reason in refused.json()["error"]) == (status, True), wrong[:9]


@pytest.mark.parametrize("kind", ["tasks", "classes", "numbers"])
def test_other_objectives_are_named_as_the_command_names_them(serve: Serve, tmp_path: Path, ok: Run, kind: str) -> None:
    draw = np.random.default_rng(3)
    labels = {
        "tasks": {"click": draw.integers(2, size=60), "paid": draw.normal(size=60).round(2)},
        "classes": {"choice": [("left", "right", "none at all")[one] for one in draw.integers(3, size=60)]},
        "numbers": {"rating": 100 + 50 * draw.normal(size=60).round(3)},
    }[kind]
    columns = {"site": "category", "price": "number", "tags": "list |", **dict.fromkeys(labels, "label")}
    texts = [{name: row[name] for name in ("site", "price", "tags")} for row in ROWS[:60]]
    if kind == "numbers":  # which the model needs, as they are not standardized
        texts = [row | {"price": "2"} for row in texts]
    rows = [row | {name: str(one[place]) for name, one in labels.items()} for place, row in enumerate(texts)]
    log = write_rows(tmp_path / "log.csv", rows)
    settings: dict[str, Any] = {
        "tasks": {"objective": ["logistic", "squared"], "labels": ["binary", "numbers"]},
        "classes": {"objective": "softmax"},
        "numbers": {"objective": "squared", "standardize": False},
    }[kind]
    trained = untrained(log, columns, label=list(labels) if kind == "tasks" else next(iter(labels)), **settings)
    folder = exported(trained, tmp_path / "export", onnx=True)
    client = serve(model=loaded(folder))
    expected = predicted(ok("predict", folder, log).stdout)
    found = client.post("/predict", json={"rows": texts}).json()["predictions"]
    explained = client.post("/explain", json={"rows": texts[:2]})
    if kind == "numbers":
        assert explained.json()["rows"][0]["prediction"] == pytest.approx(found[0], rel=1e-4)
        found = [{"prediction": one} for one in found]
        for path in ("/predict", "/explain"):
            refused = client.post(path, json={"rows": [texts[0], texts[1] | {"price": ""}]})
            assert refused.status_code == 422
            assert [(one["row"], one["column"]) for one in refused.json()["bad"]] == [(1, "price")]
    else:
        assert (explained.status_code, "a model of one output" in explained.json()["error"]) == (501, True)
    assert [list(row) for row in found] == [list(row) for row in expected]
    for ours, theirs in zip(found, expected, strict=True):
        for name, value in ours.items():
            assert value == (theirs[name] if isinstance(value, str) else pytest.approx(float(theirs[name]), rel=1e-5))


def test_what_is_wrong_with_a_request(serve: Serve) -> None:
    client = serve()
    wrong = [ROWS[0], ROWS[1] | {"price": "cheap"}, ROWS[2] | {"when": "noon"}]
    refused = client.post("/predict", json={"rows": wrong})
    assert refused.status_code == 422
    assert [(one["row"], one["column"]) for one in refused.json()["bad"]] == [(1, "price"), (2, "when")]
    assert "cheap" in refused.json()["bad"][0]["reason"]
    assert "row 1: 'price' cannot be read" in refused.json()["error"]
    for body, reason in (
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "expected"),
        ("{}", "expected"),
        ('{"rows": {}}', "expected"),
        ('{"rows": [1]}', "expected"),
        ('{"row": {}, "rows": []}', "expected"),
        ('"\\ud800"', "not JSON"),
    ):
        refused = client.post("/predict", content=body)
        assert (refused.status_code, reason in refused.json()["error"]) == (400, True), body[:20]
    assert client.get("/predict").status_code == 405
    assert client.get("/docs").status_code == 404
    document = client.get("/openapi.json").json()
    assert {"/predict", "/explain", "/health", "/metrics", "/model", "/rollback", "/resume"} == set(document["paths"])
    surrogate = client.post("/predict", content=json.dumps({"row": ROWS[0] | {"site": "\ud800"}}))
    assert surrogate.status_code == 400, surrogate.text


def test_an_explanation_adds_up(serve: Serve, model: LoadedModel) -> None:
    client = serve()
    answer = client.post("/explain", json={"rows": ROWS[:3], "permutations": 8}).json()
    predictions = client.post("/predict", json={"rows": ROWS[:3]}).json()["predictions"]
    for row, prediction in zip(answer["rows"], predictions, strict=True):
        parts = row["contributions"]
        assert {one["column"] for one in parts} == {*model.columns.fields, *model.columns.numbers}
        assert sum(one["contribution"] for one in parts) == pytest.approx(row["logit"] - answer["reference"], abs=1e-6)
        assert row["probability"] == pytest.approx(prediction, abs=1e-5)
    values = {one["column"]: one["value"] for one in answer["rows"][1]["contributions"]}
    assert values["site"] == ROWS[1]["site"]
    assert client.post("/explain", json={"rows": ROWS[:3], "permutations": 7}).status_code == 400
    assert client.post("/explain", json={"rows": ROWS}).status_code == 413


def test_health_model_and_metrics(serve: Serve, model: LoadedModel) -> None:
    client = serve()
    assert client.get("/health").json() == {"status": "ok"}
    described = client.get("/model").json()
    assert described["columns"] == list(model.reader.columns)
    assert (described["id"], described["pinned"], described["refused"]) == (model.release.id, None, {})
    client.post("/predict", json={"rows": ROWS[:7]})
    client.post("/predict", content="{")
    client.get("/elsewhere/with/any/name")
    text = client.get("/metrics").text
    assert "sparsegroup_rows_total 7.0" in text
    assert 'sparsegroup_requests_total{path="/predict",status="200"} 1.0' in text
    assert 'sparsegroup_requests_total{path="/predict",status="400"} 1.0' in text
    assert 'sparsegroup_requests_total{path="other",status="404"} 1.0' in text
    assert 'sparsegroup_request_seconds_count{path="/predict"} 2.0' in text
    assert "sparsegroup_model_age_seconds NaN" in text
    empty = serve(model=None)
    assert [empty.get("/health").status_code, empty.post("/predict", json={"rows": ROWS}).status_code] == [503, 503]
    assert empty.get("/model").status_code == 200


def test_health_fails_when_the_model_is_older_than_it_may_be(
    serve: Serve, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf()
    shelf.add(folder)
    client = serve(Limits(age=3_600), model=loaded(shelf))
    for now, status in ((1e9 + 3_599, 200), (1e9 + 3_601, 503)):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        answer = client.get("/health")
        assert answer.status_code == status
        assert client.get("/model").json()["age_seconds"] == now - 1e9
        assert f"sparsegroup_model_age_seconds {now - 1e9}" in client.get("/metrics").text
        assert client.post("/predict", json={"row": ROWS[0]}).status_code == 200
    assert "3601 s old, more than 3600 s" in answer.json()["error"]


def test_limits_of_a_request(serve: Serve) -> None:
    client = serve(Limits(rows=10, bytes=5_000))
    assert client.post("/predict", json={"rows": ROWS[:10]}).status_code == 200
    refused = client.post("/predict", json={"rows": ROWS[:11]})
    assert (refused.status_code, "10 rows, got 11" in refused.text) == (413, True)
    body = json.dumps({"row": ROWS[0] | {"site": "x" * 5_000}}).encode()
    assert client.post("/predict", content=body).status_code == 413

    async def parts() -> AsyncIterator[bytes]:
        for first in range(0, len(body), 100):
            yield body[first : first + 100]

    assert client.post("/predict", content=parts()).status_code == 413  # of a length that is not announced
    assert client.post("/predict", json={"row": ROWS[0]}).status_code == 200


class Held(LoadedModel):
    """A model that answers when it may."""

    def __init__(self, model: LoadedModel) -> None:
        vars(self).update(vars(model))
        self.may = threading.Event()

    def predictions(self, batch: Any) -> Any:
        assert self.may.wait(60)
        return super().predictions(batch)


def talk(model: LoadedModel, limits: Limits, what: Callable[..., Coroutine[Any, Any, None]]) -> None:
    """Talk to an application whose model is held, by functions that predict a row and that ask for the health."""
    metrics, held = Metrics(), Held(model)
    follower = ReleaseFollower(Shelf(), metrics)
    follower.model = held

    async def run() -> None:
        transport = httpx.ASGITransport(create_app(follower, metrics, limits, threads=1))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            predict = partial(client.post, "/predict", json={"row": ROWS[0]})
            await what(predict, partial(client.get, "/health"), held, metrics)

    asyncio.run(run())


def test_more_requests_than_may_wait_are_refused_and_the_others_are_answered(model: LoadedModel) -> None:
    async def what(predict: Any, health: Any, held: Held, metrics: Metrics) -> None:
        waiting = [asyncio.create_task(predict()) for _ in range(3)]
        while metrics.in_flight._value.get() < 3:
            await asyncio.sleep(0.001)
        refused = await predict()
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        assert (await health()).status_code == 200
        held.may.set()
        assert [(await one).status_code for one in waiting] == [200] * 3
        assert (await predict()).status_code == 200
        assert "sparsegroup_requests_rejected_total 1.0" in metrics.text().decode()

    talk(model, Limits(concurrency=3, seconds=60), what)


def test_a_request_that_takes_too_long_is_given_up_and_counts_until_it_has_ended(model: LoadedModel) -> None:
    async def what(predict: Any, health: Any, held: Held, metrics: Metrics) -> None:
        late = await predict()
        assert (late.status_code, "within 0.05 s" in late.text) == (504, True)
        assert (await predict()).status_code == 429
        held.may.set()
        while (await predict()).status_code != 200:
            await asyncio.sleep(0.001)

    talk(model, Limits(concurrency=1, seconds=0.05), what)


def test_only_a_client_with_the_token_may_roll_back(serve: Serve) -> None:
    for client in (serve(), serve(host="192.0.2.1")):  # a proxy's requests come from this machine as well
        for headers in ({}, {"X-Admin-Token": ""}, {"X-Admin-Token": "None"}):
            assert client.post("/resume", headers=headers).status_code == 403
            assert client.post("/rollback", json={"release": 1}, headers=headers).status_code == 403
    token = "se\u00e9cret"
    right = {"X-Admin-Token": token.encode()}
    for client in (serve(admin_token=token), serve(host="192.0.2.1", admin_token=token)):
        for wrong in ({}, {"X-Admin-Token": "guess"}, {"X-Admin-Token": "\u00ff".encode("latin-1")}):
            assert client.post("/resume", headers=wrong).status_code == 403
        assert client.post("/resume", headers=right).status_code == 200
    assert client.post("/rollback", content="[", headers=right).status_code == 400
    assert client.post("/rollback", json={"release": "one"}, headers=right).status_code == 400
    assert client.post("/rollback", headers=right).status_code == 404
    assert client.post("/rollback", json={"release": 7}, headers=right).status_code == 404
    for empty in ("", "  "):
        with pytest.raises(UserError, match="admin_token"):
            serve(admin_token=empty)


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/predict"), ("POST", "/health"), ("GET", "/"), ("POST", "/x" * 99)]
)
def test_every_refusal_is_json(serve: Serve, method: str, path: str) -> None:
    client = serve()
    answer = client.get(path) if method == "GET" else client.post(path)
    assert answer.status_code in (404, 405)
    assert list(answer.json()) == ["error"]
    assert (answer.status_code == 405) == ("allow" in answer.headers)


def test_an_unexpected_error_is_json_without_its_details(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    client = serve()

    def fail(*_: Any) -> Any:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(ReleaseFollower, "described", fail)
    answer = client.get("/model")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert list(answer.json()) == ["error"]


def test_values_that_the_model_has_no_row_for_are_counted_by_column(serve: Serve, folder: Path) -> None:
    follower = ReleaseFollower(ExportFolder(folder), Metrics())
    follower.load_newest()
    client = serve(model=follower.model)  # a new one, because only the first requests are all counted
    rows = typed_rows(50)
    assert client.post(
        "/predict", json={"rows": [row | {"site": f"new{at}"} for at, row in enumerate(rows)]}
    ).is_success
    counts = {
        (line.split("{")[0], line.split('"')[1]): float(line.split()[-1])
        for line in client.get("/metrics").text.splitlines()
        if line.startswith(("sparsegroup_values_total{", "sparsegroup_unseen_values_total{"))
    }
    assert counts["sparsegroup_values_total", "site"] == counts["sparsegroup_unseen_values_total", "site"] == 50
    assert counts["sparsegroup_unseen_values_total", "size"] == 0
