"""Whether a model is good enough to be published: it must not be worse than the one that is served."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sparsegroup.data.batches import Batch
from sparsegroup.objectives import Objective
from sparsegroup.training.assessment.verdict import by_block
from sparsegroup.training.metrics import exceeds_noise, has_sums
from sparsegroup.training.model import LookupModel
from sparsegroup.training.predictions import PredictionWindow, predict

Float64s = npt.NDArray[np.float64]
Rows = tuple[tuple[Batch, Tensor], ...]
"""Batches `[n]`, each with the logits that it had before it was learnt."""

ERRORS = 3.0
"""Standard errors by which a loss must be higher to be surely higher."""

_OFF = math.log(1.2)
"""How far off a calibration may be, as |ln|, and what chance explains: while a model learns, its level moves."""


@dataclass(frozen=True)
class Verdict:
    """Whether a model may be published, and why not; and figures of it on the last rows."""

    is_accepted: bool
    why: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


class Gate:
    """The rows since the last publication, with what the model that learns predicted for each before it learnt it.

    The model that is served has not learnt them either, so their losses can be compared row by row.

    Args:
        objective: What the models learn.
        rows: How many rows to keep, the last ones; 0 accepts every model.
    """

    def __init__(self, objective: Objective, rows: int = 20_000) -> None:
        self.objective, self.rows = objective, rows
        self._kept: deque[tuple[Batch, Tensor]] = deque()
        self._count = 0

    def add(self, batch: Batch, logits: Tensor) -> None:
        """Take a batch `[n]` and the logits that it had before it was learnt."""
        if not self.rows:
            return
        self._kept.append((batch, logits))
        self._count += len(batch)
        while self._count - len(self._kept[0][0]) >= self.rows:
            self._count -= len(self._kept.popleft()[0])

    def take(self) -> Rows:
        """All rows so far, which are forgotten: a model that has learnt them is on its way to be served."""
        rows = tuple(self._kept)
        self._kept.clear()
        self._count = 0
        return rows

    def give_back(self, rows: Rows) -> None:
        """Keep rows that were taken: the model is not served."""
        later = self.take()
        for batch, logits in (*rows, *later):
            self.add(batch, logits)

    def judge(self, rows: Rows, candidate: LookupModel, served: LookupModel | None) -> Verdict:
        """Whether a candidate may take the place of the served model, None if there is none, by some rows.

        It may not if the predictions that were made before learning, or the candidate's own, which has learnt the rows,
        have surely a higher loss than the served model's (by 3 standard errors of the rows' differences), or a
        calibration that is worse, and surely below .83 or above 1.2.
        """
        if not rows:
            return Verdict(True)
        before = PredictionWindow(self.objective)
        for batch, logits in rows:
            before.add(batch, logits)
        known = {name: float(value) for name, value in vars(before.metrics()).items() if isinstance(value, float)}
        figures = {"rows": float(before.samples), **{name: one for name, one in known.items() if math.isfinite(one)}}
        if served is None:
            return Verdict(True, figures=figures)
        batches = [batch for batch, _ in rows]
        old = predict(served, batches)
        figures |= {"served_loss": old.metrics().loss}
        for name, new in (("before it learnt them", before), ("after it has learnt them", predict(candidate, batches))):
            if why := self._worse(old, new):
                return Verdict(False, f"for the last {before.samples:,} rows, {name}, {why}", figures)
        return Verdict(True, figures=figures)

    def _worse(self, old: PredictionWindow, new: PredictionWindow) -> str:
        """What is worse about new predictions, in words; "" if nothing surely is."""
        differences = self._losses(new) - self._losses(old)
        if exceeds_noise(differences[~np.isnan(differences)], ERRORS):
            return f"its loss is {new.metrics().loss:.4f} and the served model's {old.metrics().loss:.4f}"
        if not has_sums(self.objective):
            return ""
        weights = new.weights()
        counts = np.ones(new.samples) if weights is None else weights.astype(np.float64)
        labels = new.labels().astype(np.float64)
        total, error = float(counts @ labels), math.sqrt(float(counts**2 @ labels**2))
        sums = [float(counts @ one.probabilities()) for one in (old, new)]
        if not total > 0 or not min(sums) > 0:
            return ""
        off = [max(0.0, abs(math.log(one / total)) - ERRORS * error / total) for one in sums]
        if off[1] > max(off[0], _OFF):
            return f"its calibration is {sums[1] / total:.2f} and the served model's {sums[0] / total:.2f}"
        return ""

    def _losses(self, window: PredictionWindow) -> Float64s:
        """The loss `[n]` of each row, times its weight; of several tasks or of groups, of each block of rows."""
        if self.objective.tasks or self.objective.takes_groups:
            return np.array([one.loss for one in by_block(window, window.probabilities())])
        losses = self.objective.deviance(window.labels().astype(np.float64), window.probabilities())
        weights = window.weights()
        return losses if weights is None else losses * weights
