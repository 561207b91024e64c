"""Where the machine ends: files of limited size, outputs that are full or closed, caches without a folder."""

import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from originals import TINY, Originals, contents

from command import Run
from over import over
from sparsegroup.artifact import folder as disk
from sparsegroup.artifact.manifest import facts_of
from sparsegroup.data import open_log
from sparsegroup.data.local_files import LOCAL
from sparsegroup.publishing.destinations import StoreDestination
from sparsegroup.publishing.releases import Release
from sparsegroup.reporting.run_record import HistoryPoint
from sparsegroup.serving.opening import open_trained
from sparsegroup.streaming.blocks import Journal
from sparsegroup.streaming.sources.records import write_csv as write_records
from sparsegroup.training.run_folder import RunFolder


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Writing more to any file is an error (EFBIG), as on a full disk; Python ignores the signal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


WRITERS = (
    "columns {log} --schema out.yaml",
    "predict {run} {log} --out out.csv",
    "predict {run} {log} --out out.csv.gz",
    "predict {run} {log} --out out.parquet",
    "inspect {run} --html out.html",
    "export {run} out --no-onnx",
    "export {run} out --no-onnx --program",
    "export {run} out --since {export}",
    "synthesize out.csv --rows 300",
    "synthesize out.parquet --rows 300",
    "path {log} --out out --rates .5 --batch-size 64 --model lr",
)


def remove_outputs() -> None:
    shutil.rmtree("out", ignore_errors=True)
    for path in Path().glob("out.*"):
        path.unlink()


LIMITS = (0, 100, 1_000, 16_000)


@over("writer", WRITERS)
def test_a_file_that_cannot_grow_is_named_and_nothing_is_left(
    writer: str, originals: Originals, run: Run, tmp_path: Path
) -> None:
    command = originals.arguments(writer)
    refused = 0
    if " --out out.csv" in writer or "--html" in writer:
        out = Path(command[-1])
        out.write_text("old")
        with files_of_at_most(100):
            assert run(*command, "--overwrite").returncode == 1
        assert contents(tmp_path) == {out.name: 3}, "what was there stays"
        remove_outputs()
    for limit in LIMITS[:: 3 if "--program" in command else 1]:
        with files_of_at_most(limit):
            done = run(*command)
        if done.returncode == 0:
            break
        refused += 1
        assert done.returncode == 1, done.stderr
        said = done.stderr.splitlines()[-1]
        assert "out" in said.removeprefix("error: ").split(": ")[0], done.stderr
        assert said.endswith(os.strerror(errno.EFBIG)), done.stderr
        assert not {*contents(tmp_path)} - {"out", "out/path.json"}, limit
        assert writer.startswith("path") or not contents(tmp_path), limit
        remove_outputs()
    assert refused
    remove_outputs()


def grown_history(path: Path, source: Path) -> None:
    (path.parent / "config.yaml").touch()
    run = RunFolder(path.parent)
    for samples in range(9):
        run.append_point(HistoryPoint(samples, 0.7, 0.5, 0.9, 1.0, 0.5, 10, 20, 1000, 1.0, 100.0))


def fetched(path: Path, source: Path) -> None:
    facts = {path.name: facts_of(source)}
    release = Release(1, "export", source.parent.name, "id", None, 9, facts, 0.0, 9, None, None)
    StoreDestination(LOCAL, str(source.parents[1]), "store").fetch(release, path.parents[1])


def sampled(path: Path, source: Path) -> None:
    write_records(path.parent, [{"user": source.read_text()}])


APPENDING = {
    "metrics.jsonl": grown_history,
    "blocks.jsonl": lambda path, source: Journal(path).append(1, "span" * 100),
    "copy": lambda path, source: disk.copy(source, path),
    "source": fetched,
    "rows.csv": sampled,
}


@pytest.mark.parametrize("name", APPENDING)
def test_a_record_copy_or_sample_that_cannot_grow_is_named(name: str, tmp_path: Path) -> None:
    source = tmp_path / "store" / "kept" / "source"
    path = tmp_path / "written" / "kept" / name
    for folder in (source.parent, path.parent if name != "source" else path.parents[1]):
        folder.mkdir(parents=True)
    source.write_text("x" * 5_000)
    with files_of_at_most(200), pytest.raises(OSError, match=os.strerror(errno.EFBIG)) as raised:
        APPENDING[name](path, source)
    assert raised.value.errno == errno.EFBIG
    assert Path(raised.value.filename).name == name
    assert "written" in Path(raised.value.filename).parts, "and not the file that is copied"


@pytest.mark.parametrize("limit", [0, 1_000, 4_000, 16_000])
def test_a_log_or_a_run_that_could_not_be_written_is_completed(
    limit: int, originals: Originals, ok: Run, run: Run, tmp_path: Path
) -> None:
    for out, command in (("out", "prepare {log} out --vocabulary"), ("run", "train {log} --out run " + TINY)):
        first = originals.arguments(command)
        with files_of_at_most(limit):
            done = run(*first)
        if done.returncode:
            assert done.returncode == 1, done.stderr
            said = done.stderr.splitlines()[-1]
            assert said.startswith(f"error: {out}/"), done.stderr
            assert said.endswith(os.strerror(errno.EFBIG)), done.stderr
            begun = (tmp_path / "run" / "config.yaml").is_file()
            ok(*(("train", "--resume", "run") if begun else first))
        assert not [path for path in contents(tmp_path) if Path(path).name.endswith(".tmp")]
    assert len(open_log("out")) == 300
    assert open_trained(Path("run")).columns.fields


SAYING = (
    *("columns {log}", "columns {log} --json", "prepare {log} out", "train {log} --out out " + TINY),
    *("evaluate {run} {log}", "predict {run} {log}", "export {run} out --no-onnx", "inspect {run}"),
    *("tune {log} --trials 0", "synthesize out.csv --rows 200", "--version", "train --help"),
)


@over("what", SAYING)
def test_an_output_that_takes_nothing(
    what: str, originals: Originals, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = originals.arguments(what)
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        done = run(*command)
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].endswith(os.strerror(errno.ENOSPC)), done.stderr
    remove_outputs()
    reader, writer = os.pipe()
    os.close(reader)
    with suppress(BrokenPipeError), open(writer, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        done = run(*command)
    assert done.returncode == 1, done.stderr
    assert "error" not in done.stderr.lower()
    remove_outputs()
    monkeypatch.setattr(sys, "stdout", None)
    done = run(*command)
    if what.startswith("predict"):
        assert (done.returncode, "stdout is closed: give --out" in done.stderr) == (2, True)
    else:
        assert (done.returncode, "error" in done.stderr) == (0, False), done.stderr
    remove_outputs()


def test_streams_of_a_process(tmp_path: Path) -> None:
    def ended(arguments: str, streams: str) -> int:
        script = f'"$1" -m sparsegroup {arguments} {streams}'
        done = subprocess.run(["sh", "-c", script, "sh", sys.executable], cwd=tmp_path, capture_output=True, text=True)
        assert "Traceback" not in done.stderr
        assert "Exception" not in done.stderr
        return done.returncode

    assert ended("synthesize out.csv --rows 50", "<&- >&- 2>&-") == 0
    assert (tmp_path / "out.csv").read_text().count("\n") == 51
    assert ended("--version", ">/dev/full") == 1
    assert ended("--version", ">/dev/full 2>/dev/full") == 1


@over(
    "command",
    [
        *("inspect loop", "columns loop.csv", "prepare loop out", "prepare {log} loop", "train loop.csv"),
        *("train {log} --out loop", "train --resume loop", "train {log} --continue loop", "evaluate {run} loop.csv"),
        *("export {run} loop --no-onnx", "export loop out --no-onnx", "tune --resume loop"),
        "predict {run} {log} --out loop/x.csv",
    ],
)
def test_a_link_to_itself(command: str, run: Run, originals: Originals, tmp_path: Path) -> None:
    for name in ("loop", "loop.csv"):
        if not (tmp_path / name).is_symlink():
            (tmp_path / name).symlink_to(name)
    done = run(*originals.arguments(command))
    assert done.returncode == 2, done.stderr
    assert "loop" in done.stderr.splitlines()[-1], done.stderr
