"""`HashEmbedding.prefetch`: what comes out is what would have come out of a lookup at that place, in every bit."""

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from family import FAMILY, Member
from optimizer_cases import ALLOW_CREATE_GRAPH, assert_identical, backward
from sparsegroup import GroupAdam, GroupOptimizer, HashEmbedding, HashEmbeddingBag, UnusedFor
from sparsegroup.kernels.cpu import threads
from sparsegroup.table.lookup.lookup import RowLookup
from table_cases import REGULARIZED, Lookup, pull, random_keys, through_a_file

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


def train(
    table: HashEmbedding,
    optimizer: GroupOptimizer,
    lookups: Sequence[Lookup],
    ahead: Callable[..., None],
    gradients: int = 1,
) -> list[object]:
    """The next batch's keys are given to `ahead` after a batch's forward; what is there after each batch."""
    after = []
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


@pytest.mark.parametrize(
    ("member", "dim", "dtype", "gradients"),
    [
        *(
            (member, dim, torch.float32, 1)
            for member, dim in zip(FAMILY.values(), (1, 3, 5, 8, 12, 16, 20, 24), strict=True)
        ),
        (FAMILY["adam"], 5, torch.float64, 1),
        (FAMILY["adam"], 7, torch.float32, 2),
    ],
    ids=[*FAMILY, "float64", "accumulated gradients"],
)
def test_training_is_the_same_in_every_bit(member: Member, dim: int, dtype: torch.dtype, gradients: int) -> None:
    lookups = batches(6, dim)
    l21 = 20.0 if member.second_order else 2.0 * member.gain
    tables = [new_table(dim, dtype=dtype) for _ in range(3)]
    optimizers = [member.build(table.weight, **{**REGULARIZED, "l21": l21}) for table in tables]
    aheads = (HashEmbedding.prefetch, look_up_now, lambda *_: None)
    after, same, later = (
        train(table, optimizer, lookups, ahead, gradients)
        for table, optimizer, ahead in zip(tables, optimizers, aheads, strict=True)
    )
    assert_identical(after, same)
    assert_identical([vectors for _, vectors in after], [vectors for _, vectors in later])
    for table, optimizer in zip(tables, optimizers, strict=True):
        assert_identical(state(table, optimizer), state(tables[0], optimizers[0]))
    assert 0 < tables[0].num_live < tables[0].num_rows


def test_prefetched_keys_count_whatever_the_timing() -> None:
    table = new_table()
    for round in range(1, 301):
        table.prefetch(KEYS + round * 100)
        rows = COUNT + (round - 1) * 100
        if round % 3 == 0:
            assert table.contains(KEYS + round * 100).all()
        assert counts(table) == (rows, rows, rows)


INSPECTIONS: dict[str, Callable[[HashEmbedding], object]] = {
    "num_live": lambda table: table.num_live,
    "num_seen": lambda table: table.num_seen,
    "feature_rate": lambda table: table.feature_rate,
    "state_dict": lambda table: table.state_dict(),
    "items": lambda table: list(table.items()),
    "lookup": lambda table: table.lookup(OTHERS),
    "forward": lambda table: table(OTHERS).detach(),
    "field_counts": lambda table: table.field_counts(),
    "memory": lambda table: table.memory(),
    "repr": repr,
    "deepcopy": lambda table: [copy.deepcopy(table).state_dict(), copy.deepcopy(table)(KEYS).detach()],
    "pickle": lambda table: [through_a_file(table, weights_only=False).state_dict()],
    "prefetch": lambda table: [table.prefetch(OTHERS), counts(table)],
    "shrink": lambda table: [table.assign(KEYS[:9], torch.zeros(9, 3)), table.shrink(), counts(table)],
}


@pytest.mark.parametrize("inspect", INSPECTIONS.values(), ids=INSPECTIONS)
def test_whoever_inspects_the_table_finds_a_prefetch_done(inspect: Callable[[HashEmbedding], object]) -> None:
    ours, at_once = new_table(field_bits=2), new_table(field_bits=2)
    look_up_now(at_once, KEYS)
    with held_up():
        ours.prefetch(KEYS)
        assert_identical(inspect(ours), inspect(at_once))
    assert_identical(ours.state_dict(), at_once.state_dict())


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluating"])
@pytest.mark.parametrize("build", [HashEmbedding, HashEmbeddingBag])
def test_a_forward_does_not_look_for_prefetched_keys(
    build: type[HashEmbedding], training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, keys = build(3), KEYS.view(-1, 5)
    expected = table(keys).detach()
    table.train(training).prefetch(keys)
    with table.table.at_rest():  # when the prefetch is done
        monkeypatch.setattr(RowLookup, "_find", None)
    assert_identical(table(keys.clone()).detach(), expected)


def test_unknown_keys_are_not_looked_for_again_in_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as no row has come, which could be theirs."""
    table = new_table()
    table(KEYS[: COUNT // 2])
    table.eval()
    expected = table(KEYS)
    table.prefetch(KEYS)
    with table.table.at_rest():  # when the prefetch is done
        pass
    with monkeypatch.context() as patch:
        patch.setattr(RowLookup, "_find", None)
        assert_identical(table(KEYS), expected)
    table.prefetch(KEYS)
    table.assign(KEYS[-1:], torch.ones(1, 3))
    assert bool((table(KEYS)[-1] == 1).all())


def step(table: HashEmbedding, optimizer: GroupOptimizer, keys: Tensor) -> None:
    (lookup,) = pull(keys, 3)
    backward(optimizer, lookup.loss(table(keys)))
    optimizer.step()
    optimizer.zero_grad()


def trained() -> tuple[HashEmbedding, GroupOptimizer]:
    """A table some of whose rows are zero."""
    table = new_table()
    optimizer = GroupAdam([table.weight], lr=0.1, l21=0.02)
    step(table, optimizer, OTHERS)
    table.assign(OTHERS[:1000], torch.zeros(1000, 3))
    return table, optimizer


def test_a_prefetch_is_of_the_time_before_the_next_step() -> None:
    def uses(ahead: Callable[[HashEmbedding, Tensor], None]) -> list[int]:
        table = new_table(eviction=UnusedFor(steps=9))
        optimizer = GroupAdam([table.weight], lr=0.1)
        for _ in range(3):
            loss = table(OTHERS).square().sum()
            with held_up():
                ahead(table, KEYS)
                backward(optimizer, loss)
                optimizer.step()
            optimizer.zero_grad()
        for _ in range(3):
            step(table, optimizer, OTHERS[-5:])
        noted = table.table.directory.uses
        assert noted is not None
        return noted.unused_for(0, table.num_rows).tolist()

    expected = uses(look_up_now)
    assert max(expected) > 0
    assert uses(HashEmbedding.prefetch) == expected


def in_the_other_mode(table: HashEmbedding, keys: Tensor) -> None:
    table.train(not table.training)(keys)
    table.train(not table.training)


BETWEEN: dict[str, Callable[[HashEmbedding, GroupOptimizer, Tensor], object]] = {
    "nothing": lambda table, optimizer, keys: None,
    "shrink": lambda table, optimizer, keys: table.shrink(),
    "load_state_dict": lambda table, optimizer, keys: table.load_state_dict(trained()[0].state_dict()),
    "optimizer.load_state_dict": lambda table, optimizer, keys: optimizer.load_state_dict(trained()[1].state_dict()),
    "assign": lambda table, optimizer, keys: table.assign(keys[:20], torch.ones(20, 3)),
    "a step": lambda table, optimizer, keys: step(table, optimizer, keys[:100]),
    "other keys": lambda table, optimizer, keys: table(OTHERS),
    "the keys in the other mode": lambda table, optimizer, keys: in_the_other_mode(table, keys),
    "another prefetch": lambda table, optimizer, keys: table.prefetch(OTHERS[:5000]),
}


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluating"])
@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
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
