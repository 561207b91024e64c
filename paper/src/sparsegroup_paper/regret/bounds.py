"""What Section 3 says of a game: the terms of Theorem 3, Lemma 1 and the corollaries, and where they fail."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparsegroup_paper.regret.problems import Array, Game, Player, Steady, play

DELTA = 1.0
"""δ: no gradient of the problems has a larger element."""

WEIGHTS: Mapping[str, Mapping[str, float]] = {
    "0": {"l1": 0.0, "l21": 0.0, "l2": 0.0},
    "> 0": {"l1": 1.0, "l21": 1.0, "l2": 0.1},
}
"""λs by what they are called."""


@dataclass(frozen=True)
class Terms:
    """What Section 3 speaks of, after T rounds, `[runs]` each.

    Attributes:
        player: Who played.
        d: Dimensions.
        T: Rounds.
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

    player: Player
    d: int
    T: int
    regret: Array
    penalty: Array
    proximal: Array
    first: Array
    later: Array
    lemma_left: Array
    lemma_right: Array
    gradient: Array
    average_root: Array
    D1: Array
    D2: Array
    alignments: Array

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


def terms(game: Game, T: int) -> Terms:
    """All of Section 3 after T rounds, from the points and gradients of `game`."""
    player, x, m, V, sigma = game.player, game.x[:T], game.m[:T], game.V[:T], game.sigma[:T]
    best = game.problem.optimum(T)
    difference = x - best
    l1, l21, l2 = (player.weights[name] for name in ("l1", "l21", "l2"))
    root_A = np.sqrt(sigma[-1] / 2 + l2)
    group_norms = np.linalg.norm(game.in_groups(root_A * best), axis=-1).sum(axis=-1)
    later = (m[1:] ** 2 / sigma[:-1]).sum(axis=(0, 2))
    rounds = np.arange(1, T + 1)[:, None, None]
    gradient = np.abs(game.g[:T]).max(axis=(0, 2))
    return Terms(
        player=player,
        d=x.shape[-1],
        T=T,
        regret=(game.problem.losses(x) - game.problem.losses(np.broadcast_to(best, x.shape))).sum(axis=0),
        penalty=l1 * np.abs(best).sum(axis=-1)
        + l21 * math.sqrt(game.problem.start.shape[-1]) * group_norms
        + l2 * (best**2).sum(axis=-1),
        proximal=(game.sigma_steps[:T] * difference**2).sum(axis=(0, 2)) / 2,
        first=(m[0] ** 2).sum(axis=-1),
        later=later,
        lemma_left=player.alpha * own_norms(m, V).sum(axis=0),
        lemma_right=2 * player.alpha / (1 - player.gamma) * np.sqrt((m**2).sum(axis=0)).sum(axis=-1),
        gradient=gradient,
        average_root=np.maximum(np.sqrt(((player.delta**2 + V) / rounds).max(axis=(0, 2))), gradient),
        D1=np.abs(best).max(axis=-1),
        D2=np.abs(difference).max(axis=(0, 2)),
        alignments=np.einsum("trd,trd->tr", np.concatenate([np.zeros_like(m[:1]), m[:-1]]), difference),
    )


def own_norms(m: Array, V: Array) -> Array:
    """⟨m_t, V_t^{-½} m_t⟩ `[T, runs]`; a coordinate that never had a gradient counts 0."""
    result: Array = (m**2 / np.sqrt(np.where(V > 0, V, 1.0))).sum(axis=-1)
    return result


def growth_exponent(rounds: Sequence[int], values: Sequence[float]) -> float | None:
    """Slope of the least-squares line through (log T, log value); None unless two values or more, all positive."""
    if len(values) < 2 or min(values) <= 0:
        return None
    return float(np.polyfit(np.log(rounds), np.log(values), 1)[0])


def largest_kappa(game: Game) -> float:
    """The largest V_{t-1} / V_t of a coordinate; 0/0 is 0."""
    return float((game.V[:-1] / np.where(game.V[1:] > 0, game.V[1:], np.inf)).max(initial=0.0))


def first_fall(game: Game) -> int | None:
    """The first step, from 1, at which V of any coordinate in any run falls, so that no κ < 1 is left."""
    falls = (np.diff(game.V, axis=0) < 0).any(axis=(1, 2))
    return int(falls.argmax()) + 2 if falls.any() else None


@dataclass(frozen=True)
class Analysis:
    """What remains of a game.

    Attributes:
        problem: Its name.
        weights: "0" or "> 0".
        player: Who played.
        path: `Terms` at growing T.
        negative_share: Share of the elements of all Q_t that are negative.
        kappa, fall: See `largest_kappa` and `first_fall`.
    """

    problem: str
    weights: str
    player: Player
    path: tuple[Terms, ...]
    negative_share: float
    kappa: float
    fall: int | None

    @property
    def last(self) -> Terms:
        return self.path[-1]

    def worst(self, of: Callable[[Terms], Array]) -> float:
        """The largest value over T and runs."""
        return max(float(of(terms).max()) for terms in self.path)

    def exponent(self, of: Callable[[Terms], Array] = lambda terms: terms.regret) -> float | None:
        """Fitted to the mean over runs in the last decade of T."""
        decade = [terms for terms in self.path if self.last.T / 10 <= terms.T]
        return growth_exponent([terms.T for terms in decade], [float(of(terms).mean()) for terms in decade])

    def aligned(self) -> float:
        """Share of the steps t ≥ 2 at which eq:cond holds, with the last x*."""
        later = self.last.alignments[1:]
        return float((later >= 0).mean()) if later.size else 1.0

    def sums_aligned(self) -> float:
        """Share of T and runs at which γ Σ ⟨m_{t-1}, x_t - x*⟩ ≥ 0, which is what the proof uses of eq:cond."""
        gamma = self.player.gamma
        return float(np.mean([gamma * terms.alignments.sum(axis=0) >= 0 for terms in self.path]))


def analyse(game: Game, weights: str, rounds: Sequence[int]) -> Analysis:
    """`game` after each of `rounds`; `weights` is the name of the player's."""
    return Analysis(
        problem=game.problem.name,
        weights=weights,
        player=game.player,
        path=tuple(terms(game, T) for T in rounds),
        negative_share=float((game.sigma_steps < 0).mean()),
        kappa=largest_kappa(game),
        fall=first_fall(game),
    )


@dataclass(frozen=True)
class Example:
    """Group Adagrad, all λ = 0, on f_t(x) = slope |x - 1| from x_1 = 0.

    Attributes:
        statement: The theorem or corollary whose bound it is.
        at_end: After the last round.
        slope: That of f_t.
        printed, mended: The bound as printed, and as it would be true.
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


def counterexamples() -> tuple[Example, ...]:
    """Where a bound of Section 3 as printed is below the regret although its conditions hold."""
    cases: tuple[tuple[str, float, float, float, int, Callable[[Terms], Array], Callable[[Terms], Array]], ...] = (
        ("Theorem 3", 1.0, 1.0, 20.0, 1, Terms.theorem, lambda terms: terms.theorem(terms.monotone_h_0)),
        (
            "Theorem 3, Lemma 2's h_0",
            0.01,
            0.01,
            12.0,
            1,
            lambda terms: terms.theorem(terms.lemma_h_0),
            lambda terms: terms.theorem(terms.monotone_h_0),
        ),
        ("Corollary 1", 1.0, 100.0, 1.0, 100, Terms.corollary_1, Terms.corollary_1_with_delta),
    )
    examples = []
    for statement, slope, delta, alpha, steps, printed, mended in cases:
        player = Player("Group Adagrad", 0.0, 1.0, alpha, delta, WEIGHTS["0"])
        at_end = terms(play(Steady(steps, slope), player, steps), steps)
        examples.append(Example(statement, at_end, slope, float(printed(at_end)[0]), float(mended(at_end)[0])))
    return tuple(examples)
