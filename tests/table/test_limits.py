"""A table that is full, memory that the system has not, and forked processes: an error, and all as it was."""

import math
import sys

import pytest
import torch

from distributed_cases import in_a_new_process
from optimizer_cases import ALLOW_CREATE_GRAPH, assert_identical
from over import over
from table_cases import EDGES, as_keys, crowded, edges_trained, everything, learn, pull

pytestmark = ALLOW_CREATE_GRAPH

NAN, INF = math.nan, math.inf
DIM = 3


@over("limit", [11, 12, 15])
def test_a_full_table_inserts_nothing_of_the_batch(limit: int) -> None:
    table, optimizer = edges_trained(max_rows=limit)
    keys = torch.arange(100, 100 + limit - 11 + 1)
    with pytest.raises(RuntimeError, match=rf"max_rows.*{limit}|{limit}.*max_rows"):
        table(keys)
    assert (table.num_rows, table.num_seen) == (11, 11)
    assert not table.contains(keys).any()
    if limit > 11:
        table(keys[1:].repeat(3))
    assert table.num_rows == limit
    learn(table, optimizer, pull(as_keys(EDGES), DIM))
    table.eval()
    assert not table(keys[:1]).any(), "looking up goes on"


def test_dropped_rows_make_room() -> None:
    table, optimizer = edges_trained(max_rows=11)
    optimizer.param_groups[0]["l21"] = 1e9
    learn(table, optimizer, pull(as_keys(EDGES[:3]), DIM))
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="max_rows"):
        table(as_keys([1000]))
    assert table.shrink() == 3
    table(as_keys([1000, 1001, 1002]))
    assert (table.num_rows, table.num_seen) == (11, 14)
    with pytest.raises(RuntimeError, match="max_rows"):
        table(as_keys(EDGES[:1]))


def test_keys_made_to_crowd_in_the_index_are_found_or_refused() -> None:
    """Whoever can choose all keys can make all of them crowd: at once, and a few at a time."""
    for size in (30_000, 1000):
        table, optimizer = edges_trained()
        for part in crowded(30_000).split(size):
            before = everything(table, optimizer)
            try:
                table(part)
            except RuntimeError as error:
                if "index" not in str(error):
                    raise
                assert_identical(everything(table, optimizer), before)
                break
        keys = torch.cat([crowded(30_000), as_keys(EDGES)])
        found = keys[table.contains(keys)]
        assert len(found) == table.num_rows == table.num_seen
        assert_identical(table.lookup(found[: -len(EDGES)]), table.initial(found[: -len(EDGES)]))
        learn(table, optimizer, pull(as_keys([1, 99]), DIM))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sets Linux's limits")
@pytest.mark.whole
def test_out_of_memory_leaves_the_table_intact() -> None:
    in_a_new_process(
        """
        import resource, torch
        from sparsegroup import GroupAdam, HashEmbedding

        table = HashEmbedding(256)
        optimizer = GroupAdam([table.weight], lr=0.1, l21=0.01)

        def train(keys):
            optimizer.zero_grad()
            table(keys).sum().backward()
            optimizer.step()

        def usage(name):
            return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) * 1024

        train(torch.arange(2000))
        room = 256 << 20
        resource.setrlimit(resource.RLIMIT_DATA, (usage("VmData") + room, resource.RLIM_INFINITY))
        known = 2000
        try:
            table(torch.arange(known, known + 1_000_000))
        except MemoryError:
            assert table.num_rows == table.num_seen == known, (table.num_rows, table.num_seen)
        else:
            raise SystemExit("a gigabyte is not so small")
        try:
            while known < 4_000_000:
                with torch.no_grad():
                    table(torch.arange(known, known + 1000))
                known += 1000
        except MemoryError as error:
            print("refused", error)
        else:
            raise SystemExit("no MemoryError")
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert table.num_rows == table.num_seen == known, (table.num_rows, table.num_seen, known)
        assert not table.contains(torch.arange(known, known + 1000)).any()
        keys = torch.arange(2000, known)
        for part in keys.split(5000):
            assert torch.equal(table.lookup(part), table.initial(part))
        train(torch.arange(known - 500, known + 500))
        assert table.num_rows == known + 500
        """
    )


@pytest.mark.whole
def test_a_forked_child_may_look_but_neither_insert_nor_step() -> None:
    in_a_new_process(
        """
        import os, torch
        from sparsegroup import GroupAdam, HashEmbedding

        torch.set_num_threads(1)
        table = HashEmbedding(3)
        optimizer = GroupAdam([table.weight], lr=0.1, l21=0.01)
        keys = torch.arange(100)

        def train(keys):
            optimizer.zero_grad()
            table(keys).sum().backward()
            optimizer.step()

        train(keys)
        table(keys).sum().backward()
        before = table.lookup(keys)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert torch.equal(table.lookup(keys), before)
                assert torch.equal(table.eval()(keys + 50)[:50], before[50:])
                table.train()
                for forbidden in (lambda: table(keys + 50), optimizer.step):
                    try:
                        forbidden()
                    except RuntimeError as error:
                        assert "fork" in str(error), error
                    else:
                        raise AssertionError("allowed")
                assert torch.equal(table.lookup(keys), before)
                code = 0
            except BaseException as error:
                print(repr(error), flush=True)
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert torch.equal(table.lookup(keys), before)
        assert table.num_rows == 100
        train(keys + 50)
        assert table.num_rows == 150
        """
    )
