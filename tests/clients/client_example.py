"""Runs a script of `examples/clients` as a user does, and reads what it prints."""

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
PRINTED = re.compile(r"AUC (\S+), feature rate (\S+) \(([\d,]+) of ([\d,]+)\)")


def run_example(name: str) -> tuple[float, float, str]:
    """AUC, feature rate and all that `examples/clients/<name>.py` prints."""
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    script = ROOT / "examples" / "clients" / f"{name}.py"
    with TemporaryDirectory() as here:  # Lightning leaves its checkpoint in the folder that it is called in
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            cwd=here,
            env={**os.environ, "PYTHONPATH": path},
        )
    assert done.returncode == 0, done.stderr
    found = PRINTED.search(done.stdout)
    assert found, done.stdout
    auc, rate, live, seen = (float(number.replace(",", "")) for number in found.groups())
    assert abs(live / seen - rate) <= 5e-4
    return auc, rate, done.stdout
