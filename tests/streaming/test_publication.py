"""A model that learns is published as it goes, refused if it is worse, and continued after a restart."""

import json
from pathlib import Path

import pytest
import torch
from support.streams import FrameSource, rows_of_clicks

from sparsegroup.publishing import Publisher, PublishError, Subscriber, open_destination
from sparsegroup.streaming.follow import Follower
from sparsegroup.streaming.gate import Verdict
from sparsegroup.streaming.publication import Publication
from sparsegroup.training import Config

CONFIG = Config.of(model="lr", batch_size=64, label="click", compile="never", target_rate=0.5)


@pytest.fixture(scope="module")
def frame():
    return rows_of_clicks(4_000)


def publication(follower: Follower, destination: Path, gate_rows: int = 20_000, **options) -> Publication:
    publisher = Publisher(destination, formats=[], **options)
    return Publication(
        publisher, follower.model.objective, follower.run.provenance().run, every=0.0, gate_rows=gate_rows
    )


def predictions(follower: Follower, destination: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the model that learns, and of the one that is served."""
    served = Subscriber(open_destination(destination)).catch_up(None)
    batch = next(iter(follower.log.batches(0, 500, 500)))
    found = []
    for model in (follower.model.eval(), served.export.model()):
        with torch.no_grad():
            found.append(model.network(model.embedding(batch.keys), batch.numbers))
    return found[0], found[1]


def test_what_is_served_is_the_model_as_it_was_published(frame, tmp_path):
    follower = Follower.begin(tmp_path / "run", CONFIG, FrameSource(frame, [500] * 8), first_rows=500)
    follower.follow(publication(follower, tmp_path / "models"))
    releases = open_destination(tmp_path / "models").releases()
    assert releases[0].kind == "export"
    assert len(releases) > 1
    last = releases[-1]
    assert last.samples == follower.trainer.samples
    assert last.learnt_until == 1_700_000_000 + last.samples - 1
    assert last.figures["rows"] > 0
    learns, served = predictions(follower, tmp_path / "models")
    torch.testing.assert_close(served, learns, rtol=1e-5, atol=1e-6)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["release"]["number"] == last.number
    assert status["published"]["refused"] == 0


def test_a_restarted_training_continues_with_deltas(frame, tmp_path):
    first = FrameSource(frame, [500] * 8, fails_after=3)
    follower = Follower.begin(tmp_path / "run", CONFIG, first, first_rows=500)
    with pytest.raises(InterruptedError):
        follower.follow(publication(follower, tmp_path / "models"))
    before = open_destination(tmp_path / "models").releases()[-1]
    resumed = Follower.resume(tmp_path / "run", FrameSource(frame, [500] * 8))
    resumed.follow(publication(resumed, tmp_path / "models", compact_after=100.0))
    after = open_destination(tmp_path / "models").releases()
    assert after[-1].kind == "delta"
    assert after[-1].number > before.number
    assert [one.samples for one in after] == sorted(one.samples for one in after)
    torch.testing.assert_close(*predictions(resumed, tmp_path / "models"), rtol=1e-5, atol=1e-6)


def test_a_model_that_is_worse_is_not_published(frame, tmp_path, monkeypatch, caplog):
    follower = Follower.begin(tmp_path / "run", CONFIG, FrameSource(frame, [500] * 8), first_rows=500)
    publishes = publication(follower, tmp_path / "models")
    verdicts, worse = iter([Verdict(True)]), Verdict(False, "its loss is 9.0 and the served model's 0.5")
    monkeypatch.setattr(publishes, "_judged", lambda *_: next(verdicts, worse))
    follower.follow(publishes)
    assert [one.number for one in open_destination(tmp_path / "models").releases()] == [1]
    assert publishes.refused
    assert "rows is not published: its loss is 9.0 and the served model's 0.5" in caplog.text
    assert json.loads((tmp_path / "run" / "status.json").read_text())["published"]["why"].endswith("model's 0.5")


def test_a_destination_that_fails_gets_the_next_model(frame, tmp_path, monkeypatch, caplog):
    follower = Follower.begin(tmp_path / "run", CONFIG, FrameSource(frame, [500] * 8), first_rows=500)
    publishes, fails = publication(follower, tmp_path / "models"), [True, True]
    publish = publishes.publisher.publish

    def sometimes(*arguments, **options):
        if fails:
            fails.pop()
            raise OSError(28, "No space left on device")
        return publish(*arguments, **options)

    monkeypatch.setattr(publishes.publisher, "publish", sometimes)
    follower.follow(publishes)
    assert caplog.text.count("could not be published: [Errno 28] No space left on device") == 2
    assert open_destination(tmp_path / "models").releases()[-1].samples == follower.trainer.samples
    assert publishes.why == ""


def test_two_trainings_cannot_publish_at_one_place(tmp_path):
    with Publisher(tmp_path / "models", formats=[]), pytest.raises(PublishError, match="publishes there"):
        Publisher(tmp_path / "models", formats=[])


def test_another_run_at_the_same_place_publishes_at_once_and_other_columns_are_no_obstacle(frame, tmp_path):
    for number, rows in enumerate((frame, frame[:1_000], frame[:1_000].drop("site"))):
        follower = Follower.begin(tmp_path / f"run{number}", CONFIG, FrameSource(rows, [500] * 8), first_rows=500)
        follower.follow(publication(follower, tmp_path / "models", gate_rows=0))
        last = open_destination(tmp_path / "models").releases()[-1]
        assert last.samples == follower.trainer.samples
        assert last.run == follower.run.provenance().run
    assert last.kind == "export"


def test_an_error_of_publishing_does_not_end_the_training(frame, tmp_path, monkeypatch, caplog):
    follower = Follower.begin(tmp_path / "run", CONFIG, FrameSource(frame, [500] * 8), first_rows=500)
    publishes = publication(follower, tmp_path / "models")
    monkeypatch.setattr(publishes.publisher, "draft", lambda trained: 1 / 0)
    follower.follow(publishes)
    assert follower.trainer.samples == 4_000 // 64 * 64
    assert "could not be published: ZeroDivisionError" in caplog.text


def test_a_frozen_model_leaves_random_numbers_alone(frame, tmp_path, monkeypatch):
    """The publisher makes it while training draws."""
    follower = Follower.begin(tmp_path / "run", CONFIG, FrameSource(frame, [500] * 8), first_rows=500)
    follower.follow(publication(follower, tmp_path / "models"))
    export = Subscriber(open_destination(tmp_path / "models")).catch_up(None).export
    before = torch.random.get_rng_state()
    monkeypatch.setattr(torch, "manual_seed", lambda seed: pytest.fail("seeds"))
    export.model()
    assert torch.equal(torch.random.get_rng_state(), before)
