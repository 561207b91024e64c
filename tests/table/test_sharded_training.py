"""A table on several ranks is trained as one on one process with the same global batches; a table on each rank."""

import copy
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from distributed_cases import Ranks, on_two, own_half, whole
from optimizer_cases import KINDS, make
from over import over
from sharded_cases import ROWS, STEPS, average_fallback, batches, evenly, first_ranks, loss_of, rows_of
from sparsegroup import (
    FieldTables,
    GroupAdaHessian,
    GroupAdam,
    GroupOptimizer,
    GroupRowWiseAdagrad,
    GroupSGD,
    HashEmbedding,
    HashEmbeddingBag,
    TargetRate,
    convert,
    feature_rate,
    param_groups,
    sparsity_report,
    to_embeddings,
)
from sparsegroup.integrations import data_parallel
from sparsegroup.table import MinCount
from table_cases import take_step


def mostly_last(keys: Tensor, ranks: int) -> Sequence[Tensor]:
    return [*(keys[rank : rank + 1] for rank in range(ranks - 1)), keys[ranks - 1 :]]


def all_to_the_last(keys: Tensor, ranks: int) -> Sequence[Tensor]:
    return [*([keys[:0]] * (ranks - 1)), keys]


@dataclass(frozen=True)
class Case:
    """A training.

    Attributes:
        optimizer: Makes the optimizer of a table's parameters.
        table: Arguments of the table.
        cut: Cuts a global batch into the parts of so many ranks.
        ahead: Look each batch up ahead of its time.
        rate: The live share that a target asks for.
        rows: Of a batch.
    """

    optimizer: Callable[[Any], GroupOptimizer]
    table: dict[str, Any] = field(default_factory=dict)
    cut: Callable[[Tensor, int], Sequence[Tensor]] = evenly
    ahead: bool = False
    rate: float | None = None
    rows: int = ROWS


def trained(case: Case, ranks: int) -> dict[str, Any] | None:
    """Rows, counts and reports after the steps, on each of so many ranks; None on others. 0: on one process."""
    group = first_ranks(ranks) if ranks else None
    if ranks and group is None:
        return None
    options = {**case.table, "process_group": group} if ranks else {**case.table, "reduction": "mean"}
    table = HashEmbedding(4, std=0.5, **options)
    optimizer = case.optimizer(param_groups(table))
    stream = [case.cut(keys, max(ranks, 1)) for keys in batches(STEPS, case.rows)]
    target = None if case.rate is None else TargetRate(optimizer, case.rate, steps=STEPS, interval=2)
    rank = dist.get_rank(group) if ranks else 0
    mean = case.table.get("reduction", "mean") == "mean"
    for step, parts in enumerate(stream):
        keys = parts[rank]
        optimizer.zero_grad()
        vectors = table(keys)
        if case.ahead and step + 1 < len(stream) and not (target is not None and target.is_due):
            table.prefetch(stream[step + 1][rank])
        share = (len(parts) if mean else 1) / sum(map(len, parts))
        (loss_of(vectors, keys, step) * share).backward(create_graph=optimizer.rule.second_order)
        average_fallback(table)
        optimizer.step()
        if target is not None:
            target.step()
    fallback = None if table.fallback is None else table.fallback.detach().clone()
    return {
        "rows": rows_of(table),
        "counts": (table.num_rows, table.num_live, table.num_seen),
        "of all": [
            [float(state["step"]) for state in optimizer.state.values()],
            [str(sparsity_report(optimizer)), feature_rate(table.weight)],
            *([group["l21"], fallback] for group in optimizer.param_groups),
        ],
    }


def together(parts: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """The content of all ranks as one; what they share is the same on each."""
    there = [part for part in parts if part is not None]
    rows: dict[int, Tensor] = {}
    for part in there:
        assert not rows.keys() & part["rows"].keys()
        rows |= part["rows"]
        torch.testing.assert_close(part["of all"][2:], there[0]["of all"][2:], rtol=0, atol=0)
        assert part["of all"][:2] == there[0]["of all"][:2]
    counts = tuple(map(sum, zip(*(part["counts"] for part in there), strict=True)))
    return {"rows": dict(sorted(rows.items())), "counts": counts, "of all": there[0]["of all"]}


def assert_same(ours: dict[str, Any], theirs: dict[str, Any], tolerance: float = 2e-6) -> None:
    """Whether two trainings have ended in the same, to rounding."""
    assert ours["counts"] == theirs["counts"]
    assert ours["of all"][:2] == theirs["of all"][:2]
    torch.testing.assert_close(ours["rows"], theirs["rows"], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(ours["of all"][2:], theirs["of all"][2:], rtol=50 * tolerance, atol=tolerance)


def adam(parameters: Any, **arguments: Any) -> GroupOptimizer:
    return GroupAdam(parameters, **{"lr": 0.1, "l21": 0.05, **arguments})


def penalized(cls: type[GroupOptimizer], **arguments: Any) -> Case:
    l21 = 5.0 if cls is GroupSGD else 0.05
    return Case(partial(make, cls, l1=1e-3, l21=l21, l2=1e-3), **arguments)


WAITING = {"admission": MinCount(2)}
FIELDS = {"field_bits": 4, "fallback": True}
CASES = [
    *[(penalized(cls), 4) for cls in (*KINDS, GroupRowWiseAdagrad)],
    (penalized(GroupAdam), 1),
    (Case(adam, WAITING), 2),
    (Case(adam, WAITING, ahead=True), 3),
    (Case(adam, FIELDS), 3),
    (Case(adam, {"reduction": "sum", "fallback": True}, ahead=True), 2),
    (penalized(GroupAdam, cut=mostly_last, rows=2), 4),
    (penalized(GroupAdam, cut=all_to_the_last), 4),
    (penalized(GroupAdaHessian, cut=all_to_the_last, rows=2), 2),
    (Case(adam, rate=0.1, ahead=True), 4),
    (Case(partial(adam, penalty="hard"), rate=0.1), 3),
]


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize(("case", "count"), CASES)
def test_a_table_on_ranks_is_trained_as_on_one_process(case: Case, count: int, four_ranks: Ranks) -> None:
    """With every rule, options of the table, few keys on some ranks or none, and a target; reports are of all ranks."""
    theirs = trained(case, 0)  # first, so that one process compiles what all need
    assert theirs is not None
    parts = four_ranks.call(trained, case, count)
    assert [part is not None for part in parts] == [rank < count for rank in range(4)]
    assert_same(together(parts), {**theirs, "rows": dict(sorted(theirs["rows"].items()))})
    rows, live, seen = theirs["counts"]
    assert 0 < live <= rows <= seen
    assert live < seen or case.rows < ROWS
    if case.rate is not None:
        assert live == round(case.rate * seen)


@over("ahead", [False, True])
def test_the_same_ranks_give_the_same_bits(ahead: bool, four_ranks: Ranks) -> None:
    case = Case(adam, {"fallback": True}, ahead=ahead)
    first, second = (together(four_ranks.call(trained, case, 3)) for _ in range(2))
    assert_same(first, second, tolerance=0)


# A table on each rank; DistributedDataParallel, and ZeRO, which takes no names.

TABLES = {
    "table": lambda **options: HashEmbedding(4, **options),
    "bag": lambda **options: HashEmbeddingBag(4, **options),
    "fields": lambda **options: FieldTables(4, {0: 4, 1: 2}, **options),
}
FIELD_KEYS = torch.tensor([[5, (1 << 56) + 5]])


def on_each_rank(kind: str) -> None:
    table, keys = TABLES[kind](), FIELD_KEYS + dist.get_rank()
    assert not table.eval()(FIELD_KEYS).any()  # to be read as ever
    table.train()
    with pytest.raises(RuntimeError, match=rf"rank {dist.get_rank()} of 2.*diverge.*per_rank=True"):
        table(FIELD_KEYS)
    with pytest.raises(RuntimeError, match="per_rank=True"):
        getattr(table, "prefetch", lambda _: table(FIELD_KEYS))(FIELD_KEYS)
    assert table.num_rows == 0
    table = TABLES[kind](per_rank=True)
    table(keys).sum().backward()
    GroupAdam(table.parameters()).step()
    later = HashEmbedding(4)
    later.per_rank = True
    later(keys)
    assert table.num_rows == pickle.loads(pickle.dumps(later)).num_rows == 2


@over("kind", TABLES)
def test_each_rank_has_a_table_of_its_own_only_if_it_is_meant_so(ranks: Ranks, kind: str) -> None:
    ranks.call(on_each_rank, kind)


def wrapped() -> None:
    model = nn.Sequential(HashEmbedding(4, per_rank=True), nn.Linear(4, 1))
    with pytest.raises(NotImplementedError, match="let DistributedDataParallel leave it out"):
        DistributedDataParallel(model)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["0.weight"])
    DistributedDataParallel(model)(torch.arange(3) + dist.get_rank()).sum().backward()
    assert model[0].weight.grad is not None


def test_data_parallel_takes_a_table_only_where_it_is_left_out(ranks: Ranks) -> None:
    ranks.call(wrapped)


def by_data_parallel(sharded: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 1))
    model = DistributedDataParallel(model) if on_two() else model
    groups = param_groups(model, layers=nn.Linear, l21=0.3, named=not sharded)
    assert all(("param_names" in group) is not sharded for group in GroupAdam(groups).param_groups)
    if sharded and on_two():
        from torch.distributed.optim import ZeroRedundancyOptimizer  # which warns of its own module

        optimizer: torch.optim.Optimizer = ZeroRedundancyOptimizer(groups, optimizer_class=GroupAdam, lr=0.05)
    else:
        optimizer = GroupAdam(groups, lr=0.05)
    generator = torch.Generator().manual_seed(1)
    for _ in range(6):
        batch = own_half(torch.randn(16, 6, generator=generator))
        take_step(optimizer, nn.functional.mse_loss(model(batch), batch[:, :1] * 2))
    return {name.removeprefix("module."): whole(x) for name, x in model.named_parameters()}


@over("sharded", [False, True])
def test_data_parallel_and_zero_train_as_one_process(ranks: Ranks, sharded: bool) -> None:
    alone = by_data_parallel(sharded)
    dead = [not row.any() for row in alone["0.weight"]]
    assert 0 < sum(dead) < len(dead)
    for found in ranks.call(by_data_parallel, sharded):
        for name, x in alone.items():
            torch.testing.assert_close(found[name], x, rtol=1e-3, atol=1e-5)
            assert torch.equal(found[name] == 0, x == 0)


# What a table on several ranks can be asked beside training


KEYS = torch.arange(40) * 0x9E3779B97F4A7C1
VECTORS = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))


def own(values: Tensor) -> Tensor:
    return values.chunk(dist.get_world_size())[dist.get_rank()]


def filled(**options: Any) -> HashEmbedding:
    """A table to which each rank has given its share of the vectors."""
    table = HashEmbedding(4, process_group=dist.group.WORLD, **options)
    table.assign(own(KEYS), own(VECTORS))
    return table


def inspected() -> list[int]:
    first_ranks(1)
    table = filled()
    unknown = torch.cat([KEYS[::2], torch.tensor([-7])])
    with pytest.raises(ValueError, match="distinct, also among different ranks"):
        table.assign(KEYS[:1], VECTORS[:1])
    assert torch.equal(table.eval()(unknown), table.lookup(unknown))
    assert table.contains(unknown).tolist() == [True] * 20 + [False]
    other = copy.deepcopy(table)
    with torch.no_grad():
        other.assign(own(KEYS), own(-VECTORS))
    assert torch.equal(table.lookup(KEYS), VECTORS)
    assert torch.equal(other.lookup(KEYS), -VECTORS)
    assert 0 < len(table) < 20
    return table.keys.tolist()


def test_rows_are_found_wherever_they_are_and_those_of_a_copy_are_others(four_ranks: Ranks) -> None:
    assert sorted(key for keys in four_ranks.call(inspected) for key in keys) == sorted(KEYS.tolist())


def clipped() -> list[float]:
    table, layer = filled(reduction="sum"), nn.Linear(4, 1, bias=False)
    nn.init.ones_(layer.weight)
    (layer(table(own(KEYS))) * own(KEYS)[:, None].sign()).sum().backward()
    dist.all_reduce(layer.weight.grad)
    parameters = [*table.parameters(), *layer.parameters()]
    return [float(nn.utils.clip_grad_norm_(parameters, 1.0, order)) for order in (2.0, float("inf"))]


def test_the_norm_of_gradients_is_that_of_all_ranks(four_ranks: Ranks) -> None:
    of_layer = (VECTORS * KEYS[:, None].sign()).sum(0)
    norm = float(torch.cat([torch.ones(156), of_layer]).norm())  # the sign of key 0 is 0
    for total, largest in four_ranks.call(clipped):
        assert total == pytest.approx(norm)
        assert largest == pytest.approx(max(1.0, float(of_layer.abs().max())) / norm, rel=1e-4)


def not_allowed() -> None:
    with pytest.raises(ValueError, match="would differ from the other ranks' tables"):
        data_parallel(nn.Sequential(HashEmbedding(4), nn.Linear(4, 1)))
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(filled())
    of_all = {"process_group": dist.group.WORLD}
    for error, match, options in (
        (ValueError, "reduction must be", {**of_all, "reduction": "max"}),
        (ValueError, "give process_group", {"wire_dtype": torch.bfloat16}),
        (ValueError, "wire_dtype must be", {**of_all, "wire_dtype": torch.int8}),
        (ValueError, "per_rank", {**of_all, "per_rank": True}),
        (TypeError, "process_group must be", {"process_group": "WORLD"}),
    ):
        with pytest.raises(error, match=match):
            HashEmbedding(4, **options)


def test_what_cannot_be_is_refused(four_ranks: Ranks) -> None:
    four_ranks.call(not_allowed)


def narrow() -> None:
    found, sent = [], []
    for dtype in (None, torch.bfloat16):
        table = filled(wire_dtype=dtype)
        before = table.across.shards.traffic.vectors
        table(own(KEYS)).sum().backward()
        sent.append(table.across.shards.traffic.vectors - before)
        found.append(table.lookup(KEYS))
    assert sent[0] == 2 * sent[1] > 0
    torch.testing.assert_close(found[1], found[0].bfloat16().float(), rtol=0, atol=0)


def test_vectors_may_travel_in_half_the_bytes(four_ranks: Ranks) -> None:
    four_ranks.call(narrow)


def of_its_own_keys() -> tuple[Tensor, int]:
    table = filled()
    optimizer = GroupAdam(table.parameters(), lr=0.1)
    mine = table.keys.repeat(2)
    vectors = table.own_vectors(mine.view(2, -1))  # no other rank is asked
    vectors.sum().backward()
    optimizer.step()
    for key, vector in zip(mine, vectors.detach().flatten(0, 1), strict=True):
        assert torch.equal(vector, VECTORS[key == KEYS][0])
    if dist.get_rank() == 0:
        table.own_vectors(table.keys[:1])
    table.own_vectors(torch.empty(0, dtype=torch.int64))
    return table.lookup(KEYS), len(table)


def test_a_rank_looks_up_what_is_its_own_without_the_others(four_ranks: Ranks) -> None:
    parts = four_ranks.call(of_its_own_keys)
    whole = HashEmbedding(4)
    whole.assign(KEYS, VECTORS)
    optimizer = GroupAdam(whole.parameters(), lr=0.1)
    whole(KEYS.repeat(2)).sum().backward()
    optimizer.step()
    for after, _ in parts:
        torch.testing.assert_close(after, whole.lookup(KEYS))
    assert sum(rows for _, rows in parts) == len(KEYS)


def converted(count: int) -> int:
    """How many rows a rank has of an embedding that becomes a table on some ranks, and one again."""
    group = first_ranks(count)
    if group is None:
        return 0
    torch.manual_seed(0)
    embedding = nn.Embedding(50, 4)
    weight = embedding.weight.detach().clone()
    model = convert(embedding, process_group=group)
    rows = model.table.num_rows
    assert torch.equal(model(torch.arange(50)), weight)
    model(torch.tensor([70] if not group.rank() else []).long())
    after = to_embeddings(model).weight.detach()
    assert after.shape == (71, 4)
    assert torch.equal(after[:50], weight)
    assert after[70].any()
    return rows


@over("count", [1, 3])
def test_an_embedding_becomes_a_table_of_all_ranks_and_one_again(count: int, four_ranks: Ranks) -> None:
    assert sum(four_ranks.call(converted, count)) == 50
