"""Adam pruned to Group Adam's feature rates with each fine-tuning schedule: Tables 2 and 8 come from this."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparsegroup.training import Config
from sparsegroup_paper.choices import TRIAL_SEEDS
from sparsegroup_paper.lab import Lab, Sample
from sparsegroup_paper.published import published
from sparsegroup_paper.runs import Method, Plain, Pruned


@dataclass(frozen=True)
class Point:
    """Group Adam at one λ21, and Adam at its feature rate.

    Attributes:
        l21: λ21.
        group: Group Adam's outcomes.
        pruned: Share of the samples for fine-tuning → Adam's outcomes on the test rows.
        validation: The same → mean AUC on the last tenth of the training rows.
        share: The one with the best of these.
    """

    l21: float
    group: Sample
    pruned: Mapping[float, Sample]
    validation: Mapping[float, float]
    share: float

    @property
    def adam(self) -> Sample:
        """Adam with the chosen schedule."""
        return self.pruned[self.share]


def prune_alike(lab: Lab, config: Config, values: Sequence[float]) -> list[Point]:
    """Group Adam at several λ21, and Adam pruned to as many vectors with each seed.

    Args:
        lab: Where it is run.
        config: Settings of Adam, with a learning rate and no λ.
        values: λ21.
    """
    shares = published().setup.fine_tune_shares
    groups = lab.samples([(config.replace(l21=value), Plain()) for value in values], name="Group Adam")
    # No further fine-tuning is tried on the test rows than is shown: all schedules are, as in Table 8.
    wanted: list[tuple[Config, Method | Sequence[Method]]] = []
    trials: list[tuple[Config, Method]] = []
    for group in groups:
        for share in shares:
            keeps = [outcome.live / max(1, outcome.seen) for outcome in group.outcomes]
            wanted.append((config, [Pruned(keep, share) for keep in keeps]))
            trials.append((config, Pruned(round(float(np.mean(keeps)), 9), share)))
    seeds = lab.seeds[:TRIAL_SEEDS]
    together = [*lab.runs(wanted), *lab.runs(trials, validate=True, seeds=seeds)]  # for there may be few of each
    lab.carry_out([run for runs in together for run in runs], "Adam, pruned")
    pruned = lab.samples(wanted, name="Adam, pruned")
    validated = lab.samples(trials, validate=True, name="schedules", seeds=seeds)
    points = []
    for number, (value, group) in enumerate(zip(values, groups, strict=True)):
        part = slice(number * len(shares), (number + 1) * len(shares))
        validation = dict(zip(shares, (sample.auc for sample in validated[part]), strict=True))
        share = max(shares, key=lambda share: validation[share])
        points.append(Point(value, group, dict(zip(shares, pruned[part], strict=True)), validation, share))
    return points
