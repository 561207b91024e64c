"""The names of exported keys, where a run has kept them."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl
from torch import Tensor


def save_vocabulary(sources: Sequence[Path], keys: Tensor, path: Path) -> None:
    """Write those rows of key, field and value whose key is among `keys` `[n]`, by key; once each."""
    wanted = pl.LazyFrame({"key": keys.numpy()}, schema={"key": pl.Int64})
    names = pl.concat([pl.scan_parquet(source) for source in sources])
    names.join(wanted, on="key", how="semi").unique("key").sort("key").collect().write_parquet(path)
