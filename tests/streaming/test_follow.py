"""A training that follows a stream: each row once, in order, with the same bits after any interruption."""

import itertools
import json
import resource
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.streams import FrameSource, rows_of_clicks

from over import over
from sparsegroup.checkpoint import Checkpoints
from sparsegroup.data import open_log
from sparsegroup.data.batches import Batch
from sparsegroup.errors import RunError
from sparsegroup.serving import export_trained, open_trained
from sparsegroup.serving.inspection import inspect
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.streaming.blocks import BlockReader, FullBatches, Journal
from sparsegroup.streaming.follow import Follower
from sparsegroup.streaming.live import LiveRecord
from sparsegroup.streaming.sources.source import Block
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


def begun(folder: Path, source: FrameSource, **changes) -> Follower:
    return Follower.begin(folder, CONFIG.replace(**changes), source, first_rows=500)


def weights_of(follower: Follower) -> list[torch.Tensor]:
    keys = torch.cat([batch.keys for batch in follower.log.batches(0, len(follower.log), 4096)]).unique()
    return [follower.model.embedding.lookup(keys), *follower.model.network.state_dict().values()]


def same(ours: Follower, theirs: Follower) -> bool:
    pairs = zip(weights_of(ours), weights_of(theirs), strict=True)
    return ours.trainer.samples == theirs.trainer.samples and all(torch.equal(*pair) for pair in pairs)


@pytest.fixture(scope="module")
def frame():
    return rows_of_clicks(3_000)


@pytest.fixture(scope="module")
def whole(frame, tmp_path_factory):
    """A training that was not interrupted; it has learnt full batches."""
    follower = begun(tmp_path_factory.mktemp("whole") / "run", FrameSource(frame, [1_000, 1_000]))
    follower.follow()
    assert follower.trainer.samples == 3_000 // 64 * 64
    assert follower.log.train_rows == 500
    return follower


@pytest.mark.parametrize("seed", range(2))
def test_blocks_and_kills_make_no_difference(frame, whole, tmp_path, seed):
    rng = np.random.default_rng(seed)
    source = FrameSource(frame, rng.integers(1, 200, 100).tolist(), fails_after=int(rng.integers(1, 12)))
    follower = begun(tmp_path / "run", source, checkpoint_steps=(5, 1)[seed])
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
    with pytest.raises(InterruptedError):
        begun(tmp_path / "run", FrameSource(frame, [700, 700, 700], fails_after=2)).follow()
    lines = [json.loads(line) for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()]
    assert lines == [[1, [0, 700]], [2, [700, 1400]]]
    again = FrameSource(frame, [1])
    Follower.resume(tmp_path / "run", again).follow()
    assert again.acknowledged[-1] == 1401  # the last batch is not full: rows behind that position are learnt again


def test_a_run_resumes_only_at_its_own_source(frame, tmp_path):
    with pytest.raises(InterruptedError):
        begun(tmp_path / "run", FrameSource(frame, [700, 700], fails_after=2)).follow()
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    other = FrameSource(frame, [700])
    other.name = "another frame"
    with pytest.raises(RunError, match=r"the run follows frame.*another frame"):
        Follower.resume(tmp_path / "run", other)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    Follower.resume(tmp_path / "run", FrameSource(frame, [700] * 5)).follow()


def test_folders_above_a_run_add_no_columns(frame, tmp_path):
    config = Config.of(model="lr", batch_size=64, label="click", columns="categorical", compile="never")
    run = Follower.begin(tmp_path / "region=eu" / "run", config, FrameSource(frame, [700], fails_after=1))
    assert "region" not in run.log.fields
    with pytest.raises(InterruptedError):
        run.follow()
    assert Follower.resume(run.run.path, FrameSource(frame, [700])).log.schema == run.log.schema


def test_changed_first_rows_are_refused_when_a_run_continues(frame, tmp_path):
    with pytest.raises(InterruptedError):
        begun(tmp_path / "run", FrameSource(frame, [700], fails_after=1)).follow()
    (copy,) = (tmp_path / "run" / "first_rows").iterdir()
    whole = copy.read_bytes()
    for damaged in (whole[:-40], whole.replace(b"0", b"1", 1)):
        copy.write_bytes(damaged)
        with pytest.raises(RunError, match=rf"{copy.name}: damaged"):
            Follower.resume(tmp_path / "run", FrameSource(frame, [700]))
    copy.write_bytes(whole)
    Follower.resume(tmp_path / "run", FrameSource(frame, [700])).follow()


def test_bad_rows_are_written_down_once(frame, tmp_path):
    damaged = frame.clone()
    damaged[100, "click"] = "maybe"
    damaged[1_500, "click"] = "perhaps"
    with pytest.raises(InterruptedError):
        begun(tmp_path / "run", FrameSource(damaged, [600] * 9, fails_after=4), checkpoint_steps=15).follow()
    Follower.resume(tmp_path / "run", FrameSource(damaged, [50] * 99)).follow()
    lines = [json.loads(line) for line in (tmp_path / "run" / "bad_rows.jsonl").read_text().splitlines()]
    assert [(one["line"], one["text"]) for one in lines] == [(101, "click=maybe"), (1_501, "click=perhaps")]
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (sum(status["bad_rows"].values()), status["ended"]) == (2, "")


def test_a_source_that_hangs_does_not_hold_up_the_end(frame):
    source, hangs, released = FrameSource(frame, [10]), threading.Event(), threading.Event()

    def read(timeout):
        hangs.set()
        released.wait()

    source.read = read
    reader = BlockReader(source)
    assert hangs.wait(30)
    assert not reader.close(0.05)
    released.set()
    assert reader.close(30.0)


def test_a_folder_that_is_moved_ends_the_training_in_words(frame, tmp_path):
    follower = begun(tmp_path / "run", source := FrameSource(frame, [100] * 30), checkpoint_steps=5)
    real = source.read

    def read(timeout):
        if source.position >= 1_000 and not (tmp_path / "moved").exists():
            (tmp_path / "run").rename(tmp_path / "moved")
        return real(timeout)

    source.read = read
    with pytest.raises(RunError, match="removed or moved"):
        follower.follow()


@over("given", [{"epochs": 2}, {"schedule": "cosine"}, {"validation": 0.1}])
def test_what_needs_an_end_is_refused(frame, tmp_path, given):
    with pytest.raises(SettingsError, match=f"a stream has no end.*`{next(iter(given))}`"):
        begun(tmp_path / "run", FrameSource(frame, [100]), **given)
    assert not (tmp_path / "run").exists()


@settings(max_examples=50)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(1, 30), st.data())
def test_batches_from_the_place_of_any_row_continue(sizes, size, data):
    """Behind any number of rows, the place says which block follows, and how many of its rows come before."""
    ends, log = np.cumsum([0, *sizes]), []
    for first, stop in itertools.pairwise(ends):
        rows = torch.arange(first, stop)
        batch = Batch(rows[:, None], torch.empty(len(rows), 0), torch.zeros(len(rows)), rows)
        log.append((Block(None, int(stop), 0.0, "numbers", lambda: None), batch))
    whole = FullBatches(size)
    for block, rows in log:
        whole.add(block, rows)
    for begin in sorted(data.draw(st.lists(st.integers(0, sum(sizes)), max_size=5))):
        place = whole.place(begin)
        assert place.position == (None if place.block == 0 else int(ends[place.block]))
        assert ends[place.block] + place.skip == begin
        assert place.block == len(sizes) or place.skip < sizes[place.block]
        rest = FullBatches(size, place)
        for block, rows in log[place.block :]:
            rest.add(block, rows)
        batches = [batch.times.tolist() for batch in rest.full()]
        assert [len(batch) for batch in batches] == [size] * ((sum(sizes) - begin) // size)
        assert [row for batch in batches for row in batch] == list(range(begin, begin + size * len(batches)))


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
    assert len(journal.path.read_text().splitlines()) == 2
    assert Journal(journal.path).spans_after(4) == [{"rows": 5}, {"rows": 6}]


@pytest.mark.parametrize(
    ("name", "key"), [("metrics.jsonl", "samples"), ("live.jsonl", "samples"), ("bad_rows.jsonl", "block")]
)
def test_a_record_may_lack_the_end_of_its_last_line_and_a_damaged_line_is_named(whole, tmp_path, name, key):
    path, record = tmp_path / name, LiveRecord(tmp_path, whole.log, whole.model.objective)
    lines = b"".join(json.dumps({key: number}).encode() + b"\n" for number in range(1, 6))
    for end in (b"", b"{", b'{"samples": 6, "blo', b'{"block": 6}', b"\0" * 9):
        path.write_bytes(lines + end)
        record.cut(5, 5)
        assert path.read_bytes() == lines
    for damage in (b"{", b"[6]", b"6", b'{"other": 6}', b'{"samples": "6", "block": null}', b"\0", b"\xff"):
        path.write_bytes(lines + damage + b"\n" + lines)
        with pytest.raises(RunError, match=rf"{name}:6: damaged"):
            record.cut(9, 9)


def test_a_full_disk_leaves_whole_lines_in_the_record(whole, tmp_path):
    path, record = tmp_path / "bad_rows.jsonl", LiveRecord(tmp_path, whole.log, whole.model.objective)
    block, rows = SimpleNamespace(origin="a.csv"), SimpleNamespace(bad=[(1, "label", "x" * 80)] * 5_000)
    record.note_rows(1, block, rows)
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
    try:
        record.note_rows(2, block, rows)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    record.note_rows(3, block, rows)
    record.cut(0, 3)
    assert path.read_bytes().count(b"\n") == 10_000


def test_its_model_is_open_to_other_commands(frame, whole, tmp_path):
    folder = whole.run.path
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
    follower = begun(tmp_path / "run", FrameSource(frame, [100] * 30), checkpoint_steps=5)
    full, clock = iter([True, False] * 20), iter([1e9, 5.0, 2e9, 1.0] * 5_000)

    def sometimes(function):
        def called(*arguments, **options):
            if next(full, False):
                raise OSError(28, "No space left on device")
            return function(*arguments, **options)

        return called

    for owner, name in ((Journal, "append"), (Checkpoints, "save")):
        monkeypatch.setattr(owner, name, sometimes(getattr(owner, name)))
    monkeypatch.setattr("time.time", lambda: next(clock))
    monkeypatch.setattr(threading.Event, "wait", lambda event, timeout=None: event.is_set() or timeout is not None)
    follower.follow()
    assert same(follower, whole)
    assert "waiting for room: [Errno 28]" in caplog.text
    assert "no checkpoint: [Errno 28]" in caplog.text


def test_rows_that_cannot_be_read_again_are_not_left_out_of_what_follows(frame, tmp_path):
    class Pipe(FrameSource):
        is_replayable = False

    with pytest.raises(InterruptedError):
        begun(tmp_path / "run", Pipe(frame, [100] * 20, fails_after=5), checkpoint_steps=1).follow()
    follower = Follower.resume(tmp_path / "run", Pipe(frame[:90], [30] * 3))
    before = follower.trainer.samples
    follower.follow()
    assert follower.trainer.samples == before + 90  # the end of a pipe is learnt as a smaller batch


def test_a_batch_may_be_larger_than_what_is_compared(tmp_path):
    follower = begun(tmp_path / "run", FrameSource(rows_of_clicks(44_000), [44_000]), batch_size=22_000)
    follower.follow()
    assert follower.trainer.samples == 44_000
