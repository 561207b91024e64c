"""A table on several ranks: bytes on the wire, steps by part, and a model of many ranks that is checked here.

DCN over the fields of a synthetic log of Criteo's shape, Group Adam, gloo; each rank is a process with one thread on
one core. `bytes` counts what goes to other ranks against the least that can, by our count and by the network card's of
a network namespace. `steps` times steps on one rank and on two in turns, as a whole and by part, fits a model to the
parts, and checks it on other batches, dims and rate-limited links; `projection` asks it about 8, 64 and 512 ranks.
`auc` trains with vectors and gradients in bfloat16 on the wire and in float32, with several seeds.

    python benchmarks/sharded.py --data FOLDER              # the page docs/results/several-ranks; 10 minutes
    python benchmarks/sharded.py --data FOLDER --only auc   # the other figures as they were
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import timing
from panel.logs import shared_logs
from ranks.crew import Crew
from ranks.ctr_training import write_log
from ranks.key_load import KeyDraws
from ranks.measurements import QUICK, Bench, Extent
from ranks.projection import Crowd, Projection
from ranks.scaling_page import page_of
from ranks.step_model import StepModel
from ranks.wire_auc import keep, wire_auc
from sparsegroup.data import SyntheticConfig, open_log, synthetic_log

REPORT = Path(__file__).parents[1] / "docs" / "results" / "several-ranks"
PARTS = ("bytes", "steps", "projection", "auc")
QUICK_CROWD = Crowd((2, 4), 256, 1024, 2)
PANEL = ("criteo_sample", "avazu_sample")


def steps(bench: Bench) -> None:
    """Adds the figures of steps and of slow networks, and the model."""
    with timing.undisturbed() as others:
        model = bench.time_steps()
        bench.slow_networks(model)
    bench.figures |= model.figures() | {"others_cores": others.cores}


def projection(known: Mapping[str, float], crowd: Crowd) -> dict[str, float]:
    """Figures of more ranks, by the model that was fitted."""
    rows = crowd.batch * crowd.ranks[-1]
    with tempfile.TemporaryDirectory() as name:
        write_log(Path(name), rows)
        draws = {"skewed": KeyDraws.of(Path(name)), "uniform": KeyDraws(None, rows)}
        return Projection(StepModel.of_figures(known), draws, known["alone_ms"] / 1e3, crowd).figures()


def aucs(data: Path | None, seeds: int, rows: int) -> dict[str, float]:
    """AUC with bfloat16 on the wire and without, on the logs of a folder and on a synthetic one."""
    logs = {"synthetic": synthetic_log(SyntheticConfig(rows=rows))}
    if data is not None:
        logs |= {log.name: open_log(log.path) for log in shared_logs(data) if log.name in PANEL}
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name, Crew(2) as crew:
        for log, content in logs.items():
            keep(content, Path(name, log))
            found = wire_auc(crew, Path(name, log), seeds).figures()
            figures |= {f"auc.{log}.{figure}": value for figure, value in found.items()}
    return figures


def show(figures: Mapping[str, float]) -> None:
    timing.show("", ("", "figure"), [(name, f"{value:,.5g}") for name, value in figures.items()])


def main(argv: Sequence[str] | None = None) -> None:
    parser = timing.parser(__doc__, quick="a short log, two seeds, few steps, and no report")
    parser.add_argument("--data", type=Path, help="folder of the public logs, for `auc`")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seeds", type=int, help="of `auc`, at least 2; default: 8")
    parser.add_argument("--report", type=Path, help="folder of the page; default: docs/results/several-ranks")
    given = parser.parse_args(argv)
    extent = QUICK if given.quick else Extent()
    machine = timing.machine()
    print(machine, flush=True)
    report = given.report or (None if given.quick else REPORT)
    known = _known(report)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_log(folder, extent.rows)
        bench = Bench(folder, extent)
        if "bytes" in given.only:
            bench.count_bytes()
        if "steps" in given.only:
            steps(bench)
        figures |= bench.figures
    if "projection" in given.only:
        figures |= projection({**known, **figures}, QUICK_CROWD if given.quick else Crowd())
    if "auc" in given.only:
        figures |= aucs(given.data, given.seeds or (2 if given.quick else 8), 2_000 if given.quick else 75_000)
    show(figures)
    timing.write_json(given.json, figures)
    if report is not None:
        parts = {name.split(".")[0] for name in figures}
        kept = {name: value for name, value in known.items() if name.split(".")[0] not in parts}
        _write(report, {**kept, **figures, "machine": machine})


def _known(report: Path | None) -> dict[str, Any]:
    """Figures of earlier runs."""
    path = None if report is None else report / "results.json"
    return json.loads(path.read_text()) if path is not None and path.exists() else {}


def _write(folder: Path, results: Mapping[str, Any]) -> None:
    """The page and its figures."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / "index.md").write_text(page_of(results))


if __name__ == "__main__":
    main()
