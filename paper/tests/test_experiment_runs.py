"""The engine of the experiments: runs and their results, the methods they compare, and the choices they make."""

import copy
import itertools
import math
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy import stats

from experiment_cases import (
    BASE,
    InMemory,
    OneBatchLog,
    counted,
    dataset_of,
    live_keys,
    outcome,
    parts_of,
    pruned_by_hand,
    tiny_log,
    trained,
)
from sparsegroup import HashEmbedding
from sparsegroup.data import ClickLogError, MemoryLog
from sparsegroup.data.batches import Bags, Batch
from sparsegroup.data.log_views import Excerpt, excerpt
from sparsegroup.training import Config, predict, prune_rows, score
from sparsegroup_paper import deeplight as deeplight_module
from sparsegroup_paper import frequency
from sparsegroup_paper.choices import TOLERANCE, best, choose_l21, grid
from sparsegroup_paper.contenders import L2S, Contender
from sparsegroup_paper.cut_off import WithoutRare
from sparsegroup_paper.datasets import open_dataset
from sparsegroup_paper.deeplight import deeplight, prune_weights
from sparsegroup_paper.execution import Worker, jobs_of
from sparsegroup_paper.frequency import Counts, count_keys, survivors
from sparsegroup_paper.lab import Lab, Sample
from sparsegroup_paper.learner import Learner
from sparsegroup_paper.magnitude import magnitude_pruning
from sparsegroup_paper.published import published
from sparsegroup_paper.recovery import recovery_figure
from sparsegroup_paper.resampling import resampled_aucs
from sparsegroup_paper.results import Results
from sparsegroup_paper.runs import CutOff, DeepLight, Method, Outcome, Plain, Pruned, Run, Survivors
from sparsegroup_paper.statistics import Interval, verdict
from sparsegroup_paper.versus import at_rate, tally, versus


@pytest.fixture(scope="module")
def log() -> MemoryLog:
    return tiny_log()


@pytest.fixture(scope="module")
def worker(log: MemoryLog) -> Worker:
    return Worker(log)


def result_of(worker: Worker, run: Run) -> Outcome:
    ((same, result),) = worker.carry_out([run])
    assert same == run
    return result


def assert_same(ours: Outcome, theirs: Outcome) -> None:
    """Equal but for the time it took."""
    for name, value in vars(replace(theirs, seconds=ours.seconds)).items():
        np.testing.assert_array_equal(getattr(ours, name), value, err_msg=name)


# Runs


ALIKE = [
    (BASE.replace(dim=None), BASE.replace(dim=8)),
    (BASE.replace(model="opnn", dim=None), BASE.replace(model="opnn", dim=10)),
    (BASE, BASE.replace(norm="s_tilde")),
    (BASE, BASE.replace(penalty={"name": "mcp", "gamma": 5.0})),
    (BASE.replace(l1=1e-3, l2=1e-3), BASE.replace(l1=1e-3, l2=1e-3, norm="metric", penalty="hard")),
    (BASE, BASE.replace(log="log.csv", on_bad_row="skip")),
    (BASE, BASE.replace(windows=3)),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_runs_of_one_key_have_one_result(worker: Worker, one: Config, other: Config) -> None:
    assert Run(one).key == Run(other).key
    assert_same(result_of(worker, Run(one)), result_of(worker, Run(other)))


def test_runs_that_differ_have_keys_that_differ() -> None:
    changes: list[dict[str, Any]] = [
        *({"seed": seed} for seed in range(1, 4)),
        *({name: value} for name in ("l1", "l21", "l2") for value in (1e-5, 1e-4)),
        *({"l21": 1e-3, "norm": norm} for norm in ("s", "s_tilde", "metric")),
        *({"l21": 1e-3, "penalty": penalty} for penalty in ("mcp", "hard")),
        {"l21": 1e-3, "penalty": {"name": "mcp", "gamma": 4.0}},
        *({"model": model} for model in ("mlp", "opnn")),
        *({"optimizer": name} for name in ("adagrad", "amsgrad", "sgd")),
        *({"lr": lr} for lr in (1e-3, 1e-1)),
        {"dim": 5},
        {"hidden": [8, 8]},
        {"dropout": 0.5},
        {"batch_size": 100},
        {"options": {"betas": [0.8, 0.9]}},
    ]
    methods: list[Method] = [
        Pruned(0.1),
        Pruned(0.2),
        Pruned(0.1, 0.1),
        CutOff(2),
        CutOff(3),
        DeepLight(0.1),
        DeepLight(0.2),
    ]
    runs = [Run(BASE), *(Run(BASE.replace(**change)) for change in changes), *(Run(BASE, m) for m in methods)]
    runs += [replace(run, validate=True) for run in runs]
    assert len({run.key for run in runs}) == len(runs)


def test_runs_that_share_their_training_are_one_job() -> None:
    other = BASE.replace(seed=1)
    runs = [
        Run(BASE, Pruned(0.1)),
        Run(BASE),
        Run(BASE, Pruned(0.2, 0.1)),
        Run(other, Pruned(0.1)),
        Run(BASE, Pruned(0.1), validate=True),
        Run(BASE, CutOff(2)),
    ]
    assert jobs_of(runs) == [[runs[0], runs[2]], [runs[1]], [runs[3]], [runs[4]], [runs[5]]]


# Results


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    results = Results(tmp_path / "runs")
    tables = (Survivors(1, 1, 50, 5, 3, 2), Survivors(2, 9, 40, 4, 40, 4))
    exact = outcome(0.1 + 0.2, 1 / 3, survivors=tables, resampled=np.random.default_rng(0).random(99, np.float32))
    diverged = outcome(math.nan, resampled=np.full(3, np.nan, np.float32))
    results[Run(BASE)] = exact
    results[Run(BASE, Pruned(0.1))] = diverged
    assert_same(Results(tmp_path / "runs")[Run(BASE)], exact)
    assert results[Run(BASE)].seconds == exact.seconds
    assert results[Run(BASE)].resampled.dtype == np.float32
    assert_same(results[Run(BASE, Pruned(0.1))], diverged)
    assert (len(results), results.seconds()) == (2, 2.0)
    with pytest.raises(KeyError):
        results[Run(BASE, CutOff(2))]


@dataclass
class Reported:
    """What a lab says that it runs."""

    totals: list[tuple[str, int]] = field(default_factory=list)
    done: list[int] = field(default_factory=list)

    @contextmanager
    def __call__(self, name: str, total: int) -> Iterator[Any]:
        self.totals.append((name, total))
        yield self.done.append


def test_what_was_run_is_not_run_again(log: MemoryLog, tmp_path: Path) -> None:
    def lab() -> tuple[Lab, Reported]:
        reported = Reported()
        return Lab(dataset_of(log), tmp_path, runs=2, workers=1, reporting=reported), reported

    first, reported = lab()
    wanted: list[tuple[Config, Method]] = [(BASE, Plain()), (BASE, Pruned(0.2)), (BASE, Pruned(0.1, 0.1))]
    samples = first.samples(wanted, name="all")
    assert (reported.totals, reported.done) == ([("all", 6)], [1, 2, 4, 6])  # two methods share a job
    assert first.samples(wanted, name="again")[1].aucs.tolist() == samples[1].aucs.tolist()
    assert len(reported.totals) == 1

    second, reported = lab()
    [plain] = second.samples(wanted[:1], name="other process")
    assert reported.totals == []
    for ours, theirs in zip(plain.outcomes, samples[0].outcomes, strict=True):
        assert_same(ours, theirs)

    # A write cut off between the two files is none.
    run = Run(BASE.replace(seed=1), Pruned(0.2))
    (tmp_path / "runs" / f"{run.key}.json").unlink()
    assert (tmp_path / "runs" / f"{run.key}.npy").exists()
    assert run not in second.results
    again = second.samples(wanted, name="one is missing")
    assert reported.totals == [("one is missing", 1)]
    assert_same(again[1].outcomes[1], samples[1].outcomes[1])


def test_a_run_that_is_wanted_twice_is_run_once(log: MemoryLog, tmp_path: Path) -> None:
    reported = Reported()
    lab = Lab(dataset_of(log), tmp_path, runs=1, workers=1, reporting=reported)
    one, same = lab.samples([(BASE, Plain()), (BASE.replace(norm="metric"), Plain())], name="two")
    assert reported.totals == [("two", 1)]
    assert_same(one.outcomes[0], same.outcomes[0])


def test_a_lab_takes_a_method_for_each_seed(log: MemoryLog, worker: Worker, tmp_path: Path) -> None:
    lab = Lab(dataset_of(log), tmp_path, runs=2, workers=1)
    sample = lab.sample(BASE, [Pruned(0.3), Pruned(0.1)], name="pruned")
    assert_same(sample.outcomes[0], result_of(worker, Run(BASE, Pruned(0.3))))
    assert_same(sample.outcomes[1], result_of(worker, Run(BASE.replace(seed=1), Pruned(0.1))))


def test_a_folder_of_another_log_is_refused(log: MemoryLog, tmp_path: Path) -> None:
    Lab(dataset_of(log), tmp_path, workers=1)
    Lab(dataset_of(log), tmp_path, workers=1, runs=3)
    with pytest.raises(ClickLogError, match=r"holds results on another log.*\(rows 3000 there, 2000 here\).*`out`"):
        Lab(dataset_of(tiny_log(2_000)), tmp_path, workers=1)
    with pytest.raises(ClickLogError, match=r"train_rows 2700 there, 2600 here"):
        Lab(dataset_of(replace(log, train_rows=2_600)), tmp_path, workers=1)


# What a run measures


@pytest.mark.parametrize("validate", [False, True])
def test_a_plain_run_is_plain_training(log: MemoryLog, worker: Worker, validate: bool) -> None:
    config = BASE.replace(l21=1e-3, seed=3)
    result = result_of(worker, Run(config, validate=validate))
    expected, model = trained(log, config, seed=3, train_rows=2_430 if validate else None)
    assert (result.auc, result.log_loss) == (expected.test.auc, expected.test.log_loss)
    assert (result.feature_rate, result.live) == (expected.feature_rate, expected.live_rows)
    assert 0 < result.live < result.seen == len(counted(log, 2_430 if validate else 2_700))
    values = np.concatenate([vectors.numpy().ravel() for _, vectors in model.embedding.items()])
    assert result.parameter_rate == np.count_nonzero(values) / (4 * result.seen)
    # Which features matter is known, and so which of the survivors do.
    keys, live = set(counted(log, 2_430 if validate else 2_700)), live_keys(model)
    assert log.informative is not None
    informative = keys & set(log.informative.tolist())
    sums = [sum(getattr(part, name) for part in result.survivors) for name in ("features", "informative", "live")]
    assert sums == [len(keys), len(informative), len(live)]
    assert sum(part.live_informative for part in result.survivors) == len(live & informative)


def test_resampled_aucs_are_around_the_auc_and_the_same_for_the_same_predictions(
    log: MemoryLog, worker: Worker
) -> None:
    result = result_of(worker, Run(BASE))
    assert result.resampled.shape == (1_000,)
    assert result.resampled.mean() == pytest.approx(
        result.auc, abs=4 * float(result.resampled.std()) / math.sqrt(1_000)
    )
    assert 0.005 < result.resampled.std() < 0.1
    _, model = trained(log, BASE)
    again = resampled_aucs(log.labels[2_700:], predict(model, log, 2_700, 3_000))
    np.testing.assert_array_equal(result.resampled, again.astype(np.float32))
    # Rounding apart, a monotone function of the predictions has the same AUC in each resampling.
    np.testing.assert_array_equal(again, resampled_aucs(log.labels[2_700:], 2 * predict(model, log, 2_700, 3_000)))


class Guarded(MemoryLog):
    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        assert stop <= self.train_rows
        return super().batches(start, stop, size)


@pytest.mark.parametrize("method", [Plain(), Pruned(0.2), Pruned(0.2, 0.2), CutOff(3), DeepLight(0.8)])
def test_a_choice_never_reads_test_rows(log: MemoryLog, method: Method) -> None:
    labels = log.labels.copy()
    labels[log.train_rows :] = np.nan
    guarded = Guarded("x", log.fields, log.keys, labels, log.train_rows, log.informative)
    result = result_of(Worker(guarded), Run(BASE, method, validate=True))
    assert_same(result, result_of(Worker(log), Run(BASE, method, validate=True)))
    with pytest.raises(AssertionError):
        result_of(Worker(guarded), Run(BASE, method))


@pytest.mark.parametrize("method", [Plain(), Pruned(0.2, 0.2), CutOff(2), DeepLight(0.5)])
def test_a_run_that_diverges_has_no_auc_and_the_others_go_on(log: MemoryLog, tmp_path: Path, method: Method) -> None:
    lab = Lab(dataset_of(log), tmp_path, runs=2, workers=1)
    wild = BASE.replace(optimizer="momentum", lr=1e30)
    diverged, well = lab.samples([(wild, method), (BASE, method)], name="both")
    assert np.isnan(diverged.aucs).all()
    assert np.isnan(diverged.resampled).all()
    assert diverged.resampled.shape == well.resampled.shape == (2, 1_000)
    assert np.isfinite(well.aucs).all()
    assert best([(1e30, diverged), (1e-2, well)]) == 1e-2


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


def test_all_methods_of_a_job_are_yielded_once(together: dict[Pruned, Any]) -> None:
    assert set(together) == set(METHODS)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_each_method_of_a_job_gives_what_it_gives_alone_and_by_hand(
    log: MemoryLog, config: Config, together: dict[Pruned, Any], method: Pruned
) -> None:
    auc, live, model = pruned_by_hand(log, config, method.keep, method.fine_tune, 2_700, 3_000)
    assert together[method] == models_after(log, config, [method])[method] == parts_of(model)
    assert len(together[method][0]) == live == round(method.keep * model.embedding.num_seen)
    result = result_of(Worker(log), Run(config, method))
    assert (result.auc, result.live) == (auc, live)


def test_without_fine_tuning_it_is_plain_training_pruned(log: MemoryLog, config: Config) -> None:
    _, model = trained(log, config, seed=config.training.seed)
    keep = round(0.3 * model.embedding.num_seen)
    prune_rows(model.embedding, keep)
    result = result_of(Worker(log), Run(config, Pruned(0.3)))
    assert (result.auc, result.live) == (score(model, log).auc, keep)
    assert result.feature_rate == keep / model.embedding.num_seen


def test_a_base_optimizer_with_l21_may_have_fewer_rows_than_are_to_stay(log: MemoryLog, worker: Worker) -> None:
    config = BASE.replace(l21=1e-2)
    plain, pruned = (result_of(worker, Run(config, method)) for method in (Plain(), Pruned(0.9)))
    assert pruned.live == plain.live < 0.9 * plain.seen
    assert pruned.auc == plain.auc


def test_without_fine_tuning_it_is_so_whatever_the_last_batch(log: MemoryLog) -> None:
    config = BASE.replace(batch_size=500)  # 2,700 rows are 5.4 batches
    _, model = trained(log, config)
    prune_rows(model.embedding, round(0.1 * model.embedding.num_seen))
    learner = Learner(log, config)
    for _ in magnitude_pruning(learner, [Pruned(0.1)], log.train_rows):
        assert parts_of(learner.model) == parts_of(model)


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
        assert sum(part.live for part in result.survivors) == len(kept)
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

    monkeypatch.setattr(deeplight_module, "prune_weights", recording)
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
    monkeypatch.setattr(frequency, "MERGED", merged)
    monkeypatch.setattr(frequency, "ROWS", 16)
    log = bags_log()
    counts = count_keys(log, rows)
    expected = Counter(keys_in(log.batch[:rows]))
    assert dict(zip(counts.keys.tolist(), counts.counts.tolist(), strict=True)) == expected
    assert len(counts) == len(expected)
    assert (np.diff(counts.keys) > 0).all()
    assert counts.at_least(3).tolist() == sorted(key for key, count in expected.items() if count >= 3)


@pytest.mark.parametrize("seen", [[1] * 30, list(range(1, 21)), [1] * 11 + [2] * 4 + [9], [5], [3, 3, 1, 1, 1, 7] * 4])
def test_survivors_are_counted_by_tenths_and_equal_counts_stay_together(seen: list[int]) -> None:
    generator = np.random.default_rng(1)
    number = len(seen)
    informative, live = generator.random(number) < 0.3, generator.random(number) < 0.6
    parts = survivors(Counts(np.arange(number), np.array(seen)), informative, live)
    ordered = sorted(seen)
    ends = sorted({ordered[math.ceil(number * tenth / 10) - 1] for tenth in range(1, 11)})
    assert len(parts) == len(ends)
    for start, end, part in zip([0, *ends], ends, parts, strict=False):
        here = [i for i, count in enumerate(seen) if start < count <= end]
        assert (part.least, part.most) == (min(seen[i] for i in here), max(seen[i] for i in here))
        assert part.features == len(here)
        assert part.informative == sum(bool(informative[i]) for i in here)
        assert part.live == sum(bool(live[i]) for i in here)
        assert part.live_informative == sum(bool(live[i] and informative[i]) for i in here)
    assert sum(part.features for part in parts) == number
    assert sum(part.live for part in parts) == live.sum()


def test_no_features_have_no_survivors() -> None:
    nothing = np.zeros(0, bool)
    assert survivors(Counts(np.zeros(0, np.int64), np.zeros(0, np.int64)), nothing, nothing) == ()


# Excerpts


def test_an_excerpt_is_the_rows_around_the_test_set(log: MemoryLog) -> None:
    part = excerpt(log, 1_000)
    assert (part.train_rows, part.test_rows, len(part), part.features) == (900, 100, 1_000, None)
    assert (part.name, part.fields, part.lists, part.numbers) == (log.name, log.fields, (), ())
    for start, stop in ((0, 1_000), (850, 950), (899, 900), (900, 900)):
        batches = list(part.batches(start, stop, 300))
        keys = [key for batch in batches for key in batch.keys.flatten().tolist()]
        assert keys == log.keys[1_800 + start : 1_800 + stop].flatten().tolist()
        labels = [label for batch in batches for label in batch.labels.tolist()]
        assert labels == log.labels[1_800 + start : 1_800 + stop].tolist()


def test_training_on_an_excerpt_is_training_on_its_rows(log: MemoryLog) -> None:
    rows = MemoryLog("rows", log.fields, log.keys[1_800:2_800], log.labels[1_800:2_800], 900, log.informative)
    ours = result_of(Worker(excerpt(log, 1_000)), Run(BASE))
    assert_same(ours, result_of(Worker(rows), Run(BASE)))
    assert ours.survivors


def test_an_excerpt_of_all_rows_is_the_log(log: MemoryLog) -> None:
    whole = excerpt(log, 3_000)
    assert (whole.train_rows, len(whole), whole.features) == (2_700, 3_000, log.features)
    assert len(excerpt(log, 10_000)) == 3_000


@pytest.mark.parametrize(("train_rows", "test_rows"), [(0, 10), (2_701, 0), (10, -1), (10, 301)])
def test_an_excerpt_must_be_in_the_log(log: MemoryLog, train_rows: int, test_rows: int) -> None:
    message = f"has 2,700 training and 300 test rows, got train_rows={train_rows:,}, test_rows={test_rows:,}"
    with pytest.raises(ValueError, match=message):
        Excerpt(log, train_rows, test_rows)


# Comparisons


def sample_of(*pairs: tuple[float, float]) -> Sample:
    """AUC and feature rate of each seed."""
    return Sample(tuple(outcome(auc, rate) for auc, rate in pairs))


def test_between_two_points_auc_is_linear_in_the_logarithm_of_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsegroup_paper.versus.WIDEST_GAP", 6.0)
    points = [
        sample_of((0.70, 0.04), (0.72, 0.04)),
        sample_of((0.60, 0.0), (0.60, 0.0)),  # nothing is left: no logarithm
        sample_of((0.80, 0.16), (0.76, 0.16)),
        sample_of((math.nan, 0.08), (0.99, 0.08)),  # diverged
        sample_of((0.90, 0.97), (0.90, 0.97)),  # more than six times as far
    ]
    for rate, share in ((0.04, 0.0), (0.16, 1.0), (0.08, 0.5), (0.04 * 2**0.5, 0.25)):
        found = at_rate(points, rate)
        assert found is not None
        assert found.aucs == pytest.approx([0.70 + 0.10 * share, 0.72 + 0.04 * share])
        assert found.rates.tolist() == [rate, rate]
        np.testing.assert_allclose(found.resampled.mean(1), found.aucs, rtol=1e-6)
    for rate in (0.039, 0.17, 0.5, 0.98):
        assert at_rate(points, rate) is None
    assert at_rate(points[:2], 0.04) is None


def test_points_of_one_rate_are_no_trouble() -> None:
    found = at_rate([sample_of((0.7, 0.5)), sample_of((0.8, 0.5))], 0.5)
    assert found is not None
    assert found.auc in (0.7, 0.8)


def test_the_cells_of_a_comparison() -> None:
    generator = np.random.default_rng(3)
    a, b = (
        Sample(tuple(outcome(auc, resampled=generator.normal(auc, 0.002, 500).astype(np.float32)) for auc in aucs))
        for aucs in ((0.710, 0.712, 0.711), (0.700, 0.703, 0.704))
    )
    difference, low, high, p_value, test, word = versus(a, b).cells
    assert difference == pytest.approx(2.133 / 3 - 2.107 / 3)
    assert cast(float, low) < 2.133 / 3 - 2.107 / 3 < cast(float, high)
    assert p_value == pytest.approx(stats.ttest_rel(a.aucs, b.aucs).pvalue)
    assert (test, word) == ("paired t", "better")
    assert word == verdict(Interval(cast(float, low), cast(float, high)))
    _, _, _, p_value, test, _ = versus(a, b, paired=False).cells
    assert p_value == pytest.approx(stats.ttest_ind(a.aucs, b.aucs, equal_var=False).pvalue)
    assert test == "Welch t"
    assert versus(Sample(a.outcomes[:1]), Sample(b.outcomes[:1])).cells[3:5] == (None, "one seed")
    pairs = [versus(a, b), versus(b, a), versus(a, a)]
    assert tally(pairs) == "better at 1, within noise at 1, worse at 1 of 3; non-inferior at 2"


def test_a_method_that_diverged_is_said_to_have() -> None:
    well = Sample((outcome(0.7, 0.1), outcome(0.7, 0.1)))
    nothing = np.full_like(well.resampled[0], np.nan)
    diverged = Sample((outcome(0.7, 0.1), outcome(math.nan, 1.0, resampled=nothing)))
    one = versus(diverged, well)
    assert one.cells == (None, None, None, None, None, "diverged")
    assert tally([one]) == "better at 0, within noise at 0, worse at 0, diverged at 1 of 1; non-inferior at 0"


def test_what_diverged_is_left_out_of_the_precision() -> None:
    survivors = (Survivors(1, 1, 10, 4, 5, 3),)
    well = outcome(0.7, 0.5, survivors=survivors)
    diverged = outcome(math.nan, 1.0, survivors=())
    one = Contender("x", ("a", "b"), (Sample((well, diverged)), Sample((well, well))), "c")
    assert recovery_figure([one]).series[0].y == (0.6,)


# Choices


@dataclass
class Stub:
    """A lab whose feature rate and validation AUC are functions of λ21."""

    rate: Any
    auc: Any = None
    recipe: str = "searched"
    workers: int = 1
    seeds: Sequence[int] = range(2)
    tried: list[float] = field(default_factory=list)
    validated: list[float] = field(default_factory=list)

    def samples(
        self, wanted: Iterable[tuple[Config, Method]], *, validate: bool = False, name: str, seeds: Sequence[int]
    ) -> list[Sample]:
        values = [config.optimizer.l21 for config, _ in wanted]
        (self.validated if validate else self.tried).extend(values)
        return [sample_of(*[(self.auc(value) if self.auc else 0.7, self.rate(value))] * len(seeds)) for value in values]


def grid_of(stub: Stub) -> tuple[float, ...]:
    return grid(cast(Lab, stub), BASE)


def falling(middle: float) -> Any:
    """A feature rate that is a half at `middle`."""
    return lambda value: 1 / (1 + value / middle)


PAPERS = (1e-4, 5e-4, 1e-3, 5e-3, 1e-2)


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize(
    ("middle", "expected"),
    [
        (1e-3, (1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 1e-1, 5e-1)),
        (1e-6, (1e-7, 5e-7, 1e-6, 5e-6, 1e-5, 5e-5, *PAPERS)),
        (1.0, (*PAPERS, 0.1, 0.5, 1.0, 5.0, 10.0, 50.0, 100.0, 500.0)),
    ],
)
def test_a_grid_steps_through_1_and_5_of_each_decade_from_many_features_to_few(
    middle: float, expected: tuple[float, ...], workers: int
) -> None:
    stub = Stub(falling(middle), workers=workers)
    assert grid_of(stub) == expected
    assert stub.rate(expected[0]) >= 0.9
    assert stub.rate(expected[-1]) <= 0.005
    assert len(stub.tried) == len(set(stub.tried)) <= len(expected) + 2 * workers


def test_a_grid_ends_where_lambda_does_nothing() -> None:
    stub = Stub(lambda value: 0.5)
    steps = [float(f"{digit}e{power}") for power in range(-8, 3) for digit in (1, 5)]
    assert grid_of(stub) == (*steps, 1e3)


def test_the_papers_recipe_has_the_papers_grid() -> None:
    assert grid_of(Stub(lambda value: 0.5, recipe="paper")) == PAPERS


@pytest.mark.parametrize("limit", [1e-3, 5e-3, 1e-2, 1.0])
def test_l21_is_the_sparsest_that_costs_no_more_than_the_tolerance(limit: float) -> None:
    # Flat up to the limit, but for less than the tolerance; then it falls. The sparsest of all has diverged.
    stub = Stub(
        falling(1e-3),
        lambda value: math.nan if value > 0.09 else 0.7 - (0.9 * TOLERANCE if value <= limit else 2 * TOLERANCE),
    )
    chosen = choose_l21(cast(Lab, stub), BASE)
    assert len(stub.validated) == len(set(stub.validated)) <= 5
    assert len(stub.validated) >= 4
    # They are spread over the feature rates that the grid covers.
    rates = np.log([stub.rate(value) for value in stub.validated])
    assert np.abs(np.diff(np.sort(rates))).max() < 2.5
    assert chosen == max(value for value in stub.validated if value <= min(limit, 0.09))


def test_the_best_of_many_is_not_one_that_diverged() -> None:
    trials = [(1.0, sample_of((0.6, 1))), (2.0, sample_of((math.nan, 1))), (3.0, sample_of((0.7, 1), (0.6, 1)))]
    for order in itertools.permutations(trials):
        assert best(order) == 3.0


def test_pruning_has_as_many_trials_of_a_schedule_as_the_others_have_of_l2() -> None:
    assert len(L2S) == len(published().setup.fine_tune_shares)
    assert len(set(L2S)) == len(L2S)
    assert published().setup.default_l2 in L2S


def test_a_data_set_in_memory_is_a_data_set(log: MemoryLog) -> None:
    assert isinstance(dataset_of(log), InMemory)
    assert dataset_of(log).whole_rows() == len(log)


def test_several_processes_give_the_same_and_end_with_an_interruption(log: MemoryLog, tmp_path: Path) -> None:
    wanted = [(BASE, Plain()), (BASE, Pruned(0.3, 0.2)), (BASE.replace(l21=1e-3), Plain())]
    with Lab(dataset_of(log), tmp_path / "one", runs=2, workers=1) as alone:
        expected = alone.samples(wanted, name="alone")

    @contextmanager
    def interrupt(name: str, total: int) -> Iterator[Callable[[int], None]]:
        def report(done: int) -> None:
            raise KeyboardInterrupt

        yield report

    begun = Lab(dataset_of(log), tmp_path / "several", runs=2, workers=2, reporting=interrupt)
    with pytest.raises(KeyboardInterrupt), begun:
        begun.samples(wanted, name="cut off")
    assert not multiprocessing.active_children()
    assert 0 < len(begun.results) <= 6
    with Lab(dataset_of(log), tmp_path / "several", runs=2, workers=2) as again:
        found = again.samples(wanted, name="to the end")
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours.outcomes, theirs.outcomes, strict=True):
            assert_same(one, other)


def test_a_file_of_settings_gives_the_model_and_not_the_regularizer(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("label,a,b\n" + "".join(f"{i % 2},{i % 3},{i % 5}\n" for i in range(40)))
    settings = tmp_path / "mine.yaml"
    settings.write_text(
        f"data: {{log: {log}}}\nmodel: {{name: mlp, dim: 3}}\noptimizer: {{name: adagrad, l1: 0.1, penalty: hard}}\n"
        "training: {batch_size: 8}\n"
    )
    config = open_dataset(str(settings), None, None, "full", tmp_path / "out").config
    assert (config.model.name, config.model.dim, config.training.batch_size) == ("mlp", 3, 8)
    assert config.optimizer == Config.of(l21=0.0).optimizer
