"""Publishing while a model learns: every so often, in another thread, and only what is no worse than what is served."""

import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
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
        source: The run, as its exports name it: after a kill, rows are learnt again that its last release has learnt.
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
        source: Path | str = "",
        *,
        every: float = 30.0,
        gate_rows: int = 20_000,
    ) -> None:
        self.publisher, self.every = publisher, every
        self._learnt = 0
        if publisher.served is not None and publisher.latest is not None:
            is_ours = publisher.served.manifest.source == str(source)
            self._learnt = publisher.latest.samples if is_ours else 0
        self.gate = Gate(objective, gate_rows)
        self.releases = self.bytes = self.refused = 0
        self.why = ""
        self._pool = ThreadPoolExecutor(1, "sparsegroup-publisher")
        self._under_way: Future[None] | None = None
        self._begun, self._samples = -float("inf"), -1

    @property
    def latest(self) -> Release | None:
        """The release that is served."""
        return self.publisher.latest

    def is_due(self, samples: int) -> bool:
        """Whether it is time for a model of `samples` learnt rows: it has learnt some, and none is on its way."""
        is_busy = self._under_way is not None and not self._under_way.done()
        return not is_busy and self.is_newer(samples) and monotonic() - self._begun >= self.every

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
        self._begun, self._samples = monotonic(), facts["samples"]
        draft, rows = self.publisher.draft(trained), self.gate.take()
        self._under_way = self._pool.submit(self._publish, draft, rows, facts)

    def wait(self) -> None:
        """Wait until the model on its way is published or refused."""
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None

    def close(self) -> None:
        """End the thread, and let other processes publish there."""
        self._pool.shutdown()
        self.publisher.close()

    def _publish(self, draft: Export, rows: Rows, facts: Mapping[str, Any]) -> None:
        try:
            verdict = self._judged(draft, rows)
            if not verdict.is_accepted:
                self.refused += 1
                self.why = f"the model of {facts['samples']:,} rows is not published: {verdict.why}"
                _logger.warning(self.why)
                self.gate.give_back(rows)
                return
            release = self.publisher.publish(draft, **facts, figures=verdict.figures)
        except (UserError, OSError) as error:  # the destination is away or full: the next release has it all
            self.why = f"the model of {facts['samples']:,} rows could not be published: {error}"
            _logger.warning(self.why)
            self.gate.give_back(rows)
            self._samples = -1
            return
        self.why = ""
        if release is not None:
            self.releases += 1
            self.bytes += release.bytes
            _logger.info(
                f"release {release.number}: {release.kind} of {release.bytes:,} bytes, {release.samples:,} rows"
            )

    def _judged(self, draft: Export, rows: Rows) -> Verdict:
        served = self.publisher.served
        return self.gate.judge(rows, draft.model(), None if served is None else served.model())
