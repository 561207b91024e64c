"""The results of runs on disk, each in a file of its own: what has been run once is not run again."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from sparsegroup.artifact import write_atomically
from sparsegroup_paper.runs import Outcome, Run, Survivors


class Results:
    """A folder of outcomes: `KEY.json`, written last, and `KEY.npy`, the resampled AUCs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def __contains__(self, run: Run) -> bool:
        return self._path(run, "json").exists()

    def __getitem__(self, run: Run) -> Outcome:
        """The outcome of a run.

        Raises:
            KeyError: It has not been run.
        """
        try:
            content = json.loads(self._path(run, "json").read_text())["outcome"]
        except FileNotFoundError:
            raise KeyError(run) from None
        content["survivors"] = tuple(Survivors(**one) for one in content["survivors"])
        return Outcome(**content, resampled=np.load(self._path(run, "npy")))

    def __setitem__(self, run: Run, outcome: Outcome) -> None:
        content = asdict(outcome)
        content["resampled"] = np.asarray(content["resampled"], np.float32)
        resampled = content.pop("resampled")
        text = json.dumps({"run": run.as_dict(), "outcome": content}, indent=1) + "\n"

        def save(path: Path) -> None:
            with path.open("wb") as file:
                np.save(file, resampled)

        write_atomically(self._path(run, "npy"), save)
        write_atomically(self._path(run, "json"), lambda path: path.write_text(text))

    def seconds(self) -> float:
        """Computing time of all runs, in seconds."""
        return sum(float(json.loads(path.read_text())["outcome"]["seconds"]) for path in self._outcomes())

    def __len__(self) -> int:
        return sum(1 for _ in self._outcomes())

    def _outcomes(self) -> Iterable[Path]:
        return self.folder.glob("[!.]*.json")

    def _path(self, run: Run, kind: str) -> Path:
        return self.folder / f"{run.key}.{kind}"
