"""Learning rates along a training: by the formula, for table and network, and where a run is resumed."""

import math
from functools import partial

import pytest

from following import Each
from plain_settings import plain
from sparsegroup.data import MemoryLog, SyntheticConfig, synthetic_log
from sparsegroup.training.build import rate_factor


@pytest.fixture(scope="module")
def log() -> MemoryLog:
    return synthetic_log(SyntheticConfig(rows=1_000, cardinalities=(10, 100)), seed=4)


@pytest.mark.parametrize("warmup", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("steps", [1, 7, 100])
def test_the_factors_are_those_of_the_formula(steps: int, warmup: float) -> None:
    rising = math.ceil(warmup * steps)
    constant, linear, cosine = (partial(rate_factor, kind, steps, warmup) for kind in ("constant", "linear", "cosine"))
    for step in range(steps):
        if step < rising:
            assert constant(step) == linear(step) == cosine(step) == (step + 1) / rising
            continue
        along = (step - rising) / (steps - rising)
        assert constant(step) == 1
        assert linear(step) == pytest.approx(1 - along)
        assert cosine(step) == pytest.approx(math.cos(math.pi * along / 2) ** 2)
    assert all(schedule(step) > 0 for schedule in (linear, cosine) for step in (0, steps - 1, steps, 10 * steps))


def test_table_and_network_have_rates_of_their_own_that_fall_together(log: MemoryLog) -> None:
    config = plain(lr=0.1, network_lr=0.02, schedule="linear", warmup=0.2, epochs=2, batch_size=90, dim=2)
    model, optimizer = config.build(log)
    plan = config.training.plan(log.train_rows)
    assert plan.steps == 20
    rates: list[tuple[float, ...]] = []
    note = Each(batch=lambda _: rates.append(tuple(group["lr"] for group in optimizer.param_groups)))
    trainer = config.trainer(model, optimizer, plan, [note])
    begun = tuple(group["lr"] for group in optimizer.param_groups)
    trainer.fit(**plan.arguments(log))
    schedule = partial(rate_factor, "linear", 20, 0.2)
    expected = [(0.1 * schedule(step), 0.02 * schedule(step)) for step in range(21)]
    assert [begun, *rates] == [pytest.approx(pair) for pair in expected]


def test_without_a_schedule_there_is_no_scheduler(log: MemoryLog) -> None:
    config = plain()
    model, optimizer = config.build(log)
    assert config.trainer(model, optimizer, config.training.plan(900)).scheduler is None
    assert [group["lr"] for group in optimizer.param_groups] == [1e-3, 1e-3]
