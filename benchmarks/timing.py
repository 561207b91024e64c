"""What the benchmarks share: alternating runs, the machine in words, memory, tables, JSON."""

import argparse
import gc
import json
import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from rich.console import Console
from rich.table import Table


def parser(description: str | None, quick: str, seeds: int | None = None) -> argparse.ArgumentParser:
    """Arguments that every benchmark has: of speed with threads, of quality with seeds, as many by default.

    Args:
        description: The benchmark's docstring.
        quick: What the quick run leaves out.
        seeds: None for a benchmark of speed.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as a flat object")
    if seeds is None:
        parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="default: %(default)s")
    else:
        parser.add_argument("--seeds", type=int, default=seeds, help="default: %(default)s")
    return parser


def write_json(path: Path | None, figures: Mapping[str, float | str]) -> None:
    if path:
        path.write_text(json.dumps(figures, indent=1) + "\n")


def show(title: str, columns: Iterable[str], lines: Iterable[Iterable[str]]) -> None:
    """Print a table, its first column to the left and the others to the right."""
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    for line in lines:
        table.add_row(*line)
    Console(width=120).print(table)


def markdown(columns: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A table of a page, its first column to the left and the others to the right."""
    first, *others = columns
    rows = [[first, *others], ["---", *["---:"] * len(others)], *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def seconds(run: Callable[..., object], *arguments: object) -> float:
    start = perf_counter()
    run(*arguments)
    return perf_counter() - start


@dataclass
class Disturbance:
    """Others at work on this machine.

    Attributes:
        cores: Of the processor that they took, in the mean.
    """

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


def copy_bandwidth(size: int) -> float:
    """Bytes read and written per second when torch copies `size` bytes: more where they fit the cache."""
    source, target = torch.ones(size // 4), torch.zeros(size // 4)
    return 2 * size / min(seconds(target.copy_, source) for _ in range(20))


def memory() -> tuple[int, int]:
    """Bytes of this process that are resident, and those of them that are in huge pages."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    kilobytes = dict(re.findall(r"^(\w+):\s+(\d+) kB", rollup, re.M))
    return 1024 * int(kilobytes["Rss"]), 1024 * int(kilobytes["AnonHugePages"])


def peak_memory() -> int:
    """Most bytes of this process that were ever resident."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    assert found, "no VmHWM in /proc/self/status"
    return 1024 * int(found[1])


def machine() -> str:
    def read(path: str, pattern: str) -> str:
        found = re.search(pattern, Path(path).read_text())
        return found[1] if found else "unknown"

    processor = read("/proc/cpuinfo", r"model name\s*: (.*)")
    gib = int(read("/proc/meminfo", r"MemTotal:\s+(\d+)")) / 2**20
    pages = read("/sys/kernel/mm/transparent_hugepage/enabled", r"\[(\w+)\]")
    return (
        f"{processor}, {os.cpu_count()} cores, {gib:.0f} GiB, Linux {platform.release()}, "
        f"transparent huge pages: {pages}; torch {torch.__version__} with {torch.get_num_threads()} threads"
    )
