"""Is `sparsegroup train LOG`, with no option but the label, as good as baselines that are searched?

On each log of a panel (the public ones in a folder, one of typed columns that is made up, as CSV and as Parquet, and
the made-up logs of a family, of which some were never looked at while defaults were chosen): ours through the command
line, with several seeds; hashed logistic regression, LightGBM, XGBoost, CatBoost, vw and FTRL-Proximal, on one core,
each with hyperparameters chosen on the last tenth of the training rows. What the baselines said is kept, so that ours
can be run again alone. Logs that are not run keep their lines in the report.

    python benchmarks/out_of_the_box.py --data FOLDER                  # the report; hours
    python benchmarks/out_of_the_box.py --data FOLDER --ours-only      # the baselines as they were
    python benchmarks/out_of_the_box.py --log mine.csv --label bought  # one's own log
"""

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score

import timing
from panel.baselines import BaselineCache, installed
from panel.contest import OURS, contest
from panel.family import FAMILY, KEPT, UNSEEN, family_logs
from panel.logs import PanelLog, kinds_in_words, shared_logs
from panel.ours import own_run
from panel.page import page_of, plot_contest
from sparsegroup.data.schema import TEST_FRACTION
from sparsegroup.data.synthetic import LABEL_COLUMN, TypedClicks, write_clicks

ROOT = Path(__file__).parents[1]
ROWS, QUICK_ROWS = 300_000, 20_000


def typed_logs(folder: Path, rows: int) -> dict[PanelLog, dict[str, float]]:
    """The made-up log as CSV and as Parquet, each with what is possible on its test set."""
    first, second = folder / "clicks.csv", folder / "clicks.parquet"
    for path in (first, second):
        write_clicks(path, rows)
    blocks = list(TypedClicks(rows).blocks())
    labels = np.concatenate([block[LABEL_COLUMN].to_numpy() for block, _ in blocks])[-round(rows * TEST_FRACTION) :]
    truth = np.concatenate([probabilities for _, probabilities in blocks])[-len(labels) :]
    log = PanelLog("clicks", first, label=LABEL_COLUMN)
    twin = PanelLog("clicks, Parquet", second, label=LABEL_COLUMN, twin=log)
    possible = {"auc": float(roc_auc_score(labels, truth)), "log_loss": float(log_loss(labels, truth))}
    return {log: possible, twin: possible}


def panel(data: Path | None, folder: Path, quick: bool) -> Iterator[tuple[PanelLog, dict[str, float]]]:
    """The logs of the panel, each with what is possible on its test set where that is known."""
    yield from typed_logs(folder, QUICK_ROWS if quick else ROWS).items()
    if not quick:
        yield from (
            (log, {})
            for log in chain(shared_logs(data) if data else [], family_logs(folder, {**FAMILY, **KEPT, **UNSEEN}))
        )


def entry_of(log: PanelLog, baselines: list[str], cache: BaselineCache, seeds: int, folder: Path) -> dict[str, Any]:
    """The log's entry in the results."""
    _, test, kinds, label = log.frames
    said = {name: one for name in baselines if (one := cache.said(log.twin or log, name)) is not None}
    runs = [own_run(log, seed, folder / f"{log.path.name}-{seed}") for seed in range(seeds)]
    return {"columns": kinds_in_words(kinds), **contest(test[label].to_numpy(), runs, said)}


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = timing.parser(__doc__, "the made-up log alone, short; one seed, nothing chosen", seeds=3)
    parser.add_argument("--data", type=Path, help="folder of the public logs")
    parser.add_argument("--log", type=Path, help="a log of one's own, instead of the panel")
    parser.add_argument("--label", help="its label column")
    parser.add_argument("--test", type=Path, help="its test set, where that is a log of its own")
    parser.add_argument("--only", nargs="+", metavar="LOG", help="logs of the panel, by name")
    parser.add_argument("--baselines", nargs="+", choices=installed(), default=installed(), metavar="NAME")
    parser.add_argument("--ours-only", action="store_true", help="take what is kept of the baselines, and run none")
    parser.add_argument("--cache", type=Path, default=ROOT / "runs" / "panel", help="default: %(default)s")
    parser.add_argument("--report", type=Path, help="folder of the report; default: docs/results/out-of-the-box")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(argv)
    seeds = 1 if given.quick else given.seeds
    report = given.report or (None if given.quick or given.log else ROOT / "docs" / "results" / "out-of-the-box")
    cache = BaselineCache(given.cache, given.quick, given.ours_only)
    print(timing.machine(), flush=True)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        if given.log is not None:
            own = PanelLog(given.log.name.split(".")[0], given.log, given.test, given.label)
            logs: Iterable[tuple[PanelLog, dict[str, float]]] = [(own, {})]
        else:
            logs = panel(given.data, Path(name), given.quick)
        for log, possible in logs:
            if given.only and log.name not in given.only:
                continue
            entry = entry_of(log, given.baselines, cache, seeds, Path(name))
            results[log.name] = {**entry, **({"best_possible": possible} if possible else {})}
            columns = ("", "AUC", "log loss", "calibration", "features", "seconds")
            timing.show(log.name, columns, [_line(*method) for method in results[log.name]["methods"].items()])
            if report is not None:
                _write(report, results)
    timing.write_json(given.json, dict(_flat(results)))


def _flat(results: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Each number of each method on each log: "clicks.LightGBM.auc"."""
    for log, entry in results.items():
        for method, figures in entry["methods"].items():
            yield from (
                (f"{log}.{method}.{name}", one) for name, one in figures.items() if isinstance(one, int | float)
            )


def _line(name: str, figures: dict[str, Any]) -> list[str]:
    texts = [f"{figures[metric]:.4f}" for metric in ("auc", "log_loss", "calibration")]
    rate = f"{figures['feature_rate']:.2%}" if name == OURS else ""
    return [name, *texts, rate, f"{figures['seconds']:,.0f}"]


def _write(folder: Path, results: dict[str, Any]) -> None:
    """The page, its picture and its figures, with those of other logs that are there."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = folder / "results.json"
    known = json.loads(figures.read_text()) if figures.exists() else {}
    merged = {**known, **results}
    figures.write_text(json.dumps(merged, indent=1) + "\n")
    (folder / "index.md").write_text(page_of(merged))
    plot_contest(merged, folder / "contest.png")


if __name__ == "__main__":
    main()
