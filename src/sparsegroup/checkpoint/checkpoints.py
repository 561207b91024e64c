"""A folder of checkpoints: the last few are kept, and what they build on."""

import re
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from sparsegroup.artifact.folder import remove_folder, remove_leftovers
from sparsegroup.artifact.manifest import chain_of, check_size, verified_chain
from sparsegroup.checkpoint.load import LoadResult, load_checkpoint
from sparsegroup.checkpoint.manifest import CHECKPOINT, CheckpointError, CheckpointManifest, CheckpointRanks, Optimizers
from sparsegroup.checkpoint.save import are_tracked, save_checkpoint

_NAME = "step-{:012d}"
_NAMES = re.compile(r"step-\d{12}")


class Checkpoints:
    """The checkpoints of one training.

    The first holds all rows of the tables. Later ones hold the rows that have changed since the one before, and need
    those before them; when the changes together outweigh the base, all rows are written again.

    Args:
        folder: Created with the first checkpoint.
        keep: How many to keep, ≥ 1: the last ones, and those whose changes they build on.
        incremental: Whether to write changes only. If not, each checkpoint holds all rows.

    Attributes:
        pinned: Step of a checkpoint to keep however old it is, such as the best so far; or None.
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
        """All checkpoints, the oldest first, whole or damaged."""
        return sorted(path for path in self.folder.glob("step-*") if _NAMES.fullmatch(path.name) and path.is_dir())

    def of_step(self, step: int) -> Path:
        """The path of the checkpoint of a step, whether it exists or not."""
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
        """Write another checkpoint, and remove the ones that `keep` doesn't cover.

        Args:
            step: The training step, larger than those before.
            model, optimizer, scheduler, extra: See `save_checkpoint`.
            whole: Write all rows, changed or not.

        Returns:
            The new folder.

        Raises:
            CheckpointError, OSError: See `save_checkpoint`; also if a checkpoint of this step or a later one exists.
                All of them remain.
        """
        folder, ranks = self.of_step(step), CheckpointRanks(model, "writing a checkpoint")
        ranks.do(lambda: None if ranks.rank else self._make_way(step))
        last = self._chain[-1] if self._chain and self.incremental and not whole else None
        if last is not None and not (self._is_worth_following() and are_tracked(ranks, last[1].id)):
            last = None
        if not ranks.agree_on(None if last is None else last[1].id):
            last = None
        if last is None:
            self._chain = []
        parent = None if last is None else last[0]
        manifest = save_checkpoint(
            folder, model, optimizer, scheduler, step=step, extra=extra, parent=parent, track=self.incremental
        )
        self._chain.append((folder, manifest))
        ranks.do(lambda: None if ranks.rank else self._prune())
        return folder

    def load(
        self, path: Path, model: nn.Module, optimizer: Optimizers = None, scheduler: LRScheduler | None = None
    ) -> LoadResult:
        """Load a checkpoint to continue from: the next one holds only what has changed since.

        If other ranks have written it, the next one holds all rows.

        Args:
            path: As `latest` gave it.
            model, optimizer, scheduler: See `load_checkpoint`.

        Raises:
            CheckpointError, MemoryError: See `load_checkpoint`.
        """
        loaded = load_checkpoint(path, model, optimizer, scheduler, track=self.incremental)
        self._chain = chain_of(path, CHECKPOINT)
        return loaded

    def latest(self) -> Path | None:
        """The newest checkpoint whose files are all as they were written, or None; `skipped` says what is newer."""
        self.skipped = []
        for path in reversed(self.paths()):
            try:
                verified_chain(path, CHECKPOINT)
            except CheckpointError as error:
                self.skipped.append(error)
            else:
                return path
        return None

    def tidy(self) -> None:
        """Remove what was left by a `save` that was cut off after its checkpoint was in place."""
        remove_leftovers(self.folder)
        self._prune()

    def _is_worth_following(self) -> bool:
        base, *changes = [manifest for _, manifest in self._chain]
        return bool(base.tables) and sum(manifest.bytes for manifest in changes) <= base.bytes

    def _make_way(self, step: int) -> None:
        """Remove leftovers, and damaged checkpoints of this step and later ones; raise if one of these is whole."""
        remove_leftovers(self.folder)
        for path in self.paths():
            if path.name < self.of_step(step).name:
                continue
            try:
                verified_chain(path, CHECKPOINT)
            except CheckpointError:
                remove_folder(path)
            else:
                raise CheckpointError(f"{path}: is there already, and step {step:,} does not come after it")

    def _prune(self) -> None:
        """Remove what is older than all that is kept; until then a damaged one remains, for someone to look at.

        Only checkpoints whose files have their sizes and whose chain fits together are counted.
        """
        parents: dict[str, str | None] = {}
        for path in self.paths():
            with suppress(CheckpointError):
                for folder, manifest in chain_of(path, CHECKPOINT):
                    for name, facts in manifest.files.items():
                        check_size(folder / name, facts, CheckpointError)
                parents[path.name] = None if manifest.parent is None else PurePosixPath(manifest.parent.path).name
        pinned = [] if self.pinned is None else [self.of_step(self.pinned).name]
        needed: set[str] = set()
        for name in sorted(parents)[-self.keep :] + pinned:
            ancestor: str | None = name
            while ancestor is not None and ancestor not in needed:
                needed.add(ancestor)
                ancestor = parents.get(ancestor)
        if len(needed & parents.keys()) < self.keep:
            return
        oldest = sorted(parents)[-self.keep]
        for path in reversed(self.paths()):  # a base after the changes to it
            if path.name not in needed and path.name < oldest:
                remove_folder(path)
