"""Runs of the experiments: what they measure, when they are made, and their results on disk."""

import math
import multiprocessing
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from experiment_cases import (
    BASE,
    assert_all_same,
    assert_same,
    click_log,
    counted,
    dataset_of,
    outcome,
    result_of,
    tiny_log,
    trained,
)
from sparsegroup.data import ClickLogError, MemoryLog
from sparsegroup.training import Config
from sparsegroup_paper.choices import best
from sparsegroup_paper.datasets import PLAIN, Excerpt, open_dataset
from sparsegroup_paper.lab import Lab, Worker, jobs_of
from sparsegroup_paper.runs import CutOff, DeepLight, Gradual, Plain, Pruned, Results, Run

# Excerpts


def test_an_excerpt_is_the_rows_around_the_test_set(log):
    part = Excerpt(log, 1_000)
    assert (part.train_rows, len(part), part.features) == (900, 1_000, None)
    assert (part.name, part.fields, part.lists, part.numbers) == (log.name, log.fields, (), ())
    for start, stop in ((0, 1_000), (850, 950), (899, 900), (900, 900)):
        batches = list(part.batches(start, stop, 300))
        assert [key for batch in batches for key in batch.keys.tolist()] == log.keys[1_800:][start:stop].tolist()
        assert [one for batch in batches for one in batch.labels.tolist()] == log.labels[1_800:][start:stop].tolist()
    for rows in (3_000, 10_000):  # all that there are
        whole = Excerpt(log, rows)
        assert (whole.train_rows, len(whole), whole.features) == (2_700, 3_000, log.features)


# Runs


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (BASE.replace(dim=None), BASE.replace(dim=8)),
        (BASE, BASE.replace(norm="s_tilde")),
        (BASE, BASE.replace(penalty={"name": "mcp", "gamma": 5.0})),
        (BASE.replace(l1=1e-3, l2=1e-3), BASE.replace(l1=1e-3, l2=1e-3, norm="metric", penalty="hard")),
        (BASE, BASE.replace(log="log.csv", on_bad_row="skip", windows=3)),
    ],
)
def test_runs_of_one_key_have_one_result(worker, one, other):
    assert Run(one).key == Run(other).key
    assert_same(result_of(worker, Run(one)), result_of(worker, Run(other)))


def test_runs_that_differ_have_keys_that_differ():
    changes: list[dict[str, Any]] = [
        *({name: value} for name in ("l1", "l21", "l2") for value in (1e-5, 1e-4)),
        *({"l21": 1e-3, "norm": norm} for norm in ("s", "s_tilde", "metric")),
        *({"l21": 1e-3, "penalty": penalty} for penalty in ("mcp", "hard", {"name": "mcp", "gamma": 4.0})),
        *({"optimizer": name} for name in ("adagrad", "amsgrad", "sgd")),
        *({"seed": 1}, {"lr": 1e-3}, {"model": "mlp"}, {"dim": 5}, {"hidden": [8, 8]}, {"dropout": 0.5}),
        *({"batch_size": 100}, {"options": {"betas": [0.8, 0.9]}}, {"l21": 0.0, "target_rate": 0.1}),
    ]
    methods = [
        *(Pruned(0.1), Pruned(0.2), Pruned(0.1, 0.1), Pruned(0.1, by="s"), CutOff(2), CutOff(3)),
        *(DeepLight(0.1), DeepLight(0.2), Gradual(0.1)),
    ]
    runs = [Run(BASE), *(Run(BASE.replace(**change)) for change in changes), *(Run(BASE, m) for m in methods)]
    runs += [replace(run, validate=True) for run in runs]
    assert len({run.key for run in runs}) == len(runs)


def test_runs_that_share_their_training_are_one_job():
    other = BASE.replace(seed=1)
    runs = [
        *(Run(BASE, Pruned(0.1)), Run(BASE), Run(BASE, Pruned(0.2, 0.1)), Run(other, Pruned(0.1))),
        *(Run(BASE, Pruned(0.1), validate=True), Run(BASE, CutOff(2))),
    ]
    assert jobs_of(runs) == [[runs[0], runs[2]], [runs[1]], [runs[3]], [runs[4]], [runs[5]]]


# Results


def test_a_result_is_read_as_it_was_written(tmp_path):
    results = Results(tmp_path / "runs")
    exact = outcome(0.1 + 0.2, 1 / 3, resampled=np.random.default_rng(0).random(99, np.float32))
    diverged = outcome(math.nan, resampled=np.full(3, np.nan, np.float32))
    results[Run(BASE)] = exact
    results[Run(BASE, Pruned(0.1))] = diverged
    assert_same(Results(tmp_path / "runs")[Run(BASE)], exact)
    assert results[Run(BASE)].seconds == exact.seconds
    assert results[Run(BASE)].resampled.dtype == np.float32
    assert_same(results[Run(BASE, Pruned(0.1))], diverged)
    assert results.seconds() == 2.0
    assert Run(BASE, CutOff(2)) not in results


def test_what_was_run_is_not_run_again(log, tmp_path):
    totals: list[tuple[str, int]] = []
    done: list[int] = []

    @contextmanager
    def reporting(name, total):
        totals.append((name, total))
        yield done.append

    first = Lab(dataset_of(log), tmp_path, runs=2, workers=1, reporting=reporting)
    wanted = [(BASE, Plain()), (BASE, Pruned(0.2)), (BASE, Pruned(0.1, 0.1)), (BASE.replace(norm="metric"), Plain())]
    samples = first.samples(wanted, name="all")  # the last is the first
    assert (totals, done) == ([("all", 6)], [1, 2, 4, 6])  # two methods share a job
    assert samples[3].auc == samples[0].auc
    assert first.samples(wanted, name="again")[1].auc == samples[1].auc
    assert len(totals) == 1

    # A write cut off between the two files is none.
    run = Run(BASE.replace(seed=1), Pruned(0.2))
    (tmp_path / "runs" / f"{run.key}.json").unlink()
    assert (tmp_path / "runs" / f"{run.key}.npy").exists()
    second = Lab(dataset_of(log), tmp_path, runs=2, workers=1, reporting=reporting)
    assert run not in second.results
    again = second.samples(wanted, name="one is missing")
    assert totals[1:] == [("one is missing", 1)]
    assert_all_same(again, samples)


def test_a_folder_of_another_log_is_refused(log, tmp_path):
    Lab(dataset_of(log), tmp_path, workers=1)
    Lab(dataset_of(log), tmp_path, workers=1, runs=3)
    with pytest.raises(ClickLogError, match=r"holds results on another log.*\(rows 3000 there, 2000 here\).*`out`"):
        Lab(dataset_of(tiny_log(2_000)), tmp_path, workers=1)
    with pytest.raises(ClickLogError, match=r"train_rows 2700 there, 2600 here"):
        Lab(dataset_of(replace(log, train_rows=2_600)), tmp_path, workers=1)


# What a run measures


@pytest.mark.parametrize("validate", [False, True])
def test_a_plain_run_is_plain_training(log, worker, validate):
    config = BASE.replace(l21=1e-3, seed=3)
    result = result_of(worker, Run(config, validate=validate))
    expected, model = trained(log, config, seed=3, train_rows=2_430 if validate else None)
    assert (result.auc, result.log_loss) == (expected.auc, expected.log_loss)
    assert (result.feature_rate, result.live) == (model.embedding.feature_rate, model.embedding.num_live)
    assert 0 < result.live < result.seen == len(counted(log, 2_430 if validate else 2_700))
    values = np.concatenate([vectors.numpy().ravel() for _, vectors in model.embedding.items()])
    assert result.parameter_rate == np.count_nonzero(values) / (4 * result.seen)


class Guarded(MemoryLog):
    def batches(self, start, stop, size):
        assert stop <= self.train_rows
        return super().batches(start, stop, size)


@pytest.mark.parametrize(
    "method", [Plain(), Pruned(0.2, 0.2), Pruned(0.2, 0.2, "s"), Gradual(0.2), CutOff(3), DeepLight(0.8)]
)
def test_a_choice_never_reads_test_rows(log, worker, method):
    labels = log.labels.copy()
    labels[log.train_rows :] = np.nan
    guarded = Guarded("x", log.fields, log.keys, labels, log.train_rows, log.informative)
    result = result_of(Worker(guarded), Run(BASE, method, validate=True))
    assert_same(result, result_of(worker, Run(BASE, method, validate=True)))
    with pytest.raises(AssertionError):
        result_of(Worker(guarded), Run(BASE, method))


def test_a_run_that_diverges_has_no_auc_and_the_others_go_on(log, tmp_path):
    lab = Lab(dataset_of(log), tmp_path, runs=2, workers=1)
    wild = BASE.replace(optimizer="momentum", lr=1e30)
    methods = Plain(), Pruned(0.2, 0.2), Gradual(0.2), CutOff(2), DeepLight(0.5)
    *diverged, well = lab.samples([*((wild, method) for method in methods), (BASE, Plain())], name="all")
    for sample in diverged:
        assert np.isnan(sample.each("auc")).all()
        assert np.isnan(sample.each("resampled")).all()
        assert sample.each("resampled").shape == well.each("resampled").shape == (2, 1_000)
        assert best([(1e30, sample), (1e-2, well)]) == 1e-2
    assert np.isfinite(well.each("auc")).all()


# Data sets and processes


def test_processes_give_the_same_and_end_with_an_interruption_after_which_the_rest_is_run(log, tmp_path):
    wanted = [(BASE, Plain()), (BASE, Pruned(0.3, 0.2))]
    with Lab(dataset_of(log), tmp_path / "one", runs=2, workers=1) as alone:
        expected = alone.samples(wanted, name="alone")

    def report(done):
        raise KeyboardInterrupt

    @contextmanager
    def interrupt(name, total):
        yield report

    others = multiprocessing.active_children()  # of other tests
    begun = Lab(dataset_of(log), tmp_path / "several", runs=2, workers=2, reporting=interrupt)
    with pytest.raises(KeyboardInterrupt), begun:
        begun.samples(wanted, name="cut off")
    assert set(multiprocessing.active_children()) <= set(others)
    assert 0 < len(list(begun.results.folder.glob("[!.]*.json"))) <= 4
    found = Lab(dataset_of(log), tmp_path / "several", runs=2, workers=1).samples(wanted, name="to the end")
    assert_all_same(found, expected)


def test_a_file_of_settings_gives_the_model_and_not_the_regularizer(tmp_path):
    log, settings = click_log(tmp_path / "log.csv", 40), tmp_path / "mine.yaml"
    settings.write_text(
        f"data: {{log: {log}}}\nmodel: {{name: mlp, dim: 3}}\noptimizer: {{name: adagrad, l1: 0.1, penalty: hard}}\n"
        "training: {batch_size: 8}\n"
    )
    config = open_dataset(str(settings), None, None, "full", tmp_path / "out").config
    assert (config.model.name, config.model.dim, config.training.batch_size) == ("mlp", 3, 8)
    assert config.optimizer == Config.of(**PLAIN).optimizer
