"""Numbers on their way into a network: moments against NumPy's, buckets by their definition, the way to an export."""

import copy
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cli_cases import click_log
from command import Run
from sparsegroup import GroupAdaHessian, HashEmbedding, param_groups
from sparsegroup.models import MLP, NumberEncoder, WithNumbers, number_encoder
from sparsegroup.models.layers import merged_moments
from sparsegroup.models.number_encoder import LIMIT, bucket_edges, has_heavy_tails, log_unit
from sparsegroup.serving import open_trained
from sparsegroup.training import Trainer
from sparsegroup.training.network_step import NetworkStep
from sparsegroup.training.predictions import as_batch
from sparsegroup.training.ranks import GlobalBatch

NAN, INF = float("nan"), float("inf")


def sample_of(rows: int = 4_000, seed: int = 0) -> Tensor:
    """A normal column, a log-normal one, small counts with missing ones, and a constant one."""
    random = np.random.default_rng(seed)
    columns = [random.normal(3, 2, rows), random.lognormal(0, 2, rows), random.poisson(1, rows), np.full(rows, 0.1)]
    columns[2] = np.where(random.random(rows) < 0.2, np.nan, columns[2])
    return torch.from_numpy(np.stack(columns, 1).astype(np.float32))


def fitted(sample: Tensor, dim: int = 3, buckets: int = 8, standardize: bool = True) -> NumberEncoder:
    torch.manual_seed(0)
    encoder = NumberEncoder(sample.shape[1], dim, buckets, standardize)
    encoder.fit(sample)
    return encoder


class TestStandardizing:
    def test_moments_are_those_of_all_rows_whatever_the_batches(self) -> None:
        rows = sample_of()[:, [0, 2]]  # without a logarithm
        encoder, begin = NumberEncoder(2, 1, 0), 0
        for size in (100, 1, 899, 0, 3_000):
            encoder(rows[begin : begin + size])
            begin += size
        columns = [column[~np.isnan(column)] for column in rows.double().numpy().T]
        assert encoder.count.tolist() == [len(column) for column in columns]
        assert encoder.mean.numpy() == pytest.approx([column.mean() for column in columns], rel=1e-12)
        assert encoder.m2.numpy() == pytest.approx([column.var() * len(column) for column in columns], rel=1e-10)
        standardized, vectors = encoder.eval()(rows)
        expected = (columns[0] - columns[0].mean()) / columns[0].std()
        assert standardized[:, 0].numpy() == pytest.approx(expected, abs=1e-6)
        assert vectors.shape == (4_000, 0, 1)

    def test_a_batch_is_standardized_before_it_counts_and_evaluation_changes_nothing(self) -> None:
        encoder = fitted(sample_of())
        other = sample_of(seed=1) + 1
        before = copy.deepcopy(encoder.state_dict())
        evaluated, _ = encoder.eval()(other)
        assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
        assert torch.equal(encoder.train()(other)[0], evaluated)
        after = encoder.state_dict()
        assert {name for name in before if not torch.equal(before[name], after[name])} == {"count", "mean", "m2"}
        assert not torch.equal(encoder.eval()(other)[0], evaluated)

    def test_missing_and_constant_numbers_are_zero(self) -> None:
        encoder = fitted(sample_of()).eval()
        standardized, _ = encoder(torch.tensor([[NAN, NAN, NAN, NAN], [3.0, 1.0, 1.0, 0.1]]))
        assert standardized[0].tolist() == [0.0] * 4
        assert standardized[1, 3] == 0.0
        standardized, vectors = fitted(torch.full((5, 1), NAN)).eval()(torch.tensor([[NAN], [4.0]]))
        assert standardized[0] == 0
        assert standardized.isfinite().all()
        assert not torch.equal(vectors[0], vectors[1])
        unchanged, _ = fitted(sample_of(), standardize=False)(torch.tensor([[1.0, 2.0, NAN, -4.0]]))
        assert unchanged.tolist() == [[1.0, 2.0, 0.0, -4.0]]

    @pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0])
    def test_a_heavy_tail_is_taken_the_logarithm_of_whatever_the_unit(self, scale: float) -> None:
        sample = sample_of()
        encoder = fitted(sample).eval()
        assert encoder.signed_log.tolist() == [False, True, False, False]
        logs = np.log1p(sample[:, 1].double().numpy() / float(encoder.unit[1]))
        expected = (logs - logs.mean()) / logs.std()
        assert encoder(sample)[0][:, 1].numpy() == pytest.approx(expected, abs=1e-5)
        small = torch.from_numpy(np.random.default_rng(0).lognormal(-6, 2, 2_000))[:, None] * 1e-2
        scaled = (small * scale).float()
        assert torch.allclose(fitted(scaled).eval()(scaled)[0], fitted(small).eval()(small.float())[0], atol=1e-4)

    def test_extremes_stay_finite_and_carry_nothing_away_but_a_level_that_shifts_is_followed(self) -> None:
        encoder = fitted(sample_of())
        mean, deviation = encoder.mean.clone(), (encoder.m2 / encoder.count).sqrt()
        for extreme in (1e30, -1e30, INF, -INF, 3.4e38):
            standardized, vectors = encoder(torch.full((1, 4), extreme))
            assert standardized.abs().max() <= LIMIT
            assert vectors.isfinite().all()
        away = ((encoder.mean - mean).abs() / deviation)[:3]
        assert away.max() < 0.02
        assert encoder.m2.isfinite().all()
        shifted = torch.randn(1_000, 1, generator=torch.Generator().manual_seed(0))
        encoder = fitted(shifted)
        for _ in range(60):
            encoder(shifted + 1_000)
        assert float(encoder.eval()(shifted + 1_000)[0].abs().mean()) < 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_agree_with_torchs_operators(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = torch.cat([sample_of(), torch.full((4_000, 1), NAN)], 1).to(dtype)
    rows = torch.cat([sample_of(500, seed=2).to(dtype) * 3, torch.zeros(500, 1, dtype=dtype)], 1)
    rows[:6] = torch.tensor([NAN, INF, -INF, 0.0, -1e30, 0.1])[:, None]
    found = []
    for traced in (False, True):
        monkeypatch.setattr(number_encoder, "is_traced", lambda traced=traced: traced)
        encoder = fitted(sample).double() if dtype == torch.float64 else fitted(sample)
        standardized, vectors = encoder(rows)
        vectors.square().sum().backward()
        assert encoder.embedding.grad is not None
        found.append((vectors, standardized, encoder.embedding.grad, encoder.count, encoder.mean, encoder.m2))
    assert torch.equal(found[0][0], found[1][0])
    for kernels, operators in zip(*found, strict=True):
        torch.testing.assert_close(kernels, operators, rtol=1e-5 if kernels.dtype == torch.float32 else 1e-12, atol=0)


def moments_of(rows: Tensor) -> Tensor:
    """Moments `[3, 1]` of rows `[n]` float64."""
    mean = rows.mean() if len(rows) else torch.tensor(0.0)
    return torch.tensor([[len(rows)], [mean], [(rows - mean).square().sum()]], dtype=torch.float64)


@pytest.mark.parametrize(("seed", "level"), [(0, 0.0), (1, 1e6), (2, -3e9), (3, 1e6)])
def test_merging_is_associative_and_gives_the_moments_of_all_rows(seed: int, level: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    rows = level + torch.randn(1_000, generator=draw, dtype=torch.float64).cumsum(0)
    edges = [0, *sorted(torch.randint(1_001, (4,), generator=draw).tolist()), 1_000]
    parts = [moments_of(rows[begin:end]) for begin, end in pairwise(edges)]
    parts.insert(seed, moments_of(rows[:0]))
    ways = [parts]
    for cut in range(1, len(parts)):
        ways.append([torch.stack(merged_moments(torch.stack(one))) for one in (parts[:cut], parts[cut:])])
        ways.append([*parts[cut:], *parts[:cut]])
    for way in ways:
        count, mean, m2 = merged_moments(torch.stack(way))
        assert count.item() == 1_000
        assert mean.item() == pytest.approx(rows.mean().item(), rel=1e-14, abs=1e-14)
        expected = (rows - rows.mean()).square().sum().item()
        rounding = 2.2e-16 * (100 + abs(level) / math.sqrt(expected / 1_000))  # of means, next to the deviation
        assert m2.item() == pytest.approx(expected, rel=4 * rounding)


def test_heavy_tails_by_kurtosis() -> None:
    random = np.random.default_rng(0)
    for values, heavy in (
        (random.normal(size=5_000), False),
        (random.lognormal(0, 2, 5_000) * random.choice([-1, 1], 5_000), True),
        (random.pareto(1, 5_000) * 1e-4, True),
        (np.append(random.normal(size=5_000), 1e30), True),
        (random.random(5_000) < 0.01, False),  # of two values: no function of them is less heavy
        (np.zeros(9), False),
        (np.zeros(0), False),
    ):
        assert has_heavy_tails(torch.from_numpy(np.asarray(values, np.float64))) is heavy
    assert log_unit(torch.zeros(4)) == log_unit(torch.tensor([5.0, 0.0])) == 1.0


class TestBuckets:
    def test_a_number_is_in_the_bucket_of_the_edges_below_it_also_in_a_graph(self) -> None:
        sample = sample_of()
        encoder = fitted(sample).eval()
        numbers = torch.cat([sample[:50], encoder.edges.T, torch.tensor([[NAN], [INF], [-INF]]).expand(3, 4)])
        standardized, vectors = encoder(numbers)
        for place in range(4):
            for row, number in enumerate(numbers[:, place].tolist()):
                bucket = 8 if math.isnan(number) else sum(number > edge for edge in encoder.edges[place].tolist())
                assert torch.equal(vectors[row, place], encoder.embedding[place, bucket])
        graph = torch.export.export(encoder, (numbers,)).module()
        for found, wanted in zip((standardized, vectors), graph(numbers), strict=True):
            assert torch.equal(found, wanted)
        assert torch.equal(encoder(numbers.double())[1], vectors)

    def test_buckets_hold_the_same_but_a_frequent_value_has_one_and_leaves_the_others(self) -> None:
        values = torch.randn(8_000, generator=torch.Generator().manual_seed(0)).double().sort().values
        edges = bucket_edges(values, 16)
        counts = torch.bincount((values[:, None] > edges).sum(1))
        assert (len(edges), len(counts)) == (15, 16)
        assert 499 <= counts.min() <= counts.max() <= 501
        values = torch.cat([torch.zeros(9_000), torch.arange(1, 1_001.0)]).double()
        counts = torch.bincount((values[:, None] > bucket_edges(values, 11)).sum(1))
        assert counts[0] == 9_000
        assert len(counts) >= 10
        assert counts[1:].max() < 130

    def test_few_values_have_a_bucket_each_and_edges_lie_between(self) -> None:
        values = torch.tensor([1.0, 1, 1, 4, 4, 10], dtype=torch.float64)
        assert bucket_edges(values, 8).tolist() == bucket_edges(values, 3).tolist() == [2.5, 7.0]
        assert len(bucket_edges(values, 2)) == 1
        assert len(bucket_edges(values, 1)) == len(bucket_edges(values[:3], 8)) == len(bucket_edges(values[:0], 8)) == 0

    def test_gradients_reach_the_buckets_that_came_alone(self) -> None:
        encoder = fitted(sample_of(), dim=2)
        _, vectors = encoder(torch.tensor([[0.0, NAN, 1.0, 0.1]]))
        vectors.sum().backward()
        assert encoder.embedding.grad is not None
        assert encoder.embedding.grad.sum((1, 2)).tolist() == [2.0] * 4
        assert encoder.embedding.grad[1, 8].tolist() == [1.0, 1.0]


def test_the_first_batch_is_the_sample_and_a_state_continues_with_the_same_bits() -> None:
    sample, rows = sample_of(), sample_of(100, seed=3) * 2
    encoder, other = fitted(sample), NumberEncoder(4, 3, 8)
    other.eval()(sample)
    assert not other.is_fitted
    other.train()(sample)
    assert other.is_fitted
    state = encoder.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in other.state_dict().items() if name != "embedding")
    loaded = NumberEncoder(4, 3, 8)
    loaded.load_state_dict(state)
    assert loaded.is_fitted
    expected = encoder(rows) + encoder(rows)
    for one in (copy.deepcopy(loaded), loaded):
        assert all(torch.equal(a, b) for a, b in zip(one(rows) + one(rows), expected, strict=True))


def test_sizes_and_shapes_are_checked() -> None:
    for sizes, name in (((0, 1, 1), "numbers"), ((1, 0, 1), "dim"), ((1, 1, -1), "buckets")):
        with pytest.raises(ValueError, match=f"{name} must be >="):
            NumberEncoder(*sizes)
    encoder = NumberEncoder(2, 1)
    with pytest.raises(ValueError, match=r"numbers must be \[batch, 2\], got \[3, 1\]"):
        encoder(torch.zeros(3, 1))
    with pytest.raises(ValueError, match=r"sample must be \[rows, 2\], got \[3\]"):
        encoder.fit(torch.zeros(3))
    with pytest.raises(ValueError, match=r"numbers must be \[5, 2\], got None"):
        WithNumbers(encoder, MLP(1, 2, 2))(torch.zeros(5, 1, 2))


def with_numbers() -> WithNumbers:
    return WithNumbers(NumberEncoder(2, 3, 4), MLP(fields=3, dim=3, numbers=2, hidden=(4,)))


def test_the_hessian_goes_through() -> None:
    torch.manual_seed(0)
    table, network = HashEmbedding(3), with_numbers()
    optimizer = GroupAdaHessian(param_groups(torch.nn.ModuleList([table, network])), lr=0.1)
    before = network.encoder.embedding.detach().clone()
    stream = [(torch.randint(9, (16, 1)), torch.randn(16, 2), torch.randint(2, (16,))) for _ in range(4)]
    Trainer(table, network, optimizer).fit(stream)
    assert not torch.equal(network.encoder.embedding, before)
    assert network.encoder.count.tolist() == [64, 64]


def test_compiling_a_whole_network_leaves_the_first_batch_to_be_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def compiled(network: WithNumbers, **options: object) -> Callable[..., Tensor]:
        return lambda *inputs: calls.append(1) or network(*inputs)

    monkeypatch.setattr(torch, "compile", compiled)
    network = WithNumbers(NumberEncoder(2, 3, 4), MLP(fields=3, dim=3, numbers=2, hidden=(4,), dropout=0.1))
    batch = as_batch((torch.zeros(9, 1, dtype=torch.int64), torch.randn(9, 2), torch.zeros(9)))
    NetworkStep(network, compile=True).backward(torch.randn(9, 1, 3), batch.numbers, GlobalBatch(batch, 9))
    assert len(calls) == 2
    assert network.encoder.count.tolist() == [9, 9]


def test_a_continued_run_keeps_the_buckets_and_adds_its_rows(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    (tmp_path / "schema.yaml").write_text("{label: label, categorical: [color], numeric: [size]}\n")
    encoded = ("--set", "model.number_buckets=8", "--set", "model.standardize=true", "--selection", "never")
    for options in (("--schema", "schema.yaml", *encoded, "--out", "first"), ("--continue", "first", "--out", "next")):
        done = run("train", log, *options)
        assert done.returncode == 0, done.stderr
    assert run("train", log, "--continue", "first", "--set", "model.number_buckets=9").returncode == 2
    first, later = (open_trained(name).model.network for name in ("first", "next"))
    assert isinstance(first, WithNumbers)
    assert isinstance(later, WithNumbers)
    assert torch.equal(later.encoder.edges, first.encoder.edges)
    rows = first.encoder.count[0].item() / 2  # the sample, then the rows that were trained on
    assert (rows, later.encoder.count[0].item()) == (1_800, 3 * 1_800)
