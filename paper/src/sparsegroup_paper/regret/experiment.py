"""Section 3 in numbers: the conditions, Lemma 1, Theorem 3 and the corollaries on convex online problems."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import numpy as np

from sparsegroup_paper.regret.bounds import (
    DELTA,
    WEIGHTS,
    Analysis,
    Example,
    Terms,
    analyse,
    counterexamples,
)
from sparsegroup_paper.regret.problems import (
    Absolute,
    Adversary,
    Array,
    Logistic,
    Player,
    Problem,
    play,
)
from sparsegroup_paper.section import Figure, Section, SectionTable, Series, columns

GROUPS, SIZE = 8, 4

PROBLEMS: tuple[Callable[[int, int, int, int, int], Problem], ...] = (Logistic, Absolute, Adversary)
MOMENTS = (("Group Adagrad", 0.0, 1.0), ("Group Adagrad, momentum", 0.9, 1.0), ("Adam-like", 0.9, 0.99))
"""Name, γ and η."""

_GRID = 25


def regret(steps: int = 10_000, runs: int = 5, on_progress: Callable[[float], None] | None = None) -> Section:
    """Evaluate Section 3 of Yue et al. (2021) on convex online problems, at T up to `steps`.

    Args:
        steps: Rounds of a problem; at least 2.
        runs: Independent runs of each.
        on_progress: Given the share done, in [0, 1].
    """
    rounds = np.unique(np.geomspace(min(10, steps), steps, _GRID).round().astype(int)).tolist()
    games = [(problem, moments, weights) for problem in PROBLEMS for moments in MOMENTS for weights in WEIGHTS]
    analyses = []
    for done, (problem, (name, gamma, eta), weights) in enumerate(games):

        def report(t: int, done: int = done) -> None:
            if on_progress is not None and t % 1000 == 0:
                on_progress((done + 0.8 * t / steps) / len(games))

        # The α that makes the corollaries' factor of √T least at D2 = 1.
        player = Player(name, gamma, eta, (1 - gamma) / math.sqrt(2), DELTA, WEIGHTS[weights])
        game = play(problem(steps, runs, GROUPS, SIZE, PROBLEMS.index(problem)), player, steps, report)
        analyses.append(analyse(game, weights, rounds))
        if on_progress is not None:
            on_progress((done + 1) / len(games))
    examples = counterexamples()
    return Section(
        name="regret",
        title="Convergence and regret (Section 3)",
        findings=(*_findings(analyses), *_example_findings(examples)),
        method=_method(steps, runs),
        tables=(
            _bounds(analyses),
            _conditions(analyses),
            _examples(examples),
        ),
        figures=tuple(_figure(problem.name, analyses) for problem in (Logistic, Adversary)),
    )


def _examples(examples: Iterable[Example]) -> SectionTable:
    return SectionTable(
        name="regret-counterexamples",
        title="Printed bounds at their limits: f_t(x) = slope |x - 1|, x_1 = 0, Group Adagrad, λ = 0",
        columns=columns(
            "statement; slope = G|g; δ|g; α|g; T; conditions hold; regret|.3f; bound as printed|.3f; bound mended|.3f"
        ),
        rows=tuple(
            (
                *(example.statement, example.slope, example.at_end.player.delta, example.at_end.player.alpha),
                *(example.at_end.T, "yes" if example.conditions_hold else "no"),
                *(example.regret, example.printed, example.mended),
            )
            for example in examples
        ),
        note="Mended: h_0 = δ/(2α) ‖x - c‖² in Theorem 3, so that h_1 ≥ h_0; in Corollary 1 √(δ² + T G²) for √T G "
        "where that bounds √(δ² + V_T).",
    )


def _conditions(analyses: Iterable[Analysis]) -> SectionTable:
    return SectionTable(
        name="regret-conditions",
        title="The conditions of Section 3 along the run",
        columns=columns(
            "problem; algorithm; λ; max ‖g‖∞ / δ|.3f; Q_t < 0|.1%; κ|.4f; V first falls at t; "
            "⟨m_{t-1}, x_t - x*⟩ ≥ 0|.1%; its sum ≥ 0|.1%; Lemma 1, largest left/right|.3f"
        ),
        rows=tuple(
            (
                *(analysis.problem, analysis.player.name, analysis.weights),
                analysis.worst(lambda terms: terms.gradient) / analysis.player.delta,
                *(analysis.negative_share, analysis.kappa, analysis.fall, analysis.aligned()),
                analysis.sums_aligned() if analysis.player.gamma else None,
                analysis.worst(_lemma_1),
            )
            for analysis in analyses
        ),
        note="Q_t ≥ 0 is what h_{t+1} ≥ h_t needs, which the proof uses and does not state. κ is the largest "
        "V_{t-1}/V_t; condition 2 of Lemma 1 (η < 1) asks for κ < 1, condition 1 (η = 1) for nothing. ⟨m_{t-1}, x_t - "
        "x*⟩ ≥ 0 is eq:cond, as a share of the steps t ≥ 2; its sum over t ≤ T, as a share of T and runs, is all that "
        "the proof uses, and only for γ > 0. Lemma 1 with ν = γ, the strongest form.",
    )


def _bounds(analyses: Iterable[Analysis]) -> SectionTable:
    return SectionTable(
        name="regret-bounds",
        title="Regret and its bounds at the last T",
        columns=columns(
            "problem; algorithm; λ; regret|,.1f; Theorem 3|,.1f; Corollary 1|,.0f; Corollary 2|,.0f; "
            "largest regret/Theorem 3|.3f; exponent of the regret|.3f; of Theorem 3|.3f"
        ),
        rows=tuple(
            (
                *(analysis.problem, analysis.player.name, analysis.weights),
                *(float(values.mean()) for values in (last.regret, last.theorem())),
                *(float(values.mean()) for values in (last.corollary_1(), last.corollary_2())),
                analysis.worst(_theorem_3),
                *(analysis.exponent(), analysis.exponent(Terms.theorem)),
            )
            for analysis in analyses
            for last in (analysis.last,)
        ),
        note="Means over runs; the largest ratio is over all T and runs. "
        "An exponent is the slope of log(mean over runs) against log T over the last decade of T; empty if a mean is "
        "not positive.",
    )


def _lemma_1(terms: Terms) -> Array:
    return terms.lemma_left / terms.lemma_right


def _theorem_3(terms: Terms) -> Array:
    return terms.regret / terms.theorem()


def _figure(problem: str, analyses: Iterable[Analysis]) -> Figure:
    shown = [analysis for analysis in analyses if analysis.problem == problem and analysis.weights == "> 0"]
    series = [_curve(f"regret, {a.player.name}", a, lambda terms: terms.regret, "points-and-line") for a in shown]
    first = shown[0]
    series += [
        _curve(f"Theorem 3, {first.player.name}", first, Terms.theorem, "line"),
        _curve(f"Corollary 2, {first.player.name}", first, Terms.corollary_2, "line"),
    ]
    T, height = first.last.T, abs(float(first.last.regret.mean()))
    rounds = (float(first.path[0].T), float(T))
    series.append(Series("√T", rounds, tuple(height * math.sqrt(t / T) for t in rounds), style="dashed"))
    return Figure(
        name=f"regret-{problem}",
        title=f"Regret and its bounds, {problem}, λ > 0",
        x_label="T",
        y_label="regret",
        series=tuple(one for one in series if one.x),
        x_scale="log",
        y_scale="log",
        note=f"Means over runs, where positive. √T is drawn through the last regret of {first.player.name}.",
    )


def _curve(
    label: str, analysis: Analysis, of: Callable[[Terms], Array], style: Literal["points-and-line", "line"]
) -> Series:
    points = [(float(terms.T), float(of(terms).mean())) for terms in analysis.path]
    positive = [(T, value) for T, value in points if value > 0]
    return Series(label, tuple(T for T, _ in positive), tuple(value for _, value in positive), style=style)


def _findings(analyses: Sequence[Analysis]) -> Iterable[str]:
    for name, gamma, eta in MOMENTS:
        own = [analysis for analysis in analyses if analysis.player.name == name]
        checked = sum(terms.regret.size for analysis in own for terms in analysis.path)
        excesses = [(terms.regret > terms.theorem(), terms) for analysis in own for terms in analysis.path]
        above = sum(int(excess.sum()) for excess, _ in excesses)
        unaligned = sum(int((excess & (terms.alignments.sum(axis=0) < 0)).sum()) for excess, terms in excesses)
        of_unaligned = f", at {unaligned:,} of which Σ ⟨m_{{t-1}}, x_t - x*⟩ < 0" if above and gamma else ""
        worst = max(analysis.worst(_theorem_3) for analysis in own)
        yield (
            f"{name} (γ = {gamma:g}, η = {eta:g}): the regret is above Theorem 3's bound at {above:,} of {checked:,} "
            f"pairs of T and run{of_unaligned}; it comes to at most {worst:.3f} of the bound."
        )
        yield f"{name}: {_of_exponents(own)}"
        aligned = [analysis.aligned() for analysis in own]
        if gamma:
            sums = [analysis.sums_aligned() for analysis in own]
            yield (
                f"{name}: ⟨m_{{t-1}}, x_t - x*⟩ ≥ 0 (eq:cond) holds at {min(aligned):.1%} to {max(aligned):.1%} of the "
                f"steps, so the condition as stated {'holds' if min(aligned) == 1 else 'fails'}; its sum over t, which "
                f"is what the proof needs, is not negative at {min(sums):.1%} to {max(sums):.1%} of T and runs."
            )
        else:
            yield (
                f"{name}: with γ = 0 the proof does not use eq:cond, which as stated would fail at up to "
                f"{1 - min(aligned):.1%} of the steps."
            )
        yield f"{name}: {_of_lemmas(own)}"


def _of_exponents(analyses: Sequence[Analysis]) -> str:
    exponents = [exponent for analysis in analyses if (exponent := analysis.exponent()) is not None]
    missing = len(analyses) - len(exponents)
    of_missing = f" ({missing} of {len(analyses)} have no fit: their mean regret is not positive)" if missing else ""
    if not exponents:
        return "no exponent could be fitted, the mean regret is not positive."
    at_most = sum(exponent <= 0.5 for exponent in exponents)
    return (
        f"over the last decade of T the regret grows as T to the {min(exponents):.3f} to {max(exponents):.3f}; "
        f"the exponent is at most .5 in {at_most} of {len(exponents)} settings{of_missing}."
    )


def _of_lemmas(analyses: Sequence[Analysis]) -> str:
    ratio = max(analysis.worst(_lemma_1) for analysis in analyses)
    text = f"the left side of Lemma 1 is at most {ratio:.3f} of the right one"
    if analyses[0].player.eta == 1:
        return f"{text}, so that it {'holds' if ratio < 1 else 'does not hold'}."
    kappas = [analysis.kappa for analysis in analyses]
    falls = [fall for analysis in analyses if (fall := analysis.fall) is not None]
    negative = max(analysis.negative_share for analysis in analyses)
    return (
        f"{text} with ν = γ; its condition 2, κ < 1, fails in {sum(kappa >= 1 for kappa in kappas)} of {len(kappas)} "
        f"settings (κ up to {max(kappas):.4f}{f', first at step {min(falls)}' if falls else ''}); up to {negative:.1%} "
        "of the elements of Q_t are negative, so that h_t is not increasing, either."
    )


def _example_findings(examples: Iterable[Example]) -> Iterable[str]:
    for example in examples:
        player, excess = example.at_end.player, example.regret > example.printed
        slope = "" if example.slope == 1 else f"{example.slope:g} "
        yield (
            f"{example.statement}: on f_t(x) = {slope}|x - 1| with x_1 = 0, δ = {player.delta:g}, α = {player.alpha:g} "
            f"the stated conditions {'hold' if example.conditions_hold else 'do not hold'}; the regret at T = "
            f"{example.at_end.T} is {example.regret:.3g}, {'above' if excess else 'within'} the printed bound of "
            f"{example.printed:.3g}. Mended, the bound is {example.mended:.3g}."
        )


def _method(steps: int, runs: int) -> tuple[str, ...]:
    return (
        f"Three convex online problems with d = {GROUPS * SIZE} in groups of {SIZE}, T up to {steps:,}, {runs} runs "
        "each. Logistic: logistic regression, features uniform in [-1, 1], half of the true groups 0, labels smoothed "
        "so that a best point exists at any T (near T = d it fits every label and is large). Absolute: f_t(x) = "
        "‖x - y_t‖₁ with medians that are exactly 0 in half of the groups. Adversary: the same loss, y_t = ±1 chosen "
        "against x_t. All gradient elements are at most 1, so that δ = 1 is known in advance.",
        "The points x_t are those of the library's optimizers with norm='metric', which is the update that Section 3 "
        "speaks of: Group Adagrad, and a rule with the moments that the paper assumes, m_t = γ m_{t-1} + g_t and "
        "V_t = η V_{t-1} + g_t². δ² is added to V_t. α = (1 - γ)/√2, which makes the corollaries' factor of √T least "
        "at D2 = 1. λ > 0 stands for "
        + ", ".join(f"{name} = {value:g}" for name, value in WEIGHTS["> 0"].items())
        + ". m_t, V_t, Q_t, the optimality of x_t and all bounds are computed anew from the gradients, in float64.",
        "The regret is the paper's, Σ f_t(x_t) - f_t(x*), without Ψ. x* is the minimizer of the first T losses, anew "
        "for each T: by Newton's method (logistic) or the medians (of several the one nearest to 0).",
        "Theorem 3's bound is as printed, with h_0 = ½ ‖x - c‖². Its proof uses h_1 ≥ h_0, which needs σ_1 ≥ 1, and "
        "h_{t+1} ≥ h_t, which needs V_t not to fall: neither is among the stated conditions. Lemma 2 gives h_0 another "
        "norm, √(δ² + 1)/α, which σ_1 = √(δ² + g_1²)/α reaches only where |g_1| ≥ 1. With δ/α in its place theorem, "
        "lemma and corollaries agree, and Lemma 2's inequality stays true.",
        "Corollary 1 bounds V_T by T G² although its h_T has δ² + V_T: with δ far above G it can fail; with "
        "√(δ² + T G²) in place of √T G it follows. Corollary 2 asks for t G² ≥ V_t, which we take to include δ².",
        "Condition 2 of Lemma 1, κ V_t ≥ V_{t-1} with κ < 1, makes V_t grow at least as κ^-t, while bounded gradients "
        "keep it below G²/(1 - η): it can hold only for a number of steps that grows with log(1/(1 - η)), or with a κ "
        "that approaches 1 as T grows, and then 1/(1 - ν)² is no constant.",
    )
