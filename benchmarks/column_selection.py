"""Which columns are noise? `sparsegroup select` and six other rankings, on logs with planted noise.

Into each log are planted: four shuffled copies of its own columns, three random identifiers (as many values as half the
rows, a twentieth of them, 50), and two near copies of categories, of which 3 % of the rows are redrawn. The rankings:

- select: what `select_columns` keeps, then its importances (three seeds).
- permutation: one model of all columns, each column shuffled in held-out rows.
- group lasso: a field's columns of the first layer are one group, whose λ grows along the second and third pass; a
  column ranks by the λ at which its group dies.
- live rows: share of a field's features that the model of all columns has kept.
- LightGBM: gain; forest: scikit-learn's random forest, impurity; lasso: absolute weights of a logistic regression with
  l1 on one-hot values, each times its standard deviation.

Figures: recall, the share of the noise among as many least important columns; and the AUC that remains with the
best quarter, half and three quarters of the columns, over that of all of them, both less .5 (after ERASE's AUKC, Jia et
al., KDD 2024), by our default model without trials on the log's last tenth.

    python benchmarks/column_selection.py --data FOLDER --json column_selection.json
    python benchmarks/column_selection.py --quick
"""

import math
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

import common
from panel.family import FAMILY, KEPT, UNSEEN, made
from panel.logs import shared_logs
from plain_loop import tested, trained
from sparsegroup import GroupAdagrad
from sparsegroup.data import open_log
from sparsegroup.data.batches import concatenated
from sparsegroup.data.log import Log
from sparsegroup.data.order import LogPart, LogWithout
from sparsegroup.models.layers import Network
from sparsegroup.training import ClickModel, Config, select_columns
from sparsegroup.training.assessment.columns import rises
from sparsegroup.training.state import field_totals

SHAPES = ("claims", "leads", "small", "bookings", "parts")
SHARES = (0.25, 0.5, 0.75)
Scores = dict[str, float]
"""Column → how much it is worth to a method."""


@dataclass(frozen=True)
class Planted:
    """A log with planted columns."""

    name: str
    frame: pl.DataFrame  # its rows, with a column `label`
    kinds: Mapping[str, str]  # of the columns
    noise: tuple[str, ...]  # that was planted, and that of the log itself where it is made up


def planted(name: str, frame: pl.DataFrame, kinds: Mapping[str, str], seed: int = 0) -> Planted:
    """Plant noise and near copies into a log of these columns, in any order."""
    draw, rows = np.random.default_rng(seed), len(frame)
    columns, kinds, names = {one: frame[one] for one in kinds}, dict(kinds), list(kinds)
    for number in range(4):
        source = names[draw.integers(len(names))]
        noise = f"shuffled{number}"
        columns[noise], kinds[noise] = frame[source].gather(draw.permutation(rows)), kinds[source]
    for number, values in enumerate((rows // 2, rows // 20, 50)):
        columns[f"random{number}"] = pl.Series([f"r{value}" for value in draw.integers(values, size=rows)])
        kinds[f"random{number}"] = "category"
    planted = tuple(one for one in kinds if one not in names)
    categories = [one for one in names if kinds[one].startswith("category")]
    for number in range(2):
        source = categories[draw.integers(len(categories))]
        other, is_other = frame[source].gather(draw.integers(rows, size=rows)), draw.random(rows) < 0.03
        both = pl.DataFrame({"own": frame[source], "other": other, "is_other": is_other})
        copy = f"copy{number}_of_{source}"
        columns[copy] = both.select(pl.when("is_other").then("other").otherwise("own")).to_series()
        kinds[copy] = kinds[source]
    order = [list(columns)[place] for place in draw.permutation(len(columns))]
    whole = pl.DataFrame({"label": frame["label"], **{one: columns[one] for one in order}})
    return Planted(name, whole, {one: kinds[one] for one in order}, planted)


def logs(data: Path | None, rows: int) -> Iterator[Planted]:
    for name in SHAPES:
        shape = {**FAMILY, **KEPT, **UNSEEN}[name]
        frame, _ = made(replace(shape, rows=min(shape.rows, rows)), seed=1)
        kinds = {one: _kind(frame, one) for one in frame.columns if one not in ("label", "ts")}
        own = tuple(one for one in kinds if one.startswith("noise") or one in ("n1", "n3"))  # see `Shape`
        log = planted(name, frame, kinds)
        yield replace(log, noise=(*log.noise, *own))
    for log in shared_logs(data) if data is not None else ():
        if log.name in ("avazu_sample", "criteo_sample"):
            train, test, kinds, label = log.frames
            frame = pl.concat([train, test])[:rows].rename({label: "label"})
            as_ours = {"category": "category", "number": "number", "both": "category, number"}
            yield planted(log.name, frame, {one: as_ours[kind] for one, kind in kinds.items() if kind in as_ours})


def _kind(frame: pl.DataFrame, column: str) -> str:
    if column == "tags":
        return "list |"
    return "number" if frame[column].dtype == pl.Float64 else "category"


# Rankings: column → score, of the training rows of a log


def selected(given: Planted, log: Log) -> Scores:
    found = select_columns(Config.of(baseline=False), LogPart(log, 0, log.train_rows))
    return {one.name: one.importance.loss + 1e3 * one.is_kept for one in found.columns}


def _with_held_out(log: Log) -> LogPart:
    held_out = log.train_rows // 5
    return LogPart(log, 0, log.train_rows - held_out, held_out)


def permuted(given: Planted, log: Log) -> Scores:
    part = _with_held_out(log)
    rows = concatenated(list(part.batches(part.train_rows, len(part), 4096)))
    return {name: one.importance.loss for name, one in rises(fitted(part), part, rows, shuffles=3).items()}


def live_rows(given: Planted, log: Log) -> Scores:
    """Numbers, which have no rows, are all needed by this."""
    counts, scores = field_totals(fitted(log).embedding), Scores()
    for column, parts in log.made_of().items():
        fields = [counts[log.fields.index(one)] for one in parts if one in log.fields]
        scores[column] = sum(one.live for one in fields) / sum(one.seen for one in fields) if fields else 1.0
    return scores


class FieldLasso(Network):
    """A hidden layer whose weights `[inputs, hidden]` are groups by field."""

    def __init__(self, fields: int, dim: int, numbers: int, hidden: int = 64) -> None:
        super().__init__(fields, dim, numbers)
        width = fields * dim + numbers
        self.weight = nn.Parameter(torch.empty(width, hidden).uniform_(-1, 1) / math.sqrt(width))
        self.bias, self.output = nn.Parameter(torch.zeros(hidden)), nn.Linear(hidden, 1)
        places = torch.arange(fields).repeat_interleave(dim)
        self.groups = torch.cat([places, fields + torch.arange(numbers)])

    def forward(self, embeddings: Tensor, numbers: Tensor | None = None) -> Tensor:
        hidden = torch.relu(self.flatten(embeddings, numbers) @ self.weight + self.bias)
        logits: Tensor = self.output(hidden).squeeze(1)
        return logits


def group_lasso(given: Planted, log: Log, passes: int = 3, size: int = 64) -> Scores:
    torch.manual_seed(0)
    config = Config.of(model="mlp", baseline=False).resolved_for(log)
    outer = config.model.network(log.schema)
    holder, inner = None, outer
    while hasattr(inner, "network"):
        holder, inner = inner, inner.network
    network = FieldLasso(inner.fields, inner.dim, inner.numbers)
    if holder is None:
        outer = network
    else:
        holder.network = network
    model = ClickModel(config.model.embedding(log.schema, 0, None, "cpu"), outer)
    rows = list(model.embedding.parameters())
    others = [one for one in outer.parameters() if one is not network.weight]
    optimizer = GroupAdagrad(
        [{"params": rows, "l21": 1e-4}, {"params": others}, {"params": [network.weight], "groups": network.groups}],
        lr=0.05,
    )
    last = {}  # group → λ at which it was last alive
    steps, step = math.ceil(log.train_rows / size), 0
    for _ in range(passes):
        for batch in log.batches(0, log.train_rows, size):
            along = (step - steps) / ((passes - 1) * steps)
            optimizer.param_groups[-1]["l21"] = 10 ** (-5 + 4 * along) if along >= 0 else 0.0
            numbers = batch.numbers if batch.numbers.shape[1] else None
            loss = nn.functional.binary_cross_entropy_with_logits(model(batch.keys, numbers, batch.bags), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            norms = torch.zeros(int(network.groups.max()) + 1).index_add_(
                0, network.groups, network.weight.detach().square().sum(1)
            )
            last |= {group: along + norms[group].item() * 1e-9 for group in norms.nonzero().flatten().tolist()}
    # The network has the fields of one value, then the lists, then what the numbers' encoder makes of each number.
    names = [*(name for name in log.fields if name not in log.lists), *log.lists]
    inputs = len(network.groups.unique())
    of_numbers = [log.numbers[(place - len(names)) % len(log.numbers)] for place in range(len(names), inputs)]
    scores = dict[str, float]()
    for group, name in enumerate((*names, *of_numbers)):
        column = next(column for column, parts in log.made_of().items() if name in parts)
        scores[column] = max(scores.get(column, -math.inf), last.get(group, -1.0))
    return scores


def _coded(given: Planted, rows: int) -> np.ndarray:
    """`[rows, columns]`: categories by numbers in the order in which they come, missing numbers as -1."""
    columns = []
    for name, kind in given.kinds.items():
        column = given.frame[name][:rows]
        if kind == "number":
            columns.append(column.cast(pl.Float64).fill_null(-1).to_numpy())
        else:
            columns.append(column.cast(pl.String).fill_null("").cast(pl.Categorical).to_physical().to_numpy())
    return np.column_stack(columns).astype(np.float64)


def lightgbm_gain(given: Planted, log: Log) -> Scores:
    import lightgbm as gbm

    categories = [place for place, kind in enumerate(given.kinds.values()) if kind != "number"]
    data = gbm.Dataset(
        _coded(given, log.train_rows),
        given.frame["label"][: log.train_rows].to_numpy(),
        categorical_feature=categories,
        params={"verbose": -1},
    )
    model = gbm.train({"objective": "binary", "num_threads": 2, "seed": 0, "verbose": -1}, data, 200)
    return dict(zip(given.kinds, model.feature_importance("gain").tolist(), strict=True))


def forest(given: Planted, log: Log) -> Scores:
    from sklearn.ensemble import RandomForestClassifier

    model = RandomForestClassifier(200, min_samples_leaf=5, n_jobs=2, random_state=0)
    model.fit(_coded(given, log.train_rows), given.frame["label"][: log.train_rows].to_numpy())
    return dict(zip(given.kinds, model.feature_importances_.tolist(), strict=True))


def lasso(given: Planted, log: Log) -> Scores:
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression

    parts, widths = [], []
    codes = _coded(given, log.train_rows)
    for place, kind in enumerate(given.kinds.values()):
        column = codes[:, place]
        if kind == "number":
            parts.append(sparse.csr_matrix(((column - column.mean()) / (column.std() or 1))[:, None]))
        else:
            _, place_of = np.unique(column, return_inverse=True)
            rows = np.arange(len(column))
            parts.append(sparse.csr_matrix((np.ones(len(column)), (rows, place_of))))
        widths.append(parts[-1].shape[1])
    whole = sparse.hstack(parts).tocsr()
    model = LogisticRegression(l1_ratio=1, C=0.1, solver="liblinear", max_iter=200)
    model.fit(whole, given.frame["label"][: log.train_rows].to_numpy())
    squares, means = np.asarray(whole.multiply(whole).mean(0))[0], np.asarray(whole.mean(0))[0]
    effects = np.abs(model.coef_[0]) * np.sqrt(np.maximum(squares - means**2, 0))
    return dict(zip(given.kinds, np.add.reduceat(effects, np.r_[0, np.cumsum(widths)[:-1]]).tolist(), strict=True))


Ranking = Callable[[Planted, Log], Scores]
METHODS: Mapping[str, Ranking] = {
    "select": selected,
    "permutation": permuted,
    "group lasso": group_lasso,
    "live rows": live_rows,
    "LightGBM gain": lightgbm_gain,
    "forest": forest,
    "lasso": lasso,
}


def fitted(log: Log) -> ClickModel:
    """Our default model, without trials."""
    return trained(log, Config.of(baseline=False).resolved_for(log)).model


def auc_without(log: Log, columns: Sequence[str]) -> float:
    """AUC on the test rows of the default model without some columns."""
    less = LogWithout(log, [name for column in columns for name in log.made_of()[column]])
    return tested(fitted(less), less).metrics().auc


def compared(log: Planted, path: Path, methods: Mapping[str, Ranking]) -> dict[str, dict[str, float]]:
    """Method → recall, AUC kept, and seconds, of one log, which is written to a path."""
    log.frame.write_csv(path)
    opened = open_log(path, columns={"label": "label", **log.kinds})
    whole, found = auc_without(opened, ()), dict[str, dict[str, float]]()
    for name, run in methods.items():
        begin = perf_counter()
        scores = run(log, opened)
        seconds = perf_counter() - begin
        order = sorted(log.kinds, key=lambda one: (scores[one], one))
        recall = len({*order[: len(log.noise)]} & {*log.noise}) / len(log.noise)
        aucs = [auc_without(opened, order[: len(order) - round(share * len(order))]) for share in SHARES]
        kept = float(np.mean([(auc - 0.5) / (whole - 0.5) for auc in aucs]))
        found[name.replace(" ", "_").lower()] = {"recall": recall, "auc_kept": kept, "seconds": seconds}
    common.show(found, f"{log.name}: {len(log.kinds)} columns, {len(log.noise)} of them noise, AUC of all {whole:.4f}")
    return found


def measure(given: Namespace) -> Iterator[common.Figures]:
    torch.set_num_threads(given.threads)
    methods = {name: run for name, run in METHODS.items() if name != "LightGBM gain" or find_spec("lightgbm")}
    planted_logs = logs(given.data, 4_000 if given.quick else 25_000)
    with TemporaryDirectory() as folder:
        found = [
            compared(log, Path(folder, f"{log.name}.csv"), methods)
            for log in islice(planted_logs, 2 if given.quick else None)
        ]
    yield {
        name: {of: float(np.mean([one[name][of] for one in found])) for of in figures}
        for name, figures in found[0].items()
    }


if __name__ == "__main__":
    common.run(measure, __doc__, "two small logs, 4,000 rows each", between="_", options=common.DATA)
