"""A click log to train on, wherever it lies."""

from collections.abc import Callable, Collection
from pathlib import Path

from sparsegroup.data.choose import DatasetName, choose_format
from sparsegroup.data.formats import AvazuHour, CriteoNumbers
from sparsegroup.data.prepared import PreparedLog
from sparsegroup.data.raw import RawLog
from sparsegroup.data.reader import OnBadRow


def open_click_log(
    log: Path,
    test: Path | None = None,
    *,
    dataset: DatasetName = "auto",
    schema: Path | None = None,
    label: str | None = None,
    exclude: Collection[str] = (),
    test_fraction: float | None = None,
    criteo_numbers: CriteoNumbers = "log",
    avazu_hour: AvazuHour = "hour",
    on_bad_row: OnBadRow = "error",
    max_bad: float = 0.001,
    threads: int = 1,
    on_progress: Callable[[int], None] | None = None,
) -> PreparedLog | RawLog:
    """A prepared log if `log` is a folder, else a raw one, whose rows are counted now.

    Args:
        log: Folder or file.
        test: Of a raw log, a log of its own for the test set.
        dataset, schema, label, exclude, test_fraction, criteo_numbers, avazu_hour: Of a raw log, see `choose_format`.
        on_bad_row, max_bad, threads, on_progress: Of a raw log, see `RawLog`.

    Raises:
        ClickLogError: It cannot be read.
        ValueError: Options that do not go together, or options of raw logs for a prepared one.
        OSError: No such file.
    """
    if log.is_dir():
        options = {
            "--test": test is not None,
            "--dataset": dataset != "auto",
            "--schema": schema is not None,
            "--label": label is not None,
            "--exclude": bool(exclude),
            "--test-fraction": test_fraction is not None,
            "--criteo-numbers": criteo_numbers != "log",
            "--avazu-hour": avazu_hour != "hour",
        }
        if given := [name for name, is_given in options.items() if is_given]:
            raise ValueError(f"{given[0]} is for raw logs; {log} is a folder, prepared already")
        return PreparedLog(log)
    found = choose_format(
        log,
        test,
        dataset=dataset,
        schema=schema,
        label=label,
        exclude=exclude,
        test_fraction=test_fraction,
        criteo_numbers=criteo_numbers,
        avazu_hour=avazu_hour,
    )
    return RawLog(log, test, found, on_bad_row=on_bad_row, max_bad=max_bad, threads=threads, on_progress=on_progress)
