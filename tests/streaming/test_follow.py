"""A training that follows a stream: each row once, in order, with the same bits after any interruption."""

import itertools
import json
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.streams import FrameSource, rows_of_clicks

from sparsegroup.checkpoint import Checkpoints
from sparsegroup.data import open_log
from sparsegroup.errors import RunError
from sparsegroup.serving import export_trained, open_trained
from sparsegroup.serving.inspection import inspect
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.streaming.blocks import FullBatches, Journal, Place
from sparsegroup.streaming.follow import Follower
from sparsegroup.training import Config, Session, load_model, load_run, predict

CONFIG = Config.of(
    model="lr",
    batch_size=64,
    label="click",
    compile="never",
    checkpoint_minutes=0.0,
    target_rate=0.5,
    evict_unseen="1h",
)


def weights_of(follower: Follower) -> dict[str, torch.Tensor]:
    keys = torch.cat([batch.keys for batch in follower.log.batches(0, len(follower.log), 4096)]).unique()
    table = follower.model.embedding
    return {
        "rows": table.lookup(keys),
        **dict(follower.model.network.state_dict().items()),
    }


def same(ours: Follower, theirs: Follower) -> bool:
    pairs = zip(weights_of(ours).values(), weights_of(theirs).values(), strict=True)
    return ours.trainer.samples == theirs.trainer.samples and all(torch.equal(*pair) for pair in pairs)


def followed(folder: Path, source: FrameSource, steps: int = 0) -> Follower:
    config = CONFIG.replace(checkpoint_steps=steps)
    follower = Follower.begin(folder, config, source, first_rows=500)
    follower.follow()
    return follower


@pytest.fixture(scope="module")
def frame():
    return rows_of_clicks(3_000)


@pytest.fixture(scope="module")
def whole(frame, tmp_path_factory):
    return followed(tmp_path_factory.mktemp("whole") / "run", FrameSource(frame, [1_000, 1_000]))


def test_rows_are_learnt_in_full_batches(whole):
    assert whole.trainer.samples == 3_000 // 64 * 64
    assert whole.log.train_rows == 500


@pytest.mark.parametrize("seed", range(4))
def test_blocks_and_kills_make_no_difference(frame, whole, tmp_path, seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 200, 100).tolist()
    source = FrameSource(frame, sizes, fails_after=int(rng.integers(1, 12)))
    config = CONFIG.replace(checkpoint_steps=int(rng.integers(1, 9)))
    follower = Follower.begin(tmp_path / "run", config, source, first_rows=500)
    killed = 0
    while True:
        try:
            follower.follow()
            break
        except InterruptedError:
            killed += 1
        # It goes on with other blocks than those that the first training would have read.
        again = FrameSource(frame, rng.integers(1, 200, 100).tolist(), int(rng.integers(1, 12)))
        follower = Follower.resume(tmp_path / "run", again)
    assert killed
    assert same(follower, whole)


def test_a_resumed_training_takes_the_blocks_that_were_taken(frame, tmp_path):
    source = FrameSource(frame, [700, 700, 700], fails_after=2)
    follower = Follower.begin(tmp_path / "run", CONFIG, source, first_rows=500)
    with pytest.raises(InterruptedError):
        follower.follow()
    lines = [json.loads(line) for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()]
    assert lines == [[1, [0, 700]], [2, [700, 1400]]]
    again = FrameSource(frame, [1])
    resumed = Follower.resume(tmp_path / "run", again)
    resumed.follow()
    assert again.acknowledged[-1] == 1401  # the last batch is not full: rows behind that position are learnt again


def test_bad_rows_are_written_down_once(frame, whole, tmp_path):
    damaged = frame.clone()
    damaged[100, "click"] = "maybe"
    damaged[1_500, "click"] = "perhaps"
    source = FrameSource(damaged, [600] * 9, fails_after=4)
    follower = Follower.begin(tmp_path / "run", CONFIG.replace(checkpoint_steps=15), source, first_rows=500)
    with pytest.raises(InterruptedError):
        follower.follow()
    follower = Follower.resume(tmp_path / "run", FrameSource(damaged, [50] * 99))
    follower.follow()
    lines = [json.loads(line) for line in (tmp_path / "run" / "bad_rows.jsonl").read_text().splitlines()]
    assert [(one["line"], one["text"]) for one in lines] == [(101, "click=maybe"), (1_501, "click=perhaps")]
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert sum(status["bad_rows"].values()) == 2
    assert status["ended"] == ""


@pytest.mark.parametrize("given", [{"epochs": 2}, {"schedule": "cosine"}, {"validation": 0.1}])
def test_what_needs_an_end_is_refused(frame, tmp_path, given):
    with pytest.raises(SettingsError, match=f"a stream has no end.*`{next(iter(given))}`"):
        Follower.begin(tmp_path / "run", CONFIG.replace(**given), FrameSource(frame, [100]), first_rows=500)
    assert not (tmp_path / "run").exists()


@settings(max_examples=50)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(1, 30), st.data())
def test_the_place_of_a_row(sizes, size, data):
    """Behind any number of rows, the place says which block follows, and how many of its rows come before."""
    log = followed_batches(sizes)
    batches = FullBatches(size)
    for block, rows in log:
        batches.add(block, rows)
    ends = np.cumsum([0, *sizes])
    for rows in sorted(data.draw(st.lists(st.integers(0, int(ends[-1])), max_size=5))):
        place = batches.place(rows)
        assert place.position == (None if place.block == 0 else int(ends[place.block]))
        assert ends[place.block] + place.skip == rows
        assert place.block == len(sizes) or place.skip < sizes[place.block]


@settings(max_examples=50)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(1, 30), st.data())
def test_batches_from_any_place_continue(sizes, size, data):
    log = followed_batches(sizes)
    total = sum(sizes)
    begin = data.draw(st.integers(0, total // size)) * size
    first = FullBatches(size)
    for block, rows in log:
        first.add(block, rows)
    expected = [batch.times.tolist() for batch in first.full()][begin // size :]
    place = first.place(begin) if begin else Place()
    second = FullBatches(size, place)
    for block, rows in log[place.block :]:
        second.add(block, rows)
    assert [batch.times.tolist() for batch in second.full()] == expected


def followed_batches(sizes):
    from sparsegroup.data.batches import Batch
    from sparsegroup.streaming.sources.source import Block

    ends, found = np.cumsum([0, *sizes]), []
    for first, stop in itertools.pairwise(ends):
        rows = torch.arange(first, stop)
        batch = Batch(rows[:, None], torch.empty(len(rows), 0), torch.zeros(len(rows)), rows)
        found.append((Block(None, int(stop), 0.0, "numbers", lambda: None), batch))
    return found


def test_a_journal_without_its_last_line(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    for number in range(1, 6):
        journal.append(number, {"rows": number})
    with journal.path.open("ab") as file:
        file.write(b'[6, {"ro')
    journal = Journal(journal.path)
    assert journal.spans_after(3) == [{"rows": 4}, {"rows": 5}]
    journal.forget(1)  # the cut line is gone
    journal.append(5, {"rows": "noted before"})
    journal.append(6, {"rows": 6})
    journal.forget(4)
    assert Journal(journal.path).spans_after(4) == [{"rows": 5}, {"rows": 6}]


def test_its_model_is_open_to_other_commands(frame, whole, tmp_path):
    folder = whole.run.path
    assert load_model(folder).embedding.num_live > 0
    trained = open_trained(folder)
    assert trained.samples == 3_000 // 64 * 64
    assert inspect(trained).total.seen > 0
    export_trained(trained, tmp_path / "export")
    frame.head(50).write_csv(tmp_path / "log.csv")
    scored = open_log(tmp_path / "log.csv", whole=True, like=trained.config.format_options)
    assert len(predict(load_model(folder), scored.batches(0, 50, 50)).probabilities()) == 50
    for call in (lambda: Session.resume(folder, scored), lambda: load_run(folder)):
        with pytest.raises(RunError, match=r"follows .*stream.*`follow` continues it"):
            call()


def test_a_full_disk_and_a_clock_that_jumps_make_no_difference(frame, whole, tmp_path, monkeypatch, caplog):
    config, source = CONFIG.replace(checkpoint_steps=5), FrameSource(frame, [100] * 30)
    follower = Follower.begin(tmp_path / "run", config, source, first_rows=500)
    full, clock = iter([True, False] * 20), iter([1e9, 5.0, 2e9, 1.0] * 5_000)
    append, save = Journal.append, Checkpoints.save

    def sometimes(function):
        def called(*arguments, **options):
            if next(full, False):
                raise OSError(28, "No space left on device")
            return function(*arguments, **options)

        return called

    monkeypatch.setattr(Journal, "append", sometimes(append))
    monkeypatch.setattr(Checkpoints, "save", sometimes(save))
    monkeypatch.setattr("time.time", lambda: next(clock))
    monkeypatch.setattr(threading.Event, "wait", lambda event, timeout=None: event.is_set() or timeout is not None)
    follower.follow()
    assert same(follower, whole)
    assert "waiting for room: [Errno 28]" in caplog.text
    assert "no checkpoint: [Errno 28]" in caplog.text


def test_rows_that_cannot_be_read_again_are_not_left_out_of_what_follows(frame, tmp_path):
    class Pipe(FrameSource):
        is_replayable = False

    config, source = CONFIG.replace(checkpoint_steps=1), Pipe(frame, [100] * 20, fails_after=5)
    with pytest.raises(InterruptedError):
        Follower.begin(tmp_path / "run", config, source, first_rows=500).follow()
    follower = Follower.resume(tmp_path / "run", Pipe(frame[:90], [30] * 3))
    before = follower.trainer.samples
    follower.follow()
    assert follower.trainer.samples == before + 90  # the end of a pipe is learnt as a smaller batch


def test_a_batch_may_be_larger_than_what_is_compared(tmp_path):
    rows = rows_of_clicks(44_000)
    config = CONFIG.replace(batch_size=22_000)
    follower = Follower.begin(tmp_path / "run", config, FrameSource(rows, [44_000]), first_rows=500)
    follower.follow()
    assert follower.trainer.samples == 44_000
