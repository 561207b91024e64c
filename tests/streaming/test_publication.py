"""A model that learns is published as it goes, refused if it is worse, and continued after a restart."""

import json
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from support.streams import FrameSource, rows_of_clicks

from sparsegroup.checkpoint import save_checkpoint
from sparsegroup.data.batches import Batch
from sparsegroup.objectives import LOGISTIC
from sparsegroup.publishing import Publisher, Subscriber, open_destination
from sparsegroup.serving import export_trained, open_trained
from sparsegroup.serving.inspection import inspect
from sparsegroup.streaming.follow import Follower
from sparsegroup.streaming.gate import Gate, Verdict
from sparsegroup.streaming.publication import Publication
from sparsegroup.streaming.watch import View, render
from sparsegroup.training import Config
from sparsegroup.training.model import NETWORKS, LookupModel

CONFIG = Config.of(model="lr", batch_size=64, label="click", compile="never", target_rate=0.5)
FRAME = rows_of_clicks(4_000)


def begun(folder: Path, frame=FRAME, **options) -> tuple[Follower, Publication]:
    """A training in `folder / "run"`, and what publishes it in `folder / "models"`."""
    follower = Follower.begin(folder / "run", CONFIG, FrameSource(frame, [500] * 8, **options), first_rows=500)
    return follower, publication(follower, folder / "models")


def publication(follower: Follower, destination: Path, gate_rows: int = 20_000, **options) -> Publication:
    publisher = Publisher(destination, formats=[], **options)
    run = follower.run.provenance().run
    return Publication(publisher, follower.model.objective, run, every=0.0, gate_rows=gate_rows)


@contextmanager
def untouched_random_numbers(monkeypatch):
    """Fail if the block draws from torch's generator, seeds it or sets it back, even to the state that it had.

    A thread that sets it back undoes what another thread has drawn since.
    """
    before = torch.get_rng_state()
    with monkeypatch.context() as patch:
        for name in ("manual_seed", "seed", "set_rng_state"):
            patch.setattr(torch, name, lambda *arguments, name=name: pytest.fail(f"torch.{name} is called"))
        yield
    assert torch.equal(torch.get_rng_state(), before)


def assert_served(follower: Follower, destination: Path, monkeypatch) -> None:
    """The served model predicts as the one that learns; making it, while training draws, leaves its numbers alone."""
    export = Subscriber(open_destination(destination)).catch_up(None).export
    before = torch.random.get_rng_state()
    batch = next(iter(follower.log.batches(0, 500, 500)))
    found = []
    with untouched_random_numbers(monkeypatch):
        served = export.model()
    for model in (follower.model.eval(), served):
        with torch.no_grad():
            found.append(model.network(model.embedding(batch.keys), batch.numbers))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_what_is_served_is_the_model_as_it_was_published_and_a_restarted_training_continues_with_deltas(
    tmp_path, monkeypatch
):
    follower, publishes = begun(tmp_path, fails_after=3)
    with pytest.raises(InterruptedError):
        follower.follow(publishes)
    before = open_destination(tmp_path / "models").releases()
    assert before[0].kind == "export"
    resumed = Follower.resume(tmp_path / "run", FrameSource(FRAME, [500] * 8))
    resumed.follow(publication(resumed, tmp_path / "models", compact_after=100.0))
    after = open_destination(tmp_path / "models").releases()
    assert [one.samples for one in after] == sorted(one.samples for one in after)
    last = after[-1]
    assert (last.kind, last.number > before[-1].number) == ("delta", True)
    assert last.samples == resumed.trainer.samples
    assert last.learnt_until == 1_700_000_000 + last.samples - 1
    assert last.figures["rows"] > 0
    assert_served(resumed, tmp_path / "models", monkeypatch)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["release"]["number"] == last.number
    assert status["published"]["refused"] == 0


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in ("mmoe", "ple")])  # these take tasks
def test_nothing_but_training_touches_the_random_numbers_of_training(name, tmp_path, monkeypatch):
    config = CONFIG.replace(model=name, **({"dropout": 0.5} if name in ("dcn", "mlp") else {}))
    follower = Follower.begin(tmp_path / "run", config, FrameSource(FRAME[:600], [600]), first_rows=500)
    follower.follow()
    publishes = publication(follower, tmp_path / "models")
    batch = next(iter(follower.log.batches(0, 500, 500)))
    facts = {"samples": follower.trainer.samples, "learnt_until": None, "read_until": None, "run": "1"}
    with untouched_random_numbers(monkeypatch):
        publishes.add(batch, torch.zeros(500), 500)
        publishes.start(follower.trained, facts)
        publishes.wait()
        assert publishes.why == ""
        save_checkpoint(tmp_path / "checkpoint", follower.model, follower.optimizer)
        run = tmp_path / "run"
        if name == "dcn":  # the same for every network
            export_trained(follower.trained, tmp_path / "export")
            inspect(open_trained(run))
            render(View.of(run))
    assert publishes.releases == 1


def test_a_model_that_is_worse_is_not_published(tmp_path, monkeypatch, caplog):
    follower, publishes = begun(tmp_path)
    verdicts, worse = iter([Verdict(True)]), Verdict(False, "its loss is 9.0 and the served model's 0.5")
    judged = []

    def judge(draft, rows):
        judged.append(sum(len(batch) for batch, _ in rows))
        return next(verdicts, worse)

    monkeypatch.setattr(publishes, "_judged", judge)
    follower.follow(publishes)
    (release,) = open_destination(tmp_path / "models").releases()
    assert (release.number, publishes.refused > 0) == (1, True)
    assert judged[0] == release.samples
    assert judged[-1] == follower.trainer.samples - release.samples  # rows that refused models have learnt among them
    assert "rows is not published: its loss is 9.0 and the served model's 0.5" in caplog.text
    assert json.loads((tmp_path / "run" / "status.json").read_text())["published"]["why"].endswith("model's 0.5")


def test_errors_of_publishing_do_not_end_the_training_and_the_next_model_is_published(tmp_path, monkeypatch, caplog):
    follower, publishes = begun(tmp_path)

    def failing(name, *errors):
        function, left = getattr(publishes.publisher, name), list(errors)

        def sometimes(*arguments, **options):
            if left:
                raise left.pop()
            return function(*arguments, **options)

        monkeypatch.setattr(publishes.publisher, name, sometimes)

    failing("draft", ZeroDivisionError("a bug"))
    failing("publish", *2 * [OSError(28, "No space left on device")])
    follower.follow(publishes)
    assert follower.trainer.samples == 4_000 // 64 * 64
    assert caplog.text.count("could not be published: [Errno 28] No space left on device") == 2
    assert "could not be published: ZeroDivisionError" in caplog.text
    assert open_destination(tmp_path / "models").releases()[-1].samples == follower.trainer.samples
    assert publishes.why == ""


def test_another_run_at_the_same_place_publishes_at_once_and_other_columns_are_no_obstacle(tmp_path):
    for number, rows in enumerate((FRAME, FRAME[:1_000], FRAME[:1_000].drop("site"))):
        follower = Follower.begin(tmp_path / f"run{number}", CONFIG, FrameSource(rows, [500] * 8), first_rows=500)
        follower.follow(publication(follower, tmp_path / "models", gate_rows=0))
        last = open_destination(tmp_path / "models").releases()[-1]
        assert last.samples == follower.trainer.samples
        assert last.run == follower.run.provenance().run
    assert last.kind == "export"


# The gate


class Constant(torch.nn.Module):
    """A network whose logit is that of its only number, times a factor, plus a shift."""

    def __init__(self, factor: float, shift: float) -> None:
        super().__init__()
        self.factor, self.shift = factor, shift

    def forward(self, embeddings, numbers):
        return self.factor * numbers[:, 0] + self.shift


def model(factor: float = 1.0, shift: float = 0.0) -> LookupModel:
    made = LookupModel(torch.nn.Embedding(4, 2), Constant(factor, shift))
    made.objective = LOGISTIC
    return made


def batches(count: int) -> list[Batch]:
    drawn = torch.Generator().manual_seed(0)
    logits = torch.randn(count, 1, generator=drawn) - 1
    labels = (torch.rand(count, generator=drawn) < logits[:, 0].sigmoid()).float()
    batch = Batch(torch.zeros(count, 1, dtype=torch.int64), logits, labels, torch.arange(count))
    return [batch[first : first + 100] for first in range(0, count, 100)]


@pytest.mark.parametrize(
    ("before", "candidate", "served", "rows", "why"),
    [
        (model(), model(), model(), 4_000, ""),
        (model(1.01), model(0.99), model(), 4_000, ""),
        (model(0.2), model(), model(), 4_000, "before it learnt them, its loss"),
        (model(), model(-1.0), model(), 4_000, "after it has learnt them, its loss"),
        (model(0.9, 0.1), model(1.0, 0.6), model(), 4_000, "calibration|loss"),
        (model(), model(), model(0.1), 4_000, ""),
        (model(0.5), model(0.5), model(), 100, ""),
        (model(-3), model(-3), None, 1_000, ""),
    ],
    ids=["same", "about as good", "learns badly", "broken", "predicts too much", "better", "few rows", "the first"],
)
def test_what_is_surely_worse_is_refused(before, candidate, served, rows, why):
    gate = Gate(LOGISTIC, 20_000)
    for batch in batches(rows):
        gate.add(batch, before.network(None, batch.numbers))
    verdict = gate.judge(gate.take(), candidate, served)
    assert verdict.is_accepted is (not why)
    assert not why or any(one in verdict.why for one in why.split("|"))
    if rows == 4_000:
        assert verdict.figures["rows"] == 4_000
        assert 0.5 < verdict.figures["auc"] < 1


def test_only_the_last_rows_are_kept_and_refused_ones_return():
    gate = Gate(LOGISTIC, 350)
    rows = batches(1_000)
    for batch in rows:
        gate.add(batch, torch.zeros(100))
    taken = gate.take()
    assert [one.times[0].item() for one, _ in taken] == [600, 700, 800, 900]
    gate.add(rows[0], torch.zeros(100))
    gate.give_back(taken)
    assert [one.times[0].item() for one, _ in gate.take()] == [700, 800, 900, 0]
    assert not gate.take()
