"""Theorem 2: with all λ = 0 every optimizer is its counterpart in torch.optim, under any scheduler."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, Optimizer, RMSprop, SparseAdam, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from fixed_gradients import relative_error, rests_at_0
from over import over
from rmsprop import GroupRMSprop
from sparsegroup import GroupAdagrad, GroupAdam, GroupAMSGrad, GroupMomentum, GroupSGD

STEPS = 120
SHAPE = (6, 3)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}

START_AND_DECAY = {"lr": 0.5, "lr_decay": 0.01, "initial_accumulator_value": 0.1, "eps": 1e-6}
LOOK_AHEAD = {"lr": 0.02, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "maximize": True}
DECAYED = {"lr": 0.05, "betas": (0.8, 0.95), "weight_decay": 0.1}
SHORT_MEMORY = {"lr": 0.05, "betas": (0.9, 0.9), "weight_decay": 0.1}

# Ours, theirs, the options of both. GroupSGD divides the learning rate by √t; sparse gradients hold some rows only.
TABLE: Mapping[str, tuple[type[Optimizer], Callable[..., Optimizer], dict[str, Any]]] = {
    "sgd": (GroupSGD, SGD, {"lr": 0.5}),
    "sgd, sparse": (GroupSGD, SGD, {"lr": 0.5}),
    "sgd at a constant rate": (GroupMomentum, SGD, {"lr": 0.02, "momentum": 0.0}),
    "momentum": (GroupMomentum, SGD, {"lr": 0.02, "momentum": 0.9}),
    "nesterov, weight decay, maximize": (GroupMomentum, SGD, LOOK_AHEAD),
    "adagrad": (GroupAdagrad, Adagrad, {"lr": 0.5}),
    "adagrad, start, decay and weight decay": (GroupAdagrad, Adagrad, {**START_AND_DECAY, "weight_decay": 0.1}),
    "adagrad, sparse": (GroupAdagrad, Adagrad, START_AND_DECAY),
    "adam": (GroupAdam, Adam, {"lr": 0.05}),
    "adam, weight decay": (GroupAdam, Adam, DECAYED),
    "adam, sparse": (GroupAdam, SparseAdam, {"lr": 0.05}),
    "amsgrad": (GroupAMSGrad, partial(Adam, amsgrad=True), SHORT_MEMORY),
    "from another package": (GroupRMSprop, RMSprop, {"lr": 0.01, "weight_decay": 0.1}),
}


def one_cycle(optimizer: Optimizer) -> LRScheduler:
    """A warm-up that ends near 0, and that cycles momentum or β1 where the optimizer has them."""
    defaults = optimizer.defaults
    cycles = "betas" in defaults or bool(defaults.get("momentum"))
    return lr_scheduler.OneCycleLR(optimizer, max_lr=defaults["lr"], total_steps=STEPS, cycle_momentum=cycles)


SCHEDULERS: Mapping[str, Callable[[Optimizer], LRScheduler]] = {
    "restarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=15, T_mult=2),
    "to 0 and back": lambda optimizer: lr_scheduler.LambdaLR(optimizer, rests_at_0),
    "one cycle": one_cycle,
}


def gradients(dtype: torch.dtype, sparse: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    g = torch.randn(STEPS, *SHAPE, dtype=dtype, generator=generator)
    g += torch.randn(1, *SHAPE, dtype=dtype, generator=generator) * 0.3
    if not sparse:
        return list(g)
    rows = [torch.randperm(SHAPE[0], generator=generator)[:2] for _ in range(STEPS)]
    return [
        torch.sparse_coo_tensor(at[None], step[at], SHAPE, dtype=dtype, check_invariants=True)
        for at, step in zip(rows, g, strict=True)
    ]


def scheduled_step(optimizer: Optimizer, scheduler: LRScheduler, factor: float) -> float:
    """A step at `factor` times the learning rate, unseen by the scheduler; returns the learning rate."""
    group = optimizer.param_groups[0]
    lr = group["lr"]
    group["lr"] = lr * factor
    optimizer.step()
    group["lr"] = lr
    scheduler.step()
    return float(lr)


RUNS = [(case, torch.float64, scheduler) for case in TABLE for scheduler in SCHEDULERS]
RUNS += [(case, torch.float32, "restarts") for case in ("sgd", "adam")]


@over(("case", "dtype", "scheduler"), RUNS)
def test_without_regularizer_it_is_the_base_optimizer(case: str, dtype: torch.dtype, scheduler: str) -> None:
    cls, counterpart, options = TABLE[case]
    x = torch.randn(SHAPE, dtype=dtype, generator=torch.Generator().manual_seed(0))
    a, b = torch.nn.Parameter(x.clone()), torch.nn.Parameter(x.clone())
    ours, theirs = cls([a], **options), counterpart([b], **options)
    if counterpart is SparseAdam:
        # Its ε is ours times √(1 - β2^t), and its constructor refuses 0.
        ours.param_groups[0]["eps"] = theirs.param_groups[0]["eps"] = 0.0
    our_scheduler, their_scheduler = SCHEDULERS[scheduler](ours), SCHEDULERS[scheduler](theirs)

    our_path, their_path, rates = [], [], []
    # torch's optimizers build sparse tensors, which warns unless these checks are switched on or off.
    with torch.sparse.check_sparse_tensor_invariants():
        for epoch, g in enumerate(gradients(dtype, case.endswith("sparse"))):
            a.grad = b.grad = g
            rates.append(scheduled_step(ours, our_scheduler, 1.0))
            assert scheduled_step(theirs, their_scheduler, (epoch + 1) ** -0.5 if cls is GroupSGD else 1) == rates[-1]
            our_path.append(a.detach().clone())
            their_path.append(b.detach().clone())

    assert (0.0 in rates) == (scheduler == "to 0 and back")
    assert "u" not in ours.state[a]
    assert relative_error(torch.stack(our_path), torch.stack(their_path)) < TOLERANCE[dtype]
