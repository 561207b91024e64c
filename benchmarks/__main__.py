"""Every figure that README and docs show: `python -m benchmarks --data FOLDER`; some hours, and 17 GiB of memory.

    python -m benchmarks --quick                       # that all of them run; a few minutes, no figures to keep
    python -m benchmarks table_step epoch              # some of them
    python -m benchmarks --data FOLDER out_of_the_box  # the public logs are in FOLDER

Each result is `results/NAME.json`, with the machine and the commit; sharded and out_of_the_box also write
their page in docs/results. A test compares the documentation with these files.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

HERE = Path(__file__).parent
CRITEO, DATA = "{criteo}", "{data}"
BENCHMARKS = {
    "table_step": ("table_step.py",),
    "table_growth": ("table_growth.py",),
    "optimizer_step": ("optimizer_step.py",),
    "first_step": ("first_step.py",),
    "gpu_step": ("gpu_step.py", "--threads", "8"),
    "serving": ("serving.py",),
    "scoring": ("scoring.py",),
    "compact_export": ("compact_export.py", "--data", DATA),
    "server": ("server.py",),
    "continuous": ("continuous.py",),
    "replay": ("replay.py", "--data", DATA),
    "freshness": ("freshness.py", "--data", DATA),
    "epoch": ("epoch.py", CRITEO),
    "race": ("race.py", "--data", DATA, "--limit", "150"),
    "race_one_core": (
        *("race.py", "--data", DATA, "--limit", "90", "--threads", "1"),
        *("--contenders", "ours", "logistic", "vw", "DCN", "LightGBM"),
    ),
    "race_whole": (
        *("race.py", "--rows", "45800000", "--limit", "600"),
        *("--contenders", "ours", "logistic", "vw", "DCN"),  # the trees' matrices would not fit into 24 GB
    ),
    "memory": ("memory.py",),
    "size_at_scale": ("size_at_scale.py",),
    "field_split": ("field_split.py", "--data", DATA),
    "row_state": (
        "row_state.py",
        *(f"{DATA}/{name}" for name in ("criteo_sample.txt.xz", "avazu_sample.csv.xz", "globo_clicks.csv.xz")),
    ),
    "epochs-avazu_sample": ("epochs.py", f"{DATA}/avazu_sample.csv.xz", "--seeds", "2"),
    "epochs-criteo_sample": ("epochs.py", f"{DATA}/criteo_sample.txt.xz"),
    "int8_size-avazu_sample": ("int8_size.py", f"{DATA}/avazu_sample.csv.xz", "--model", "mlp"),
    "int8_size-criteo_sample": ("int8_size.py", f"{DATA}/criteo_sample.txt.xz"),
    "default_settings": ("default_settings.py", "--data", DATA),
    "out_of_the_box": ("out_of_the_box.py", "--data", DATA),
    "sharded": ("sharded.py", "--data", DATA),
    "objectives": ("objectives.py",),
    "column_selection": ("column_selection.py", "--data", DATA),
}
"""Name of the result → script and arguments. `{criteo}`: a log of Criteo's size, `{data}`: the public logs."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="short runs, into a temporary folder")
    parser.add_argument("--data", type=Path, help="folder of the public logs; without it their benchmarks are left out")
    parser.add_argument("--criteo", type=Path, help="the synthetic log of Criteo's size; default: made, 5 GB of disk")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in BENCHMARKS:
            parser.error(f"no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.names or BENCHMARKS:
            command = _command(name, arguments, Path(folder))
            if command is None:
                print(f"{name}: left out", flush=True)
                continue
            print(f"{name}: {' '.join(command[1:])}", flush=True)
            if subprocess.run(command).returncode:
                failed.append(name)
            elif not arguments.quick:
                _sign(HERE / "results" / f"{name}.json")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


def _command(name: str, arguments: argparse.Namespace, folder: Path) -> list[str] | None:
    """The benchmark's command line, or None where it needs what is not given."""
    if name == "gpu_step" and not torch.cuda.is_available():
        return None
    script, *rest = BENCHMARKS[name]
    command = [sys.executable, str(HERE / script)]
    if arguments.quick:
        pages = ["--report", str(folder)] if script in ("out_of_the_box.py", "sharded.py") else []
        return [*command, "--quick", *pages, "--json", str(folder / f"{name}.json")]
    if any(DATA in argument for argument in rest) and arguments.data is None:
        return None
    log = arguments.criteo or folder / "criteo"
    if CRITEO in rest and not log.exists():
        subprocess.run([sys.executable, "-m", "sparsegroup_paper", "synthesize", "criteo", str(log)], check=True)
    given = [argument.replace(DATA, str(arguments.data)).replace(CRITEO, str(log)) for argument in rest]
    return [*command, *given, "--json", str(HERE / "results" / f"{name}.json")]


def _sign(path: Path) -> None:
    """Add the machine and the commit to a result."""
    commit = subprocess.run(["git", "-C", HERE, "describe", "--always", "--dirty"], capture_output=True, text=True)
    machine = (
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )
    signed = json.loads(path.read_text()) | {"commit": commit.stdout.strip(), "machine": machine}
    path.write_text(json.dumps(signed, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
