"""Is `sparsegroup train LOG`, with no option but the label, as good as baselines that are searched?

On each log of a panel (the public ones in a folder, one of typed columns that is made up, as CSV and as Parquet, and
the made-up logs of a family, of which some were never looked at while defaults were chosen): ours through the command
line, with several seeds; hashed logistic regression, LightGBM, XGBoost, CatBoost, vw and FTRL-Proximal, on one core,
each with hyperparameters chosen on the last tenth of the training rows. What the baselines said is kept, so that they
are run again only when they have changed. Logs that are not run keep their lines in the report.

    python benchmarks/out_of_the_box.py --data FOLDER                  # the report; hours
    python benchmarks/out_of_the_box.py --log mine.csv --label bought  # one's own log
"""

import json
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score

import common
from panel.baselines import installed, said
from panel.contest import contest
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


def panel(given: Namespace, folder: Path) -> Iterator[tuple[PanelLog, dict[str, float]]]:
    """The logs of the panel, or one's own, each with what is possible on its test set where that is known."""
    if given.log is not None:
        yield PanelLog(given.log.name.split(".")[0], given.log, given.test, given.label), {}
        return
    yield from typed_logs(folder, QUICK_ROWS if given.quick else ROWS).items()
    family = () if given.quick else family_logs(folder, {**FAMILY, **KEPT, **UNSEEN})
    for log in chain(shared_logs(given.data) if given.data else (), family):
        yield log, {}


def measure(given: Namespace) -> Iterator[common.Figures]:
    report = given.report or (None if given.quick or given.log else ROOT / "docs" / "results" / "out-of-the-box")
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for log, possible in panel(given, Path(name)):
            _, test, kinds, label = log.frames
            theirs = {one: said(log.twin or log, one, given.quick, given.cache) for one in given.baselines}
            runs = [own_run(log, seed, Path(name) / f"{log.path.name}-{seed}") for seed in range(given.seeds)]
            entry = {"columns": kinds_in_words(kinds), **contest(test[label].to_numpy(), runs, theirs)}
            results[log.name] = {**entry, **({"best_possible": possible} if possible else {})}
            if report is not None:
                write(report, results)
            yield {
                f"{log.name}.{method}": {of: one for of, one in figures.items() if isinstance(one, int | float)}
                for method, figures in entry["methods"].items()
            }


def write(folder: Path, results: dict[str, Any]) -> None:
    """The page, its picture and its figures, with those of other logs that are there."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = folder / "results.json"
    known = json.loads(figures.read_text()) if figures.exists() else {}
    merged = {**known, **results}
    figures.write_text(json.dumps(merged, indent=1) + "\n")
    (folder / "index.md").write_text(page_of(merged))
    plot_contest(merged, folder / "contest.png")


def main(argv: Sequence[str] | None = None) -> None:
    options: dict[str, dict[str, Any]] = {
        **common.DATA,
        "--log": {"type": Path, "help": "a log of one's own, instead of the panel"},
        "--label": {"help": "its label column"},
        "--test": {"type": Path, "help": "its test set, where that is a log of its own"},
        "--baselines": {"nargs": "+", "choices": installed(), "default": installed(), "metavar": "NAME"},
        "--cache": {"type": Path, "default": ROOT / "runs" / "panel", "help": "default: %(default)s"},
        "--report": {"type": Path, "help": "folder of the report; default: docs/results/out-of-the-box"},
    }
    quick = "the made-up log alone, short; one seed, nothing chosen"
    common.run(measure, __doc__, quick, seeds=3, options=options, argv=argv)


if __name__ == "__main__":
    main()
