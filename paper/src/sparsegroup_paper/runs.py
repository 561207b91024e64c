"""A training run of an experiment, as it is asked for, and what comes of it."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from sparsegroup.training import NETWORKS, Config


@dataclass(frozen=True)
class Plain:
    """Training as the config says."""


@dataclass(frozen=True)
class Pruned:
    """Magnitude pruning with fine-tuning (§4.2), see `magnitude`.

    Attributes:
        keep: Embedding vectors that are kept, as a share of the features seen in training.
        fine_tune: Share of the samples, the last ones, that the pruned model is trained on.
        by: What vectors are kept by: "x", their norm, or "s", that of u - σx, which Group Adam compares.
    """

    keep: float
    fine_tune: float = 0.0
    by: Literal["x", "s"] = "x"


@dataclass(frozen=True)
class Gradual:
    """Gradual magnitude pruning of whole vectors, see `gradual`.

    Attributes:
        keep: Embedding vectors that are kept at the end, as a share of the features seen in training.
    """

    keep: float


@dataclass(frozen=True)
class CutOff:
    """Frequency cut-off, see `cut_off`.

    Attributes:
        min_count: Features seen less often than that in the training rows share one vector per field.
    """

    min_count: int


@dataclass(frozen=True)
class DeepLight:
    """DeepLight's pruning of single weights while training, see `deeplight`.

    Attributes:
        sparsity: Share of the embedding weights that are zero at the end.
    """

    sparsity: float


PLAIN = Plain()
LAST_TENTH = 10
Method = Plain | Pruned | Gradual | CutOff | DeepLight


@dataclass(frozen=True)
class Run:
    """One training run on a log.

    Attributes:
        config: Model, optimizer, batch size and seed; its `data` does not count.
        method: What is done besides training.
        validate: Train without the last tenth of the training rows and measure on it, to make a choice; otherwise
            train on all of them and measure on the test rows.
        tenth: Which tenth of the training rows it is that is measured on, 2 to 10, to make a choice: what comes after
            it is not used.
    """

    config: Config
    method: Method = PLAIN
    validate: bool = False
    tenth: int = LAST_TENTH

    @property
    def key(self) -> str:
        """The same for runs that must give the same result, and else another."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:24]

    def as_dict(self) -> dict[str, object]:
        """All that the result depends on, but the log."""
        config = self.config.as_dict()
        model, optimizer = config["model"], config["optimizer"]
        if model["dim"] is None:
            model["dim"] = NETWORKS[self.config.model.name].default_dim
        if not optimizer["l21"] and not any(optimizer[name] for name in ("target_rate", "target_bytes")):
            optimizer |= {"norm": "s", "penalty": "lasso"}
        return {
            "model": model,
            "optimizer": optimizer,
            "batch_size": config["training"]["batch_size"],
            "seed": config["training"]["seed"],
            "method": {"name": type(self.method).__name__, **_fields_of(self.method)},
            "validate": self.validate,
            "tenth": self.tenth,
        }


def _fields_of(method: Method) -> dict[str, object]:
    """What a method is told; pruning by x as before there was another."""
    return {name: value for name, value in asdict(method).items() if (name, value) != ("by", "x")}


@dataclass(frozen=True)
class Survivors:
    """The live features of those that were seen about as often as each other.

    Attributes:
        least, most: How often, in the training rows.
        features: So many were seen.
        informative: Those of them that have an effect on the label.
        live: Those of them that have a non-zero vector.
        live_informative: Those of them that are both.
    """

    least: int
    most: int
    features: int
    informative: int
    live: int
    live_informative: int


@dataclass(frozen=True)
class Outcome:
    """What comes of a run.

    Attributes:
        auc: On the rows it is measured on.
        log_loss: On them, in nats.
        feature_rate: Live features over features seen in training (the paper's "sparsity").
        parameter_rate: Non-zero embedding weights over those of all features seen.
        live: Features with a non-zero vector.
        seen: Features seen in training.
        seconds: Computing time.
        survivors: By frequency, where it is known which features have an effect.
        resampled: AUC under resamplings of the rows `[replicates]` float32, the same for all runs on them.
    """

    auc: float
    log_loss: float
    feature_rate: float
    parameter_rate: float
    live: int
    seen: int
    seconds: float
    survivors: tuple[Survivors, ...]
    resampled: npt.NDArray[np.float32]
