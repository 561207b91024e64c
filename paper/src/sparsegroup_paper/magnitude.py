"""The paper's baseline: magnitude pruning of whole embedding vectors, with fine-tuning, as §4.2 describes it."""

from collections.abc import Iterator, Sequence

import torch

from sparsegroup.training import prune_rows
from sparsegroup_paper.learner import Learner
from sparsegroup_paper.runs import Pruned


def magnitude_pruning(learner: Learner, methods: Sequence[Pruned], stop: int) -> Iterator[Pruned]:
    """Train once on the first `stop` rows, and prune and fine-tune in each of the ways asked for.

    A share of the samples, the last ones, is kept for fine-tuning. When the others have been trained on, the top N
    embedding vectors by norm stay and the others are set to zero. Fine-tuning changes both: a pruned feature that
    comes again starts from zero and may grow, and new features come in. So at the end the top N stay again.

    Args:
        learner: Freshly initialized.
        methods: What is asked for.
        stop: Training rows.

    Yields:
        Each of `methods`, when `learner` holds its model.
    """
    size = learner.config.training.batch_size
    trained = 0
    for share in sorted({method.fine_tune for method in methods}, reverse=True):
        # Whole batches, so that the first phase is a part of the plain pass.
        mark = min(stop, round((1 - share) * stop / size) * size) if share else stop
        learner.fit(trained, mark)
        trained = mark
        before = learner.state()
        for method in methods:
            if method.fine_tune == share:
                _prune(learner, method)
                if mark < stop:
                    learner.fit(mark, stop)
                    _prune(learner, method)
                yield method
                learner.restore(before)


def _prune(learner: Learner, method: Pruned) -> None:
    """Keep N vectors: the share of the features seen so far, which at the end are all of the training rows'."""
    table = learner.model.table
    count = min(round(method.keep * table.num_seen), table.num_live)
    if method.by == "x":
        prune_rows(table, count)
    else:
        _prune_by_saliency(learner, count)


@torch.no_grad()
def _prune_by_saliency(learner: Learner, count: int) -> None:
    """Keep the vectors with the largest ‖u - σx‖; ties fall to the lower key."""
    table = learner.model.table
    parts = [keys for keys, _ in table.items()]
    if not parts:
        return
    keys = torch.cat(parts).sort().values
    (census,) = learner.optimizer.census(0)
    saliency = torch.from_numpy(census.critical[table.table.find(keys.numpy())])
    dropped = keys[torch.argsort(saliency, descending=True, stable=True)[count:]]
    table.assign(dropped, torch.zeros(len(dropped), table.dim))
