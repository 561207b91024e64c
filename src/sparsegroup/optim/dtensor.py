"""A parameter that is spread over ranks (a DTensor): its part on this rank, and whether parts cut groups."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from sparsegroup.groups import GroupSpec

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


@cache
def is_sharded(kind: type[Tensor]) -> bool:
    """Whether tensors of a type are DTensors, such as the parameters that FSDP2 makes."""
    if kind is Tensor or kind is torch.nn.Parameter or not torch.distributed.is_available():
        return False
    from torch.distributed.tensor import DTensor

    return issubclass(kind, DTensor)


def as_sharded(tensor: Tensor) -> "DTensor":
    """The same tensor, which is a DTensor."""
    return cast("DTensor", tensor)


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor: the same object at each call, unlike `to_local()` of a parameter."""
    return as_sharded(tensor)._local_tensor


def local(value: Any) -> Any:
    """Return this rank's part of a DTensor, and anything else as it is."""
    return local_part(value) if isinstance(value, Tensor) and is_sharded(type(value)) else value


def local_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a parameter's state with this rank's part of each DTensor in it."""
    return {name: local(value) for name, value in entry.items()}


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, which of a DTensor each rank has a part of; all ranks must call it."""
    return as_sharded(tensor).full_tensor() if is_sharded(type(tensor)) else tensor


def laid_out_as(parameter: Tensor, value: Tensor) -> Tensor:
    """`value`, a DTensor, or a tensor that each rank has whole, laid out over the ranks as `parameter`."""
    from torch.distributed.tensor import DTensor, Replicate

    mesh, placements = as_sharded(parameter).device_mesh, as_sharded(parameter).placements
    if not isinstance(value, DTensor):
        everywhere = value.to(parameter.device)
        value = DTensor.from_local(everywhere, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return value if value.placements == placements else value.redistribute(mesh, placements)


def split_mesh_dims(parameter: Tensor) -> dict[int, int]:
    """Dimensions of the device mesh over which a parameter is split → the dimension of the parameter that they cut."""
    spread = as_sharded(parameter)
    mesh = spread.device_mesh
    return {
        number: placement.dim  # of Shard, and of FSDP2's _StridedShard, which is no Shard to some versions of torch
        for number, placement in enumerate(spread.placements)
        if hasattr(placement, "dim") and mesh.size(number) > 1
    }


def has_whole_groups(parameter: Tensor, spec: GroupSpec) -> bool:
    """Whether no group has elements on several ranks."""
    cut = set(split_mesh_dims(parameter).values())
    dim = _group_dim(spec, parameter.ndim)
    return not cut or (dim is not None and cut == {dim})


def check_groups_are_whole(parameter: Tensor, spec: GroupSpec, where: object) -> None:
    """Raise ValueError where a group has elements on several ranks, none of which knows its norm."""
    if has_whole_groups(parameter, spec):
        return
    dim = _group_dim(spec, parameter.ndim)
    placed = ", ".join(map(str, as_sharded(parameter).placements))
    given = "a tensor of ids" if isinstance(spec, Tensor) else repr(spec)
    sharding = "" if dim is None else f"shard its dimension {dim} (fully_shard: by shard_placement_fn), "
    raise ValueError(
        f"groups={given} cannot be regularized in a DTensor of shape {list(parameter.shape)} placed as ({placed}): the "
        f"elements of a group are on several ranks, each of which knows only its part ({where}). Replicate the "
        f"parameter, {sharding}choose other groups, or give it a param group without l1, l21 and l2"
    )


def check_is_not_flattened(parameter: Tensor, group: Mapping[str, Any], where: str) -> None:
    """Raise ValueError for λ21 > 0 where the first FSDP has made one dimension, cut anywhere, of the parameter's."""
    if group["l21"] and parameter.ndim <= 1 and getattr(parameter, "_fsdp_flattened", False):
        raise ValueError(
            f"l21={group['l21']:g} needs groups, which FullyShardedDataParallel does not keep: it has flattened the "
            f"parameter to shape {list(parameter.shape)} ({where}). Shard by torch.distributed.fsdp.fully_shard, which "
            "keeps rows, or leave the module out by ignored_modules"
        )


def summed_over_shards(parameter: Tensor, counts: Sequence[int]) -> list[int]:
    """Σ of `counts` over the ranks that hold different parts of a parameter; all ranks must call it."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    split, mesh = split_mesh_dims(parameter), as_sharded(parameter).device_mesh
    placements = [Partial("sum") if number in split else Replicate() for number in range(mesh.ndim)]
    own = torch.tensor(counts, dtype=torch.int64, device=parameter.device)
    total: list[int] = DTensor.from_local(own, mesh, placements, run_check=False).full_tensor().tolist()
    return total


def _group_dim(spec: GroupSpec, ndim: int) -> int | None:
    """Along which dimension each index is a group; None where there is no such dimension."""
    if isinstance(spec, Tensor) or spec == "all" or not ndim:
        return None
    return spec % ndim if isinstance(spec, int) else 1 if spec == "columns" else 0
