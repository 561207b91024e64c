"""Is DIN better if the candidate item and the history of items share their vectors? With and without, log by log.

- `histories`: a synthetic log of a candidate item and up to 10 items that the user has clicked. Items and users have
  tastes of four numbers. Each clicked item is the nearest to the user's taste of 20 random items. The logit of the
  label is a sum over clicked items whose tastes are similar to the candidate's. A tenth of the items are candidates in
  test rows only, and in histories throughout.
- `globo_clicks`: the first and the second article of a session, which have the same ids, and eight other columns.

Test AUC and log loss, and of `histories` the AUC of the test rows with new candidates, the mean over seeds. Settings
are the defaults, without trials; of `histories` MLP with attention.

    python benchmarks/shared_vocabulary.py --data FOLDER --json shared_vocabulary.json
    python benchmarks/shared_vocabulary.py --quick
"""

import lzma
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import polars as pl

import common
from plain_loop import tested, trained
from sparsegroup.data import open_log
from sparsegroup.training import Config
from sparsegroup.training.metrics import evaluate

ROWS, ITEMS, PASSES = 20_000, (200, 2_000), (1, 4)
LONGEST, TASTES = 10, 4
HISTORIES = {"clicked": "label", "item": "category of numbers", "history": "list |"}
GLOBO = dict.fromkeys(("env", "device", "os", "country", "region", "referrer", "hour", "dow"), "category") | {
    "split": "split",
    "label": "label",
    "article1": "category",
    "article2": "category",
}


def are_new(items: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which items are candidates in test rows only."""
    return items % 10 == 9


def histories(rows: int, items: int) -> pl.DataFrame:
    """Return the rows of a synthetic log, see above."""
    draw = np.random.default_rng(0)
    tastes, users = draw.normal(size=(items, TASTES)), draw.normal(size=(rows, TASTES))
    chances = np.arange(1, items + 1) ** -0.5
    chances /= chances.sum()
    history = np.empty((rows, LONGEST), np.int64)
    for place in range(LONGEST):
        offered = draw.choice(items, size=(rows, 20), p=chances)
        liking = np.einsum("nkt,nt->nk", tastes[offered], users)
        history[:, place] = np.take_along_axis(offered, liking.argmax(1)[:, None], 1)[:, 0]
    sizes, item = draw.integers(1, LONGEST + 1, size=rows), draw.choice(items, size=rows, p=chances)
    train = item[: rows - rows // 10]
    train[are_new(train)] -= 1
    likeness = np.einsum("nkt,nt->nk", tastes[history], tastes[item]).clip(min=1) - 1
    logits = 0.6 * np.where(np.arange(LONGEST) < sizes[:, None], likeness, 0).sum(1) - 2.5
    clicked = draw.random(rows) < 1 / (1 + np.exp(-logits))
    texts = ["|".join(map(str, of[:size])) for of, size in zip(history.tolist(), sizes, strict=True)]
    return pl.DataFrame({"clicked": clicked.astype(np.int64), "item": item, "history": texts})


def compared(
    log: Path, kinds: Mapping[str, str], sharing: Mapping[str, str], seeds: Sequence[int], **settings: object
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the test metrics of a log with separate and with shared vocabularies."""
    more: dict[str, Mapping[str, str]] = {"separate": {}, "shared": sharing}
    for name, shared in more.items():
        opened, found = open_log(log, columns={**kinds, **shared}), []
        for seed in seeds:
            config = Config.of(seed=seed, baseline=False, **settings).resolved_for(opened)
            window = tested(trained(opened, config).model, opened)
            metrics = window.metrics()
            found.append({"auc": metrics.auc, "log_loss": metrics.log_loss})
            if "item" in kinds:
                new = are_new(pl.read_csv(log)["item"].to_numpy()[opened.train_rows :])
                found[-1]["auc of new candidates"] = evaluate(window.labels()[new], window.probabilities()[new]).auc
        yield name, {one: float(np.mean([figures[one] for figures in found])) for one in found[0]}


def measure(given: Namespace) -> Iterator[common.Figures]:
    seeds, sharing = range(given.seeds), {"history": "list | shares item"}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log.csv"
        for items in ITEMS[: 1 if given.quick else None]:
            histories(2_000 if given.quick else ROWS, items).write_csv(path)
            for epochs in PASSES[: 1 if given.quick else None]:
                settings = {"model": "mlp", "attention": {"history": "item"}, "epochs": epochs}
                for name, figures in compared(path, HISTORIES, sharing, seeds, **settings):
                    yield {f"{items:,} items, {epochs} pass{'es' * (epochs > 1)}, {name}": figures}
        if given.data is not None and (raw := given.data / "globo_clicks.csv.xz").exists():
            path.write_bytes(lzma.decompress(raw.read_bytes()))
            for name, figures in compared(path, GLOBO, {"article2": "category shares article1"}, seeds):
                yield {f"globo_clicks, {name}": figures}


def main(argv: Sequence[str] | None = None) -> None:
    common.run(measure, __doc__, "a short synthetic log alone", between=", ", seeds=2, options=common.DATA, argv=argv)


if __name__ == "__main__":
    main()
