"""`study.json`: what a study searches, and on what; it is written when the study begins, and never changed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, Strict

from sparsegroup.artifact.manifest import FolderFormat, Manifest, Plain
from sparsegroup.artifact.validation import Count
from sparsegroup.data.log import Log
from sparsegroup.errors import UserError
from sparsegroup.settings.yaml_settings import checked
from sparsegroup.training.config import Config
from sparsegroup.tuning.search_space import SearchSpace

STUDY_FILE = "study.json"


class TuningError(UserError):
    """A folder that holds no study, or a study that does not fit what is asked of it."""


@dataclass(frozen=True, kw_only=True)
class StudyManifest(Manifest):
    """What a study searches, and on what.

    Attributes:
        log: Name of the log, for messages.
        rows, train_rows, source: The log's rows, its training rows, and what `Log.identity` says of it.
        config: The settings that the search begins with, all of them.
        given: Dotted key → value of those that were given; the others were decided for the log.
        arguments: What the command line named: the log's paths, or a file of settings.
        space: What is searched, as `SearchSpace.as_plain` has it.
        part: Training rows that trials are trained and measured on, the last ones.
        held_out: Those of them that they are measured on, the last ones.
        steps: The rungs, see `Rungs`.
        seed: The seed of what is drawn.
    """

    log: str
    rows: Count
    train_rows: Count
    source: Mapping[str, Any] | None
    config: Mapping[str, Any]
    given: Mapping[str, Any] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    space: list[Plain]
    part: Count
    held_out: Count
    steps: tuple[Count, ...]
    seed: Annotated[int, Strict(), Field(ge=0, lt=1 << 64)]

    @classmethod
    def of(
        cls,
        log: Log,
        space: SearchSpace,
        *,
        part: int,
        held_out: int,
        steps: tuple[int, ...],
        given: Mapping[str, Any],
        arguments: tuple[str, ...] = (),
    ) -> Self:
        """What a study says that begins on `log`; see the attributes."""
        return cls(
            log=log.name,
            rows=len(log),
            train_rows=log.train_rows,
            source=log.identity,
            config=space.base.as_dict(),
            given=given,
            arguments=arguments,
            space=space.as_plain(),
            part=part,
            held_out=held_out,
            steps=steps,
            seed=space.base.training.seed,
        )

    def check(self) -> None:
        """See `Manifest.check`."""
        if not self.steps or list(self.steps) != sorted({*self.steps} - {0}):
            raise ValueError(f"steps: rising numbers are expected, got {list(self.steps)}")
        for name in self.given:
            section, _, key = name.partition(".")
            if key not in self.config.get(section, ()):
                raise ValueError(f"given.{name}: is not in config")

    def base(self, folder: Path) -> Config:
        """The settings that the search begins with.

        Raises:
            SettingsError: This version does not know them any more.
        """
        return checked(Config, self.config, str(folder / STUDY_FILE))

    def check_log(self, folder: Path, log: Log) -> None:
        """Raise TuningError unless `log` is the one that the study began on."""
        source = json.loads(json.dumps(log.identity))
        if (len(log), log.train_rows, source) != (self.rows, self.train_rows, self.source):
            raise TuningError(
                f"{folder}: {log.name} is not what it was when the study began on {self.log}, so that its trials "
                "cannot be compared with new ones; begin another study"
            )

    def check_space(self, folder: Path, space: SearchSpace) -> None:
        """Raise TuningError unless `space` is the one that the study searches."""
        if json.loads(json.dumps(space.as_plain())) != self.space:
            raise TuningError(
                f"{folder}: the study searches another space than this version ({self.written_by} began it); begin "
                "another study"
            )


STUDY = FolderFormat(
    name="study",
    file=STUDY_FILE,
    version=1,
    manifest=StudyManifest,
    error=TuningError,
    missing="no study of `tune`",
)
"""The format of studies."""
