"""The labels of a stream that is trained on or measured: 0 and 1."""

from collections.abc import Iterable, Iterator

from sparsegroup.data.batches import Batch
from sparsegroup.training.evaluation import Sample, as_batch


def with_checked_labels(stream: Iterable[Sample]) -> Iterator[Batch]:
    """The batches of a stream.

    Raises:
        ValueError: A label that is neither 0 nor 1; the error names its value, batch and row.
    """
    for number, batch in enumerate(map(as_batch, stream)):
        labels = batch.labels
        if not labels.bool().to(labels.dtype).equal(labels):
            row = int((labels.bool() != labels).flatten().nonzero()[0])
            raise ValueError(
                f"labels must be 0 or 1, got {labels.flatten()[row].item():g} in row {row} of batch {number} of the "
                "stream (both from 0)"
            )
        yield batch
