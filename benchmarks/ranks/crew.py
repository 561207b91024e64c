"""Processes with gloo between them, each with one thread on one core, that call functions."""

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist

from pretend_hosts import CARD, Host
from sparsegroup.kernels.cpu.threads import set_num_threads

PATIENCE = 600
"""Seconds that a call may take."""


class Crew:
    """Some ranks.

    Args:
        ranks: How many. Rank r is on core r, and begins again with the first core where there are fewer.
        hosts: On which host each one is; none: on this one.
    """

    def __init__(self, ranks: int, hosts: Sequence[Host] = ()) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        self._members: list[tuple[Any, Connection]] = []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            host = hosts[rank] if hosts else None
            process = context.Process(target=_serve, args=(rank, ranks, self._folder.name, host, theirs), daemon=True)
            process.start()
            theirs.close()
            self._members.append((process, ours))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process, pipe in self._members:
            pipe.close()
            process.kill()
            process.join()
        self._folder.cleanup()

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What `function(*arguments)` gives on each rank.

        Raises:
            RuntimeError: It has failed on one of them.
        """
        for _, pipe in self._members:
            pipe.send((function, arguments))
        answers = []
        for rank, (_, pipe) in enumerate(self._members):
            if not pipe.poll(PATIENCE):
                raise RuntimeError(f"rank {rank} does not answer within {PATIENCE} s")
            failed, answer = pipe.recv()
            if failed:
                raise RuntimeError(f"rank {rank}:\n{answer}")
            answers.append(answer)
        return answers


def _serve(rank: int, ranks: int, folder: str, host: Host | None, pipe: Connection) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo" if host is None else CARD
    if host is not None:
        host.enter()
    store = dist.FileStore(str(Path(folder) / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    answer_calls(pipe)


def answer_calls(pipe: Connection) -> None:
    """Call what comes, a function and its arguments, and send whether it has failed, and what it gives or says."""
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            break
        try:
            pipe.send((False, function(*arguments)))
        except BaseException:
            pipe.send((True, traceback.format_exc()))
