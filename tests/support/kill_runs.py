"""Training runs that are killed and resumed, through `kill_driver`; and what must be the same afterwards."""

import json
import select
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from run_folders import state_of
from sparsegroup.training.run_folder import RunFolder, find_run

KILLED = -9
_PATIENCE = 120.0
_DIFFERS = ("seconds", "samples_per_s", "started", "written", "id", "parent", "checksum", "python", "numpy")
"""Times, random numbers that no run draws and none seeds, and digests of them."""


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        code: Exit status, `KILLED` if it was.
        operations: On the disk; None of one that was killed.
        seconds: That it took.
        output: What it said.
    """

    code: int
    operations: list[str] | None
    seconds: float
    output: str


class Driver:
    """The process that forks the runs. To be closed."""

    def __init__(self, folder: Path) -> None:
        program = Path(__file__).with_name("kill_driver.py")
        with (folder / "driver.txt").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, program, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )

    def run(
        self,
        folder: Path,
        *arguments: object,
        at: int | None = None,
        how: str = "before",
        kill_after: float | None = None,
    ) -> Ended:
        """Run `sparsegroup` with `arguments` in `folder`; see `kill_driver.Faults` for where it is killed."""
        request = {"folder": str(folder), "arguments": list(map(str, arguments)), "at": at, "how": how}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**request, "kill_after": kill_after}).encode() + b"\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], _PATIENCE)
        assert ready, f"no answer to {request}"
        return Ended(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(_PATIENCE)
        self._process.stdout.close()


@dataclass(frozen=True)
class Scene:
    """A command, what it finds, and what it leaves behind when nothing disturbs it.

    Attributes:
        driver: That runs it.
        before: The folder as the command finds it.
        command: Its arguments; the run is to be in `run`.
        operations: Of the command, undisturbed.
        seconds: That it takes.
        outcome: See `outcome_of`.
    """

    driver: Driver
    before: Path
    command: Sequence[object]
    operations: Sequence[str]
    seconds: float
    outcome: dict[str, Any]

    @classmethod
    def of(cls, driver: Driver, before: Path, *command: object) -> "Scene":
        place = before.with_name("undisturbed")
        shutil.copytree(before, place)
        driver.run(place, *command)  # what is done once only, like caches
        shutil.rmtree(place)
        shutil.copytree(before, place)
        ended = driver.run(place, *command)
        assert ended.code == 0, ended.output
        assert ended.operations is not None
        return cls(driver, before, command, ended.operations, ended.seconds, outcome_of(place / "run"))

    def killed(self, *faults: dict[str, Any]) -> Path:
        """The folder of the run, killed by the first fault, then by the others when it is resumed, then resumed."""
        place = self.before.with_name("killed")
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.before, place)
        self.driver.run(place, *self.command, **faults[0])
        if (self.before / "run").exists():  # whoever reads it finds a whole run at any moment
            assert RunFolder(find_run(place / "run")).is_complete
        for fault in faults[1:]:
            self.driver.run(place, "train", "--resume", "run", *_threads(self.command), **fault)
        self.resume(place)
        return place / "run"

    def resume(self, place: Path) -> None:
        """Resume until the run is complete; one that had not begun is begun by the same command."""
        old = _old_run(self.before / "run")
        ended = self.driver.run(place, "train", "--resume", "run", *_threads(self.command))
        if ended.code == 2 and "no run has begun there" in ended.output:
            assert old is None
        elif old is None or outcome_of(place / "run", old=True) != old:
            assert ended.code == 0, ended.output
            return
        ended = self.driver.run(place, *self.command)
        assert ended.code == 0, ended.output

    def check(self, *faults: dict[str, Any]) -> None:
        """Kill and resume; all must be as if nothing had happened."""
        differing = differences(self.outcome, outcome_of(self.killed(*faults)))
        assert not differing, f"after {[{**f, 'operation': self._name(f)} for f in faults]}: {differing}"

    def _name(self, fault: dict[str, Any]) -> str | None:
        at = fault.get("at")
        return self.operations[at] if at is not None and at < len(self.operations) else None

    def faults(self, thorough: bool) -> list[dict[str, Any]]:
        """One for each operation: before it, in the middle and after it.

        If not `thorough`, those are left out that find the disk as another one does.
        """
        before = [
            {"at": at, "how": "before"}
            for at in range(len(self.operations))
            if thorough or not at or self.operations[at - 1] not in _LEAVE_THE_DISK
        ]
        middle = [{"at": at, "how": "middle"} for at, name in enumerate(self.operations) if name.endswith("…")]
        after = [{"at": at, "how": "after"} for at in range(len(self.operations))]
        return before + middle + (after if thorough else after[-1:])


_LEAVE_THE_DISK = ("sync", "write_text …", "append_point …", "copyfile …")
"""As it is, when they begin with another operation that does not."""


def _threads(command: Sequence[object]) -> Sequence[object]:
    if "--threads" not in command:
        return ()
    at = list(command).index("--threads")
    return command[at : at + 2]


def _old_run(run: Path) -> dict[str, Any] | None:
    return outcome_of(run, old=True) if (run / "summary.json").exists() else None


def outcome_of(run: Path, *, old: bool = False) -> dict[str, Any]:
    """All that a run leaves behind, apart from what differs between any two.

    Of an `old` one, that a new one is to replace, only its own files.
    """
    if not (run / "summary.json").exists():
        return {}
    content: dict[str, Any] = {
        name: _comparable(json.loads((run / name).read_text()))
        for name in ("summary.json", "columns.json", "provenance.json")
    }
    content["summary.json"].pop("files", None)  # digests of times
    history = (run / "metrics.jsonl").read_text().splitlines()
    content["metrics.jsonl"] = [_comparable(json.loads(line)) for line in history]
    content["config.yaml"] = (run / "config.yaml").read_text()
    last = RunFolder(run).last_checkpoint()
    content["checkpoint.json"] = _comparable(json.loads((last / "checkpoint.json").read_text()))
    content["checkpoint.json"].pop("files", None)  # their checksums are compared as bytes
    content |= state_of(run)
    if not old:
        content["names"] = sorted(str(path.relative_to(run)) for path in run.rglob("*"))
    return content


def _comparable(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _comparable(value) for name, value in content.items() if name not in _DIFFERS}
    return [_comparable(item) for item in content] if isinstance(content, list) else content


def differences(expected: dict[str, Any], got: dict[str, Any]) -> list[str]:
    """What differs, in words."""
    words = []
    for name in expected.keys() | got.keys():
        ours, theirs = expected.get(name), got.get(name)
        if ours != theirs:
            is_short = name == "names" and ours is not None and theirs is not None
            words.append(f"{name}: {sorted(set(ours) ^ set(theirs))}" if is_short else name)
    return words
