"""Gradual magnitude pruning (Zhu and Gupta, 2017) of whole embedding vectors, on the schedule of `TargetRate`.

The share that is kept falls from 1 to r along r + (1 - r) (1 - p)³, with p the share of the ramp, 80 % of the pass,
that is behind; then it stays. A pruned vector that is trained on again grows from zero and competes with the others
next time.
"""

import math

from sparsegroup.optim.target import RAMP
from sparsegroup.training import prune_rows
from sparsegroup_paper.learner import Learner

TIMES = 50
"""How often vectors are pruned along a pass."""


def gradual(learner: Learner, keep: float, stop: int) -> None:
    """Train on the first `stop` rows, pruning by norm on the way.

    Args:
        learner: Freshly initialized.
        keep: r, the share of the features seen in training whose vectors stay, in (0, 1].
        stop: Training rows.
    """
    table = learner.model.table
    steps = math.ceil(stop / learner.config.training.batch_size)
    ramp, interval = math.ceil(RAMP * steps), max(1, steps // TIMES)
    done = 0

    def prune(share: float) -> None:
        prune_rows(table, min(round(share * table.num_seen), table.num_live))

    def after_batch(samples: int, loss: float) -> None:
        nonlocal done
        done += 1
        if done % interval == 0:
            prune(keep + (1 - keep) * (1 - min(1.0, done / ramp)) ** 3)

    learner.fit(0, stop, after_batch)
    prune(keep)
