"""What a log decides of the settings that are not given: each rule with the words that `--help` says of it.

A setting that is given, in a file, by an option or in Python, is never changed. A run records the decided values: a
resumed run keeps them even if the rules change; a continued one keeps them too, except those in `PER_LOG`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsegroup.data.log import Log

Given = Mapping[str, Mapping[str, Any]]
"""Section → setting → value, of the given settings only."""


@dataclass(frozen=True)
class Rule:
    """How a setting is decided, from the log and the given settings, and that in words for `--help` and the docs."""

    decide: Callable[["Log", Given], Any]
    words: str = ""


def _is_given(given: Given, *names: str) -> bool:
    return any(given.get("optimizer", {}).get(name) is not None for name in names)


def _has_target(given: Given) -> bool:
    """Whether λ21 is adjusted to a size: a given one, or the default if no other setting says how large a model is."""
    return _is_given(given, "target_rate", "target_bytes") or not _is_given(given, "l1", "l21")


def has_default_target(given: Given) -> bool:
    """Whether no setting says how large a model is."""
    return _has_target(given) and not _is_given(given, "target_rate", "target_bytes")


def has_default_optimizer(given: Given) -> bool:
    """Whether the recipe that is best with a size holds; see "How big should it be?" in the documentation."""
    return _has_target(given) and not _is_given(given, "name")


def _network(log: "Log", given: Given) -> str:
    """A DCNv2, whose matrices have more to learn, is better on many rows, see docs/models.md; options are a DCN's."""
    return "dcnv2" if log.train_rows > 100_000 and not given.get("model", {}).get("options") else "dcn"


RANK = 32
"""Of the matrices of auto's DCNv2, which is as good as one of full matrices and takes two thirds of the time."""


def _network_options(log: "Log", given: Given) -> dict[str, Any]:
    is_dcnv2 = "name" not in given.get("model", {}) and _network(log, given) == "dcnv2"
    return {"rank": RANK} if is_dcnv2 else {}


def _batch_size(log: "Log", given: Given) -> int:
    return 1 << min(max(round(math.log2(max(log.train_rows, 1) / 1_000)), 7), 13)


LEAST = 4096
"""Features that the default size keeps in any case: fewer make no table that anybody would notice smaller."""

EVIDENCE = 0.0125
"""ε of the embeddings times the batch size: about a row's gradient that is small. Adagrad's first step is otherwise as
long for a gradient of any size, and where positives are rare, a negative's is tiny: see docs/training.md."""


def _eps(log: "Log", given: Given) -> float | None:
    if not has_default_optimizer(given) or "eps" in (given.get("optimizer", {}).get("options") or {}):
        return None
    return EVIDENCE / (given.get("training", {}).get("batch_size") or _batch_size(log, given))


MOST_FIELDS = 64
"""Fields from which on the default learning rates fall: one step moves a logit by about the rate times the number of
inputs, and with 256 fields the first steps diverge. Of synthetic logs of 256 fields and 540 or 4,000 rows, a quarter of
the rates gives the highest AUC."""


def _default_rate(rate: float, log: "Log") -> float:
    return rate * min(1.0, MOST_FIELDS / max(1, len(log.fields)))


def _is_shuffled_whole(log: "Log", given: Given) -> bool:
    """If not, the last rows are the newest, and an end that looks further back would undo what they taught."""
    buffer = given.get("training", {}).get("shuffle_buffer")
    return bool((_shuffle_buffer(log, given) if buffer is None else buffer) >= log.train_rows)


def _recalibrates(log: "Log", given: Given) -> bool:
    """Where its own rows show the level of a model's predictions: with pairs of fields it remembers them too well, and
    scores within groups have none.
    """
    has_level = not given.get("training", {}).get("group")
    return has_level and _is_shuffled_whole(log, given) and not given.get("model", {}).get("pairs")


def _shuffle_buffer(log: "Log", given: Given) -> int:
    """Blocks follow what drifts in a long log, while no stretch of like rows makes up a batch: see docs/training.md."""
    if isinstance(given.get("model", {}).get("evict_unseen"), str):  # an age by the log's own clock, so by its order
        return 0
    return log.train_rows if log.train_rows <= 300_000 else 10_000


SAMPLE_ROWS = 50_000
"""The first training rows of a log, which are enough for quantiles to a hundredth."""


def _label_scale(log: "Log", given: Given) -> Any:
    """So that a learning rate is one for prices in cents and in euros."""
    from sparsegroup.objectives import LOGISTIC, Objective

    objective = Objective.of(given.get("training", {}).get("objective") or LOGISTIC)
    try:
        objective = objective.of_tasks(log.tasks) if log.tasks else objective
    except ValueError:  # whose message `Config.objective` gives
        return 1.0
    if bool(objective.tasks) != bool(log.tasks):
        return 1.0
    return objective.unit_of(*log.sample(SAMPLE_ROWS)[:2]) if objective.scaled else 1.0


def _classes(log: "Log", given: Given) -> tuple[str, ...]:
    """The log's, for an objective that takes classes and names none."""
    from sparsegroup.objectives import LOGISTIC, Objective

    objective = Objective.of(given.get("training", {}).get("objective") or LOGISTIC)
    if not objective.takes_classes:
        return ()
    return objective.labels if isinstance(objective.labels, tuple) else log.classes


RULES: Mapping[str, Rule] = {
    "model.name": Rule(_network, "auto: dcnv2 for more than 100,000 training rows, otherwise dcn"),
    "model.options": Rule(_network_options, f"rank {RANK} for auto's dcnv2; otherwise the network's"),
    "model.pairs": Rule(lambda log, given: (), "auto: what trials choose"),
    "model.fallback": Rule(lambda log, given: _has_target(given), "with a size"),
    "optimizer.name": Rule(
        lambda log, given: "adagrad" if _has_target(given) else "adam", "adagrad; with --l21 or --l1, adam"
    ),
    "optimizer.lr": Rule(
        lambda log, given: _default_rate(0.1, log) if has_default_optimizer(given) else None,
        f"0.1 for the default adagrad, times {MOST_FIELDS}/fields with more fields; otherwise as in torch.optim",
    ),
    "optimizer.network_lr": Rule(
        lambda log, given: (
            _default_rate(0.03, log) if has_default_optimizer(given) and not _is_given(given, "lr") else None
        ),
        f"--lr; 0.03 for the default adagrad without --lr, times {MOST_FIELDS}/fields with more fields",
    ),
    "optimizer.eps": Rule(_eps, f"{EVIDENCE}/batch_size for the default adagrad; otherwise as in torch.optim"),
    "optimizer.l21": Rule(lambda log, given: 0.0 if _has_target(given) else 1e-3),
    "optimizer.penalty": Rule(lambda log, given: "hard" if _has_target(given) else "lasso", "lasso; hard with a size"),
    "optimizer.target_rate": Rule(
        lambda log, given: 0.1 if has_default_target(given) else None, f"0.1, but at least {LEAST:,} features"
    ),
    "optimizer.least_features": Rule(
        lambda log, given: LEAST if has_default_target(given) else 0, f"{LEAST} with the default size, otherwise 0"
    ),
    "training.label_scale": Rule(_label_scale, f"the standard deviation of the first {SAMPLE_ROWS:,} labels"),
    "training.tasks": Rule(lambda log, given: log.tasks, "of several labels, the columns"),
    "training.classes": Rule(_classes, "for softmax, the log's"),
    "training.batch_size": Rule(_batch_size, "rows/1000, as a power of two from 128 to 8192"),
    "training.epochs": Rule(lambda log, given: 1, "1, or what trials choose"),
    "training.after_first_epoch": Rule(lambda log, given: "train", "train, or what trials choose"),
    "training.average": Rule(
        lambda log, given: 0.2 if _is_shuffled_whole(log, given) else 0.0, "0.2 for a log that is shuffled whole"
    ),
    "training.recalibrate": Rule(_recalibrates, "for a log that is shuffled whole, without pairs or a group"),
    "training.shuffle_buffer": Rule(_shuffle_buffer, "all rows, if there are up to 300,000; otherwise 10,000"),
}
"""Setting → the rule that decides it if it is not given."""

PER_LOG = (
    "training.batch_size",
    "training.epochs",
    "training.after_first_epoch",
    "training.average",
    "training.recalibrate",
    "training.shuffle_buffer",
)
"""Settings that depend on the log's rows, so that a run that is continued on another log decides them again."""
