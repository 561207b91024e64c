"""Seconds to the first training step and of whole commands, from a cold and a warm kernel cache.

Each trial is a separate process that starts by importing torch; counted is the time after that, to the end of the
first step of the first optimizer: the README's example, `sparsegroup demo`, and `sparsegroup train` on a log of 10,000
rows. Modules are there as bytecode, as pip leaves them. Trials take turns, cold and warm; medians. CPU seconds do not
depend on what else the machine does. "kernels" are those that were not on disk; "compiling MB" is the difference in
peak memory between the cold trial and the warm one. It also has the cost of imports and of `--help`;
"whole" is all of `sparsegroup train --rows 2000`, in an empty home folder (no kernels) and again.

    python benchmarks/first_step.py --json benchmarks/results/first_step.json
"""

import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import common
import sparsegroup

ROUNDS, LOG_ROWS = 5, 10_000
WHOLE = ("-m", "sparsegroup", "train", "--rows", "2000", "--quiet", "--out")
ALONE = ("--threads", "1")
"""With more, other processes compile what later steps call, which the whole command shows."""
TRIALS = {"readme": (), "demo": ("demo", *ALONE), "train": ("train", "{log}", "--out", "{folder}/run", *ALONE)}
"""Name → the command line; the README's example has none."""
TRIAL = str(Path(__file__).with_name("first_step_trial.py"))
COMMANDS = {
    "import_torch": ("-c", "import torch"),
    "import_sparsegroup": ("-c", "import torch; from sparsegroup import GroupAdam, HashEmbedding"),
    "help": ("-m", "sparsegroup", "--help"),
}


def measure(given: Namespace) -> Iterator[common.Figures]:
    rounds = 1 if given.quick else ROUNDS
    with tempfile.TemporaryDirectory() as scratch, common.undisturbed() as others:
        figures = trials(Path(scratch), ("readme",) if given.quick else tuple(TRIALS), rounds)
        spent_by = {name: [cpu_and_seconds(command) for _ in range(rounds)] for name, command in COMMANDS.items()}
        spent_by |= whole_commands(Path(scratch), rounds)
    for name, spent in spent_by.items():
        figures |= {f"{name}_cpu": median(cpu for cpu, _ in spent), f"{name}_seconds": median(s for _, s in spent)}
    yield figures | {"others_cores": others.cores}


def trials(scratch: Path, names: Sequence[str], rounds: int) -> dict[str, float]:
    """The medians of so many cold and warm trials of each name."""
    compileall.compile_dir(Path(sparsegroup.__file__).parent, quiet=1)
    log = scratch / "clicks.csv"
    if "train" in names:
        common.sparsegroup("synthesize", log, "--rows", LOG_ROWS, "--quiet")
    taken: dict[str, list[dict[str, float]]] = {}
    for turn in range(rounds):
        for name in names:
            cache = scratch / f"{name}-{turn}"
            for state in ("cold", "warm"):
                folder = scratch / f"{name}-{turn}-{state}"
                before = sum(1 for _ in cache.rglob("*.nbc"))
                one = first_step([part.format(log=log, folder=folder) for part in TRIALS[name]], cache)
                one["kernels"] = sum(1 for _ in cache.rglob("*.nbc")) - before
                taken.setdefault(f"{name}_{state}", []).append(one)
    found = {f"{key}_{figure}": median(o[figure] for o in ones) for key, ones in taken.items() for figure in ones[0]}
    for name in names:
        found[f"{name}_compiling_mb"] = found.pop(f"{name}_cold_peak_mb") - found.pop(f"{name}_warm_peak_mb")
    return found


def first_step(command: Sequence[str], cache: Path) -> dict[str, float]:
    """What a process with this kernel cache takes to its first step, after importing torch."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    trial = subprocess.run([sys.executable, TRIAL, *command], env=environment, capture_output=True, text=True)
    if trial.returncode:
        raise RuntimeError(f"{' '.join(command) or 'the example'} failed:\n{trial.stderr}")
    found: dict[str, float] = json.loads(trial.stdout.splitlines()[-1])
    return found


def whole_commands(scratch: Path, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """CPU seconds and seconds of a whole training in an empty home folder, and of another one after it."""
    spent: dict[str, list[tuple[float, float]]] = {"whole_cold": [], "whole_warm": []}
    for turn in range(rounds):
        home = scratch / f"home-{turn}"
        environment = {**os.environ, "HOME": str(home), "NUMBA_CACHE_DIR": str(home / "kernels")}
        environment.pop("XDG_CACHE_HOME", None)
        home.mkdir()
        for name, ones in spent.items():
            ones.append(cpu_and_seconds((*WHOLE, str(home / name)), environment))
    return spent


def cpu_and_seconds(command: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[float, float]:
    """CPU seconds and seconds of a Python process."""
    before, start = os.times(), perf_counter()
    subprocess.run([sys.executable, *command], stdout=subprocess.DEVNULL, check=True, env=environment)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return used, perf_counter() - start


def median(values: Any) -> float:
    return round(statistics.median(values), 3)


if __name__ == "__main__":
    common.run(measure, __doc__, quick="one round, and of the README's example alone")
