"""The recommended recipe, and pruning with the same freedom: what is given, and what is chosen at each feature rate."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from sparsegroup.training import Config
from sparsegroup_paper.choices import NO_PENALTY, over_time, tuned
from sparsegroup_paper.contenders import RATES, Contender, rate_names
from sparsegroup_paper.lab import Lab
from sparsegroup_paper.published import published
from sparsegroup_paper.runs import Method, Plain, Pruned

RECIPE = "Recommended recipe"
UNTUNED = f"{RECIPE}, nothing chosen"
PRUNED_BY_RATE = "Pruned and fine-tuned, fallback, chosen as the recipe is"
PRUNED_UNTUNED = "Pruned and fine-tuned, fallback, nothing chosen"

OPTIMIZER, LEARNING_RATE = "adagrad", 0.03
"""What the recipe begins with, and stays with unless something else is better on each tenth."""

FACTORS = (1 / 3, 1.0, 3.0)
"""Learning rates that are tried, by the best one at λ = 0, rounded to a digit: half a decade down and up."""

FURTHER_L2S = (1e-4, 1e-5)
"""λ2 that are tried when optimizer and learning rate are chosen."""

FIRST_SHARE = 0.1
"""Share of the samples for fine-tuning while optimizer and learning rate are chosen."""

TRIALS = 9
"""At each rate, as other contenders have."""

Trial = tuple[Config, Method]


def recipe(lab: Lab) -> Contender:
    """`TargetRate`, hard threshold, fallback vectors; optimizer, learning rate and the rest by validation."""
    return _by_rate(
        lab,
        RECIPE,
        _sized,
        lambda trial: [
            (trial[0].replace(penalty="mcp"), Plain()),
            *((trial[0].replace(l2=l2), Plain()) for l2 in FURTHER_L2S),
        ],
    )


def untuned(lab: Lab) -> Contender:
    """The recipe as it begins."""
    return _as_it_begins(lab, UNTUNED, _sized)


def pruned_untuned(lab: Lab) -> Contender:
    """Magnitude pruning with the recipe's beginning."""
    return _as_it_begins(lab, PRUNED_UNTUNED, _pruned)


def _as_it_begins(lab: Lab, name: str, at: Callable[[Config, float], Trial]) -> Contender:
    trials = [at(_start(lab), rate) for rate in RATES]
    samples = lab.samples(trials, name=name)
    return Contender(name, rate_names(), tuple(samples), tuple(_in_words(*trial) for trial in trials))


def pruned_by_rate(lab: Lab) -> Contender:
    """Magnitude pruning with fallback vectors, with the recipe's freedom and its beginning."""
    shares = [share for share in published().setup.fine_tune_shares if share != FIRST_SHARE]

    def others(trial: Trial) -> list[Trial]:
        config, method = trial
        assert isinstance(method, Pruned)
        return [(config, Pruned(method.keep, share)) for share in shares]

    return _by_rate(lab, PRUNED_BY_RATE, _pruned, others)


def better_everywhere(aucs: Sequence[npt.NDArray[np.float64]]) -> int:
    """The number of the trial to take: the first, unless others are better on each tenth; the best of these by mean."""
    challengers = [number for number, of in enumerate(aucs) if (of > aucs[0]).all()]
    return max(challengers, key=lambda number: aucs[number].mean(), default=0)


def _by_rate(
    lab: Lab, name: str, at: Callable[[Config, float], Trial], others: Callable[[Trial], Sequence[Trial]]
) -> Contender:
    """At each rate: optimizer and learning rate first, then what else is tried with these."""
    configs = _configs(lab)
    first = [[at(config, rate) for config in configs] for rate in RATES]
    best = _best(lab, first, f"optimizer and learning rate: {name}")
    more = [[trial, *others(trial)[: TRIALS - len(configs)]] for trial in best]
    chosen = _best(lab, more, f"the rest: {name}")
    samples = lab.samples(chosen, name=name)
    return Contender(name, rate_names(), tuple(samples), tuple(_in_words(*trial) for trial in chosen))


def _best(lab: Lab, by_rate: Sequence[Sequence[Trial]], name: str) -> list[Trial]:
    """The one to take of the trials at each rate, all of which are run together: pruning shares its training."""
    aucs = iter(over_time(lab, [trial for trials in by_rate for trial in trials], name))
    return [trials[better_everywhere([next(aucs) for _ in trials])] for trials in by_rate]


def _configs(lab: Lab) -> list[Config]:
    """What the recipe begins with, and others around the learning rates of Adam and Adagrad."""
    found = {_start(lab).as_yaml(): _start(lab)}
    for optimizer in ("adam", "adagrad"):
        config = tuned(lab, lab.config.replace(optimizer=optimizer, **NO_PENALTY)).replace(fallback=True)
        assert config.optimizer.lr is not None
        for factor in FACTORS:
            one = config.replace(lr=float(f"{factor * config.optimizer.lr:.1g}"))
            found.setdefault(one.as_yaml(), one)
    return list(found.values())


def _start(lab: Lab) -> Config:
    return lab.config.replace(optimizer=OPTIMIZER, **NO_PENALTY).replace(lr=LEARNING_RATE, fallback=True)


def _sized(config: Config, rate: float) -> Trial:
    return config.replace(target_rate=rate, penalty="hard"), Plain()


def _pruned(config: Config, rate: float) -> Trial:
    return config, Pruned(rate, FIRST_SHARE)


def _in_words(config: Config, method: Method) -> str:
    optimizer = config.optimizer
    words = f"{optimizer.name}, lr = {optimizer.lr:g}"
    if isinstance(method, Pruned):
        return f"{words}, fine-tuned on {method.fine_tune:.0%}"
    return f"{words}, λ2 = {optimizer.l2:g}, {optimizer.penalty.name}"
