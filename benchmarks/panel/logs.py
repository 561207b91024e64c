"""The logs of the panel as the baselines take them: frames with a kind for each column, split as `sparsegroup` does."""

import gzip
import lzma
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import polars as pl

from sparsegroup.data import open_log

Kind = Literal["category", "number", "both", "tags", "time"]
"""What a column is to the baselines; "both" is an integer that may be a name or a measure."""

FEW = 20
"""An integer column of no more different values than this is a category."""

_UNPACK = {".xz": lzma.decompress, ".gz": gzip.decompress}
_LEFT_OUT = ("id", "ts", "timestamp", "split")
_CRITEO = ("label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27)))


@dataclass(frozen=True)
class PanelLog:
    """A log of the panel."""

    name: str
    path: Path
    test: Path | None = None  # a log of its own for the test set, if there is one
    label: str | None = None  # label column, where `sparsegroup` has to be told
    twin: "PanelLog | None" = None  # another log of the same rows, whose baselines hold for this one

    @property
    def arguments(self) -> list[str]:
        """Those of `sparsegroup train`."""
        test = ["--test", str(self.test)] if self.test is not None else []
        return [str(self.path), *test, *(["--label", self.label] if self.label is not None else [])]

    @property
    def files(self) -> list[Path]:
        """The log, and its test set."""
        return [one for one in (self.path, self.test) if one is not None]

    @cached_property
    def frames(self) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, Kind], str]:
        """Training rows, test rows, column → kind, and the label column, which holds 0 and 1.

        A column without a kind is left out.
        """
        rows, kinds, label = read(self.path, self.label)
        if self.test is not None:
            after = read(self.test, self.label)[0]
            return rows, after, kinds, label
        train_rows = open_log(self.path, label=self.label).train_rows
        return rows[:train_rows], rows[train_rows:], kinds, label


def shared_logs(data: Path) -> list[PanelLog]:
    """Those of the public logs that are in the folder."""
    logs = [
        PanelLog("criteo_sample", data / "criteo_sample.txt.xz"),
        PanelLog("avazu_sample", data / "avazu_sample.csv.xz"),
        PanelLog("ipinyou_sample", data / "ipinyou_sample.train.libsvm.xz", data / "ipinyou_sample.test.libsvm.xz"),
        PanelLog("nycflights13", data / "nycflights13.csv.xz"),
        PanelLog("globo_clicks", data / "globo_clicks.csv.xz"),
    ]
    return [log for log in logs if log.path.exists()]


def read(path: Path, label: str | None) -> tuple[pl.DataFrame, dict[str, Kind], str]:
    """A log, column → kind, and its label column."""
    if path.suffix == ".parquet":
        return _of_columns(pl.read_parquet(path), label)
    content = _UNPACK.get(path.suffix, bytes)(path.read_bytes())
    first = content[: content.index(b"\n")].decode()
    if first.count("\t") == len(_CRITEO) - 1:
        return _criteo(content)
    if ":1 " in first:
        return _libsvm(content)
    frame = pl.read_csv(content, infer_schema_length=None, try_parse_dates=True)
    return _avazu(frame) if {"click", "hour", "C21"} <= set(frame.columns) else _of_columns(frame, label)


def _criteo(content: bytes) -> tuple[pl.DataFrame, dict[str, Kind], str]:
    types = {name: pl.String if name[0] == "C" else pl.Int64 for name in _CRITEO}
    frame = pl.read_csv(content, separator="\t", has_header=False, schema=types)
    return frame, {name: "category" if name[0] == "C" else "number" for name in _CRITEO[1:]}, "label"


def _avazu(frame: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, Kind], str]:
    frame = frame.with_columns(pl.col("hour") % 100).with_columns(pl.exclude("click").cast(pl.String))
    return frame, dict.fromkeys(frame.columns[2:], "category"), "click"


def _libsvm(content: bytes) -> tuple[pl.DataFrame, dict[str, Kind], str]:
    cells = [line.split() for line in content.decode().splitlines()]
    columns = {str(field): [row[field] for row in cells] for field in range(1, len(cells[0]))}
    frame = pl.DataFrame({"label": [int(row[0]) for row in cells], **columns})
    return frame, dict.fromkeys(columns, "category"), "label"


def _of_columns(frame: pl.DataFrame, label: str | None) -> tuple[pl.DataFrame, dict[str, Kind], str]:
    label = label or next(name for name in ("label", "click") if name in frame.columns)
    kinds: dict[str, Kind] = {}
    for name, values in zip(frame.columns, frame.iter_columns(), strict=True):
        if name != label and name not in _LEFT_OUT and (kind := _kind(values)) is not None:
            kinds[name] = kind
    return frame.with_columns(pl.col(label).cast(pl.Int8)), kinds, label


def _kind(values: pl.Series) -> Kind | None:
    """None of names that never repeat."""
    distinct, known = values.n_unique(), len(values) - values.null_count()
    if values.dtype.is_temporal():
        return "time"
    if isinstance(values.dtype, pl.List) or (
        values.dtype == pl.String and values.str.contains("|", literal=True).mean() > 0.2  # type: ignore[operator]
    ):
        return "tags"
    if values.dtype.is_float():
        return "number"
    if distinct > 0.9 * known:
        return None
    return "both" if values.dtype.is_integer() and distinct > FEW else "category"


def kinds_in_words(kinds: Mapping[str, Kind]) -> str:
    """How many columns there are of each kind."""
    counts = {kind: list(kinds.values()).count(kind) for kind in dict.fromkeys(kinds.values())}
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())
