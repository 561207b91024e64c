"""Numbers as labels: ours with each objective against LightGBM and CatBoost with a like one; the truth is known.

Made-up logs of users, items and numbers, with an additive effect of each and one of users and items together; labels
are drawn around its mean in the way that each objective is for. Ours is `sparsegroup train` with no option but the
objective; LightGBM and CatBoost choose among settings by early stopping on the last tenth of the training rows and are
then fitted to all of them. The figure is the relative loss on the last tenth of the log: that over the loss of the best
constant prediction, 1 - R² for squared errors. For the order of a user's ratings it is NDCG@10 and the share of pairs
that are in order; ours is trained by other objectives, too, to compare. Of two tasks, one table of both
is compared with two tables of half its feature rate each, without trials.

    python benchmarks/objectives.py --json objectives.json     # 60,000 rows each
    python benchmarks/objectives.py --quick                    # 6,000 rows
"""

import json
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import polars as pl

import common
from plain_loop import tested, trained
from sparsegroup.data import open_log
from sparsegroup.objectives import (
    Gamma,
    Huber,
    LambdaRank,
    Objective,
    Pairwise,
    Poisson,
    Quantile,
    Softmax,
    Squared,
    Tweedie,
)
from sparsegroup.optim.census import KEY_BYTES
from sparsegroup.training import Config, Session, load_model, settings_by_trials
from sparsegroup.training.metrics import measure as metrics_of

USERS, ITEMS = 3_000, 800
CATEGORIES = ("user", "item", "noise")
TASKS = "two tasks"
ROUNDS, PATIENCE = 1_000, 40
Draw = np.random.Generator
Floats = np.ndarray


@dataclass(frozen=True)
class Target:
    """A kind of label."""

    objective: Objective  # what is learnt of it
    draw: Callable[[Floats, Draw], Floats]  # labels around the effect of each row, [rows] with deviation 1
    truth: Callable[[Floats], Floats]  # the best predictions
    lightgbm: Mapping[str, Any]  # its parameters there
    catboost: str | None  # the objective's name there; None where it has none
    group: str | None = None  # the column whose values are ranked, each by itself
    others: tuple[Objective, ...] = ()  # what ours is trained by as well


def _stars(effect: Floats) -> Floats:
    return 3.5 + 0.8 * effect


def _given(effect: Floats, draw: Draw) -> Floats:
    return np.clip(np.round(_stars(effect) + draw.normal(0, 0.7, len(effect))), 1, 5)


def _counts(effect: Floats) -> Floats:
    return np.exp(0.5 + 0.5 * effect)


def _chances(mean: Floats) -> Floats:
    """The probabilities `[rows, 5]` of 1 to 5 stars, around a mean with a deviation of .7."""
    below = [np.array([NormalDist(one, 0.7).cdf(edge) for one in mean.tolist()]) for edge in (1.5, 2.5, 3.5, 4.5)]
    return np.diff(np.stack([np.zeros(len(mean)), *below, np.ones(len(mean))], axis=1))


def _spent(effect: Floats, draw: Draw) -> Floats:
    """Compound Poisson: as many purchases as a Poisson variable says, each a gamma variable."""
    purchases = draw.poisson(0.6 * np.exp(0.3 * effect))
    return draw.gamma(np.maximum(2 * purchases, 1e-9), 2.0 * np.exp(0.2 * effect)) * (purchases > 0)


_Z90 = 1.2815515655446004
TARGETS: Mapping[str, Target] = {
    "stars": Target(
        Squared(),
        _given,
        lambda effect: np.clip(_stars(effect), 1, 5),
        {"objective": "regression"},
        "RMSE",
    ),
    "ranked by user": Target(
        LambdaRank(),
        _given,
        _stars,
        {"objective": "lambdarank", "eval_at": [10]},
        "YetiRank",
        "user",
        (Pairwise(), Squared()),
    ),
    "stars as classes": Target(
        Softmax(classes=5),
        lambda effect, draw: _given(effect, draw) - 1,
        lambda effect: _chances(_stars(effect)),
        {"objective": "multiclass", "num_class": 5},
        "MultiClass",
    ),
    "outliers": Target(
        Huber(),
        lambda effect, draw: 10 * effect + draw.standard_t(2, len(effect)) * 5,
        lambda effect: 10 * effect,
        {"objective": "huber", "alpha": 15.0},
        "Huber:delta=15",
    ),
    "90 % quantile": Target(
        Quantile(alpha=0.9),
        lambda effect, draw: 20 + 5 * effect + draw.normal(0, 4, len(effect)),
        lambda effect: 20 + 5 * effect + 4 * _Z90,
        {"objective": "quantile", "alpha": 0.9},
        "Quantile:alpha=0.9",
    ),
    "visits": Target(
        Poisson(), lambda effect, draw: draw.poisson(_counts(effect)), _counts, {"objective": "poisson"}, "Poisson"
    ),
    "duration": Target(
        Gamma(),
        lambda effect, draw: draw.gamma(2.0, 30 * np.exp(0.4 * effect) / 2) + 1e-3,
        lambda effect: 30 * np.exp(0.4 * effect),
        {"objective": "gamma"},
        None,
    ),
    "spend": Target(
        Tweedie(),
        _spent,
        lambda effect: 0.6 * np.exp(0.3 * effect) * 4 * np.exp(0.2 * effect),
        {"objective": "tweedie", "tweedie_variance_power": 1.5},
        "Tweedie:variance_power=1.5",
    ),
}


def log_of(target: Target, rows: int, seed: int) -> tuple[pl.DataFrame, Floats]:
    """A log with a column `label`, and the best predictions `[rows]`."""
    draw = np.random.default_rng(seed)
    users = (USERS * draw.random(rows) ** 2).astype(int)
    items = (ITEMS * draw.random(rows) ** 2).astype(int)
    price, other = draw.lognormal(2, 0.8, rows), draw.normal(size=rows)
    tastes = [draw.normal(size=(count, 3)) for count in (USERS, ITEMS)]
    parts = (
        draw.normal(size=USERS)[users],
        draw.normal(size=ITEMS)[items],
        0.7 * (tastes[0][users] * tastes[1][items]).sum(1) / 3**0.5,
        -0.6 * np.log(price) + np.sin(2 * other),
    )
    effect = sum(parts)
    effect = (effect - np.mean(effect)) / np.std(effect)
    frame = {
        "label": target.draw(effect, draw).astype(np.float64),
        "user": [f"u{user}" for user in users],
        "item": [f"i{item}" for item in items],
        "noise": [f"n{number}" for number in draw.integers(5_000, size=rows)],
        "price": price.round(2),
        "other": other.round(4),
    }
    return pl.DataFrame(frame), target.truth(effect)


def ours(target: Target, path: Path, folder: Path) -> tuple[Floats, Floats]:
    """Predictions of our model for the test rows, and their labels."""
    log = open_log(path, labels="classes" if target.objective.takes_classes else "numbers")
    config, trials = settings_by_trials(Config.of(objective=target.objective, group=target.group), log)
    Session.begin(folder, config, log, trials=trials).train()
    window = tested(load_model(folder), log)
    return window.probabilities(), window.labels().astype(np.float64)


def _codes(frame: pl.DataFrame, train: pl.DataFrame) -> np.ndarray:
    """`[rows, columns]`: categories by their numbers in the training rows, unknown ones as another."""
    columns = []
    for name in frame.columns[1:]:
        if name in CATEGORIES:
            known = {value: code for code, value in enumerate(train[name].unique(maintain_order=True))}
            columns.append(frame[name].replace_strict(known, default=len(known), return_dtype=pl.Int64).to_numpy())
        else:
            columns.append(frame[name].to_numpy())
    return np.column_stack([column.astype(np.float64) for column in columns])


def _by_group(target: Target, frame: pl.DataFrame) -> tuple[pl.DataFrame, np.ndarray | None]:
    """The rows with each group's in a row, and the sizes of the groups; None without any."""
    if target.group is None:
        return frame, None
    frame = frame.sort(target.group, maintain_order=True)
    return frame, frame[target.group].rle().struct.field("len").to_numpy()


def lightgbm(target: Target, train: pl.DataFrame, test: pl.DataFrame) -> Floats:
    """Predictions of the test rows."""
    import lightgbm as gbm

    def data(frame: pl.DataFrame) -> Any:
        rows, sizes = _by_group(target, frame)
        how = {"categorical_feature": [0, 1, 2], "params": {"verbose": -1}}
        return gbm.Dataset(_codes(rows, train), rows["label"].to_numpy(), group=sizes, **how)

    held, sign = len(train) // 10, 1 if target.group is None else -1  # of NDCG the highest is best
    shared = {"learning_rate": 0.05, "num_threads": 1, "seed": 0, "verbose": -1, **target.lightgbm}
    tried = []
    for leaves, least in ((15, 30), (63, 30), (63, 200)):
        settings = {**shared, "num_leaves": leaves, "min_data_in_leaf": least}
        stop = gbm.early_stopping(PATIENCE, verbose=False)
        model = gbm.train(settings, data(train[:-held]), ROUNDS, valid_sets=[data(train[-held:])], callbacks=[stop])
        tried.append((sign * next(iter(model.best_score["valid_0"].values())), model.best_iteration, settings))
    _, rounds, settings = min(tried, key=lambda one: one[0])
    found: Floats = gbm.train(settings, data(train), rounds).predict(_codes(test, train))
    return found


def catboost(target: Target, train: pl.DataFrame, test: pl.DataFrame) -> Floats:
    """Predictions of the test rows."""
    import catboost as cat

    def pool(frame: pl.DataFrame) -> Any:
        rows, sizes = _by_group(target, frame)
        groups = None if sizes is None else np.repeat(np.arange(len(sizes)), sizes)
        labels = rows["label"].to_numpy()
        return cat.Pool(rows.drop("label").to_pandas(), labels, cat_features=list(CATEGORIES), group_id=groups)

    held, tried, sign = len(train) // 10, [], 1 if target.group is None else -1
    shared = {"loss_function": target.catboost, "thread_count": 1, "random_seed": 0, "verbose": False}
    if target.group is not None:
        shared["eval_metric"] = "NDCG:top=10;type=Exp"
    for depth in (4, 6):
        settings = {**shared, "depth": depth, "allow_writing_files": False, "iterations": ROUNDS, "learning_rate": 0.1}
        model = cat.CatBoost(settings)
        model.fit(pool(train[:-held]), eval_set=pool(train[-held:]), early_stopping_rounds=PATIENCE)
        scores = next(iter(model.get_evals_result()["validation"].values()))
        tried.append((min(sign * score for score in scores), model.tree_count_, settings))
    _, trees, settings = min(tried, key=lambda one: one[0])
    model = cat.CatBoost({**settings, "iterations": trees}).fit(pool(train))
    kinds = {"Poisson": "Exponent", "Tweedie": "Exponent", "MultiClass": "Probability"}
    kind = kinds.get(target.catboost.partition(":")[0], "RawFormulaVal")
    found: Floats = model.predict(cat.Pool(test.drop("label").to_pandas(), cat_features=list(CATEGORIES)), kind)
    return found


def compared(target: Target, rows: int, folder: Path) -> dict[str, dict[str, float]]:
    """Method → figure on the test rows → value."""
    frame, truth = log_of(target, rows, seed=0)
    path, tenth = folder / "log.csv", round(rows * 0.1)
    frame.write_csv(path)
    train, test = frame[:-tenth], frame[-tenth:]
    labels, found = test["label"].to_numpy(), dict[str, dict[str, float]]()
    groups = None if target.group is None else test[target.group].rank("dense").to_numpy().astype(np.int64)
    shown = {"relative loss": "relative_loss"} if groups is None else {"NDCG@10": "ndcg", "pairs in order": "gauc"}
    if target.objective.takes_classes:
        shown = {"relative loss": "normalized_entropy", "accuracy": "accuracy"}

    def note(name: str, predictions: Floats) -> None:
        metrics = metrics_of(target.objective, labels, predictions.astype(np.float64), groups=groups)
        found[name] = {title: getattr(metrics, measure) for title, measure in shown.items()}

    for objective in (target.objective, *target.others):
        name = "sparsegroup" + (f" {objective.name}" if objective in target.others else "")
        group = target.group if objective.takes_groups else None
        predictions, same = ours(replace(target, objective=objective, group=group), path, folder / name)
        np.testing.assert_allclose(same, labels, rtol=1e-6)
        note(name, predictions)
    baseline = json.loads((folder / "sparsegroup" / "summary.json").read_text())["baseline"]
    found["its linear baseline"] = {title: baseline[measure] for title, measure in shown.items()}
    for name, run in {"LightGBM": lightgbm, "CatBoost": catboost}.items():
        if find_spec(name.lower()) and (name != "CatBoost" or target.catboost):
            note(name, run(target, train, test))
    note("the truth", truth[-tenth:])
    return found


def two_tasks(rows: int, folder: Path) -> dict[str, dict[str, float]]:
    """Clicks and purchases, of which each needs a click: one table for both, and two tables of half the rows each."""
    frame, _ = log_of(TARGETS["stars"], rows, seed=0)
    draw, effect = np.random.default_rng(1), frame["label"].to_numpy() - 3.5
    click = draw.random(rows) < 1 / (1 + np.exp(1 - effect))
    buy = click & (draw.random(rows) < 1 / (1 + np.exp(1.5 - 0.8 * effect)))
    path = folder / "log.csv"
    frame.drop("label").with_columns(click=click.astype(int), buy=buy.astype(int)).write_csv(path)

    def figures(label: str, rate: float, **settings: Any) -> dict[str, float]:
        log = open_log(path, label=label, exclude=[one for one in ("click", "buy") if one not in label])
        config = Config.of(target_rate=rate, least_features=0, baseline=False, batch_size=128, **settings)
        model = trained(log, config.resolved_for(log)).model
        metrics: Any = tested(model, log).metrics()
        size = model.live_bytes + KEY_BYTES * sum(one.num_live for one in model.rows.values())
        tasks = metrics.tasks if "," in label else {label: metrics}
        return {**{f"AUC of {task}": one.auc for task, one in tasks.items()}, "MB": size / 1e6}

    share, both = 0.2, "click,buy"
    alone = [figures(label, share / 2, model="mlp") for label in ("click", "buy")]
    return {
        "two tables": alone[0] | alone[1] | {"MB": sum(one["MB"] for one in alone)},
        "shared bottom": figures(both, share, model="mlp"),
        "mmoe": figures(both, share, model="mmoe"),
        "ple": figures(both, share, model="ple"),
        "esmm": figures(both, share, model="mlp", objective="esmm"),
    }


def measure(given: Namespace) -> Iterator[common.Figures]:
    rows = 6_000 if given.quick else 60_000
    for name in (*TARGETS, TASKS):
        with tempfile.TemporaryDirectory() as folder:
            found = two_tasks(rows, Path(folder)) if name == TASKS else compared(TARGETS[name], rows, Path(folder))
        yield {_key(f"{name} {method}"): _columns(values) for method, values in found.items()}


def _columns(values: dict[str, float]) -> dict[str, float] | float:
    """Of a single figure, that."""
    return {_key(title): value for title, value in values.items()} if len(values) > 1 else next(iter(values.values()))


def _key(text: str) -> str:
    return text.replace(" %", "").replace(" ", "_").lower()


if __name__ == "__main__":
    common.run(measure, __doc__, "6,000 rows", between="_")
