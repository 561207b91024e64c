"""The benchmark of several ranks: what it counts, the parts that it times, and the model that it fits."""

import json
from dataclasses import replace
from itertools import count, product
from pathlib import Path

import numpy as np
import pytest
import torch

import sharded
from distributed_cases import Ranks
from ranks.ctr_training import FIELDS, Job, make, run, write_log
from ranks.key_load import KeyDraws, KeyLoad
from ranks.projection import Crowd, Projection
from ranks.scaling_page import MOST_BYTES, page_of
from ranks.step_model import OWN, Link, Observed, StepModel, StepShape
from ranks.step_parts import EXCHANGES, NETWORK, PARTS, REDUCED, SUMMING, THREADS, StepParts
from ranks.wire_auc import WireAuc, predictions
from sparsegroup.table.sharded.routing import Routing

REPORT = Path(sharded.__file__).parents[1] / "docs" / "results" / "several-ranks"
ROWS = 2048
CONSTANTS = [1e-4, 2e-8, 3e-9, 5e-4]
TRUTH = StepModel(
    {part: CONSTANTS[: {NETWORK: 4, SUMMING: 2, THREADS: 1}.get(part, 3)] for part in OWN}, 1e-4, 5e-6, 1e-9, 5e-5
)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    write_log(folder, ROWS)
    return folder


def test_a_rank_sends_little_more_than_the_least(ranks: Ranks, log: Path) -> None:
    for wire, size in ((None, 4), (torch.bfloat16, 2)):
        job = Job(16, wire=wire, parallel=False)
        ranks.call(make, job, log, ROWS)
        done = ranks.call(run, job, 0, 3, 256)
        assert all(0 < one.away < one.distinct for one in done)
        least = sum(one.away for one in done) * (8 + 2 * 16 * size)
        assert 1 <= sum(one.sent for one in done) / least < MOST_BYTES


def test_every_part_of_a_step_is_timed(ranks: Ranks, log: Path) -> None:
    job = Job(8, in_parts=True)
    ranks.call(make, job, log, ROWS)
    for steps in ranks.call(run, job, 0, 3, 128):
        assert set(steps.parts) == set(PARTS)
        assert all(len(taken) == 3 and min(taken) > 0 for taken in steps.parts.values())
        assert min(steps.owned) > 0


def test_a_part_within_another_is_not_counted_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    passed, used = count(0, 10), count(0, 1)
    monkeypatch.setattr("ranks.step_parts.perf_counter", lambda: next(passed))
    monkeypatch.setattr("ranks.step_parts.process_time", lambda: next(used))
    parts = StepParts()
    with parts.watched():
        with parts.part("waiting"), parts.part("lookup"):
            pass
        parts.end_step()
    found = {name: seconds for name, (seconds,) in parts.taken().items() if seconds}
    assert found == {"network": 2, "waiting": 20, "lookup": 1}  # what is computed by the processor's clock


def test_the_load_of_ranks_is_counted_as_keys_are_routed() -> None:
    batches = np.random.default_rng(0).zipf(1.3, (3, 40, 5)) % 1000
    load = KeyLoad.of(batches)
    asked = [[np.isin(Routing(3).ranks_of(np.unique(keys)), rank).sum() for rank in range(3)] for keys in batches]
    of_each = np.sum(asked, axis=0)
    assert (load.asked, load.mean) == (of_each.max(), of_each.mean())
    assert load.into == max(of_each[rank] - asked[rank][rank] for rank in range(3))
    assert load.out == max(sum(asked[rank]) - asked[rank][rank] for rank in range(3))
    everywhere = KeyLoad.of(batches, np.unique(batches))
    assert (everywhere.asked, everywhere.distinct) == (0, load.distinct)


def test_skewed_keys_are_fewer_and_hot_ones_are_in_most_batches(log: Path) -> None:
    skewed, uniform = KeyDraws.of(log), KeyDraws(None, ROWS)
    assert skewed.load(4, 128).distinct < uniform.load(4, 128).distinct
    hot = skewed.hottest(64, 128)
    assert np.mean([np.isin(hot, batch).mean() for batch in skewed.batches(4, 128, 1)]) > 0.95


def test_the_model_finds_the_constants_that_made_its_steps() -> None:
    draws = KeyDraws(None, 1 << 14)
    shapes = [
        StepShape(ranks, batch, dim, draws.load(ranks, batch), 4, 10_000 * dim)
        for ranks, batch, dim in product((1, 2), (64, 256), (8, 32))
    ]
    observed = [Observed(shape, TRUTH.parts(shape)) for shape in shapes]
    fitted = StepModel.fitted(observed, TRUTH.peer, 1.0)
    unseen = StepShape(2, 700, 16, draws.load(2, 700), 2, 160_000)
    for link in (Link(), Link(0.1)):
        assert fitted.seconds(unseen, link) == pytest.approx(TRUTH.seconds(unseen, link), rel=0.02)
    slower = [
        Observed(one.shape, {part: by * taken if part in OWN else taken for part, taken in one.parts.items()})
        for one in observed
        for by in [1.5 if one.shape.ranks > 1 else 1.0]
    ]
    crowded = StepModel.fitted(slower, TRUTH.peer, 1.5)
    assert crowded.seconds(unseen) == pytest.approx(TRUTH.seconds(unseen), rel=0.02)
    assert crowded.seconds(unseen, crowded=True) > crowded.seconds(unseen)


def test_a_slow_link_is_waited_for_and_one_rank_has_none() -> None:
    load = KeyDraws(None, 1 << 12).load(4, 128)
    shape = StepShape(4, 128, 16, load, 4, 100_000)
    content = sum(shape.bytes().values()) + shape.reduced_bytes()
    slow, fast = TRUTH.seconds(shape, Link(0.1)), TRUTH.seconds(shape, Link(400))
    assert slow - fast == pytest.approx(content * (80e-9 * 1538 / 1448 - 1e-9))
    assert TRUTH.seconds(shape, Link(400)) == TRUTH.seconds(shape)  # gloo is slower than that
    alone = TRUTH.parts(replace(shape, ranks=1))
    assert [alone[part] for part in (*EXCHANGES.values(), REDUCED)] == [0.0] * 5


def test_more_ranks_are_asked_about(log: Path) -> None:
    draws = {"skewed": KeyDraws.of(log), "uniform": KeyDraws(None, ROWS)}
    found = Projection(TRUTH, draws, 1e-3, Crowd((2, 4), 256, 1024, 2)).figures()
    for gigabits in (10, 400):
        label = f"weak.skewed.4_ranks.{gigabits}gbit"
        parts = [found[f"{label}.{part}_ms"] for part in ("computed", "content", "messages", "all_reduce")]
        assert sum(parts) == pytest.approx(found[f"{label}.ms"])
        assert found[f"{label}.efficiency"] == pytest.approx(1 / found[f"{label}.ms"])
        assert found[f"remedies.4_ranks.{gigabits}gbit.bfloat16_ms"] < found[f"{label}.ms"]
    assert FIELDS == 26


def test_auc_differences_are_paired_by_seed(ranks: Ranks, tmp_path: Path) -> None:
    keys = torch.arange(400)[:, None] % torch.tensor([7, 31])
    torch.save([keys, torch.empty(400, 0), (keys[:, 0] < 3).float(), torch.tensor(320)], tmp_path / "log.pt")
    exact, rounded = (torch.cat(ranks.call(predictions, tmp_path, wire, 1)) for wire in (None, torch.bfloat16))
    assert len(exact) == 80
    assert 0 < (exact - rounded).abs().max() < 0.02
    found = WireAuc([0.7, 0.8, 0.6], [0.71, 0.80, 0.62]).figures()
    assert found["difference"] == pytest.approx(0.01)
    assert found["standard_error"] == pytest.approx(0.01 / 3**0.5)


def test_the_page_is_made_of_the_figures() -> None:
    figures = json.loads((REPORT / "results.json").read_text())
    assert (REPORT / "index.md").read_text() == page_of(figures)
    ratios = [value for name, value in figures.items() if name.startswith("bytes.") and name.endswith(".ratio")]
    assert len(ratios) == 4
    assert max(ratios) < MOST_BYTES


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path) -> None:
    sharded.main(["--quick", "--json", str(tmp_path / "figures.json"), "--report", str(tmp_path)])
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["bytes.2_ranks.float32.ratio"] < MOST_BYTES
    assert "## Where it stops, and why" in (tmp_path / "index.md").read_text()
