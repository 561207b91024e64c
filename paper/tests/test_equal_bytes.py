"""Ways to a small embedding table: each against its definition, their bytes, and the whole contest on a tiny log."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from experiment_cases import BASE, OneBatchLog, click_log, dataset_of
from sparsegroup.data import VALUE_BITS, Bags, Batch, ClickLogError
from sparsegroup_paper.equal_bytes import embeddings, experiment, parts
from sparsegroup_paper.equal_bytes.experiment import equal_bytes
from sparsegroup_paper.equal_bytes.methods import CONTESTANTS, PRUNED_ELEMENTS, contest, element_mask
from sparsegroup_paper.equal_bytes.ours import FIXED
from sparsegroup_paper.equal_bytes.parts import Keyed, Rows, hashed, served_bytes
from sparsegroup_paper.equal_bytes.training import Task, Training
from sparsegroup_paper.lab import Lab, Worker, jobs_of
from sparsegroup_paper.pruning import checkpoint, count_keys
from sparsegroup_paper.report import read_report
from sparsegroup_paper.runs import PLAIN, Compact, Run

KEYS = torch.arange(1000) * 7919


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_hashes_are_even_and_independent():
    keys = torch.arange(100_000)
    first, second = hashed(keys, 0), hashed(keys, 1)
    assert len(torch.unique(first)) == len(keys)
    assert bool((first >= 0).all())
    counts = torch.bincount(first % 100 * 10 + second % 10, minlength=1000).double()
    assert float(((counts - 100) ** 2 / 100).sum()) == pytest.approx(999, abs=5 * (2 * 999) ** 0.5)  # χ²


@pytest.mark.parametrize("rows", [1, 3])
def test_int8_is_off_by_half_a_step(rows):
    weight = torch.randn(50, 8) * torch.logspace(-3, 1, 50)[:, None]
    weight[7] = 0
    codes, scale = parts.quantized(weight, rows)
    step = scale.float().repeat_interleave(rows)[:50, None]
    assert bool(((codes.float() * step - weight).abs() <= 0.5 * step + weight.abs() * 2**-10).all())
    assert (codes.dtype, scale.dtype, len(scale)) == (torch.int8, torch.float16, -(-50 // rows))


@given(st.integers(1, 10**6))
def test_factors_and_divisors(number):
    a, b, c = parts.factors(number)
    assert a * b * c >= number
    assert max(a, b, c) <= 2 * min(a, b, c) + 1
    assert 60 % parts.divisor(60, number) == 0
    assert parts.divisor(60, number) <= number


@settings(max_examples=50)
@example([1], 32)
@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=20), st.integers(1, 10**6))
def test_fields_share_a_budget(features, budget):
    least = 32
    if budget < least:
        with pytest.raises(parts.TooSmallError):
            parts.shares_of(features, budget, 40, least)
        return
    shares = parts.shares_of(features, budget, 40, least)
    assert sorted([*shares.exact, *shares.columns]) == list(range(len(features)))
    assert 40 * sum(features[field] for field in shares.exact) + shares.size == budget
    assert shares.features == sum(features[field] for field in shares.columns)
    assert shares.size >= least or not shares.columns
    for field in shares.exact:  # no exact field has more bytes than its part of the others'
        assert not shares.columns or 40 * features[field] <= shares.size // len(shares.columns) + 1


def test_a_table_by_key_has_zeros_or_the_fields_vector_for_other_keys():
    keys = torch.tensor([3, 5, 1 << 56, (-1 << 56) + 9]).sort().values
    table, by_field = Keyed(keys, 4), Keyed(keys, 4, fields=256)
    torch.testing.assert_close(table(keys), table.vectors())
    assert not table(torch.tensor([[4, 6]])).any()
    unknown = torch.tensor([4, (1 << 56) + 1, -1])
    assert parts.fields_in(unknown).tolist() == [0, 1, 255]
    torch.testing.assert_close(by_field(unknown), by_field.rows.weight[4 + parts.fields_in(unknown)])
    assert (served_bytes(table), served_bytes(by_field)) == (4 * (8 + 16), 4 * 8 + 260 * 16)
    parts.freeze(table, "int8")
    assert served_bytes(table) == 4 * (8 + 4 + 2)


def test_qr_gives_each_pair_of_remainder_and_quotient_a_vector():
    module = embeddings.QuotientRemainder(40, 50, 4, 0)
    vectors = module(KEYS)
    h = hashed(KEYS, 0)
    pairs = {(int(one % 40), int(one // 40 % 50)) for one in h}
    assert len(torch.unique(vectors, dim=0)) == len(pairs) > 700
    expected = module.remainder.weight[h % 40] * module.quotient.weight[h // 40 % 50]
    torch.testing.assert_close(vectors, expected)


def test_memcom_is_a_shared_vector_times_a_number():
    module = embeddings.Memcom(10, 300, 4, 0)
    ratio = module(KEYS) / module.vectors(KEYS)
    torch.testing.assert_close(ratio, ratio[:, :1].expand(-1, 4))
    assert len(torch.unique(ratio[:, 0])) > 250


def test_robe_reads_its_array_circularly():
    for chunk in (1, 2, 8):
        module = embeddings.Robe(11, 8, chunk, 0)
        places = module.places(KEYS).view(len(KEYS), -1, chunk)
        assert bool((places.diff(dim=-1) % 11 == 1).all())
        assert set(places[..., 0].flatten().tolist()) == set(range(11))
        torch.testing.assert_close(module(KEYS), module.array.weight[places.flatten(1)].squeeze(-1))


def test_dhe_is_a_function_of_the_key_alone():
    first, second = embeddings.DeepHash(16, 8, 4, 0), embeddings.DeepHash(16, 8, 4, 1)
    codes = first.codes(KEYS)
    assert torch.equal(codes, first.codes(KEYS))
    assert not torch.equal(codes, second.codes(KEYS))
    assert float(codes.var()) == pytest.approx(1, abs=0.05)
    assert float(codes.T.corrcoef().fill_diagonal_(0).abs().max()) < 0.2
    together = first(KEYS[[3, 5, 3]])
    assert torch.equal(together[0], together[2])
    torch.testing.assert_close(together[:1], first(KEYS[3:4]))
    assert served_bytes(first) == first.bytes_of(16, 8, 4, "float32") == 4 * sum(p.numel() for p in plain(first))
    parts.freeze(first, "int8")
    assert served_bytes(first) == first.bytes_of(16, 8, 4, "int8")


def plain(module):
    """The parameters without rows of zeros."""
    zeros = {id(rows.weight) for rows in module.modules() if isinstance(rows, Rows)}
    return [one[:-1] if id(one) in zeros else one for one in module.parameters()]


def test_a_tensor_train_is_the_product_of_its_cores():
    module = embeddings.TensorTrain([5, 6, 7], (2, 2, 3), 4, 0)
    keys = torch.cat([KEYS[:20], KEYS[:10]]).view(10, 3)
    shapes, rows = ((2, 4), (4, 2, 4), (4, 3)), parts.digits(keys, 0, (5, 6, 7))
    cores = [core.weight[row].view(10, 3, *shape) for core, row, shape in zip(module.cores, rows, shapes, strict=True)]
    expected = torch.einsum("bcir,bcrjs,bcsk->bcijk", *cores)
    torch.testing.assert_close(module(keys), expected.reshape(10, 3, 12))


def test_the_nearest_of_very_many_centroids_is_the_nearest():
    points = torch.randn(20_000, 2)
    centroids, nearest = embeddings.k_means(points, embeddings.MOST_COMPARED + 100, rounds=1)
    some = torch.arange(0, 20_000, 100)
    distances = torch.cdist(points[some].double(), centroids.double())
    assert torch.equal(nearest[some], distances.argmin(1))


def test_k_means_lowers_the_distortion_and_is_exact_with_enough_centroids():
    points = torch.randn(8, 3)[torch.randint(8, (500,))]
    centroids, nearest = embeddings.k_means(points + 0.01 * torch.randn(500, 3), 4)
    assert float((centroids[nearest] - points).square().sum()) < float((points - points.mean(0)).square().sum())
    centroids, nearest = embeddings.k_means(points, 300)
    torch.testing.assert_close(centroids[nearest], points)


@pytest.mark.parametrize("rows", [8, 300])
def test_cce_clusters_its_vectors(rows):
    module = embeddings.Clustered(300, rows, 4, 2, 0)
    before = module(KEYS).detach()
    random = float((before - before.roll(1, 0)).square().sum())
    forgotten = []
    module.after_step(0.4, lambda parameter, rows: forgotten.append(parameter))
    assert not forgotten
    module.after_step(0.5, lambda parameter, rows: forgotten.append(parameter))
    assert len(forgotten) == 2
    after = module(KEYS).detach()
    assert float((after - before).square().sum()) <= (0.25 if rows == 8 else 1e-9) * random
    with torch.no_grad():
        module.first.weight[rows : 2 * rows] = 1
    assert (module(KEYS) != after).any(0).tolist() == [False, False, True, True]
    assert served_bytes(module) == 4 * sum(p.numel() for p in plain(module)) + 2 * 300 * (1 if rows == 8 else 2)


def test_the_sketch_finds_heavy_keys():
    generator = np.random.default_rng(0)
    sketch, seen = embeddings.HotSketch(64, 0), Counter()
    for _ in range(100):
        keys, counts = np.unique(generator.zipf(1.3, 512), return_counts=True)
        seen.update(dict(zip(keys.tolist(), counts.tolist(), strict=True)))
        sketch.add(torch.from_numpy(keys), torch.from_numpy(counts).float())
    assert float(sketch.scores.sum()) == sum(seen.values())
    assert not len(embeddings.HotSketch(64, 0).best(5))
    heavy = {key for key, _ in seen.most_common(40)}
    assert len(heavy & set(sketch.best(60).tolist())) >= 38


def test_rows_go_to_the_best_and_stay_with_them():
    row = torch.tensor([2, 3, 0, 1, 3])  # of five places; 3 is none
    new = embeddings.reassigned(row, torch.tensor([1, 3, 4]), 3)
    assert row[3] == 1
    assert row[[0, 2]].tolist() == [3, 3]
    assert sorted(row[[1, 3, 4]].tolist()) == [0, 1, 2]
    assert sorted(new.tolist()) == [0, 2]


def test_keys_of_large_gradients_have_rows():
    weights = torch.ones(20, 1, 1)
    weights[[2, 3, 5, 7, 11]] = 9
    keys = KEYS[:20, None]
    adaptive, cafe = embeddings.Adaptive(KEYS, 5, 4, 10), embeddings.Cafe(5, 7, 4, 10, 0)
    for module in (adaptive, cafe):
        for done in (0.1, 0.2, 0.3):
            (module(keys) * weights).sum().backward()
            module.after_step(done, lambda parameter, rows: None)
    assert adaptive.served().keys.tolist() == cafe.keys.tolist() == KEYS[[2, 3, 5, 7, 11]].tolist()
    torch.testing.assert_close(adaptive.served()(keys), adaptive(keys))


def test_pep_thresholds_softly():
    module = embeddings.SoftThreshold(KEYS, 4, -5.0)
    vectors, threshold = module.table.vectors(), torch.sigmoid(torch.tensor(-5.0))
    expected = vectors.sign() * (vectors.abs() - threshold).clamp(min=0)
    torch.testing.assert_close(module(KEYS), expected)
    torch.testing.assert_close(module.margins() > 0, expected != 0)


def test_product_quantization_takes_the_nearest_centroids():
    vectors = torch.randn(300, 4)
    module = embeddings.ProductQuantized(KEYS[:300], vectors, 2, 16)
    centroids = module.centroids.weight[:-1].view(2, 16, 2)
    nearest = torch.cat(
        [of[torch.cdist(part, of).argmin(1)] for part, of in zip(vectors.chunk(2, 1), centroids, strict=True)], 1
    )
    torch.testing.assert_close(module(KEYS[:300]), nearest)
    assert not module(KEYS[300:]).any()
    assert served_bytes(module) == 300 * (8 + 2) + 2 * 16 * 2 * 4


@given(st.integers(0, 400), st.sampled_from(["float32", "int8"]), st.integers(0, 99))
def test_elements_are_the_largest_that_fit(budget, precision, seed):
    scores = torch.rand(10, 3, generator=torch.Generator().manual_seed(seed))
    mask = element_mask(scores, budget, precision)

    def size(mask):
        rows = Rows(10, 3)
        rows.keep(mask)
        rows.count, rows.mask, rows.is_int8 = int(mask.any(1).sum()), mask, precision == "int8"
        return rows.own_bytes + 8 * rows.count

    assert size(mask) <= budget
    if not mask.all():
        assert not mask.any() or scores[mask].min() > scores[~mask].max()
        assert size(scores >= scores[~mask].max()) > budget


@pytest.fixture(scope="module")
def log(log):
    """The log with hashes of its values, as fingerprints need them."""
    keys = torch.from_numpy(log.keys)
    values = hashed(keys, 0) & ((1 << VALUE_BITS) - 1)
    return replace(log, keys=((keys >> VALUE_BITS << VALUE_BITS) | values).numpy())


@pytest.fixture(scope="module")
def task(log):
    config = BASE.replace(optimizer="adagrad", lr=0.03, l21=0.0, l1=0.0, l2=0.0)
    return Task(log, config, count_keys(log, log.train_rows), log.train_rows)


@pytest.mark.parametrize("name", CONTESTANTS)
def test_what_is_served_fits_the_budget(task, log, name):
    contestant = CONTESTANTS[name]
    one = Task(log, BASE.replace(**contestant.changes), task.counts, task.stop) if contestant.is_ours else task
    setting = contestant.settings[1] if contestant.settings else None
    shares = (0.5, 0.003) if contestant.by_share else (1.0,)
    methods = [Compact(name, share, of, setting) for share in shares for of in contestant.precisions]
    jobs = [[run.method for run in job] for job in jobs_of([Run(BASE, method) for method in methods])]
    assert len(jobs) == (1 if contestant.shared else len(methods))
    done = []
    for method, served in (result for job in jobs for result in contest(one, job)):
        if served is None:
            assert method.share < 0.1
            continue
        budget = one.budget(method.share)
        assert served.bytes > 0
        if contestant.by_share:
            least = 0.3 if contestant.is_ours else 0.6  # some of ours have a row of a few bytes for every feature
            assert least * budget * (method.share >= 0.2) < served.bytes <= budget
        embedding = served.model.embedding
        held = sum(tensor.nbytes for tensor in embedding.state_dict().values())
        held -= sum(parts.row_bytes(of.width, method.precision) for of in embedding.modules() if isinstance(of, Rows))
        assert held <= served.bytes or name in ("PEP", PRUNED_ELEMENTS) or contestant.is_ours
        assert served.peak_bytes > 0
        assert bool(served.model(torch.from_numpy(log.keys[:50]), torch.empty(50, 0)).isfinite().all())
        done.append(method)
    assert len(done) >= len(contestant.precisions)


def test_training_starts_as_the_librarys_touches_the_rows_of_its_batches_and_counts_its_memory(task):
    training = Training(task, lambda: Keyed(task.keys, task.dim))
    model, _ = task.config.build(task.log)
    ours, theirs = (dict(one.network.named_parameters()) for one in (training.model, model))
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    weight = training.embedding.rows.weight
    before = weight.detach().clone()
    training.fit(0, 135)
    seen = torch.isin(task.keys, torch.from_numpy(task.log.keys[:135]))
    changed = (weight.detach() != before).any(1)
    assert torch.equal(changed, torch.cat([seen, torch.tensor([False])]))
    restore, state = checkpoint(training.model, *training.optimizers), weight.detach().clone()
    training.fit(135, task.stop)
    after = weight.detach().clone()
    restore()
    assert torch.equal(weight, state)
    training.fit(135, task.stop)
    assert torch.equal(weight, after)
    count = len(task.keys)
    gradients = 135 * 3 * (8 + 4 * task.dim)
    assert training.peak_bytes == pytest.approx(8 * count + 2 * 4 * task.dim * (count + 1) + gradients, abs=8)


def test_lists_are_refused(tmp_path):
    bags = (Bags(torch.arange(4), torch.tensor([0, 1, 2, 3, 4])),)
    batch = Batch(torch.zeros(4, 1, dtype=torch.int64), torch.empty(4, 0), torch.zeros(4), torch.arange(4), None, bags)
    log = OneBatchLog(batch, 3, ("a",), ("tags",))
    with pytest.raises(ClickLogError, match=r"tags has several"), Lab(dataset_of(log), tmp_path) as lab:
        equal_bytes(lab)


def test_the_command_runs_the_contest(tmp_path, run, monkeypatch):
    monkeypatch.setattr(experiment, "RATES", (("adam", 0.01), ("adagrad", 0.1)))
    monkeypatch.setattr(experiment, "FINER", (0.5,))
    monkeypatch.setattr(experiment, "SHARES", {0.3: (0.3, 0.1)})
    monkeypatch.setattr("sparsegroup_paper.lab.REPLICATES", 8)
    monkeypatch.setattr("sparsegroup_paper.equal_bytes.training.CALLS", 2)
    settings = {"model": {"name": "dcn", "dim": 4, "hidden": [4]}, "training": {"batch_size": 100}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(settings))
    click_log(tmp_path / "tiny.csv", rows=600)
    command = ["run", "bytes", "--dataset", "tiny.yaml", "--data", "tiny.csv", "--runs", 1, "--workers", 1]
    done = run(*command, "--out", "out")
    assert done.returncode == 0, done.stderr
    files = {path: path.stat().st_mtime_ns for path in Path("out/runs").iterdir()}
    (section,) = read_report(Path("out")).sections
    compared, points, choices = section.tables
    assert {row[0] for row in points.rows} == {row[1] for row in choices.rows} == {*CONTESTANTS}
    sizes = len(points.rows) - 2
    assert sizes == sum(2 * len(one.precisions) for one in CONTESTANTS.values() if one.by_share)
    for _, _, _, served, auc, _, _, *costs in points.rows:
        if auc is not None:
            assert min(served, *costs) > 0
            assert 0 < auc <= 1
    assert max(row[4] or 0 for row in points.rows) > 0.99  # the label is a function of one field
    assert {row[0] for row in compared.rows} == {0.3, 0.1}
    aucs = {row[1]: row[-1] or 0 for row in choices.rows}
    for share in (0.3, 0.1):
        places = {row[6]: aucs[row[4]] for row in compared.rows if row[0] == share}
        assert [*places] == [*range(1, len(places) + 1)]
        assert [*places.values()] == sorted(places.values(), reverse=True)
    assert any(sentence.startswith("At 30 %") for sentence in section.findings)
    for name, one in CONTESTANTS.items():
        assert f"{name}: {one.words}" in section.method

    # A longer log has less, not other, than before; nothing is run again.
    monkeypatch.setattr(experiment, "LONG_ROWS", 100)
    assert run(*command, "--out", "out").returncode == 0
    assert {path: path.stat().st_mtime_ns for path in Path("out/runs").iterdir()} == files
    (section,) = read_report(Path("out")).sections
    points = section.tables[1].rows
    ours = {row[0] for row in points if CONTESTANTS[row[0]].is_ours}
    assert FIXED in ours
    assert len(ours) <= 2
    expected = {(name, one.precisions[-1]) for name, one in CONTESTANTS.items() if not one.is_ours}
    assert {row[:2] for row in points if row[0] not in ours} == expected


def test_trials_take_the_first_rows_of_a_long_log(log, monkeypatch):
    worker, trial = Worker(log), Run(BASE, Compact("Hashing trick", 0.1), validate=True)
    assert worker.extent(trial) == worker.extent(replace(trial, method=PLAIN))
    monkeypatch.setattr("sparsegroup_paper.lab.TRIAL_ROWS", 100)
    assert worker.extent(trial) == (90, 100)
    assert worker.extent(replace(trial, validate=False)) == worker.extent(Run(BASE))
