"""`HashEmbedding.prefetch` where it does not pay, or something goes wrong."""

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from optimizer_cases import ALLOW_CREATE_GRAPH, assert_identical, backward
from sparsegroup import GroupAdam, HashEmbedding
from sparsegroup.kernels.cpu import threads
from sparsegroup.table.lookup import kernels
from sparsegroup.table.lookup.lookup import CHUNK, GRAIN
from table_cases import REGULARIZED, Lookup, random_keys

pytestmark = ALLOW_CREATE_GRAPH

COUNT = 6000
KEYS, OTHERS = torch.arange(COUNT), torch.arange(COUNT // 2, COUNT // 2 + COUNT)


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    threads.set_num_threads(2)
    yield
    threads.set_num_threads(None)


def new_table(dim: int = 3, **options: object) -> HashEmbedding:
    return HashEmbedding(dim, std=0.5, seed=1, **options)


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    """A step that is compiled in the middle of a test may take longer than `soon` waits."""
    table = new_table()
    optimizer = GroupAdam([table.weight], lr=0.1, **REGULARIZED)
    backward(optimizer, table(KEYS).square().sum())
    optimizer.step()


def soon(job: Callable[[], object]) -> None:
    """Call `job` in a thread, which must not wait for one that never comes."""
    done = []
    thread = threading.Thread(target=lambda: done.append(job()), daemon=True)
    thread.start()
    thread.join(10)
    assert done, "it waits"


def counts(table: HashEmbedding) -> tuple[int, int, int]:
    return table.num_seen, table.num_rows, table.num_live


def batches(steps: int, dim: int) -> list[Lookup]:
    """Keys come again and again, within a batch too, and new ones join in each; some pull hard, some hardly."""
    rng = np.random.default_rng(dim)
    pool = random_keys(2000 * (steps + 1))
    pulls = rng.normal(size=(len(pool), dim)) * rng.choice([0.02, 1.0], size=(len(pool), 1))

    def drawn(known: int) -> Lookup:
        at = rng.integers(0, known, (COUNT // 3, 3))
        at[::4] = at[1::4]
        g = pulls[at] + 0.3 * rng.normal(size=(*at.shape, dim))
        return Lookup(pool[torch.from_numpy(at)], torch.from_numpy(g), torch.ones(*at.shape, dim, dtype=torch.float64))

    return [drawn(2000 * (t + 1)) for t in range(1, steps + 1)]


def test_other_keys_than_the_prefetched_ones_are_looked_for() -> None:
    """Keys that were changed in place are others."""
    table, keys = new_table(), KEYS.clone()
    table.prefetch(keys)
    assert_identical(table(keys.clone()).detach(), table.initial(keys))
    table.prefetch(keys)
    keys += COUNT
    assert_identical(table(keys).detach(), table.initial(keys))
    table.prefetch(keys)
    keys.numpy()[:] += COUNT
    assert_identical(table(keys).detach(), table.initial(keys))
    with torch.inference_mode():  # whose tensors don't say that they have been changed
        untracked = KEYS.clone()
        table.prefetch(untracked)
        untracked += COUNT // 2
        assert_identical(table(untracked), table.initial(OTHERS))


@pytest.mark.parametrize(
    ("count", "number", "pays"),
    [(0, 2, False), (GRAIN - 1, 2, False), (GRAIN, 2, True), (CHUNK, 2, True), (CHUNK + 1, 2, False),
     (COUNT, 1, False), (COUNT, 5, True)],
)  # fmt: skip
def test_too_few_keys_or_too_many_are_not_prefetched(count: int, number: int, pays: bool) -> None:
    threads.set_num_threads(number)
    table, keys = new_table(1), torch.arange(count) % COUNT
    table.prefetch(keys)
    assert table.num_seen == (min(count, COUNT) if pays else 0)
    assert_identical(table(keys).detach(), table.initial(keys))
    assert table.num_seen == min(count, COUNT)


def test_a_table_that_is_full_says_so_at_the_forward_and_works_on() -> None:
    table = new_table(max_rows=COUNT)
    table(OTHERS)
    table.prefetch(KEYS)
    assert counts(table) == (COUNT,) * 3
    with pytest.raises(RuntimeError, match=r"the table is full: max_rows=6,000, it has 6,000 rows .* 3,000 new keys"):
        table(KEYS)
    assert counts(table) == (COUNT,) * 3
    assert_identical(table(OTHERS).detach(), table.initial(OTHERS))
    table.prefetch(KEYS)
    table.assign(OTHERS[-3000:], torch.zeros(3000, 3))
    assert table.shrink() == 3000  # now there is room
    assert_identical(table(KEYS).detach(), table.initial(KEYS))


@pytest.mark.parametrize("error", [MemoryError, ValueError])
def test_an_error_in_the_other_thread_does_no_harm(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table()

    def fail(*_: object) -> None:
        raise error

    def go_on() -> bool:
        for keys in (KEYS, OTHERS):
            table.prefetch(keys)
            assert_identical(table(keys).detach(), table.initial(keys))
        return True

    with monkeypatch.context() as patch:
        patch.setattr(kernels, "look_up", fail)
        table.prefetch(KEYS)
        assert table.num_rows == 0
    soon(go_on)


def test_an_error_of_the_user_leaves_no_lock_held() -> None:
    table = new_table()
    vectors = table(KEYS)
    vectors.register_hook(lambda _: 1 / 0)
    table.prefetch(OTHERS)
    with pytest.raises(ZeroDivisionError):
        vectors.sum().backward()
    soon(lambda: counts(table))


def test_a_thread_that_cannot_be_started_leaves_no_lock_held(monkeypatch: pytest.MonkeyPatch) -> None:
    table, team = new_table(), threads._Team()
    monkeypatch.setattr(threads, "_team", lambda: team)

    def fail(_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start"):
            table.prefetch(KEYS)
    soon(lambda: table.prefetch(KEYS) or counts(table))


def test_threads_of_the_user_share_a_table() -> None:
    table = new_table()
    parts = torch.arange(40 * 5000).view(2, 20, 5000)

    def train_on(part: Tensor) -> None:
        for now, following in pairwise(part.unbind()):
            vectors = table(now)
            table.prefetch(following)
            assert_identical(vectors.detach(), table.initial(now))
        table(part[-1])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(train_on, parts))
    assert counts(table) == (parts.numel(),) * 3
    assert_identical(table.lookup(parts), table.initial(parts))


@pytest.mark.parametrize("number", [2, 3, 5])
def test_many_tables_do_not_wait_for_each_other(number: int) -> None:
    """Their look-aheads queue up for the same threads as the pieces of lookups and steps do."""

    def run(number: int) -> object:
        threads.set_num_threads(number)
        tables = [new_table() for _ in range(8)]
        optimizer = GroupAdam([table.weight for table in tables], lr=0.1, **REGULARIZED)
        lookups = batches(5, 3)
        for now, following in pairwise(lookups):
            vectors = []
            for table in tables:
                vectors.append(table(now.keys))
                table.prefetch(following.keys)
            backward(optimizer, torch.stack([now.loss(each) for each in vectors]).sum())
            optimizer.step()
        return [table.lookup(now.keys) for table in tables]

    soon(lambda: assert_identical(run(number), run(1)) or True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_process_forked_meanwhile_sees_the_prefetched_rows() -> None:
    script = """
    import os, signal, threading, torch
    from sparsegroup import HashEmbedding
    from sparsegroup.kernels.cpu import threads

    threads.set_num_threads(2)
    keys, free = torch.arange(6000), threading.Event()
    table, other = HashEmbedding(3), HashEmbedding(3)
    threads.submit(free.wait)
    table.prefetch(keys)
    other.prefetch(keys)
    threading.Timer(0.05, free.set).start()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        assert table.num_rows == table.num_seen == len(table.state_dict()["keys"]) == other.num_rows == 6000
        assert torch.equal(table.lookup(keys), table.initial(keys))
        for forbidden in (table, table.prefetch):
            try:
                forbidden(keys)
            except RuntimeError as error:
                assert "fork" in str(error), error
            else:
                raise AssertionError("allowed")
        table.eval().prefetch(keys)
        assert torch.equal(table(keys), table.initial(keys))
        os._exit(0)
    signal.alarm(30)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    table.prefetch(keys)
    assert torch.equal(table(keys), table.initial(keys))
    """
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stdout + run.stderr
