"""The methods that the experiments compare with: magnitude pruning, frequency cut-off, DeepLight."""

import copy
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from experiment_cases import BASE, OneBatchLog, counted, parts_of, pruned_by_hand, result_of, trained
from sparsegroup import HashEmbedding
from sparsegroup.data import Bags, Batch
from sparsegroup.training import prune_rows
from sparsegroup_paper import pruning
from sparsegroup_paper.pruning import Learner, WithoutRare, count_keys, deeplight, magnitude_pruning, prune_weights
from sparsegroup_paper.runs import CutOff, Plain, Pruned, Run

# Magnitude pruning


METHODS = [Pruned(0.1, 0.3), Pruned(0.5, 0.3), Pruned(0.3, 0.1), Pruned(0.3, 0.0)]


def models_after(log, config, methods):
    learner = Learner(log, config)
    return {m: copy.deepcopy(parts_of(learner.model)) for m in magnitude_pruning(learner, methods, log.train_rows)}


@pytest.mark.parametrize(
    "config",
    [
        BASE,
        BASE.replace(model="opnn", dropout=0.5),  # what a branch draws must not be missing afterwards
        BASE.replace(batch_size=500),  # 2,700 rows are 5.4 batches
    ],
    ids=["dcn", "opnn", "broken batch"],
)
def test_each_method_of_a_job_gives_what_it_gives_alone_and_by_hand(log, worker, config):
    together = models_after(log, config, METHODS)
    assert set(together) == set(METHODS)
    for method in METHODS:
        auc, live, model = pruned_by_hand(log, config, method.keep, method.fine_tune, 2_700, 3_000)
        assert together[method] == models_after(log, config, [method])[method] == parts_of(model)
        assert len(together[method][0]) == live == round(method.keep * model.embedding.num_seen)
    result = result_of(worker, Run(config, method))
    assert (result.auc, result.live, result.feature_rate) == (auc, live, live / model.embedding.num_seen)


def test_a_base_optimizer_with_l21_may_have_fewer_rows_than_are_to_stay(log, worker):
    config = BASE.replace(l21=1e-2)
    plain, pruned = (result_of(worker, Run(config, method)) for method in (Plain(), Pruned(0.9)))
    assert pruned.live == plain.live < 0.9 * plain.seen
    assert pruned.auc == plain.auc


def test_pruning_by_saliency_keeps_the_largest_u_minus_sigma_x(log):
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


# Frequency cut-off


def bags_log():
    """Three fields, one of them of several values; the last one's number makes its keys negative."""
    rows, generator = 400, np.random.default_rng(0)

    def keys(number, count):
        values = np.minimum(generator.zipf(1.5, count), 10_000)
        return torch.from_numpy((np.uint64(number << 56) + values.astype(np.uint64)).view(np.int64))

    single = torch.stack([keys(number, rows) for number in (0, 1)], 1)
    offsets = torch.from_numpy(np.r_[0, generator.integers(0, 4, rows).cumsum()])
    bags = Bags(keys(200, int(offsets[-1])), offsets)
    batch = Batch(single, torch.zeros(rows, 0), torch.zeros(rows), torch.arange(rows), None, (bags,))
    return OneBatchLog(batch, 300, ("a", "b", "c"), ("c",))


def keys_in(batch):
    return [*batch.keys.flatten().tolist(), *(key for bag in batch.bags for key in bag.keys.tolist())]


@pytest.mark.parametrize("least", [1, 3, 10_000])
def test_features_seen_less_often_are_one_per_field(least):
    log = bags_log()
    counts = Counter(keys_in(log.batch[:300]))
    kept = {key for key, count in counts.items() if count >= least}
    without = WithoutRare(log, count_keys(log, 300).at_least(least))
    rare: dict[int, set[int]] = {0: set(), 1: set(), 200: set()}
    for ours, theirs in zip(without.batches(0, 400, 64), log.batches(0, 400, 64), strict=True):
        assert ours.keys.shape == theirs.keys.shape
        assert torch.equal(ours.bags[0].offsets, theirs.bags[0].offsets)
        for key, new in zip(keys_in(theirs), keys_in(ours), strict=True):
            assert new >> 56 == key >> 56
            if key in kept:
                assert new == key
            else:
                rare[(key >> 56) % 256].add(new)
    assert any(rare.values())  # test rows have features that training rows have not
    assert all(len(found) <= 1 and not found & kept for found in rare.values())
    assert (without.fields, without.lists, without.train_rows, len(without)) == (("a", "b", "c"), ("c",), 300, 400)


def test_the_rate_of_a_cut_off_counts_a_feature_for_each_field_with_rare_ones(log, worker):
    for least in (1, 2, 40):
        result = result_of(worker, Run(BASE, CutOff(least)))
        counts = counted(log, 2_700)
        kept = {key for key, count in counts.items() if count >= least}
        fields = {key >> 56 for key in counts if key not in kept}
        assert (result.live, result.seen) == (len(kept) + len(fields), len(counts))
        assert result.feature_rate == result.live / result.seen
        mapped = np.array([[k if k in kept else k | (1 << 56) - 1 for k in row] for row in log.keys.tolist()])
        assert result.auc == trained(replace(log, keys=mapped), BASE)[0].auc


@pytest.mark.parametrize("merged", [1, 50, 1 << 22])
def test_keys_are_counted_as_a_counter_does(merged, monkeypatch):
    monkeypatch.setattr(pruning, "MERGED", merged)
    monkeypatch.setattr(pruning, "ROWS", 16)
    log = bags_log()
    for rows in (0, 299, 400):
        counts = count_keys(log, rows)
        expected = Counter(keys_in(log.batch[:rows]))
        assert dict(zip(counts.keys.tolist(), counts.counts.tolist(), strict=True)) == expected
        assert len(counts) == len(expected)
        assert (np.diff(counts.keys) > 0).all()
        assert counts.at_least(3).tolist() == sorted(key for key, count in expected.items() if count >= 3)


# DeepLight


def test_the_smallest_weights_are_pruned_and_no_more():
    torch.manual_seed(0)
    before = torch.randn(40, 3)
    before[:5] = 0
    for sparsity in (0.0, 0.3, 0.77):
        table = HashEmbedding(3)
        table.assign(torch.arange(40), before)
        prune_weights(table, sparsity)
        after = table.lookup(torch.arange(40))
        left = min(round((1 - sparsity) * table.num_seen * 3), int(torch.count_nonzero(before)))
        assert int(torch.count_nonzero(after)) == left
        assert torch.equal(after[after != 0], before[after != 0])
        assert after[after != 0].abs().min() > before[after == 0].abs().max()


def test_deeplight_prunes_more_and_more_every_tenth_step(log, monkeypatch):
    wanted, found = [], []

    def recording(table, sparsity):
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
