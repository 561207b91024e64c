"""Seconds of training to an AUC: `sparsegroup train` with its defaults against what one would take instead.

Two logs, a synthetic one in Criteo's shape and globo_clicks; 200,000 test rows. Each contender finds the training rows
in the form that it reads: ours and logistic regression a prepared log, vw its text, trees a matrix of the codes of
categories, the plain DCN the numbers of features seen at least ten times, as FuxiCTR counts them. Making these is not
timed; all else is: trials that choose settings, parsing, binning. At points of its training a contender's clock stops
while it predicts the test rows.

    ours        the defaults of `sparsegroup train` (DCN-V2), its trials included
    logistic    logistic regression over the same log, by the same library's Adagrad
    vw          Vowpal Wabbit, three passes
    LightGBM, CatBoost    600 trees
    DCN         the same network over `nn.Embedding` with torch's Adam, by batches of 4,096, three passes

    python benchmarks/race.py --data FOLDER --limit 150      # two cores; twenty minutes
    python benchmarks/race.py --data FOLDER --limit 90 --threads 1 --contenders ours logistic vw DCN LightGBM
    python benchmarks/race.py --rows 45800000 --limit 600 --contenders ours logistic vw DCN      # an hour
"""

import os
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np
import polars as pl
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

import common
from panel.boosting import Table
from panel.linear import FLAGS, Design, write_vw
from panel.logs import Kind
from plain_loop import PlainModel
from sparsegroup.data import Log, prepare
from sparsegroup.data.batches import Batch
from sparsegroup.data.order import LogView
from sparsegroup.kernels.cpu.threads import set_num_threads
from sparsegroup.training import Callback, Config, Trainer, settings_by_trials
from sparsegroup.training.predictions import EVALUATED
from sparsegroup_paper.public_shapes import DATASETS, synthesize

CHUNK, TEST_ROWS, POINTS, PASSES = 500_000, 200_000, 12, 3
TREES, CATEGORIES = 600, 5_000
LEAST_COUNT, PLAIN_BATCH = 10, 4_096

Curve = list[tuple[float, float]]
"""Seconds of training, and the AUC of the test rows after them."""


class ShortTest(LogView):
    """A log without its last test rows."""

    def __len__(self) -> int:
        return min(len(self.log), self.log.train_rows + TEST_ROWS)

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        return self.log.batches(start, stop, size)


@dataclass
class Race:
    """A log, and how each contender reads it."""

    log: Log
    folder: Path
    threads: int
    limit: float
    trees: int
    labels: np.ndarray = field(init=False)  # of the test rows

    def __post_init__(self) -> None:
        batches = self.log.batches(self.log.train_rows, len(self.log), EVALUATED)
        self.labels = np.concatenate([batch.labels.numpy() for batch in batches])

    def auc(self, scores: np.ndarray) -> float:
        return float(roc_auc_score(self.labels, scores))

    @property
    def kinds(self) -> dict[str, Kind]:
        return {**dict.fromkeys(self.log.fields, "category"), **dict.fromkeys(self.log.numbers, "number")}

    def frames(self, start: int, stop: int) -> Iterator[pl.DataFrame]:
        """The rows from `start` to `stop`, some at a time: keys, numbers (null where missing) and `label`."""
        for batch in self.log.batches(start, stop, CHUNK):
            keys, numbers = batch.keys.numpy(), batch.numbers.numpy()
            columns = {name: keys[:, place] for place, name in enumerate(self.log.fields)}
            columns |= {name: numbers[:, place] for place, name in enumerate(self.log.numbers)}
            frame = pl.DataFrame(columns | {"label": batch.labels.numpy().astype(np.int8)})
            yield frame.with_columns(pl.col(self.log.numbers).fill_nan(None))

    def train(self) -> pl.DataFrame:
        return pl.concat(self.frames(0, self.log.train_rows))

    def test(self) -> pl.DataFrame:
        return pl.concat(self.frames(self.log.train_rows, len(self.log)))


class Stopwatch:
    """Counts while it is not paused."""

    def __init__(self) -> None:
        self.seconds, self._since = 0.0, perf_counter()

    def pause(self) -> float:
        """Stop; gives the seconds so far."""
        self.seconds += perf_counter() - self._since
        return self.seconds

    def go_on(self) -> None:
        self._since = perf_counter()


class Points(Callback):
    """Predicts the test rows at some points of a training, until the time is over."""

    def __init__(self, race: Race, watch: Stopwatch, every: int) -> None:
        self.curve: Curve = []
        self._race, self._watch, self._every, self._next = race, watch, every, every

    def between_batches(self, trainer: Trainer) -> None:
        if trainer.samples >= self._next:
            self._next = trainer.samples + self._every
            self.note(trainer)

    def note(self, trainer: Trainer) -> None:
        seconds, log = self._watch.pause(), self._race.log
        scores = trainer.predict(log.batches(log.train_rows, len(log), EVALUATED))
        self.curve.append((seconds, self._race.auc(scores)))
        if seconds > self._race.limit:
            trainer.stop(finish=True)
        self._watch.go_on()


def with_trainer(config: Config, race: Race) -> Curve:
    """A training of this library; as in its command, the network takes one thread."""
    torch.set_num_threads(1)
    watch, log = Stopwatch(), race.log
    config, _ = settings_by_trials(config, log)
    config = config.resolved_for(log).for_log(log)
    model, optimizer = config.build(log)
    plan = config.training.plan(log.train_rows)
    points = Points(race, watch, log.train_rows // POINTS)
    trainer = config.trainer(model, optimizer, plan, [points])
    trainer.fit_plan(plan, log)
    points.note(trainer)  # after the last pass weights are averaged, and predictions recalibrated
    return points.curve


def ours(race: Race) -> Curve:
    return with_trainer(Config(), race)


def logistic(race: Race) -> Curve:
    return with_trainer(Config.of(model="lr", optimizer="adagrad", l21=0.0, selection="never"), race)


def vw(race: Race) -> Curve:
    """Each part of a pass is a run of vw over its text, from the model that the part before has saved."""
    from vowpalwabbit import Workspace

    design: Design | None = None
    parts = 0
    for frame in race.frames(0, race.log.train_rows):
        design = design or Design(frame, race.kinds)
        write_vw(race.folder / f"part{parts}", design.matrix(frame), frame["label"].to_numpy())
        parts += 1
    assert design is not None
    write_vw(race.folder / "test", design.matrix(race.test()), race.labels)
    model, before, scores = (race.folder / name for name in ("model", "before", "scores"))
    curve: Curve = []
    watch = Stopwatch()
    for number in range(PASSES * parts):
        flags = f"{FLAGS} -l 0.5" + (f" -i {before}" if number else "")  # a model does not know its loss
        Workspace(f"{flags} --save_resume -d {race.folder / f'part{number % parts}'} -f {model}").finish()
        seconds = watch.pause()
        Workspace(f"--quiet -t -i {model} -d {race.folder / 'test'} -p {scores}").finish()
        curve.append((seconds, race.auc(np.loadtxt(scores, usecols=0))))
        model.replace(before)
        watch.go_on()
        if seconds > race.limit:
            break
    return curve


class Trees:
    """When each tree was done."""

    def __init__(self, limit: float) -> None:
        self.seconds: list[float] = []
        self._limit, self._begin = limit, perf_counter()

    def note(self) -> bool:
        """A tree is done; whether time is left for another."""
        self.seconds.append(perf_counter() - self._begin)
        return self.seconds[-1] < self._limit

    def spread(self) -> list[tuple[float, int]]:
        """Seconds and numbers of some trees, the first and the last among them, closer together at the beginning."""
        numbers = np.unique(np.geomspace(1, len(self.seconds), POINTS).round().astype(int))
        return [(self.seconds[number - 1], int(number)) for number in numbers]


def lightgbm(race: Race) -> Curve:
    import lightgbm

    train = race.train()
    table = Table(train, race.kinds, CATEGORIES, "category")
    (matrix, categories), labels = table.matrix(train), train["label"].to_numpy()
    del train

    def note(env: lightgbm.callback.CallbackEnv) -> None:
        if not trees.note():
            raise lightgbm.callback.EarlyStopException(env.iteration, [])

    parameters = {"objective": "binary", "learning_rate": 0.05, "num_leaves": 63, "min_data_in_leaf": 200}
    parameters |= {"num_threads": race.threads, "seed": 0, "verbose": -1}
    trees = Trees(race.limit)
    data = lightgbm.Dataset(matrix, labels, categorical_feature=categories, params={"verbose": -1})
    model = lightgbm.train(parameters, data, race.trees, callbacks=[note])
    rows = table.matrix(race.test())[0]
    return [(at, race.auc(model.predict(rows, num_iteration=number))) for at, number in trees.spread()]


def catboost(race: Race) -> Curve:
    import catboost

    train = race.train()
    table = Table(train, race.kinds, 1 << 30, "category")

    def pool(rows: pl.DataFrame) -> catboost.Pool:
        matrix, categories = table.matrix(rows)
        frame = pl.DataFrame(matrix).to_pandas()
        for column in categories:
            frame[frame.columns[column]] = frame[frame.columns[column]].astype(np.int64)
        return catboost.Pool(frame, rows["label"].to_numpy(), cat_features=categories)

    pools = [pool(rows) for rows in (train, race.test())]
    del train

    class Note:
        def after_iteration(self, info: object) -> bool:
            return trees.note()

    model = catboost.CatBoostClassifier(
        iterations=race.trees, learning_rate=0.1, thread_count=race.threads, random_seed=0,
        allow_writing_files=False, verbose=False,
    )  # fmt: skip
    trees = Trees(race.limit)
    model.fit(pools[0], callbacks=[Note()])
    return [
        (at, race.auc(model.predict(pools[1], prediction_type="RawFormulaVal", ntree_end=number)))
        for at, number in trees.spread()
    ]


def plain_dcn(race: Race) -> Curve:
    """Batches in the order of the log; features seen fewer times than `LEAST_COUNT` share one row of each field."""
    log = race.log
    known = []
    for place in range(len(log.fields)):  # a field at a time: the keys of 45.8M rows are 9.5 GB
        column = np.concatenate(
            [batch.keys[:, place].contiguous().numpy() for batch in log.batches(0, log.train_rows, CHUNK)]
        )
        values, counts = np.unique(column, return_counts=True)
        known.append(values[counts >= LEAST_COUNT])
    firsts = np.cumsum([0, *(len(values) + 1 for values in known)])

    def ids(batch_keys: np.ndarray) -> torch.Tensor:
        columns = []
        for column, values, first in zip(batch_keys.T, known, firsts, strict=False):
            places = np.searchsorted(values, column)
            found = places < len(values)
            found[found] = values[places[found]] == column[found]
            columns.append(np.where(found, first + 1 + places, first))
        return torch.from_numpy(np.stack(columns, axis=1).astype(np.int32))

    def read(start: int, stop: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        return [(ids(one.keys.numpy()), one.numbers, one.labels) for one in log.batches(start, stop, PLAIN_BATCH)]

    train, test = read(0, log.train_rows), read(log.train_rows, len(log))
    torch.set_num_threads(race.threads)
    torch.manual_seed(0)
    model = PlainModel(log, int(firsts[-1]), 8, sparse=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    every, curve = max(1, len(train) // POINTS), Curve()
    watch = Stopwatch()
    for step in range(PASSES * len(train)):
        rows, numbers, labels = train[step % len(train)]
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(rows, numbers), labels).backward()
        optimizer.step()
        if (step + 1) % every == 0:
            seconds = watch.pause()
            with torch.inference_mode():
                curve.append((seconds, race.auc(np.concatenate([model(*one[:2]).numpy() for one in test]))))
            if seconds > race.limit:
                break
            watch.go_on()
    return curve


CONTENDERS: Mapping[str, tuple[Callable[[Race], Curve], str]] = {
    "ours": (ours, "sparsegroup"),
    "logistic": (logistic, "sparsegroup"),
    "vw": (vw, "vowpalwabbit"),
    "LightGBM": (lightgbm, "lightgbm"),
    "CatBoost": (catboost, "catboost"),
    "DCN": (plain_dcn, "torch"),
}
"""Name → the training, and the package that it needs."""

LINEAR = ("logistic", "vw")


def seconds_to(curve: Curve, auc: float) -> float:
    """Until the AUC is reached; infinite if it never is."""
    return next((seconds for seconds, reached in curve if reached >= auc), float("inf"))


def verdicts(curves: Mapping[str, Curve]) -> dict[str, float]:
    """The share of AUCs beyond the linear models' that ours reaches first; its time to vw's best over vw's, if ever."""
    best = {name: max(auc for _, auc in curve) for name, curve in curves.items()}
    figures = {f"{name}.best_auc": auc for name, auc in best.items()}
    linear = max((best[name] for name in LINEAR if name in best), default=0.5)
    beyond = np.linspace(linear, max(best.values()), 21)[1:]
    firsts = [min(curves, key=lambda name: seconds_to(curves[name], auc)) for auc in beyond]
    figures["ours_first_beyond_linear"] = firsts.count("ours") / len(firsts)
    if {"ours", "vw"} <= curves.keys() and best["ours"] >= best["vw"]:
        figures["ours_over_vw"] = seconds_to(curves["ours"], best["vw"]) / seconds_to(curves["vw"], best["vw"])
    return figures


def chart(curves: Mapping[str, Mapping[str, Curve]], path: Path) -> None:
    """AUC over seconds, a panel for each log."""
    figure, panels = plt.subplots(1, len(curves), figsize=(6 * len(curves), 4.5), squeeze=False)
    for panel, (log, of_log) in zip(panels[0], curves.items(), strict=True):
        for name, curve in of_log.items():
            highest = np.maximum.accumulate([auc for _, auc in curve])
            panel.plot(
                [seconds for seconds, _ in curve], highest, marker=".", label=name, lw=2.5 if name == "ours" else 1
            )
        panel.set(title=log, xscale="log", xlabel="seconds of training", ylabel="highest test AUC so far")
        panel.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def measure(given: Namespace) -> Iterator[common.Figures]:
    set_num_threads(given.threads)
    if hasattr(os, "sched_setaffinity"):  # also for vw, which parses in another thread
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.threads])
    curves: dict[str, dict[str, Curve]] = {}
    with tempfile.TemporaryDirectory() as name:
        logs = {"synthetic": synthesize(DATASETS["criteo"], 50_000 if given.quick else given.rows, Path(name, "rows"))}
        if given.data is not None:
            logs["globo_clicks"], _ = prepare([given.data / "globo_clicks.csv.xz"], Path(name, "globo_clicks"))
        for log_name, log in logs.items():
            of_log = curves[log_name] = {}
            for contender in given.contenders:
                with tempfile.TemporaryDirectory() as folder, common.undisturbed():
                    trees = TREES // (20 if given.quick else 1)
                    race = Race(ShortTest(log), Path(folder), given.threads, given.limit, trees)
                    curve = of_log[contender] = CONTENDERS[contender][0](race)
                yield {
                    f"{log_name}.{contender}.{number}": {"seconds": seconds, "auc": auc}
                    for number, (seconds, auc) in enumerate(curve)
                }
            yield {log_name: verdicts(of_log)}
    if given.chart:
        chart(curves, given.chart)


if __name__ == "__main__":
    there = [name for name, (_, package) in CONTENDERS.items() if find_spec(package)]
    options = {
        **common.DATA,
        "--rows": {"type": int, "default": 5_000_000, "help": "of the synthetic log; default: %(default)s"},
        "--limit": {"type": float, "default": 1800.0, "help": "seconds of a contender; default: %(default)s"},
        "--contenders": {"nargs": "+", "choices": there, "default": there, "metavar": "NAME"},
        "--chart": {"type": Path, "metavar": "PNG", "help": "draw the curves"},
    }
    common.run(measure, __doc__, quick="50,000 rows, few trees", options=options)
