"""Tables in losses, beside each other and in bags, against `nn.Embedding(sparse=True)`."""

import torch
from torch import Tensor, nn

from family import FAMILY, regularizer
from optimizer_cases import ALLOW_CREATE_GRAPH
from over import over
from sparsegroup import GroupAdam, HashEmbedding, HashEmbeddingBag
from table_cases import KeyedEmbedding, as_keys, random_keys
from table_pairs import DTYPES, Pair, same, table_of

pytestmark = ALLOW_CREATE_GRAPH


def test_two_tables_in_one_optimizer_with_lambdas_of_their_own() -> None:
    weak, strong = table_of(torch.float64), HashEmbedding(3, std=0.05, dtype=torch.float64)
    oracles = [KeyedEmbedding(table) for table in (weak, strong)]
    networks = [nn.Linear(8, 1, dtype=torch.float64) for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    for (a, b), network in zip(((weak, strong), oracles), networks, strict=True):
        optimizer = GroupAdam(
            [
                {"params": [a.weight], "l21": 0.2},
                {"params": [b.weight], "l21": 1.0, "norm": "metric", "lr": 0.05},
                {"params": network.parameters()},
            ],
            lr=0.03,
        )
        for keys in random_keys(40, seed=3)[torch.randint(0, 40, (30, 8), generator=torch.Generator().manual_seed(0))]:
            optimizer.zero_grad()
            joined = torch.cat([a(keys), b(keys.flip(0) ^ 5)], dim=-1)
            network(joined).square().sum().backward()
            optimizer.step()
    for table, oracle in zip((weak, strong), oracles, strict=True):
        keys = as_keys(oracle.row_of)
        torch.testing.assert_close(table.lookup(keys), oracle.lookup(keys), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(networks[0].weight, networks[1].weight, rtol=1e-9, atol=1e-9)


def pooled(vectors: Tensor, offsets: Tensor, mode: str, weights: Tensor | None) -> Tensor:
    """What nn.EmbeddingBag does, one bag after the other."""
    if weights is not None:
        vectors = vectors * weights[:, None]
    ends = [*offsets[1:].tolist(), len(vectors)]
    bags = [vectors[start:end].sum(0) for start, end in zip(offsets.tolist(), ends, strict=True)]
    sizes = [max(end - start, 1) for start, end in zip(offsets.tolist(), ends, strict=True)]
    if mode == "mean":
        bags = [bag / size for bag, size in zip(bags, sizes, strict=True)]
    return torch.stack(bags) if bags else vectors.new_zeros(0, vectors.shape[1])


OFFSETS = (as_keys([0, 3, 3, 7, 10, 10]), as_keys([0, 0, 0, 0, 1, 9]), as_keys([0]))


@DTYPES
@over("kind", ["sum", "mean", "weighted", "equal bags"])
def test_a_bag_is_a_pooled_sparse_embedding(kind: str, dtype: torch.dtype) -> None:
    """Empty bags at both ends and in the middle, a key twice in a bag and in two bags, growth all the time."""
    mode, member = "mean" if kind == "mean" else "sum", FAMILY["adam"]
    table = HashEmbeddingBag(5, mode=mode, std=0.05, dtype=dtype)
    pair = Pair(table, lambda weight: member.build(weight, **regularizer(member)))
    generator = torch.Generator().manual_seed(1)
    pool, path = random_keys(60, seed=4), []
    for t in range(18):
        keys = pool[torch.randint(0, 6 + 3 * t, (10,), generator=generator)]
        keys[4] = keys[0]
        weights = torch.randn(10, generator=generator, dtype=torch.float64).to(dtype) if kind == "weighted" else None
        offsets = as_keys([0, 5]) if kind == "equal bags" else OFFSETS[t % 3]
        g = torch.randn(len(offsets), 5, generator=generator, dtype=torch.float64).to(dtype)
        slopes = []
        for module, optimizer in pair.both:
            optimizer.zero_grad()
            if weights is not None:
                weights = weights.detach().requires_grad_()
            if module is pair.oracle:
                bags = pooled(module(keys), offsets, mode, weights)
            elif kind == "equal bags":
                bags = module(keys.view(2, 5))
            else:
                bags = module(keys, offsets, per_sample_weights=weights)
            assert bags.shape == g.shape
            (bags * g).sum().backward()
            optimizer.step()
            slopes.append(None if weights is None else weights.grad)
        torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-5)
        path.append(pair.vectors(pool))
    same(torch.stack(path, dim=1))
    pair.assert_same_state()


def test_bags_are_means_by_default_and_may_be_empty() -> None:
    table = HashEmbeddingBag(3)
    for shape in ((0,), (0, 3), (3, 0)):
        keys = torch.empty(shape, dtype=torch.int64)
        bags = table(keys, as_keys([0, 0])) if keys.ndim == 1 else table(keys)
        assert bags.shape == ((2, 3) if keys.ndim == 1 else (shape[0], 3))
        assert not bags.any()
    assert table.num_rows == 0
    keys = as_keys([[1, 2], [3, 1]])
    torch.testing.assert_close(table(keys), table.lookup(keys).mean(1))
