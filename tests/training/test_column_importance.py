"""What columns are worth, how they have moved, and for which values a model is wrong: by known answers."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from command import Run
from sparsegroup.data import ColumnFinding, FrameLog, hash_keys, open_log
from sparsegroup.data.keys import keys_of
from sparsegroup.data.log import Log
from sparsegroup.data.order import LogPart, LogWithout
from sparsegroup.data.preparation import prepare
from sparsegroup.models import LR
from sparsegroup.table import HashEmbedding
from sparsegroup.training import ClickModel, Config, importances, predict
from sparsegroup.training.assessment import columns as assessment
from sparsegroup.training.assessment.columns import assess_columns, interactions, with_values_of
from sparsegroup.training.selection.columns import says, select_columns

ROWS = 6_000


class SplitFrame(FrameLog):
    """A frame whose first rows are training rows, and the others test rows."""

    def __len__(self) -> int:
        return len(self._rows)


def split(frame: pl.DataFrame, labels: np.ndarray, at: int, **options: object) -> SplitFrame:
    log = SplitFrame(frame, labels, **options)  # type: ignore[arg-type]
    log.train_rows = at
    return log


def fitted(log: FrameLog, **settings: object) -> ClickModel:
    config = Config.of(**{"model": "lr", "baseline": False, **settings}).resolved_for(log)
    model, optimizer = config.build(log)
    plan = config.training.plan(log.train_rows)
    config.trainer(model, optimizer, plan).fit_plan(plan, log)
    return model


def drawn() -> tuple[pl.DataFrame, np.ndarray]:
    """Rows of a column that decides the labels' odds, its copy but for a few rows, noise, and a number."""
    draw = np.random.default_rng(0)
    effects, place = draw.normal(0, 1.5, 12), draw.integers(12, size=ROWS)
    number = draw.normal(size=ROWS)
    labels = (draw.random(ROWS) < 1 / (1 + np.exp(-(effects[place] + 0.8 * number)))).astype(np.float32)
    copy = np.where(draw.random(ROWS) < 0.01, draw.integers(12, size=ROWS), place)
    frame = pl.DataFrame(
        {
            "noise": [f"n{one}" for one in draw.integers(40, size=ROWS)],
            "color": [f"c{one}" for one in place],
            "copy": [f"p{one}" for one in copy],
            "size": number,
            "id": [f"i{one}" for one in draw.integers(ROWS // 2, size=ROWS)],
        }
    )
    return frame, labels


def test_importance_is_the_rise_of_the_loss_of_shuffled_rows() -> None:
    frame, labels = drawn()
    log = split(frame.drop("copy"), labels, 5_000)
    model = fitted(log)
    found = importances(model, log, shuffles=30)
    rows = next(log.batches(5_000, ROWS, ROWS))
    before = predict(model, [rows]).metrics()
    # Of a logit that is a sum, shuffling a column exchanges its term.
    generator = torch.Generator().manual_seed(1)
    column = log.fields.index("color")
    losses = []
    for _ in range(30):
        keys = rows.keys.clone()
        keys[:, column] = keys[torch.randperm(len(rows), generator=generator), column]
        with torch.no_grad():
            logits = model(keys, rows.numbers).double()
        losses.append(torch.nn.functional.binary_cross_entropy_with_logits(logits, rows.labels.double()).item())
    expected = np.mean(losses) - before.loss
    assert found["color"].loss == pytest.approx(expected, abs=4 * np.std(losses) / 30**0.5)
    assert [*found][:2] == ["color", "size"]
    for name in ("noise", "id"):
        assert abs(found[name].loss) < 3 * found[name].error
        assert abs(found[name].auc) < 0.02
    assert found["size"].loss > 5 * found["size"].error
    untrained = ClickModel(HashEmbedding(1), LR(len(log.fields), 1, len(log.numbers)))
    assert {one.loss for name, one in importances(untrained, log).items() if name != "size"} == {0.0}
    with pytest.raises(ValueError, match="no test rows"):
        importances(model, FrameLog(frame, labels))


def test_drift_and_segments_by_their_formulas() -> None:
    draw = np.random.default_rng(0)
    before, after = draw.choice(4, 3_000, p=(0.4, 0.3, 0.2, 0.1)), draw.choice(5, 2_000, p=(0.1, 0.3, 0.2, 0.1, 0.3))
    place = np.concatenate([before, after])
    labels = (draw.random(5_000) < np.where(place == 1, 0.1, 0.4)).astype(np.float32)
    labels[3_000:][after == 1] = draw.random((after == 1).sum()) < 0.7
    frame = pl.DataFrame({"color": [f"c{one}" for one in place], "same": ["s"] * 5_000, "day": [*range(5_000)]})
    log = split(frame, labels, 3_000, columns={"color": "category", "same": "category", "day": "number"})
    found = assess_columns(fitted(log), log)
    by_name = {one.name: one for one in found.columns}
    counts = [np.array([(part == one).sum() for one in range(5)]) for part in (before, after)]
    q, p = ((count + 0.5) / (count + 0.5).sum() for count in counts)
    assert by_name["color"].psi == pytest.approx(float(((p - q) * np.log(p / q)).sum()))
    assert by_name["color"].unseen == (after == 4).mean()
    assert (by_name["same"].psi, by_name["same"].unseen) == (0.0, 0.0)
    assert by_name["day"].psi > 5  # every test row is above all training rows
    worst = found.segments[0]
    assert (worst.field, worst.rows) == ("color", (after == 1).sum())
    assert worst.high < 0.5
    (warning,) = found.warnings
    assert "'color' (30%)" in warning
    fresh = frame.with_columns(pl.Series("color", [f"c{one}" for one in range(5_000)]))
    late = split(fresh, labels, 3_000, columns={"color": "category", "same": "category", "day": "number"})
    (warning,) = assess_columns(fitted(late), late).warnings
    assert "'color' (100%)" in warning
    assert "exclude" in warning
    days = [f"2024-{one // 28 % 12 + 1:02}-{one % 28 + 1:02}" for one in range(5_000)]
    times = split(frame.with_columns(day=pl.Series(days)), labels, 3_000, columns={"day": "timestamp date"})
    assert not any("read as times" in one for one in assess_columns(fitted(times), times).warnings)


@pytest.mark.parametrize("lists", [False, True])
def test_values_of_early_training_rows_are_not_new(lists: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assessment, "MOST_ROWS", 1_000)
    draw = np.random.default_rng(0)
    hours = np.arange(5_000) // 1_000 % 4  # the last 1,000 training rows have another hour than the test rows
    frame = pl.DataFrame({"hour": [f"h{one}" for one in hours], "user": [f"u{one}" for one in range(5_000)]})
    if lists:
        frame = frame.with_columns(pl.concat_list("hour"))
    labels = (draw.random(5_000) < 0.3).astype(np.float32)
    kinds = {"hour": "list json" if lists else "category", "user": "category"}
    log = split(frame, labels, 4_000, columns=kinds)
    found = assess_columns(fitted(log), log)
    assert {one.name: one.unseen for one in found.columns} == {"hour": 0.0, "user": 1.0}
    (warning,) = found.warnings
    assert "'hour'" not in warning


def test_importances_of_a_wide_log_are_of_the_columns_that_predict_most(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    values = draw.normal(size=(3_000, 60))
    labels = (draw.random(3_000) < 1 / (1 + np.exp(-2 * values[:, 50]))).astype(np.float32)
    frame = pl.DataFrame({f"x{i}": values[:, i] for i in range(60)})
    log = split(frame, labels, 2_000, columns=dict.fromkeys(frame.columns, "number"))
    log.findings = tuple(ColumnFinding(f"x{i}", "number", "", auc=0.8 if i == 50 else 0.51) for i in range(60))
    model, predicted = fitted(log), list[int]()
    model.network.register_forward_hook(lambda network, given, scores: predicted.append(len(scores)))
    assess_columns(model, log)
    everything = sum(predicted)
    predicted.clear()
    monkeypatch.setattr(assessment, "MOST_WORK", 300 * 20 * sum(one.numel() for one in model.network.parameters()))
    found = assess_columns(model, log).columns
    assert sum(predicted) < everything / 6
    measured = [one.name for one in found if not math.isnan(one.importance.loss)]
    assert measured[0] == "x50"
    assert 8 <= len(measured) < len(found) == 60


class Product(torch.nn.Module):
    def forward(self, embeddings: torch.Tensor, numbers: torch.Tensor | None = None) -> torch.Tensor:
        x = embeddings[..., 0]
        return 2 * x[:, 0] * x[:, 1] + x[:, 2] + 0 * x[:, 3]


def test_an_interaction_has_its_share_of_the_variance() -> None:
    signs = np.random.default_rng(0).integers(2, size=(8_000, 4))
    frame = pl.DataFrame({f"c{column}": [f"v{one}" for one in signs[:, column]] for column in range(4)})
    log = FrameLog(frame, np.arange(8_000) % 2)
    batch = next(log.batches(0, 8_000, 8_000))
    table = HashEmbedding(1)
    keys = batch.keys.flatten().unique()
    ones = torch.from_numpy(hash_keys(pl.DataFrame({f"c{column}": ["v1"] for column in range(4)}), log.columns).keys)
    table.train()
    table(keys)
    table.assign(keys, torch.where(torch.isin(keys, ones), 1.0, -1.0)[:, None])
    found = interactions(ClickModel(table, Product()), log, batch, log.fields)
    assert [one.columns for one in found] == [("c0", "c1")]
    assert found[0].share == pytest.approx(4 / 5, abs=0.03)
    additive = ClickModel(table, LR(4, 1, 0))
    assert interactions(additive, log, batch, log.fields) == ()


def test_a_log_without_columns_is_read_without_them_and_what_is_made_of_a_column_is_shuffled_together(
    tmp_path: Path,
) -> None:
    times = [f"2026-0{1 + i % 3}-1{i % 10}T0{i % 7}:00:00" for i in range(90)]
    frame = pl.DataFrame({"label": [i % 2 for i in range(90)], "noise": [f"n{i}" for i in range(90)], "when": times})
    frame = frame.with_columns(tags=pl.Series(["a|b" if i % 3 else "" for i in range(90)]), size=pl.int_range(90))
    frame.write_csv(tmp_path / "log.csv")
    columns = {"label": "label", "noise": "category", "when": "timestamp iso", "tags": "list |", "size": "number"}
    log = open_log(tmp_path / "log.csv", columns=columns)
    assert log.made_of()["when"] == ("when.hour", "when.weekday")
    left = LogWithout(log, ["noise", "size"])
    other = open_log(tmp_path / "log.csv", columns={**columns, "noise": "ignore", "size": "ignore"})
    assert (left.fields, left.lists, left.numbers) == (other.fields, other.lists, other.numbers)
    ours, theirs = next(left.batches(10, 60, 50)), next(other.batches(10, 60, 50))
    assert torch.equal(ours.keys, theirs.keys)
    assert torch.equal(ours.bags[0].keys, theirs.bags[0].keys)
    assert torch.equal(ours.numbers, theirs.numbers)
    none = next(LogWithout(log, ["size", "tags", "when.hour", "when.weekday"]).batches(0, 5, 5))
    assert (none.keys.shape, none.numbers.shape, none.bags) == ((5, 1), (5, 0), ())
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    both = with_values_of(ours, left, ["when.hour", "when.weekday"], order)
    assert torch.equal(both.keys, ours.keys[order])
    lists = with_values_of(ours, left, ["tags"], order)
    assert torch.equal(lists.keys, ours.keys)
    assert torch.equal(lists.bags[0].offsets, ours.bags[0][order].offsets)
    assert not torch.equal(ours.bags[0].offsets, lists.bags[0].offsets)


@pytest.mark.parametrize("prepared", [True, False])
def test_values_of_a_log_without_columns_keep_their_names(tmp_path: Path, prepared: bool) -> None:
    values = {"a": "x", "b": "x", "c": "y", "d": "u|v", "e": "z"}
    frame = pl.DataFrame([{"label": i % 2, **{name: f"{name}{i % 3}{value}" for name, value in values.items()}}
                          for i in range(90)])  # fmt: skip
    frame.write_csv(tmp_path / "log.csv")
    columns = {"label": "label", **dict.fromkeys(values, "category"), "d": "list |"}
    log = open_log(tmp_path / "log.csv", columns=columns)
    if prepared:
        log, _ = prepare([tmp_path / "log.csv"], tmp_path / "prepared", vocabulary=True, columns=columns)
    other = open_log(tmp_path / "log.csv", columns={**columns, "a": "ignore", "c": "ignore"})
    left = LogWithout(log, ["a", "c"])
    batch = next(other.batches(0, 90, 90))
    keys = np.unique(np.concatenate([batch.keys.numpy().ravel(), *(bags.keys.numpy() for bags in batch.bags)]))
    unknown = [keys_of(["b0x"], 200)[0], keys_of(["never"], 0)[0]]
    expected = other.values_of(keys, 90)
    assert len(expected) == len(keys)
    assert left.values_of(np.array([*keys, *unknown]), 90) == expected
    assert left.checked_vocabulary() is None  # a run would keep it, with the names of other keys
    assert LogPart(log, 0, 50).values_of(log_keys(log), 90) == log.values_of(log_keys(log), 90) != {}


def log_keys(log: Log) -> np.ndarray:
    return next(log.batches(0, 9, 9)).keys.numpy().ravel()


def test_says_is_a_mapping_that_holds_in_later_rows() -> None:
    frame, labels = drawn()
    place = np.arange(ROWS) % 30
    frame = frame.with_columns(
        fine=pl.Series([f"f{one}" for one in place]),
        coarse=pl.Series([f"g{one // 10}" for one in place]),
        twice=frame["size"] ** 3,
    )
    log = FrameLog(frame, labels)
    learnt, rows = (next(log.batches(first, first + 3_000, 3_000)) for first in (0, 3_000))
    assert says(learnt, rows, log, "color", "copy")
    assert says(learnt, rows, log, "copy", "color")
    assert says(learnt, rows, log, "fine", "coarse")
    assert not says(learnt, rows, log, "coarse", "fine")
    assert not says(learnt, rows, log, "id", "color")  # which it does in the rows that it is learnt from
    assert not says(learnt, rows, log, "size", "color")
    assert says(learnt, rows, log, "size", "twice")


def test_planted_noise_is_left_out(run: Run) -> None:
    frame, labels = drawn()
    frame.with_columns(pl.Series("label", labels.astype(int))).write_csv("log.csv")
    done = run("select", "log.csv", "--seeds", 2, "--out", "columns.yaml", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    kept = {one["name"] for one in found["columns"] if one["is_kept"]}
    assert "size" in kept
    assert len(kept & {"color", "copy"}) == 1
    assert {"noise", "id"} <= {*found["left_out"]}
    assert found["kept"]["metrics"]["log_loss"] < found["whole"]["metrics"]["log_loss"] + 0.005
    assert found["kept"]["live_rows"] < found["whole"]["live_rows"]
    assert open_log("log.csv", schema=Path("columns.yaml")).made_of().keys() == kept
    again = run("select", "log.csv", "--out", "columns.yaml")
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    shown = run("select", "log.csv", "--seeds", 1, "--model", "lr", "--epochs", 1)
    assert re.search(r"Without these \d of 5 columns, on 600 test rows: AUC", shown.stdout)
    assert "sparsegroup train log.csv --exclude=" in shown.stdout


NAMING: dict[str, tuple[dict[str, Any], set[str]]] = {
    "group": ({"objective": "pairwise", "group": "noise", "model": "lr"}, {"noise"}),
    "attention": ({"attention": {"tags": "noise"}, "model": "mlp"}, {"tags", "noise"}),
    "pairs": ({"pairs": ["noise*an id"], "model": "lr"}, {"noise", "an id"}),
    "dims": ({"dims": {"noise": 4, "tags": 2}, "model": "fm"}, {"noise", "tags"}),
    "shared vocabulary": ({"model": "lr"}, {"noise"}),
}


@pytest.mark.parametrize("setting", NAMING)
def test_columns_that_a_setting_names_are_never_left_out(setting: str) -> None:
    settings, named = NAMING[setting]
    frame, labels = (some[:1_500] for some in drawn())
    tags = pl.Series([f"t{i * 7 % 5}|t{i * 3 % 4}" for i in range(len(frame))])
    frame = frame.rename({"id": "an id"}).with_columns(tags=tags)
    log = FrameLog(frame, labels)
    if setting == "shared vocabulary":
        log = FrameLog(frame, labels, columns={**log.columns, "tags": "list | shares noise"})
    found = select_columns(Config.of(**settings, epochs=1, baseline=False), log, seeds=1)
    assert named <= {one.name for one in found.columns if one.is_kept}


def test_columns_that_settings_name_are_kept_and_too_little_is_refused(run: Run) -> None:
    frame, labels = drawn()
    log = FrameLog(frame, labels)
    config = Config.of(model="fm", dims={"noise": 4, "id": 2}, epochs=1, baseline=False)
    found = select_columns(config, log, seeds=1)
    assert not {"noise", "id"} & {*found.left_out}
    assert (found.rows, found.has_test_rows) == (1_200, False)
    assert all(math.isnan(one.live) == (one.name == "size") for one in found.columns)
    frame[:500].with_columns(pl.Series("label", labels[:500].astype(int))).write_csv("log.csv")
    few = run("select", "log.csv")
    assert few.returncode == 2
    assert "needs 1,000 rows and two columns" in few.stderr
    with pytest.raises(ValueError, match="seeds must be >= 1"):
        select_columns(config, log, seeds=0)
