"""Attacks files in a process of its own, which may die: `attack_driver.py FOLDER MOST FIRST KIND…`.

Of each kind MOST forged files are tried, drawn by a fixed seed, 0 for all, from number FIRST on. A line of JSON before
each says which it is, and one after it what came of it.
"""

import faulthandler
import json
import os
import random
import re
import resource
import shutil
import sys
import tempfile
from pathlib import Path

import torch

_HERE = Path(__file__).parent
sys.path[:0] = map(str, (_HERE, _HERE.parent / "support", _HERE.parents[1] / "benchmarks"))

SECONDS = 120
"""For one forged file; longer is a hang."""

BYTES = 8 << 30
"""Address space beside what is taken when the attack begins."""

_NAMES = re.compile(r"\.(json|jsonl|yaml|safetensors|parquet)\b|step-\d{12}|export|delta|/run: ")


def attack(folder: Path, kind: str, most: int, first: int) -> None:
    """Try the forged files of a kind."""
    from attack_targets import targets

    from sparsegroup.errors import UserError

    target = targets(folder)[kind]
    target.use(folder)  # what is valid works
    touched = [folder / name for name in (target.file, target.manifest) if name is not None]
    whole = [path.read_bytes() for path in touched]
    forgeries = list(target.forgeries(folder))
    chosen = range(len(forgeries))
    if 0 < most < len(forgeries):
        chosen = sorted(random.Random(0).sample(chosen, most))  # type: ignore[assignment]
    for number in chosen:
        if number < first:
            continue
        what, forge = forgeries[number]
        _tell(kind=kind, begin=number, what=what)
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        try:
            forge()
            target.use(folder)
            _tell(outcome="works")
        except UserError as error:
            _tell(outcome="refused" if _NAMES.search(str(error)) else "names no file", error=str(error)[:400])
        except FloatingPointError:  # other numbers, from which training diverges, and says so
            _tell(outcome="works")
        except Exception as error:
            place = error.__traceback__
            while place is not None and place.tb_next is not None:
                place = place.tb_next
            where = "" if place is None else f"{place.tb_frame.f_code.co_filename}:{place.tb_lineno}"
            _tell(outcome="raised", error=f"{type(error).__name__}: {str(error)[:300]} ({where})")
        finally:
            faulthandler.cancel_dump_traceback_later()
            for path, content in zip(touched, whole, strict=True):
                path.write_bytes(content)


def _tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    given, most, first, *kinds = sys.argv[1:]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        mine = Path(shutil.copytree(given, Path(place) / "folders"))
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + BYTES, taken + BYTES))
        os.chdir(mine)
        for kind in kinds:
            attack(mine, kind, int(most), int(first))
