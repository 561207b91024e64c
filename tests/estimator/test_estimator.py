"""The classifier beside the command line, on frames of any library, and as it learns."""

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score

from command import Run
from estimator_cases import rows, small, written
from sparsegroup.data import ClickLogError
from sparsegroup.estimator import Classifier
from sparsegroup.serving import read_export
from sparsegroup.settings.declared import SHORT
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.training.run_folder import RUN

FRAME, LABELS = rows()
NEW, _ = rows(seed=1)


def probabilities(model: Classifier, frame: Any = NEW) -> Any:
    return model.predict_proba(frame)[:, 1]


def scores_of(run: Run, model: object, log: Path) -> Any:
    done = run("predict", model, log, "--out", "scores.csv", "--overwrite")
    assert done.returncode == 0, done.stderr
    return pl.read_csv("scores.csv")["probability"].to_numpy()


@pytest.mark.parametrize(
    ("options", "settings", "number"),
    [
        ((), {}, 600),
        (
            ("--model", "deepfm", "--dim", 3, "--epochs", 2, "--target-rate", 0.3, "--seed", 5, "--batch-size", 40),
            {"model": "deepfm", "dim": 3, "epochs": 2, "target_rate": 0.3, "random_state": 5, "batch_size": 40},
            600,
        ),
        (("--model", "lr", "--epochs", 1, "--pairs", "none"), {"model": "lr", "epochs": 1, "pairs": "none"}, 5_500),
    ],
)
def test_it_is_the_model_that_the_command_line_trains(
    run: Run, options: tuple[object, ...], settings: dict[str, Any], number: int
) -> None:
    """By trials where there are many rows."""
    frame, labels = rows(number)
    log = written(Path("log.csv" if options else "log.parquet"), frame, labels)
    done = run("train", log, "--label", "clicked", "--test-fraction", 0, "--out", "run", *options)
    assert done.returncode == 0, done.stderr
    model = Classifier(**settings).fit(frame, labels)
    np.testing.assert_allclose(probabilities(model, frame), scores_of(run, "run", log), atol=1e-6)
    assert model.trials_ == RUN.read(Path("run")).summary.trials
    assert (len(model.trials_) > 1) == (number > 5_000)


def test_each_setting_of_a_model_and_its_training_is_a_parameter_and_checked() -> None:
    settings = {name for name, key in SHORT.items() if key.split(".")[0] in ("model", "optimizer", "training")}
    unused = {"seed", "windows", "baseline", "group"}
    assert set(Classifier().get_params()) == {"columns", "random_state", "verbose"} | settings - unused
    for wrong in ({"model": "dnc"}, {"target_rate": 2.0}):
        with pytest.raises(SettingsError, match=next(iter(wrong))):
            small(**wrong).fit(FRAME, LABELS)


def test_an_export_of_vectors_of_several_sizes_scores_files(tmp_path: Path, run: Run) -> None:
    model = small(dim=4, dims={"color": 2}, target_rate=0.4, l21=None).fit(FRAME, LABELS)
    assert set(model.model_.embedding.sizes.values()) == {2, 4}
    alone = np.concatenate([probabilities(model, NEW[row : row + 1]) for row in range(5)])
    np.testing.assert_allclose(alone, probabilities(model)[:5], rtol=1e-14)  # a matrix product's last bit may differ
    manifest = model.export(tmp_path / "served")
    assert manifest.live_rows == model.model_.embedding.num_live
    assert set(read_export(tmp_path / "served").tables) == {"embedding.dim_2", "embedding.dim_4"}
    NEW.write_csv(tmp_path / "unlabelled.csv")
    for log in (written(tmp_path / "new.parquet", *rows(seed=1)), tmp_path / "unlabelled.csv"):
        np.testing.assert_allclose(scores_of(run, tmp_path / "served", log), probabilities(model), atol=1e-6)
    with pytest.raises(NotFittedError):
        small().export(tmp_path / "other")


def test_frames_of_all_libraries_are_the_same() -> None:
    expected = probabilities(small().fit(FRAME, LABELS))
    for make in (pl.DataFrame.to_pandas, pl.DataFrame.to_arrow):
        model = small().fit(make(FRAME), LABELS.to_numpy())
        assert model.feature_names_in_.tolist() == FRAME.columns
        np.testing.assert_array_equal(probabilities(model, make(NEW)), expected)
        np.testing.assert_array_equal(probabilities(model, NEW), expected)
        with pytest.raises(ValueError, match=r"(?s)seen at fit time, yet now missing:.*- color"):
            model.predict(make(NEW.drop("color")))
        with pytest.raises(ValueError, match="must be in the same order"):
            model.predict(make(NEW.select(reversed(NEW.columns))))


def test_kinds_of_columns_are_inferred_or_given_and_unseen_values_are_alike() -> None:
    model = small().fit(FRAME, LABELS)
    assert model.columns_ == {"color": "category", "price": "number", "size": "category, number",
                              "seen": "timestamp iso", "mobile": "boolean", "tags": "list |"}  # fmt: skip
    strange, other = (NEW.with_columns(color=pl.lit(name)) for name in ("unseen", "never seen"))
    np.testing.assert_array_equal(probabilities(model, strange), probabilities(model, other))
    empty = NEW.with_columns(pl.lit(None, dtype=of).alias(name) for name, of in NEW.schema.items())
    assert np.isfinite(probabilities(model, empty)).all()
    model = small(columns={"size": "number", "seen": "ignore"}).fit(FRAME, LABELS)
    assert (model.columns_["size"], model.columns_["seen"]) == ("number", "ignore")
    later = NEW.with_columns(pl.col("seen").dt.offset_by("3h"))
    np.testing.assert_array_equal(probabilities(model), probabilities(model, later))
    with pytest.raises(ValueError, match="X has no column 'cost'; it has color"):
        small(columns={"cost": "number"}).fit(FRAME, LABELS)
    with pytest.raises(ValueError, match="no column is left to train on, of color"):
        small(columns={"color": "ignore"}).fit(FRAME.select("color"), LABELS)
    with pytest.raises(ClickLogError, match="row 2: 'price' cannot be read"):
        model.predict(NEW.head(3).with_columns(price=pl.Series(["1", "2", "three"])))


def test_arrays_have_numbered_columns_and_the_values_of_a_frame() -> None:
    values = [10**17 + place % 9 for place in range(600)]
    parts = [None if place % 7 == 0 else pd.NA if place % 7 == 1 else f"c{place % 5}" for place in range(600)]
    numbers = [math.nan if place % 7 == 0 else place % 31 + (place % 2) / 2 for place in range(600)]
    array = np.array(list(zip(values, parts, numbers, strict=True)), dtype=object)
    texts = [None if one is pd.NA else one for one in parts]
    frame = pl.DataFrame({"id": values, "part": texts, "number": numbers})
    labels = [place % 9 < 4 for place in range(600)]
    model, named = small().fit(array, labels), small().fit(frame, labels)
    assert model.columns_ == {"x0": "category of numbers", "x1": "category", "x2": "number"}
    assert not hasattr(model, "feature_names_in_")
    np.testing.assert_array_equal(probabilities(model, array), probabilities(named, frame))
    assert roc_auc_score(labels, probabilities(model, array)) > 0.9  # ids that differ in the last of 18 digits
    with pytest.warns(UserWarning, match="fitted without feature names"):
        np.testing.assert_array_equal(probabilities(model, frame), probabilities(named, frame))
    pandas = frame.to_pandas().set_axis([4, 5, 6], axis=1)
    np.testing.assert_array_equal(probabilities(small().fit(pandas, labels), pandas), probabilities(model, array))


def test_ten_rows_are_enough() -> None:
    frame, labels = FRAME.head(10), LABELS.head(10)
    assert Classifier().fit(frame, labels).predict(frame).shape == (10,)
    assert small(epochs=3, validation=0.2).fit(frame, labels).predict(frame).shape == (10,)


def test_labels_are_any_two_or_more() -> None:
    numbers, words = small().fit(FRAME, LABELS), small().fit(FRAME, np.where(LABELS == 1, "yes", "no"))
    assert words.classes_.tolist() == ["no", "yes"]
    np.testing.assert_array_equal(probabilities(numbers), probabilities(words))
    assert (words.predict(NEW) == np.where(numbers.predict(NEW) == 1, "yes", "no")).all()
    np.testing.assert_array_equal(numbers.predict(NEW), probabilities(numbers) > 0.5)
    colors = FRAME["color"].to_numpy()
    three = small(epochs=3).fit(FRAME, colors)
    assert three.classes_.tolist() == sorted(set(colors)) == list(three.config_.training.classes)
    assert (three.predict(FRAME) == colors).mean() > 0.9
    np.testing.assert_allclose(three.predict_proba(NEW), np.exp(three.decision_function(NEW)))
    two = small(objective="softmax").fit(FRAME, LABELS)
    assert two.decision_function(NEW).shape == (len(NEW),)
    np.testing.assert_array_equal(two.predict(NEW), two.predict_proba(NEW)[:, 1] > 0.5)
    with pytest.raises(ValueError, match="one class"):
        small().fit(FRAME, np.zeros(600))
    with pytest.raises(ValueError, match="X has 600 rows and y 599"):
        small().fit(FRAME, LABELS[1:])


def test_a_fit_that_diverges_leaves_the_fitted_model() -> None:
    model = small().fit(FRAME, LABELS)
    before = probabilities(model)
    model.set_params(optimizer="momentum", lr=1e30)
    with pytest.raises(FloatingPointError, match="training has diverged"):
        model.fit(FRAME.select("color", "price"), LABELS)
    np.testing.assert_array_equal(probabilities(model), before)
    assert model.n_features_in_ == 6


@pytest.mark.parametrize("is_later", [False, True])
def test_a_model_that_diverges_while_it_learns_further_is_not_kept(is_later: bool) -> None:
    model = small(optimizer="momentum", lr=0.05 if is_later else 1e30)
    if is_later:
        model.partial_fit(FRAME, LABELS, classes=[0, 1])
        for group in model.optimizer_.param_groups:
            group["initial_lr"] = 1e30
    with pytest.raises(FloatingPointError, match="training has diverged"):
        model.partial_fit(FRAME, LABELS, classes=[0, 1])
    with pytest.raises(NotFittedError):
        model.predict_proba(NEW)
    model.set_params(lr=0.05).partial_fit(FRAME, LABELS, classes=[0, 1])  # the first call anew
    np.testing.assert_array_equal(probabilities(model), probabilities(clone(model).partial_fit(FRAME, LABELS, [0, 1])))


def test_weights_count() -> None:
    frame, labels = pl.concat([FRAME, FRAME]), np.repeat([0, 1], len(FRAME))  # all that decides is the weights
    model = small(shuffle_buffer=2_000, base_rate=False, epochs=3)
    none, same = model.fit(frame, labels), clone(model).fit(frame, labels, sample_weight=np.ones(len(frame)))
    np.testing.assert_array_equal(probabilities(none), probabilities(same))
    for weights, expected in (([9.0, 1.0], 0), ([1.0, 9.0], 1)):
        weighted = clone(model).fit(frame, labels, sample_weight=np.repeat(weights, len(FRAME)))
        assert (weighted.predict(NEW) == expected).mean() > 0.95


@pytest.mark.parametrize("state", [7, np.random.RandomState(3)])
def test_the_callers_random_numbers_stay_as_they_are(state: Any) -> None:
    before = torch.get_rng_state()
    model = small(random_state=state, dropout=0.2).fit(FRAME, LABELS).partial_fit(FRAME, LABELS)
    assert before.equal(torch.get_rng_state())
    again = clone(model).fit(FRAME, LABELS).partial_fit(FRAME, LABELS)
    assert np.array_equal(probabilities(model), probabilities(again)) == isinstance(state, int)


def test_parts_come_to_the_same_as_the_whole() -> None:
    frame, labels = FRAME.drop("price"), LABELS
    plain = {"average": 0.0, "base_rate": False, "standardize": False, "number_buckets": 0, "shuffle_buffer": 0}
    model = small(**plain, epochs=1, columns={"size": "category"}, validation=0.0, dropout=0.3, optimizer="adam")
    whole = clone(model).fit(frame, labels)
    for first in range(0, 600, 200):
        model.partial_fit(frame[first : first + 200], labels[first : first + 200], classes=[0, 1])
        model = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(probabilities(model, frame), probabilities(whole, frame))
    assert [point.samples for point in model.history_][-1] == 600
    refitted = model.fit(frame, labels)
    np.testing.assert_array_equal(probabilities(refitted, frame), probabilities(whole, frame))


def test_the_target_size_is_there_after_each_part() -> None:
    frame, labels = rows(3_000)
    model = small(target_rate=0.25, l21=None)
    for first in range(0, 3_000, 600):
        model.partial_fit(frame[first : first + 600], labels[first : first + 600], classes=[0, 1])
        assert abs(model.feature_rate_ - 0.25) < 0.02
    assert abs(clone(model).fit(frame, labels).feature_rate_ - 0.25) < 0.02


def test_rates_are_constant_after_a_schedule_has_ended() -> None:
    model = small(schedule="linear").fit(FRAME, LABELS)
    before = probabilities(model)
    model.partial_fit(FRAME, LABELS)
    assert abs(probabilities(model) - before).max() > 1e-3
    constant = small(schedule="constant").fit(FRAME, LABELS)
    rates, expected = ([group["lr"] for group in one.optimizer_.param_groups] for one in (model, constant))
    assert rates == expected


def test_classes_of_parts_are_those_of_the_first_call() -> None:
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        small().partial_fit(FRAME, LABELS)
    model = small().partial_fit(FRAME, np.zeros(len(FRAME)), classes=[0, 1])
    with pytest.raises(ValueError, match=r"classes \[0, 2\] are not those of the first call: \[0, 1\]"):
        model.partial_fit(FRAME, LABELS, classes=[0, 2])
    with pytest.raises(ValueError, match=r"y contains 3; the classes are \[0, 1\]"):
        model.partial_fit(FRAME, LABELS * 3)
    with pytest.raises(NotFittedError):
        small().feature_rate_  # noqa: B018
