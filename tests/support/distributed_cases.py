"""Processes: some with gloo between them, which call functions of test modules, and others that run a script."""

import faulthandler
import multiprocessing
import os
import signal
import tempfile
import textwrap
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

WORLD = 2
PATIENCE = 300  # seconds, on a machine that does much else


def forking() -> ForkServerContext:
    """Makes processes that find the library imported: importing it again takes each of them seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sparsegroup.cli.runs", "sparsegroup.serving", "torch.distributed.tensor"])
    return context


def in_a_new_process(script: str) -> None:
    """Run a script in a process of `forking`; what it raises fails the test."""
    context = forking()
    ours, theirs = context.Pipe()
    process = context.Process(target=_execute, args=(textwrap.dedent(script), theirs))
    process.start()
    theirs.close()
    try:
        error = ours.recv() if ours.poll(PATIENCE) else "it does not end"
    except EOFError:
        error = "it died"
    process.kill()
    process.join()
    assert not error, error


def _execute(script: str, pipe: Connection) -> None:
    try:
        exec(compile(script, "script", "exec"), {"__name__": "__main__"})
        pipe.send("")
    except BaseException:
        pipe.send(traceback.format_exc())


class Ranks:
    """So many ranks, which begin when they are first needed."""

    def __init__(self, world: int = WORLD) -> None:
        self._world = world
        self._ranks: list[tuple[Any, Connection]] = []

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What `function(*arguments)` gives on each rank; it must not leave a rank waiting for one that has failed."""
        if not self._ranks:
            self._begin()
        for _, pipe in self._ranks:
            pipe.send((function, arguments))
        answers = []
        for number, (process, pipe) in enumerate(self._ranks):
            if not pipe.poll(PATIENCE):
                for process, _ in self._ranks:  # each tells where it stands
                    os.kill(process.pid, signal.SIGUSR1)
                time.sleep(1)
                self.end()
                raise AssertionError(f"rank {number} does not answer")
            try:
                answers.append(pipe.recv())
            except EOFError:
                process.join()
                self.end()
                raise AssertionError(f"rank {number} died with exit code {process.exitcode}") from None
        for number, (failed, answer) in enumerate(answers):
            assert not failed, f"rank {number}:\n{answer}"
        return [answer for _, answer in answers]

    def _begin(self) -> None:
        context = forking()
        folder = tempfile.mkdtemp()
        for rank in range(self._world):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self._world, folder, theirs), daemon=True)
            process.start()
            theirs.close()
            self._ranks.append((process, ours))

    def end(self) -> None:
        for process, pipe in self._ranks:
            pipe.close()
            process.kill()
            process.join()
        self._ranks.clear()


def on_two() -> bool:
    """Whether this is one of the two ranks."""
    return dist.is_initialized()


def whole(tensor: Tensor) -> Tensor:
    """All of what is spread over ranks."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def own_half(batch: Tensor) -> Tensor:
    """The rank's half of a batch; all of it on one process."""
    return batch.chunk(WORLD)[dist.get_rank()] if on_two() else batch


def _serve(rank: int, world: int, folder: str, pipe: Connection) -> None:
    faulthandler.register(signal.SIGUSR1)
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            break
        try:
            pipe.send((False, function(*arguments)))
        except BaseException:
            pipe.send((True, traceback.format_exc()))
    dist.destroy_process_group()
