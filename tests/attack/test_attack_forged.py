"""Whatever stands in a file, right checksums included: it is read as what it says, or refused with the file's name."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from attack_targets import targets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of a process are read from /proc")

DRIVER = Path(__file__).with_name("attack_driver.py")
KINDS = (
    "checkpoint",
    "changes",
    "table",
    "changed table",
    "state",
    "run's checkpoint",
    "run's table",
    "cut-off run's checkpoint",
    "cut-off run's state",
    "provenance.json",
    "summary.json",
    "columns.json",
    "log.json",
    "manifest.json",
    "embeddings",
    "network",
    "delta",
    "upserts",
    "tombstones",
)


def attacked(folder: Path, most: int, *kinds: str) -> tuple[dict[str, Counter[str]], list[str]]:
    """What came of forged files, by kind, and those that were neither read nor refused; a process that dies is one."""
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    wrong: list[str] = []
    left, first = list(kinds), 0
    while left:
        command = [sys.executable, str(DRIVER), str(folder), str(most), str(first), *left]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
        begun: dict[str, Any] | None = None
        for line in lines:
            if "begin" in line:
                begun = line
                continue
            assert begun is not None
            counts[begun["kind"]][line["outcome"]] += 1
            if line["outcome"] not in ("works", "refused"):
                wrong.append(f"{begun['kind']}: {begun['what']}: {line['outcome']}: {line['error']}")
            begun = None
        if begun is None:
            assert ended.returncode == 0, ended.stderr[-2_000:]
            break
        counts[begun["kind"]]["died"] += 1
        wrong.append(f"{begun['kind']}: {begun['what']}: died: {ended.stderr[-1_000:]}")
        left, first = left[left.index(begun["kind"]) :], begun["begin"] + 1
        if len(left) > 1:  # the others begin at their first
            more, others = attacked(folder, most, *left[1:])
            counts |= more
            wrong += others
            left = left[:1]
    return counts, wrong


def test_some_forged_files(folders: Path) -> None:
    assert set(targets(folders)) == set(KINDS)
    counts, wrong = attacked(folders, 3, *KINDS)
    assert not wrong, "\n".join(wrong)
    assert {count.total() for count in counts.values()} == {3}
    assert sum(count["refused"] for count in counts.values()) > len(KINDS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_all_forged_files(folders: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    counts, wrong = attacked(folders, 0, kind)
    with capsys.disabled():
        print(f"\n{kind}: {dict(counts[kind])}")
    assert not wrong, "\n".join(wrong)
    assert counts[kind]["refused"]
