"""Tables in losses, beside each other and in bags, against `nn.Embedding(sparse=True)`."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from family import FAMILY, Member, regularizer
from fixed_gradients import relative_error
from optimizer_cases import ALLOW_CREATE_GRAPH, backward
from over import over
from sparsegroup import GroupAdam, HashEmbedding, HashEmbeddingBag, param_groups
from table_cases import KeyedEmbedding, as_keys, random_keys
from table_pairs import DTYPES, Pair, every_member, same, table_of

pytestmark = ALLOW_CREATE_GRAPH


class TestRealLosses:
    """Gradients that depend on the weights: what differs by a rounding stays close."""

    @every_member
    def test_a_separable_loss(self, member: Member) -> None:
        pair = Pair(table_of(torch.float64), lambda weight: member.build(weight, l1=0.01, l21=0.05, l2=0.01))
        keys = random_keys(40)
        target = torch.randn(40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        for t in range(60):
            at = torch.randint(0, 40 if t > 20 else 12, (16,), generator=torch.Generator().manual_seed(t))
            for module, optimizer in pair.both:
                error = module(keys[at]) - target[at]
                backward(optimizer, functional.softplus(2 * error).sum() - error.sum() + error.square().sum() / 4)
                optimizer.step()
        same(pair.vectors(keys)[:, None])
        assert (pair.table.lookup(keys) - target).abs().mean() < target.abs().mean()

    @over("member", [m for m in FAMILY.values() if not m.second_order])
    @DTYPES
    def test_a_click_model(self, member: Member, dtype: torch.dtype) -> None:
        """Fields, a network, `param_groups`; only the embedding is regularized."""
        table = table_of(dtype)
        losses = []
        keys = random_keys(60, seed=2)
        affinity = torch.randn(60, generator=torch.Generator().manual_seed(1))
        oracle = KeyedEmbedding(table)
        for embedding in (table, oracle):
            torch.manual_seed(0)
            network = nn.Sequential(nn.Linear(15, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)
            model = nn.ModuleDict({"embedding": embedding, "network": network})
            groups = param_groups(model, l21=0.005 * member.gain)
            optimizer = member.optimizer(groups, **{"lr": member.lr, **member.hyperparameters})
            assert [g["l21"] > 0 for g in optimizer.param_groups] == [True, False]
            for t in range(80):
                at = torch.randint(0, 30 + t // 3, (32, 3), generator=torch.Generator().manual_seed(t))
                label = (affinity[at].sum(1) > 0).to(dtype)
                optimizer.zero_grad()
                logit = network(embedding(keys[at]).flatten(1))[:, 0]
                loss = functional.binary_cross_entropy_with_logits(logit, label)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        ours, theirs = torch.tensor(losses, dtype=torch.float64).view(2, -1)
        assert ours[-10:].mean() < 0.97 * ours[:10].mean(), "it learns"
        assert relative_error(ours, theirs) < (1e-9 if dtype == torch.float64 else 1e-3)
        tolerance = 1e-8 if dtype == torch.float64 else 1e-2
        torch.testing.assert_close(table.lookup(keys), oracle.lookup(keys), rtol=0, atol=tolerance)


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


class TestBags:
    OFFSETS = (as_keys([0, 3, 3, 7, 10, 10]), as_keys([0, 0, 0, 0, 1, 9]), as_keys([0]))

    @DTYPES
    @over("kind", ["sum", "mean", "weighted", "equal bags"])
    def test_a_bag_is_a_pooled_sparse_embedding(self, kind: str, dtype: torch.dtype) -> None:
        """Empty bags at both ends and in the middle, a key twice in a bag and in two bags, growth all the time."""
        mode, member = "mean" if kind == "mean" else "sum", FAMILY["adam"]
        table = HashEmbeddingBag(5, mode=mode, std=0.05, dtype=dtype)
        pair = Pair(table, lambda weight: member.build(weight, **regularizer(member)))
        generator = torch.Generator().manual_seed(1)
        pool, path = random_keys(60, seed=4), []
        for t in range(18):
            keys = pool[torch.randint(0, 6 + 3 * t, (10,), generator=generator)]
            keys[4] = keys[0]
            weights = (
                torch.randn(10, generator=generator, dtype=torch.float64).to(dtype) if kind == "weighted" else None
            )
            offsets = as_keys([0, 5]) if kind == "equal bags" else self.OFFSETS[t % 3]
            g = torch.randn(len(offsets), 5, generator=generator, dtype=torch.float64).to(dtype)
            for module, optimizer in pair.both:
                optimizer.zero_grad()
                if module is pair.oracle:
                    bags = pooled(module(keys), offsets, mode, weights)
                elif kind == "equal bags":
                    bags = module(keys.view(2, 5))
                else:
                    bags = module(keys, offsets, per_sample_weights=weights)
                assert bags.shape == g.shape
                (bags * g).sum().backward()
                optimizer.step()
            path.append(pair.vectors(pool))
        same(torch.stack(path, dim=1))
        pair.assert_same_state()

    @over("weighted", [False, True])
    @over("mode", ["sum", "mean"])
    def test_it_gives_what_embedding_bag_gives(self, mode: str, weighted: bool) -> None:
        if weighted and mode == "mean":
            mode = "sum"
        table = HashEmbeddingBag(4, mode=mode, dtype=torch.float64)
        keys = random_keys(12)
        theirs = nn.EmbeddingBag.from_pretrained(table.initial(keys), mode=mode)
        at = as_keys([3, 0, 3, 11, 5, 7, 7, 1])
        weights, same_weights = (torch.linspace(-1, 2, 8, dtype=torch.float64).requires_grad_() for _ in range(2))
        for offsets in (as_keys([0, 2, 2, 5]), as_keys([0, 8]), None):
            shape = (2, 4) if offsets is None else (8,)
            per_sample = (weights.view(shape), same_weights.view(shape)) if weighted else (None, None)
            ours = table(keys[at].view(shape), offsets, per_sample_weights=per_sample[0])
            expected = theirs(at.view(shape), offsets, per_sample_weights=per_sample[1])
            torch.testing.assert_close(ours, expected, rtol=1e-14, atol=1e-14)
            if weighted:
                g = torch.sin(torch.arange(ours.numel(), dtype=torch.float64)).view_as(ours)
                torch.testing.assert_close(
                    torch.autograd.grad((ours * g).sum(), weights),
                    torch.autograd.grad((expected * g).sum(), same_weights),
                    rtol=1e-13,
                    atol=1e-13,
                )

    def test_the_default_mode_is_embedding_bags(self) -> None:
        table = HashEmbeddingBag(3)
        keys = as_keys([[1, 2], [3, 1]])
        torch.testing.assert_close(table(keys), table.lookup(keys).mean(1))

    @over("mode", ["sum", "mean"])
    def test_in_eval_mode_an_unknown_key_counts_as_zeros(self, mode: str) -> None:
        table = HashEmbeddingBag(3, mode=mode, dtype=torch.float64)
        table(as_keys([[1, 2]]))
        table.eval()
        bags = table(as_keys([1, 9, 2, 8]), as_keys([0, 2, 3]))
        known = table.initial(as_keys([1, 2]))
        share = 0.5 if mode == "mean" else 1.0
        torch.testing.assert_close(bags, torch.stack([share * known[0], known[1], torch.zeros_like(known[0])]))
        assert table.num_rows == 2

    @over("shape", [(0,), (0, 3), (3, 0)])
    def test_no_keys_at_all(self, shape: tuple[int, ...]) -> None:
        table = HashEmbeddingBag(3)
        keys = torch.empty(shape, dtype=torch.int64)
        bags = table(keys, as_keys([0, 0])) if keys.ndim == 1 else table(keys)
        assert bags.shape == ((2, 3) if keys.ndim == 1 else (shape[0], 3))
        assert not bags.any()
        assert table.num_rows == 0
