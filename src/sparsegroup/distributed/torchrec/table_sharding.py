"""The part of a sharding plan that is about tables: TorchRec's planner knows no costs of customized kernels."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec
from torchrec import EmbeddingCollection
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan, ShardingType
from torchrec.modules.embedding_configs import EmbeddingConfig, data_type_to_dtype


@dataclass
class TableSharding(ParameterSharding):  # type: ignore[misc]
    """How a table lies on the ranks: by rows, each on the rank that the hash of its key names.

    Attributes:
        options: Arguments of its `HashEmbedding`.
    """

    sharding_type: str = ShardingType.ROW_WISE.value
    compute_kernel: str = EmbeddingComputeKernel.CUSTOMIZED_KERNEL.value
    options: Mapping[str, Any] = field(default_factory=dict)


def plan_tables(
    model: nn.Module,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    process_group: dist.ProcessGroup | None = None,
    device: torch.device | str = "cpu",
    **every: Any,
) -> ShardingPlan:
    """A plan by which every `EmbeddingCollection` of a model becomes sharded tables, one per `EmbeddingConfig`.

    Merge it with that of TorchRec's planner, if the model has other modules that shall be sharded:
    `plan.plan.update(plan_tables(model).plan)`.

    Args:
        model: Not changed.
        options: Name of a table → arguments of its `HashEmbedding`, beside those of all.
        process_group: That of `DistributedModelParallel`; None: all ranks.
        device: Where the tables will be: the one that `DistributedModelParallel` is given.
        **every: Arguments of the `HashEmbedding` of all tables.

    Raises:
        ValueError: The model has no `EmbeddingCollection`, or `options` name a table that there is not.
    """
    ranks = dist.get_world_size(process_group)
    kind, plans, unknown = torch.device(device).type, {}, set(options or {})
    for path, module in model.named_modules():
        if not isinstance(module, EmbeddingCollection):
            continue
        plans[path] = EmbeddingModuleShardingPlan()
        for config in module.embedding_configs():
            own = {**every, **(options or {}).get(config.name, {})}
            unknown.discard(config.name)
            plans[path][config.name] = TableSharding(
                ranks=list(range(ranks)), sharding_spec=_even_rows(config, ranks, kind), options=own
            )
    if not plans:
        raise ValueError(f"{type(model).__name__} holds no EmbeddingCollection: there is nothing to plan")
    if unknown:
        names = ", ".join(repr(name) for plan in plans.values() for name in plan)
        raise ValueError(f"options has {sorted(unknown)[0]!r}, but the model's tables are {names}")
    return ShardingPlan(plan=plans)


def _even_rows(config: EmbeddingConfig, ranks: int, device: str) -> EnumerableShardingSpec:
    """What TorchRec wants to know of the shards of a weight. Those of a table have no fixed rows."""
    size = -(-config.num_embeddings // ranks)
    return EnumerableShardingSpec(
        [
            ShardMetadata(
                shard_offsets=[min(rank * size, config.num_embeddings), 0],
                shard_sizes=[max(0, min(size, config.num_embeddings - rank * size)), config.embedding_dim],
                placement=f"rank:{rank}/{device}",
            )
            for rank in range(ranks)
        ]
    )


def table_arguments(config: EmbeddingConfig, options: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The arguments of the `HashEmbedding` of a config: of its dtype, and new rows start as its weight would.

    Args:
        config: TorchRec's.
        options: Those that are given.
        number: The place of the table in its collection, which is its seed, so that tables start differently.

    Raises:
        ValueError: New rows would start in a range that is not around zero, or by a function; or options that are
            decided here.
    """
    for name in ("process_group", "per_rank", "device", "reduction", "wire_dtype", "fallback"):
        if name in options:
            raise ValueError(
                f"the table {config.name!r}: {name!r} is no option of a table that TorchRec shards; its ranks, device "
                "and exchange are those of DistributedModelParallel, and the ranks' fallback vectors would differ"
            )
    arguments = {"dtype": data_type_to_dtype(config.data_type), "seed": number, **options}
    if "std" not in options:
        if getattr(config.init_fn, "func", None) is not torch.nn.init.uniform_:
            raise ValueError(
                f"the table {config.name!r}: new rows cannot start by init_fn, {config.init_fn!r}: give `std`, and "
                "`init`, 'normal' or 'uniform'"
            )
        least, most = config.get_weight_init_min(), config.get_weight_init_max()
        if least != -most:
            raise ValueError(
                f"the table {config.name!r}: new rows start around zero, but weight_init_min and weight_init_max are "
                f"{least:.3g} and {most:.3g}: make them symmetric, or give `std`"
            )
        arguments |= {"std": most / 3**0.5, "init": options.get("init", "uniform")}
    return arguments
