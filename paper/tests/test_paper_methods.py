"""The methods that the experiments compare with: magnitude pruning, frequency cut-off, DeepLight."""

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from experiment_cases import BASE, OneBatchLog, assert_same, counted, parts_of, pruned_by_hand, result_of, trained
from sparsegroup import HashEmbedding
from sparsegroup.data import Bags, Batch, MemoryLog
from sparsegroup.training import Config, predict, prune_rows
from sparsegroup_paper import pruning
from sparsegroup_paper.lab import Worker
from sparsegroup_paper.pruning import (
    Learner,
    WithoutRare,
    count_keys,
    deeplight,
    gradual,
    magnitude_pruning,
    prune_weights,
)
from sparsegroup_paper.runs import CutOff, DeepLight, Plain, Pruned, Run

# Magnitude pruning


@pytest.fixture(scope="module", params=["dcn", "opnn"])
def config(request: pytest.FixtureRequest) -> Config:
    """OPNN drops out: what a branch draws must not be missing afterwards."""
    return BASE.replace(model=request.param, dropout=0.5 if request.param == "opnn" else None)


METHODS = [Pruned(0.1, 0.3), Pruned(0.5, 0.3), Pruned(0.3, 0.1), Pruned(0.3, 0.0), Pruned(0.05, 0.0)]


def models_after(log: MemoryLog, config: Config, methods: Sequence[Pruned]) -> dict[Pruned, Any]:
    learner = Learner(log, config)
    return {m: copy.deepcopy(parts_of(learner.model)) for m in magnitude_pruning(learner, methods, log.train_rows)}


@pytest.fixture(scope="module")
def together(log: MemoryLog, config: Config) -> dict[Pruned, Any]:
    return models_after(log, config, METHODS)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_each_method_of_a_job_gives_what_it_gives_alone_and_by_hand(
    log: MemoryLog, config: Config, together: dict[Pruned, Any], method: Pruned
) -> None:
    assert set(together) == set(METHODS)
    auc, live, model = pruned_by_hand(log, config, method.keep, method.fine_tune, 2_700, 3_000)
    assert together[method] == models_after(log, config, [method])[method] == parts_of(model)
    assert len(together[method][0]) == live == round(method.keep * model.embedding.num_seen)
    result = result_of(Worker(log), Run(config, method))
    assert (result.auc, result.live) == (auc, live)


@pytest.mark.parametrize("batch_size", [BASE.training.batch_size, 500])  # 2,700 rows are 5.4 batches of 500
def test_without_fine_tuning_it_is_plain_training_pruned(log: MemoryLog, config: Config, batch_size: int) -> None:
    config = config.replace(batch_size=batch_size)
    _, model = trained(log, config, seed=config.training.seed)
    keep = round(0.3 * model.embedding.num_seen)
    prune_rows(model.embedding, keep)
    learner = Learner(log, config)
    for _ in magnitude_pruning(learner, [Pruned(0.3)], log.train_rows):
        assert parts_of(learner.model) == parts_of(model)
    result = result_of(Worker(log), Run(config, Pruned(0.3)))
    assert (result.auc, result.live) == (predict(model, log.batches(2_700, 3_000, 4096)).metrics().auc, keep)
    assert result.feature_rate == keep / model.embedding.num_seen


def test_a_base_optimizer_with_l21_may_have_fewer_rows_than_are_to_stay(log: MemoryLog, worker: Worker) -> None:
    config = BASE.replace(l21=1e-2)
    plain, pruned = (result_of(worker, Run(config, method)) for method in (Plain(), Pruned(0.9)))
    assert pruned.live == plain.live < 0.9 * plain.seen
    assert pruned.auc == plain.auc


def test_pruning_by_saliency_keeps_the_largest_u_minus_sigma_x(log: MemoryLog) -> None:
    learner, by_saliency, by_norm = (Learner(log, BASE) for _ in range(3))
    for one in (learner, by_norm):
        one.fit(0, log.train_rows)
    (census,) = learner.optimizer.census(0)
    keep = round(0.2 * learner.model.embedding.num_seen)
    prune_rows(by_norm.model.embedding, keep)
    for _ in magnitude_pruning(by_saliency, [Pruned(0.2, 0.0, "s")], log.train_rows):
        table = by_saliency.model.embedding
        live = torch.cat([keys for keys, _ in table.items()])
        assert set(table.table.find(live.numpy()).tolist()) == set(np.argsort(-census.critical)[:keep].tolist())
        assert set(live.tolist()) != set(torch.cat([keys for keys, _ in by_norm.model.embedding.items()]).tolist())


def test_gradual_pruning_ends_with_the_requested_share(log: MemoryLog, config: Config) -> None:
    learner = Learner(log, config)
    gradual(learner, 0.1, log.train_rows)
    table = learner.model.embedding
    assert table.num_live == round(0.1 * table.num_seen)
    assert table.num_seen == table.num_rows


# Frequency cut-off


def bags_log(rows: int = 400, train_rows: int = 300, seed: int = 0) -> OneBatchLog:
    """Three fields, one of them of several values; the last one's number makes its keys negative."""
    generator = np.random.default_rng(seed)
    numbers = (0, 1, 200)

    def keys(number: int, count: int) -> np.ndarray:
        values = np.minimum(generator.zipf(1.5, count), 10_000)
        return (np.uint64(number << 56) + values.astype(np.uint64)).view(np.int64)

    single = torch.from_numpy(np.stack([keys(number, rows) for number in numbers[:2]], 1))
    offsets = torch.from_numpy(np.r_[0, generator.integers(0, 4, rows).cumsum()])
    bags = Bags(torch.from_numpy(keys(numbers[2], int(offsets[-1]))), offsets)
    labels = torch.from_numpy(generator.integers(0, 2, rows).astype(np.float32))
    batch = Batch(single, torch.zeros(rows, 0), labels, torch.arange(rows), None, (bags,))
    return OneBatchLog(batch, train_rows, ("a", "b", "c"), ("c",))


def keys_in(batch: Batch) -> list[int]:
    return [*batch.keys.flatten().tolist(), *(key for bag in batch.bags for key in bag.keys.tolist())]


@pytest.mark.parametrize("least", [1, 2, 3, 10, 10_000])
def test_features_seen_less_often_are_one_per_field(least: int) -> None:
    log = bags_log()
    counts = Counter(keys_in(log.batch[:300]))
    kept = {key for key, count in counts.items() if count >= least}
    without = WithoutRare(log, count_keys(log, 300).at_least(least))
    batches = list(without.batches(0, 400, 64))
    assert [len(batch) for batch in batches] == [64] * 6 + [16]
    before, after = [], []
    for ours, theirs in zip(batches, log.batches(0, 400, 64), strict=True):
        assert ours.keys.shape == theirs.keys.shape
        assert torch.equal(ours.bags[0].offsets, theirs.bags[0].offsets)
        before += keys_in(theirs)
        after += keys_in(ours)
    rare: dict[int, set[int]] = {0: set(), 1: set(), 200: set()}
    for key, new in zip(before, after, strict=True):
        assert new >> 56 == key >> 56
        if key in kept:
            assert new == key
        else:
            rare[(key >> 56) % 256].add(new)
    assert any(rare.values())  # test rows have features that training rows have not
    assert all(len(found) <= 1 and not found & kept for found in rare.values())
    assert (without.fields, without.lists, without.train_rows, len(without)) == (("a", "b", "c"), ("c",), 300, 400)


def test_the_rate_of_a_cut_off_counts_a_feature_for_each_field_with_rare_ones(log: MemoryLog, worker: Worker) -> None:
    for least in (2, 5, 40):
        result = result_of(worker, Run(BASE, CutOff(least)))
        counts = counted(log, 2_700)
        kept = {key for key, count in counts.items() if count >= least}
        fields = {key >> 56 for key in counts if key not in kept}
        assert (result.live, result.seen) == (len(kept) + len(fields), len(counts))
        assert result.feature_rate == result.live / result.seen
        mapped = np.array([[k if k in kept else k | (1 << 56) - 1 for k in row] for row in log.keys.tolist()])
        assert result.auc == trained(replace(log, keys=mapped), BASE)[0].test.auc


def test_a_cut_off_of_one_is_plain_training(worker: Worker) -> None:
    one, plain = (result_of(worker, Run(BASE, method)) for method in (CutOff(1), Plain()))
    # The test rows' unknown features are zero vectors for both.
    assert_same(one, plain)


# DeepLight


@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.77, 0.95])
def test_the_smallest_weights_are_pruned_and_no_more(sparsity: float) -> None:
    table = HashEmbedding(3)
    torch.manual_seed(0)
    before = torch.randn(40, 3)
    before[:5] = 0
    table.assign(torch.arange(40), before)
    prune_weights(table, sparsity)
    after = table.lookup(torch.arange(40))
    left = min(round((1 - sparsity) * table.num_seen * 3), int(torch.count_nonzero(before)))
    assert int(torch.count_nonzero(after)) == left
    assert torch.equal(after[after != 0], before[after != 0])
    assert after[after != 0].abs().min() > before[after == 0].abs().max()


def test_deeplight_prunes_more_and_more_every_tenth_step(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, found = [], []

    def recording(table: HashEmbedding, sparsity: float) -> None:
        prune_weights(table, sparsity)
        wanted.append(sparsity)
        found.append(1 - sum(int(v.count_nonzero()) for _, v in table.items()) / (table.num_seen * table.dim))

    monkeypatch.setattr(pruning, "prune_weights", recording)
    learner = Learner(log, BASE.replace(batch_size=50))  # 54 steps
    deeplight(learner, 0.9, 2_700)
    # S (1 - D^(k/Ω)), with the Ω for which the last step comes to .99 S: D^(54/Ω) = .01.
    expected = [0.9 * (1 - 0.01 ** (step / 54)) for step in (10, 20, 30, 40, 50)] + [0.9]
    assert wanted == pytest.approx(expected, rel=1e-12)
    assert found == pytest.approx(expected, abs=1 / 1_000)


def test_a_run_of_deeplight_ends_at_its_sparsity(worker: Worker) -> None:
    result = result_of(worker, Run(BASE, DeepLight(0.9)))
    assert result.parameter_rate == pytest.approx(0.1, abs=1 / (4 * result.seen))
    assert result.parameter_rate < result.feature_rate < 0.4
    assert result_of(worker, Run(BASE, DeepLight(0.0))).auc == result_of(worker, Run(BASE)).auc


# Frequencies


@pytest.mark.parametrize("merged", [1, 50, 1 << 22])
@pytest.mark.parametrize("rows", [0, 1, 299, 400])
def test_keys_are_counted_as_a_counter_does(merged: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "MERGED", merged)
    monkeypatch.setattr(pruning, "ROWS", 16)
    log = bags_log()
    counts = count_keys(log, rows)
    expected = Counter(keys_in(log.batch[:rows]))
    assert dict(zip(counts.keys.tolist(), counts.counts.tolist(), strict=True)) == expected
    assert len(counts) == len(expected)
    assert (np.diff(counts.keys) > 0).all()
    assert counts.at_least(3).tolist() == sorted(key for key, count in expected.items() if count >= 3)
