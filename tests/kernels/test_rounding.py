"""Rounding to bfloat16: to the nearest as torch does it, or to one of the two neighbours by chance."""

import math

import torch
from torch import Tensor

from sparsegroup.kernels import rounding
from sparsegroup.optim.step import step_seed

SPECIAL = (
    0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 2.0**-126, -(2.0**-126), 2.0**-149, -(2.0**-149), 2.0**-133,
    1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-23, -1 - 2**-8, torch.finfo(torch.float32).max,
    -torch.finfo(torch.float32).max, torch.finfo(torch.bfloat16).max, torch.finfo(torch.bfloat16).tiny,
)  # fmt: skip
STRANGE_NAN = (0x7F800001, 0x7F80FFFF, 0x7FFFFFFF, -1, -0x7FFFFF, 0x7FC00000)


def any_floats(count: int = 500_000) -> Tensor:
    """All kinds of float32: special ones, and bits drawn uniformly."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(-(1 << 31), 1 << 31, (count,), generator=generator).to(torch.int32)
    strange = torch.tensor(STRANGE_NAN, dtype=torch.int32)
    return torch.cat([torch.tensor(SPECIAL), strange.view(torch.float32), drawn.view(torch.float32)])


def bits_of(values: Tensor) -> Tensor:
    return values.float().view(torch.int32)


def numbered(values: Tensor) -> Tensor:
    return torch.arange(values.numel(), dtype=torch.int32).view(values.shape)


def by_chance(values: Tensor, t: int = 1, part: int = 0) -> Tensor:
    return rounding.to_bfloat16(values, numbered(values), step_seed(t), part)


def test_to_the_nearest_is_as_torch_converts() -> None:
    values = any_floats()
    rounded = rounding.nearest_bits(values.view(torch.int32)).view(torch.float32)
    assert torch.equal(rounded.isnan(), values.isnan())
    known = ~values.isnan()
    assert torch.equal(bits_of(rounded)[known], bits_of(values.to(torch.bfloat16))[known])
    assert torch.equal(bits_of(rounded.to(torch.bfloat16))[known], bits_of(rounded)[known])


def test_by_chance_gives_one_of_the_two_neighbours() -> None:
    values = any_floats()
    finite = values[values.isfinite()]
    toward_zero = bits_of(finite) & -65536
    rounded = bits_of(by_chance(finite))
    away, marked = toward_zero + 65536, (toward_zero == 0) & (finite != 0) & (rounded == -(1 << 31))
    assert ((rounded == toward_zero) | (rounded == away) | marked).all()
    exact = bits_of(finite) == toward_zero
    assert torch.equal(rounded[exact], toward_zero[exact])
    assert 0.4 < (rounded == away)[~exact].double().mean() < 0.6


def test_infinity_and_nan_stay() -> None:
    values = any_floats()
    rounded = by_chance(values).float()
    assert torch.equal(rounded.isnan(), values.isnan())
    assert torch.equal(rounded[values.isinf()], values[values.isinf()])


def test_values_of_bfloat16_stay() -> None:
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.bfloat16)
    for t in range(4):
        rounded = by_chance(every.float(), t)
        assert torch.equal(rounded.isnan(), every.isnan())
        assert torch.equal(rounded.view(torch.int16)[~every.isnan()], every.view(torch.int16)[~every.isnan()])


def test_only_positive_zero_becomes_positive_zero() -> None:
    """It is the mark of a group that was never updated."""
    small = torch.arange(1 << 16, dtype=torch.int32)
    values = torch.cat([small, small - (1 << 31)]).view(torch.float32)
    for t in range(4):
        assert torch.equal(bits_of(by_chance(values, t)) == 0, bits_of(values) == 0)
    assert torch.equal(bits_of(by_chance(any_floats())) == 0, bits_of(any_floats()) == 0)


def test_nothing_is_lost_on_average() -> None:
    """The mean over seeds, and the mean over elements, of errors in units of the gap between the neighbours."""
    values = 1 + torch.rand(64, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    gap, seeds = 2**-7, 4000
    errors = torch.stack([(by_chance(values, t).double() - values) / gap for t in range(seeds)])
    up = (values.double() - 1) / gap % 1
    deviation = (up * (1 - up)).sqrt()
    assert (errors.mean(0).abs() <= 5 * deviation / math.sqrt(seeds) + 1e-4).all()
    assert abs(float(errors.mean())) <= 5 * float(deviation.square().mean().sqrt()) / math.sqrt(errors.numel())

    many = torch.full((1_000_000,), 1.001)
    up = (many[0].double() - 1) / gap
    error = float((by_chance(many).double() - many.double()).mean()) / gap
    assert abs(error) <= 5 * math.sqrt(up * (1 - up) / len(many))


def test_chance_is_that_of_seed_part_and_element() -> None:
    values = torch.full((10_000,), 1 + 2**-8)
    first = by_chance(values)
    assert torch.equal(by_chance(values), first)
    seed = torch.tensor(step_seed(1), dtype=torch.int32)
    assert torch.equal(rounding.to_bfloat16(values, numbered(values), seed, 0), first)
    assert torch.equal(rounding.to_bfloat16(values[7:], numbered(values)[7:], seed, 0), first[7:])
    for other in (by_chance(values, part=1), by_chance(values, part=2), by_chance(values, t=2), first.roll(1)):
        assert 0.45 < (other == first).double().mean() < 0.55


def test_seeds_are_int32_and_differ() -> None:
    seeds = {step_seed(t) for t in range(10_000)}
    assert len(seeds) == 10_000
    assert all(-(1 << 31) <= seed < 1 << 31 for seed in seeds)
    assert -(1 << 31) <= step_seed(1 << 40) < 1 << 31
