"""What is known of a trial: its settings, what it scored at each rung, and how it ended."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sparsegroup.artifact.validation import finite
from sparsegroup.tuning.search_parameter import shown_value
from sparsegroup.tuning.search_space import SearchSpace

State = Literal["complete", "stopped early", "diverged", "failed", "cut off"]
"""How a trial ended. One that was cut off goes on when the study is resumed."""


@dataclass(frozen=True)
class RungScore:
    """A model trained on some rows, measured on those that are held out.

    Attributes:
        rows: Rows it was trained on.
        log_loss, auc, normalized_entropy: On the rows held out; see `Metrics`.
        feature_rate: Live features over features seen.
        seconds: That it took.
    """

    rows: int
    log_loss: float
    auc: float
    normalized_entropy: float
    feature_rate: float
    seconds: float

    def as_plain(self) -> dict[str, Any]:
        """Numbers, as JSON has them: null where one is not defined."""
        plain: dict[str, Any] = finite(asdict(self))
        return plain

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> "RungScore":
        """What `as_plain` described."""
        numbers: dict[str, Any] = {name: math.nan if value is None else value for name, value in content.items()}
        return cls(**numbers)


@dataclass(frozen=True)
class TrialRecord:
    """A trial.

    Attributes:
        number: From 0, which has the settings that the search began with.
        state: How it ended.
        settings: Dotted key → value, of what is searched; empty for trial 0, and where nothing was drawn yet.
        rungs: What it scored, from the fewest rows to the most.
    """

    number: int
    state: State
    settings: Mapping[str, Any]
    rungs: tuple[RungScore, ...]

    @property
    def last(self) -> RungScore | None:
        """What it scored on the most rows."""
        return self.rungs[-1] if self.rungs else None

    @property
    def seconds(self) -> float:
        """That all its rungs took."""
        return sum(rung.seconds for rung in self.rungs)

    def as_plain(self) -> dict[str, Any]:
        """What `--json` says of it."""
        last = {} if self.last is None else self.last.as_plain()
        return {
            "number": self.number,
            "state": self.state,
            **last,
            "seconds": round(self.seconds, 3),
            "settings": dict(self.settings),
        }


def best_of(trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """The trial of the lowest log loss among those that came to their end, the earliest of equals."""
    whole = [(trial.last.log_loss, trial.number, trial) for trial in trials if trial.state == "complete" and trial.last]
    return min(whole)[2] if whole else None


def trials_csv(trials: Sequence[TrialRecord], space: SearchSpace) -> str:
    """A line for each trial: how it ended, what it scored last, and its settings."""
    scored = ("rows", "log_loss", "auc", "normalized_entropy", "feature_rate")
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("trial", "state", *scored, "seconds", *space.keys))
    for trial in trials:
        last = {} if trial.last is None else trial.last.as_plain()
        plain = space.config(trial.settings).as_dict()
        sections = (key.split(".") for key in space.keys)
        settings = (shown_value(plain[section][name]) for section, name in sections)
        lines.writerow(
            (trial.number, trial.state, *(last.get(name) for name in scored), f"{trial.seconds:.3f}", *settings)
        )
    return text.getvalue()
