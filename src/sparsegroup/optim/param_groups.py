"""The paper's practice as param groups: regularize some layers, by default the embeddings, not the rest."""

from typing import Any, Unpack

from torch import nn

from sparsegroup.optim.arguments import Options
from sparsegroup.optim.table_parameter import store_of

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def param_groups(
    model: nn.Module,
    *,
    layers: type[nn.Module] | tuple[type[nn.Module], ...] | None = None,
    named: bool = True,
    **options: Unpack[Options],
) -> list[dict[str, Any]]:
    """Return param groups in which only the weights of `layers` are regularized (§4.1 of the paper).

    Args:
        model: The model; a parameter shared by several modules counts once, as a weight of `layers` if it is one.
        layers: Types of the modules whose parameter `weight` is regularized; by default the embeddings: `nn.Embedding`,
            `nn.EmbeddingBag`, `HashEmbedding` and `HashEmbeddingBag`.
        named: Give `(name, parameter)` pairs. False: only parameters, for what takes no names, such as
            `torch.distributed.optim.ZeroRedundancyOptimizer`.
        **options: The regularizer's arguments, see `GroupOptimizer`. With `groups="channels"`, the weights of
            transposed convolutions are cut along dimension 1.

    Returns:
        Param groups for any optimizer of this library: the regularized ones first, then, without regularizer, all
        other parameters. Names are kept, so that reports can show them, unless `named` is False.

    Raises:
        ValueError: The model has no such layer; a layer has sparse gradients and `options` a weight decay; a layer's
            `weight` is no parameter of the model, as with `nn.LSTM`, or under `weight_norm` and pruning; or a
            transposed convolution has `groups` > 1 (its filters are not along a dimension).
        TypeError: `layers` is not a type or a tuple of types.

    Examples:
        >>> from torch import nn
        >>> from sparsegroup import GroupAdam, param_groups
        >>> model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 1))
        >>> optimizer = GroupAdam(param_groups(model, l21=1e-3))
        >>> [(group["l21"], group["param_names"]) for group in optimizer.param_groups]
        [(0.001, ['0.weight']), (0.0, ['1.weight', '1.bias'])]
    """
    wanted = (nn.Embedding, nn.EmbeddingBag) if layers is None else layers if isinstance(layers, tuple) else (layers,)
    if not all(isinstance(layer, type) for layer in wanted):
        raise TypeError(f"layers must be a type of modules or a tuple of types, got {layers!r}")
    known = set(map(id, model.parameters()))
    chosen: dict[int, bool] = {}  # id of the weight → whether it is a transposed convolution's, cut into channels
    for name, module in model.named_modules():
        if not (isinstance(module, wanted) or (layers is None and _is_table(module))):
            continue
        if id(getattr(module, "weight", None)) not in known:
            _check_is_bare(module, name)
            continue
        if (decay := dict(options).get("weight_decay")) and getattr(module, "sparse", False):
            raise ValueError(f"weight_decay={decay} cannot be applied to {name!r}, whose gradients are sparse; use l2")
        transposed = isinstance(module, _TRANSPOSED) and options.get("groups") == "channels"
        if transposed and int(module.groups) > 1:
            raise ValueError(f"groups='channels' cannot cut {name!r}, a transposed convolution with groups > 1")
        chosen[id(module.weight)] = transposed
    if not chosen:
        names = ", ".join(layer.__name__ for layer in wanted)
        raise ValueError(f"the model has no layer of type {names} with a weight: nothing would be regularized")

    parts: dict[str, list[tuple[str, nn.Parameter]]] = {"plain": [], "transposed": [], "rest": []}
    for name, parameter in model.named_parameters():
        transposed_weight = chosen.get(id(parameter))
        part = "rest" if transposed_weight is None else "transposed" if transposed_weight else "plain"
        parts[part].append((name, parameter))
    candidates: list[dict[str, Any]] = [
        {"params": parts["plain"], **options},
        {"params": parts["transposed"], **options, "groups": 1},
        {"params": parts["rest"], "l1": 0.0, "l21": 0.0, "l2": 0.0},
    ]
    groups = [group for group in candidates if group["params"]]
    return groups if named else [{**group, "params": [one for _, one in group["params"]]} for group in groups]


def _is_table(module: nn.Module) -> bool:
    weight = module._parameters.get("weight")
    return weight is not None and store_of(weight) is not None


def _check_is_bare(module: nn.Module, name: str) -> None:
    """Raise ValueError if a chosen layer without a parameter `weight` has other parameters, left unregularized."""
    inside = [module, *(getattr(module, "parametrizations", {}).values())]
    names = [one for part in inside for one, parameter in part.named_parameters(recurse=part is not module)]
    if names:
        raise ValueError(
            f"{name or 'the model'!r}, a {type(module).__name__}, has no parameter 'weight' to regularize, but "
            f"{', '.join(names)}: remove a parametrization or pruning of its weight first, choose other layers, or "
            "write its param group yourself"
        )
