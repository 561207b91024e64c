"""The regret experiment: what it computes from a game, by hand, by definition and by Section 3's inequalities."""

import math
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from sparsegroup_paper.online import Absolute, Game, Logistic, Player, Problem, Steady, play
from sparsegroup_paper.regret import GAMES, PROBLEMS, WEIGHTS, Analysis, Terms, counterexamples, growth_exponent, regret

STEPS, RUNS = 120, 2

problems = pytest.mark.parametrize("problem", PROBLEMS)


def player(gamma: float = 0.0, eta: float = 1.0, weights: str = "> 0", alpha: float = 0.5) -> Player:
    return Player("player", gamma, eta, alpha, 1.0, WEIGHTS[weights])


@cache
def game(problem: type[Problem], weights: str = "> 0", gamma: float = 0.0) -> Game:
    return play(problem(STEPS, RUNS, 4, 3, 7), player(gamma, weights=weights), STEPS)


def optimality_residual(game: Game, T: int) -> float:
    """How far x_{T+1} is from satisfying the optimality conditions of eq:ada-sgl, computed from `game`'s gradients.

    The largest distance of -∇(m_{1:T}·x + h_T(x) + λ2‖x‖²) at x_{T+1} from the subgradients of the rest of Ψ_T, in any
    coordinate, over the largest of the terms that have to cancel (at least 1).
    """
    l1, l21, l2 = (game.player.weights[name] for name in ("l1", "l21", "l2"))
    x, sigma = game.in_groups(game.x[T]), game.in_groups(game.sigma[T - 1])
    linear = game.in_groups(game.m[:T].sum(axis=0) - (game.sigma_steps[:T] * game.x[:T]).sum(axis=0))
    root_A, tau = np.sqrt(sigma / 2 + l2), math.sqrt(x.shape[-1]) * l21
    norm = np.linalg.norm(root_A * x, axis=-1, keepdims=True)
    smooth = -(linear + (sigma + 2 * l2) * x) - tau * root_A**2 * x / np.where(norm > 0, norm, 1.0)
    excess = np.maximum(np.abs(smooth) - l1, 0.0)
    distance = np.where(x != 0, np.abs(smooth - l1 * np.sign(x)), excess).max(axis=-1, keepdims=True)
    of_zero = np.maximum(np.linalg.norm(excess / root_A, axis=-1, keepdims=True) - tau, 0.0)
    return float(np.where(norm > 0, distance, of_zero).max()) / max(1.0, float(np.abs(linear).max()))


def test_lemma_1_on_three_gradients_by_hand():
    # |x - 1| from 0 with a tiny α: g = -1, -1, -1. γ = ½: m = -1, -3/2, -7/4. η = 1: V = 1, 2, 3.
    at_end = Terms(play(Steady(3, 1.0), player(0.5, weights="0", alpha=1e-3), 3), 3)
    assert at_end.lemma_left[0] == pytest.approx(1e-3 * (1 + 2.25 / math.sqrt(2) + 3.0625 / math.sqrt(3)))
    assert at_end.lemma_right[0] == pytest.approx(2e-3 / 0.5 * math.sqrt(1 + 2.25 + 3.0625))


@pytest.mark.parametrize("gamma", [0.0, 0.9])
@pytest.mark.parametrize("weights", WEIGHTS)
@problems
def test_the_points_solve_the_update_that_section_3_is_about(problem, weights, gamma):
    played = game(problem, weights, gamma)  # by the library's Group Adagrad, and by the rule of Section 3's moments
    assert max(optimality_residual(played, T) for T in (1, 2, 30, STEPS)) < 1e-12
    if weights == "> 0":  # a moved point has a residual
        moved = replace(played, x=np.where(played.x == 0, 0.0, played.x + 0.01))
        assert optimality_residual(moved, STEPS) > 1e-4


@problems
def test_regret_is_the_sum_of_losses_over_that_of_the_best_point(problem):
    played = game(problem)
    T, revealed = 50, played.problem
    best = revealed.optimum(T)

    def loss(t: int, run: int, x: np.ndarray) -> float:
        if isinstance(revealed, Logistic):
            logit, label = float(revealed.features[t, run] @ x), float(revealed.labels[t, run])
            return -label * math.log(1 / (1 + math.exp(-logit))) - (1 - label) * math.log(1 / (1 + math.exp(logit)))
        return float(np.abs(x - revealed.targets[t, run]).sum())

    expected = [sum(loss(t, run, played.x[t, run]) - loss(t, run, best[run]) for t in range(T)) for run in range(RUNS)]
    np.testing.assert_allclose(Terms(played, T).regret, expected, rtol=1e-9)


@problems
def test_gradients_are_subgradients_and_the_best_point_is_the_best(problem):
    played = game(problem)
    rng = np.random.default_rng(0)
    step = rng.normal(size=played.g.shape)
    at_x, elsewhere = (played.problem.losses(x) for x in (played.x[:STEPS], played.x[:STEPS] + step))
    assert (elsewhere >= at_x + (played.g * step).sum(axis=-1) - 1e-12).all()
    assert np.abs(played.g).max() <= 1
    for T, scale in product((1, 5, STEPS), (1e-3, 0.1, 1.0)):
        best = played.problem.optimum(T)
        least, other = (
            played.problem.losses(np.broadcast_to(x, (T, *best.shape))).sum(axis=0)
            for x in (best, best + scale * rng.normal(size=best.shape))
        )
        assert (other >= least).all()


def test_half_of_the_groups_are_exactly_0_in_the_medians():
    best = Absolute(400, 3, 6, 4, 0).optimum(400).reshape(3, 6, 4)
    assert (best != 0).all(axis=2).tolist() == [[True, False] * 3] * 3
    assert (best == 0).all(axis=2).tolist() == [[False, True] * 3] * 3


@pytest.mark.parametrize("weights", WEIGHTS)
@problems
def test_every_inequality_of_section_3_holds_for_adagrad_at_every_round(problem, weights):
    played = game(problem, weights)
    assert played.sigma[0].min() >= 1  # h_1 ≥ h_0
    for T in range(1, STEPS + 1):
        at_T = Terms(played, T)
        assert (at_T.gradient <= played.player.delta).all()
        assert (at_T.regret <= at_T.theorem(at_T.monotone_h_0)).all()
        assert (at_T.regret <= at_T.theorem()).all()
        assert (at_T.lemma_left < at_T.lemma_right).all()
        assert (at_T.theorem(at_T.monotone_h_0) <= at_T.corollary_1_with_delta()).all()
        assert (at_T.theorem(at_T.lemma_h_0) <= at_T.corollary_2()).all()


@problems
def test_with_momentum_the_bound_holds_wherever_the_sum_of_the_condition_does(problem):
    played = game(problem, gamma=0.9)
    expected = [sum(0.9 ** (9 - t) * played.g[t, run] for t in range(10)) for run in range(RUNS)]
    np.testing.assert_allclose(played.m[9], expected, rtol=1e-12, atol=1e-14)
    best = played.problem.optimum(9)  # alignments are those of the moment before
    expected = [[played.m[t - 1, run] @ (played.x[t, run] - best[run]) for run in range(RUNS)] for t in range(1, 9)]
    np.testing.assert_allclose(Terms(played, 9).alignments, [[0.0] * RUNS, *expected], rtol=1e-12, atol=1e-12)
    for T in range(1, STEPS + 1):
        at_T = Terms(played, T)
        assert ((at_T.regret <= at_T.theorem()) | (at_T.alignments.sum(axis=0) < 0)).all()


def test_kappa_the_first_fall_of_a_decaying_v_and_the_growth_exponent_of_a_power_law():
    V = np.array([4.0, 5.0, 4.5, 9.0]).reshape(4, 1, 1)
    played = Game(Steady(4, 1.0), player(0.0, 0.5), np.zeros((5, 1, 1)), np.ones_like(V), np.ones_like(V), V)
    found = Analysis(played, "0", [4])
    assert (found.kappa, found.fall, found.negative_share) == (pytest.approx(5 / 4.5), 3, 1 / 4)
    rounds = [10, 30, 100, 1000]
    assert growth_exponent(rounds, [3 * T**0.25 for T in rounds]) == pytest.approx(0.25)
    assert growth_exponent([10, 100], [1.0, 0.0]) is None
    assert growth_exponent([10], [1.0]) is None


def test_the_counterexamples_break_the_printed_bounds_and_not_the_mended_ones():
    theorem, with_lemma, corollary = counterexamples()
    assert theorem.printed == pytest.approx(math.sqrt(2) / 20 / 2 + 1 / 2)
    assert corollary.printed == pytest.approx(1.5 * math.sqrt(100))
    for example in (theorem, with_lemma, corollary):
        assert example.conditions_hold
        assert example.printed < example.regret <= example.mended


def test_the_section_is_whole_and_the_same_again():
    done: list[int] = []
    section = regret(steps=40, runs=2)
    assert regret(steps=40, runs=2, on_progress=done.append) == section
    assert done == [*range(1, GAMES + 1)]
    assert [len(table.rows) for table in section.tables] == [18, 18, 3]
    for table in section.tables:
        for row in table.rows:
            for column, cell in zip(table.columns, row, strict=True):
                if not isinstance(cell, str | None):
                    assert math.isfinite(cell)
                    format(cell, column.format)
    assert [figure.name for figure in section.figures] == ["regret-logistic", "regret-adversary"]
    for series in (one for figure in section.figures for one in figure.series):
        assert len(series.x) == len(series.y) > 0
        assert min(series.y) > 0
