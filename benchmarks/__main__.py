"""Every figure that README and docs show: `python -m benchmarks --data FOLDER`; some hours, and 17 GiB of memory.

    python -m benchmarks --quick                       # that all of them run; a few minutes, no figures to keep
    python -m benchmarks table_step epoch              # some of them
    python -m benchmarks --data FOLDER out_of_the_box  # the public logs are in FOLDER

Each result is `results/NAME.json`, with the machine and the commit; sharded and out_of_the_box also write
their page in docs/results. A test compares the documentation with these files.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
DATA = "{data}"
BENCHMARKS = {
    "table_step": ("table_step.py",),
    "table_bags": ("table_bags.py",),
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
    "epoch": ("epoch.py",),
    "race": ("race.py", "--data", DATA, "--limit", "150", "--chart", str(HERE.parent / "docs/images/race.png")),
    "race_one_core": (
        *("race.py", "--data", DATA, "--limit", "90", "--threads", "1"),
        *("--contenders", "ours", "logistic", "vw", "DCN", "LightGBM"),
    ),
    "race_whole": (
        *("race.py", "--rows", "45800000", "--limit", "600"),
        *("--contenders", "ours", "logistic", "vw", "DCN"),  # the trees' matrices would not fit into 24 GB
    ),
    "memory": ("memory.py",),
    "walks": ("walks.py",),
    "size_at_scale": ("size_at_scale.py",),
    "field_split": ("field_split.py", "--data", DATA),
    "row_state": ("row_state.py", "--data", DATA),
    "epochs-avazu_sample": ("epochs.py", f"{DATA}/avazu_sample.csv.xz", "--seeds", "2"),
    "epochs-criteo_sample": ("epochs.py", f"{DATA}/criteo_sample.txt.xz"),
    "int8_size-avazu_sample": ("int8_size.py", f"{DATA}/avazu_sample.csv.xz", "--model", "mlp"),
    "int8_size-criteo_sample": ("int8_size.py", f"{DATA}/criteo_sample.txt.xz"),
    "default_settings": ("default_settings.py", "--data", DATA),
    "out_of_the_box": ("out_of_the_box.py", "--data", DATA),
    "sharded": ("sharded.py", "--data", DATA),
    "objectives": ("objectives.py",),
    "column_selection": ("column_selection.py", "--data", DATA),
    "shared_vocabulary": ("shared_vocabulary.py", "--data", DATA),
}
"""Name of the result → script and arguments. `{data}`: the folder of the public logs."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="short runs, whose figures are not kept")
    parser.add_argument("--data", type=Path, help="folder of the public logs; without it their benchmarks are left out")
    given = parser.parse_args()
    for name in given.names:
        if name not in BENCHMARKS:
            parser.error(f"no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    failed = []
    for name in given.names or BENCHMARKS:
        script, *options = BENCHMARKS[name]
        if given.quick:
            options = ["--quick"]
        elif (name == "gpu_step" and not torch.cuda.is_available()) or (DATA in str(options) and given.data is None):
            print(f"{name}: left out", flush=True)
            continue
        else:
            options = [option.replace(DATA, str(given.data)) for option in options]
            options += ["--json", str(HERE / "results" / f"{name}.json")]
        print(f"{name}: {script} {' '.join(options)}", flush=True)
        if subprocess.run([sys.executable, str(HERE / script), *options]).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
