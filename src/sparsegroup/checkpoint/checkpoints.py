"""A folder of checkpoints: the last few are kept, and what they build on."""

import re
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from sparsegroup.artifact.chain import chain_of, verified_chain
from sparsegroup.artifact.file_facts import check_size
from sparsegroup.artifact.whole_folder import remove_folder, remove_leftovers
from sparsegroup.checkpoint.checkpoint_error import CheckpointError
from sparsegroup.checkpoint.checkpoint_manifest import CHECKPOINT, CheckpointManifest
from sparsegroup.checkpoint.checkpoint_ranks import CheckpointRanks
from sparsegroup.checkpoint.training_state import (
    LoadResult,
    Optimizers,
    is_tracked,
    load_checkpoint,
    save_checkpoint,
)

_NAME = "step-{:012d}"
_NAMES = re.compile(r"step-\d{12}")


class Checkpoints:
    """The checkpoints of one training.

    The first holds all rows of the tables. Later ones hold the rows that have changed since the one before, and need
    those before them; when the changes together outweigh the base, all rows are written again.

    Args:
        folder: Is made with the first one.
        keep: How many to keep, ≥ 1: the last ones, and what they are changes to.
        incremental: Whether to write changes. If not, each holds all rows.

    Attributes:
        pinned: Step of one that is kept however old it is: the best so far, say. None for none.
        skipped: Why `latest` passed over newer ones.

    Raises:
        ValueError: `keep` is less than 1.

    Examples:
        >>> import tempfile, torch
        >>> from sparsegroup import GroupAdam, HashEmbedding
        >>> table = HashEmbedding(4)
        >>> optimizer = GroupAdam(table.parameters())
        >>> vectors = table(torch.arange(3))
        >>> from sparsegroup.checkpoint import Checkpoints, load_checkpoint
        >>> checkpoints = Checkpoints(tempfile.mkdtemp())
        >>> checkpoints.save(1, table, optimizer).name
        'step-000000000001'
        >>> again = HashEmbedding(4)
        >>> load_checkpoint(checkpoints.latest(), again, GroupAdam(again.parameters())).step
        1
        >>> torch.equal(again.lookup(torch.arange(3)), vectors)
        True
    """

    def __init__(self, folder: str | Path, *, keep: int = 2, incremental: bool = True) -> None:
        if keep < 1:
            raise ValueError(f"keep must be >= 1, got {keep}")
        self.folder = Path(folder)
        self.keep = keep
        self.incremental = incremental
        self.pinned: int | None = None
        self.skipped: list[CheckpointError] = []
        self._chain: list[tuple[Path, CheckpointManifest]] = []

    def paths(self) -> list[Path]:
        """Those that there are, the oldest first, whole or damaged."""
        return sorted(path for path in self.folder.glob("step-*") if _NAMES.fullmatch(path.name) and path.is_dir())

    def of_step(self, step: int) -> Path:
        """The path of the one of a step, whether it is there or not."""
        return self.folder / _NAME.format(step)

    def save(
        self,
        step: int,
        model: nn.Module,
        optimizer: Optimizers = None,
        scheduler: LRScheduler | None = None,
        *,
        extra: Any = None,
        whole: bool = False,
    ) -> Path:
        """Write one more, and remove those that are not to be kept.

        Args:
            step: The training step; later ones are larger.
            model, optimizer, scheduler, extra: See `save_checkpoint`.
            whole: Write all rows, whatever has changed.

        Raises:
            CheckpointError, OSError: See `save_checkpoint`, and where one of a later step is there. All stay.
        """
        folder, ranks = self.of_step(step), CheckpointRanks.of(model, "writing a checkpoint")
        ranks.do(lambda: None if ranks.rank else self._make_way(step))
        follows = self._chain[-1] if self._chain and self.incremental and not whole else None
        if follows is None or not self._is_worth_following() or not is_tracked(model, follows[1].id):
            follows = None
        if not ranks.agree_on(None if follows is None else follows[1].id):
            follows = None
        if follows is None:
            self._chain = []
        parent = None if follows is None else follows[0]
        manifest = save_checkpoint(
            folder, model, optimizer, scheduler, step=step, extra=extra, parent=parent, track=self.incremental
        )
        self._chain.append((folder, manifest))
        ranks.do(lambda: None if ranks.rank else self._prune())
        return folder

    def load(
        self, path: Path, model: nn.Module, optimizer: Optimizers = None, scheduler: LRScheduler | None = None
    ) -> LoadResult:
        """Load one of them, to go on from it: the next one may hold only what has changed since.

        What other ranks have written is not followed by changes: the next one then holds all rows.

        Args:
            path: As `latest` gave it.
            model, optimizer, scheduler: See `load_checkpoint`.

        Raises:
            CheckpointError, MemoryError: See `load_checkpoint`.
        """
        loaded = load_checkpoint(path, model, optimizer, scheduler, track=self.incremental)
        self._chain = chain_of(path, CHECKPOINT)
        return loaded

    def tidy(self) -> None:
        """Remove what a `save` that was cut off when its checkpoint was in place has left."""
        remove_leftovers(self.folder)
        self._prune()

    def _is_worth_following(self) -> bool:
        base, *changes = [manifest for _, manifest in self._chain]
        return bool(base.tables) and sum(manifest.bytes for manifest in changes) <= base.bytes

    def _make_way(self, step: int) -> None:
        """Remove what was left by one that was cut off, and damaged ones of later steps."""
        remove_leftovers(self.folder)
        for path in self.paths():
            if path.name >= self.of_step(step).name:
                self._give_way(path, step)

    def _give_way(self, path: Path, step: int) -> None:
        try:
            verified_chain(path, CHECKPOINT)
        except CheckpointError:
            remove_folder(path)
        else:
            raise CheckpointError(f"{path}: is there already, and step {step:,} does not come after it")

    def _prune(self) -> None:
        """Remove what is older than all that is kept; a damaged one stays until then, for someone to look at.

        Those whose files are missing or too short, or whose chain does not fit together, are not counted.
        """
        parents: dict[str, str | None] = {}
        for path in self.paths():
            with suppress(CheckpointError):
                for folder, manifest in chain_of(path, CHECKPOINT):
                    for name, facts in manifest.files.items():
                        check_size(folder / name, facts, CheckpointError)
                parents[path.name] = None if manifest.parent is None else PurePosixPath(manifest.parent.path).name
        wanted: set[str] = set()
        pinned = [] if self.pinned is None else [self.of_step(self.pinned).name]
        for name in sorted(parents)[-self.keep :] + pinned:
            ancestor: str | None = name
            while ancestor is not None and ancestor not in wanted:
                wanted.add(ancestor)
                ancestor = parents.get(ancestor)
        if len(wanted & parents.keys()) < self.keep:
            return
        oldest = sorted(parents)[-self.keep]
        for path in reversed(self.paths()):  # what is built on goes last
            if path.name not in wanted and path.name < oldest:
                remove_folder(path)

    def latest(self) -> Path | None:
        """The newest one whose files are all as they were written; None if there is none.

        Why newer ones were passed over is in `skipped`.
        """
        self.skipped = []
        for path in reversed(self.paths()):
            try:
                verified_chain(path, CHECKPOINT)
            except CheckpointError as error:
                self.skipped.append(error)
            else:
                return path
        return None
