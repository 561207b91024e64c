"""The step and the sweep in PyTorch: readable, on any device, the oracle of the compiled kernels.

A step (`advance`) computes m and σ by the rule, then x⁺ and u⁺ by the closed form (`regularized_step`). x and u
of a group that has never had a non-zero gradient stay unchanged.

The sweep is the closed form without a gradient: which λ21 a group survives, and what a changed λ makes of it. With
m = 0 and σ as the rule would give it for a gradient of zero at this step, its state unchanged:

    z = u - σ x,  s and x⁺ as in `sparsegroup.prox`

A group lives where ‖weigh(s)‖ > √d λ21 (scaled to the norm), for any penalty: so

    ‖weigh(s)‖ / √d

is its survival λ21, which separates groups that will stay from groups that will go without stepping any of them. The
survival λ21 of a group that never had a non-zero gradient is infinite.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsegroup import prox
from sparsegroup.groups import Grouping, grouping
from sparsegroup.kernels.rounding import to_bfloat16, was_updated, zero_as_updated
from sparsegroup.kernels.step import (
    Backend,
    Launch,
    ParameterMemory,
    Regularizer,
    StepConstants,
    TensorPlan,
    compute_dtype,
)
from sparsegroup.rules import Rule


@dataclass(frozen=True)
class Block:
    """A parameter or some of its rows: weights, u (None if not carried), `rule.state`. All in the compute dtype."""

    x: Tensor
    u: Tensor | None
    state: Sequence[Tensor]


def advance(
    rule: Rule,
    block: Block,
    gradients: Sequence[Tensor],
    scalars: Sequence[float],
    initial: Sequence[float],
    sigma_0: float | None,
    regularizer: Regularizer,
    groups: Grouping,
    dtype: torch.dtype,
) -> Block:
    """The block after one step, its `x` in `dtype`, in which the parameter is stored.

    `gradients` has the second input too for a rule that takes one; `scalars`, `initial` and `sigma_0` are the
    rule's, `initial` as the state is stored.
    """
    x, u = block.x, block.u
    m, sigma, *state = rule.update(*gradients, *block.state, *scalars)
    if u is None:  # the base optimizer
        return Block(prox.base_step(x, m, sigma, x.new_zeros(())), None, state)
    charged = u
    if sigma_0 is not None:  # u₀ = σ₀ x₁
        charged = torch.where(groups.any(was_updated(u)), u, sigma_0 * x)
    stored, u_after = regularized_step(x, charged, m, sigma, regularizer, groups, dtype)
    touched = ever_touched(gradients[0], u, block.state, initial, groups)
    return Block(torch.where(touched, stored, x.to(dtype)), torch.where(touched, u_after, u), state)


def ever_touched(g: Tensor, u: Tensor, state: Sequence[Tensor], initial: Sequence[float], groups: Grouping) -> Tensor:
    """Return whether each group has ever had a non-zero gradient, which changes u or the state; broadcasts to `g`."""
    touched = (g != 0) | was_updated(u)
    for before, untouched in zip(state, initial, strict=True):
        # As the state is stored: a default such as 0.1 has another float32 value.
        touched |= before != before.new_tensor(untouched)
    return groups.any(touched)


def regularized_step(
    x: Tensor, u: Tensor, m: Tensor, sigma: Tensor, regularizer: Regularizer, groups: Grouping, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """x̂ in `dtype` and u⁺ in the compute dtype: the closed form of `sparsegroup.prox`, with z = u + m - σ x.

    A zero in u⁺ is stored as -0: +0 throughout a group means that it was never updated.
    """
    zero, one = x.new_zeros(()), x.new_ones(())
    two_l2 = 2 * regularizer.l2
    z = u + m - sigma * x
    s = prox.soft_threshold(z, regularizer.l1, zero)
    r = prox.clip(z, regularizer.l1)
    c = sigma + two_l2
    q = zero
    if regularizer.l21 > 0:
        norm = groups.norm(regularizer.norm.weigh(s, c, zero))
        tau = groups.sqrt_size * regularizer.tau
        tau = tau.to(x.dtype) if isinstance(tau, Tensor) else x.new_full((), tau)
        q = regularizer.penalty.shrinkage(norm, tau, zero, one, *regularizer.penalty.scalars())
    keep = one if regularizer.keep else zero
    y = prox.closed_form(x, s, q, c, keep, zero, one)
    exact = prox.solution(x, u, m, r, s, q, y, two_l2, c, zero)
    stored = exact.to(dtype)
    rounding = zero if dtype == x.dtype else sigma * (stored.to(x.dtype) - exact)
    return stored, zero_as_updated(prox.next_residual(r, s, q, y, two_l2, rounding), -zero)


class EagerBackend(Backend):
    """The step of `rule` in eager PyTorch: any device, dtype and grouping."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def takes(self, memory: ParameterMemory, sparse: bool) -> bool:
        """Every parameter."""
        return True

    def launch(self, memories: Sequence[ParameterMemory]) -> Launch:
        """Return the backend: nothing is prepared."""
        return self

    def step(self, plans: Sequence[TensorPlan], constants: StepConstants) -> None:
        """See `Launch.step`."""
        for plan in plans:
            self._step(plan, constants)

    def step_rows(self, plan: TensorPlan, constants: StepConstants) -> None:
        """See `Backend.step_rows`."""
        plan.sum_rows()
        self._step(plan, constants)

    def _step(self, plan: TensorPlan, constants: StepConstants) -> None:
        memory, rows, scalars = plan.memory, plan.rows, plan.scalars
        dtype = compute_dtype(memory.dtype)

        def read(part: Tensor) -> Tensor:
            return (part if rows is None else part[rows]).to(dtype)

        def write(part: Tensor, value: Tensor) -> None:
            if rows is None:
                part.copy_(value)
            else:
                part.index_copy_(0, rows, value.to(part.dtype))

        def write_state(number: int, part: Tensor, value: Tensor) -> None:
            if part.dtype == torch.bfloat16:
                value = to_bfloat16(value.float(), _elements(part, rows), scalars.seed, number)
            write(part, value)

        before = Block(
            read(memory.x), None if memory.u is None else read(memory.u), [read(part) for part in memory.state]
        )
        after = advance(
            self.rule,
            before,
            [g.to(dtype) for g in (plan.gradient, plan.second_input) if g is not None],
            scalars.of_rule,
            constants.initial_as(part.dtype for part in memory.state),
            scalars.sigma_0 if self.rule.sigma_0 is not None else None,
            constants.regularizer,
            memory.groups if rows is None else grouping("rows", before.x.shape, memory.x.device),
            memory.dtype,
        )
        for number, (part, moment) in enumerate(zip(memory.state, after.state, strict=True), 1):
            write_state(number, part, moment)
        moves = scalars.moves
        x, u = after.x, after.u
        if isinstance(moves, Tensor):  # capturable, so only the device knows: x and u are written as they were
            x = torch.where(moves != 0, x, before.x.to(x.dtype))
            u = None if u is None or before.u is None else torch.where(moves != 0, u, before.u)
        elif not moves:
            return
        write(memory.x, x)
        if u is not None and memory.u is not None:
            write_state(0, memory.u, u)


def _elements(tensor: Tensor, rows: Tensor | None) -> Tensor:
    """The number of each element of `tensor`, or of some of its rows, wrapped to int32 as the kernels do."""
    if rows is None:
        return torch.arange(tensor.numel(), dtype=torch.int64, device=tensor.device).to(torch.int32).view(tensor.shape)
    shape = tensor.shape[1:]
    numbers = rows.unsqueeze(1) * shape.numel() + torch.arange(shape.numel(), dtype=torch.int64, device=tensor.device)
    return numbers.to(torch.int32).view(-1, *shape)


def survival_l21(
    rule: Rule,
    block: Block,
    scalars: Sequence[float],
    initial: Sequence[float],
    regularizer: Regularizer,
    groups: Grouping,
) -> Tensor:
    """Return the smallest λ21 at which each group is zero, given λ1, λ2 and the norm. Broadcasts to `block.x`."""
    x, u, zero = block.x, _u(block), block.x.new_zeros(())
    sigma = _sigma(rule, block, scalars)
    s = prox.soft_threshold(u - sigma * x, regularizer.l1, zero)
    weighed = regularizer.norm.weigh(s, sigma + 2 * regularizer.l2, zero)
    norm = groups.norm(weighed) / (groups.sqrt_size * regularizer.norm.tau_scale)
    touched = ever_touched(zero.expand_as(u), u, block.state, initial, groups)
    return torch.where(touched, norm, torch.full_like(norm, torch.inf))


def swept(
    rule: Rule,
    block: Block,
    scalars: Sequence[float],
    initial: Sequence[float],
    regularizer: Regularizer,
    groups: Grouping,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """x̂ in `dtype` and u⁺ of the closed form without a gradient, and which groups ever had one; the others stay."""
    x, u = block.x, _u(block)
    m = torch.zeros_like(x)
    stored, u_after = regularized_step(x, u, m, _sigma(rule, block, scalars), regularizer, groups, dtype)
    touched = ever_touched(m, u, block.state, initial, groups)
    return torch.where(touched, stored, x.to(dtype)), torch.where(touched, u_after, u), touched


def _u(block: Block) -> Tensor:
    return torch.zeros_like(block.x) if block.u is None else block.u


def _sigma(rule: Rule, block: Block, scalars: Sequence[float]) -> Tensor:
    """σ of a step whose gradient is zero, shaped as x."""
    zero = torch.zeros_like(block.x)
    gradients = [zero, zero] if rule.has_second_input else [zero]
    _, sigma, *_ = rule.update(*gradients, *block.state, *scalars)
    of_all: Tensor = zero + sigma
    return of_all
