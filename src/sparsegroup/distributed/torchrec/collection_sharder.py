"""The sharder: an `EmbeddingCollection` becomes one whose weights are sharded tables."""

from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _IncompatibleKeys
from torchrec import EmbeddingCollection, KeyedJaggedTensor
from torchrec.distributed.embedding import (
    EmbeddingCollectionContext,
    EmbeddingCollectionSharder,
    ShardedEmbeddingCollection,
)
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.types import ParameterSharding, ShardingEnv, ShardingType

from sparsegroup.distributed.torchrec.key_exchange import HashRowWiseSharding
from sparsegroup.distributed.torchrec.table_lookup import TableLookup
from sparsegroup.distributed.torchrec.table_sharding import TableSharding, table_arguments
from sparsegroup.table import HashEmbedding


class ShardedHashCollection(ShardedEmbeddingCollection):  # type: ignore[misc]
    """TorchRec's `ShardedEmbeddingCollection` over tables.

    Attributes:
        embeddings: Name of a table → its `HashEmbedding`, of which this rank has a part.
    """

    @classmethod
    def create_embedding_sharding(cls, sharding_type: str, *args: Any, **kwargs: Any) -> HashRowWiseSharding:
        """See TorchRec."""
        return HashRowWiseSharding(*args, **kwargs)

    def input_dist(self, ctx: EmbeddingCollectionContext, features: Any) -> Any:
        """See TorchRec.

        Raises:
            ValueError: A batch without samples, for which TorchRec has no result, or features whose batches differ in
                size.
        """
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
        """Nothing: parameters and state dict are those of the tables, which are submodules."""

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Load the tables' state, or the dense weights of an unsharded collection. All ranks have to call it.

        Each rank brings its share of dense weights, as TorchRec's collections do; all their rows then count as seen.
        """
        dense = {name: f"embeddings.{name}.weight" for name in self.embeddings}
        if set(state_dict) != set(dense.values()):
            return super(ShardedEmbeddingCollection, self).load_state_dict(state_dict, strict, assign)
        for name, entry in dense.items():
            table, weight = self.embeddings[name], state_dict[entry]
            assert isinstance(table, HashEmbedding)
            ids = torch.arange(self._env.rank, len(weight), self._env.world_size)
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

    def __init__(self) -> None:
        super().__init__()

    def shard(
        self,
        module: EmbeddingCollection,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> ShardedHashCollection:
        """The sharded collection. All ranks have to call it.

        Raises:
            ValueError: The plan is another's than `plan_tables`, the collection is one that tables cannot stand in for,
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
        """By rows alone."""
        return [ShardingType.ROW_WISE.value]

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        """The customized one alone."""
        return [EmbeddingComputeKernel.CUSTOMIZED_KERNEL.value]

    @property
    def sharded_module_type(self) -> type[ShardedHashCollection]:
        """See TorchRec."""
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
