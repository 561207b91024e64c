"""Kernels are compiled by other processes where these can be had, and by this one where that fails."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from sparsegroup.kernels.cpu import ahead

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two cores"
)

KERNELS = """
import os, signal, threading, time
from sparsegroup.kernels.cpu import ahead, jit, kernel_cache

def twice(value):
    return 2 * value

def thrice(value):
    return 3 * value

for function in (twice, thrice):
    function.__module__ = "sparsegroup.kernels.cpu.jit"
kernels = [jit.kernel(twice, "twice"), jit.kernel(thrice, "thrice")]
parent = os.getpid()
compile_for = jit.Kernel.compile_for

def begin():
    ahead.compile_ahead([(kernel, (1,)) for kernel in kernels])

def tell():
    misses = [sum(kernel.compiled.stats.cache_misses.values()) for kernel in kernels if kernel(7)]
    print(*(kernel(7) for kernel in kernels), *misses, flush=True)
"""


def outcome(cache: Path, script: str) -> tuple[str, str]:
    """Stdout, and stderr, of a process with two kernels."""
    module = cache / "kernels_here.py"
    if not module.exists():  # a source that changes is compiled anew
        module.write_text(KERNELS)
    done = subprocess.run(
        [sys.executable, "-c", f"from kernels_here import *\n{script}"],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
        cwd=cache,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_another_process_compiles_and_this_one_loads(tmp_path: Path) -> None:
    assert outcome(tmp_path, "begin(); print(kernel_cache.coming.process > 0); tell()")[0] == "True\n14 21 0 0\n"
    script = "begin(); print(kernel_cache.coming.process > 0); tell(); print(kernels[0](2.5))"
    assert outcome(tmp_path, script) == ("False\n14 21 0 0\n5.0\n", "")


def test_a_process_that_dies_leaves_its_kernels_to_this_one(tmp_path: Path) -> None:
    die = """
def die(kernel, *arguments):
    if kernel.name == "twice":
        os.kill(os.getpid(), signal.SIGKILL)
    compile_for(kernel, *arguments)

jit.Kernel.compile_for = die
begin()
tell()
"""
    assert outcome(tmp_path, die)[0] == "14 21 1 0\n"


@pytest.mark.slow
def test_other_arguments_than_were_told_are_compiled_here(tmp_path: Path) -> None:
    assert outcome(tmp_path, "begin(); print(kernels[0](2.5), kernels[0](2))")[0] == "5.0 4\n"


class NotOnDisk:
    """A kernel's cache without it."""

    is_missing = can_be_written = True
    identity = "kernel"


class Kernel:
    """One that is not on disk."""

    cache = NotOnDisk()


def test_none_is_begun_where_it_would_be_unsafe_or_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    forks = []

    def fork() -> int:
        forks.append(os.getpid())
        raise OSError("no more processes")

    def is_begun() -> bool:
        forks.clear()
        ahead.compile_ahead([(Kernel(), ())])  # type: ignore[list-item]
        return bool(forks)

    monkeypatch.setattr(os, "fork", fork)
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # other tests have left some
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    assert is_begun()
    for place, name, value in (
        (NotOnDisk, "is_missing", False),
        (NotOnDisk, "can_be_written", False),
        (os, "sched_getaffinity", lambda process: {0}),
        (torch.cuda, "is_initialized", lambda: True),
        (threading, "active_count", lambda: 2),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, value)
            assert not is_begun(), name
    with monkeypatch.context() as patch:
        patch.setenv("WORLD_SIZE", "2")
        assert not is_begun()
    assert is_begun()


SLOW = """
def slow(kernel, *arguments):
    time.sleep(1)
    compile_for(kernel, *arguments)

jit.Kernel.compile_for = slow
kernel_cache.NOTICE_AFTER = {after}
begin()
time.sleep({until})
tell()
"""


@pytest.mark.parametrize(("after", "until", "notices"), [(0.1, 0, 1), pytest.param(0.1, 4, 0, marks=pytest.mark.slow)])
def test_the_notice_comes_with_waiting_alone(after: float, until: float, notices: int, tmp_path: Path) -> None:
    printed, told = outcome(tmp_path, SLOW.format(after=after, until=until))
    assert printed == "14 21 0 0\n"
    assert told.count("compiling twice for this machine, once") == notices


@pytest.mark.slow
def test_a_process_that_is_forked_meanwhile_compiles_for_itself(tmp_path: Path) -> None:
    fork = """
begin()
child = os.fork()
tell()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    lines = outcome(tmp_path, fork)[0].splitlines()
    assert sorted(line[:5] for line in lines) == ["14 21", "14 21"]
    assert "14 21 0 0" in lines


ENDS = """
def never(kernel, *arguments):
    time.sleep(50)

jit.Kernel.compile_for = never
begin()
print(kernel_cache.coming.process, flush=True)
time.sleep(2)
{end}
"""


@pytest.mark.slow
def test_who_ends_takes_them_along_and_nobody_waits_for_their_output(tmp_path: Path) -> None:
    group = int(outcome(tmp_path, ENDS.format(end=""))[0])
    for _ in range(100):
        if not _has_members(group):
            break
        os.sched_yield()
    assert not _has_members(group)
    group = int(outcome(tmp_path, ENDS.format(end="os._exit(0)"))[0])  # without a word: they end with their work
    os.killpg(group, 9)


def _has_members(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return any(
        fields[2] == str(group) and fields[0] != "Z"
        for path in Path("/proc").glob("[0-9]*/stat")
        if (fields := _stat(path))
    )


def _stat(path: Path) -> list[str]:
    """State, parent and group of a process."""
    try:
        return path.read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return []
