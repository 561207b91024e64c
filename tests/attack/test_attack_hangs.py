"""Files without an end, and files that stand for many: each is refused at once, with an error that names it."""

import os
from pathlib import Path

import pytest

from command import Run
from data_cases import written
from over import over
from sparsegroup.data import ClickLogError, PreparedLog, open_log, prepare

LOG = "label,a\n" + "0,x\n1,y\n" * 20
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 12))
KINDS = ["pipe", "device", "loop"]


def refused(run: Run, *commands: tuple[object, ...]) -> list[str]:
    """What the command line says of each of some arguments, all of which it refuses."""
    ends = []
    for arguments in commands:
        done = run(*arguments)
        assert done.returncode == 2, (arguments, done)
        assert done.stderr.startswith("error: "), (arguments, done.stderr)
        assert len(done.stderr) < 1000
        ends.append(done.stderr)
    return ends


def endless(kind: str, path: Path) -> Path:
    """A pipe that nobody writes into, a device without an end, or a link to itself."""
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path.name)
    return path


def test_logs_without_an_end_are_refused_whatever_they_are_called(tmp_path: Path, run: Run) -> None:
    suffixes = ["", ".csv", ".gz", ".parquet", ".arrow"]
    paths = {endless(kind, tmp_path / f"{kind}{suffix}"): kind for kind in KINDS for suffix in suffixes}
    said = refused(run, *(("columns", path) for path in paths))
    for text, (path, kind) in zip(said, paths.items(), strict=True):
        assert str(path) in text
        assert kind == "loop" or "write a file first" in text, text


def test_a_folder_that_holds_one_or_links_to_itself_ends(tmp_path: Path) -> None:
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        written(tmp_path / kind / "1.csv", LOG)
        endless(kind, tmp_path / kind / "2.csv")
    (tmp_path / "round").mkdir()
    written(tmp_path / "round" / "1.csv", LOG)
    for name in ("a", "b", "c"):
        (tmp_path / "round" / name).symlink_to(".")
    for log in (tmp_path / name / inner for name in (*KINDS, "round") for inner in ("", "*.csv")):
        try:
            said = str(len(open_log(log)))
        except (ValueError, OSError) as error:
            said = str(error)
        assert said == "40" or str(log).rstrip("*.csv") in said, said


def test_settings_schemas_and_runs_without_an_end_or_that_stand_for_more_than_they_say(
    tmp_path: Path, run: Run
) -> None:
    log = written(tmp_path / "log.csv", LOG)
    paths = [endless(kind, tmp_path / f"{kind}.yaml") for kind in KINDS]
    commands: list[tuple[object, ...]] = [("inspect", path) for path in paths]
    texts = [LAUGHS, MERGES, "a: &a [*a]\n", "a: " + "[" * 2_000, "# x\n" * (1 << 19)]
    paths += [written(tmp_path / f"{number}.yaml", text) for number, text in enumerate(texts)]
    for path in paths:
        commands += [("prepare", log, tmp_path / "out", "--schema", path), ("train", path)]
    for text, arguments in zip(refused(run, *commands), commands, strict=True):
        assert str(arguments[-1]) in text


@over("kind", ["pipe", "device"])
def test_a_part_of_a_prepared_log_without_an_end_is_refused(kind: str, tmp_path: Path) -> None:
    prepare([written(tmp_path / "log.csv", LOG)], tmp_path / kind)
    part = tmp_path / kind / "part-00000.parquet"
    part.unlink()
    endless(kind, part)
    with pytest.raises(ClickLogError, match=r"part-00000.parquet: damaged .it is no file."):
        PreparedLog(tmp_path / kind)


def test_values_that_yaml_does_not_read_are_refused(tmp_path: Path, run: Run) -> None:
    log = written(tmp_path / "log.csv", LOG)
    values = ["2024-99-99", "!!int x", "!!timestamp x", "9" * 5000, "[" * 2000, "!!python/name:os.system"]
    paths = [written(tmp_path / f"{number}.yaml", f"label: {value}\n") for number, value in enumerate(values)]
    commands = [("prepare", log, tmp_path / "out", "--schema", path) for path in paths]
    for text, path in zip(refused(run, *commands), paths, strict=True):
        assert str(path) in text
    for text in refused(run, *(("train", log, "--set", f"optimizer.lr={value}") for value in values)):
        assert "--set" in text
