"""A training run of an experiment, its outcome, and outcomes on disk: what has been run once is not run again."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from sparsegroup.artifact import write_atomically
from sparsegroup.training import NETWORKS, Config


@dataclass(frozen=True)
class Plain:
    """Training as the config says."""


@dataclass(frozen=True)
class Pruned:
    """Magnitude pruning (§4.2) to the share `keep` of the features, `fine_tune` of the samples for fine-tuning.

    Vectors are kept `by` "x", their norm, or by "s", that of u - σx, which Group Adam compares.
    """

    keep: float
    fine_tune: float = 0.0
    by: Literal["x", "s"] = "x"


@dataclass(frozen=True)
class Gradual:
    """Gradual magnitude pruning of whole vectors to `keep`, a share of the features seen in training."""

    keep: float


@dataclass(frozen=True)
class CutOff:
    """Features seen less often than `min_count` in the training rows share one vector per field."""

    min_count: int


@dataclass(frozen=True)
class DeepLight:
    """DeepLight's pruning of single weights while training, until the share `sparsity` of them is zero."""

    sparsity: float


@dataclass(frozen=True)
class Compact:
    """A contestant of `equal_bytes`, in at most `share` of the dense float32 table's bytes, served in a precision.

    `setting` is the value of its main setting, None where it has none.
    """

    name: str
    share: float
    precision: Literal["float32", "int8"] = "float32"
    setting: float | None = None


PLAIN = Plain()
Method = Plain | Pruned | Gradual | CutOff | DeepLight | Compact


@dataclass(frozen=True)
class Run:
    """One training run on a log: the config's model, optimizer, batch size and seed, and what is done besides.

    With `validate` it is trained without the last tenth of the training rows and measured on it, to make a choice;
    otherwise it is trained on all of them and measured on the test rows.
    """

    config: Config
    method: Method = PLAIN
    validate: bool = False

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
        method = {name: value for name, value in asdict(self.method).items() if (name, value) != ("by", "x")}
        return {
            "model": model,
            "optimizer": optimizer,
            "batch_size": config["training"]["batch_size"],
            "seed": config["training"]["seed"],
            "method": {"name": type(self.method).__name__, **method},
            "validate": self.validate,
        }


@dataclass(frozen=True)
class Outcome:
    """What comes of a run, on the rows it is measured on.

    Attributes:
        auc, log_loss: The latter in nats.
        feature_rate: Live features over features seen in training (the paper's "sparsity").
        parameter_rate: Non-zero embedding weights over those of all features seen.
        live, seen: Features with a non-zero vector, and features seen in training.
        seconds: Computing time.
        resampled: AUC under resamplings of the rows `[replicates]` float32, the same for all runs on them.
        served_bytes: What is served of the embedding, of a `Compact`, as the others below; 0 if it cannot be so small.
        peak_bytes: Memory of the training on the table's side.
        training_seconds: Time of the training alone.
        latency_1, latency_512: Seconds of a served call with as many rows.
    """

    auc: float
    log_loss: float
    feature_rate: float
    parameter_rate: float
    live: int
    seen: int
    seconds: float
    resampled: npt.NDArray[np.float32]
    served_bytes: int = 0
    peak_bytes: int = 0
    training_seconds: float = 0.0
    latency_1: float = 0.0
    latency_512: float = 0.0


@dataclass(frozen=True)
class Sample:
    """Outcomes of the same run with several seeds."""

    outcomes: tuple[Outcome, ...]

    def each(self, name: str) -> npt.NDArray[np.float64]:
        """A number of the outcomes, or its resamplings, by seed."""
        return np.array([getattr(outcome, name) for outcome in self.outcomes], np.float64)

    def mean(self, name: str) -> float:
        """The mean of a number of the outcomes."""
        return float(self.each(name).mean())

    @property
    def auc(self) -> float:
        """Mean."""
        return self.mean("auc")

    @property
    def auc_deviation(self) -> float | None:
        """Standard deviation over seeds; None of one."""
        return float(self.each("auc").std(ddof=1)) if len(self.outcomes) > 1 else None

    @property
    def auc_cells(self) -> tuple[float, float | None]:
        """Mean AUC and its standard deviation."""
        return self.auc, self.auc_deviation

    @property
    def rate(self) -> float:
        """Mean feature rate."""
        return self.mean("feature_rate")

    def between(self, other: "Sample", share: float, rate: float) -> "Sample":
        """`share` of the way from this sample to another of the same seeds, at feature rate `rate`."""

        def between(first: Outcome, second: Outcome) -> Outcome:
            names = ("auc", "log_loss", "resampled")
            mixed = {name: (1 - share) * getattr(first, name) + share * getattr(second, name) for name in names}
            return replace(first, feature_rate=rate, **mixed)

        return Sample(tuple(map(between, self.outcomes, other.outcomes)))


class Results:
    """A folder of outcomes: `KEY.json`, written last, and `KEY.npy`, the resampled AUCs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def __contains__(self, run: Run) -> bool:
        return self._path(run, "json").exists()

    def __getitem__(self, run: Run) -> Outcome:
        content = json.loads(self._path(run, "json").read_text())["outcome"]
        return Outcome(**content, resampled=np.load(self._path(run, "npy")))

    def __setitem__(self, run: Run, outcome: Outcome) -> None:
        content = asdict(outcome)
        resampled = np.asarray(content.pop("resampled"), np.float32)
        text = json.dumps({"run": run.as_dict(), "outcome": content}, indent=1) + "\n"

        def save(path: Path) -> None:
            with path.open("wb") as file:
                np.save(file, resampled)

        write_atomically(self._path(run, "npy"), save)
        write_atomically(self._path(run, "json"), lambda path: path.write_text(text))

    def seconds(self) -> float:
        """Computing time of all runs."""
        paths = self.folder.glob("[!.]*.json")
        return sum(float(json.loads(path.read_text())["outcome"]["seconds"]) for path in paths)

    def _path(self, run: Run, kind: str) -> Path:
        return self.folder / f"{run.key}.{kind}"
