"""The methods that the frontier compares: each at several strengths, tuned with the same number of trials."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from sparsegroup.penalties import PenaltyName
from sparsegroup.training import Config
from sparsegroup_paper.choices import (
    LOWEST_RATE,
    NO_PENALTY,
    TRIAL_SEEDS,
    best,
    choose,
    grid,
    mid_strength,
    tuned,
)
from sparsegroup_paper.frequency import count_keys
from sparsegroup_paper.lab import Lab, Sample
from sparsegroup_paper.published import published
from sparsegroup_paper.runs import CutOff, DeepLight, Gradual, Method, Plain, Pruned

L2S = (0.0, 1e-6, 1e-5, 1e-4)
"""λ2 that are tried for each method; pruning has as many fine-tuning schedules instead."""

SPARSITIES = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999)
"""DeepLight's values of its sparsity S."""

RATES = (0.5, 0.3, 0.1, 0.05, 0.03, 0.01)
"""Feature rates at which the methods are compared, and those that a method is asked for that can be."""

MIDDLE = 0.1
"""Feature rate at which choices are made."""

PRUNED = "Adam, pruned and fine-tuned"
CUT_OFF = "Frequency cut-off"
GROUP_ADAM = "Group Adam, lasso"


@dataclass(frozen=True)
class Contender:
    """A method at several strengths.

    Attributes:
        name: The method, as reports call it.
        strengths: What is varied, in words, by point.
        samples: Each point's sample.
        chosen: Learning rate and the other choice, in words, by point.
    """

    name: str
    strengths: tuple[str, ...]
    samples: tuple[Sample, ...]
    chosen: tuple[str, ...]


def contenders(lab: Lab) -> list[Contender]:
    """All of them on the data set of a lab."""
    adam, adagrad = (lab.config.replace(optimizer=name, **NO_PENALTY) for name in ("adam", "adagrad"))
    result = []
    for label, config in (("Group Adam", adam), ("Group Adagrad", adagrad)):
        for penalty in get_args(PenaltyName):
            result.append(_regularized(lab, f"{label}, {penalty}", config.replace(penalty=penalty), "l21"))
    for label, config in (("Group Adam", adam), ("Group Adagrad", adagrad)):
        for penalty in get_args(PenaltyName):
            result.append(_sized(lab, f"{label}, {penalty}, rate asked for", config, penalty))
        standing_in = config.replace(fallback=True)
        result.append(_sized(lab, f"{label}, hard, rate asked for, fallback", standing_in, "hard"))
    result.append(_pruned(lab, adam, PRUNED))
    result.append(_pruned(lab, adam.replace(fallback=True), f"{PRUNED}, fallback"))
    result.append(_pruned(lab, adam, "Adam, pruned by ‖s‖ and fine-tuned", by="s"))
    result.append(_gradual(lab, adam))
    result.append(_regularized(lab, "Adam, element-wise l1", adam, "l1"))
    result.append(_cut_off(lab, adam))
    result.append(_deeplight(lab, adam))
    return result


def _regularized(lab: Lab, name: str, config: Config, strength: str) -> Contender:
    config = tuned(lab, config)
    middle = mid_strength(lab, config, grid(lab, config, strength), strength)
    config = _tuned_at(lab, config, lambda one: (one.replace(**{strength: middle}), Plain()), name)
    values = grid(lab, config, strength)
    samples = lab.samples([(config.replace(**{strength: value}), Plain()) for value in values], name=name)
    symbol = {"l1": "λ1", "l21": "λ21"}[strength]
    return Contender(
        name, tuple(f"{symbol} = {value:g}" for value in values), tuple(samples), (_chosen(config),) * len(samples)
    )


def _sized(lab: Lab, name: str, config: Config, penalty: PenaltyName) -> Contender:
    """λ21 set along the way, so that a rate is left: `sparsegroup.TargetRate`."""

    def at(one: Config, rate: float) -> Config:
        return one.replace(target_rate=rate, penalty=penalty, fallback=one.model.fallback)

    config = tuned(lab, config)
    config = _tuned_at(lab, config, lambda one: (at(one, MIDDLE), Plain()), name)
    wanted = [(at(config, rate), Plain()) for rate in RATES]
    samples = lab.samples(wanted, name=name)
    return Contender(name, rate_names(), tuple(samples), (_chosen(config),) * len(samples))


def _tuned_at(lab: Lab, config: Config, at: Callable[[Config], tuple[Config, Method]], name: str) -> Config:
    """The learning rate, and then λ2, with the best validation AUC at some strength of the method."""
    rates = published().setup.learning_rate_grid
    wanted = [at(config.replace(lr=rate)) for rate in rates]
    samples = lab.samples(wanted, validate=True, name=f"learning rate: {name}", seeds=lab.seeds[:TRIAL_SEEDS])
    config = config.replace(lr=best(list(zip(rates, samples, strict=True))))
    number = choose(lab, [at(config.replace(l2=l2)) for l2 in L2S], f"λ2: {name}")
    return config.replace(l2=L2S[number])


def _pruned(lab: Lab, config: Config, name: str, by: Literal["x", "s"] = "x") -> Contender:
    config = tuned(lab, config)
    shares = published().setup.fine_tune_shares
    share = shares[choose(lab, [(config, Pruned(MIDDLE, share, by)) for share in shares], f"schedule: {name}")]
    samples = lab.samples([(config, Pruned(rate, share, by)) for rate in RATES], name=name)
    chosen = f"lr = {config.optimizer.lr:g}, fine-tuned on {share:.0%}"
    return Contender(name, rate_names(), tuple(samples), (chosen,) * len(samples))


def _gradual(lab: Lab, config: Config) -> Contender:
    name = "Adam, gradual magnitude pruning"
    config = _tuned_at(lab, tuned(lab, config), lambda one: (one, Gradual(MIDDLE)), name)
    samples = lab.samples([(config, Gradual(rate)) for rate in RATES], name=name)
    return Contender(name, rate_names(), tuple(samples), (_chosen(config),) * len(samples))


def rate_names() -> tuple[str, ...]:
    """The strengths of what can be asked for a rate."""
    return tuple(f"rate = {rate:g}" for rate in RATES)


def _cut_off(lab: Lab, config: Config) -> Contender:
    counts = count_keys(lab.log, lab.log.train_rows)
    shares: Mapping[int, float] = {
        least: len(counts.at_least(least)) / len(counts)
        for least in (factor * 10**power for power in range(9) for factor in (1, 2, 3, 5))
    }
    # The first one that is below the lowest rate is the last one.
    leasts = [least for least in shares if least > 1 and (shares[least] > LOWEST_RATE or not _is_below(shares, least))]
    middle = min(leasts, key=lambda least: abs(shares[least] - MIDDLE))
    config = _tuned_at(lab, tuned(lab, config), lambda one: (one, CutOff(middle)), CUT_OFF)
    samples = lab.samples([(config, CutOff(least)) for least in leasts], name=CUT_OFF)
    return Contender(
        CUT_OFF, tuple(f"seen ≥ {least:,} times" for least in leasts), tuple(samples), (_chosen(config),) * len(samples)
    )


def _is_below(shares: Mapping[int, float], least: int) -> bool:
    """Whether a smaller count leads below the lowest rate already."""
    return any(share <= LOWEST_RATE for count, share in shares.items() if count < least)


def _deeplight(lab: Lab, config: Config) -> Contender:
    name = "DeepLight"
    config = _tuned_at(lab, tuned(lab, config), lambda one: (one, DeepLight(1 - MIDDLE)), name)
    samples = lab.samples([(config, DeepLight(sparsity)) for sparsity in SPARSITIES], name=name)
    return Contender(
        name, tuple(f"{s:g} of the weights" for s in SPARSITIES), tuple(samples), (_chosen(config),) * len(samples)
    )


def _chosen(config: Config) -> str:
    return f"lr = {config.optimizer.lr:g}, λ2 = {config.optimizer.l2:g}"


def of(found: Sequence[Contender], name: str) -> Contender:
    """The one of that name."""
    return next(one for one in found if one.name == name)
