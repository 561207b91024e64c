"""Runs the command line in forked processes and kills them: at an operation on the disk, or after some time.

Started once by `kill_runs.Driver`, it takes a request per line and answers with a line, both JSON. The libraries are
loaded, and the kernels used, before it forks: a run then takes a fraction of a second.

An operation is what changes the disk: a write, a sync, a rename, a removal, a new folder, a file opened for writing.
Those of Python are seen by an audit hook, the writes and syncs by the functions of `sparsegroup.artifact.folder`, whole
files written by others by the functions that do so. Report and plot, which take most of a small run's time, are stood
in for.
"""

import gc
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from sparsegroup.artifact import folder as disk
from sparsegroup.artifact import tensor_file
from sparsegroup.cli import main
from sparsegroup.kernels.cpu.threads import set_num_threads
from sparsegroup.reporting import page
from sparsegroup.training import run_folder, trainer
from sparsegroup.training.run_folder import METRICS, RunFolder

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Inline:
    """An executor without threads, so that operations come in the same order in every run."""

    def __init__(self, *arguments: object) -> None:
        pass

    def __enter__(self) -> "Inline":
        return self

    def __exit__(self, *arguments: object) -> None:
        pass

    def submit(self, function: Callable[[], Any]) -> "Future[Any]":
        done: Future[Any] = Future()
        done.set_result(function())
        return done


class Faults:
    """Counts operations, and dies at one of them.

    Args:
        at: Its number, from 0; None to count only.
        how: "before", "middle" (half of it is done) or "after".
    """

    def __init__(self, at: int | None, how: str) -> None:
        self.at, self.how = at, how
        self.seen: list[str] = []
        self.root = os.getcwd() + os.sep

    def operation(self, name: str, do: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        here = len(self.seen) == self.at
        self.seen.append(name + (" …" if half else ""))
        if here and self.how == "before":
            die()
        if here and self.how == "middle":
            if half is not None:
                half()
            die()
        result = do()
        if here:
            die()
        return result

    def wrap(self, module: Any, name: str, half: Callable[..., Any] | None = None) -> None:
        real = getattr(module, name)

        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            first = None if half is None else partial(half, real, *arguments, **keywords)
            return self.operation(name, partial(real, *arguments, **keywords), first)

        setattr(module, name, wrapped)

    def install(self) -> None:
        self.wrap(disk, "write", lambda real, file, data: real(file, memoryview(data).cast("B")[: len(data) // 2]))
        self.wrap(disk, "sync")
        self.wrap(tensor_file, "save_file", half_of_a_file)
        self.wrap(shutil, "copyfile", half_of_a_file)
        self.wrap(Path, "write_text", lambda real, path, text, **keywords: real(path, text[: len(text) // 2]))
        self.wrap(RunFolder, "append_point", half_of_a_line)
        sys.addaudithook(self.audit)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if not isinstance(path, str | bytes | Path) or not flags & WRITING:
                return
        elif event == "os.remove" and arguments[1] == -1 and not os.path.lexists(arguments[0]):
            return
        elif event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir"):
            path = arguments[0]
        else:
            return
        where = os.path.join(self.root, os.fsdecode(path))
        if where.startswith(self.root):
            self.operation(f"{event} {os.path.basename(where)}", lambda: None)


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def half_of_a_file(real: Callable[..., Any], *arguments: Any, **keywords: Any) -> None:
    real(*arguments, **keywords)
    path = [argument for argument in arguments if isinstance(argument, Path)][-1]
    os.truncate(path, path.stat().st_size // 2)


def half_of_a_line(real: Callable[..., Any], run: RunFolder, point: Any) -> None:
    real(run, point)
    path = run.path / METRICS
    os.truncate(path, path.stat().st_size - 20)


def child(request: dict[str, Any], report: int) -> NoReturn:
    os.chdir(request["folder"])
    output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    trainer.ThreadPoolExecutor = Inline  # type: ignore[misc, assignment]
    page.render_report = lambda *arguments: "the report"  # type: ignore[assignment]
    faults = Faults(request.get("at"), request.get("how", "before"))
    faults.install()
    code = 1
    try:
        sys.argv = ["sparsegroup", *request["arguments"]]
        main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:  # a test that waits for an answer must get one
        sys.excepthook(*sys.exc_info())
    faults.at = None
    with suppress(OSError):
        os.write(report, json.dumps(faults.seen).encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(request: dict[str, Any]) -> dict[str, Any]:
    output = Path(request["folder"]) / "output.txt"
    output.write_text("")  # there may be no time to make it
    reading, writing = os.pipe()
    began = time.perf_counter()
    process = os.fork()
    if not process:
        os.close(reading)
        child(request, writing)
    os.close(writing)
    if (delay := request.get("kill_after")) is not None:
        time.sleep(delay)
        os.kill(process, signal.SIGKILL)  # it may have ended: it is not waited for yet
    with open(reading, "rb") as pipe:
        seen = pipe.read()
    _, status = os.waitpid(process, 0)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "operations": json.loads(seen) if seen else None,
        "seconds": time.perf_counter() - began,
        "output": output.read_text(errors="replace"),
    }


def warm_up(folder: str) -> None:
    """Load what a run needs. No log is read: what reads it has threads, which a fork would leave behind."""
    torch.set_num_threads(1)
    set_num_threads(1)
    real, run_folder.write_names = run_folder.write_names, lambda *arguments: None  # Parquet is written by threads, too
    for optimizer in ("adam", "adagrad"):
        out = os.path.join(folder, optimizer)
        options = ["--optimizer", optimizer, "--model", "opnn", "--out", out, "--threads", "1"]
        options += ["--checkpoint-steps", "1"]
        for arguments in (["--rows", "1000", "--batch-size", "300", *options], ["--resume", out]):
            sys.argv = ["sparsegroup", "train", *arguments]
            with suppress(SystemExit):
                main()
    run_folder.write_names = real


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warm_up(sys.argv[1])
    gc.freeze()  # what is collected is copied: pages are shared with the parent until they are written to
    gc.disable()
    for line in sys.stdin:
        answers.write(json.dumps(run(json.loads(line))) + "\n")
        answers.flush()
