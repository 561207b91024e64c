"""Magnitude pruning of an embedding table (§4.2), the baseline: keep the rows with the largest norm."""

import torch

from sparsegroup.table import HashEmbedding


@torch.no_grad()
def prune_rows(embedding: HashEmbedding, keep: int) -> None:
    """Set all but the `keep` rows of largest Euclidean norm to zero, in place. Ties fall to the lower key.

    Args:
        embedding: The table.
        keep: Number of rows to keep.

    Raises:
        ValueError: `keep` is negative or larger than the number of live rows.
    """
    if not 0 <= keep <= embedding.num_live:
        raise ValueError(f"keep must be in [0, {embedding.num_live}], got {keep}")
    if not embedding.num_live:
        return
    parts = [(keys, torch.linalg.vector_norm(vectors, dim=1)) for keys, vectors in embedding.items()]
    keys, norms = (torch.cat(part) for part in zip(*parts, strict=True))
    by_key = torch.argsort(keys)
    keys, norms = keys[by_key], norms[by_key]
    dropped = keys[torch.argsort(norms, descending=True, stable=True)[keep:]]
    embedding.assign(dropped, torch.zeros(len(dropped), embedding.dim))
