"""`convert`: a model's embeddings become tables; `to_embeddings`: and back."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sparsegroup.bags import BagMode
from sparsegroup.optim.table_parameter import StoredParameter
from sparsegroup.table.bag import HashEmbeddingBag
from sparsegroup.table.config import check_int
from sparsegroup.table.hash_embedding import HashEmbedding
from sparsegroup.table.lookup.fallback import apply_fallback
from sparsegroup.table.lookup.lookup import as_int64


def _of_table(name: str) -> Any:
    """Return a property that is an attribute of the table."""
    return property(lambda module: getattr(module.table, name))


class TableEmbedding(nn.Module):
    """What `convert` puts in the place of an `nn.Embedding`: a `HashEmbedding` with its arguments and attributes.

    Ids are the table's keys. One that is not below `num_embeddings` is no error: it is a key like any other.

    Args:
        table: Holds the rows.
        num_embeddings: How many rows the `nn.Embedding` had.
        padding: The vector of the table's `padding_idx`, `[dim]`, which is not trained; None for zeros.
        sparse: What the `nn.Embedding` had, for `to_embeddings`. A table's gradients are sparse in any case.

    Attributes:
        table, num_embeddings, sparse: See above.

    Examples:
        >>> import torch
        >>> from sparsegroup import HashEmbedding
        >>> embedding = TableEmbedding(HashEmbedding(4, padding_idx=0), 10)
        >>> embedding(input=torch.tensor([[0, 3], [0, 9]])).shape, embedding.table.num_rows
        (torch.Size([2, 2, 4]), 2)
    """

    embedding_dim: int = _of_table("dim")
    padding_idx: int | None = _of_table("padding_idx")
    max_norm: float | None = _of_table("max_norm")
    norm_type: float = _of_table("norm_type")
    scale_grad_by_freq = False
    padding: Tensor | None

    def __init__(
        self, table: HashEmbedding, num_embeddings: int, *, padding: Tensor | None = None, sparse: bool = False
    ) -> None:
        super().__init__()
        self.table, self.num_embeddings, self.sparse = table, num_embeddings, sparse
        if table.padding_idx is not None and padding is None:
            padding = torch.zeros(table.dim, dtype=table.weight.dtype, device="cpu")
        own = None if padding is None else padding.detach().clone().to(table.table.device, table.weight.dtype)
        self.register_buffer("padding", own)

    @property
    def weight(self) -> StoredParameter:
        """The table's parameter, which is no tensor that one can compute with; see `HashEmbedding.lookup`."""
        return self.table.weight

    def forward(self, input: Tensor) -> Tensor:
        """The vectors of ids.

        Args:
            input: int64 or int32 of any shape, see `HashEmbedding.forward`.

        Returns:
            `[*input.shape, embedding_dim]`.

        Raises:
            TypeError, ValueError, RuntimeError, MemoryError: As `HashEmbedding.forward`.
        """
        ids = as_int64(input)
        vectors: Tensor = self.table(ids)
        if self.padding is None or self.padding_idx is None:
            return vectors
        return torch.where(ids.eq(self.padding_idx).unsqueeze(-1).to(vectors.device), self.padding, vectors)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


class TableEmbeddingBag(TableEmbedding):
    """What `convert` puts in the place of an `nn.EmbeddingBag`: a `HashEmbeddingBag` with its arguments and attributes.

    Args:
        table: Holds the rows.
        num_embeddings, padding, sparse: As of `TableEmbedding`; ids of padding are in no bag.

    Examples:
        >>> import torch
        >>> from sparsegroup import HashEmbeddingBag
        >>> bag = TableEmbeddingBag(HashEmbeddingBag(4, mode="sum", padding_idx=0), 10)
        >>> bag(torch.tensor([7, 0, 8, 0]), torch.tensor([0, 3])).shape, bag.table.num_rows
        (torch.Size([2, 4]), 2)
    """

    table: HashEmbeddingBag
    mode: BagMode = _of_table("mode")
    include_last_offset: bool = _of_table("include_last_offset")

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """The bags' vectors.

        Args:
            input: int64 or int32 `[bags, ids per bag]`, or `[n]` with `offsets`.
            offsets: int64 or int32 `[bags]`, where each bag begins.
            per_sample_weights: Shaped as `input`; only with mode "sum".

        Returns:
            `[bags, embedding_dim]`; zeros for an empty bag.

        Raises:
            TypeError, ValueError, RuntimeError, MemoryError: As `HashEmbeddingBag.forward`.
        """
        return self.table(as_int64(input), offsets, per_sample_weights)  # type: ignore[no-any-return]


AnyEmbedding = nn.Embedding | nn.EmbeddingBag
Rows = Literal["all", "none"]

_ROWS_AT_A_TIME = 1 << 20
_ALONE = "the model"
_REGISTERED = ("_parameters", "_buffers", "_modules")


def convert(
    model: nn.Module, *, choose: Callable[[str, nn.Module], bool] | None = None, rows: Rows = "all", **options: Any
) -> nn.Module:
    """Replace a model's `nn.Embedding` and `nn.EmbeddingBag` modules by tables, wherever they are used.

    Each becomes a `TableEmbedding` or `TableEmbeddingBag` with the same arguments and attributes, which holds a
    `HashEmbedding` or `HashEmbeddingBag`; an id is its key. Modules that are used in several places, and modules that
    share a weight, share a table. A vector at `padding_idx` is kept, untrained, outside of the table. Make the
    optimizer afterwards: one that was made before still holds the old weights. The new optimizer loads the state of the
    old one, of this library or of torch.optim.

    New keys start with normal numbers of the weight's standard deviation (zeros for zeros).

    A loss that regularizes whole weights cannot go over a table's rows: build models of DeepCTR-Torch with
    `l2_reg_embedding=0` and `l2_reg_linear=0`, FuxiCTR's with `embedding_regularizer=None`, and give l1, l21 and
    l2 to `param_groups`.

    Args:
        model: Changed in place; if it is an embedding itself, only the result is new.
        choose: Name, as in `named_modules`, and module → whether to replace it. None: every embedding that is trained
            and has the `forward` of its class in torch.
        rows: "all": every row goes into the table unchanged, and counts as seen; the model computes the same.
            "none": a row appears when training first sees its id, drawn at random. That is for models which have
            not been trained: memory and feature rate then go by the ids that come.
        **options: Arguments of `HashEmbedding`. By default `std`, `device` and `dtype` are the weight's, and `seed` is
            drawn from torch's generator, as an initializer's numbers are. A second table has the seed after the first
            one's, and so on.

    Returns:
        The model.

    Raises:
        ValueError: There is nothing to replace; or an embedding cannot be a table, because of what it does
            (`scale_grad_by_freq`, hooks), because a layer that stays, a loss, or an attribute, holds its
            weight, or with `rows="none"` because its elements are not spread around zero. Nothing is changed.
        TypeError, RuntimeError, MemoryError: As `HashEmbedding`, and its `assign`. Nothing is changed.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> from sparsegroup import GroupAdam, convert, param_groups, to_embeddings
        >>> model = nn.Sequential(nn.Embedding(10_000, 8), nn.Linear(8, 1))
        >>> ids = torch.tensor([3, 14, 15])
        >>> before = model(ids)
        >>> model = convert(model)
        >>> bool((model(ids) == before).all()), model[0].table.num_rows
        (True, 10000)
        >>> optimizer = GroupAdam(param_groups(model, l21=1e-3))
        >>> to_embeddings(model)[0]
        Embedding(10000, 8)
    """
    if rows not in ("all", "none"):
        raise ValueError(f"rows must be 'all' or 'none', got {rows!r}")
    chosen = _chosen(model, choose)
    _check_held_here_alone(model, chosen)
    first = options.pop("seed", None)
    first = int(torch.randint(1 << 62, (), dtype=torch.int64, device="cpu")) if first is None else first
    check_int("seed", first, 0, (1 << 64) - 1)
    tables: dict[int, HashEmbedding] = {}  # id of the weight → its table
    fresh: dict[nn.Module, nn.Module] = {}
    for name, module in chosen.items():
        sharing = [other for other in chosen.values() if other.weight is module.weight]
        try:
            if id(module.weight) not in tables:
                seed = (first + len(tables)) % (1 << 64)
                tables[id(module.weight)] = _table_of(sharing, rows, {**options, "seed": seed})
            fresh[module] = _as_table(module, tables[id(module.weight)])
        except (ValueError, TypeError, RuntimeError, MemoryError) as error:
            raise type(error)(f"{name or _ALONE}: {error}") from error
    return _replaced(model, fresh)


def to_embeddings(model: nn.Module) -> nn.Module:
    """Replace what `convert` has made by plain `nn.Embedding` and `nn.EmbeddingBag` modules, which give the same.

    Each has the rows 0 to `num_embeddings` - 1, or more if larger ids have come to live. Ids without a live row have
    zeros, or the table's fallback vector, as in evaluation. Padding, modes, and what is shared are as they were; what
    the optimizer keeps of the rows is not carried over.

    Args:
        model: Changed in place; if it is a `TableEmbedding` itself, only the result is new.

    Returns:
        The model.

    Raises:
        ValueError: There is nothing to replace, or a table has negative keys. Nothing is changed.
        RuntimeError: There is no memory for that many rows. Nothing is changed.
    """
    found = {name: module for name, module in model.named_modules() if isinstance(module, TableEmbedding)}
    if not found:
        raise ValueError(f"{type(model).__name__} holds nothing that `convert` has made: there is nothing to replace")
    weights: dict[int, nn.Parameter] = {}  # id of the table → its rows
    fresh: dict[nn.Module, nn.Module] = {}
    for name, module in found.items():
        sharing = [other for other in found.values() if other.table is module.table]
        if id(module.table) not in weights:
            try:
                dense = _rows_of(sharing)
            except (ValueError, RuntimeError) as error:
                raise type(error)(f"{name or _ALONE}: {error}") from error
            weights[id(module.table)] = nn.Parameter(dense, requires_grad=module.weight.requires_grad)
        fresh[module] = _plain(module, weights[id(module.table)])
    return _replaced(model, fresh)


def _chosen(model: nn.Module, choose: Callable[[str, nn.Module], bool] | None) -> dict[str, AnyEmbedding]:
    """Name → embedding to replace. Raises ValueError if there is none."""
    found: dict[str, AnyEmbedding] = {}
    for name, module in model.named_modules():
        if not isinstance(module, AnyEmbedding):
            continue
        own = type(module).forward not in (nn.Embedding.forward, nn.EmbeddingBag.forward)
        if choose(name, module) if choose is not None else module.weight.requires_grad and not own:
            if own:
                raise ValueError(f"{name or _ALONE}: {type(module).__name__} has a custom `forward`: leave it out")
            found[name] = module
    if not found:
        raise ValueError(
            f"{type(model).__name__} holds no nn.Embedding and no nn.EmbeddingBag that is trained and that "
            "`choose` takes: there is nothing to replace"
        )
    return found


def _check_held_here_alone(model: nn.Module, chosen: Mapping[str, AnyEmbedding]) -> None:
    """Raise ValueError if something that stays holds an embedding that goes, or its weight."""
    names = {id(module.weight): name or _ALONE for name, module in chosen.items()}
    going = {id(module) for module in chosen.values()}
    for name, module in model.named_modules():
        for parameter, weight in module.named_parameters(recurse=False, remove_duplicate=False):
            if id(weight) in names and id(module) not in going:
                raise ValueError(
                    f"{names[id(weight)]}: its weight is {f'{name}.{parameter}'.removeprefix('.')}, too, which would "
                    "stay as it is: leave it out by `choose`"
                )
        if norm := vars(module).get("_embedding_regularizer"):  # FuxiCTR
            raise ValueError(
                f"{name or _ALONE}: its embedding_regularizer={norm!r} takes the norm of whole weights, which a table "
                "does not have: build it with embedding_regularizer=None and give l1, l21 or l2 to `param_groups`"
            )
        for attribute, value in vars(module).items():
            for embedding_name, embedding in chosen.items():
                if attribute not in _REGISTERED and _holds(value, (embedding, embedding.weight)):
                    raise ValueError(
                        f"{embedding_name or _ALONE}: the model holds it, or its weight, as "
                        f"{f'{name}.{attribute}'.removeprefix('.')}, too, where it cannot be replaced: leave it out by "
                        "`choose`, or convert before that is made. Models of DeepCTR-Torch need l2_reg_embedding=0 and "
                        "l2_reg_linear=0; clear the list `regularization_weight` of one that lacks these, such as DCN"
                    )


def _holds(value: Any, wanted: tuple[object, object], outer: tuple[int, ...] = ()) -> bool:
    """Whether a list, tuple, set or dict holds one of two objects, at any depth."""
    if value is wanted[0] or value is wanted[1]:
        return True
    if not isinstance(value, list | tuple | set | frozenset | Mapping) or id(value) in outer:
        return False
    if isinstance(value, tuple) and len(value) == 3 and all(type(x) in (int, float) and not x for x in value[1:]):
        return False  # DeepCTR-Torch's weights, l1 and l2: nothing is computed of the weights
    items = value.values() if isinstance(value, Mapping) else value
    return any(_holds(one, wanted, (*outer, id(value))) for one in items)


def _check_convertible(module: AnyEmbedding) -> None:
    reason = None
    if module.scale_grad_by_freq:
        reason = "scale_grad_by_freq=True divides gradients by counts"
    elif module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        reason = "its hooks would be lost"
    elif "weight" not in module._parameters:
        reason = "its weight is computed, not a parameter"
    if reason is not None:
        raise ValueError(f"{reason}, which a table does not: leave it out by `choose`")


def _table_of(sharing: Sequence[AnyEmbedding], rows: Rows, options: Mapping[str, Any]) -> HashEmbedding:
    """The table of embeddings that share a weight."""
    for module in sharing:
        _check_convertible(module)
    module = sharing[0]
    kinds = ("padding_idx", "max_norm", "norm_type", "mode", "include_last_offset")  # an nn.Embedding has the first 3
    if len({tuple(getattr(other, name, None) for name in kinds) for other in sharing}) > 1:
        raise ValueError(
            "its weight is shared by embeddings of another class, padding_idx, max_norm, norm_type, mode or "
            "include_last_offset, which one table cannot have: leave them out by `choose`"
        )
    weight = module.weight.detach()
    std, mean = (float(one) for one in torch.std_mean(weight.float(), correction=0))
    if rows == "none" and "std" not in options and abs(mean) > std * max(6 / math.sqrt(weight.numel()), 0.05):
        raise ValueError(
            f"rows='none' would draw its rows around zero, but their mean is {mean:.3g} (std {std:.3g}): keep them by "
            "rows='all', or give `std`"
        )
    settings = {
        "std": std,
        "dtype": weight.dtype,
        "device": weight.device,
        **{name: getattr(module, name) for name in ("padding_idx", "max_norm", "norm_type")},
        **options,
    }
    if isinstance(module, nn.EmbeddingBag):
        settings |= {"mode": module.mode, "include_last_offset": module.include_last_offset}
        table: HashEmbedding = HashEmbeddingBag(module.embedding_dim, **settings)
    else:
        table = HashEmbedding(module.embedding_dim, **settings)
    if rows == "all":
        for first in range(0, module.num_embeddings, _ROWS_AT_A_TIME):
            last = min(first + _ROWS_AT_A_TIME, module.num_embeddings)
            ids = torch.arange(first, last, dtype=torch.int64, device="cpu")
            ids = ids if module.padding_idx is None else ids[ids != module.padding_idx]
            if (ranks := table.table.ranks) is not None:  # all of which have the weight
                ids = ids[torch.from_numpy(ranks.routing.ranks_of(ids.numpy()) == ranks.rank)]
            table.assign(ids, module.weight.detach()[ids.to(module.weight.device)])
    table.weight.requires_grad_(module.weight.requires_grad)
    return table


def _as_table(module: AnyEmbedding, table: HashEmbedding) -> TableEmbedding:
    at = module.padding_idx
    padding = None if at is None else module.weight[at]
    kind = TableEmbeddingBag if isinstance(module, nn.EmbeddingBag) else TableEmbedding
    made = kind(table, module.num_embeddings, padding=padding, sparse=bool(module.sparse))
    return made.train(module.training)


def _rows_of(sharing: Sequence[TableEmbedding]) -> Tensor:
    """The vectors of ids from 0 on, `[n, dim]`, that some embeddings have in evaluation."""
    table, rows = sharing[0].table, max(module.num_embeddings for module in sharing)
    bounds = [(0, rows - 1), *((int(keys.min()), int(keys.max())) for keys, _ in table.items())]
    if table.table.ranks is not None:
        bounds = table.table.ranks.of_all(bounds, "the highest ids")
    if (lowest := min(low for low, _ in bounds)) < 0:
        raise ValueError(f"it has the key {lowest}; the rows of an nn.Embedding count from 0")
    rows = max(high for _, high in bounds) + 1
    dense = torch.empty(rows, table.dim, dtype=table.weight.dtype, device=table.table.device)
    for first in range(0, rows, _ROWS_AT_A_TIME):
        ids = torch.arange(first, min(first + _ROWS_AT_A_TIME, rows), dtype=torch.int64, device="cpu")
        vectors = table.lookup(ids)
        if table.fallback is not None:
            vectors = apply_fallback(vectors, ids, table.fallback.detach(), table.table.config.field_bits)
        dense[first : first + len(ids)] = vectors
    if sharing[0].padding is not None:
        dense[sharing[0].padding_idx] = sharing[0].padding
    return dense


def _plain(module: TableEmbedding, weight: nn.Parameter) -> AnyEmbedding:
    (rows, dim), padding_idx, sparse = weight.shape, module.padding_idx, module.sparse
    options: dict[str, Any] = {"padding_idx": padding_idx, "sparse": sparse, "_weight": weight.detach()}
    options |= {"max_norm": module.max_norm, "norm_type": module.norm_type}
    made: AnyEmbedding
    if isinstance(module, TableEmbeddingBag):
        options |= {"mode": module.mode, "include_last_offset": module.include_last_offset}
        made = nn.EmbeddingBag(rows, dim, **options)
    else:
        made = nn.Embedding(rows, dim, **options)
    made.weight = weight
    return made.train(module.training)


def _replaced(model: nn.Module, fresh: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """The model with other modules in the places of some."""
    places = [(name, module) for name, module in model.named_modules(remove_duplicate=False) if module in fresh]
    for name, module in places:
        if name:
            model.set_submodule(name, fresh[module])
    return fresh.get(model, model)
