"""The data sets of the experiments: which log, how much of it, and which network."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sparsegroup.artifact import write_atomically
from sparsegroup.data import (
    Batch,
    ClickLogError,
    Log,
    LogOptionError,
    LogView,
    PreparationProgress,
    PreparedLog,
    SyntheticConfig,
    is_prepared,
    prepare,
    synthetic_log,
)
from sparsegroup.data.raw.files import LogPaths, paths_of, shown
from sparsegroup.settings.names import ModelName
from sparsegroup.training import Config, read_config

Scale = Literal["small", "full"]

ROWS: Mapping[Scale, int | None] = {"small": 100_000, "full": None}
"""Rows of a log that are used; None is all."""

SYNTHETIC_ROWS: Mapping[Scale, int] = {"small": 200_000, "full": 1_000_000}
PLAIN: dict[str, Any] = {
    **{"optimizer": "adam", "l21": 0.0, "penalty": "lasso", "least_features": 0, "fallback": False},
    **{"base_rate": False, "batch_size": 512, "shuffle_buffer": 0},
}
"""Settings of the paper, so that no log decides them: the base optimizer, in the order of the log."""
_PUBLIC: dict[str, Any] = {"number_buckets": 0, "standardize": False}
"""Settings of the paper on public logs: numbers unchanged."""
NETWORKS: Mapping[str, ModelName] = {
    "avazu": "mlp",
    "criteo": "dcn",
    "ipinyou": "opnn",
    "globo": "dcn",
    "nycflights": "dcn",
    "synthetic": "dcn",
}
"""Data set → network: the paper's three, and DCN for the others."""

SYNTHETIC = "synthetic"


class Excerpt(LogView):
    """At most `rows` rows of a log around its first test row, with the log's share of training rows."""

    def __init__(self, log: Log, rows: int) -> None:
        super().__init__(log)
        self.rows = min(rows, len(log))
        self.train_rows = log.train_rows if rows >= len(log) else max(1, rows * log.train_rows // len(log))

    def __len__(self) -> int:
        return self.rows

    @property
    def features(self) -> int | None:
        return self.log.features if self.train_rows == self.log.train_rows else None

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        first = self.log.train_rows - self.train_rows
        return self.log.batches(first + start, first + stop, size)


def whole_of(log: Log) -> Log:
    """The log that an excerpt is of, else the log itself."""
    return log.log if isinstance(log, Excerpt) else log


@dataclass(frozen=True)
class Dataset:
    """A log and the network for it; small enough to be handed to another process, which opens the log there.

    `folder` is the prepared log, of which at most `rows` rows are used; without one it is the synthetic log of `rows`
    rows. `config` has no λ.
    """

    name: str
    folder: Path | None
    rows: int | None
    config: Config

    def open(self) -> Log:
        if self.folder is not None:
            log = PreparedLog(self.folder)
            return log if self.rows is None else Excerpt(log, self.rows)
        assert self.rows is not None
        return synthetic_log(SyntheticConfig(rows=self.rows))


def open_dataset(
    name: str,
    data: LogPaths | None,
    test: LogPaths | None,
    scale: Scale,
    folder: Path,
    on_progress: Callable[[PreparationProgress], None] | None = None,
) -> Dataset:
    """The data set of a command; a raw log is prepared first, into `folder`.

    `name` is one of `NETWORKS`, or a YAML file of settings, of which model, batch size and log are taken, and not the
    optimizer; columns of a header are inferred, as `train` does.

    UserError: there is no such data set, no log, or a log that cannot be used.
    """
    is_public = name in NETWORKS
    if is_public:
        config = Config.of(**PLAIN, **_PUBLIC, model=NETWORKS[name])
    elif name.endswith((".yaml", ".yml")):
        opened = read_config(Path(name), {})
        sections = opened.given_sections() if opened.given is None else opened.as_dict()
        given = {f"{section}.{key}": value for section, of in sections.items() for key, value in of.items()}
        taken = {key: value for key, value in given.items() if not key.startswith("optimizer.") and value is not None}
        config = Config.of(**PLAIN | {"model": "dcn", "fallback": opened.optimizer.has_target}).replace(**taken)
        if data is None and config.data.log is not None:
            data, test = config.data.log, config.data.test
        name = Path(name).stem
    else:
        raise LogOptionError(
            f"`dataset` is one of {', '.join(NETWORKS)}, or a YAML file of settings; got {name!r}", "dataset"
        )
    if data is None:
        if name != SYNTHETIC:
            raise LogOptionError(f"`dataset` {name} wants its log: give `data`", "dataset", "data")
        if test is not None:
            raise LogOptionError("`test` is for raw logs, and the synthetic one has its own test set", "test")
        return Dataset(name, None, SYNTHETIC_ROWS[scale], config)
    if is_prepared(data):
        if test is not None:
            raise LogOptionError(f"`test` is for raw logs; {shown(data)} is a folder, prepared already", "test")
        log = PreparedLog(*paths_of(data))
    else:
        logs, options = [data, *([] if test is None else [test])], config.data.format_options
        if is_public:
            options["columns"] = "categorical"  # as the committed results were made
        log, _ = prepare(logs, folder / "log", sort_files=config.data.sort_files, on_progress=on_progress, **options)
    if log.train_rows == len(log):
        raise ClickLogError(f"{shown(data)}: it has no test rows, and experiments need them")
    if log.weighted:
        raise ClickLogError(
            f"{shown(data)}: its rows have weights, which the experiments' resampling of test rows cannot count"
        )
    synthetic = log.manifest.source.get("synthetic")
    return Dataset(f"{SYNTHETIC}-{synthetic}" if synthetic else name, log.folder, ROWS[scale], config)


def reserve(folder: Path, log: Log) -> None:
    """Let `folder` hold results on this log, or a copy of it; ClickLogError if it holds those on another one."""
    whole = whole_of(log)
    ours: dict[str, Any] = {
        "fields": list(log.fields),
        "numbers": list(log.numbers),
        "rows": len(log),
        "train_rows": log.train_rows,
        "of_rows": len(whole),
    }
    if isinstance(whole, PreparedLog):
        manifest = whole.manifest
        ours |= {"positives": manifest.positives, "features": dict(manifest.features), "hash": manifest.hash}
    path, text = folder / "dataset.json", json.dumps(ours, indent=1) + "\n"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda temporary: temporary.write_text(text))
        return
    theirs, ours = json.loads(path.read_text()), json.loads(text)
    if theirs != ours:
        differs = next(key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key))
        raise ClickLogError(
            f"{folder}: holds results on another log, or on another part of it ({differs} "
            f"{theirs.get(differs)!r:.60} there, {ours.get(differs)!r:.60} here); give another `out`",
            "out",
        )
