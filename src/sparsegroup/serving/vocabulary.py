"""The names of exported keys, where a run has kept them."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl
from torch import Tensor

from sparsegroup.artifact.folder import name_errors
from sparsegroup.data.local_files import scan_parquet, write_parquet


def save_vocabulary(sources: Sequence[Path], keys: Tensor, path: Path) -> None:
    """Write those rows of key, field and value whose key is among `keys` `[n]`, by key; once each."""
    wanted = pl.LazyFrame({"key": keys.numpy()}, schema={"key": pl.Int64})
    names = scan_parquet(sources)
    found = names.join(wanted, on="key", how="semi").unique("key").sort("key").collect()
    with name_errors(path):
        write_parquet(path, found.lazy())
