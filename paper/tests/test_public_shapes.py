"""The synthetic logs: reproducible by seed, of the shape asked for, and with a known truth."""

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import roc_auc_score

from sparsegroup.data import open_log
from sparsegroup.data.synthetic import BLOCK
from sparsegroup_paper.public_shapes import DATASETS, FieldShape, effects, synthetic_batches

NAMES = sorted(DATASETS)
ROWS = {"criteo": 150_000, "avazu": 150_000, "ipinyou": 600_000}
"""Enough for some hundred positive rows."""


def log(name: str, rows: int, seed: int = 0) -> pa.Table:
    return pa.Table.from_batches(synthetic_batches(DATASETS[name], rows, seed))


def test_batches_are_full_except_the_last_and_the_same_again_with_the_same_seed():
    rows = 5 * BLOCK + 11
    batches = list(synthetic_batches(DATASETS["criteo"], rows, 3))
    assert [batch.num_rows for batch in batches] == [4 * BLOCK, BLOCK + 11]
    one, other = pa.Table.from_batches(batches), log("criteo", rows, seed=2)
    assert one.equals(log("criteo", rows, seed=3))
    assert not any(one[name].equals(other[name]) for name in ("label", "C3", "I1"))
    keys = np.unique(one["C3"].to_numpy())
    assert not np.array_equal(effects(keys, 3) != 0, effects(keys, 2) != 0)


@pytest.mark.parametrize("name", NAMES)
def test_columns_are_those_of_the_data_set_in_the_documented_order(name):
    shape = DATASETS[name]
    table, longer = log(name, 20_000), log(name, 40_000)
    assert table.schema.names == ["label", "time", *(field.name for field in shape.fields), *shape.numbers]
    kinds = [pa.uint8(), *[pa.int64()] * (1 + len(shape.fields)), *[pa.float32()] * len(shape.numbers)]
    assert table.schema.types == kinds
    assert len(shape.fields) == {"criteo": 26, "avazu": 22, "ipinyou": 16}[name]
    assert sum(field.cardinality for field in shape.fields) == pytest.approx(shape.full_features, rel=0.01)
    time = table["time"].to_numpy()
    assert time[0] == shape.start
    assert (np.diff(time) >= 0).all()
    assert shape.days - 0.01 < (time[-1] - shape.start) / 86_400 < shape.days
    for number, field in enumerate(shape.fields):
        assert (table[field.name].to_numpy() >> 56 == number).all()  # the top 8 bits are the field's
        if not field.seconds:  # not read off the clock: a shorter log has the keys of a longer one's first rows
            assert table[field.name].equals(longer[field.name].slice(0, 20_000))
        else:
            slots = time // field.seconds % field.cardinality
            pairs = np.unique(np.stack([table[field.name].to_numpy(), slots]), axis=1).T
            assert len(np.unique(table[field.name].to_numpy())) == len(pairs) == field.cardinality
    for column in shape.numbers:
        numbers = table[column].to_numpy()
        assert numbers.min() == 0
        assert 0.1 < (numbers == 0).mean() < 0.5
        assert numbers.max() < 50


@pytest.mark.parametrize("name", NAMES)
def test_the_positive_rate_is_the_data_sets_and_the_truth_explains_the_labels(name):
    shape, seed = DATASETS[name], 1
    labels, scores = [], []
    for batch in synthetic_batches(shape, ROWS[name], seed):
        logit = sum(effects(batch[field.name].to_numpy(), seed) for field in shape.fields)
        for number, slope in zip(shape.numbers, shape.slopes, strict=True):
            logit += np.float32(slope) * batch[number].to_numpy()
        labels.append(batch["label"].to_numpy())
        scores.append(logit)
    label = np.concatenate(labels)
    error = np.sqrt(shape.positive_rate / len(label))
    assert abs(label.mean() - shape.positive_rate) < 4 * error + 0.02 * shape.positive_rate
    assert 0.7 < roc_auc_score(label, np.concatenate(scores)) < 0.83


def test_effects_are_normal_and_frequent_features_are_more_often_informative():
    distinct, counts = np.unique(log("criteo", 100_000)["C3"].to_numpy(), return_counts=True)
    informative = effects(distinct, 0) != 0
    assert informative[counts >= 100].mean() > 0.4
    assert informative[counts == 1].mean() < 0.3
    effect = effects(distinct[informative], 0)
    assert abs(effect.mean()) < 0.02
    assert effect.std() == pytest.approx(0.33, rel=0.05)
    assert len(np.unique(effect)) > 0.8 * len(effect)


def test_a_field_brings_new_values_until_the_full_size():
    for name, field in (("criteo", "C3"), ("avazu", "device_ip"), ("ipinyou", "IP")):
        keys, full_rows = log(name, 4 * BLOCK)[field].to_numpy(), DATASETS[name].full_rows
        shape = next(shape for shape in DATASETS[name].fields if shape.name == field)
        seen = [len(np.unique(keys[: part * BLOCK])) for part in range(5)]
        assert seen == [shape.introduced(part * BLOCK, full_rows) for part in range(5)]
        assert seen[4] - seen[3] > seen[1] / 2
        for each in DATASETS[name].fields:
            assert each.introduced(full_rows, full_rows) == each.cardinality
            if each.cardinality > 10_000:
                assert each.introduced(full_rows // 2, full_rows) < 0.8 * each.cardinality
    assert FieldShape("only", 1).introduced(10, 1_000) == 1


def test_the_command_makes_a_log_that_is_read_as_any_other(run):
    done = run("synthesize", "criteo", "made-up", "--rows", 50_000, "--seed", 3)
    assert done.returncode == 0, done.stderr
    assert "50,000 rows, 42,857 of them for training" in done.stdout
    log = open_log("made-up")
    assert (len(log), log.train_rows, len(log.fields), len(log.numbers)) == (50_000, 50_000 * 6 // 7, 26, 13)
    rows = pa.Table.from_batches(synthetic_batches(DATASETS["criteo"], 50_000, 3))
    batches = list(log.batches(0, 50_000, 512))
    for number, field in enumerate(log.fields):
        np.testing.assert_array_equal(np.concatenate([batch.keys[:, number] for batch in batches]), rows[field])
    np.testing.assert_array_equal(np.concatenate([batch.labels for batch in batches]), rows["label"])
    assert log.manifest.positives == int(rows["label"].to_numpy().sum())
    assert sum(n for n, _ in log.manifest.features.values()) == sum(len(rows[field].unique()) for field in log.fields)
    for arguments, message in (
        (["avazu", "made-up"], "made-up: is not empty"),
        (["criteo", "none", "--rows", 0], "rows must be from 1 to 45,840,617"),
        (["criteo", "none", "--rows", 50_000_000], "got 50,000,000"),
        (["criteo", "none", "--seed", -1], "seed must be >= 0, got -1"),
        (["netflix", "none"], "there are criteo, avazu, ipinyou"),
    ):
        refused = run("synthesize", *arguments)
        assert (refused.returncode, message in refused.stderr) == (2, True), refused.stderr
