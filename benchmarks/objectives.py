"""Numbers as labels: ours with each objective against LightGBM and CatBoost with the same one; the truth is known.

Made-up logs of users, items and numbers, with an additive effect of each and one of users and items together; labels
are drawn around its mean in the way that each objective is for. Ours is `sparsegroup train` with no option but the
objective; LightGBM and CatBoost choose among settings by early stopping on the last tenth of the training rows and are
then fitted to all of them. The figure is the relative loss on the last tenth of the log: that over the loss of the best
constant prediction, 1 - R² for squared errors.

    python benchmarks/objectives.py --json objectives.json     # 60,000 rows each
    python benchmarks/objectives.py --quick                    # 6,000 rows
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import polars as pl

import timing
from sparsegroup.data import open_log
from sparsegroup.objectives import Gamma, Huber, Objective, Poisson, Quantile, Squared, Tweedie
from sparsegroup.training import Config, Session, load_model, predict, settings_by_trials
from sparsegroup.training.metrics import measure

USERS, ITEMS = 3_000, 800
CATEGORIES = ("user", "item", "noise")
ROUNDS, PATIENCE = 1_000, 40
Draw = np.random.Generator
Floats = np.ndarray


@dataclass(frozen=True)
class Target:
    """A kind of label.

    Attributes:
        objective: What is learnt of it.
        draw: Labels around the effect of each row, `[rows]` with deviation 1.
        truth: The best predictions.
        lightgbm, catboost: The objective's name there, and its parameters; None where it has none.
    """

    objective: Objective
    draw: Callable[[Floats, Draw], Floats]
    truth: Callable[[Floats], Floats]
    lightgbm: Mapping[str, Any]
    catboost: str | None


def _stars(effect: Floats) -> Floats:
    return 3.5 + 0.8 * effect


def _counts(effect: Floats) -> Floats:
    return np.exp(0.5 + 0.5 * effect)


def _spent(effect: Floats, draw: Draw) -> Floats:
    """Compound Poisson: as many purchases as a Poisson variable says, each a gamma variable."""
    purchases = draw.poisson(0.6 * np.exp(0.3 * effect))
    return draw.gamma(np.maximum(2 * purchases, 1e-9), 2.0 * np.exp(0.2 * effect)) * (purchases > 0)


_Z90 = 1.2815515655446004
TARGETS: Mapping[str, Target] = {
    "stars": Target(
        Squared(),
        lambda effect, draw: np.clip(np.round(_stars(effect) + draw.normal(0, 0.7, len(effect))), 1, 5),
        lambda effect: np.clip(_stars(effect), 1, 5),
        {"objective": "regression"},
        "RMSE",
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
    """Predictions of our model, and of its baseline's metrics, for the test rows."""
    log = open_log(path, labels="numbers")
    config, trials = settings_by_trials(Config.of(objective=target.objective), log)
    Session.begin(folder, config, log, trials=trials).train()
    window = predict(load_model(folder), log.batches(log.train_rows, len(log), 4096))
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


def lightgbm(target: Target, train: pl.DataFrame, test: pl.DataFrame) -> Floats:
    """Predictions of the test rows."""
    import lightgbm as gbm

    inside, outside, held = _codes(train, train), _codes(test, train), len(train) // 10
    labels = train["label"].to_numpy()
    common = {"learning_rate": 0.05, "num_threads": 1, "seed": 0, "verbose": -1, **target.lightgbm}
    tried = []
    for leaves, least in ((15, 30), (63, 30), (63, 200)):
        settings = {**common, "num_leaves": leaves, "min_data_in_leaf": least}
        data = gbm.Dataset(inside[:-held], labels[:-held], categorical_feature=[0, 1, 2], params={"verbose": -1})
        stop = gbm.early_stopping(PATIENCE, verbose=False)
        valid = data.create_valid(inside[-held:], labels[-held:])
        model = gbm.train(settings, data, ROUNDS, valid_sets=[valid], callbacks=[stop])
        tried.append((next(iter(model.best_score["valid_0"].values())), model.best_iteration, settings))
    _, rounds, settings = min(tried, key=lambda one: one[0])
    whole = gbm.Dataset(inside, labels, categorical_feature=[0, 1, 2], params={"verbose": -1})
    found: Floats = gbm.train(settings, whole, rounds).predict(outside)
    return found


def catboost(target: Target, train: pl.DataFrame, test: pl.DataFrame) -> Floats:
    """Predictions of the test rows."""
    import catboost as cat

    def pool(frame: pl.DataFrame) -> Any:
        return cat.Pool(frame.drop("label").to_pandas(), frame["label"].to_numpy(), cat_features=list(CATEGORIES))

    held, tried = len(train) // 10, []
    common = {"loss_function": target.catboost, "thread_count": 1, "random_seed": 0, "verbose": False}
    for depth in (4, 6):
        settings = {**common, "depth": depth, "allow_writing_files": False, "iterations": ROUNDS, "learning_rate": 0.1}
        model = cat.CatBoostRegressor(**settings)
        model.fit(pool(train[:-held]), eval_set=pool(train[-held:]), early_stopping_rounds=PATIENCE)
        tried.append((next(iter(model.get_best_score()["validation"].values())), model.tree_count_, settings))
    _, trees, settings = min(tried, key=lambda one: one[0])
    model = cat.CatBoostRegressor(**{**settings, "iterations": trees}).fit(pool(train))
    kind = "Exponent" if target.catboost.partition(":")[0] in ("Poisson", "Tweedie") else "RawFormulaVal"
    found: Floats = model.predict(pool(test), prediction_type=kind)
    return found


def compared(target: Target, rows: int, folder: Path) -> dict[str, tuple[float, float]]:
    """Method → relative loss on the test rows, and seconds."""
    frame, truth = log_of(target, rows, seed=0)
    path, tenth = folder / "log.csv", round(rows * 0.1)
    frame.write_csv(path)
    train, test = frame[:-tenth], frame[-tenth:]
    labels, found = test["label"].to_numpy(), dict[str, tuple[float, float]]()

    def note(name: str, predictions: Floats, seconds: float) -> None:
        metrics: Any = measure(target.objective, labels, predictions.astype(np.float64))
        found[name] = metrics.relative_loss, seconds

    begin = perf_counter()
    predictions, same = ours(target, path, folder / "run")
    np.testing.assert_allclose(same, labels, rtol=1e-6)
    note("sparsegroup", predictions, perf_counter() - begin)
    summary = json.loads((folder / "run" / "summary.json").read_text())
    found["its linear baseline"] = summary["baseline"]["relative_loss"], float("nan")
    for name, run in {"LightGBM": lightgbm, "CatBoost": catboost}.items():
        if find_spec(name.lower()) and (name != "CatBoost" or target.catboost):
            begin = perf_counter()
            note(name, run(target, train, test), perf_counter() - begin)
    note("the truth", truth[-tenth:], float("nan"))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=TARGETS, default=list(TARGETS), metavar="TARGET")
    parser.add_argument("--rows", type=int, default=60_000, help="of each log; default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="6,000 rows")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as a flat object")
    given = parser.parse_args(argv)
    print(timing.machine(), flush=True)
    figures: dict[str, float] = {}
    for name in given.only:
        target = TARGETS[name]
        with tempfile.TemporaryDirectory() as folder:
            found = compared(target, 6_000 if given.quick else given.rows, Path(folder))
        rows = [[method, f"{loss:.4f}", f"{seconds:,.0f}"] for method, (loss, seconds) in found.items()]
        timing.show(f"{name}: {target.objective}", ("", "relative loss", "seconds"), rows)
        slug = name.replace(" %", "").replace(" ", "_")
        figures |= {f"{slug}_{method.replace(' ', '_').lower()}": loss for method, (loss, _) in found.items()}
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
