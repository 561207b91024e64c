"""`summary.json`: what a run came to. It is written last: a folder without it holds no whole run."""

from dataclasses import asdict, dataclass
from typing import Self

from sparsegroup.artifact.manifest import FolderFormat, Manifest, Plain
from sparsegroup.artifact.validation import finite, validated
from sparsegroup.reporting.run_record import Summary
from sparsegroup.training.run_error import RunError

SUMMARY = "summary.json"


@dataclass(frozen=True, kw_only=True)
class RunManifest(Manifest):
    """What a whole run holds. Its files are those that are read again; settings may be edited, and are none of them.

    Attributes:
        summary: What the run came to.
    """

    summary: Summary

    def as_plain(self) -> Plain:
        """See `Manifest.as_plain`."""
        content: Plain = finite(asdict(self.summary))
        return content

    @classmethod
    def from_plain(cls, content: Plain) -> Self:
        """See `Manifest.from_plain`."""
        header = {name: content.pop(name) for name in cls.HEADER}
        return super().from_plain({**header, "summary": validated(Summary, content)})

    def check(self) -> None:
        """See `Manifest.check`."""
        for name, rows in self.summary.fields.items():
            if not 0 <= rows.live <= rows.rows or rows.seen < 0:
                raise ValueError(f"fields.{name}: {rows.live:,} live of {rows.rows:,} rows, {rows.seen:,} seen")


RUN = FolderFormat(
    name="run",
    file=SUMMARY,
    version=1,
    manifest=RunManifest,
    error=RunError,
    missing="no run",
)
"""The format of runs."""
