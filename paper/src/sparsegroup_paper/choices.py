"""Choices of learning rates and λ: made on the last tenth of the training rows, or taken from the paper."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from sparsegroup.errors import UserError
from sparsegroup.training import Config
from sparsegroup_paper.lab import Lab
from sparsegroup_paper.published import BASES, published
from sparsegroup_paper.runs import Method, Sample

Strength = Literal["l1", "l21"]

NO_PENALTY: dict[str, Any] = {"l1": 0.0, "l21": 0.0, "l2": 0.0}

TRIAL_SEEDS = 2
"""Seeds of each trial, except of the learning rates at λ = 0, which take all."""

TRIALS = 5
"""Values that are tried in a choice."""

HIGHEST_RATE, LOWEST_RATE = 0.9, 0.005
"""Feature rates that a grid of λ21 goes from and to."""

TOLERANCE = 0.001
"""AUC that is given away for a sparser model."""

FINER = (0.2, 0.5, 0.7, 2.0, 5.0)
"""Learning rates tried next to the best one, relative to it."""


def network_of(config: Config) -> str:
    """Whose of the paper's networks it is; UserError if the paper has no figures of it."""
    name = config.model.name
    if name not in published()["datasets"]:
        raise UserError(f"model.name: the paper's networks are mlp, opnn and dcn, and {name} has no figures there")
    return name


def learning_rate_trials(lab: Lab, config: Config) -> list[tuple[float, Sample]]:
    """Each learning rate of the paper's grid with its validation AUCs, at λ = 0."""
    rates = published()["setup"]["learning_rate_grid"]
    configs = [config.replace(**NO_PENALTY, lr=rate) for rate in rates]
    return list(zip(rates, lab.validated(configs, f"learning rate of {_name(config)}"), strict=True))


def best(trials: Sequence[tuple[float, Sample]]) -> float:
    """The value with the best mean AUC."""
    return trials[_best([sample for _, sample in trials])][0]


def _best(samples: Sequence[Sample]) -> int:
    return int(np.argmax(_aucs(samples)))


def _aucs(samples: Sequence[Sample]) -> list[float]:
    """Mean AUCs; -1 of what has diverged."""
    return [float(np.nan_to_num(sample.auc, nan=-1.0)) for sample in samples]


def tuned(lab: Lab, config: Config) -> Config:
    """The config with the learning rate of its network and base optimizer: the published one, or the best at λ = 0."""
    name = config.optimizer.name
    if lab.recipe == "paper" and name in BASES:
        return config.replace(lr=published()["learning_rates"][network_of(config)][name])
    return config.replace(lr=best(learning_rate_trials(lab, config)))


def tuned_on_dcn(lab: Lab) -> Config:
    """Adam without λ and with its learning rate, always on DCN."""
    return tuned(lab, lab.config.replace(model="dcn", dim=None, optimizer="adam", **NO_PENALTY))


def choose(lab: Lab, trials: Sequence[tuple[Config, Method]], name: str) -> int:
    """The number of the trial with the best mean validation AUC, over the first seeds."""
    return _best(lab.samples(trials, validate=True, name=name, seeds=lab.seeds[:TRIAL_SEEDS]))


def tuned_finer(lab: Lab, config: Config) -> Config:
    """A config whose learning rate is also tried between its neighbours, as often as λ21 is where there is one."""
    assert config.optimizer.lr is not None
    rates = [config.optimizer.lr, *(float(f"{factor * config.optimizer.lr:.3g}") for factor in FINER)]
    configs = [config.replace(lr=rate) for rate in rates]
    return configs[_best(lab.validated(configs, f"finer learning rate of {_name(config)}", lab.seeds[:TRIAL_SEEDS]))]


def grid(lab: Lab, config: Config, strength: Strength = "l21") -> tuple[float, ...]:
    """Values of λ that lead to feature rates from .9 to .005: the paper's, and further ones, 1 and 5 of each decade.

    They are found with the first seed by the feature rate on the training rows, which says nothing of the test rows.
    The recipe "paper" has no further ones.
    """
    papers = [point["l21"] for point in published()["sparsity"][network_of(config)]]
    found = _rates(lab, config, papers, strength)
    if lab.recipe == "paper":
        return tuple(found)
    while found[min(found)] < HIGHEST_RATE and min(found) > 1e-8:
        found |= _rates(lab, config, _beyond(min(found), -1, lab.workers), strength)
    while found[max(found)] > LOWEST_RATE and max(found) < 1e3:
        found |= _rates(lab, config, _beyond(max(found), 1, lab.workers), strength)
    # What was tried beyond the ends because there was a process for it is left out.
    first = max((value for value, rate in found.items() if rate >= HIGHEST_RATE), default=min(found))
    last = min((value for value, rate in found.items() if rate <= LOWEST_RATE), default=max(found))
    return tuple(value for value in sorted(found) if first <= value <= last or value in papers)


def _rates(lab: Lab, config: Config, values: Sequence[float], strength: Strength = "l21") -> dict[float, float]:
    """Values of λ → feature rate with the first seed."""
    configs = [config.replace(**{strength: value}) for value in values]
    samples = lab.plain(configs, f"grid of {strength} for {_name(config)}", lab.seeds[:1])
    return {value: max(sample.rate, 1e-9) for value, sample in zip(values, samples, strict=True)}


def _beyond(value: float, direction: int, count: int) -> list[float]:
    """The next values up or down among 1 and 5 of each decade."""
    result = []
    for _ in range(count):
        is_one = abs(np.log10(value) % 1 - 0.5) > 0.3
        factor = (5.0 if is_one else 2.0) if direction > 0 else (0.5 if is_one else 0.2)
        value = float(f"{value * factor:.0e}")
        result.append(value)
    return result


def mid_strength(lab: Lab, config: Config, values: Sequence[float], strength: Strength = "l21") -> float:
    """The value of a grid that leads nearest to a feature rate of .1."""
    rates = _rates(lab, config, values, strength)
    return min(rates, key=lambda value: abs(np.log(rates[value] / 0.1)))


def choose_l21(lab: Lab, config: Config) -> float:
    """The λ21 that leads to the fewest features at no more than .001 less validation AUC than the best one.

    As many values as there are trials of a learning rate, spread over the grid's feature rates.
    """
    values = grid(lab, config)
    rates = np.log(list(_rates(lab, config, values).values()))
    targets = np.linspace(np.log(HIGHEST_RATE), np.log(LOWEST_RATE), TRIALS + 2)[1:-1]
    chosen = sorted({values[int(np.abs(rates - target).argmin())] for target in targets})
    configs = [config.replace(l21=value) for value in chosen]
    samples = lab.validated(configs, f"λ21 of {_name(config)}", lab.seeds[:TRIAL_SEEDS])
    aucs = _aucs(samples)
    return max(value for value, auc in zip(chosen, aucs, strict=True) if auc >= max(aucs) - TOLERANCE)


def _name(config: Config) -> str:
    return f"{config.optimizer.name}, {config.model.name}"
