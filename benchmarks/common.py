"""What the benchmarks share: the command line, taking turns, the machine in words, memory, tables, JSON."""

import argparse
import gc
import json
import multiprocessing
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

Figures = Mapping[str, Mapping[str, float | str] | float | str]
"""Figures, or tables of them by row and column."""

DATA: Mapping[str, Mapping[str, Any]] = {"--data": {"type": Path, "metavar": "FOLDER", "help": "the public logs"}}


def run(
    measure: Callable[[argparse.Namespace], Iterable[Figures]],
    description: str | None,
    quick: str,
    *,
    between: str = ".",
    seeds: int | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    argv: Sequence[str] | None = None,
) -> None:
    """The command of a benchmark: of speed with threads, of quality with seeds, as many by default.

    `measure` yields figures. After each part, which is printed, the file of `--json` has all so far as a flat object,
    with the machine and the commit; of a table the names of row and column with `between` between. `quick` says what
    the quick run leaves out, which reads no public logs and takes one seed. `options` are further ones, with their
    arguments of `add_argument`.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as a flat object")
    if seeds is None:
        parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="default: %(default)s")
    else:
        parser.add_argument("--seeds", type=int, help=f"default: {seeds}, with --quick 1")
    for name, how in (options or {}).items():
        parser.add_argument(name, **how)
    given = parser.parse_args(argv)
    if given.quick:
        given.data = None
    if seeds is not None:
        given.seeds = given.seeds or (1 if given.quick else seeds)
    print(machine(), flush=True)
    describe = ["git", "-C", Path(__file__).parent, "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, capture_output=True, text=True).stdout.strip()
    figures: dict[str, float | str] = {}
    for part in measure(given):
        show(part)
        for name, one in part.items():
            if isinstance(one, Mapping):
                figures |= {name + between + column: value for column, value in one.items()}
            else:
                figures[name] = one
        if given.json:
            signed = figures | {"commit": commit, "machine": machine()}
            given.json.write_text(json.dumps(signed, indent=1) + "\n")


def show(figures: Figures, title: str = "") -> None:
    """Print figures; a table of a single row as a column."""
    if len(figures) == 1:
        ((title, one),) = figures.items()
        figures = one if isinstance(one, Mapping) else figures
    cells = {name: one if isinstance(one, Mapping) else {"": one} for name, one in figures.items()}
    columns = list(dict.fromkeys(column for row in cells.values() for column in row))
    table = Table("", title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    for name, row in cells.items():
        table.add_row(name, *(_in_words(row.get(column, "")) for column in columns))
    Console(width=120).print(table)


def _in_words(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.5g}"


def markdown(columns: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A table of a page, its first column to the left and the others to the right."""
    first, *others = columns
    rows = [[first, *others], ["---", *["---:"] * len(others)], *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def sparsegroup(*arguments: object) -> None:
    """Run `sparsegroup` with its arguments in a process; RuntimeError with what it says where it fails."""
    command = [sys.executable, "-m", "sparsegroup", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[2:])}\n{done.stdout[-1000:]}{done.stderr[-2000:]}")


def in_a_process(function: Callable[..., Any], *arguments: object, **environment: str) -> Any:
    """The result of a function in a new process, whose peak of memory is its own, with environment variables."""
    spawn = multiprocessing.get_context("spawn")
    with patch.dict(os.environ, environment), ProcessPoolExecutor(1, spawn) as pool:
        return pool.submit(function, *arguments).result()


def seconds(run: Callable[..., object], *arguments: object) -> float:
    start = perf_counter()
    run(*arguments)
    return perf_counter() - start


@dataclass
class Disturbance:
    """Others at work on this machine: the cores of the processor that they took, in the mean."""

    cores: float = 0.0


@contextmanager
def undisturbed() -> Iterator[Disturbance]:
    """No garbage collection inside; says, and gives in the end, how much of the machine other processes took meanwhile.

    They should take none: torch's threads wait for each other, so that one that has no core holds up all of them.
    """

    def used_by_others() -> float:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(
            int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
        )
        own = sum(os.times()[:4])  # with the processes that have been waited for
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK") - own

    gc.collect()
    gc.disable()
    start, others, found = perf_counter(), used_by_others(), Disturbance()
    try:
        yield found
    finally:
        found.cores = max(0.0, (used_by_others() - others) / (perf_counter() - start))
        gc.enable()
        warning = ": too much, run it again on an idle machine" if found.cores > 0.1 else ""
        print(f"\nother processes used {found.cores:.2f} cores during the measurement{warning}", flush=True)


def alternate(
    contenders: Mapping[str, Callable[[int], object]], rounds: int, calls: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """Seconds of each call of each contender, which is given 0, 1, 2, … as it is called.

    In a round the contenders take turns, each making its number of `calls`, and the next round begins with another one.
    Every turn begins with a call that is not counted: it finds the caches full of another's work, and threads asleep.
    """
    names = list(contenders)
    times: dict[str, list[list[float]]] = {name: [] for name in names}
    for turn in range(rounds):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            first = turn * (calls[name] + 1)
            run = partial(seconds, contenders[name])
            times[name].append([run(index) for index in range(first, first + calls[name] + 1)][1:])
    return {name: np.array(taken).ravel() for name, taken in times.items()}


def median(values: Any) -> float:
    return float(np.median(list(values)))


def median_ms(times: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Medians of seconds, in milliseconds."""
    return {name: 1e3 * median(taken) for name, taken in times.items()}


def copy_bandwidth(size: int) -> float:
    """Bytes read and written per second when torch copies `size` bytes: more where they fit the cache."""
    source, target = torch.ones(size // 4), torch.zeros(size // 4)
    return 2 * size / min(seconds(target.copy_, source) for _ in range(20))


def memory() -> int:
    """Bytes of this process that are resident."""
    return 1024 * int(_read("/proc/self/smaps_rollup", r"Rss:\s+(\d+) kB"))


def peak_memory() -> int:
    """Most bytes of this process that were ever resident."""
    return 1024 * int(_read("/proc/self/status", r"VmHWM:\s+(\d+) kB"))


def _read(path: str, pattern: str) -> str:
    found = re.search(pattern, Path(path).read_text())
    return found[1] if found else "unknown"


def machine() -> str:
    processor = _read("/proc/cpuinfo", r"model name\s*: (.*)")
    gib = int(_read("/proc/meminfo", r"MemTotal:\s+(\d+)")) / 2**20
    pages = _read("/sys/kernel/mm/transparent_hugepage/enabled", r"\[(\w+)\]")
    return (
        f"{processor}, {os.cpu_count()} cores, {gib:.0f} GiB, Linux {platform.release()}, "
        f"transparent huge pages: {pages}; Python {platform.python_version()}, "
        f"torch {torch.__version__} with {torch.get_num_threads()} threads"
    )
