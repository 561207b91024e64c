"""Tables in a distributed world, where each rank has rows of its own, and ZeRO, which takes no names."""

import pickle

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from distributed_cases import Ranks, on_two, own_half, whole
from over import over
from sparsegroup import FieldTables, GroupAdam, HashEmbedding, HashEmbeddingBag, param_groups

KINDS = {
    "table": lambda **options: HashEmbedding(4, **options),
    "bag": lambda **options: HashEmbeddingBag(4, **options),
    "fields": lambda **options: FieldTables(4, {0: 4, 1: 2}, **options),
}
KEYS = torch.tensor([[5, (1 << 56) + 5]])


def refusal(kind: str) -> tuple[str, int]:
    table = KINDS[kind]()
    assert not table.eval()(KEYS).any()  # to be read as ever
    table.train()
    with pytest.raises(RuntimeError, match="per_rank=True") as raised:
        table(KEYS)
    with pytest.raises(RuntimeError, match="per_rank=True"):
        getattr(table, "prefetch", lambda _: table(KEYS))(KEYS)
    return str(raised.value), table.num_rows


@over("kind", KINDS)
def test_training_on_several_ranks_is_refused_unless_it_is_meant_so(ranks: Ranks, kind):
    for rank, (message, num_rows) in enumerate(ranks.call(refusal, kind)):
        assert f"rank {rank} of 2" in message
        assert "diverge" in message
        assert num_rows == 0


def allowed(kind: str) -> tuple[int, int]:
    keys = KEYS + dist.get_rank()
    table = KINDS[kind](per_rank=True)
    table(keys).sum().backward()
    GroupAdam(table.parameters()).step()
    later = HashEmbedding(4)
    later.per_rank = True
    later(keys)
    return table.num_rows, pickle.loads(pickle.dumps(later)).num_rows


@over("kind", KINDS)
def test_each_rank_may_have_a_table_of_its_own(ranks: Ranks, kind):
    assert ranks.call(allowed, kind) == [(2, 2), (2, 2)]


def wrapped() -> tuple[str, bool]:
    model = nn.Sequential(HashEmbedding(4, per_rank=True), nn.Linear(4, 1))
    with pytest.raises(NotImplementedError) as raised:
        DistributedDataParallel(model)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["0.weight"])
    DistributedDataParallel(model)(torch.arange(3) + dist.get_rank()).sum().backward()
    return str(raised.value), model[0].weight.grad is not None


def test_data_parallel_takes_a_table_only_where_it_is_left_out(ranks: Ranks):
    for message, has_gradient in ranks.call(wrapped):
        assert "let DistributedDataParallel leave it out" in message
        assert has_gradient


def data_parallel(sharded: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 1))
    model = DistributedDataParallel(model) if on_two() else model
    groups = param_groups(model, layers=nn.Linear, l21=0.3, named=not sharded)
    if sharded and on_two():
        from torch.distributed.optim import ZeroRedundancyOptimizer  # which warns of its own module

        optimizer: torch.optim.Optimizer = ZeroRedundancyOptimizer(groups, optimizer_class=GroupAdam, lr=0.05)
    else:
        optimizer = GroupAdam(groups, lr=0.05)
    generator = torch.Generator().manual_seed(1)
    for _ in range(6):
        batch = own_half(torch.randn(16, 6, generator=generator))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(batch), batch[:, :1] * 2).backward()
        optimizer.step()
    return {name.removeprefix("module."): whole(x) for name, x in model.named_parameters()}


@over("sharded", [False, True])
def test_data_parallel_and_zero_train_as_one_process(ranks: Ranks, sharded):
    alone = data_parallel(sharded)
    dead = [not row.any() for row in alone["0.weight"]]
    assert 0 < sum(dead) < len(dead)
    for found in ranks.call(data_parallel, sharded):
        for name, x in alone.items():
            torch.testing.assert_close(found[name], x, rtol=1e-3, atol=1e-5)
            assert torch.equal(found[name] == 0, x == 0)


def test_groups_without_names():
    model = nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 1))
    groups = param_groups(model, l21=1.0, named=False)
    assert [group["params"] for group in groups] == [[model[0].weight], [model[1].weight, model[1].bias]]
    assert "param_names" not in GroupAdam(groups).param_groups[0]
