"""TorchRec's `DistributedModelParallel` over tables trains as one process does with the same global batches.

So does `DistributedDataParallel` over a sharded table beside TorchRec's unsharded modules.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from distributed_cases import Ranks
from sparsegroup import GroupAdam, HashEmbeddingBag, TargetRate, param_groups
from sparsegroup.checkpoint import Checkpoints

pytest.importorskip("torchrec")

from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.train_pipeline import PrefetchTrainPipelineSparseDist, TrainPipelineSparseDist
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from sparsegroup.integrations import data_parallel
from sparsegroup.integrations.torchrec import HashEmbeddingCollectionSharder, plan_tables
from sparsegroup.table.sharded.routing import Routing
from torchrec_cases import (
    DIM,
    ROWS,
    STEPS,
    Batch,
    Clicks,
    assert_same,
    batch,
    content,
    on_one,
    on_ranks,
    optimizer_of,
    own_batch,
    tables_alone,
    tables_of,
)

pytestmark = pytest.mark.filterwarnings("ignore")

CPU = torch.device("cpu")


def learn(model: Any, optimizer: Any, batches: Any) -> None:
    for one in batches:
        optimizer.zero_grad()
        loss, _ = model(one)
        loss.backward()
        optimizer.step()


def trained_on_one(dtype: torch.dtype = torch.int64, **options: Any) -> dict[str, Any]:
    model = on_one(**options)
    learn(model, optimizer_of(model), [batch(step, dtype=dtype) for step in range(STEPS)])
    return content(model)


def trained(dtype: torch.dtype) -> dict[str, Any]:
    model = on_ranks()
    learn(model, optimizer_of(model.module), [own_batch(step, dtype=dtype) for step in range(STEPS)])
    for table in tables_of(model.module).values():
        assert set(Routing(2).ranks_of(table.keys.numpy()).tolist()) == {dist.get_rank()}
    return content(model.module)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_ranks_train_as_one_process(ranks: Ranks, dtype: torch.dtype) -> None:
    parts = ranks.call(trained, dtype)
    whole = trained_on_one(dtype)
    assert_same(parts, whole)
    assert 0 < whole["counts"][0] < whole["counts"][1]
    assert all(part["rows"] for part in parts)


def piped() -> tuple[dict[str, Any], Tensor]:
    model = on_ranks()
    train = TrainPipelineSparseDist(model, optimizer_of(model.module), CPU, execute_all_batches=True)
    batches = iter([own_batch(step) for step in range(STEPS)])
    logits: list[Tensor] = []
    while True:
        try:
            logits.append(train.progress(batches))
        except StopIteration:
            return content(model.module), torch.cat(logits)


def test_a_training_pipeline_exchanges_keys_ahead(ranks: Ranks) -> None:
    parts, logits = zip(*ranks.call(piped), strict=True)
    assert_same(list(parts), trained_on_one())
    assert [len(one) for one in logits] == [STEPS * ROWS // 2] * 2


def checkpointed(folder: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    whole, first, resumed = (on_ranks() for _ in range(3))
    batches = [own_batch(step) for step in range(STEPS)]
    learn(whole, optimizer_of(whole.module), batches)
    optimizer = optimizer_of(first.module)
    learn(first, optimizer, batches[:4])
    Checkpoints(folder).save(4, first.module, optimizer)
    halfway, copied = content(first.module), on_ranks()
    copied.load_state_dict(first.state_dict())
    assert_same_rows(content(copied.module), halfway)
    optimizer = optimizer_of(resumed.module)
    Checkpoints(folder).load(Checkpoints(folder).latest(), resumed.module, optimizer)
    learn(resumed, optimizer, batches[4:])
    return halfway, content(resumed.module), content(whole.module)


def assert_same_rows(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours["rows"].keys() == theirs["rows"].keys()
    assert all(torch.equal(row, theirs["rows"][key]) for key, row in ours["rows"].items())


def test_a_checkpoint_resumes_to_the_same_bits_and_is_read_by_one_process(ranks: Ranks, tmp_path: Path) -> None:
    parts = ranks.call(checkpointed, tmp_path)
    for _, resumed, whole in parts:
        assert_same_rows(resumed, whole)
        assert torch.equal(resumed["head"], whole["head"])
    model = tables_alone()
    Checkpoints(tmp_path).load(Checkpoints(tmp_path).latest(), model, optimizer_of(model))
    assert_same([halfway for halfway, _, _ in parts], content(model))


def with_weights() -> tuple[dict[str, Any], dict[str, Tensor], list[str]]:
    model = Clicks("cpu")
    weights = {name: table.weight.detach().clone() for name, table in model.embedding.embeddings.items()}
    sharded = on_ranks(model)
    return content(sharded.module), weights, [name for name, _ in sharded.named_parameters()]


def test_weights_that_are_there_are_kept(ranks: Ranks) -> None:
    parts = ranks.call(with_weights)
    rows = {key: row for part, _, _ in parts for key, row in part["rows"].items()}
    weights = parts[0][1]
    assert set(rows) == {(name, key) for name, weight in weights.items() for key in range(len(weight))}
    for (name, key), row in rows.items():
        assert torch.equal(row, weights[name][key])
    tables = [f"embedding.embeddings.{name}.weight" for name in ("things", "users")]
    assert [part[2] for part in parts] == [[*tables, "head.layer.weight", "head.layer.bias"]] * 2


def uneven(parts: list[slice]) -> dict[str, Any]:
    """Parts of different sizes, each loss a mean over its own: their gradients weigh alike."""
    model = on_ranks()
    optimizer = optimizer_of(model.module)
    for step in range(STEPS):
        given = cut(batch(step), parts[dist.get_rank()])
        optimizer.zero_grad()
        loss, _ = model(given)
        (loss * len(given.labels) * len(parts) / ROWS).backward()
        optimizer.step()
    return content(model.module)


def cut(whole: Batch, part: slice) -> Batch:
    features = whole.features
    bags = torch.split(features.values(), features.lengths().tolist())
    kept = [bag for number, bag in enumerate(bags) if number % ROWS in range(ROWS)[part]]
    lengths = features.lengths().view(-1, ROWS)[:, part].flatten()
    values = torch.cat([features.values()[:0], *kept])
    return Batch(type(features)(keys=features.keys(), values=values, lengths=lengths), whole.labels[part])


@pytest.mark.parametrize("first", [3, 1])
def test_parts_of_a_batch_may_differ_in_size(ranks: Ranks, first: int) -> None:
    assert_same(ranks.call(uneven, [slice(0, first), slice(first, ROWS)]), trained_on_one())


def over_all_ranks() -> tuple[float, float, int, int]:
    model = on_ranks()
    optimizer = optimizer_of(model.module)
    target = TargetRate(optimizer, 0.3, steps=STEPS, interval=2)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, _ = model(own_batch(step))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.module.parameters(), 1e9)
        optimizer.step()
        target.step()
    live, seen = (content(model.module)["counts"][at] for at in (0, 1))
    return float(norm), optimizer.param_groups[0]["l21"], live, seen


def test_norms_and_targets_mean_all_ranks(ranks: Ranks) -> None:
    (norm, l21, *counts), (other_norm, other_l21, *other_counts) = ranks.call(over_all_ranks)
    assert norm == pytest.approx(other_norm)
    assert l21 == other_l21
    live, seen = (one + other for one, other in zip(counts, other_counts, strict=True))
    assert live / seen == pytest.approx(0.3, abs=0.1)


def evaluated() -> tuple[int, Tensor, Tensor]:
    model = on_ranks(options={"things": {"seed": 7}}, std=0.25)
    one = on_one(std=0.25)
    before = tables_of(model.module)
    assert [table.table.config.seed for table in before.values()] == [7, 1]
    model.eval()
    _, logits = model(own_batch(0))
    assert not any(table.num_rows for table in before.values())
    return len(logits), logits, one.head.layer.bias.detach().expand(len(logits))


def test_evaluation_inserts_nothing_and_options_are_the_tables(ranks: Ranks) -> None:
    for _, logits, bias in ranks.call(evaluated):
        torch.testing.assert_close(logits, bias)


class WithBags(nn.Module):
    """A collection whose weights become tables, beside one of bags, which TorchRec shards."""

    def __init__(self) -> None:
        super().__init__()
        self.clicks = Clicks()
        config = EmbeddingBagConfig(name="bags", embedding_dim=8, num_embeddings=50, feature_names=["user"])
        self.bags = EmbeddingBagCollection(tables=[config], device=torch.device("meta"))


def beside_bags() -> tuple[list[str], dict[str, Any]]:
    model = WithBags()
    sharders: Any = [EmbeddingBagCollectionSharder()]
    planner = EmbeddingShardingPlanner(topology=Topology(world_size=2, compute_device="cpu"))
    plan = planner.collective_plan(model, sharders, dist.group.WORLD)
    plan.plan.update(plan_tables(model).plan)
    sharded = DistributedModelParallel(model, plan=plan, sharders=[*sharders, HashEmbeddingCollectionSharder()])
    optimizer = optimizer_of(sharded.module.clicks)
    for step in range(STEPS):
        optimizer.zero_grad()
        given = own_batch(step)
        given.features.values().remainder_(50)
        pooled = sharded.module.bags(given.features).values()
        (sharded.module.clicks(given)[0] + pooled.square().sum()).backward()
        average_gradients(sharded.module.clicks.head)
        optimizer.step()
    return sorted(name for name, _ in sharded.named_parameters()), content(sharded.module.clicks)


def average_gradients(module: nn.Module) -> None:
    for parameter in module.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def test_tables_stand_beside_bags_that_torchrec_shards(ranks: Ranks) -> None:
    whole = on_one()
    batches = [batch(step) for step in range(STEPS)]
    for one in batches:
        one.features.values().remainder_(50)
    learn(whole, optimizer_of(whole), batches)
    names, parts = zip(*ranks.call(beside_bags), strict=True)
    assert_same(list(parts), content(whole))
    assert "bags.embedding_bags.bags.weight" in names[0]


def refused() -> None:
    model = Clicks()
    sharder: Any = HashEmbeddingCollectionSharder()
    topology = Topology(world_size=2, compute_device="cpu")
    with pytest.raises(ValueError, match="unsupported compute kernel: customized_kernel"):
        EmbeddingShardingPlanner(topology=topology).plan(model, [sharder])
    plan = EmbeddingShardingPlanner(topology=topology).plan(Clicks(), [EmbeddingCollectionSharder()])
    for given, message in [
        (plan, "let plan_tables make the plan"),
        (plan_tables(model, fallback=True), "'fallback' is no option of a table that TorchRec shards"),
        (plan_tables(model, max_rows=0), "max_rows must be in"),
    ]:
        with pytest.raises(ValueError, match=message):
            on_ranks(Clicks(), plan=given)
    with pytest.raises(ValueError, match="options has 'items', but the model's tables are 'things', 'users'"):
        plan_tables(model, {"items": {}})
    with pytest.raises(ValueError, match="holds no EmbeddingCollection"):
        plan_tables(nn.Linear(1, 1))
    with pytest.raises(ValueError, match="no batch without samples"):
        on_ranks()(cut(batch(0), slice(0, 0)))
    sharded = on_ranks()
    prefetching: Any = PrefetchTrainPipelineSparseDist(sharded, optimizer_of(sharded.module), CPU)
    with pytest.raises(AssertionError, match="Invalid PrefetchPipelinedForward usage"):  # TorchRec: on CUDA alone
        prefetching.progress(iter([own_batch(0), own_batch(1), own_batch(2)]))
    optimized = Clicks()
    apply_optimizer_in_backward(torch.optim.SGD, optimized.embedding.parameters(), {"lr": 0.1})
    with pytest.raises(ValueError, match=r"embeddings\.things\.weight has an optimizer of TorchRec's own"):
        on_ranks(optimized)
    with pytest.raises(ValueError, match="'things': new rows cannot start by init_fn"):
        on_ranks(Clicks(init_fn=nn.init.zeros_))
    with pytest.raises(ValueError, match="enable_embedding_update is not for tables"):
        on_ranks(Clicks(enable_embedding_update=True))
    with pytest.raises(RuntimeError, match="Missing key"):
        sharded.module.embedding.load_state_dict({"embeddings.things.weight": torch.zeros(20, DIM)})
    lopsided = Clicks()
    lopsided.embedding.embedding_configs()[0].weight_init_min = 0.0
    with pytest.raises(ValueError, match="'things': new rows start around zero, but weight_init_min"):
        on_ranks(lopsided)


def test_what_cannot_be_is_refused(ranks: Ranks) -> None:
    ranks.call(refused)


class BothKinds(nn.Module):
    """TorchRec's bags for one feature of few values, a table for two of many."""

    def __init__(self, process_group: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        few = EmbeddingBagConfig(name="users", embedding_dim=4, num_embeddings=7, feature_names=["user"])
        self.few = EmbeddingBagCollection(tables=[few])
        fields = {"item": 0, "seen": 1}
        self.many = HashEmbeddingBag(4, mode="sum", std=0.5, features=fields, field_bits=8, process_group=process_group)
        self.head = nn.Linear(12, 1)

    def forward(self, features: Any) -> Tensor:
        few, many = self.few(features).values(), self.many(features)
        return self.head(torch.cat([few, many.flatten(1)], 1)).squeeze(1)


def learn_both(model: nn.Module, batches: list[Batch]) -> None:
    optimizer = GroupAdam(param_groups(model, l21=0.01), lr=0.05)
    for one in batches:
        first, last = one.features.offset_per_key()[:2]
        one.features.values()[first:last].remainder_(7)  # TorchRec's bags take ids below 7
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(one.features), one.labels).backward()
        optimizer.step()


def content_of_both(model: BothKinds) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
    """What all ranks have, and this rank's rows."""
    rows = model.many.table.look_up(model.many.keys, insert=False)[0]
    own = dict(zip(model.many.keys.tolist(), rows.clone(), strict=True))
    return model.few.embedding_bags["users"].weight.detach(), model.head.weight.detach(), own


def in_parallel() -> tuple[Tensor, Tensor, dict[int, Tensor]]:
    model = BothKinds(dist.group.WORLD)
    learn_both(data_parallel(model), [own_batch(step) for step in range(STEPS)])
    return content_of_both(model)


def test_ranks_train_both_kinds_as_one_process(ranks: Ranks) -> None:
    parts = ranks.call(in_parallel)
    model = BothKinds()
    learn_both(model, [batch(step) for step in range(STEPS)])
    few, head, rows = content_of_both(model)
    together = {key: row for *_, own in parts for key, row in own.items()}
    assert together.keys() == rows.keys()
    assert sum(len(own) for *_, own in parts) == len(rows)
    for key, row in together.items():
        torch.testing.assert_close(row, rows[key], rtol=1e-5, atol=1e-6)
    for its_few, its_head, _ in parts:
        torch.testing.assert_close(its_few, few, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(its_head, head, rtol=1e-5, atol=1e-6)
