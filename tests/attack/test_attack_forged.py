"""Whatever stands in a file, right checksums included: it is read as what it says, or refused with the file's name."""

import random
import sys
from pathlib import Path

import pytest
from attack_driver import attack
from attack_targets import KINDS, targets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of a process are read from /proc")


def test_some_forged_files(folders: Path) -> None:
    found = targets(folders)
    assert set(found) == set(KINDS)
    jobs = [(kind, at) for kind, one in found.items() for at in random.Random(0).sample(range(len(one.forgeries)), 3)]
    outcomes = attack(folders, sorted(jobs))
    assert {one.counts.total() for one in outcomes.values()} == {3}
    assert not (failures := [failure for one in outcomes.values() for failure in one.failures]), "\n".join(failures)
    assert sum(one.counts["refused"] for one in outcomes.values()) > len(KINDS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_all_forged_files(folders: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = attack(folders, [(kind, number) for number in range(len(targets(folders)[kind].forgeries))])[kind]
    with capsys.disabled():
        print(f"\n{kind}: {dict(outcomes.counts)}")
    assert not outcomes.failures, "\n".join(outcomes.failures)
    assert outcomes.counts["refused"]
