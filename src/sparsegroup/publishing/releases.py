"""Releases of a model, their index `releases.json`, and the ways from one to another."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sparsegroup.artifact.manifest import FileFacts, FileName, FolderFormat, Manifest, Plain
from sparsegroup.artifact.validation import Count, Number, Real, finite
from sparsegroup.errors import UserError

ReleaseKind = Literal["export", "delta"]


class PublishError(UserError):
    """Releases that cannot be published or fetched. The message names the destination, and the file if it is one."""


@dataclass(frozen=True)
class Release:
    """A model that was published, as a whole export or as what leads to it from the release before.

    Attributes:
        number: 1, 2, …
        kind: "export" is whole, "delta" the way to one from `parent`.
        folder: Its name in the destination: "00000001-export"; in a store or in Redis with the suffix of its publisher.
        id: The id of the export that it leads to; two releases of the same model have the same.
        parent: Number of the release that a delta follows; None of a whole export.
        bytes: Size of all its files.
        files: Name of each file → size and digest.
        published: Seconds since 1970.
        samples: Rows learnt.
        learnt_until: Time of the newest learnt row by the log's own clock, in seconds since 1970; None if it has none.
        read_until: When the newest learnt row was read, in seconds since 1970; None if that is not known.
        run: What has published it; releases of one run are of one training. "" if that is not known.
        figures: Figures of the last rows by their names, such as auc, log_loss, calibration; NaN where undefined.
    """

    number: Count
    kind: ReleaseKind
    folder: FileName
    id: str
    parent: Count | None
    bytes: Count
    files: Mapping[FileName, FileFacts]
    published: Real
    samples: Count
    learnt_until: Real | None = None
    read_until: Real | None = None
    run: str = ""
    figures: Mapping[str, Number] = field(default_factory=dict)


def folder_of(number: int, kind: ReleaseKind) -> str:
    """Return the name of a release's folder, without the suffix of its publisher."""
    return f"{number:08d}-{kind}"


def is_folder_of(name: str) -> bool:
    """Return whether a name is the name of a release's folder."""
    return re.fullmatch(r"\d{8,}-(export|delta)(-[0-9a-f]{8})?", name) is not None


def is_superseded(name: str, releases: Sequence[Release]) -> bool:
    """Return whether a name is that of a release's folder, and the release is neither in `releases` nor newer."""
    newest = max((release.number for release in releases), default=0)
    is_listed = any(name == release.folder for release in releases)
    return is_folder_of(name) and not is_listed and int(name.partition("-")[0]) <= newest


@dataclass(frozen=True, kw_only=True)
class ReleaseIndex(Manifest):
    """The releases that a destination holds, by rising number; all that a delta builds on is among them."""

    releases: tuple[Release, ...] = ()

    def as_plain(self) -> Plain:
        """See `Manifest.as_plain`."""
        content: Plain = finite(super().as_plain())
        return content

    def check(self) -> None:
        """See `Manifest.check`."""
        known: set[int] = set()
        for place, release in enumerate(self.releases):
            at = f"releases.{place}"
            if release.number < 1 or release.number <= max(known, default=0):
                raise ValueError(f"{at}.number: {release.number} cannot follow {max(known, default=0)}")
            is_named_so = release.folder.startswith(folder_of(release.number, release.kind))
            if not is_named_so or not is_folder_of(release.folder):
                raise ValueError(f"{at}.folder: impossible {release.folder!r}")
            if release.kind == "delta" and release.parent not in known:
                raise ValueError(f"{at}.parent: there is no {release.parent}, which it follows")
            if release.kind == "export" and release.parent is not None:
                raise ValueError(f"{at}.parent: a whole export follows none")
            if release.bytes != sum(facts.bytes for facts in release.files.values()):
                raise ValueError(f"{at}.bytes: {release.bytes:,} is not the size of its files")
            known.add(release.number)


RELEASES = FolderFormat(
    name="releases",
    file="releases.json",
    version=1,
    manifest=ReleaseIndex,
    error=PublishError,
    missing="nothing is published there",
)
"""The format of a destination."""


def kept(releases: Sequence[Release], keep: int) -> list[int]:
    """The numbers of the last `keep` whole exports, and of all releases since the first of these."""
    exports = [release.number for release in releases if release.kind == "export"]
    first = exports[-keep:][0] if exports else 0
    return [release.number for release in releases if release.number >= first]


def ways_to(to: Release, releases: Sequence[Release], have: str | None) -> list[list[Release]]:
    """What can be fetched, in order, to get the model of a release: the least bytes first.

    Each way begins with a whole export, or with the first delta after the model whose id is `have`.
    """
    known = {release.number: release for release in releases}
    ways = []
    for from_export in (True, False):
        way: list[Release] = []
        at: Release | None = to
        while at is not None:
            if not from_export and at.id == have:
                ways.append(way)
                break
            if at.kind == "export" and from_export:
                ways.append([at, *way])
                break
            if at.kind == "export":  # the same model may have been published as a delta before
                at = _delta_to(at, releases)
            if at is not None:
                way.insert(0, at)
                at = known.get(at.parent or 0)
    return sorted(ways, key=lambda way: sum(release.bytes for release in way))


def _delta_to(export: Release, releases: Sequence[Release]) -> Release | None:
    before = (release for release in releases if release.number < export.number and release.kind == "delta")
    return next((release for release in before if release.id == export.id), None)


def growth(releases: Sequence[Release]) -> float:
    """The bytes of the deltas since the last whole export, in parts of that one's; infinite if there is none."""
    exports = [release for release in releases if release.kind == "export"]
    if not exports:
        return math.inf
    deltas = sum(release.bytes for release in releases if release.number > exports[-1].number)
    return deltas / exports[-1].bytes


def deltas_since(releases: Sequence[Release]) -> int:
    """How many deltas have followed the last whole export."""
    last = max((release.number for release in releases if release.kind == "export"), default=0)
    return sum(release.number > last for release in releases)
