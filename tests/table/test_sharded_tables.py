"""What a table on several ranks can be asked beside training."""

import copy
import pickle
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from distributed_cases import Ranks
from over import over
from sharded_cases import first_ranks
from sparsegroup import GroupAdam, HashEmbedding, convert, to_embeddings
from sparsegroup.integrations import data_parallel

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


def refused() -> None:
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
    four_ranks.call(refused)


def compiled() -> list[Tensor]:
    torch._dynamo.reset()
    results = []
    for wrap in (lambda model: model, partial(torch.compile, backend="aot_eager")):
        table, layer = filled(), nn.Linear(4, 1, bias=False)
        nn.init.ones_(layer.weight)
        model = wrap(nn.Sequential(table, layer))
        model(own(KEYS)).square().mean().backward()
        GroupAdam(table.parameters(), lr=0.1).step()
        results.append(table.lookup(KEYS))
    return results


def test_a_compiled_model_trains_the_same_rows(ranks: Ranks) -> None:
    for eager, graph in ranks.call(compiled):
        assert not torch.equal(eager, VECTORS)
        torch.testing.assert_close(graph, eager)


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
