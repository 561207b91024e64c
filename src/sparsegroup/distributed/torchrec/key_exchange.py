"""TorchRec's row-wise exchange of features and vectors, with keys going where our tables have their rows."""

import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor
from torchrec.distributed.embedding_sharding import BaseSparseFeaturesDist
from torchrec.distributed.sharding.rw_sequence_sharding import RwSequenceEmbeddingSharding
from torchrec.distributed.sharding.rw_sharding import RwSparseFeaturesDist
from torchrec.distributed.types import Awaitable

from sparsegroup.table.key_array import widened
from sparsegroup.table.sharded.routing import Routing


class HashFeaturesDist(RwSparseFeaturesDist):  # type: ignore[misc]
    """Sends each value of a batch to the rank that the hash of this key names.

    TorchRec's own cuts the values from 0 to `num_embeddings` into ranges; a table has any 64-bit key.
    """

    def forward(self, sparse_features: KeyedJaggedTensor) -> Awaitable[Awaitable[KeyedJaggedTensor]]:
        """What has come for this rank, `[features, batch of all ranks]`, as soon as one waits for it."""
        by_rank, self.unbucketize_permute_tensor = _by_rank(sparse_features, Routing(self._world_size))
        return self._dist(by_rank)


class HashRowWiseSharding(RwSequenceEmbeddingSharding):  # type: ignore[misc]
    """Row-wise sharding by the hash of keys: TorchRec's, but for where a key goes."""

    def create_input_dist(self, device: torch.device | None = None) -> BaseSparseFeaturesDist[KeyedJaggedTensor]:
        """See TorchRec."""
        return HashFeaturesDist(
            pg=self._pg,
            num_features=self._get_num_features(),
            feature_hash_sizes=self._get_feature_hash_sizes(),
            device=device if device is not None else self._device,
            is_sequence=True,
        )


def _by_rank(features: KeyedJaggedTensor, routing: Routing) -> tuple[KeyedJaggedTensor, Tensor]:
    """A batch with all features of rank 0 first, and where each of its values has gone, `[n]`."""
    values, lengths = widened(features.values()), features.lengths().view(-1)
    owners = torch.from_numpy(routing.ranks_of(values.cpu().numpy())).to(values.device)
    bags = torch.arange(len(lengths), device=values.device).repeat_interleave(lengths)
    sizes = torch.bincount(owners * len(lengths) + bags, minlength=routing.ranks * len(lengths))
    order = torch.argsort(owners, stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    sent = KeyedJaggedTensor(
        keys=features.keys() * routing.ranks,
        values=values[order],
        lengths=sizes.to(lengths.dtype),
        stride=features.stride(),
    )
    return sent, places
