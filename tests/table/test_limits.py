"""A table that is full, memory that the system has not, and forked processes: an error, and all as it was."""

import math
import sys

import pytest
import torch

from distributed_cases import in_a_new_process
from optimizer_cases import ALLOW_CREATE_GRAPH
from over import over
from table_cases import EDGES, as_keys, edges_trained, learn, pull

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
