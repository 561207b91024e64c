"""Publishing while a model learns: every so often, in another thread, and only what is no worse than what is served."""

import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic
from typing import Any

from torch import Tensor

from sparsegroup.data.batches import Batch
from sparsegroup.errors import UserError
from sparsegroup.objectives import Objective
from sparsegroup.publishing import Publisher, Release
from sparsegroup.serving import Export, TrainedModel
from sparsegroup.streaming.gate import Gate, Rows, Verdict

_logger = logging.getLogger(__name__)


class Publication:
    """Publishes a model that learns.

    Args:
        publisher: Publishes it.
        objective: What the model learns.
        run: Id of the run: after a kill, rows are learnt again that its last release has learnt.
        every: Seconds between two releases, at least.
        gate_rows: Rows by which a model is compared with the one that is served, see `Gate`; 0 for no comparison.

    Attributes:
        gate: Takes the rows that are learnt.
        releases: Number of releases so far, by this process.
        bytes: Bytes of them.
        refused: Models that were not published, because they were worse.
        why: Why the last model was not published, or ""; also if it could not be.
    """

    def __init__(
        self,
        publisher: Publisher,
        objective: Objective,
        run: str = "",
        *,
        every: float = 30.0,
        gate_rows: int = 20_000,
    ) -> None:
        self.publisher, self.every = publisher, every
        latest = publisher.latest
        self._learnt = latest.samples if latest is not None and run and latest.run == run else 0
        if self._learnt:
            _logger.info(f"the next release comes after the {self._learnt:,} rows that the last one has learnt")
        self.gate = Gate(objective, gate_rows)
        self.releases = self.bytes = self.refused = 0
        self.why = ""
        self._pool = ThreadPoolExecutor(1, "sparsegroup-publisher")
        self._under_way: tuple[Future[bool], Rows] | None = None
        self._started, self._samples = -float("inf"), -1

    @property
    def latest(self) -> Release | None:
        """The release that is served."""
        return self.publisher.latest

    def is_due(self, samples: int) -> bool:
        """Whether it is time for a model of `samples` learnt rows: it has learnt some, and none is on its way."""
        if self._under_way is not None and self._under_way[0].done():
            self.wait()
        return self._under_way is None and self.is_newer(samples) and monotonic() - self._started >= self.every

    def is_newer(self, samples: int) -> bool:
        """Whether a model of `samples` learnt rows has learnt more than what was published, and than nothing."""
        return samples > self._learnt and samples != self._samples

    def add(self, batch: Batch, logits: Tensor, samples: int) -> None:
        """Take a batch that has been learnt, with its logits before that, for the gate.

        `samples` are the rows that have been learnt. The served model must not have learnt them as well.
        """
        if samples > self._learnt:
            self.gate.add(batch, logits)

    def start(self, trained: TrainedModel, facts: Mapping[str, Any]) -> None:
        """Publish the model of this moment; only a copy of its rows is made before this returns."""
        self.wait()
        self._started, self._samples = monotonic(), facts["samples"]
        try:
            draft = self.publisher.draft(trained)
        except Exception as error:  # training continues
            self._fail(error, facts)
            return
        rows = self.gate.take()
        self._under_way = self._pool.submit(self._publish, draft, rows, facts), rows

    def wait(self) -> None:
        """Wait until the model on its way is published or refused."""
        if self._under_way is not None:
            done, rows = self._under_way
            self._under_way = None
            if not done.result():
                self.gate.give_back(rows)

    def close(self) -> None:
        """End the thread, and let other processes publish there."""
        self._pool.shutdown()
        self.publisher.close()

    def _publish(self, draft: Export, rows: Rows, facts: Mapping[str, Any]) -> bool:
        """Whether the model is served by now."""
        try:
            verdict = self._judged(draft, rows)
            if not verdict.is_accepted:
                self.refused += 1
                self.why = f"the model of {facts['samples']:,} rows is not published: {verdict.why}"
                _logger.warning(self.why)
                return False
            before = 0 if self.latest is None else self.latest.number
            self.publisher.publish(draft, **facts, figures=verdict.figures)
        except Exception as error:  # the destination is away or full, say: the next release has it all
            self._fail(error, facts)
            return self.latest is not None and self.latest.samples == facts["samples"]
        self.why = ""
        for release in [one for one in self.publisher.releases if one.number > before]:
            self.releases += 1
            self.bytes += release.bytes
            _logger.info(
                f"release {release.number}: {release.kind} of {release.bytes:,} bytes, {release.samples:,} rows"
            )
        return True

    def _fail(self, error: Exception, facts: Mapping[str, Any]) -> None:
        kind = "" if isinstance(error, UserError | OSError) else f"{type(error).__name__}: "
        self.why = f"the model of {facts['samples']:,} rows could not be published: {kind}{error}"
        _logger.warning(self.why)
        self._samples = -1

    def _judged(self, draft: Export, rows: Rows) -> Verdict:
        served = self.publisher.served
        if served is not None and served.manifest.columns != draft.manifest.columns:
            served = None  # it cannot predict these rows
        return self.gate.judge(rows, draft.model(), None if served is None else served.model())
