"""The recommended recipe, and pruning with the same freedom: all choices made at each feature rate, over time."""

from collections.abc import Callable, Sequence

import numpy as np

from sparsegroup.training import Config
from sparsegroup_paper.choices import NO_PENALTY, over_time, tuned
from sparsegroup_paper.contenders import RATES, Contender, rate_names
from sparsegroup_paper.lab import Lab
from sparsegroup_paper.published import published
from sparsegroup_paper.runs import Method, Plain, Pruned

RECIPE = "Recommended recipe"
PRUNED_BY_RATE = "Pruned and fine-tuned, fallback, all chosen at each rate"

FACTORS = (1 / 3, 1.0, 3.0)
"""Learning rates that are tried, by the best one at λ = 0, rounded to a digit: half a decade down and up."""

FURTHER_L2S = (1e-5, 1e-4)
"""λ2 that are tried when optimizer and learning rate are chosen."""

FIRST_SHARE = 0.1
"""Share of the samples for fine-tuning while optimizer and learning rate are chosen."""

Trial = tuple[Config, Method]


def recipe(lab: Lab) -> Contender:
    """`TargetRate`, hard threshold, fallback vectors; Adam or Adagrad, learning rate and the rest by validation."""
    return _by_rate(
        lab,
        RECIPE,
        lambda config, rate: (config.replace(target_rate=rate, penalty="hard"), Plain()),
        lambda trial: [
            (trial[0].replace(penalty="mcp"), Plain()),
            *((trial[0].replace(l2=l2), Plain()) for l2 in FURTHER_L2S),
        ],
    )


def pruned_by_rate(lab: Lab) -> Contender:
    """Magnitude pruning with fallback vectors, as freely chosen."""
    shares = [share for share in published().setup.fine_tune_shares if share != FIRST_SHARE]

    def others(trial: Trial) -> list[Trial]:
        config, method = trial
        assert isinstance(method, Pruned)
        return [(config, Pruned(method.keep, share)) for share in shares]

    return _by_rate(lab, PRUNED_BY_RATE, lambda config, rate: (config, Pruned(rate, FIRST_SHARE)), others)


def _by_rate(
    lab: Lab, name: str, at: Callable[[Config, float], Trial], others: Callable[[Trial], Sequence[Trial]]
) -> Contender:
    """At each rate: optimizer and learning rate first, then what else is tried with these."""
    configs = _configs(lab)
    first = [at(config, rate) for rate in RATES for config in configs]
    aucs = np.reshape(over_time(lab, first, f"optimizer and learning rate: {name}"), (len(RATES), len(configs)))
    best = [first[row * len(configs) + int(of.argmax())] for row, of in enumerate(aucs)]
    more = [others(trial) for trial in best]
    of_more = iter(over_time(lab, [trial for trials in more for trial in trials], f"the rest: {name}"))
    chosen = []
    for trial, further, of in zip(best, more, aucs, strict=True):
        found = [float(of.max()), *(next(of_more) for _ in further)]
        chosen.append([trial, *further][int(np.argmax(found))])
    samples = lab.samples(chosen, name=name)
    return Contender(name, rate_names(), tuple(samples), tuple(_in_words(*trial) for trial in chosen))


def _configs(lab: Lab) -> list[Config]:
    found = []
    for optimizer in ("adam", "adagrad"):
        config = tuned(lab, lab.config.replace(optimizer=optimizer, **NO_PENALTY)).replace(fallback=True)
        assert config.optimizer.lr is not None
        found += [config.replace(lr=float(f"{factor * config.optimizer.lr:.1g}")) for factor in FACTORS]
    return found


def _in_words(config: Config, method: Method) -> str:
    optimizer = config.optimizer
    words = f"{optimizer.name}, lr = {optimizer.lr:g}"
    if isinstance(method, Pruned):
        return f"{words}, fine-tuned on {method.fine_tune:.0%}"
    return f"{words}, λ2 = {optimizer.l2:g}, {optimizer.penalty.name}"
