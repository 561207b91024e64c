"""`HashEmbedding.prefetch`: what comes out is what a lookup at that place would give, to the bit; and its errors."""

import copy
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from distributed_cases import in_a_new_process
from family import FAMILY, Member
from optimizer_cases import ALLOW_CREATE_GRAPH, assert_identical
from over import over
from sparsegroup import GroupAdam, GroupOptimizer, HashEmbedding, HashEmbeddingBag, MinCount, UnusedFor, param_groups
from sparsegroup.kernels.cpu import threads
from sparsegroup.table.lookup import kernels
from sparsegroup.table.lookup.lookup import GRAIN, RowLookup
from table_cases import REGULARIZED, pull, stream, take_step, through_a_file

pytestmark = [ALLOW_CREATE_GRAPH, pytest.mark.usefixtures("two_threads")]

COUNT = 6000
KEYS, OTHERS = torch.arange(COUNT), torch.arange(COUNT // 2, COUNT // 2 + COUNT)


def new_table(dim: int = 3, **options: object) -> HashEmbedding:
    return HashEmbedding(dim, std=0.5, seed=1, **options)


@contextmanager
def held_up() -> Iterator[None]:
    """The threads that would look ahead are busy until the end of the `with`."""
    free = threading.Event()
    for _ in threads._team_of(1).threads:
        threads.submit(free.wait)
    try:
        yield
    finally:
        free.set()


def counts(table: HashEmbedding) -> tuple[int, int, int]:
    return table.num_seen, table.num_rows, table.num_live


def look_up_now(table: HashEmbedding, keys: Tensor) -> None:
    """What a prefetch amounts to."""
    if table.training:
        with torch.no_grad():
            table(keys)


def train(
    table: HashEmbedding, optimizer: GroupOptimizer, ahead: Callable[..., None], gradients: int = 1
) -> list[object]:
    """The next batch's keys are given to `ahead` after a batch's forward; what is there after each batch."""
    after = []
    lookups = [each for (each,) in stream(steps=16, dim=table.dim, lookups=1, new_per_step=9)]
    for at, (now, following) in enumerate([*pairwise(lookups), (lookups[-1], None)], 1):
        vectors = table(now.keys)
        if following is not None:
            ahead(table, following.keys)
        now.loss(vectors).backward(create_graph=optimizer.rule.second_order)
        if at % gradients == 0:
            optimizer.step()
            optimizer.zero_grad()
        after.append((counts(table), table.lookup(now.keys)))
    return after


def state(table: HashEmbedding, optimizer: GroupOptimizer) -> list[object]:
    """All of it, in the order of the rows."""
    return [counts(table), table.state_dict(), optimizer.state_dict()]


@over(
    ("member", "dim", "dtype", "gradients"),
    [
        (FAMILY["adam"], 8, torch.float32, 2),
        (FAMILY["adahessian"], 16, torch.float32, 1),
        (FAMILY["adam"], 5, torch.float64, 1),
    ],
)
def test_training_is_the_same_in_every_bit(
    member: Member, dim: int, dtype: torch.dtype, gradients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsegroup.table.lookup.lookup.GRAIN", 1)  # small batches are looked up ahead, too
    tables = [new_table(dim, dtype=dtype) for _ in range(3)]
    l21 = 20.0 if member.second_order else 2.0 * member.gain
    optimizers = [member.build(table.weight, **{**REGULARIZED, "l21": l21}) for table in tables]
    aheads = (HashEmbedding.prefetch, look_up_now, lambda *_: None)
    after, same, later = (train(*each, gradients) for each in zip(tables, optimizers, aheads, strict=True))
    assert_identical(after, same)
    assert_identical([vectors for _, vectors in after], [vectors for _, vectors in later])
    for table, optimizer in zip(tables, optimizers, strict=True):
        assert_identical(state(table, optimizer), state(tables[0], optimizers[0]))
    assert 0 < tables[0].num_live < tables[0].num_rows


EVICTION = UnusedFor(steps=1, every=1)


@over("shrinks", [False, True])
@over("options", [{"eviction": EVICTION}, {"eviction": EVICTION, "admission": MinCount(2)}, {"fallback": True}])
def test_policies_and_fallback_vectors_act_as_without(options: dict[str, Any], shrinks: bool) -> None:
    """Also where rows have been renumbered between the look ahead and the lookup: occurrences are counted once."""
    found = []
    for is_ahead in (False, True):
        table, after = new_table(**options), []
        table.assign(torch.arange(-1000, 0), torch.zeros(1000, 3))  # as many new keys begin zero
        optimizer = GroupAdam(param_groups(table, l21=1e-3 if "fallback" in options else 1e9), lr=0.1)
        for at in range(6):
            keys = torch.arange(5_000) + 1_000 * at
            vectors = table(keys)
            if is_ahead and at < 5:
                table.prefetch(keys + 1_000)
            take_step(optimizer, vectors.square().sum())
            optimizer.zero_grad()
            if shrinks and at == 3:
                table.shrink()
            after.append(vectors.detach().clone())
        found.append([*after, table.num_seen, table.lookup(torch.arange(10_000)), table.state_dict().get("fallback")])
    assert_identical(*found)
    assert ("fallback" in options) == (table.num_evicted == 0)


INSPECTIONS: tuple[Callable[[HashEmbedding], object], ...] = (
    lambda table: table.num_live,
    lambda table: table.num_seen,
    lambda table: table.state_dict(),
    lambda table: list(table.items()),
    lambda table: table.lookup(OTHERS),
    lambda table: table(OTHERS).detach(),
    lambda table: table.field_counts(),
    lambda table: table.memory(),
    lambda table: [copy.deepcopy(table).state_dict(), copy.deepcopy(table)(KEYS).detach()],
    lambda table: [through_a_file(table, weights_only=False).state_dict()],
    lambda table: [table.prefetch(OTHERS), counts(table)],
    lambda table: [table.assign(KEYS[:9], torch.zeros(9, 3)), table.shrink(), counts(table)],
)


@over("inspect", INSPECTIONS)
def test_whoever_inspects_the_table_finds_a_prefetch_done(inspect: Callable[[HashEmbedding], object]) -> None:
    ours, at_once = new_table(field_bits=2), new_table(field_bits=2)
    look_up_now(at_once, KEYS)
    with held_up():
        ours.prefetch(KEYS)
        assert_identical(inspect(ours), inspect(at_once))
    assert_identical(ours.state_dict(), at_once.state_dict())


@over(("build", "training"), [(HashEmbedding, True), (HashEmbeddingBag, True), (HashEmbedding, False)])
def test_a_forward_does_not_look_for_prefetched_keys(build: type[HashEmbedding], training: bool) -> None:
    """In evaluation not for unknown ones either, as long as no row has come, which could be theirs."""
    table, keys = build(3), KEYS.view(-1, 5)
    table(keys[: len(keys) // 2 if not training else None])
    expected = table.train(training)(keys).detach()
    table.prefetch(keys)
    with table.table.at_rest():  # when the prefetch is done
        pass
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowLookup, "_find_or_insert", None)
        assert_identical(table(keys.clone()).detach(), expected)
    if not training:
        table.prefetch(keys)
        table.assign(KEYS[-5:], torch.ones(5, 3))
        assert bool((table(keys)[-1] == 1).all())


def step(table: HashEmbedding, optimizer: GroupOptimizer, keys: Tensor) -> None:
    (lookup,) = pull(keys, 3)
    take_step(optimizer, lookup.loss(table(keys)))
    optimizer.zero_grad()


def trained() -> tuple[HashEmbedding, GroupOptimizer]:
    """A table some of whose rows are zero."""
    table = new_table()
    optimizer = GroupAdam([table.weight], lr=0.1, l21=0.02)
    step(table, optimizer, OTHERS)
    table.assign(OTHERS[:1000], torch.zeros(1000, 3))
    return table, optimizer


def test_a_prefetch_is_of_the_time_before_the_next_step() -> None:
    found = []
    for ahead in (look_up_now, HashEmbedding.prefetch):
        table = new_table(eviction=UnusedFor(steps=9))
        optimizer = GroupAdam([table.weight], lr=0.1)
        loss = table(OTHERS).square().sum()
        with held_up():
            ahead(table, KEYS)
            take_step(optimizer, loss)
        optimizer.zero_grad()
        step(table, optimizer, OTHERS[-5:])
        found.append(table.table.directory.uses.unused_for(0, table.num_rows).tolist())
    assert found[0] == found[1]
    assert max(found[0]) > min(found[0])


BETWEEN: tuple[Callable[[HashEmbedding, GroupOptimizer, Tensor], object], ...] = (
    lambda table, optimizer, keys: None,
    lambda table, optimizer, keys: table.shrink(),
    lambda table, optimizer, keys: table.load_state_dict(trained()[0].state_dict()),
    lambda table, optimizer, keys: optimizer.load_state_dict(trained()[1].state_dict()),
    lambda table, optimizer, keys: table.assign(keys[:20], torch.ones(20, 3)),
    lambda table, optimizer, keys: step(table, optimizer, keys[:100]),
    lambda table, optimizer, keys: table(OTHERS),
    lambda table, optimizer, keys: [table.train(not table.training)(keys), table.train(not table.training)],
    lambda table, optimizer, keys: table.prefetch(OTHERS[:5000]),
)


@over("training", [True, False])
@over("between", BETWEEN)
def test_a_forward_is_the_same_whatever_happens_since(
    between: Callable[[HashEmbedding, GroupOptimizer, Tensor], object], training: bool
) -> None:
    results = []
    for ahead in (HashEmbedding.prefetch, look_up_now):
        keys, (table, optimizer) = KEYS.clone(), trained()
        ahead(table.train(training), keys)
        between(table, optimizer, keys)
        result = [table(keys).detach(), table.lookup(keys), state(table, optimizer)]
        step(table.train(), optimizer, keys)
        results.append([*result, state(table, optimizer)])
    assert_identical(*results)


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    """A step that is compiled in the middle of a test may take longer than `soon` waits."""
    table = new_table()
    optimizer = GroupAdam([table.weight], lr=0.1, **REGULARIZED)
    take_step(optimizer, table(KEYS).square().sum())


def soon(job: Callable[[], object]) -> None:
    """Call `job` in a thread, which must not wait for one that never comes."""
    done = []
    thread = threading.Thread(target=lambda: done.append(job()), daemon=True)
    thread.start()
    thread.join(10)
    assert done, "it waits"


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


@over(("count", "number", "pays"), [(GRAIN - 1, 2, 0), (GRAIN, 2, 1), (3_000_000, 2, 1), (COUNT, 1, 0)])
def test_too_few_keys_are_not_prefetched(count: int, number: int, pays: int) -> None:
    threads.set_num_threads(number)
    table, keys = new_table(1), torch.arange(count) % COUNT
    table.prefetch(keys)
    assert table.num_seen == (min(count, COUNT) if pays else 0)
    assert GRAIN == 4_096


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


def test_an_error_in_either_thread_or_one_that_cannot_be_started_leaves_no_lock_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = new_table()

    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(kernels, "look_up_kernel", fail)
        table.prefetch(KEYS)
        assert table.num_rows == 0
    soon(lambda: assert_identical(table(KEYS).detach(), table.initial(KEYS)) or True)
    vectors = table(KEYS)
    vectors.register_hook(lambda _: 1 / 0)
    table.prefetch(OTHERS)
    with pytest.raises(ZeroDivisionError):
        vectors.sum().backward()
    soon(lambda: counts(table))

    team = threads._Team()
    monkeypatch.setattr(threads, "_team", lambda: team)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start"):
            table.prefetch(KEYS + COUNT)
    soon(lambda: table.prefetch(KEYS + COUNT) or counts(table))


@over("number", [2, 5])
def test_many_tables_do_not_wait_for_each_other(number: int) -> None:
    """Their look-aheads queue up for the same threads as the pieces of lookups and steps do."""

    def run(number: int) -> object:
        threads.set_num_threads(number)
        tables = [new_table() for _ in range(8)]
        optimizer = GroupAdam([table.weight for table in tables], lr=0.1, **REGULARIZED)
        for now in range(0, 5 * COUNT, COUNT):
            vectors = []
            for table in tables:
                vectors.append(table(KEYS + now))
                table.prefetch(KEYS + now + COUNT)
            take_step(optimizer, torch.stack(vectors).square().sum())
        return [table.lookup(torch.arange(5 * COUNT)) for table in tables]

    soon(lambda: assert_identical(run(number), run(1)) or True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.whole
def test_a_process_forked_during_a_prefetch_sees_its_rows_and_steps_what_is_no_table() -> None:
    in_a_new_process(
        """
        import os, signal, threading, torch
        from sparsegroup import GroupAdam, HashEmbedding
        from sparsegroup.kernels.cpu import threads

        threads.set_num_threads(2)
        keys, free = torch.arange(6000), threading.Event()
        table, other, third = HashEmbedding(3), HashEmbedding(3), HashEmbedding(3)
        optimizer = GroupAdam([third.weight], lr=0.1, l21=0.01)
        third(keys).sum().backward()
        optimizer.step()
        before = third.lookup(keys)
        dense = torch.nn.Parameter(torch.ones(1 << 16, 8))
        dense.grad = torch.ones_like(dense)
        of_dense = GroupAdam([dense], lr=0.1, l21=1e-3)
        of_dense.step()  # shared among threads, which the child has not
        threads.submit(free.wait)
        table.prefetch(keys)
        other.prefetch(keys)
        threading.Timer(0.05, free.set).start()
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            of_dense.step()
            assert table.num_rows == table.num_seen == len(table.state_dict()["keys"]) == other.num_rows == 6000
            assert torch.equal(table.lookup(keys), table.initial(keys))
            for forbidden in (table, table.prefetch, lambda keys: optimizer.step()):
                try:
                    forbidden(keys)
                except RuntimeError as error:
                    assert "fork" in str(error), error
                else:
                    raise AssertionError("allowed")
            assert torch.equal(third.lookup(keys), before)
            table.eval().prefetch(keys)
            assert torch.equal(table(keys), table.initial(keys))
            os._exit(0)
        signal.alarm(30)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        table.prefetch(keys)
        assert torch.equal(table(keys), table.initial(keys))
        optimizer.step()
        assert not torch.equal(third.lookup(keys), before)
        """
    )
