"""Reads damaged files in a process of its own, which may die of them: `attack_driver.py FOLDER`, with jobs on stdin.

A job is the name of a target and the number of a damage. A line of JSON says what came of each: "read", "refused", or a
failure: "unnamed", where the error does not name the file, "raised", where it is no error for users, or "died".
"""

import faulthandler
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

_HERE = Path(__file__).parent
SECONDS = 120
"""For one damaged file; longer is a hang."""

BYTES = 8 << 30
"""Address space beside what is taken when the attack begins."""


@dataclass
class Outcomes:
    """What damaged files of a target came to: how many to each outcome, and the failures in words."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def attack(folder: Path, jobs: Sequence[tuple[str, int]]) -> dict[str, Outcomes]:
    """What comes of jobs, on a copy of a folder, in processes of which another follows one that has died."""
    found: dict[str, Outcomes] = defaultdict(Outcomes)
    while jobs:
        command = [sys.executable, __file__, str(folder)]
        ended = subprocess.run(command, input=json.dumps(jobs), capture_output=True, text=True, check=False)
        answers = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith('["')]
        if len(answers) < len(jobs):
            answers.append(("died", f"exit status {ended.returncode}: {ended.stderr[-2000:]}"))
        for (name, number), (outcome, said) in zip(jobs, answers, strict=False):
            found[name].counts[outcome] += 1
            if outcome not in ("read", "refused"):
                found[name].failures.append(f"{name} {number}: {outcome}: {said}")
        jobs = jobs[len(answers) :]
    return found


def _outcome(attacked: Any, number: int) -> tuple[str, str]:
    """What comes of the damage of a number to a `Target` or to `MutatedLogs`."""
    from sparsegroup.errors import UserError

    what = attacked.damage(number)
    try:
        attacked.use()
    except UserError as error:
        return "refused" if attacked.is_named(str(error)) else "unnamed", f"{what}: {error}"[:600]
    except FloatingPointError:  # other numbers, from which training diverges, and says so
        pass
    except Exception:
        return "raised", f"{what}: {traceback.format_exc()[-1500:]}"
    finally:
        attacked.restore()
    return "read", what


def _main(folder: Path) -> None:
    from attack_targets import Target
    from damaged_logs import FORMATS, MutatedLogs

    jobs = json.load(sys.stdin)
    made: dict[str, Any] = {}
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + BYTES, taken + BYTES))
    os.chdir(folder)
    for name, number in jobs:
        if name not in made:
            made[name] = (MutatedLogs if name in FORMATS else Target)(folder, name)
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        print(json.dumps(_outcome(made[name], number)), flush=True)
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    sys.path[:0] = map(str, (_HERE, _HERE.parent / "support", _HERE.parents[1] / "benchmarks"))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        _main(Path(shutil.copytree(sys.argv[1], Path(place) / "folders")))
