"""Section 3 in numbers: the conditions, Lemma 1, Theorem 3 and the corollaries on convex online problems."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sparsegroup_paper.online import Absolute, Adversary, Array, Game, Logistic, Player, Problem, Steady, play
from sparsegroup_paper.section import Figure, Row, Section, SectionTable, Series, table

DELTA = 1.0
"""δ: no gradient of the problems has a larger element."""

WEIGHTS: Mapping[str, Mapping[str, float]] = {
    "0": {"l1": 0.0, "l21": 0.0, "l2": 0.0},
    "> 0": {"l1": 1.0, "l21": 1.0, "l2": 0.1},
}
"""λs by what they are called."""

GROUPS, SIZE = 8, 4

PROBLEMS: tuple[Callable[[int, int, int, int, int], Problem], ...] = (Logistic, Absolute, Adversary)
MOMENTS = (("Group Adagrad", 0.0, 1.0), ("Group Adagrad, momentum", 0.9, 1.0), ("Adam-like", 0.9, 0.99))
"""Name, γ and η."""

GAMES = len(PROBLEMS) * len(MOMENTS) * len(WEIGHTS)

_GRID = 25


class Terms:
    """What Section 3 speaks of, after T rounds of a game, `[runs]` each.

    Attributes:
        regret: Σ f_t(x_t) - f_t(x*), with x* the best fixed point of these T rounds.
        penalty: Ψ_T(x*).
        proximal: h_T(x*) = Σ 1/(2α_t) ‖Q_t^½ (x* - x_t)‖².
        first: ‖m_1‖₂².
        later: Σ_{t≥2} ‖m_t‖²_{h*_{t-1}}.
        lemma_left, lemma_right: Both sides of eq:vt_4, with ν = γ.
        gradient: max ‖g_t‖_∞.
        average_root: The least G with t G² ≥ δ² + V_t for all t and G ≥ `gradient`.
        D1, D2: ‖x*‖_∞ and max ‖x_t - x*‖_∞.
        alignments: ⟨m_{t-1}, x_t - x*⟩ of every t ≤ T, `[T, runs]`.
    """

    def __init__(self, game: Game, T: int) -> None:
        self.player = player = game.player
        x, m, V, sigma = game.x[:T], game.m[:T], game.V[:T], game.sigma[:T]
        best = game.problem.optimum(T)
        difference = x - best
        l1, l21, l2 = (player.weights[name] for name in ("l1", "l21", "l2"))
        group_norms = np.linalg.norm(game.in_groups(np.sqrt(sigma[-1] / 2 + l2) * best), axis=-1).sum(axis=-1)
        tau = l21 * math.sqrt(game.problem.start.shape[-1])
        losses = game.problem.losses
        self.T, self.d = T, x.shape[-1]
        self.regret: Array = (losses(x) - losses(np.broadcast_to(best, x.shape))).sum(axis=0)
        self.penalty: Array = l1 * np.abs(best).sum(axis=-1) + tau * group_norms + l2 * (best**2).sum(axis=-1)
        self.proximal: Array = (game.sigma_steps[:T] * difference**2).sum(axis=(0, 2)) / 2
        self.first: Array = (m[0] ** 2).sum(axis=-1)
        self.later: Array = (m[1:] ** 2 / sigma[:-1]).sum(axis=(0, 2))
        # ⟨m_t, V_t^{-½} m_t⟩; a coordinate that never had a gradient counts 0.
        self.lemma_left: Array = player.alpha * (m**2 / np.sqrt(np.where(V > 0, V, 1.0))).sum(axis=-1).sum(axis=0)
        root = np.sqrt((m**2).sum(axis=0)).sum(axis=-1)
        self.lemma_right: Array = 2 * player.alpha / (1 - player.gamma) * root
        self.gradient: Array = np.abs(game.g[:T]).max(axis=(0, 2))
        average = (player.delta**2 + V) / np.arange(1, T + 1)[:, None, None]
        self.average_root: Array = np.maximum(np.sqrt(average.max(axis=(0, 2))), self.gradient)
        self.D1: Array = np.abs(best).max(axis=-1)
        self.D2: Array = np.abs(difference).max(axis=(0, 2))
        before = np.concatenate([np.zeros_like(m[:1]), m[:-1]])
        self.alignments: Array = np.einsum("trd,trd->tr", before, difference)

    def theorem(self, h_0: float = 1.0) -> Array:
        """The right side of eq:rt_up with h_0 = h_0/2 ‖x - c‖²; as printed, h_0 is 1."""
        return self.penalty + self.proximal + (self.first / h_0 + self.later) / 2

    @property
    def lemma_h_0(self) -> float:
        """Lemma 2's h_0: √(δ² + 1) / α."""
        return math.sqrt(self.player.delta**2 + 1) / self.player.alpha

    @property
    def monotone_h_0(self) -> float:
        """δ/α, the largest h_0 that needs no gradient at t = 1 for h_1 ≥ h_0."""
        return self.player.delta / self.player.alpha

    def corollary_1(self) -> Array:
        """As printed, with G = max ‖g_t‖_∞."""
        return self._corollary(math.sqrt(self.T) * self.gradient, self.gradient)

    def corollary_2(self) -> Array:
        """As printed, with the least G of its conditions."""
        return self._corollary(math.sqrt(self.T) * self.average_root, self.average_root)

    def corollary_1_with_delta(self) -> Array:
        """Corollary 1 with √(δ² + T G²) for the √T G that bounds √(δ² + V_T)."""
        return self._corollary(np.sqrt(self.player.delta**2 + self.T * self.gradient**2), self.gradient)

    def _corollary(self, root_V: Array, G: Array) -> Array:
        player, d = self.player, self.d
        l1, l21, l2 = (player.weights[name] for name in ("l1", "l21", "l2"))
        penalty = d * self.D1 * (l1 + l21 * np.sqrt(root_V / (2 * player.alpha) + l2) + l2 * self.D1)
        proximal = d * self.D2**2 / (2 * player.alpha) * root_V
        result: Array = penalty + proximal + d * G * player.alpha / (1 - player.gamma) ** 2 * math.sqrt(self.T)
        return result


def growth_exponent(rounds: Sequence[int], values: Sequence[float]) -> float | None:
    """Slope of the least-squares line through (log T, log value); None unless two values or more, all positive."""
    if len(values) < 2 or min(values) <= 0:
        return None
    return float(np.polyfit(np.log(rounds), np.log(values), 1)[0])


class Analysis:
    """What remains of a game.

    Attributes:
        path: `Terms` at growing T.
        negative_share: Share of the elements of all Q_t that are negative.
        kappa: The largest V_{t-1} / V_t of a coordinate; 0/0 is 0.
        fall: The first step, from 1, at which V of any coordinate in any run falls, so that no κ < 1 is left.
    """

    def __init__(self, game: Game, weights: str, rounds: Sequence[int]) -> None:
        self.problem, self.weights, self.player = game.problem.name, weights, game.player
        self.path = [Terms(game, T) for T in rounds]
        self.negative_share = float((game.sigma_steps < 0).mean())
        self.kappa = float((game.V[:-1] / np.where(game.V[1:] > 0, game.V[1:], np.inf)).max(initial=0.0))
        falls = (np.diff(game.V, axis=0) < 0).any(axis=(1, 2))
        self.fall = int(falls.argmax()) + 2 if falls.any() else None

    def worst(self, of: Callable[[Terms], Array]) -> float:
        """The largest value over T and runs."""
        return max(float(of(terms).max()) for terms in self.path)

    @property
    def of_lemma_1(self) -> float:
        """The largest share of the right side that the left one comes to."""
        return self.worst(lambda terms: terms.lemma_left / terms.lemma_right)

    @property
    def of_theorem_3(self) -> float:
        """The largest share of the bound that the regret comes to."""
        return self.worst(lambda terms: terms.regret / terms.theorem())

    def exponent(self, of: Callable[[Terms], Array] = lambda terms: terms.regret) -> float | None:
        """Fitted to the mean over runs in the last decade of T."""
        decade = [terms for terms in self.path if self.path[-1].T / 10 <= terms.T]
        return growth_exponent([terms.T for terms in decade], [float(of(terms).mean()) for terms in decade])

    def aligned(self) -> float:
        """Share of the steps t ≥ 2 at which eq:cond holds, with the last x*."""
        later = self.path[-1].alignments[1:]
        return float((later >= 0).mean()) if later.size else 1.0

    def sums_aligned(self) -> float:
        """Share of T and runs at which γ Σ ⟨m_{t-1}, x_t - x*⟩ ≥ 0, which is what the proof uses of eq:cond."""
        gamma = self.player.gamma
        return float(np.mean([gamma * terms.alignments.sum(axis=0) >= 0 for terms in self.path]))


@dataclass(frozen=True)
class Example:
    """Group Adagrad, all λ = 0, on f_t(x) = slope |x - 1| from x_1 = 0, after the last round.

    The bound of the `statement` is as `printed`, and `mended`, as it would be true.
    """

    statement: str
    at_end: Terms
    slope: float
    printed: float
    mended: float

    @property
    def regret(self) -> float:
        return float(self.at_end.regret[0])

    @property
    def conditions_hold(self) -> bool:
        """Whether eq:cond holds at every step and δ ≥ max ‖g_t‖_∞; η is 1, and f_t convex."""
        return bool(np.all(self.at_end.alignments >= 0) and self.at_end.gradient[0] <= self.at_end.player.delta)


def counterexamples() -> list[Example]:
    """Where a bound of Section 3 as printed is below the regret although its conditions hold."""

    def at_end(slope: float, delta: float, alpha: float, steps: int) -> Terms:
        player = Player("Group Adagrad", 0.0, 1.0, alpha, delta, WEIGHTS["0"])
        return Terms(play(Steady(steps, slope), player, steps), steps)

    theorem, lemma, corollary = at_end(1.0, 1.0, 20.0, 1), at_end(0.01, 0.01, 12.0, 1), at_end(1.0, 100.0, 1.0, 100)
    cases = (
        ("Theorem 3", theorem, 1.0, theorem.theorem(), theorem.theorem(theorem.monotone_h_0)),
        ("Theorem 3, Lemma 2's h_0", lemma, 0.01, lemma.theorem(lemma.lemma_h_0), lemma.theorem(lemma.monotone_h_0)),
        ("Corollary 1", corollary, 1.0, corollary.corollary_1(), corollary.corollary_1_with_delta()),
    )
    return [Example(name, terms, slope, float(one[0]), float(other[0])) for name, terms, slope, one, other in cases]


def regret(steps: int = 10_000, runs: int = 5, on_progress: Callable[[int], None] = lambda done: None) -> Section:
    """Evaluate Section 3 of Yue et al. (2021) on convex online problems, at T up to `steps`, at least 2.

    There are `runs` independent runs of each; `on_progress` is given the number of `GAMES` that are over.
    """
    rounds = np.unique(np.geomspace(min(10, steps), steps, _GRID).round().astype(int)).tolist()
    analyses = []
    for problem, (name, gamma, eta), weights in itertools.product(PROBLEMS, MOMENTS, WEIGHTS):
        # The α that makes the corollaries' factor of √T least at D2 = 1.
        player = Player(name, gamma, eta, (1 - gamma) / math.sqrt(2), DELTA, WEIGHTS[weights])
        game = play(problem(steps, runs, GROUPS, SIZE, PROBLEMS.index(problem)), player, steps)
        analyses.append(Analysis(game, weights, rounds))
        on_progress(len(analyses))
    examples = counterexamples()
    return Section(
        name="regret",
        title="Convergence and regret (Section 3)",
        findings=(*_findings(analyses), *map(_of_example, examples)),
        method=_method(steps, runs),
        tables=(_bounds(analyses), _conditions(analyses), _examples(examples)),
        figures=tuple(_figure(problem.name, analyses) for problem in (Logistic, Adversary)),
    )


def _bounds(analyses: Iterable[Analysis]) -> SectionTable:
    rows: list[Row] = []
    for one in analyses:
        last = one.path[-1]
        values = (last.regret, last.theorem(), last.corollary_1(), last.corollary_2())
        means = (float(of_runs.mean()) for of_runs in values)
        exponents = one.exponent(), one.exponent(Terms.theorem)
        rows.append((one.problem, one.player.name, one.weights, *means, one.of_theorem_3, *exponents))
    return table(
        "regret-bounds",
        "Regret and its bounds at the last T",
        "problem; algorithm; λ; regret|,.1f; Theorem 3|,.1f; Corollary 1|,.0f; Corollary 2|,.0f; "
        "largest regret/Theorem 3|.3f; exponent of the regret|.3f; of Theorem 3|.3f",
        rows,
        "Means over runs; the largest ratio is over all T and runs. An exponent is the slope of log(mean over runs) "
        "against log T over the last decade of T; empty if a mean is not positive.",
    )


def _conditions(analyses: Iterable[Analysis]) -> SectionTable:
    return table(
        "regret-conditions",
        "The conditions of Section 3 along the run",
        "problem; algorithm; λ; max ‖g‖∞ / δ|.3f; Q_t < 0|.1%; κ|.4f; V first falls at t; ⟨m_{t-1}, x_t - x*⟩ ≥ 0|.1%; "
        "its sum ≥ 0|.1%; Lemma 1, largest left/right|.3f",
        (
            (
                *(one.problem, one.player.name, one.weights),
                one.worst(lambda terms: terms.gradient) / one.player.delta,
                *(one.negative_share, one.kappa, one.fall, one.aligned()),
                *(one.sums_aligned() if one.player.gamma else None, one.of_lemma_1),
            )
            for one in analyses
        ),
        "Q_t ≥ 0 is what h_{t+1} ≥ h_t needs, which the proof uses and does not state. κ is the largest "
        "V_{t-1}/V_t; condition 2 of Lemma 1 (η < 1) asks for κ < 1, condition 1 (η = 1) for nothing. ⟨m_{t-1}, x_t - "
        "x*⟩ ≥ 0 is eq:cond, as a share of the steps t ≥ 2; its sum over t ≤ T, as a share of T and runs, is all that "
        "the proof uses, and only for γ > 0. Lemma 1 with ν = γ, the strongest form.",
    )


def _examples(examples: Iterable[Example]) -> SectionTable:
    return table(
        "regret-counterexamples",
        "Printed bounds at their limits: f_t(x) = slope |x - 1|, x_1 = 0, Group Adagrad, λ = 0",
        "statement; slope = G|g; δ|g; α|g; T; conditions hold; regret|.3f; bound as printed|.3f; bound mended|.3f",
        (
            (
                *(one.statement, one.slope, one.at_end.player.delta, one.at_end.player.alpha, one.at_end.T),
                *("yes" if one.conditions_hold else "no", one.regret, one.printed, one.mended),
            )
            for one in examples
        ),
        "Mended: h_0 = δ/(2α) ‖x - c‖² in Theorem 3, so that h_1 ≥ h_0; in Corollary 1 √(δ² + T G²) for √T G "
        "where that bounds √(δ² + V_T).",
    )


def _figure(problem: str, analyses: Iterable[Analysis]) -> Figure:
    def curve(label: str, one: Analysis, of: Callable[[Terms], Array]) -> Series:
        means = {float(terms.T): float(of(terms).mean()) for terms in one.path}
        positive = {T: mean for T, mean in means.items() if mean > 0}
        style: Literal["points-and-line", "line"] = "points-and-line" if label == "regret" else "line"
        return Series(f"{label}, {one.player.name}", tuple(positive), tuple(positive.values()), style=style)

    shown = [one for one in analyses if one.problem == problem and one.weights == "> 0"]
    first = shown[0]
    start, end = first.path[0], first.path[-1]
    rounds, height = (float(start.T), float(end.T)), abs(float(end.regret.mean()))
    series = (
        *(curve("regret", one, lambda terms: terms.regret) for one in shown),
        curve("Theorem 3", first, Terms.theorem),
        curve("Corollary 2", first, Terms.corollary_2),
        Series("√T", rounds, tuple(height * math.sqrt(t / end.T) for t in rounds), style="dashed"),
    )
    return Figure(
        f"regret-{problem}",
        f"Regret and its bounds, {problem}, λ > 0",
        "T",
        "regret",
        tuple(one for one in series if one.x),
        x_scale="log",
        y_scale="log",
        note=f"Means over runs, where positive. √T is drawn through the last regret of {first.player.name}.",
    )


def _findings(analyses: Sequence[Analysis]) -> Iterable[str]:
    for name, gamma, eta in MOMENTS:
        own = [analysis for analysis in analyses if analysis.player.name == name]
        checked = [(terms.regret > terms.theorem(), terms) for analysis in own for terms in analysis.path]
        above = sum(int(excess.sum()) for excess, _ in checked)
        unaligned = sum(int((excess & (terms.alignments.sum(axis=0) < 0)).sum()) for excess, terms in checked)
        of_unaligned = f", at {unaligned:,} of which Σ ⟨m_{{t-1}}, x_t - x*⟩ < 0" if above and gamma else ""
        yield (
            f"{name} (γ = {gamma:g}, η = {eta:g}): the regret is above Theorem 3's bound at {above:,} of "
            f"{sum(excess.size for excess, _ in checked):,} pairs of T and run{of_unaligned}; it comes to at most "
            f"{max(analysis.of_theorem_3 for analysis in own):.3f} of the bound."
        )
        yield f"{name}: {_of_exponents(own)}"
        aligned, sums = [one.aligned() for one in own], [one.sums_aligned() for one in own]
        if gamma:
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
    ratio = max(analysis.of_lemma_1 for analysis in analyses)
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


def _of_example(example: Example) -> str:
    player, excess = example.at_end.player, example.regret > example.printed
    slope = "" if example.slope == 1 else f"{example.slope:g} "
    return (
        f"{example.statement}: on f_t(x) = {slope}|x - 1| with x_1 = 0, δ = {player.delta:g}, α = {player.alpha:g} the "
        f"stated conditions {'hold' if example.conditions_hold else 'do not hold'}; the regret at T = "
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
