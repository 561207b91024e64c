"""Teaching a baseline beside a training, in the thread that computes the metrics."""

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from sparsegroup.data.batches import Batch
from sparsegroup.training.baseline import LogisticBaseline
from sparsegroup.training.baseline_merge import merged_baseline
from sparsegroup.training.evaluation import PredictionWindow
from sparsegroup.training.rank_group import RankGroup

_WAITING = 1 << 15
"""Samples that may wait."""


class BaselineLessons:
    """What a baseline still has to learn.

    Args:
        baseline: The one to teach; None is taught nothing.
    """

    def __init__(self, baseline: LogisticBaseline | None) -> None:
        self.baseline = baseline
        self._waiting: deque[Future[None]] = deque()

    def give(self, thread: ThreadPoolExecutor, batch: Batch, window: PredictionWindow) -> None:
        """Let `thread` predict a batch for its window, and learn from it: in order, before the window's metrics."""
        if (baseline := self.baseline) is None or not len(batch):
            return
        self._waiting.append(thread.submit(lambda: window.add_baseline(baseline.learn(batch))))
        while len(self._waiting) > max(1, _WAITING // len(batch)):
            self._waiting.popleft().result()

    def wait(self) -> None:
        """Until all is learnt."""
        while self._waiting:
            self._waiting.popleft().result()

    def merge(self, ranks: RankGroup) -> None:
        """Let all ranks have one baseline, of what each has taught its own; see `merged_baseline`."""
        if self.baseline is not None and not ranks.is_alone:
            self.baseline.load_state_dict(merged_baseline(ranks.of_all([self.baseline.state_dict()], "baselines")))

    def state_dict(self) -> dict[str, Any] | None:
        """The baseline's, when all is learnt; None without one."""
        self.wait()
        return None if self.baseline is None else self.baseline.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Go on from a state. None, of a training that had no baseline, leaves it out: it would have learnt less."""
        if state is None:
            self.baseline = None
        elif self.baseline is not None:
            self.baseline.load_state_dict(state)
