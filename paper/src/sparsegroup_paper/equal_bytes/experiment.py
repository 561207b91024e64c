"""The contest: AUC at equal served bytes, of published ways to a small embedding table and of this library."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter

import numpy as np

from sparsegroup.data import ClickLogError
from sparsegroup.training import Config
from sparsegroup_paper.choices import NO_PENALTY
from sparsegroup_paper.equal_bytes.methods import CONTESTANTS, FULL
from sparsegroup_paper.equal_bytes.ours import FIXED, VARIANTS
from sparsegroup_paper.equal_bytes.parts import Precision
from sparsegroup_paper.equal_bytes.training import CALLS
from sparsegroup_paper.lab import TRIAL_ROWS, Lab
from sparsegroup_paper.runs import Compact, Method, Sample
from sparsegroup_paper.section import Figure, Row, Section, Series, table
from sparsegroup_paper.statistics import COLUMNS, STATISTICS, Versus, tally, versus

SHARES = {0.03: (0.1, 0.03, 0.01), 0.003: (0.003, 0.001)}
"""Budget at which choices are made → the budgets that they are for, as shares of the dense float32 table."""

RATES = (
    *(("adam", rate) for rate in (0.001, 0.003, 0.01, 0.03)),
    *(("adagrad", rate) for rate in (0.01, 0.03, 0.1, 0.3)),
)
"""Optimizers and learning rates that are tried for each method."""

FINER = (0.5, 0.7, 1.4, 2.0)
"""Learning rates tried next to the best one, relative to it, of methods without a main setting."""

LONG_ROWS = 1_000_000
"""On a log of more training rows, methods are run in int8 only, and of our variants the chosen and the fixed."""

FIRST_IN_TRIALS = "the one that trials rank first"


@dataclass(frozen=True)
class Chosen:
    """The optimizer, its learning rate and the main setting of a method, chosen at a budget by its `trial`."""

    name: str
    share: float
    config: Config
    setting: float | None = None
    trial: Sample | None = None

    @property
    def auc(self) -> float:
        """On the held-out rows; -1 where there is none."""
        return -1.0 if self.trial is None else float(np.nan_to_num(self.trial.auc, nan=-1.0))

    def at(self, share: float, precision: Precision) -> tuple[Config, Method]:
        """What is run at a budget."""
        return self.config, Compact(self.name, share, precision, self.setting)

    @property
    def cells(self) -> Row:
        """A row of the table of choices."""
        optimizer, contestant, auc = self.config.optimizer, CONTESTANTS[self.name], self.auc if self.auc >= 0 else None
        return self.share, self.name, optimizer.name, optimizer.lr, contestant.setting or None, self.setting, auc


@dataclass(frozen=True)
class Point:
    """A method at a budget, served in a precision."""

    name: str
    share: float
    precision: Precision
    sample: Sample

    @property
    def exists(self) -> bool:
        """Whether the method can be so small, and has not diverged."""
        return bool(np.isfinite(self.sample.auc))

    @property
    def is_ours(self) -> bool:
        return CONTESTANTS[self.name].is_ours

    @property
    def cells(self) -> Row:
        """A row of the table of points."""
        if not self.exists:
            return self.name, self.precision, self.share, *(None,) * 8
        of, mean = self.sample.auc_cells, self.sample.mean
        costs = round(mean("peak_bytes")), mean("training_seconds"), 1e6 * mean("latency_1"), 1e6 * mean("latency_512")
        served = round(mean("served_bytes"))
        return self.name, self.precision, self.share, served, *of, mean("log_loss"), *costs


def check(lab: Lab) -> None:
    """Raise ClickLogError unless rows have one value of each field and one label, and all vectors one size."""
    log, model = lab.log, lab.config.model
    if log.lists:
        raise ClickLogError(
            f"{log.name}: bytes compares methods for fields of one value, and {', '.join(log.lists)} has several a "
            "row; leave such columns out by a schema (`sparsegroup columns`)"
        )
    if model.pairs or model.dims or not log.binary or log.tasks:
        raise ClickLogError(
            f"{log.name}: bytes compares methods on one label of 0 and 1 and vectors of one size, without pairs of "
            "fields; leave `pairs` and `dims` out"
        )


def choices(lab: Lab, share: float) -> list[Chosen]:
    """What each method is run with, chosen at a budget on the last tenth of the training rows."""
    has_share = share == next(iter(SHARES))
    others = {name: one for name, one in CONTESTANTS.items() if not one.is_ours and (one.by_share or has_share)}
    configs = [lab.config.replace(optimizer=name, lr=rate, **NO_PENALTY) for name, rate in RATES]
    middle = {name: one.settings[len(one.settings) // 2] if one.settings else None for name, one in others.items()}
    first = {name: [Chosen(name, share, config, middle[name]) for config in configs] for name in others}
    best = _best(lab, first, f"learning rates at {share:.1%}")
    second = {
        name: [replace(chosen, setting=setting) for setting in others[name].settings]
        or [replace(chosen, config=chosen.config.replace(lr=_times(chosen.config, factor))) for factor in FINER]
        for name, chosen in best.items()
    }
    best = _best(lab, {name: [best[name], *second[name]] for name in others}, f"main settings at {share:.1%}")
    variants = {
        name: [Chosen(name, share, lab.config.replace(**one.changes))]
        for name, one in CONTESTANTS.items()
        if one.is_ours
    }
    return [*best.values(), *_best(lab, variants, f"variants of this library at {share:.1%}").values()]


def _times(config: Config, factor: float) -> float:
    assert config.optimizer.lr is not None
    return float(f"{factor * config.optimizer.lr:.3g}")


def _best(lab: Lab, trials: dict[str, list[Chosen]], words: str) -> dict[str, Chosen]:
    """The best trial of each method, by the first seed."""
    flat = [
        one.at(one.share if CONTESTANTS[name].by_share else 1.0, CONTESTANTS[name].precisions[0])
        for name in trials
        for one in trials[name]
    ]
    found = iter(lab.samples(flat, validate=True, name=words, seeds=lab.seeds[:1]))
    tried = {name: [replace(one, trial=next(found)) for one in of_name] for name, of_name in trials.items()}
    return {name: max(of_name, key=attrgetter("auc")) for name, of_name in tried.items()}


def equal_bytes(lab: Lab) -> Section:
    """Run it."""
    check(lab)
    chosen = [one for share in SHARES for one in choices(lab, share)]
    is_long = lab.log.train_rows > LONG_ROWS
    wanted = [
        (one, share, precision)
        for one in (_leading(chosen) if is_long else chosen)
        for share in (SHARES[one.share] if CONTESTANTS[one.name].by_share else (1.0,))
        for precision in CONTESTANTS[one.name].precisions[-1 if is_long else 0 :]
    ]
    samples = lab.samples([one.at(share, precision) for one, share, precision in wanted], name="all methods and sizes")
    points = [
        Point(one.name, share, precision, sample)
        for (one, share, precision), sample in zip(wanted, samples, strict=True)
    ]
    ours = _of_this_library(chosen, points)
    leaders, compared, verdicts = _verdicts(chosen, points, ours)
    trials = len(RATES) + len(FINER)
    return Section(
        name="bytes",
        title="AUC at equal served bytes",
        findings=(*leaders, *(f"Ours against {name}: {tally(of)}." for name, of in verdicts.items())),
        method=(
            f"Budgets are {_listed(chain(*SHARES.values()))} of the dense float32 table's bytes: features of the "
            "training rows × dimension × 4. Everything that is shipped counts: vectors, 8-byte keys where a method has "
            "to know which keys have rows, scales, bitmaps, pointers, vectors for absent features, layers of a hash "
            "network. The network over the embeddings, the same for all, does not. In int8 a method has as many more "
            "rows as fit, is trained in float32, rounded once, and measured after that; scales are float16, and in "
            "this library's exports a byte.",
            "All methods have the same keys, network, first weights, batches and order, in one pass. Each has "
            f"{trials} trials in float32 on the last tenth of the training rows, with one seed, at "
            f"{' and again at '.join(_listed([share]) for share in SHARES)} (the second ones for the smaller budgets): "
            f"{len(RATES)} of an optimizer (Adam or Adagrad, of the rows of a batch only) and its learning rate, then "
            f"{len(FINER)} of the main setting, or of finer learning rates where there is "
            "none. This library is trained by the recipe of the frontier, Group Adagrad at .03, hard threshold, with a "
            f"target size; its {len(VARIANTS)} trials are of the forms in which that is served; “{FIXED}” is taken "
            "unless another is better by more than a standard error over resamplings of the held-out rows.",
            f"A trial takes the first {TRIAL_ROWS:,} training rows for all of them; on a log of more than "
            f"{LONG_ROWS:,}, the others are served in int8 only, and of this library the chosen form and “{FIXED}”.",
            "Peak memory is the training's, on the table's side, counted from its tensors: parameters, optimizer's "
            "state, the largest gradients, indices and scores. Seconds are the processor's in training, with all "
            f"passes of a method. Latency is the median of {CALLS} calls of the served model, network included, "
            "in one thread; other runs on the same machine disturb it.",
            *(f"{name}: {one.words}" for name, one in CONTESTANTS.items()),
            STATISTICS,
        ),
        tables=(
            table(
                "compared",
                "This library's variant that was chosen for a budget, against each method's better precision",
                "budget|.1%; ours; its AUC|.4f; int4 AUC|.4f; method; served in; in trials; test AUC|.4f; " + COLUMNS,
                compared,
                "The precision, and the best of the others in the first sentences, have the highest mean test AUC, in "
                f"part by luck. “int4 AUC” is that of the variant “{FIXED}”, where nothing is chosen; “in trials” the "
                "method's place by its AUC on held-out rows, among those that can be so small.",
            ),
            table(
                "points",
                "All points",
                "method; served in; budget|.1%; served bytes; test AUC|.4f; ± sd|.4f; log loss|.4f; peak memory, "
                "bytes; training, s|.2f; latency of 1 row, µs|.0f; of 512 rows, µs|.0f",
                (point.cells for point in points),
                "Empty where a method cannot be so small or has diverged, or is keyless and the log's keys are no "
                "hashes.",
            ),
            table(
                "choices",
                "What was chosen",
                "chosen at|.1%; method; optimizer; learning rate|g; main setting; its value|g; validation AUC|.4f",
                (one.cells for one in chosen),
            ),
        ),
        figures=(
            _figure("single", "served in float32", [one for one in points if one.precision == "float32"], ours),
            _figure("int", "served in int8", [one for one in points if one.precision == "int8"], ours),
            _figure("variants", "forms of this library", [one for one in points if one.is_ours], ours),
        ),
    )


def _by_preference(chosen: Sequence[Chosen], share: float) -> list[Chosen]:
    """This library's variants by their trials at a budget; the fixed one first, unless the best is clearly better.

    That is, by more than a standard error of the difference over resamplings of the held-out rows.
    """
    ours = [one for one in chosen if one.share == share and CONTESTANTS[one.name].is_ours]
    best, *_ = ranked = sorted(ours, key=attrgetter("auc"), reverse=True)
    fixed = next(one for one in ranked if one.name == FIXED)
    if fixed.auc >= 0 and best.trial is not None and fixed.trial is not None:
        error = np.nanstd(best.trial.each("resampled") - fixed.trial.each("resampled"))
        if best.auc - fixed.auc <= error:
            ranked.remove(fixed)
            ranked.insert(0, fixed)
    return ranked


def _leading(chosen: Sequence[Chosen]) -> list[Chosen]:
    """All but the variants of this library that are neither preferred nor the fixed one."""
    kept = {(share, name) for share in SHARES for name in (FIXED, _by_preference(chosen, share)[0].name)}
    return [one for one in chosen if not CONTESTANTS[one.name].is_ours or (one.share, one.name) in kept]


def _listed(shares: Iterable[float]) -> str:
    return ", ".join(f"{100 * share:g}" for share in shares) + " %"


def _highest(points: Iterable[Point]) -> Point | None:
    return max((point for point in points if point.exists), key=lambda point: point.sample.auc, default=None)


def _of_this_library(chosen: Sequence[Chosen], points: Sequence[Point]) -> dict[float, Point]:
    """Budget → this library's point: of the first of `_by_preference` that can be so small."""
    found: dict[float, Point] = {}
    for group, shares in SHARES.items():
        names = [one.name for one in _by_preference(chosen, group)]
        for share in shares:
            there = {one.name: one for one in points if one.share == share and one.exists}
            if first := next((name for name in names if name in there), None):
                found[share] = there[first]
    return found


def _verdicts(
    chosen: Sequence[Chosen], points: Sequence[Point], of_this_library: Mapping[float, Point]
) -> tuple[list[str], list[Row], dict[str, list[Versus]]]:
    """Sentences on each budget, rows of the table of comparisons, and the comparisons of each method."""
    sentences, rows = list[str](), list[Row]()
    verdicts: dict[str, list[Versus]] = {FIRST_IN_TRIALS: []}
    for group, share in ((group, share) for group, shares in SHARES.items() for share in shares):
        there = [point for point in points if point.share == share and point.exists]
        ours = of_this_library.get(share)
        fixed = next((point.sample.auc for point in there if point.name == FIXED), None)
        ranked = sorted((one for one in chosen if one.share == group), key=attrgetter("auc"), reverse=True)
        others = [
            point
            for one in ranked
            if not CONTESTANTS[one.name].is_ours
            and (point := _highest(point for point in there if point.name == one.name)) is not None
        ]
        best = _highest(others)
        if ours is None or best is None:
            continue
        comparisons = {point.name: versus(ours.sample, point.sample) for point in others}
        for place, point in enumerate(others, 1):
            verdicts.setdefault(point.name, []).append(comparisons[point.name])
            of_point = point.name, point.precision, place, point.sample.auc
            rows.append((share, ours.name, ours.sample.auc, fixed, *of_point, *comparisons[point.name].cells))
        verdicts[FIRST_IN_TRIALS].append(comparisons[others[0].name])
        words = [
            f"{what}, {point.name} in {point.precision}, {point.sample.auc:.4f}: {of.verdict} ({of.difference:+.4f})"
            for what, point in (("the best of the others", best), (FIRST_IN_TRIALS, others[0]))
            for of in [comparisons[point.name]]
        ]
        sentences.append(
            f"At {100 * share:g} %: {ours.name} {ours.sample.auc:.4f}, and {'; '.join(words)}."
            + ("" if fixed is None or ours.name == FIXED else f" “{FIXED}”, without a choice: {fixed:.4f}.")
        )
    return sentences, rows, verdicts


def _figure(name: str, what: str, points: Sequence[Point], ours: Mapping[float, Point]) -> Figure:
    """Curves of methods, with this library's chosen points."""
    full = [point for point in points if point.name == FULL and point.exists]
    series = [Series(FULL, (), (point.sample.auc,), style="level") for point in full]
    of_variants = all(point.is_ours for point in points)
    curves = {} if of_variants else {"Ours": list(ours.values())}
    for point in points:
        if point.exists and point.name != FULL and point.is_ours == of_variants:
            curves.setdefault(point.name, []).append(point)
    for method, drawn in curves.items():
        x = tuple(point.sample.mean("served_bytes") for point in drawn)
        series.append(Series(method, x, tuple(point.sample.auc for point in drawn)))
    return Figure(name, f"AUC over served bytes, {what}", "served bytes", "test AUC", tuple(series), "log")
