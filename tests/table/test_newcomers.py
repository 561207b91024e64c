"""What fallback vectors learn of new keys: these begin dead as often as the others of the table are."""

from collections.abc import Iterator
from itertools import count

import pytest
import torch

from over import over
from sparsegroup import GroupAdagrad, HashEmbedding
from sparsegroup.kernels.cpu import threads
from sparsegroup.table.directory.admission import MinCount


@pytest.fixture(autouse=True)
def threads_as_they_were() -> Iterator[None]:
    yield
    threads.set_num_threads(None)


OLD, NEW = torch.arange(1_000), torch.arange(10_000, 14_000)


def table_at(rate: float, **options: object) -> HashEmbedding:
    """A table of 1,000 rows, a share of which lives; its fallback vector is nobody's start."""
    table = HashEmbedding(3, std=0.1, fallback=True, **options)  # type: ignore[arg-type]
    table.assign(OLD, torch.ones(1_000, 3))
    if dead := round((1 - rate) * 1_000):
        table.assign(OLD[:dead], torch.zeros(dead, 3))
    assert table.fallback is not None
    with torch.no_grad():
        table.fallback.fill_(7.0)
    return table


def begin_dead(table: HashEmbedding, keys: torch.Tensor) -> torch.Tensor:
    """Which of the keys were given the fallback vector in training, in order."""
    return (table(keys) == 7.0).all(dim=1)


@over(("rate", "options"), [(1.0, {}), (0.9, {"max_bytes": "8MB"}), (0.5, {}), (0.1, {}), (0.1, {"max_bytes": "8MB"})])
def test_as_many_new_keys_begin_dead_as_others_are(rate: float, options: dict[str, str]) -> None:
    table = table_at(rate, **options)
    starts = table.initial(NEW)
    hidden = begin_dead(table, NEW)
    expected = 1 - (rate * 1_000 + 4_000) / 5_000  # they count as live themselves
    assert hidden.double().mean() == pytest.approx(expected, abs=4 * (expected / 4_000) ** 0.5)
    assert torch.equal(table.lookup(NEW), starts)  # the rows are what they always are
    assert not begin_dead(table, NEW).any()  # their second batch
    table.eval()
    assert torch.equal(table(NEW), starts)
    assert (table(NEW + 10_000) == 7.0).all()


def test_which_ones_follows_from_the_key_alone() -> None:
    tables = [table_at(0.1, seed=seed) for seed in (0, 1)]
    hidden = [begin_dead(table, NEW) for table in tables]
    assert torch.equal(*hidden)
    order = torch.randperm(len(NEW), generator=torch.Generator().manual_seed(0))
    assert torch.equal(begin_dead(table_at(0.1), NEW[order]), hidden[0][order])
    repeated = NEW.repeat_interleave(3)
    assert torch.equal(begin_dead(table_at(0.1), repeated), hidden[0].repeat_interleave(3))


def test_the_fallback_vector_and_the_row_both_learn_from_them() -> None:
    table = table_at(0.1)
    vectors = table(NEW)
    hidden = (vectors == 7.0).all(dim=1)
    gradient = torch.randn(len(NEW), 3, generator=torch.Generator().manual_seed(1))
    (vectors * gradient).sum().backward()
    assert table.fallback is not None
    assert table.fallback.grad is not None
    torch.testing.assert_close(table.fallback.grad[0], gradient[hidden].sum(dim=0))
    assert table.weight.grad is not None
    assert table.weight.grad._nnz() == len(NEW)
    torch.testing.assert_close(table.weight.grad._values(), gradient)


def test_more_keys_than_are_looked_up_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsegroup.table.lookup.lookup.CHUNK", 2_000)
    few = torch.cat([begin_dead(table_at(0.0), part) for part in NEW.split(500)])
    whole = begin_dead(table_at(0.0), NEW)
    assert whole.any()
    assert not (whole & ~few).any()  # among many live ones, fewer are dead: the ones drawn lowest


def test_a_key_that_waits_for_its_row_is_drawn_when_it_gets_it() -> None:
    table = table_at(0.1, admission=MinCount(2))
    assert begin_dead(table, NEW).all()  # they have none
    hidden = begin_dead(table, NEW)
    assert 0 < hidden.sum() < len(NEW)
    assert torch.equal(hidden, begin_dead(table_at(0.1), NEW))


@over("shrinks", [False, True])
def test_looking_ahead_changes_nothing(shrinks: bool) -> None:
    """Even where the rows have been renumbered between the look ahead and the lookup."""
    threads.set_num_threads(2)
    results = []
    for looks_ahead in (False, True):
        table, first = table_at(0.3), count()
        optimizer = GroupAdagrad(table.parameters(), lr=0.1, l21=1e-3)
        seen = []
        batches = [torch.arange(1_000 + 500 * i, 6_000 + 500 * i) for i in range(6)]
        for batch, following in zip(batches, [*batches[1:], None], strict=True):
            vectors = table(batch)
            seen.append(vectors.detach().clone())
            if looks_ahead and following is not None:
                table.prefetch(following)
            optimizer.zero_grad()
            vectors.square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if shrinks and next(first) == 2:
                table.shrink()
        results.append((seen, table.lookup(torch.arange(9_000)), table.fallback))
    (plain, rows, vector), (ahead, ahead_rows, ahead_vector) = results
    assert all(torch.equal(one, other) for one, other in zip(plain, ahead, strict=True))
    assert torch.equal(rows, ahead_rows)
    assert vector is not None
    assert ahead_vector is not None
    assert torch.equal(vector, ahead_vector)
