"""Sharded tables in the place of TorchRec's `EmbeddingCollection`, for `DistributedModelParallel`."""

from sparsegroup.errors import MissingExtraError

try:
    import fbgemm_gpu  # noqa: F401
    import torchrec.distributed  # noqa: F401
except ImportError as error:
    raise MissingExtraError(
        "sparsegroup.integrations.torchrec needs torchrec and fbgemm_gpu, which cannot be imported here "
        f"({error}): pip install torchrec; on the CPU, pip install fbgemm-gpu-cpu, and pip install --no-deps torchrec"
    ) from error

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec
from torch.nn.modules.module import _IncompatibleKeys
from torchrec import EmbeddingCollection, KeyedJaggedTensor
from torchrec.distributed.embedding import (
    EmbeddingCollectionContext,
    EmbeddingCollectionSharder,
    ShardedEmbeddingCollection,
)
from torchrec.distributed.embedding_sharding import BaseSparseFeaturesDist
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.sharding.rw_sequence_sharding import RwSequenceEmbeddingSharding
from torchrec.distributed.sharding.rw_sharding import RwSparseFeaturesDist
from torchrec.distributed.types import (
    Awaitable,
    EmbeddingModuleShardingPlan,
    ParameterSharding,
    ShardingEnv,
    ShardingPlan,
    ShardingType,
)
from torchrec.modules.embedding_configs import EmbeddingConfig, data_type_to_dtype

from sparsegroup.table import HashEmbedding
from sparsegroup.table.lookup.lookup import as_int64
from sparsegroup.table.sharded.routing import Routing

__all__ = ["HashEmbeddingCollectionSharder", "TableSharding", "plan_tables"]


@dataclass
class TableSharding(ParameterSharding):  # type: ignore[misc]
    """How a table is divided among the ranks: by rows, each on the rank that the hash of its key names.

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
        options: Name of a table → arguments of its `HashEmbedding`, added to the arguments of all tables.
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
    """TorchRec's description of the shards of a weight. A table's shards have no fixed rows."""
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

    `number`, the place of the table in its collection, is its seed, so that tables start differently. Raises ValueError
    if new rows would start by a function or in a range not around zero, or for options that are decided here.
    """
    for name in ("process_group", "per_rank", "device", "reduction", "wire_dtype", "fallback"):
        if name in options:
            raise ValueError(
                f"the table {config.name!r}: {name!r} is no option of a table that TorchRec shards; its ranks, device "
                "and exchange are DistributedModelParallel's, and the ranks' fallback vectors would differ"
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


class HashFeaturesDist(RwSparseFeaturesDist):  # type: ignore[misc]
    """Sends each value of a batch to the rank that the hash of its key names; a table has any 64-bit key.

    TorchRec's own cuts the values from 0 to `num_embeddings` into ranges.
    """

    def forward(self, sparse_features: KeyedJaggedTensor) -> Awaitable[Awaitable[KeyedJaggedTensor]]:
        """What arrives for this rank, `[features, batch of all ranks]`, when it is awaited."""
        by_rank, self.unbucketize_permute_tensor = _by_rank(sparse_features, Routing(self._world_size))
        return self._dist(by_rank)


class HashRowWiseSharding(RwSequenceEmbeddingSharding):  # type: ignore[misc]
    """Row-wise sharding by the hash of keys: TorchRec's, except for the rank of a key."""

    def create_input_dist(self, device: torch.device | None = None) -> BaseSparseFeaturesDist[KeyedJaggedTensor]:
        return HashFeaturesDist(
            pg=self._pg,
            num_features=self._get_num_features(),
            feature_hash_sizes=self._get_feature_hash_sizes(),
            device=device if device is not None else self._device,
            is_sequence=True,
        )


def _by_rank(features: KeyedJaggedTensor, routing: Routing) -> tuple[KeyedJaggedTensor, Tensor]:
    """A batch with all features of rank 0 first, and where each of its values has gone, `[n]`."""
    values, lengths = as_int64(features.values()), features.lengths().view(-1)
    owners = torch.from_numpy(routing.ranks_of(values.cpu().numpy())).to(values.device)
    bags = torch.arange(len(lengths), dtype=torch.int64, device=values.device).repeat_interleave(lengths)
    sizes = torch.bincount(owners * len(lengths) + bags, minlength=routing.ranks * len(lengths))
    order = torch.argsort(owners, stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), dtype=torch.int64, device=order.device)
    sent = KeyedJaggedTensor(
        keys=features.keys() * routing.ranks,
        values=values[order],
        lengths=sizes.to(lengths.dtype),
        stride=features.stride(),
    )
    return sent, places


class TableLookup(nn.Module):
    """Looks the features of a batch up: `tables` are its features' in order, with the number of each."""

    def __init__(self, tables: Sequence[tuple[HashEmbedding, int]]) -> None:
        super().__init__()
        self._tables = list(tables)  # no submodules: the collection has them, under their names

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """The vectors of all values, `[n, dim]`, the first feature's first. All of them belong to this rank."""
        sizes = iter(features.length_per_key())
        of_table = [sum(islice(sizes, number)) for _, number in self._tables]
        keys = torch.split(features.values(), of_table)
        return torch.cat([table.own_vectors(its) for (table, _), its in zip(self._tables, keys, strict=True)])


class ShardedHashCollection(ShardedEmbeddingCollection):  # type: ignore[misc]
    """TorchRec's `ShardedEmbeddingCollection` over tables.

    Attributes:
        embeddings: Name of a table → its `HashEmbedding`, of which this rank has a part.
    """

    @classmethod
    def create_embedding_sharding(cls, sharding_type: str, *args: Any, **kwargs: Any) -> HashRowWiseSharding:
        return HashRowWiseSharding(*args, **kwargs)

    def input_dist(self, ctx: EmbeddingCollectionContext, features: Any) -> Any:
        """ValueError for a batch without samples, for which TorchRec has no result, or batches of different sizes."""
        if isinstance(features, KeyedJaggedTensor):
            if features.variable_stride_per_key():
                raise ValueError(
                    "the features of a KeyedJaggedTensor must have batches of one size, this one's have "
                    f"{features.stride_per_key()}"
                )
            if not features.stride():
                raise ValueError(
                    "TorchRec's sharded collections take no batch without samples: a rank that has none left gives one "
                    "sample of empty bags, and multiplies its loss by 0"
                )
        return super().input_dist(ctx, features)

    def _create_lookups(self) -> None:
        tables = {}
        for number, config in enumerate(self._embedding_configs):
            arguments = table_arguments(config, self.module_sharding_plan[config.name].options, number)
            group, device = self._env.process_group, self._device
            tables[config.name] = HashEmbedding(config.embedding_dim, process_group=group, device=device, **arguments)
        self.embeddings = nn.ModuleDict(tables)
        for sharding in self._sharding_type_to_sharding.values():
            its = [(tables[table.name], len(table.feature_names)) for table in sharding.embedding_tables()]
            self._lookups.append(TableLookup(its))

    def _initialize_torch_state(self, skip_registering: bool = False) -> None:
        """Nothing: parameters and state dict are the tables', which are submodules."""

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Load the tables' state, or the dense weights of an unsharded collection. All ranks must call it.

        Each rank brings its share of dense weights, as TorchRec's collections do; all their rows then count as seen.
        """
        dense = {name: f"embeddings.{name}.weight" for name in self.embeddings}
        if set(state_dict) != set(dense.values()):
            return super(ShardedEmbeddingCollection, self).load_state_dict(state_dict, strict, assign)
        for name, entry in dense.items():
            table, weight = self.embeddings[name], state_dict[entry]
            assert isinstance(table, HashEmbedding)
            ids = torch.arange(self._env.rank, len(weight), self._env.world_size, dtype=torch.int64, device="cpu")
            table.assign(ids, weight.detach()[ids.to(weight.device)])
        return _IncompatibleKeys([], [])

    def reset_parameters(self) -> None:
        """Nothing: rows start when their keys come."""


class HashEmbeddingCollectionSharder(EmbeddingCollectionSharder):  # type: ignore[misc]
    """Shards an `EmbeddingCollection` into tables, by rows.

    The plan is that of `plan_tables`. A collection on the meta device begins with empty tables; of another one the
    weights are kept, and all their rows count as seen. `num_embeddings` limits nothing.

    Examples:
        >>> model = DistributedModelParallel(
        ...     model, plan=plan_tables(model), sharders=[HashEmbeddingCollectionSharder()]
        ... )  # doctest: +SKIP
        >>> optimizer = GroupAdam(param_groups(model.module, l21=1e-3))  # doctest: +SKIP
    """

    def __init__(self) -> None:  # without TorchRec's options, which tables do not have
        super().__init__()

    def shard(
        self,
        module: EmbeddingCollection,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> ShardedHashCollection:
        """The sharded collection. All ranks must call it.

        Raises:
            ValueError: The plan is another's than `plan_tables`, the collection is one that tables cannot replace,
                or an option is out of range.
        """
        _check(module)
        for name, its in params.items():
            if not isinstance(its, TableSharding):
                raise ValueError(
                    f"the table {name!r} is planned as {its.sharding_type}, {its.compute_kernel}: let plan_tables make "
                    "the plan of collections that become tables"
                )
        if env.process_group is None:
            raise ValueError("tables are sharded among the ranks of a process group, and this ShardingEnv has none")
        return ShardedHashCollection(module, params, env, None, device or torch.device("cpu"), module_fqn=module_fqn)

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return [ShardingType.ROW_WISE.value]

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return [EmbeddingComputeKernel.CUSTOMIZED_KERNEL.value]

    @property
    def sharded_module_type(self) -> type[ShardedHashCollection]:
        return ShardedHashCollection


def _check(module: EmbeddingCollection) -> None:
    """Raise ValueError for what TorchRec's kernels would do and tables don't."""
    for config in module.embedding_configs():
        if config.enable_embedding_update:
            raise ValueError(f"the table {config.name!r}: enable_embedding_update is not for tables, see assign")
    for name, parameter in module.named_parameters():
        if hasattr(parameter, "_optimizer_classes"):
            raise ValueError(
                f"{name} has an optimizer of TorchRec's own (apply_optimizer_in_backward); tables are stepped by one "
                "of sparsegroup, over the sharded model's parameters"
            )
