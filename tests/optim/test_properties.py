"""What holds of every optimizer whatever its rule: when groups are zero, when they come back, what may not matter."""

import math
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from family import FAMILY, SIX, Member
from fixed_gradients import Array, Step, relative_error, take, trajectory
from over import over
from reference import Algorithm1, Regularizer
from sparsegroup import GroupMomentum, GroupOptimizer, GroupSGD
from sparsegroup.penalties import MCP, Hard, Penalty

ROWS, SIZE = 5, 3
every_member = over("member", FAMILY.values())
examples = settings(max_examples=8)


def parameter_at(x: Array) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor(x))


def random_steps(member: Member, seed: int, steps: int = 40, shape: tuple[int, ...] = (ROWS, SIZE)) -> list[Step]:
    rng = np.random.default_rng(seed)
    g = rng.normal(size=(steps, *shape)) + 0.5 * rng.normal(size=shape)
    h = rng.uniform(0.5, 2, size=g.shape) if member.second_order else [None] * steps
    return [Step(member.lr * (1 + t % 3), g[t], hessian=h[t]) for t in range(steps)]


def start(seed: int, shape: tuple[int, ...] = (ROWS, SIZE)) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def by_oracle(oracle: Algorithm1, step: Step) -> None:
    oracle.step(step.gradient.ravel(), step.lr, hessian=None if step.hessian is None else step.hessian.ravel())


@every_member
@given(seed=st.integers(0, 2**32 - 1), weight=st.floats(0, 10))
@examples
def test_the_group_lasso_on_groups_of_one_is_the_lasso(member: Member, seed: int, weight: float) -> None:
    steps, x = random_steps(member, seed, steps=10, shape=(ROWS, 1)), start(seed, (ROWS, 1))
    by_l1, by_l21 = parameter_at(x), parameter_at(x)
    a = trajectory(member.build(by_l1, l1=weight), by_l1, steps)
    b = trajectory(member.build(by_l21, l21=weight), by_l21, steps)
    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(a == 0, b == 0)


class TestLambdaMax:
    @over("l1", [0.0, 0.4])
    @over("member", SIX.values())
    def test_from_zero_all_stays_zero_above_it_and_not_below(self, member: Member, l1: float) -> None:
        steps = random_steps(member, seed=0)
        # While x is 0, z is the sum of m whatever σ is.
        oracle = Algorithm1(
            member.rule, np.zeros(ROWS * SIZE), [range(ROWS * SIZE)], Regularizer(), **member.hyperparameters
        )
        largest = 0.0
        for step in steps:
            oracle.x[:] = 0
            by_oracle(oracle, step)
            s = np.maximum(np.abs(oracle.z) - l1, 0).reshape(ROWS, SIZE)
            largest = max(largest, float(np.linalg.norm(s, axis=1).max()) / math.sqrt(SIZE))

        above, below = parameter_at(np.zeros((ROWS, SIZE))), parameter_at(np.zeros((ROWS, SIZE)))
        path_above = trajectory(member.build(above, l1=l1, l21=largest * (1 + 1e-9)), above, steps)
        path_below = trajectory(member.build(below, l1=l1, l21=largest * (1 - 1e-9)), below, steps)
        assert not path_above.any()
        assert path_below.any()

    @every_member
    @given(seed=st.integers(0, 2**32 - 1))
    @examples
    def test_from_anywhere_a_large_enough_lambda_zeroes_all_at_once(self, member: Member, seed: int) -> None:
        parameter = parameter_at(start(seed))
        take(member.build(parameter, l21=1e4), parameter, random_steps(member, seed, steps=1)[0])
        assert not parameter.any()


@every_member
@over("penalty", ["lasso", "mcp", "hard"])
def test_a_zeroed_group_comes_back_when_its_gradients_insist(member: Member, penalty: str) -> None:
    g = np.array([[1.0, 1.0, 1.0], [0.01, 0.01, 0.01]])
    h = np.ones_like(g) if member.second_order else None
    parameter = parameter_at(np.full((2, 3), 0.01))
    path = trajectory(
        member.build(parameter, l21=20.0, penalty=penalty), parameter, [Step(member.lr, g, hessian=h)] * 60
    )
    live = path.any(axis=2)
    assert not live[0].any()
    # Its gradients are all of one sign and the first group's add up to τ; the second's never do.
    first = int(live[:, 0].argmax())
    assert live[first:, 0].all()
    assert (path[-1, 0] < 0).all()
    assert not live[:, 1].any()


@every_member
@given(permutation=st.permutations(range(ROWS)), sparse=st.booleans())
@examples
def test_permuting_rows_permutes_the_result(member: Member, permutation: list[int], sparse: bool) -> None:
    options = {"l1": 0.3, "l21": 2.0, "l2": 0.1}
    x = start(1)
    plain, permuted = parameter_at(x), parameter_at(x[permutation])
    a, b = member.build(plain, **options), member.build(permuted, **options)
    place = np.argsort(permutation)
    for t, step in enumerate(random_steps(member, seed=2, steps=6)):
        rows = [t % ROWS, (2 * t + 1) % ROWS] if sparse and t % ROWS != (2 * t + 1) % ROWS else list(range(ROWS))
        g, h = step.gradient[rows], None if step.hessian is None else step.hessian[rows]
        take(a, plain, Step(step.lr, g, rows, h))
        take(b, permuted, Step(step.lr, g, place[rows].tolist(), h))
    np.testing.assert_allclose(permuted.detach().numpy(), plain.detach().numpy()[permutation], rtol=1e-13, atol=0)


class TestTouchedGroups:
    """A group that had a gradient once takes part in every dense step, even where it left no trace in u."""

    # From x = 2 the step g = 1 at lr = 1 reaches x = 1 unshrunk, with u = 0. Two steps later, at lr = 10 and g = 0,
    # ‖z‖ = σ x is √3/10 or 1/10, below τ = 0.5.
    @over("penalty", [MCP(gamma=1.5), Hard()])
    @over(("optimizer", "options"), [(GroupSGD, {}), (GroupMomentum, {"momentum": 0.0})])
    def test_under_a_penalty_that_does_not_shrink_large_groups(
        self, optimizer: type[GroupOptimizer], options: dict[str, Any], penalty: Penalty
    ) -> None:
        parameter = parameter_at(np.array([2.0]))
        stepper = optimizer([parameter], lr=1.0, l21=0.5, penalty=penalty, **options)
        take(stepper, parameter, Step(1.0, np.array([1.0])))
        assert parameter.item() == 1.0
        take(stepper, parameter, Step(1.0, np.array([0.0])))
        take(stepper, parameter, Step(10.0, np.array([0.0])))
        assert parameter.item() == 0.0

    # SGD has no state by which an unregularized group could remember that it had a gradient.
    @over("name", [name for name in FAMILY if name != "sgd"])
    def test_when_lambda_is_turned_on_later(self, name: str) -> None:
        member = FAMILY[name]
        parameter = parameter_at(start(0))
        optimizer = member.build(parameter)
        trajectory(optimizer, parameter, random_steps(member, seed=1, steps=3))
        optimizer.param_groups[0]["l21"] = 1e6
        nothing = np.zeros((ROWS, SIZE))
        take(optimizer, parameter, Step(member.lr, nothing, hessian=nothing if member.second_order else None))
        assert not parameter.any()


@every_member
def test_a_changed_lambda_is_algorithm_1_with_the_lambda_of_each_step(member: Member) -> None:
    plain = {"l1": 0.0, "l21": 0.0, "l2": 0.0}
    group_lasso, all_three = {**plain, "l21": 6 * member.gain}, {"l1": 0.5, "l21": member.gain, "l2": 0.2}
    phases = [plain, group_lasso, all_three, plain, group_lasso]
    x = start(3)
    parameter = parameter_at(x)
    optimizer = member.build(parameter, **plain)
    groups = np.arange(x.size).reshape(x.shape).tolist()
    oracle = Algorithm1(member.rule, x.ravel(), groups, Regularizer(), **member.hyperparameters)
    paths: list[list[Array]] = [[], []]
    for t, step in enumerate(random_steps(member, seed=4, steps=50)):
        optimizer.param_groups[0].update(phases[t // 10])
        oracle.regularizer = Regularizer(**phases[t // 10])
        take(optimizer, parameter, step)
        by_oracle(oracle, step)
        paths[0].append(parameter.detach().numpy().copy())
        paths[1].append(oracle.x.reshape(x.shape).copy())
    ours, theirs = map(np.stack, paths)
    assert relative_error(ours, theirs) < 1e-10
    np.testing.assert_array_equal(ours == 0, theirs == 0)
    assert (ours == 0).any()
