"""A source of made-up rows for tests of what follows one."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from sparsegroup.data.raw.files import LINE
from sparsegroup.data.schema import LogFormat
from sparsegroup.streaming.sources.source import Block, EndOfStream, Source, block_of


def rows_of_clicks(count: int, seed: int = 0, begin: int = 0) -> pl.DataFrame:
    """Rows of texts: a time, two fields, a number, and clicks that depend on them."""
    rng = np.random.default_rng(seed)
    site, user, price = rng.integers(0, 20, count), rng.integers(0, 300, count), rng.normal(0, 1, count)
    logits = np.sin(site) + 0.5 * np.cos(user * 7.0) + 0.3 * price - 1
    click = rng.random(count) < 1 / (1 + np.exp(-logits))
    times = begin + 1_700_000_000 + np.arange(count)
    return pl.DataFrame(
        {
            "ts": times,
            "site": [f"s{one}" for one in site],
            "user": [f"u{one}" for one in user],
            "price": np.round(price, 3),
            "click": click.astype(int),
        }
    ).cast(pl.String)


class FrameSource(Source):
    """Rows of a frame, in blocks of the given sizes, then nothing more.

    `fails_after` blocks, reading raises an error, as if the process had been killed there.
    """

    name, is_replayable = "frame", True

    def __init__(self, frame: pl.DataFrame, sizes: Iterable[int], fails_after: int | None = None) -> None:
        self.frame, self.sizes, self.fails_after = frame, list(sizes), fails_after
        self.acknowledged: list[Any] = []

    def first_rows(self, path: Path, rows: int, patience: float) -> Path:
        path.mkdir()
        self.frame.head(rows).write_csv(path / "rows.csv")
        return path

    def open(self, format: LogFormat, position: Any = None) -> None:
        self.format, self.position = format, position or 0

    def read(self, timeout: float) -> Block | None:
        if self.fails_after is not None:
            self.fails_after -= 1
            if self.fails_after < 0:
                raise InterruptedError("killed")
        if self.position == len(self.frame):
            raise EndOfStream
        size = self.sizes.pop(0) if self.sizes else len(self.frame)
        return self.again([self.position, min(self.position + size, len(self.frame))])

    def again(self, span: Any) -> Block:
        first, stop = span
        self.position = stop
        part = self.frame[first:stop].select(pl.col(list(self.format.raw)).replace("", None))
        texts = part.with_columns(pl.Series(LINE, range(first + 1, stop + 1), pl.Int64))
        return block_of(lambda bad: texts, self.format, list(span), stop, 1.0, self.name)

    def acknowledge(self, position: Any) -> None:
        self.acknowledged.append(position)

    def lag(self) -> Mapping[str, float]:
        return {"rows": float(len(self.frame) - self.position)}

    def close(self) -> None:
        pass
