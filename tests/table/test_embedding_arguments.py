"""Arguments of `nn.Embedding` and `nn.EmbeddingBag`: a table with them is torch's module with them."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from over import over
from sparsegroup import GroupAdagrad, HashEmbedding, HashEmbeddingBag
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


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch.compile's own
def test_padding_in_a_compiled_model_and_in_a_copy() -> None:
    plain, table = pair_of(None, padding_idx=PADDING)
    keys = torch.tensor([[1, PADDING], [2, 3]])
    assert torch.equal(copy.deepcopy(table)(keys), plain(keys))
    assert torch.equal(torch.compile(table, backend="eager")(keys), plain(keys))


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
    bag = HashEmbeddingBag(2, mode="max", padding_idx=3)
    assert all(text in repr(bag) for text in ("mode='max'", "padding_idx=3"))
