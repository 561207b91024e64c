"""Several threads at once: what comes out is what would have come out in turn. Workers of a DataLoader insert nothing.

Workers have copies of a table: they may look keys up, however they were started.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from distributed_cases import forking
from optimizer_cases import ALLOW_CREATE_GRAPH, assert_identical
from over import over
from sparsegroup import GroupAdam, GroupOptimizer, GroupSGD, HashEmbedding, UnusedFor
from sparsegroup.kernels.cpu import threads
from sparsegroup.table.lookup.compile import register
from sparsegroup.table.lookup.lookup import TableLock
from sparsegroup.table.table import Table, tables_at_rest
from table_cases import everything, learn, pull, random_keys, stream, take_step

pytestmark = ALLOW_CREATE_GRAPH

DIM = 4


def together(*jobs: Callable[[], object]) -> list[object]:
    """All jobs at once, each in a thread of its own, none before the others are ready; raises what one raises."""
    barrier = threading.Barrier(len(jobs))

    def run(job: Callable[[], object]) -> object:
        barrier.wait()
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return [future.result() for future in [pool.submit(run, job) for job in jobs]]


@contextmanager
def background(job: Callable[[], object]) -> Iterator[None]:
    """`job` again and again in a thread while the body of the `with` runs, at least once before it."""
    stop, started = threading.Event(), threading.Event()

    def run() -> None:
        try:
            while not stop.is_set():
                job()
                started.set()
        finally:
            started.set()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run)
        started.wait()
        try:
            yield
        finally:
            stop.set()
        future.result()


def new_table(**options: object) -> HashEmbedding:
    return HashEmbedding(DIM, std=0.5, seed=1, **options)


def train(table: HashEmbedding, optimizer: GroupOptimizer, steps: Any) -> None:
    for lookups in steps:
        learn(table, optimizer, lookups)


def test_a_key_that_comes_to_several_threads_at_once_gets_one_row() -> None:
    """Also of threads that look ahead."""
    keys = random_keys(20_000)
    table = new_table()
    orders = [torch.randperm(len(keys), generator=torch.Generator().manual_seed(seed)) for seed in range(4)]

    def insert(order: Tensor, size: int) -> None:
        parts = keys[order].split(size)
        for part, following in zip(parts, [*parts[1:], parts[0]], strict=True):
            assert_identical(table(part).detach(), table.initial(part))
            table.prefetch(following)

    threads.set_num_threads(2)
    sizes = zip(orders, [500, 5000, 500, 5000], strict=True)
    together(*(lambda order=order, size=size: insert(order, size) for order, size in sizes))
    threads.set_num_threads(None)
    assert (table.num_rows, table.num_seen, table.num_live) == (len(keys),) * 3
    assert_identical(table.lookup(keys), table.initial(keys))
    assert len(torch.cat([found for found, _ in table.items()]).unique()) == len(keys)


def test_a_vector_is_read_whole_while_steps_write_it() -> None:
    """SGD on equal elements: every vector that is ever seen has equal elements, and only moves up."""
    table = HashEmbedding(64, std=1e-30)
    keys = random_keys(3000)
    table(keys)
    optimizer = GroupSGD([table.weight], lr=1.0)
    last = torch.full((len(keys),), -1.0)

    def look_up() -> None:
        vectors = table.lookup(keys)
        assert (vectors - vectors[:, :1]).abs().max() < 1e-6
        assert (vectors[:, 0] >= last - 1e-6).all()
        last.copy_(vectors[:, 0])

    with background(look_up):
        for _ in range(20):
            take_step(optimizer, (-table(keys)).sum())
    assert (table.lookup(keys) > 1).all()


def test_shrinking_and_returning_while_others_look_up() -> None:
    """What is read is right: zeros or a start where a key dies and returns. A lookup cut in two by a shrink raises."""
    table = new_table()
    living, dying = random_keys(1000, seed=1), torch.arange(5000, 6000)
    table(living)
    start = table.initial(dying)
    optimizer = GroupAdam([table.weight], lr=0.1, l21=1e9)
    done = 0

    def look_up() -> None:
        nonlocal done
        try:
            vectors, others = table.lookup(dying), table.lookup(living)
        except RuntimeError as error:
            if "shrunk" not in str(error):
                raise
            return
        assert ((vectors == 0).all(1) | (vectors == start).all(1)).all()
        assert_identical(others, table.initial(living))
        done += 1

    with background(look_up):
        for _ in range(15):
            learn(table, optimizer, pull(dying, DIM))
            optimizer.zero_grad()
            assert table.shrink() == len(dying)
            table(dying)
    assert done
    assert (table.num_rows, table.num_seen) == (2000, 2000)


def test_rows_that_go_by_themselves_while_others_look_up() -> None:
    table = HashEmbedding(DIM, eviction=UnusedFor(steps=1, live=True, every=1))
    optimizer = GroupAdam(table.parameters())

    def look_up() -> None:
        with torch.no_grad():
            table(torch.randint(2_000, (64,)))

    with background(look_up):
        for _ in range(100):
            learn(table, optimizer, pull(torch.randint(2_000, (64,)), DIM))
    assert table.lookup(torch.arange(2_000)).isfinite().all()


def test_old_keys_are_found_and_items_are_complete_or_raise_while_the_table_grows() -> None:
    table = new_table()
    old, new = random_keys(5000, seed=1), torch.arange(100_000)
    expected = table.initial(old)
    table(old)

    def read() -> None:
        assert_identical(table.lookup(old), expected)
        assert table.contains(old).all()
        with torch.no_grad():
            assert_identical(table(old), expected)
        try:
            found = torch.cat([keys for keys, _ in table.items(1000)])
        except RuntimeError as error:
            if "while" not in str(error):
                raise
            return
        assert len(found.unique()) == len(found)
        assert torch.isin(old, found).all()

    with background(read):
        for part in new.split(1000):
            table(part)
    assert_identical(table.lookup(new), table.initial(new))
    assert len(torch.cat([keys for keys, _ in table.items()])) == table.num_rows


def test_inspection_and_saving_while_a_table_trains() -> None:
    tables = [new_table(field_bits=4) for _ in range(2)]
    optimizers = [GroupAdam([each.weight], lr=0.1, l21=0.3) for each in tables]
    steps, table = stream(steps=40, dim=DIM, new_per_step=30), tables[0]

    def inspect() -> None:
        rows = table.num_rows
        state = table.state_dict()
        assert rows <= len(state["keys"].unique()) == len(state["keys"]) == len(state["weight"])
        assert state["weight"].isfinite().all()
        assert sum(count.rows for count in table.field_counts().values()) >= rows
        assert 0 <= table.feature_rate <= 1
        assert table.memory().total > 0

    with background(inspect):
        train(table, optimizers[0], steps)
    train(tables[1], optimizers[1], steps)
    assert_identical(*(everything(*each) for each in zip(tables, optimizers, strict=True)))


def test_tables_train_in_threads_of_their_own_and_losses_of_several_threads_add_up_in_one_gradient() -> None:
    """Lookup and backward in each thread, on keys of its own; autograd adds the gradients of the weight up."""
    parts = torch.arange(4000).view(4, -1)

    def contribute(table: HashEmbedding, keys: Tensor) -> None:
        (lookup,) = pull(keys, DIM)
        for start in range(0, len(keys), 100):
            part = slice(start, start + 100)
            (table(keys[part]) * lookup.gradient[part]).sum().backward()

    def all_of_it(run: Callable[..., object]) -> object:
        tables = [new_table(dtype=torch.float64) for _ in range(5)]
        optimizers = [GroupAdam([each.weight], lr=0.1, l21=0.01) for each in tables]
        run(*(lambda keys=keys: contribute(tables[0], keys) for keys in parts))
        optimizers[0].step()
        pairs = list(enumerate(zip(tables, optimizers, strict=True)))
        run(*(lambda seed=seed, one=one: train(*one, stream(dim=DIM, seed=seed)) for seed, one in pairs[1:]))
        return [everything(*one) for _, one in pairs]

    assert_identical(all_of_it(together), all_of_it(lambda *jobs: [job() for job in jobs]))


class Named:
    """What a number is for."""


def test_what_is_registered_in_several_threads_has_different_numbers() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        named = [[Named() for _ in range(300)] for _ in range(4)]
        numbers = together(*(lambda some=some: [register(one) for one in some] for some in named))  # type: ignore[misc]
    finally:
        sys.setswitchinterval(interval)
    assert len({number for some in numbers for number in some}) == 1200  # type: ignore[attr-defined]


def ends(*jobs: Callable[[], object]) -> bool:
    """Return whether jobs in threads end. Threads that wait for each other are abandoned."""
    threads = [threading.Thread(target=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return not any(thread.is_alive() for thread in threads)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded")
def test_a_fork_does_not_wait_for_a_thread_that_waits_for_a_table() -> None:
    """Fork a process while a thread holds one of two tables and locks the other table, in either order."""
    one, other = new_table().table, new_table().table
    for first, second in ((one, other), (other, one)):
        has_first = threading.Event()

        def take_both(first: Table = first, second: Table = second, event: threading.Event = has_first) -> None:
            with first.at_rest():
                event.set()
                time.sleep(0.05)
                with second.at_rest():
                    pass

        def fork(event: threading.Event = has_first) -> None:
            event.wait()
            child = os.fork()
            if not child:
                os._exit(0)
            os.waitpid(child, 0)

        assert ends(take_both, fork)


def test_threads_that_take_the_same_tables_in_different_orders_do_not_wait_for_each_other() -> None:
    tables = [new_table().table for _ in range(3)]

    def take_all(order: list[Table]) -> None:
        for _ in range(300):
            with tables_at_rest(order):
                time.sleep(0)

    assert ends(lambda: take_all(tables), lambda: take_all(tables[::-1]))


def test_a_job_that_another_thread_schedules_does_not_run_inside_a_block_at_rest() -> None:
    lock, done = TableLock(), list[str]()
    block = lock.at_rest()
    lock.schedule(lambda: done.append("job"))
    with block, lock.at_rest():
        assert not done
    with lock.at_rest():
        assert done == ["job"]


class Vectors(Dataset[Tensor]):
    """Gives the vector of each key, or what was said instead."""

    def __init__(self, table: HashEmbedding) -> None:
        self.table = table

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        try:
            return self.table(torch.tensor([index])).detach()
        except RuntimeError as error:
            return str(error)


def said(table: HashEmbedding, start: str) -> list[Any]:
    context = forking() if start == "forkserver" else start  # which sends the table as "spawn" does, and starts sooner
    loader = DataLoader(Vectors(table), batch_size=None, num_workers=1, multiprocessing_context=context, timeout=120)
    return list(loader)


@pytest.mark.parametrize("start", ["forkserver", "fork"])
@pytest.mark.whole
def test_a_worker_inserts_nothing_and_says_what_to_do(start: str) -> None:
    torch.set_num_threads(1)
    table = HashEmbedding(3)
    for message in said(table, start):
        assert message.startswith("worker 0 of a DataLoader cannot insert keys: its table is a copy")
        assert "Have the workers give the keys, and look them up in the main process" in message
    assert table.num_rows == 0
    assert len(list(DataLoader(Vectors(table), batch_size=None))) == 4
    assert table.num_rows == 4  # where there are no workers


@over("is_frozen", [False, True])
@pytest.mark.whole
def test_a_worker_may_look_up_what_there_is(is_frozen: bool) -> None:
    table = HashEmbedding(3)
    table.assign(torch.tensor([1]), torch.ones(1, 3))
    table = table.requires_grad_(False) if is_frozen else table.eval()
    assert [vector.tolist() for vector in said(table, "fork")] == [[[one] * 3] for one in (0.0, 1.0, 0.0, 0.0)]


FORK_WHILE_SIGNALS_ARE_DEFERRED = """
import os, signal, threading, time
from sparsegroup.signals import signals_deferred

codes = []

def fork():
    child = os.fork()
    if child == 0:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        except KeyboardInterrupt:
            os._exit(7)
        os._exit(0)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

with signals_deferred():
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
print(codes)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_while_signals_are_deferred_can_be_interrupted() -> None:
    # In a process of its own, because libraries that other tests have loaded can crash in a forked process.
    command = [sys.executable, "-c", FORK_WHILE_SIGNALS_ARE_DEFERRED]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[7]\n"
