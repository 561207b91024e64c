"""Exports that a server serves: models over typed logs, made without training, and releases of them."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import torch
from fastapi import FastAPI

from plain_settings import plain
from sparsegroup.data import Log, open_log
from sparsegroup.data.keys import Int64s
from sparsegroup.models import NumberEncoder
from sparsegroup.server import Fetched, RollbackError, ServedRelease
from sparsegroup.serving import Export, TrainedModel, export_trained, read_export
from sparsegroup.settings.names import Dtype
from sparsegroup.training.model import logit_bias_of

KINDS = {
    "clicked": "label",
    "when": "time iso",
    "site": "category",
    "size": "category of numbers",
    "price": "number",
    "member": "boolean",
    "tags": "list |",
    "words": "list json",
    "visits": "category, number",
}


def typed_rows(rows: int = 200, seed: int = 0) -> list[dict[str, str]]:
    """Rows of a typed log as texts, with missing values of each column."""
    draw = np.random.default_rng(seed)

    def some(values: Sequence[str]) -> list[str]:
        return [values[place] for place in draw.integers(len(values), size=rows)]

    hours = [f"2026-05-{1 + i * 20 // rows:02}T{i % 24:02}:30:00" for i in range(rows)]
    columns = {
        "clicked": some(["0", "1"]),
        "when": [hour if i % 17 else "" for i, hour in enumerate(hours)],
        "site": some(["a", "b", "c d", "", "ü", "NA"]),
        "size": some(["1", "2", "03", "4.0", "", "NA"]),
        "price": some(["1.5", "20", "0.333", "", "1e3", "nan"]),
        "member": some(["true", "false", ""]),
        "tags": some(["x|y", "x", "", "z|y|x"]),
        "words": some(['["one", 2]', "[]", "", '["two", null, 1.5]']),
        "visits": some(["0", "1", "7", "31", ""]),
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def write_rows(path: Path, rows: Sequence[dict[str, str]]) -> Path:
    pl.DataFrame(list(rows)).write_csv(path)
    return path


def untrained(
    log: Path, columns: Any = KINDS, *, label: Any = None, seed: int = 0, bias: float = 0.0, **settings: Any
) -> TrainedModel:
    """A model over a log, whose rows and weights are drawn."""
    defaults = {"model": "fm", "dim": 4, "standardize": True, "base_rate": True}
    config = plain(**defaults | {"columns": columns, "label": label, "seed": seed} | settings)
    opened = open_log(log, columns=columns, label=label, labels=config.format_options["labels"])
    config = config.resolved_for(opened).for_log(opened)
    torch.manual_seed(seed)
    model, _ = config.build_for(opened.schema)
    draw = torch.Generator().manual_seed(seed + 1)
    keys = keys_in(open_log(log, like=config.format_options, whole=True))
    for module in model.modules():
        if isinstance(module, NumberEncoder):
            module.fit(torch.randn(500, len(opened.numbers), generator=draw).exp())
            for parameter in module.parameters():
                torch.nn.init.normal_(parameter, generator=draw)
    model.embedding.assign(torch.from_numpy(keys), torch.randn(len(keys), model.embedding.dim, generator=draw) * 0.2)
    with torch.no_grad():
        if (parameter := logit_bias_of(model.network)) is not None:
            parameter += bias
    return TrainedModel(Path("made-up"), "run", config, opened.schema, model.eval(), None)


def keys_in(log: Log) -> Int64s:
    parts = []
    for batch in log.batches(0, len(log), 1 << 16):
        parts += [batch.keys.flatten().numpy(), *(bag.keys.numpy() for bag in batch.bags)]
    return np.unique(np.concatenate(parts))


def exported(trained: TrainedModel, folder: Path, dtype: Dtype = "float32", *, onnx: bool = False) -> Path:
    export_trained(trained, folder, dtype, formats=["onnx"] if onnx else [])
    return folder


def until(condition: Callable[[], Any], log: Callable[[], object] = str) -> Any:
    """What a condition gives when it holds at last; fails after five minutes, with what `log` returns."""
    end = time.monotonic() + 300
    while not (found := condition()):
        assert time.monotonic() < end, log()
        time.sleep(0.005)
    return found


class Client:
    """A client of an application in this process, from the address `host`."""

    def __init__(self, app: FastAPI, host: str = "127.0.0.1") -> None:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(host, 1))
        self.runner, self.http = asyncio.Runner(), httpx.AsyncClient(transport=transport, base_url="http://here")

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.runner.run(self.http.get(path, **more))

    def post(self, path: str, **more: Any) -> httpx.Response:
        return self.runner.run(self.http.post(path, **more))

    def close(self) -> None:
        self.runner.run(self.http.aclose())
        self.runner.close()


class Shelf:
    """A source of exports in memory: the last one added is the newest."""

    def __init__(self) -> None:
        self.exports: list[Export | Exception] = []
        self.away: Exception | None = None

    def add(self, folder: Path) -> int:
        self.exports.append(read_export(folder))
        return len(self.exports)

    def newer(self, have: Fetched | None) -> int | None:
        if self.away is not None:
            raise self.away
        newest = len(self.exports)
        return newest if newest and (have is None or have.release.number != newest) else None

    def fetch(self, have: Fetched | None, to: int | None = None) -> Fetched:
        number = len(self.exports) if to is None else to
        if not 1 <= number <= len(self.exports):
            raise RollbackError(f"there is no release {number}")
        export = self.exports[number - 1]
        if isinstance(export, Exception):
            raise export
        return Fetched(ServedRelease(number, f"{number:016}", "export", 1000, published=1e9), export)
