"""Files without an end, and files that stand for many: each is refused at once, with an error that names it."""

import os
from pathlib import Path

from data_cases import written
from endings import Refused
from sparsegroup.data import open_log

LOG = "label,a\n" + "0,x\n1,y\n" * 20
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 12))
KINDS = ["pipe", "device", "loop"]


def endless(kind: str, path: Path) -> Path:
    """A pipe that nobody writes into, a device without an end, or a link to itself."""
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path.name)
    return path


def test_logs_without_an_end_are_refused_whatever_they_are_called(tmp_path: Path, refused: Refused) -> None:
    for kind in KINDS:
        for suffix in ("", ".csv", ".gz", ".parquet", ".arrow"):
            path = endless(kind, tmp_path / f"{kind}{suffix}")
            said = refused("columns", path)
            assert str(path) in said
            assert kind == "loop" or "write a file first" in said, said


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
    tmp_path: Path, refused: Refused
) -> None:
    log = written(tmp_path / "log.csv", LOG)
    paths = [endless(kind, tmp_path / f"{kind}.yaml") for kind in KINDS]
    assert all(str(path) in refused("inspect", path) for path in paths)
    texts = [LAUGHS, MERGES, "a: &a [*a]\n", "a: " + "[" * 2_000, "# x\n" * (1 << 19)]
    paths += [written(tmp_path / f"{number}.yaml", text) for number, text in enumerate(texts)]
    for path in paths:
        for arguments in (("prepare", log, tmp_path / "out", "--schema", path), ("train", path)):
            said = refused(*arguments)
            assert str(path) in said
            assert len(said) < 1000
