"""DeepLight's pruning of embeddings (Deng et al., "DeepLight", WSDM 2021): single weights, while training goes on.

At step k the smallest weights by magnitude are set to zero, so many that the share S (1 - D^(k/Ω)) of all is zero, with
D = .99 and Ω = 100; they are trained on and may grow again before the next time. Pruning is done every tenth step.
DeepLight takes some 100,000 steps to come near S. A pass of one epoch may have a hundredth of them, so Ω is chosen for
the pass: its last step comes to `REACHED` of S, and then the rest is pruned.
"""

import math

import numpy as np
import torch

from sparsegroup.table import HashEmbedding
from sparsegroup_paper.learner import Learner

DAMPING = 0.99
EVERY = 10
REACHED = 0.99


def deeplight(learner: Learner, sparsity: float, stop: int) -> None:
    """Train on the first `stop` rows, pruning on the way.

    Args:
        learner: Freshly initialized.
        sparsity: S, the share of the weights of all features seen that are zero at the end, in [0, 1).
        stop: Training rows.
    """
    table = learner.model.table
    steps = math.ceil(stop / learner.config.training.batch_size)
    omega = steps * math.log(DAMPING) / math.log(1 - REACHED)
    done = 0

    def after_batch(samples: int, loss: float) -> None:
        nonlocal done
        done += 1
        if done % EVERY == 0:
            prune_weights(table, sparsity * (1 - DAMPING ** (done / omega)))

    learner.fit(0, stop, after_batch)
    prune_weights(table, sparsity)


@torch.no_grad()
def prune_weights(table: HashEmbedding, sparsity: float) -> None:
    """Set the smallest weights by magnitude to zero, so that the share `sparsity` of those of all features seen is.

    Args:
        table: The table.
        sparsity: In [0, 1).
    """
    parts = list(table.items())
    if not parts:
        return
    keys, vectors = (torch.cat(part) for part in zip(*parts, strict=True))
    weights = vectors.abs().flatten().numpy()
    keep = round((1 - sparsity) * table.num_seen * table.dim)
    drop = len(weights) - keep  # those of rows that are zero are dropped already
    if drop <= 0:
        return
    threshold = float(np.partition(weights, drop - 1)[drop - 1])
    small = vectors.abs() <= threshold
    changed = (small & (vectors != 0)).any(1)
    table.assign(keys[changed], torch.where(small, 0.0, vectors)[changed])
