"""What is published of the public logs, beside what was read."""

from collections.abc import Iterator
from dataclasses import dataclass

from sparsegroup.data.log_manifest import LogManifest


@dataclass(frozen=True)
class PublicCounts:
    """Counts of a whole log, as the paper and the data sets' pages give them.

    Attributes:
        rows: Number of rows.
        features: Number of distinct features in all rows.
        training_features: Number of distinct features in the training rows.
        fields: Number of fields that the counts are of; with others the numbers do not compare.
    """

    rows: float
    features: float
    training_features: float
    fields: int


PUBLISHED = {
    "avazu": PublicCounts(40.43e6, 9.4e6, 8.7e6, 22),
    "criteo": PublicCounts(45.84e6, 33.8e6, 29.6e6, 26),
    "ipinyou": PublicCounts(19.5e6, 1033.1e3, 937.7e3, 16),
}
WHOLE = 0.9
"""Share of the published rows from which a log counts as whole."""
TOLERANCE = 0.01


def compare_with_published(manifest: LogManifest) -> Iterator[str]:
    """Lines that say how the counts of a whole public log compare; nothing for a part of one, or another log."""
    published = PUBLISHED.get(manifest.dataset)
    if published is None or len(manifest.fields) != published.fields or manifest.rows < WHOLE * published.rows:
        return
    counts = (
        ("rows", manifest.rows, published.rows),
        ("features", sum(n for n, _ in manifest.features.values()), published.features),
        ("training features", sum(n for _, n in manifest.features.values()), published.training_features),
    )
    for name, ours, theirs in counts:
        agrees = abs(ours - theirs) <= TOLERANCE * theirs
        yield f"{name}: {ours:,}, published {theirs:,.0f}" + (
            "" if agrees else f" ({ours / theirs - 1:+.1%}: not the same)"
        )
