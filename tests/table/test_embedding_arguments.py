"""Arguments of `nn.Embedding` and `nn.EmbeddingBag`: a table with them is torch's module with them."""

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from distributed_cases import Ranks
from over import over
from sparsegroup import GroupAdagrad, GroupAdam, HashEmbedding, HashEmbeddingBag
from sparsegroup.checkpoint import Checkpoints, load_checkpoint
from sparsegroup.serving import export, load_export
from table_cases import take_step

ROWS, DIM = 12, 3
PADDING = 5


def pair_of(mode: str | None, dtype: torch.dtype = torch.float32, **arguments: Any) -> tuple[Any, HashEmbedding]:
    """Torch's module of `ROWS` rows, and a table with the same vectors; a bag if there is a `mode`."""
    torch.manual_seed(0)
    bag = {} if mode is None else {"mode": mode}
    plain = (nn.Embedding if mode is None else nn.EmbeddingBag)(ROWS, DIM, dtype=dtype, **arguments, **bag)
    table = (HashEmbedding if mode is None else HashEmbeddingBag)(DIM, dtype=dtype, **arguments, **bag)
    ids = torch.tensor([key for key in range(ROWS) if key != arguments.get("padding_idx")])
    with torch.no_grad():
        plain.weight.copy_((4 * plain.weight).round() / 4)  # with ties in many bags
    table.assign(ids, plain.weight.detach()[ids])
    return plain, table


def inputs(step: int, shape: str, last: bool) -> tuple[Tensor, ...]:
    """Keys, some of them twice in a bag, and offsets; bags of padding only and empty ones."""
    draw = torch.Generator().manual_seed(step)
    keys = torch.randint(0, ROWS, (4, 5), generator=draw)
    keys[torch.rand(4, 5, generator=draw) < 0.3] = PADDING
    keys[1] = PADDING
    if shape == "2-d":
        return (keys,)
    return keys.flatten(), torch.tensor([0, 5, 10, 10, 13, 20][: 6 if last else 5])


def check_steps(plain: Any, table: HashEmbedding, calls: list[tuple[Tensor, ...]], weighted: bool = False) -> None:
    """Both give the same, with the same gradients, and train to the same vectors."""
    optimizers = [GroupAdagrad(one.parameters(), lr=0.3, groups="rows") for one in (plain, table)]
    for call in calls:
        found, slopes = [], []
        for module, optimizer in zip((plain, table), optimizers, strict=True):
            weights = torch.linspace(-1, 2, call[0].numel(), dtype=plain.weight.dtype).view(call[0].shape)
            more = {"per_sample_weights": weights.requires_grad_()} if weighted else {}
            out = module(*call, **more)
            take_step(optimizer, (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)).sum())
            found.append(out.detach())
            slopes.append(weights.grad)
        torch.testing.assert_close(*found)
        torch.testing.assert_close(*slopes)
        if table.max_norm is None:
            torch.testing.assert_close(table.lookup(torch.arange(ROWS)), plain.weight.detach() * not_padding(table))


def not_padding(table: HashEmbedding) -> Tensor:
    """0 for the row of padding, 1 for the others, `[ROWS, 1]`."""
    is_padding = [key == table.padding_idx for key in range(ROWS)]
    return 1 - torch.tensor(is_padding, dtype=table.weight.dtype).unsqueeze(1)


@over("dtype", [torch.float32, torch.float64])
@over("shape", ["2-d", "ragged"])
@over(
    ("mode", "arguments"),
    [
        ("sum", {"padding_idx": PADDING}),
        ("weighted sum", {"padding_idx": PADDING}),
        ("weighted sum", {"include_last_offset": True}),
        ("mean", {"padding_idx": PADDING, "include_last_offset": True}),
        ("max", {}),
        ("max", {"padding_idx": PADDING, "include_last_offset": True}),
    ],
)
def test_bags_give_and_train_as_those_of_torch(
    mode: str, arguments: dict[str, Any], shape: str, dtype: torch.dtype
) -> None:
    plain, table = pair_of(mode.split()[-1], dtype, **arguments)
    calls = [inputs(step, shape, arguments.get("include_last_offset", False)) for step in range(4)]
    check_steps(plain, table, calls, weighted="weighted" in mode)


@over("shape", [(), (7,), (2, 3, 4), (0,)])
def test_padding_gives_zeros_and_has_no_row(shape: tuple[int, ...]) -> None:
    plain, table = pair_of(None, padding_idx=PADDING)
    keys = torch.randint(0, ROWS, shape, generator=torch.Generator().manual_seed(1))
    check_steps(plain, table, [(keys,), (torch.full_like(keys, PADDING),)])
    assert PADDING not in table
    assert table.num_seen == ROWS - 1


@over("fallback", [False, True])
def test_padding_stays_zero_also_with_fallback_vectors_and_prefetched(fallback: bool, two_threads: None) -> None:
    table = HashEmbedding(DIM, padding_idx=-1, fallback=fallback)
    if table.fallback is not None:
        nn.init.ones_(table.fallback)
    keys = torch.arange(6_000) % 500 - 1
    for training in (True, False):
        table.train(training).prefetch(keys)
        vectors = table(keys)
        assert torch.equal(vectors.any(1), keys != -1)
    assert table.num_seen == 499


@over("training", [True, False])
@over(
    ("mode", "arguments"),
    [
        (None, {"max_norm": 1.0}),
        (None, {"max_norm": 0.5, "norm_type": 1.0, "padding_idx": PADDING}),
        (None, {"max_norm": 0.4, "norm_type": math.inf}),
        ("mean", {"max_norm": 0.7}),
        ("max", {"max_norm": 1.0, "padding_idx": PADDING}),
        ("weighted sum", {"max_norm": 1.0}),
    ],
)
def test_a_lookup_scales_long_rows_as_that_of_torch(mode: str | None, arguments: Any, training: bool) -> None:
    """The modules' rows too, in place, also in evaluation."""
    modules = pair_of(mode and mode.split()[-1], torch.float64, **arguments)
    calls = [inputs(step, "2-d", last=False) for step in range(4)]
    check_steps(*modules, calls, weighted=mode == "weighted sum")
    with torch.no_grad():
        vectors = [module.train(training)(calls[0][0]) for module in modules]
    torch.testing.assert_close(*vectors)
    plain, table = modules
    stored = torch.from_numpy(table.table.snapshot().parts["weight"])
    torch.testing.assert_close(stored, plain.weight.detach()[table.keys])


@over("dtype", [torch.float32, torch.float64])
def test_scaling_leaves_u_and_zero_rows_alone(dtype: torch.dtype) -> None:
    """With a regularizer the steps are those of a sparse `nn.Embedding`, whose u torch's scaling does not reach."""
    plain = nn.Embedding(ROWS, 8, max_norm=0.5, sparse=True, dtype=dtype)
    table = HashEmbedding(8, max_norm=0.5, dtype=dtype)
    table.assign(torch.arange(ROWS), plain.weight.detach())
    optimizers = [GroupAdam(one.parameters(), lr=0.1, l1=0.02, l21=0.3, groups="rows") for one in (plain, table)]
    slope = torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(1), dtype=dtype)
    slope[:6] *= 0.01
    for step in range(12):
        keys = torch.randperm(ROWS, generator=torch.Generator().manual_seed(step))[:9]
        for module, optimizer in zip((plain, table), optimizers, strict=True):
            take_step(optimizer, (module(keys) * slope[keys]).sum())
        torch.testing.assert_close(table.table.snapshot().parts["weight"], plain.weight.detach().numpy())
    rows = torch.from_numpy(table.table.rows.read("u", table.table.find(np.arange(ROWS))))
    torch.testing.assert_close(rows, optimizers[0].state[plain.weight]["u"])
    assert 0 < table.num_live < ROWS
    assert torch.linalg.vector_norm(table(torch.arange(ROWS)), dim=1).max() <= 0.5001


def test_scaled_rows_are_saved_exported_and_kept_by_increments(tmp_path: Path) -> None:
    def fresh() -> HashEmbedding:
        return HashEmbedding(4, max_norm=0.1, std=0.5)

    table, keys = fresh(), torch.arange(50)
    table(keys)
    table.assign(keys, torch.randn(50, 4, generator=torch.Generator().manual_seed(1)))
    export(table, tmp_path / "out", (keys,), formats=[])
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(0, table, [])
    vectors = table.eval()(keys).detach()
    assert torch.linalg.vector_norm(vectors, dim=1).max() <= 0.1001
    other = fresh()
    load_checkpoint(checkpoints.save(1, table, []), other, [])
    assert torch.equal(other.state_dict()["weight"], table.state_dict()["weight"])
    for one in (load_export(tmp_path / "out", fresh()), copy.deepcopy(table), other.eval()):
        assert torch.equal(one(keys), vectors)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch.compile's own
def test_padding_in_a_compiled_model_and_in_a_copy() -> None:
    plain, table = pair_of(None, padding_idx=PADDING)
    keys = torch.tensor([[1, PADDING], [2, 3]])
    assert torch.equal(copy.deepcopy(table)(keys), plain(keys))
    assert torch.equal(torch.compile(table, backend="eager")(keys), plain(keys))


MANY: tuple[dict[str, Any], ...] = (
    {"mode": "mean", "padding_idx": PADDING, "max_norm": 0.4},
    {"mode": "max", "padding_idx": PADDING, "fallback": True},
    {"mode": "max", "dtype": torch.bfloat16, "max_norm": 0.4},
)


def pooled_by(keys: Tensor, ends: Tensor, **options: Any) -> list[Tensor]:
    """Return the vectors of bags before and after a step."""
    bags = [HashEmbeddingBag(DIM, std=0.5, **one, **options) for one in MANY]
    optimizers = [GroupAdagrad(bag.parameters(), lr=0.1) for bag in bags]
    found = []
    for bag, optimizer in zip(bags, optimizers, strict=True):
        found.append(bag(keys, ends).detach().float())
        take_step(optimizer, bag(keys, ends).sum())
        found.append(bag(keys, ends).detach().float())
    return found


def part_of(rank: int) -> tuple[Tensor, Tensor]:
    keys, ends = inputs(1, "ragged", last=False)
    return (keys[:10], ends[:2]) if not rank else (keys[10:], ends[2:] - 10)


def of_my_rank() -> list[Tensor]:
    group = dist.group.WORLD
    return pooled_by(*part_of(dist.get_rank()), process_group=group, reduction="sum")


def test_a_table_on_two_ranks_gives_the_same(ranks: Ranks) -> None:
    whole = pooled_by(*inputs(1, "ragged", last=False))
    for parts in zip(*ranks.call(of_my_rank), whole, strict=True):
        torch.testing.assert_close(torch.cat(parts[:-1]), parts[-1])


@over(
    ("call", "error", "match"),
    [
        (lambda: HashEmbedding(2, padding_idx=1.0), TypeError, "padding_idx must be an int"),  # type: ignore[arg-type]
        (lambda: HashEmbedding(2, padding_idx=1 << 63), ValueError, "padding_idx must be in"),
        (
            lambda: HashEmbedding(2, padding_idx=7).assign(torch.tensor([7]), torch.ones(1, 2)),
            ValueError,
            "padding_idx",
        ),
        (lambda: HashEmbedding(2, max_norm=0.0), ValueError, "max_norm must be finite and > 0"),
        (lambda: HashEmbedding(2, max_norm="1"), TypeError, "max_norm must be a number"),  # type: ignore[arg-type]
        (lambda: HashEmbedding(2, max_norm=1.0, norm_type=0.0), ValueError, "norm_type must be > 0"),
        (lambda: HashEmbeddingBag(2, mode="median"), ValueError, "'sum', 'mean' or 'max'"),  # type: ignore[arg-type]
        *(
            (
                lambda mode=mode: HashEmbeddingBag(2, mode=mode)(torch.ones(1, 3).long(), None, torch.ones(1, 3)),
                NotImplementedError,
                "mode='sum'",
            )
            for mode in ("mean", "max")
        ),
    ],
)
def test_what_torch_refuses_is_refused(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


def test_repr_names_the_arguments() -> None:
    bag = HashEmbeddingBag(2, mode="max", padding_idx=3, max_norm=2.5, norm_type=1.0)
    assert all(text in repr(bag) for text in ("mode='max'", "padding_idx=3", "max_norm=2.5", "norm_type=1.0"))
