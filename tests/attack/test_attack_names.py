"""Whatever a file or folder is called: a command works, and what it wrote is there under that name, or it refuses."""

import os
import re
from collections import Counter
from pathlib import Path

import pytest
from hostile_names import (
    AT_ONCE,
    ATTEMPTS,
    LONG,
    NAMES,
    SHORT,
    Attempt,
    Originals,
    contents,
    file_name,
    given_as,
    is_refused,
)

from command import Run
from sparsegroup.data import ClickLogError, open_log
from sparsegroup.data.raw.files import short_name


def outcome_of(attempt: Attempt, name: str, originals: Originals, run: Run, folder: Path) -> str:
    """Whether it works or is refused, which is checked."""
    folder.mkdir()
    os.chdir(folder)
    place = Path(file_name(name, attempt.end))
    attempt.prepare(originals, place)
    arguments = originals.arguments(attempt.command, given_as(str(place)))
    before = contents(folder)
    done = run(*arguments)
    said = f"{attempt.command}, {name!r}: {done.stderr[-500:]}"
    if is_refused(name):
        assert (done.returncode, contents(folder)) == (2, before), said
        assert "not UTF-8" in done.stderr, said
        return "refused"
    assert done.returncode == 0, said
    assert attempt.has_worked(place, done), said
    assert not [path for path in contents(folder) if re.search(r"\.tmp$|\.(new|old|unfinished)-[^/]*$", str(path))]
    return "works"


@pytest.mark.parametrize("attempt", SHORT, ids=lambda one: f"{one.command.split()[0]} {one.source}{one.end}")
def test_a_name_of_many_signs_is_the_name_of_a_file(
    attempt: Attempt, originals: Originals, run: Run, tmp_path: Path
) -> None:
    assert outcome_of(attempt, AT_ONCE, originals, run, tmp_path / "a") == "works"
    assert outcome_of(attempt, NAMES["no UTF-8"], originals, run, tmp_path / "b") == "refused"
    if not attempt.command.startswith("train"):  # the slowest of them
        assert outcome_of(attempt, NAMES["longest"], originals, run, tmp_path / "c") == "works"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_command_takes_every_name(
    name: str, originals: Originals, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attempts = [one for one in ATTEMPTS if one not in LONG or name == "colons"]
    found = Counter(
        outcome_of(attempt, NAMES[name], originals, run, tmp_path / str(number))
        for number, attempt in enumerate(attempts)
    )
    assert found.total() == len(attempts) >= 40
    with capsys.disabled():
        print(f"\n{name}: {dict(found)}")


def test_the_home_folder_is_not_meant(ok: Run, tmp_path: Path) -> None:
    ok("synthesize", "~root.csv", "--rows", "200")
    assert (tmp_path / "~root.csv").is_file()
    assert len(open_log("~root.csv")) == 200


def test_a_path_that_exists_is_no_uri_and_no_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "label,c\n1,a\n0,b\n"
    for path in ("s3://bucket/log.csv", "[a].csv", "a.csv", "x*/b.csv"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text + "1,b\n" * (path == "a.csv"))
    assert [len(open_log(path)) for path in ("s3://bucket/log.csv", "[a].csv", "x*", "x*/b.csv")] == [2, 2, 2, 2]
    Path("[a].csv").unlink()
    assert len(open_log("[a].csv")) == 3  # now it is a pattern
    assert short_name("[a].csv") == tmp_path.name
    assert (short_name("x*"), short_name("x*/b.csv")) == ("x*", "b")


def test_of_a_folder_the_name_that_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"a\xff.csv")).write_text("label,c\n1,a\n0,b\n")
    for log in (tmp_path, tmp_path / "*"):
        with pytest.raises(ClickLogError, match=r"a\\xff\.csv.*not UTF-8"):
            open_log(log)


def test_brackets_and_emoji_in_columns_are_printed_as_they_are(ok: Run, run: Run, tmp_path: Path) -> None:
    rows = "".join(f"{number % 2},v{number % 5},[/b]{number % 3}\n" for number in range(200))
    Path("log.csv").write_text("label,[/red],a:smile:[b]\n" + rows)
    ok("train", "log.csv", "--out", "run", "--model", "lr", "--no-baseline")
    shown = ok("evaluate", "run", "log.csv", "--by", "[/red]", "--by", "a:smile:[b]")
    assert "[/red]" in shown.stdout
    assert "a:smile:[b]" in shown.stdout
    assert "a:smile:[b]" in run("columns", "log.csv").stdout


def test_a_command_to_copy_is_quoted(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "a $b"
    folder.mkdir()
    (folder / "config.yaml").touch()
    done = run("train", "--rows", "200", "--out", "a $b")
    assert done.returncode == 2
    assert "`sparsegroup train --resume 'a $b'`" in done.stderr
